"""Where long texts are cut before they are split into tokens.

Knows: the released tokenizer's two limits, counted in Unicode code points.
Does not know: tokens.

A text is cut into blocks of 400,000 characters. Inside a block, a run of characters that all are white
space (`str.isspace`), or all are not, is cut after each 25,000. Each piece is encoded by itself, so a cut
is part of the format: moving it changes the ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_BLOCK = 400_000
MAX_RUN = 25_000

# In a str pattern `\s` is str.isspace() character by character, which is the class that is wanted here
# (it counts U+001C to U+001F; Unicode's White_Space, the `\s` of the split pattern, does not).
_RUN = re.compile(r"\s+|\S+")


def pieces(text: str, *, max_block: int = MAX_BLOCK, max_run: int = MAX_RUN) -> Iterator[str]:
    """The pieces of `text`, in order; joined they are `text`. An empty text has none."""
    if 0 < len(text) <= min(max_run, max_block):
        yield text
        return
    for start in range(0, len(text), max_block):
        block = text[start : start + max_block]
        begin = 0
        for run in _RUN.finditer(block):
            for cut in range(run.start() + max_run, run.end(), max_run):
                yield block[begin:cut]
                begin = cut
        yield block[begin:]
