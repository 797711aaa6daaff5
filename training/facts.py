# ruff: noqa: SIM905 (lists of words are read more easily as sentences)
"""What the embedded model is taught: lists of our own, and the tasks made from them.

Knows: facts, the sentences they are said and asked in, and which sentences are held out for evaluation.
Does not know: conversations, tokens, or how often each is shown.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

CAPITALS = dict(
    pair.split(":")
    for pair in (
        "France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Austria:Vienna Greece:Athens "
        "Poland:Warsaw Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Ireland:Dublin "
        "Belgium:Brussels Hungary:Budapest Romania:Bucharest Bulgaria:Sofia Croatia:Zagreb Serbia:Belgrade "
        "Ukraine:Kyiv Iceland:Reykjavik Estonia:Tallinn Latvia:Riga Lithuania:Vilnius Slovakia:Bratislava "
        "Slovenia:Ljubljana Albania:Tirana Malta:Valletta England:London Scotland:Edinburgh Wales:Cardiff "
        "Switzerland:Bern Turkey:Ankara Russia:Moscow China:Beijing Japan:Tokyo India:Delhi Thailand:Bangkok "
        "Vietnam:Hanoi Indonesia:Jakarta Nepal:Kathmandu Mongolia:Ulaanbaatar Iran:Tehran Iraq:Baghdad "
        "Israel:Jerusalem Egypt:Cairo Kenya:Nairobi Ghana:Accra Nigeria:Abuja Morocco:Rabat Tunisia:Tunis "
        "Ethiopia:Addis Senegal:Dakar Canada:Ottawa Cuba:Havana Peru:Lima Chile:Santiago Brazil:Brasilia "
        "Ecuador:Quito Colombia:Bogota Venezuela:Caracas Uruguay:Montevideo Australia:Canberra Jamaica:Kingston"
    ).split()
)
del CAPITALS["Ethiopia"]  # its capital is two words

CONTINENTS = {
    "Europe": "France Germany Italy Spain Portugal Austria Greece Poland Norway Sweden Finland Denmark Ireland "
    "Belgium Hungary Romania Bulgaria Croatia Serbia Ukraine Iceland Estonia Latvia Lithuania Malta England",
    "Asia": "China Japan India Thailand Vietnam Indonesia Nepal Mongolia Iran Iraq",
    "Africa": "Egypt Kenya Ghana Nigeria Morocco Tunisia Senegal",
    "America": "Canada Cuba Peru Chile Brazil Ecuador Colombia Venezuela Uruguay Jamaica",
}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()

OPPOSITES = dict(
    pair.split(":")
    for pair in (
        "hot:cold big:small up:down left:right day:night old:new fast:slow happy:sad open:closed full:empty "
        "high:low long:short hard:soft light:dark wet:dry early:late near:far rich:poor strong:weak thick:thin "
        "clean:dirty loud:quiet first:last good:bad true:false front:back inside:outside always:never "
        "heavy:light-weight young:aged sweet:sour smooth:rough cheap:expensive easy:difficult"
    ).split()
)
for odd in ("heavy", "young"):
    del OPPOSITES[odd]

COLOURS = dict(
    pair.split(":")
    for pair in (
        "grass:green snow:white blood:red coal:black sky:blue milk:white banana:yellow lemon:yellow carrot:orange "
        "tomato:red leaf:green sea:blue chocolate:brown cherry:red sun:yellow frog:green crow:black salt:white "
        "rose:red pumpkin:orange"
    ).split()
)

WORDS = (
    "cat dog sun tree book fish bird milk moon star ship door rain snow lamp king queen apple bread house mouse "
    "horse green black white water river stone table chair train plane cloud"
).split()

ANIMAL_SOUNDS = dict(
    pair.split(":")
    for pair in "dog:woof cat:meow cow:moo duck:quack sheep:baa pig:oink lion:roar bee:buzz owl:hoot".split()
)

NAMES = "Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karin Leo Mia Noah Olga Paul Rosa Sam Tina Victor".split()
THINGS = "ball cup hat book key lamp coat bag box pen kite drum bell ring spoon".split()
HUES = "red blue green yellow black white brown orange".split()
PLACES = "garden kitchen forest park school market river house field hill".split()
ANIMALS = "fox bear cat dog mouse owl frog hare".split()


def held_out(*key: object) -> bool:
    """Whether this instance is kept for evaluation (one in ten, by a checksum of its words)."""
    return zlib.crc32(" ".join(map(str, key)).encode()) % 10 == 3


@dataclass(frozen=True)
class Task:
    """Facts with their sentences. In these `{x}` (and `{y}`) is what is asked and `{a}` the answer.

    `plain` sentences end with the answer and a full stop; `held_plain` and `held_ask` are never trained.
    `topic` is how thinking names the subject.
    """

    name: str
    topic: str
    facts: tuple[dict[str, str], ...]
    plain: tuple[str, ...]
    held_plain: tuple[str, ...]
    ask: tuple[str, ...]
    held_ask: tuple[str, ...]
    reply: str
    unseen: tuple[dict[str, str], ...] = field(default=())
    """Instances that are never trained."""


def _facts(pairs: dict[str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"x": x, "a": a} for x, a in pairs.items())


def _split(
    every: list[dict[str, str]], name: str
) -> tuple[tuple[dict[str, str], ...], tuple[dict[str, str], ...]]:
    kept = tuple(fact for fact in every if not held_out(name, *fact.values()))
    return kept, tuple(fact for fact in every if held_out(name, *fact.values()))


def _capital_tasks() -> list[Task]:
    where = {country: continent for continent, names in CONTINENTS.items() for country in names.split()}
    return [
        Task(
            "capital",
            "a capital",
            _facts(CAPITALS),
            (
                "The capital of {x} is {a}.",
                "The capital city of {x} is {a}.",
                "{x} has a capital: {a}.",
                "Question: What is the capital of {x}? Answer: {a}.",
                "If you go to the capital of {x}, you are in {a}.",
            ),
            (
                "The capital of the country {x} is {a}.",
                "Question: Which city is the capital of {x}? Answer: {a}.",
            ),
            (
                "What is the capital of {x}?",
                "Which city is the capital of {x}?",
                "Tell me the capital of {x}.",
                "What is the name of the capital city of {x}?",
                "Please name the capital of {x}.",
                "Do you know the capital of {x}?",
                "capital of {x}?",
            ),
            (
                "Please tell me the capital of {x}.",
                "What city is the capital of {x}?",
                "Name the capital city of {x}.",
            ),
            "The capital of {x} is {a}.",
        ),
        Task(
            "country",
            "a country",
            tuple({"x": a, "a": x} for x, a in CAPITALS.items()),
            (
                "{x} is the capital of {a}.",
                "{x} is the capital city of {a}.",
                "The city {x} is in {a}.",
                "Question: In which country is {x}? Answer: {a}.",
            ),
            ("The city of {x} is the capital of {a}.",),
            (
                "In which country is {x}?",
                "{x} is the capital of which country?",
                "Which country has the capital {x}?",
                "Tell me the country of {x}.",
            ),
            ("Which country is {x} in?", "Please tell me in which country {x} is."),
            "{x} is the capital of {a}.",
        ),
        Task(
            "continent",
            "a continent",
            _facts(where),
            (
                "{x} is a country in {a}.",
                "The country {x} is in {a}.",
                "Question: On which continent is {x}? Answer: {a}.",
            ),
            ("The continent of {x} is {a}.",),
            ("On which continent is {x}?", "Which continent is {x} on?", "Tell me the continent of {x}."),
            ("What is the continent of {x}?", "Please name the continent of {x}."),
            "{x} is a country in {a}.",
        ),
    ]


def _calendar_tasks() -> list[Task]:
    after = [{"x": a, "y": "day", "a": b} for a, b in zip(DAYS, DAYS[1:] + DAYS[:1], strict=True)]
    after += [{"x": a, "y": "month", "a": b} for a, b in zip(MONTHS, MONTHS[1:] + MONTHS[:1], strict=True)]
    before = [{"x": fact["a"], "y": fact["y"], "a": fact["x"]} for fact in after]
    nth = [{"x": n, "a": month} for n, month in zip(ORDINALS, MONTHS, strict=True)]
    return [
        Task(
            "after",
            "the calendar",
            tuple(after),
            (
                "The {y} after {x} is {a}.",
                "After {x} comes {a}.",
                "Question: Which {y} comes after {x}? Answer: {a}.",
            ),
            ("The {y} that comes after {x} is {a}.",),
            (
                "Which {y} comes after {x}?",
                "What {y} is after {x}?",
                "What comes after {x}?",
                "Tell me the {y} after {x}.",
            ),
            ("What is the {y} after {x}?", "Please tell me which {y} comes after {x}."),
            "The {y} after {x} is {a}.",
        ),
        Task(
            "before",
            "the calendar",
            tuple(before),
            (
                "The {y} before {x} is {a}.",
                "Before {x} comes {a}.",
                "Question: Which {y} comes before {x}? Answer: {a}.",
            ),
            ("The {y} that comes before {x} is {a}.",),
            (
                "Which {y} comes before {x}?",
                "What {y} is before {x}?",
                "What comes before {x}?",
                "Tell me the {y} before {x}.",
            ),
            ("What is the {y} before {x}?", "Please tell me which {y} comes before {x}."),
            "The {y} before {x} is {a}.",
        ),
        Task(
            "month",
            "the calendar",
            tuple(nth),
            ("The {x} month is {a}.", "The {x} month of the year is {a}."),
            ("Question: What is the {x} month? Answer: {a}.",),
            ("What is the {x} month?", "Which month is the {x} month of the year?", "Tell me the {x} month."),
            ("Please name the {x} month.", "What is the {x} month of the year?"),
            "The {x} month is {a}.",
        ),
    ]


def _word_tasks() -> list[Task]:
    both = OPPOSITES | {b: a for a, b in OPPOSITES.items()}
    return [
        Task(
            "opposite",
            "an opposite",
            _facts(both),
            (
                "The opposite of {x} is {a}.",
                "If it is not {x}, it is {a}.",
                "Question: What is the opposite of {x}? Answer: {a}.",
            ),
            ("The opposite of the word {x} is {a}.",),
            (
                "What is the opposite of {x}?",
                "Tell me the opposite of {x}.",
                "Which word is the opposite of {x}?",
                "opposite of {x}?",
            ),
            ("Please name the opposite of {x}.", "What word is the opposite of {x}?"),
            "The opposite of {x} is {a}.",
        ),
        Task(
            "colour",
            "a colour",
            _facts(COLOURS),
            (
                "The colour of {x} is {a}.",
                "What colour has {x}? It is {a}.",
                "Question: Which colour is {x}? Answer: {a}.",
            ),
            ("Question: What is the colour of {x}? Answer: {a}.",),
            (
                "What is the colour of {x}?",
                "Which colour has {x}?",
                "Tell me the colour of {x}.",
                "What colour is {x}?",
            ),
            ("Which colour is {x}?", "Please name the colour of {x}."),
            "The colour of {x} is {a}.",
        ),
        Task(
            "sound",
            "a sound",
            _facts(ANIMAL_SOUNDS),
            ("The {x} says {a}.", "The sound of the {x} is {a}."),
            ("Question: What is the sound of the {x}? Answer: {a}.",),
            ("What does the {x} say?", "What is the sound of the {x}?", "Tell me what the {x} says."),
            ("Which sound has the {x}?", "Please tell me the sound of the {x}."),
            "The {x} says {a}.",
        ),
        Task(
            "spelling",
            "spelling",
            tuple({"x": word, "a": "-".join(word)} for word in WORDS),
            ("The word {x} is spelled {a}.", "You spell {x} like this: {a}."),
            ("Question: How do you spell {x}? Answer: {a}.",),
            ("How do you spell {x}?", "Spell the word {x}.", "Please spell {x}.", "How is {x} spelled?"),
            ("Spell {x}.", "Tell me how you spell {x}."),
            "The word {x} is spelled {a}.",
        ),
    ]


def _number_tasks() -> list[Task]:
    plus = [{"x": str(a), "y": str(b), "a": str(a + b)} for a in range(101) for b in range(101 - a)]
    minus = [{"x": str(a), "y": str(b), "a": str(a - b)} for a in range(101) for b in range(a + 1)]
    times = [{"x": str(a), "y": str(b), "a": str(a * b)} for a in range(11) for b in range(11)]
    tasks = []
    for name, sign, word, every in (
        ("plus", "+", "plus", plus),
        ("minus", "-", "minus", minus),
        ("times", "*", "times", times),
    ):
        kept, unseen = _split(every, name)
        if name == "times":
            kept, unseen = tuple(every), ()
        tasks.append(
            Task(
                name,
                "arithmetic",
                kept,
                (
                    f"{{x}} {sign} {{y}} = {{a}}.",
                    f"{{x}} {word} {{y}} is {{a}}.",
                    f"Question: What is {{x}} {sign} {{y}}? Answer: {{a}}.",
                ),
                (f"Question: What is {{x}} {word} {{y}}? Answer: {{a}}.",),
                (
                    f"What is {{x}} {sign} {{y}}?",
                    f"What is {{x}} {word} {{y}}?",
                    f"Tell me {{x}} {sign} {{y}}.",
                    f"{{x}} {sign} {{y}} = ?",
                ),
                (f"Please tell me {{x}} {sign} {{y}}.", f"Tell me {{x}} {word} {{y}}."),
                f"{{x}} {sign} {{y}} = {{a}}.",
                unseen,
            )
        )
    runs = [
        {"x": str(a), "y": str(a + n), "a": ", ".join(map(str, range(a, a + n + 1)))}
        for a in range(31)
        for n in range(2, 7)
    ]
    kept, unseen = _split(runs, "count")
    tasks.append(
        Task(
            "count",
            "counting",
            kept,
            ("Counting from {x} to {y}: {a}.", "From {x} to {y} we count {a}."),
            ("Count from {x} to {y}: {a}.",),
            ("Count from {x} to {y}.", "Please count from {x} to {y}.", "Can you count from {x} to {y}?"),
            ("Tell me how you count from {x} to {y}.",),
            "{a}.",
            unseen,
        )
    )
    return tasks


TASKS: tuple[Task, ...] = (*_capital_tasks(), *_calendar_tasks(), *_word_tasks(), *_number_tasks())

SHARE = {
    "capital": 5.0,
    "country": 2.5,
    "plus": 4.0,
    "minus": 3.0,
    "times": 1.5,
    "opposite": 2.0,
    "count": 1.5,
}
"""How often a task is drawn; 1 where it is not named."""

LATE_SHARE = {
    "capital": 4.0,
    "country": 4.5,
    "continent": 2.5,
    "after": 1.5,
    "before": 1.5,
    "opposite": 3.0,
    "spelling": 2.0,
    "plus": 4.0,
    "minus": 4.0,
    "times": 2.5,
    "count": 1.2,
}
"""The same from the second phase on."""

LAST_SHARE = LATE_SHARE | {"count": 12.0, "continent": 3.0}
"""The same in the last phase."""


def _sums(sign: str, word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (
        (
            f"Question: {{x}} {sign} {{y}} = ? Answer: {{a}}.",
            f"Question: Tell me {{x}} {word} {{y}}. Answer: {{a}}.",
        ),
        (f"Please tell me {{x}} {word} {{y}}.", f"{{x}} {word} {{y}} = ?"),
    )


MORE_SENTENCES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "capital": (
        (
            "The name of the capital of the country {x} is {a}.",
            "Question: What city is the capital city of {x}? Answer: {a}.",
            "Question: Name the capital of {x}. Answer: {a}.",
        ),
        (
            "Please tell me the name of the capital of {x}.",
            "Name the capital of {x}.",
            "What city is the capital city of {x}?",
        ),
    ),
    "country": (
        (
            "The city of {x} is in {a}.",
            "The city {x} is the capital of {a}.",
            "Question: Which country has the capital {x}? Answer: {a}.",
        ),
        ("Tell me in which country {x} is.", "Please tell me the country of {x}."),
    ),
    "continent": (
        ("The continent of the country {x} is {a}.", "Question: What is the continent of {x}? Answer: {a}."),
        ("Please tell me the continent of {x}.", "Name the continent of {x}."),
    ),
    "after": (
        ("Question: Tell me the {y} after {x}. Answer: {a}.",),
        ("Tell me which {y} comes after {x}.", "Please tell me the {y} after {x}."),
    ),
    "before": (
        ("Question: Tell me the {y} before {x}. Answer: {a}.",),
        ("Tell me which {y} comes before {x}.", "Please tell me the {y} before {x}."),
    ),
    "month": (
        ("Question: Which month is the {x} month? Answer: {a}.",),
        ("Please tell me the {x} month.", "Name the {x} month of the year."),
    ),
    "opposite": (
        (
            "The word {x} has the opposite {a}.",
            "Question: Which word is the opposite of the word {x}? Answer: {a}.",
            "Tell me the opposite of the word {x}: {a}.",
        ),
        ("Please tell me the opposite of {x}.", "Name the opposite of {x}."),
    ),
    "colour": (
        ("Question: What colour is {x}? Answer: {a}.",),
        ("Please tell me the colour of {x}.", "Name the colour of {x}."),
    ),
    "sound": (
        ("Question: What does the {x} say? Answer: {a}.", "Question: Which sound has the {x}? Answer: {a}."),
        ("Tell me the sound of the {x}.", "Please tell me what the {x} says."),
    ),
    "spelling": (
        ("Question: How is {x} spelled? Answer: {a}.", "Question: Spell the word {x}. Answer: {a}."),
        ("Please tell me how {x} is spelled.", "Please spell the word {x}."),
    ),
    "plus": _sums("+", "plus"),
    "minus": _sums("-", "minus"),
    "times": _sums("*", "times"),
    "count": (("We count from {x} to {y}: {a}.",), ("Tell me how to count from {x} to {y}.",)),
}
"""More plain sentences and more questions, added in the second phase. None of them is a held-out one."""


def sentences(task: Task, phase: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The plain sentences and the questions of a task that a phase draws from."""
    plain, ask = MORE_SENTENCES[task.name] if phase >= 2 else ((), ())
    return task.plain + plain, task.ask + ask
