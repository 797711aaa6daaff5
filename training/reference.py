"""Logits by the training code, for the engine's tests: `python -m training.reference --run DIR --to FILE`.

Knows: twenty prompts of all kinds. Does not know: the engine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from kimistream.text.tokenizer import Tokenizer
from training.corpus import Corpus
from training.model import Model, Packed, as_stored
from training.questions import every_question
from training.shape import SHAPE

PROMPTS = 20


def prompts(corpus: Corpus) -> list[list[int]]:
    """Twenty prompts spread over the examination, of all kinds and lengths."""
    questions = every_question(corpus)
    return [question.prompt for question in questions[:: len(questions) // PROMPTS][:PROMPTS]]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description="Store logits of the training code.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    weights = as_stored(torch.load(options.run / "state.pt")["masters"])
    asked = prompts(Corpus(Tokenizer.from_directory(options.run, SHAPE.vocab)))
    logits = [Model(SHAPE).logits(weights, Packed.of([ids]))[-1].numpy() for ids in asked]
    lengths = np.array([len(ids) for ids in asked], np.int32)
    ids = np.concatenate([np.asarray(ids, np.int32) for ids in asked])
    np.savez_compressed(options.to, lengths=lengths, ids=ids, logits=np.stack(logits))


if __name__ == "__main__":
    main()
