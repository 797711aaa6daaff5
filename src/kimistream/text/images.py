"""Image prompts: the places of images in a conversation, in document order.

Knows: what an image prompt looks like, and that each prompt belongs to exactly one place.
Does not know: pixels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kimistream.errors import TextError
from kimistream.text.xtml import Segment, plain

# Not a token: eight ordinary ids, which mean something only to the code that puts prompts in its place.
PLACEHOLDER = "<|kimi_image_placeholder|>"

_PROMPT = re.compile(
    r"<\|media_begin\|>image [1-9][0-9]*x[1-9][0-9]*<\|media_content\|>(<\|media_pad\|>)+<\|media_end\|>"
)


def image_prompt(width: int, height: int, pads: int = 1) -> str:
    """The prompt of an image of `width` x `height` pixels, as the file has them before any resizing.

    `pads` is the number of slots for embeddings: one stands for the whole image, engines with one id per
    position write as many as there are embeddings.
    """
    return f"<|media_begin|>image {width}x{height}<|media_content|>{'<|media_pad|>' * pads}<|media_end|>"


class ImagePlaces:
    """Hands out image prompts one by one; without prompts (None) text is left as it is."""

    def __init__(self, prompts: Sequence[str] | None) -> None:
        self._prompts = None if prompts is None else list(prompts)
        self._used = 0

    def place(self) -> list[Segment]:
        """The segment of an image part. Raises `TextError` when the prompts are used up."""
        if self._prompts is None:
            return [Segment(PLACEHOLDER)]
        if self._used == len(self._prompts):
            raise TextError(
                f"the conversation has more places for images than image prompts, of which there are"
                f" {len(self._prompts)}",
                f"Give one prompt for each image part and each {PLACEHOLDER} in a text.",
            )
        self._used += 1
        return [Segment(self._prompts[self._used - 1], True)]

    def text(self, text: str) -> list[Segment]:
        """The segments of a text; with prompts, each placeholder in it is a place for an image."""
        if self._prompts is None:
            return plain(text)
        first, *others = text.split(PLACEHOLDER)
        segments = plain(first)
        for other in others:
            segments += [*self.place(), *plain(other)]
        return segments

    def finish(self) -> None:
        """Check that every prompt was used and is nothing else than an image prompt, else `TextError`."""
        if self._prompts is None:
            return
        if self._used != len(self._prompts):
            raise TextError(
                f"there are {len(self._prompts)} image prompts and {self._used} places for images in the"
                " conversation",
                "Give one prompt for each image.",
            )
        for number, prompt in enumerate(self._prompts):
            # Prompts are encoded with special tokens recognised: another text could write structure.
            if not _PROMPT.fullmatch(prompt):
                raise TextError(
                    f"image prompt {number} is not an image prompt: {prompt[:80]!r}",
                    f"Its form is {image_prompt(640, 480)!r}.",
                )
