"""The command line as a whole: its commands, and how a failure becomes words and an exit code.

Knows: the exit codes (0 done, 1 refused or failed, 2 usage, 130 interrupted).
Does not know: what the commands do.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys

from cyclopts import App, CycloptsError

from kimistream import __version__
from kimistream.cli.chat import chat
from kimistream.cli.doctor import doctor
from kimistream.cli.pack import pack
from kimistream.cli.plan import plan
from kimistream.cli.pull import pull
from kimistream.cli.render import render
from kimistream.cli.run import run
from kimistream.cli.synth import synth
from kimistream.cli.tokenize import tokenize
from kimistream.cli.verify import verify
from kimistream.errors import BudgetError, Interrupted, KimistreamError, OutputError, UsageError

app = App(
    name="kimistream",
    version=__version__,
    help="Run Kimi K3 from disk on one ordinary machine, exactly and within a memory budget.",
    suppress_keyboard_interrupt=False,  # an interrupt gets a message here, as every other failure does
)
app.command(run)
app.command(chat)
app.command(doctor)
app.command(plan)
app.command(pull)
app.command(pack)
app.command(synth)
app.command(tokenize)
app.command(render)
app.command(verify)

EXAMPLES = {
    "run": 'kimistream run CHECKPOINT --prompt "Hello" --memory 8GB --max-tokens 64',
    "chat": "kimistream chat CHECKPOINT --memory 8GB --think low --session talk.session",
    "tokenize": 'kimistream tokenize CHECKPOINT --text "Hello"',
    "render": "kimistream render CHECKPOINT --messages messages.json",
    "doctor": "kimistream doctor DIRECTORY",
    "plan": "kimistream plan CHECKPOINT --memory 8GB --context 4096",
    "pack": "kimistream pack CHECKPOINT /fast/kimi.pack",
    "synth": "kimistream synth DIRECTORY --layers 5 --experts 64 --vocab 32768 --mla 4,5",
    "verify": "kimistream verify CHECKPOINT --deep",
    "pull": "kimistream pull DIRECTORY --only text",
}
"""A call that works, for each command."""


def run_app(arguments: list[str]) -> int:
    """Run one command line; the exit code. Failures are one message on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name or a text that its encoding lacks is spelled out
            stream.reconfigure(errors="backslashreplace")
    try:
        _command(arguments)
        sys.stdout.flush()
    except KimistreamError as error:
        return _fail(error, arguments)
    except KeyboardInterrupt:
        return _fail(Interrupted("interrupted"), arguments)
    except BrokenPipeError:
        _drop_output()  # the reader of stdout went away: nobody is left to tell
        return 1
    except OSError as error:
        code = _fail(_from_system(error), arguments)
        _drop_output()
        return code
    except MemoryError as error:
        return _fail(_no_memory(error), arguments)
    return 0


def _drop_output() -> None:
    """What still waits to be printed cannot be: without this, the interpreter would say so at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _from_system(error: OSError) -> KimistreamError:
    if error.filename is not None:
        return OutputError(
            f"{os.fsdecode(error.filename)}: {error.strerror}",
            "Check that path, its permissions, and the room on its disk.",
        )
    return OutputError(
        f"the output cannot be written: {error.strerror or error}",
        "Check where it goes, and its disk's room.",
    )


def _no_memory(error: MemoryError) -> KimistreamError:
    why = f": {error}" if str(error) else ""
    return BudgetError(
        f"the system gives this process no more memory{why}",
        "Give a smaller `--memory`, `--context` or `--chunk`; `ulimit -v` shows whether a limit is set.",
    )


def _command(arguments: list[str]) -> None:
    try:
        app(
            _with_negative_values(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CycloptsError as error:
        raise UsageError(" ".join(str(error).split()), "kimistream --help tells all commands.") from None


def _with_negative_values(arguments: list[str]) -> list[str]:
    """`--memory -1GB` means a value, to be refused as such, not an option `-1GB`; and so does `--file -`."""
    joined: list[str] = []
    for word in arguments:
        if re.match(r"-(\d|$)", word) and joined and re.fullmatch(r"--[a-z-]+", joined[-1]):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _fail(error: KimistreamError, arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    remedy = error.remedy
    if isinstance(error, UsageError) and name in EXAMPLES:
        remedy += f"\nFor example: {EXAMPLES[name]}\nAll options: kimistream {name} --help"
    print(f"kimistream: {error.what}", file=sys.stderr)
    if remedy:
        print(remedy, file=sys.stderr)
    return error.exit_code
