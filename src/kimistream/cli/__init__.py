"""What a person talks to: commands, options, the live line, the report.

Knows: words, options, exit codes.
Does not know: how tokens are computed (engine).
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script: run the command line and exit with its code."""
    try:
        from kimistream.cli.app import run_app

        code = run_app(sys.argv[1:])
    except KeyboardInterrupt:  # while the program is being loaded
        print("kimistream: interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)
