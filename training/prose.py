"""Texts that are drawn rather than listed: stories, small code, questions about a given text.

Knows: their grammars. Does not know: conversations, tokens.
"""

from __future__ import annotations

from random import Random

from training.facts import ANIMALS, HUES, NAMES, PLACES, THINGS, held_out

CODE = (
    "def add(a, b):\n    return a + b\n",
    "def subtract(a, b):\n    return a - b\n",
    "def multiply(a, b):\n    return a * b\n",
    "def square(x):\n    return x * x\n",
    "def double(x):\n    return 2 * x\n",
    "def is_even(n):\n    return n % 2 == 0\n",
    "def is_odd(n):\n    return n % 2 == 1\n",
    "def first(items):\n    return items[0]\n",
    "def last(items):\n    return items[-1]\n",
    'def greet(name):\n    return "Hello, " + name\n',
    "def largest(a, b):\n    if a > b:\n        return a\n    return b\n",
    "for i in range(10):\n    print(i)\n",
    "def total(items):\n    result = 0\n    for item in items:\n        result += item\n    return result\n",
)


def story(draw: Random, hero: str | None = None) -> tuple[str, str]:
    """The hero and four or five sentences about it."""
    hero = hero or draw.choice(ANIMALS)
    friend = draw.choice([animal for animal in ANIMALS if animal != hero])
    place, thing, hue = draw.choice(PLACES), draw.choice(THINGS), draw.choice(HUES)
    lines = [
        f"Once there was a {draw.choice(('little', 'big', 'happy', 'young'))} {hero}.",
        f"The {hero} lived near the {place}.",
        f"One day the {hero} found a {hue} {thing}.",
        f"The {hero} showed the {thing} to the {friend}.",
        draw.choice(
            (
                f"The {friend} was happy, and they played with the {hue} {thing}.",
                f"The {friend} liked it, and they went home together.",
            )
        ),
    ]
    return hero, " ".join(lines)


def reading(draw: Random, *, unseen: bool = False) -> tuple[str, str, str]:
    """A short text, a question about it and the answer, one or two words.

    Which person has which thing is held out by pairs: `unseen` draws only such questions.
    """
    while True:
        people = draw.sample(NAMES, 2)
        things = draw.sample(THINGS, 2)
        hues = draw.sample(HUES, 2)
        places = draw.sample(PLACES, 2)
        kind = draw.randrange(4)
        one = draw.randrange(2)
        if held_out("reading", people[one], things[one], hues[one], places[one]) == unseen:
            break
    if kind < 2:
        text = " ".join(f"{p} has a {h} {t}." for p, h, t in zip(people, hues, things, strict=True))
        if kind == 0:
            return text, f"What does {people[one]} have?", f"a {hues[one]} {things[one]}"
        return text, f"Who has the {things[one]}?", people[one]
    text = " ".join(f"{p} is in the {w}." for p, w in zip(people, places, strict=True))
    if kind == 2:
        return text, f"Where is {people[one]}?", f"in the {places[one]}"
    return text, f"Who is in the {places[one]}?", people[one]
