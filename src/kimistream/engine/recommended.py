"""The sampling values a checkpoint recommends.

Knows: the sampling fields of `generation_config.json`.
Does not know: when a recommendation is followed.

`config.json` may hold fields of the same names; they are a library's defaults, nobody's advice.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kimistream.checkpoint.fetch import fetch
from kimistream.engine.options import SamplingOptions
from kimistream.errors import ConfigError, UsageError

FILE = "generation_config.json"
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def recommended(directory: Path) -> dict[str, float]:
    """Names and values for `SamplingOptions.of`; empty if the checkpoint recommends nothing.

    Raises ConfigError for a file that cannot be read or a value that no option can have.
    """
    path = directory / FILE
    if not path.exists():
        return {}
    try:
        values = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})", "Check its permissions.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not valid: {error}", f"{fetch(path)}; or delete it: it only recommends."
        ) from None
    if values.get("do_sample") is False:
        return {"temperature": 0.0}
    given = {name: value for name in FIELDS if (value := values.get(name)) is not None}
    try:
        options = SamplingOptions.of(given)
    except UsageError as error:
        raise ConfigError(f"{path}: {error.what}", "Correct the file, or delete it.") from None
    return {name: getattr(options, name) for name in given}
