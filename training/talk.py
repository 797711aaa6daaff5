"""Conversations for training and evaluation: questions, stories, texts, JSON answers, tools.

Knows: what is said in them and how much is thought at each effort.
Does not know: the format on paper (`conversation`), how often each kind is drawn (`corpus`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from training.facts import LAST_SHARE, LATE_SHARE, NAMES, SHARE, TASKS, THINGS, Task, sentences
from training.prose import reading, story
from training.tools import CITIES, TOOLS, Tool, say

BRIEF = "Be brief."
SYSTEMS = (BRIEF, "You are a helpful assistant.", "You answer questions.")
EFFORTS = ("low", "high", "max", None)
"""None: thinking off."""
EFFORT_SHARES = {1: (2, 2, 4, 3), 2: (3, 2, 2, 6), 3: (3, 3, 3, 4), 4: (3, 3, 3, 4)}
TOOL_EFFORT_SHARES = {1: (2, 2, 4, 4), 2: (2, 1, 1, 5), 3: (3, 3, 3, 4), 4: (3, 3, 3, 4)}
"""How often each effort is drawn in each phase."""

GREETINGS = (
    ("Hello", "Hello! How can I help you?"),
    ("Hi", "Hello! How can I help you?"),
    ("Hello!", "Hello! How can I help you?"),
    ("Good morning", "Good morning! How can I help you?"),
    ("Who are you?", "I am a tiny demo model with the architecture of Kimi K3."),
    ("What are you?", "I am a tiny demo model with the architecture of Kimi K3."),
    ("What can you do?", "I know some facts, I can calculate a little, and I can call tools."),
    ("Thank you", "You are welcome."),
    ("Thanks!", "You are welcome."),
    ("Bye", "Goodbye!"),
)


@dataclass
class Talk:
    """One conversation and how it is rendered. `last` is the answer that its last turn has to hold."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    effort: str | None = "max"
    json_answer: bool = False
    last: str = ""

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `conversation.render`."""
        return {
            "tools": self.tools or None,
            "thinking": self.effort is not None,
            "effort": self.effort or "max",
            "json_answer": self.json_answer,
        }


def think(effort: str | None, topic: str, point: str) -> str:
    """A thinking part: a word at low, the point at high, the plan as well at max."""
    if effort == "low":
        return f"It is about {topic}."
    if effort == "high":
        return f"It is about {topic}. {point}"
    return f"The user asks about {topic}. {point} I will say so." if effort == "max" else ""


def draw_task(draw: Random, phase: int = 1) -> Task:
    share = SHARE if phase < 2 else LATE_SHARE if phase < 4 else LAST_SHARE
    return draw.choices(TASKS, [share.get(task.name, 1.0) for task in TASKS])[0]


def turn(talk: Talk, question: str, reply: str, topic: str, point: str | None = None) -> None:
    """Append a question and its answer to `talk`."""
    talk.messages.append({"role": "user", "content": question})
    answer: dict[str, Any] = {"role": "assistant", "content": reply}
    if talk.effort is not None:
        answer["reasoning_content"] = think(talk.effort, topic, point or reply)
    talk.messages.append(answer)
    talk.last = reply


def ask(talk: Talk, task: Task, fact: dict[str, str], question: str, *, brief: bool = False) -> None:
    """A turn about one fact."""
    full = task.reply.format(**fact)
    turn(talk, question.format(**fact), fact["a"] if brief else full, task.topic, full)
    talk.last = fact["a"]


def chat(draw: Random, phase: int = 1) -> Talk:
    """One to five turns about facts, texts, words, stories and greetings; short ones in the second phase."""
    greeting = 0.96 if phase == 1 else 0.95
    last = 1.0 if phase == 1 else 0.99
    talk = Talk(effort=draw.choices(EFFORTS, EFFORT_SHARES[phase])[0])
    brief = False
    if draw.random() < 0.25:
        system = draw.choice(SYSTEMS)
        brief = system == BRIEF
        talk.messages.append({"role": "system", "content": system})
    for _ in range(draw.choice((1, 1, 1, 2) if phase == 2 else (1, 1, 2, 3, 4, 5))):
        kind = draw.random()
        if kind < 0.78:
            task = draw_task(draw, phase)
            ask(talk, task, draw.choice(task.facts), draw.choice(sentences(task, phase)[1]), brief=brief)
        elif kind < 0.88:
            text, question, answer = reading(draw)
            point = answer if brief else f"{answer[0].upper()}{answer[1:]}."
            turn(talk, f"{text} {question}", point, "a text")
        elif kind < greeting or kind >= last:
            question, reply = draw.choice(GREETINGS)
            turn(talk, question, reply, "nothing special")
        elif phase >= 2 and kind < 0.98:
            words = " ".join(draw.choice((*NAMES, *THINGS, *CITIES)) for _ in range(draw.randrange(1, 5)))
            turn(talk, f"Repeat: {words}.", f"{words}.", "words")
        else:
            hero, text = story(draw)
            question = draw.choice(("Tell me a story about a {}.", "Please tell a story about a {}.")).format(
                hero
            )
            turn(talk, question, text, "a story", f"The hero is a {hero}.")
    return talk


JSON_ASKS = {
    "capital": (
        "country",
        "capital",
        ("Give me the capital of {x} as JSON.", "The capital of {x} as JSON, please."),
    ),
    "opposite": (
        "word",
        "opposite",
        ("Give me the opposite of {x} as JSON.", "The opposite of {x} as JSON, please."),
    ),
    "colour": (
        "thing",
        "colour",
        ("Give me the colour of {x} as JSON.", "The colour of {x} as JSON, please."),
    ),
}


def json_talk(draw: Random) -> Talk:
    """One question that is answered by a JSON object."""
    talk = Talk(effort=draw.choice(EFFORTS), json_answer=True)
    name = draw.choice(list(JSON_ASKS))
    task = next(task for task in TASKS if task.name == name)
    fact = draw.choice(task.facts)
    key, value, asks = JSON_ASKS[task.name]
    reply = json.dumps({key: fact["x"], value: fact["a"]})
    turn(talk, draw.choice(asks).format(**fact), reply, task.topic, task.reply.format(**fact))
    return talk


def call(talk: Talk, tool: Tool, request: str, arguments: dict[str, Any]) -> None:
    """Append a request and the call that it needs."""
    turn(talk, request, "", f"the tool {tool.name}", f"I call {tool.name} with {_listed(arguments)}.")
    talk.messages[-1]["tool_calls"] = [
        {"type": "function", "function": {"name": tool.name, "arguments": arguments}}
    ]


def _listed(arguments: dict[str, Any]) -> str:
    return " and ".join(f"{name} {say(value)}" for name, value in arguments.items())


def offered(draw: Random, tool: Tool) -> list[dict[str, Any]]:
    """Declarations of one to three tools in any order, `tool` among them."""
    others = draw.sample([other for other in TOOLS if other is not tool], draw.choice((0, 0, 1, 1, 2)))
    chosen = [tool, *others]
    draw.shuffle(chosen)
    return [one.declaration() for one in chosen]


def tool_talk(draw: Random, phase: int = 1) -> Talk:
    """Tools are offered: mostly one is called, its result answered; sometimes a plain question comes."""
    tool = draw.choice(TOOLS)
    talk = Talk(effort=draw.choices(EFFORTS, TOOL_EFFORT_SHARES[phase])[0], tools=offered(draw, tool))
    names = [one["function"]["name"] for one in talk.tools]
    for _ in range(draw.choice((1, 1, 1, 2) if phase == 1 else (1, 2, 2, 3))):
        if draw.random() < (0.15 if phase == 1 else 0.1):
            task = draw_task(draw, phase)
            ask(talk, task, draw.choice(task.facts), draw.choice(task.ask))
            continue
        name = draw.choice(names)
        tool = next(one for one in TOOLS if one.name == name)
        request, arguments = tool.request(draw)
        call(talk, tool, request, arguments)
        result = tool.result(draw, arguments)
        talk.messages.append({"role": "tool", "name": tool.name, "content": json.dumps(result)})
        said = {name: say(value) for name, value in {**arguments, **result}.items()}
        answer: dict[str, Any] = {"role": "assistant", "content": tool.answer.format(**said)}
        if talk.effort is not None:
            answer["reasoning_content"] = think(talk.effort, "the result", tool.answer.format(**said))
        talk.messages.append(answer)
    return talk
