"""Tool results brought into the order of the calls that they answer.

Knows: how a result names its call.
Does not know: how messages are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def in_call_order(messages: Sequence[Any]) -> list[Any]:
    """The messages, with each run of consecutive tool results sorted by the calls they answer.

    A run belongs to the nearest assistant message before it. A result names its call by `tool_call_id`
    (or `id`), compared as text; of calls with the same id the first counts. When every result of a run
    finds its call, the run is sorted by the calls' positions, results of the same call in their given
    order, and takes the calls' names over its own. Otherwise the run is left as it is. Nothing that is
    given is changed in place.
    """
    ordered: list[Any] = []
    calls: dict[str, tuple[int, Any]] = {}
    run: list[Any] = []
    for entry in messages:
        if role_of(entry) == "tool":
            run.append(entry)
            continue
        ordered += _sorted_run(run, calls)
        run = []
        if role_of(entry) == "assistant":
            calls = _calls_by_id(entry.get("tool_calls"))
        ordered.append(entry)
    return ordered + _sorted_run(run, calls)


def role_of(entry: Any) -> Any:
    """The role of a message; None for what is no message."""
    return entry.get("role") if isinstance(entry, Mapping) else None


def call_function(call: Mapping[str, Any]) -> Any:
    """The part of a call that has its name and arguments: `function`, or the call itself."""
    return call.get("function", call)


def _calls_by_id(tool_calls: Any) -> dict[str, tuple[int, Any]]:
    found: dict[str, tuple[int, Any]] = {}
    if not isinstance(tool_calls, (list, tuple)):
        return found
    for position, call in enumerate(tool_calls):
        if isinstance(call, Mapping) and call.get("id") is not None:
            function = call_function(call)
            name = function.get("name") if isinstance(function, Mapping) else call.get("name")
            found.setdefault(str(call["id"]), (position, name))
    return found


def _sorted_run(run: list[Any], calls: dict[str, tuple[int, Any]]) -> list[Any]:
    placed: list[tuple[int, Any]] = []
    for result in run:
        call_id = result.get("tool_call_id", result.get("id"))
        if call_id is None or str(call_id) not in calls:
            return run
        position, name = calls[str(call_id)]
        placed.append((position, result if name is None else {**result, "tool": name, "name": name}))
    placed.sort(key=lambda entry: entry[0])
    return [result for _, result in placed]
