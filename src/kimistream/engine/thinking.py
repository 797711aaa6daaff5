"""How much the model may think before it answers, in one word.

Knows: the words, and that thinking can be off.
Does not know: how the effort is written in a prompt (text.prompts).
"""

from __future__ import annotations

from kimistream.errors import UsageError
from kimistream.text.prompts import EFFORTS

OFF = "off"
THINK = (*EFFORTS, OFF)


def checked_think(word: str, option: str = "think") -> str:
    """One of THINK. Raises UsageError for other words."""
    if word not in THINK:
        raise UsageError(f"{option} {word}: must be one of {', '.join(THINK)}", f"For example {option} low.")
    return word
