# ruff: noqa: SIM905 (lists of words are read more easily as sentences)
"""The tools the embedded model is taught to call: declarations, requests with their arguments, results.

Knows: eight tools, the sentences that ask for them, and which sentences and arguments are held out.
Does not know: how a conversation is written (`conversation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from training.facts import CAPITALS, NAMES, THINGS, held_out

ROOMS = "kitchen bedroom bathroom garden office hall".split()
FOODS = "milk bread eggs cheese apples rice tea sugar butter salt".split()
SKIES = "sunny cloudy rainy windy snowy".split()
LANGUAGES = "French German Italian Spanish Greek Polish".split()
NOTES = (
    "I am late",
    "dinner is ready",
    "see you on Monday",
    "the train is slow",
    "thank you",
    "good night",
    "I am at home",
    "call me back",
)
CITIES = tuple(CAPITALS.values())

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """`fields` are name and JSON type in order; `draw` makes arguments; `result` what the tool returns for
    them, and `answer` the reply to that result. Sentences name arguments in braces."""

    name: str
    description: str
    fields: tuple[tuple[str, str], ...]
    draw: Callable[[Random], Arguments]
    ask: tuple[str, ...]
    held_ask: tuple[str, ...]
    result: Callable[[Random, Arguments], Arguments]
    answer: str

    def declaration(self) -> dict[str, Any]:
        """As a client sends it."""
        properties = {name: {"type": kind} for name, kind in self.fields}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def request(
        self, draw: Random, *, unseen: bool = False, held_wording: bool = False
    ) -> tuple[str, Arguments]:
        """A user's sentence and the arguments it asks for; `unseen` gives arguments that are never trained."""
        while True:
            arguments = self.draw(draw)
            if held_out(self.name, *arguments.values()) == unseen:
                break
        said = {name: say(value) for name, value in arguments.items()}
        return draw.choice(self.held_ask if held_wording else self.ask).format(**said), arguments


def say(value: Any) -> str:
    """An argument as a sentence names it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return " and ".join(value) if isinstance(value, list) else str(value)


def _number(draw: Random, top: int) -> int:
    return draw.randrange(1, 10) if draw.random() < 0.3 else draw.randrange(10, top)


TOOLS: tuple[Tool, ...] = (
    Tool(
        "get_weather",
        "The weather in a city.",
        (("city", "string"),),
        lambda draw: {"city": draw.choice(CITIES)},
        (
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "Tell me the weather in {city}.",
            "weather in {city}?",
            "Is it sunny in {city}?",
        ),
        ("Please tell me the weather in {city}.", "What is the weather like in {city}?"),
        lambda draw, given: {"city": given["city"], "sky": draw.choice(SKIES), "degrees": _number(draw, 40)},
        "In {city} it is {sky}, with {degrees} degrees.",
    ),
    Tool(
        "get_time",
        "The time in a city.",
        (("city", "string"),),
        lambda draw: {"city": draw.choice(CITIES)},
        (
            "What time is it in {city}?",
            "What is the time in {city}?",
            "Tell me the time in {city}.",
            "time in {city}?",
            "How late is it in {city}?",
        ),
        ("Please tell me the time in {city}.", "Which time is it in {city}?"),
        lambda draw, given: {"city": given["city"], "hour": draw.randrange(0, 24)},
        "In {city} it is {hour} o'clock.",
    ),
    Tool(
        "add",
        "Adds two numbers.",
        (("a", "number"), ("b", "number")),
        lambda draw: {"a": _number(draw, 1000), "b": _number(draw, 1000)},
        (
            "Add {a} and {b}.",
            "What is the sum of {a} and {b}?",
            "Please add {a} and {b}.",
            "Sum of {a} and {b}?",
        ),
        ("Tell me the sum of {a} and {b}.", "Can you add {a} and {b}?"),
        lambda draw, given: {"sum": given["a"] + given["b"]},
        "The sum is {sum}.",
    ),
    Tool(
        "set_timer",
        "Starts a timer.",
        (("minutes", "number"), ("label", "string")),
        lambda draw: {"minutes": _number(draw, 60), "label": draw.choice(FOODS)},
        (
            "Set a timer of {minutes} minutes for the {label}.",
            "Start a timer for the {label}: {minutes} minutes.",
            "Timer for {label}, {minutes} minutes.",
            "I need a timer of {minutes} minutes for the {label}.",
        ),
        (
            "Please set a timer of {minutes} minutes for {label}.",
            "Start a timer of {minutes} minutes for the {label}.",
        ),
        lambda draw, given: {"started": True},
        "The timer for the {label} is set to {minutes} minutes.",
    ),
    Tool(
        "send_message",
        "Sends a message to a person.",
        (("to", "string"), ("text", "string")),
        lambda draw: {"to": draw.choice(NAMES), "text": draw.choice(NOTES)},
        (
            "Tell {to}: {text}",
            "Send a message to {to}: {text}",
            "Write to {to}: {text}",
            "Send {to} the message: {text}",
        ),
        ("Please send a message to {to}: {text}", "Send to {to}: {text}"),
        lambda draw, given: {"sent": True},
        "The message to {to} is sent.",
    ),
    Tool(
        "switch_light",
        "Switches the light of a room.",
        (("room", "string"), ("on", "boolean")),
        lambda draw: {"room": draw.choice(ROOMS), "on": draw.random() < 0.5},
        (
            "Switch the light in the {room} {on}.",
            "Turn {on} the light in the {room}.",
            "Light {on} in the {room}, please.",
            "Turn the {room} light {on}.",
        ),
        ("Please turn {on} the light in the {room}.", "Switch {on} the light in the {room}."),
        lambda draw, given: {"done": True},
        "The light in the {room} is {on}.",
    ),
    Tool(
        "buy",
        "Puts things on the shopping list.",
        (("items", "array"),),
        lambda draw: {"items": draw.sample(FOODS, draw.randrange(1, 4))},
        (
            "Buy {items}.",
            "Put {items} on the list.",
            "We need {items}.",
            "Please buy {items}.",
        ),
        ("I need {items}.", "Please put {items} on the list."),
        lambda draw, given: {"count": len(given["items"])},
        "I put {items} on the list.",
    ),
    Tool(
        "find",
        "Finds where a thing is.",
        (("thing", "string"), ("owner", "string")),
        lambda draw: {"thing": draw.choice(THINGS), "owner": draw.choice(NAMES)},
        (
            "Where is the {thing} of {owner}?",
            "Find the {thing} of {owner}.",
            "{owner} lost the {thing}. Where is it?",
            "Please find the {thing} of {owner}.",
        ),
        ("Tell me where the {thing} of {owner} is.", "Can you find the {thing} of {owner}?"),
        lambda draw, given: {"room": draw.choice(ROOMS)},
        "The {thing} of {owner} is in the {room}.",
    ),
)
