"""The stream of training documents: ids and the loss weight of each, drawn from a seed.

Knows: the mixture of kinds, plain lines and conversations as ids. Does not know: batches' use, the model.

There are four phases. In the first every token of a plain text counts, so the language is learned; from the
second on only the answers do. The second has many words to say again, which teach looking back, and short
conversations; the third long ones, the
last and short one much counting.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from kimistream.text.tokenizer import Tokenizer
from training.bpe import count_words, learn, write_vocabulary
from training.conversation import Piece, render
from training.facts import CAPITALS, DAYS, HUES, NAMES, OPPOSITES, PLACES, TASKS, THINGS, WORDS, sentences
from training.prose import CODE, reading, story
from training.shape import Shape
from training.talk import Talk, chat, draw_task, json_talk, tool_talk
from training.tools import CITIES, FOODS, NOTES, ROOMS, say

Document = tuple[list[int], list[float]]
"""Ids, and for each the weight of predicting it."""

Shares = tuple[tuple[str, float], ...]

VOCABULARY_MIXTURE: Shares = (("plain", 0.62), ("chat", 0.20), ("tools", 0.16), ("json", 0.02))
"""Shares of documents in the sample that the vocabulary is learned from."""

MIXTURES: dict[int, Shares] = {
    1: (("plain", 0.50), ("copies", 0.14), ("sums", 0.08), ("chat", 0.18), ("tools", 0.08), ("json", 0.02)),
    2: (("lines", 0.38), ("copies", 0.20), ("sums", 0.14), ("chat", 0.18), ("tools", 0.07), ("json", 0.03)),
    3: (("lines", 0.41), ("copies", 0.08), ("sums", 0.18), ("chat", 0.20), ("tools", 0.10), ("json", 0.03)),
    4: (("lines", 0.49), ("copies", 0.06), ("sums", 0.10), ("chat", 0.20), ("tools", 0.12), ("json", 0.03)),
}
"""Shares of documents in each phase."""

LINES: Shares = (("facts", 0.81), ("readings", 0.16), ("stories", 0.015), ("code", 0.015))
"""Shares of the lines of plain texts from the second phase on."""

CONTEXT_WEIGHT, END_WEIGHT, STORY_WEIGHT = 0.05, 0.3, 0.2
"""From the second phase on: weight of what nobody could predict (the questions of plain lines), of the end of
a plain text, and of stories."""

VOCABULARY_SAMPLE = 12_000
MERGES = 640

SUMS = tuple(task for task in TASKS if task.name in ("plus", "minus", "times"))
KEYS = ("name", "city", "room", "colour", "word", "thing", "label", "place", "owner", "text", "item", "day")
WORDS_TO_COPY = (
    *NAMES, *THINGS, *HUES, *PLACES, *CITIES, *CITIES, *FOODS, *ROOMS, *CAPITALS, *DAYS, *WORDS, *OPPOSITES,
    *(word for note in NOTES for word in note.split()),
)  # fmt: skip


def plain_line(draw: Random) -> str:
    """One sentence, text or piece of code."""
    kind = draw.random()
    if kind < 0.86:
        task = draw_task(draw)
        return draw.choice(task.plain).format(**draw.choice(task.facts))
    if kind < 0.91:
        return story(draw)[1]
    if kind < 0.96:
        text, question, answer = reading(draw)
        return f"{text} Question: {question} Answer: {answer}."
    return draw.choice(CODE).rstrip()


def plain_text(draw: Random) -> str:
    return "\n".join(plain_line(draw) for _ in range(draw.choice((1, 1, 1, 2, 5))))


def copy_line(draw: Random) -> tuple[str, str]:
    """Words in any order, to be said again: as they stand, as a list in JSON, a line each, or one of them."""
    words = [
        draw.choice(WORDS_TO_COPY) if draw.random() < 0.88 else str(draw.randrange(1000))
        for _ in range(draw.choice((1, 2, 3, 4, 5, 6, 8)))
    ]
    kind = draw.random()
    if kind < 0.45:
        said = " ".join(words)
        return f"Repeat: {said}. Answer:", f" {said}."
    if kind < 0.65:
        return f"List: {say(words)}. Answer:", f" {json.dumps(words)}."
    if kind < 0.80:
        return f"Lines: {' '.join(words)}. Answer:", "".join(f"\n{word}" for word in words)
    return _which(draw, words)


def _which(draw: Random, words: list[str]) -> tuple[str, str]:
    """The value of one of a few keys."""
    keys = draw.sample(KEYS, len(words))
    text = ", ".join(f"{key} is {word}" for key, word in zip(keys, words, strict=True))
    order = draw.sample(range(len(words)), draw.randrange(1, min(3, len(words)) + 1))
    if draw.random() < 0.5:
        wanted = " and ".join(keys[at] for at in order)
        return f"{text}. What is {wanted}? Answer:", f" {say([words[at] for at in order])}."
    return f"{text}. JSON:", " " + json.dumps({keys[at]: words[at] for at in sorted(order)}) + "."


def sum_line(draw: Random) -> tuple[str, str]:
    """A sum, a difference or a product, short."""
    task = draw.choices(SUMS, (4.0, 4.0, 1.0))[0]
    fact, sentence = draw.choice(task.facts), draw.choice(task.plain[:2])
    cut = len(sentence[: sentence.rindex("{a}")].rstrip())
    return sentence[:cut].format(**fact), sentence[cut:].format(**fact)


def weighted_line(draw: Random, phase: int = 3) -> list[tuple[str, float]]:
    """A line of a later phase in parts, each with its weight."""
    kind = draw.choices(*zip(*LINES, strict=True))[0]
    if kind == "facts":
        task = draw_task(draw, phase)
        fact, sentence = draw.choice(task.facts), draw.choice(sentences(task, phase)[0])
        cut = len(sentence[: sentence.rindex("{a}")].rstrip())
        return [(sentence[:cut].format(**fact), CONTEXT_WEIGHT), (sentence[cut:].format(**fact), 1.0)]
    if kind == "readings":
        text, question, answer = reading(draw)
        return [(f"{text} Question: {question} Answer:", CONTEXT_WEIGHT), (f" {answer}.", 1.0)]
    if kind == "stories":
        return [(story(draw)[1], STORY_WEIGHT)]
    return [(draw.choice(CODE).rstrip(), 1.0)]


def asked(pair: tuple[str, str]) -> list[tuple[str, float]]:
    """Question and answer with their weights."""
    return [(pair[0], CONTEXT_WEIGHT), (pair[1], 1.0)]


def draw_talk(draw: Random, kind: str, phase: int = 1) -> Talk:
    if kind == "chat":
        return chat(draw, phase)
    return tool_talk(draw, phase) if kind == "tools" else json_talk(draw)


class Corpus:
    """Documents as ids. `tokenizer` has to be the one that the checkpoint ships."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._end = tokenizer.special["[EOS]"]
        self._known: dict[str, list[int]] = {}

    def piece(self, piece: Piece) -> list[int]:
        if piece.special:
            return [self.tokenizer.special[piece.text]]
        ids = self._known.get(piece.text)
        if ids is None:
            ids = self.tokenizer.encode(piece.text)
            if len(self._known) < 50_000:
                self._known[piece.text] = ids
        return ids

    def prompt(self, talk: Talk) -> list[int]:
        """The ids before the last assistant's turn of `talk`, with the beginning of that turn."""
        pieces = render(talk.messages[:-1], **talk.options(), generate=True)
        return [token for piece in pieces for token in self.piece(piece)]

    def of_talk(self, talk: Talk) -> Document:
        ids: list[int] = []
        weights: list[float] = []
        for piece in render(talk.messages, **talk.options()):
            own = self.piece(piece)
            ids += own
            weights += [1.0 if piece.target else 0.0] * len(own)
        return ids, weights

    def of_text(self, text: str) -> Document:
        ids = [*self.tokenizer.encode(text), self._end]
        return ids, [1.0] * len(ids)

    def of_lines(self, lines: list[list[tuple[str, float]]]) -> Document:
        """Weighted lines as one text. A token has the weight of the part that its last byte is in."""
        parts = [part for line in lines for part in (*line, ("\n", CONTEXT_WEIGHT))][:-1]
        ids = self.tokenizer.encode("".join(text for text, _ in parts))
        each = [weight for text, weight in parts for _ in text.encode()]
        weights: list[float] = []
        at = 0
        for token in ids:
            at += len(self.tokenizer.decode_bytes([token]))
            weights.append(each[at - 1])
        return [*ids, self._end], [*weights, END_WEIGHT]

    def document(self, draw: Random, longest: int, phase: int = 3) -> Document:
        """One document of at most `longest` ids."""
        mixture = MIXTURES[phase]
        while True:
            kind = draw.choices(*zip(*mixture, strict=True))[0]
            if kind == "plain":
                made = self.of_text(plain_text(draw))
            elif kind == "lines":
                made = self.of_lines(
                    [weighted_line(draw, phase) for _ in range(draw.choice((1, 1, 1, 2, 5)))]
                )
            elif kind == "copies":
                made = self.of_lines([asked(copy_line(draw)) for _ in range(draw.choice((1, 1, 2, 4)))])
            elif kind == "sums":
                made = self.of_lines([asked(sum_line(draw)) for _ in range(draw.randrange(4, 17))])
            else:
                made = self.of_talk(draw_talk(draw, kind, phase))
            if len(made[0]) <= longest:
                return made

    def documents(self, key: str, rows: int, longest: int, phase: int = 3) -> list[Document]:
        """Whole documents of `rows` ids together, or a few less; the same for the same arguments."""
        draw = Random(key)
        documents: list[Document] = []
        room, misses = rows, 0
        while misses < 8 and room > 8:
            made = self.document(draw, longest, phase)
            if len(made[0]) > room:
                misses += 1
                continue
            documents.append(made)
            room -= len(made[0])
        return documents


def make_vocabulary(directory: Path, shape: Shape, seed: int) -> None:
    """Learn the vocabulary from a sample of the corpus and write its files."""
    draw = Random(f"{seed}/vocabulary")
    texts: list[str] = []
    for _ in range(VOCABULARY_SAMPLE):
        kind = draw.choices(*zip(*VOCABULARY_MIXTURE, strict=True))[0]
        if kind == "plain":
            texts.append(plain_text(draw))
        else:
            talk = draw_talk(draw, kind)
            texts += [p.text for p in render(talk.messages, **talk.options()) if not p.special]
    write_vocabulary(directory, learn(count_words(texts), shape.base_vocab, MERGES))
