"""Reading the fields of a JSON object one by one, each refusal naming the field.

Knows: how to say which field of which file has which value, and what would have been understood.
Does not know: what any field means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from kimistream.errors import ConfigError

REMEDY = "Use the config.json that was released with these weights; this one does not describe them."


def shown(value: object) -> str:
    """`value` as JSON-like text, at most 60 characters (a config may hold anything)."""
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """The fields of one JSON object; `path` is its dotted place in `file` ("" at the top)."""

    def __init__(self, file: str, path: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self.path = path
        self.values = values

    def dotted(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def refuse(self, name: str, understood: str, remedy: str = REMEDY) -> NoReturn:
        """Raise ConfigError for the field `name`, with its value and what is understood instead."""
        where = f"{self.file}: {self.dotted(name)}"
        if name not in self.values:
            raise ConfigError(f"{where} is missing; needed: {understood}", remedy)
        raise ConfigError(f"{where} = {shown(self.values[name])}; understood: {understood}", remedy)

    def given(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def section(self, name: str) -> Fields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            self.refuse(name, "an object with fields of its own")
        return Fields(self.file, self.dotted(name), value)

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(name, f"a whole number from {low} to {high}")
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        return self.integer(name, low, high) if self.given(name) else None

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def optional_flag(self, name: str) -> bool:
        """A switch that may be left out, which is the same as off."""
        return self.flag(name) if self.given(name) else False

    def number(self, name: str, low: float, high: float, understood: str) -> float:
        """A finite number in the open interval `low` .. `high`."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, understood)
        if not math.isfinite(value) or not low < value < high:
            self.refuse(name, understood)
        return float(value)

    def choice(self, name: str, values: Sequence[str]) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or value not in values:
            self.refuse(name, " or ".join(f'"{known}"' for known in values))
        return value

    def fixed(self, name: str, *accepted: object) -> None:
        """A field that may be left out or null, and otherwise must be one of `accepted` (same type)."""
        value = self.values.get(name)
        if value is None or any(type(value) is type(one) and value == one for one in accepted):
            return
        self.refuse(name, " or ".join(shown(one) for one in accepted) if accepted else "null")

    def integers(self, name: str, low: int, high: int) -> list[int]:
        """A list of different whole numbers, each from `low` to `high`."""
        values = self.values.get(name)
        if not isinstance(values, list):
            self.refuse(name, f"a list of whole numbers from {low} to {high}")
        seen: set[int] = set()
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                self._refuse_entry(name, value, f"whole numbers from {low} to {high}")
            if value in seen:
                self._refuse_entry(name, value, "each number once")
            seen.add(value)
        return list(values)

    def _refuse_entry(self, name: str, value: object, understood: str) -> NoReturn:
        where = self.dotted(name)
        raise ConfigError(f"{self.file}: {where} contains {shown(value)}; understood: {understood}", REMEDY)

    def only(self, known: frozenset[str]) -> None:
        """Refuse a field that is not `known` and is switched on (not null, false, or empty)."""
        for name, value in self.values.items():
            off = value is None or value is False or value in ([], {}, "")
            if name not in known and not name.startswith("_") and not off:
                self.refuse(
                    name,
                    "no field of this name, and it may change the computation",
                    "If the field does not change what the model computes, remove it from config.json; "
                    "otherwise this model is not supported.",
                )
