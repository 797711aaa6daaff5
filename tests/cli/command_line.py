"""Running `kimistream` in a test as a person would, and looking into the session files it leaves."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

from kimistream.cli.app import run_app

TINY = str(Path(__file__).parents[1] / "data" / "tiny-k3")
QUICK = ["--memory", "2GB", "--think", "off", "-n", "6"]


def call(monkeypatch, capsys, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run a command line with lines on standard input: (exit code, stdout, stderr)."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    code = run_app(list(arguments))
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def header(path: Path) -> tuple[dict, bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def note(path: Path) -> dict:
    fields, data = header(path)
    begin, end = fields["note"]["data_offsets"]
    return json.loads(data[begin:end])


def last_message(path: Path) -> dict:
    return note(path)["messages"][-1]


def tensors(path: Path) -> dict[str, str]:
    """Checksums of the ids, the latents and the state at the end: equal bits, equal sums."""
    fields, _ = header(path)
    sums = json.loads(fields["__metadata__"]["sums"])
    last = fields["__metadata__"]["positions"].split(",")[-1]
    return {name: sums[name] for name in ("ids", "latents", f"kda.{last}", f"tails.{last}")}
