"""Runs the commands shown in the docs again and writes what they print under them.

    python scripts/make_doc_output.py docs/RUN.md docs/CHAT.md docs/SESSIONS.md

In every block marked `console`, a line that begins with `$ ` is a command; the lines up to the next command are
what it printed, stdout and stderr as a terminal shows them. The commands of one page run one after another in an
empty directory. Times and rates are those of the machine this runs on.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kimistream.cli.status import harmless

BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (?:.*<<'END'\n(?:.*\n)*?END$|(?:.*\\\n)*.*$)", re.MULTILINE)
"""A command: a line, lines joined by backslashes, or a here-document that ends with END."""
LIVE = re.compile(r"^(opening|compiling kernels|prompt \d+/|token \d+).*\n", re.MULTILINE)
"""Lines of progress, which a terminal overwrites."""


def again(block: str, directory: str) -> str:
    """The block with its commands run again."""
    commands = COMMAND.findall(block)
    return "".join(f"{command}\n{output(command[2:], directory)}" for command in commands)


def output(command: str, directory: str) -> str:
    """What one command prints."""
    script = f'kimistream() {{ "{sys.executable}" -m kimistream "$@"; }}\n{command}'
    done = subprocess.run(
        ["bash", "-c", script], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if b"Traceback" in done.stdout:
        raise SystemExit(f"{command}\n{done.stdout.decode('utf-8', 'replace')}")
    text = LIVE.sub("", harmless(done.stdout.decode("utf-8", "replace"))).replace("```", "'''")
    text = text.replace(str(Path(directory)) + "/", "")
    return text if not text or text.endswith("\n") else text + "\n"


def main(pages: list[str]) -> None:
    """Refresh the pages."""
    for page in map(Path, pages):
        with tempfile.TemporaryDirectory() as directory:
            text = page.read_text(encoding="utf-8")
            page.write_text(BLOCK.sub(lambda m: again(m.group(), directory), text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
