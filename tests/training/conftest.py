"""Makes the development package `training` importable, and says which of its tests are not here."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(
        "NOT RUN: the tests of the training code (they need PyTorch). "
        "To run them: pip install -e '.[train]' && pytest training/tests"
    )
