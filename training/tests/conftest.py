"""Tests that need PyTorch: `pytest training/tests`, apart from the project's own suite."""

import os
import sys
from pathlib import Path

os.environ.setdefault("KIMISTREAM_TRAIN_EAGER", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
