"""The stream of training documents: ids and the loss weight of each, drawn from a seed.

Knows: the mixture of kinds, plain lines and conversations as ids. Does not know: batches' use, the model.

There are four phases. In the first every token of a plain text counts, so the language is learned; from the
second on only the answers do, and lines that have to be said again teach looking back. The third has many
of these and short conversations, the fourth long ones again.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from kimistream.text.tokenizer import Tokenizer
from training.bpe import count_words, learn, write_vocabulary
from training.conversation import Piece, render
from training.facts import HUES, NAMES, PLACES, THINGS, sentences
from training.prose import CODE, reading, story
from training.shape import Shape
from training.talk import Talk, chat, draw_task, json_talk, tool_talk
from training.tools import CITIES

Document = tuple[list[int], list[float]]
"""Ids, and for each the weight of predicting it."""

MIXTURE = (("plain", 0.62), ("chat", 0.20), ("tools", 0.16), ("json", 0.02))
"""Shares of documents in the first phase."""

MIXTURES = {
    1: MIXTURE,
    2: (("plain", 0.62), ("chat", 0.22), ("tools", 0.14), ("json", 0.02)),
    3: (("plain", 0.79), ("chat", 0.13), ("tools", 0.065), ("json", 0.015)),
    4: (("plain", 0.70), ("chat", 0.17), ("tools", 0.11), ("json", 0.02)),
}
LINES = {2: (0.82, 0.90, 0.97, 0.98), 3: (0.60, 0.82, 0.97, 0.98), 4: (0.72, 0.84, 0.97, 0.98)}
"""Where facts, copies, readings and stories end among the lines of a phase; the rest is code."""

CONTEXT_WEIGHT, END_WEIGHT, STORY_WEIGHT = 0.05, 0.3, 0.2
"""In the second phase: weight of what nobody could predict (the questions of plain lines), of the end of a
plain text, and of stories."""

VOCABULARY_SAMPLE = 12_000
MERGES = 640


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
    """Words in any order, to be said again."""
    pool = (*NAMES, *THINGS, *HUES, *PLACES, *CITIES, *(str(draw.randrange(100)) for _ in range(20)))
    words = " ".join(draw.choice(pool) for _ in range(draw.randrange(2, 6)))
    return f"Repeat: {words}. Answer:", f" {words}."


def weighted_line(draw: Random, phase: int) -> list[tuple[str, float]]:
    """A line of a later phase in parts, each with its weight."""
    facts, copies, readings, stories = LINES[phase]
    kind = draw.random()
    if kind < facts:
        task = draw_task(draw, phase)
        fact, sentence = draw.choice(task.facts), draw.choice(sentences(task, phase)[0])
        cut = len(sentence[: sentence.rindex("{a}")].rstrip())
        return [(sentence[:cut].format(**fact), CONTEXT_WEIGHT), (sentence[cut:].format(**fact), 1.0)]
    if kind < copies:
        question, answer = copy_line(draw)
        return [(question, CONTEXT_WEIGHT), (answer, 1.0)]
    if kind < readings:
        text, question, answer = reading(draw)
        return [(f"{text} Question: {question} Answer:", CONTEXT_WEIGHT), (f" {answer}.", 1.0)]
    if kind < stories:
        return [(story(draw)[1], STORY_WEIGHT)]
    return [(draw.choice(CODE).rstrip(), 1.0)]


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

    def _plain(self, draw: Random, phase: int) -> Document:
        if phase == 1:
            return self.of_text(plain_text(draw))
        return self.of_lines([weighted_line(draw, phase) for _ in range(draw.choice((1, 1, 1, 2, 5)))])

    def document(self, draw: Random, longest: int, phase: int = 1) -> Document:
        """One document of at most `longest` ids."""
        mixture = MIXTURES[phase]
        while True:
            kind = draw.choices([name for name, _ in mixture], [share for _, share in mixture])[0]
            if kind == "plain":
                made = self._plain(draw, phase)
            else:
                made = self.of_talk(draw_talk(draw, kind, phase))
            if len(made[0]) <= longest:
                return made

    def documents(self, seed: int, step: int, rows: int, longest: int, phase: int = 1) -> list[Document]:
        """Whole documents of `rows` ids together, or a few less; the same for the same arguments."""
        draw = Random(f"{seed}/{step}")
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
        kind = draw.choices([name for name, _ in MIXTURE], [share for _, share in MIXTURE])[0]
        if kind == "plain":
            texts.append(plain_text(draw))
        else:
            talk = draw_talk(draw, kind)
            texts += [p.text for p in render(talk.messages, **talk.options()) if not p.special]
    write_vocabulary(directory, learn(count_words(texts), shape.base_vocab, MERGES))
