"""JSON as the chat format writes it: the same characters as the released code's, from Python's own rules.

Knows: two layouts (compact and sorted for declarations, spaced for arguments), what is no JSON.
Does not know: what the values mean.

Non-ASCII characters stay as they are, whole numbers may have any length that Python reads, and a float is
written with its shortest digits.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from kimistream.errors import TextError

_SURROGATE = re.compile("[\ud800-\udfff]")


def compact(value: object, what: str) -> str:
    """Without spaces, object keys sorted by code point. `what` names the value in a `TextError`."""
    return _dumps(value, what, separators=(",", ":"), sort_keys=True)


def spaced(value: object, what: str) -> str:
    """With a space behind each comma and colon, keys in the given order. Errors as in `compact`."""
    return _dumps(value, what, separators=(", ", ": "))


def parse(text: str) -> Any:
    """The value of a JSON text, as Python reads it (NaN and Infinity are accepted).

    Raises `ValueError` for everything that cannot be read: also for nesting that is too deep and for
    numbers that are too long.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_strict(text: str) -> Any:
    """As `parse`, but NaN, infinite numbers and what would become infinite are no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def escape_surrogates(text: str) -> str:
    r"""JSON text with lone surrogates written as `\udXXX`, so that it can be encoded as UTF-8."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _dumps(value: object, what: str, *, separators: tuple[str, str], sort_keys: bool = False) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=separators, sort_keys=sort_keys)
    except (TypeError, ValueError, RecursionError) as error:
        raise TextError(
            f"{what} cannot be written as JSON: {error}",
            "Use objects with text keys, arrays, texts, numbers, true, false and null.",
        ) from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large")
    return value
