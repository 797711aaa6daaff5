"""`doctor`: can this machine run the model, how fast, and what should be typed next?

Knows: how to put processor, memory, drive and plan together into a prediction and one piece of advice.
Does not know: how each of them is looked at, or how the answer is shown (cli).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kimistream.budget import format_size
from kimistream.checkpoint.pack import Pack
from kimistream.checkpoint.pull_state import STATE_NAME
from kimistream.checkpoint.table import Checkpoint
from kimistream.checkpoint.whole import FOLDER
from kimistream.engine.drive import Drive, DriveRates, look_at, measure, trial_file
from kimistream.engine.estimate import estimate
from kimistream.engine.machine import Memory, Processor, memory, processor
from kimistream.engine.paper import RELEASED_BYTES, VISION_BYTES, paper_checkpoint, paper_pack
from kimistream.engine.sizes import Request, Tuning, size_up
from kimistream.engine.text import try_tokenizer
from kimistream.errors import BudgetError, KimistreamError, OutputError, TextError
from kimistream.stream.plan import Needs, least_budget, make_plan

LADDER = (2, 4, 8, 16, 32, 64, 128, 192, 256, 512, 1024)
"""Budgets to predict for, in GB."""
LEAST_FILE = 64 << 20
"""Smaller files are not measured on."""
MEASURE_SECONDS = 2.0
RUNTIME_BYTES = 192 << 20
"""What a run's interpreter, libraries and kernels hold, about."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a decoded token is expected to cost under a budget. Bytes, seconds; shares 0 to 1.

    `storage`: how the dense weights are stored, "released" or "pack".
    """

    budget: int
    storage: str
    kept_share: float
    cached_share: float
    disk_bytes: int
    seconds: float
    fits: bool
    """The machine has this much memory to give."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything doctor found out. `checkpoint`: how the directory's content is called in words."""

    directory: Path
    checkpoint: str
    whole: bool
    needed_bytes: int
    """On the disk, for what is missing of the model; 0 when it is there."""
    processor: Processor
    memory: Memory
    memory_rate: float
    drive: Drive
    rates: DriveRates | None
    unmeasured: str
    """Why there are no rates; empty when there are."""
    least: int
    predictions: tuple[Prediction, ...]
    pack_bytes: int
    """About what a pack of the dense weights would take."""
    remarks: tuple[str, ...]
    verdict: str
    """The answer in a sentence."""
    command: str
    """What to type next."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What a directory holds."""

    words: str
    table: Checkpoint
    whole: bool
    needed: int
    command: str
    """The command for it, when memory and disk allow."""


def diagnose(
    directory: Path,
    *,
    also: Sequence[Path] = (),
    context: int = 4096,
    say: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Look at everything. `say` is told what is being done. Raises OutputError, ReadError.

    also: further directories that hold shards of the checkpoint.
    """
    say = say or (lambda _: None)
    say("looking at the directory")
    found = _look(directory, also)
    drive = look_at(directory)
    say("measuring the memory")
    memory_rate = _memory_rate()
    rates, unmeasured = _rates([directory, *also], drive, say)
    mine = memory()
    request = Request(context, None, None)
    least = least_budget(_needs(found.table, request, 0))
    budgets = sorted({*(gb * 10**9 for gb in LADDER), mine.budget, least})
    pack = paper_pack(found.table)
    released = predict(found.table, request, budgets, rates, memory_rate, mine.budget)
    predictions = (*released, *predict(found.table, request, budgets, rates, memory_rate, mine.budget, pack))
    remarks = _remarks(drive, rates, mine, least, found)
    remarks += _about_pack(predictions, mine, pack.size, found, directory)
    return Diagnosis(
        directory,
        found.words,
        found.whole,
        found.needed,
        processor(),
        mine,
        memory_rate,
        drive,
        rates,
        unmeasured,
        least,
        predictions,
        pack.size,
        tuple(remarks),
        _verdict(released, mine, least),
        _command(directory, found, drive, mine, least),
    )


def predict(
    table: Checkpoint,
    request: Request,
    budgets: Sequence[int],
    rates: DriveRates | None,
    memory_rate: float,
    available: int,
    pack: Pack | None = None,
) -> tuple[Prediction, ...]:
    """What a token costs at each budget that works, up to the first that holds everything.

    The tape is read in a row and experts are read one by one: each at its own rate. pack: what the dense
    weights would be read from, on the same drive.
    """
    found: list[Prediction] = []
    for budget in budgets:
        try:
            plan = make_plan(_needs(table, request, budget, pack), budget)
        except BudgetError:
            continue
        cost = estimate(table.config, plan, 1.0, memory_rate, packed=pack is not None)
        if rates is not None:
            busy = cost.tape_bytes / rates.sequential + cost.expert_bytes / rates.scattered
            mean = cost.disk_bytes / busy if busy else rates.sequential
            cost = estimate(table.config, plan, mean, memory_rate, packed=pack is not None)
        tape = plan.pinned_bytes + plan.tape_bytes
        found.append(
            Prediction(
                budget,
                "released" if pack is None else "pack",
                plan.pinned_bytes / tape if tape else 0.0,
                plan.cache_slots / max(plan.needs.experts, 1),
                cost.disk_bytes,
                cost.seconds if rates is not None else 0.0,
                budget <= available,
            )
        )
        if plan.slots >= plan.needs.experts and plan.resident:
            break
    return tuple(found)


def _about_pack(
    predictions: Sequence[Prediction], mine: Memory, nbytes: int, found: _Found, directory: Path
) -> list[str]:
    """Whether a pack is worth making, in a sentence."""
    now = {each.storage: each for each in predictions if each.budget == mine.budget and each.seconds}
    if len(now) < 2 or now["pack"].seconds > 0.95 * now["released"].seconds:
        return []
    saved = 100 * (1 - now["pack"].seconds / now["released"].seconds)
    command = f": kimistream pack {shlex.quote(str(directory))} FILE" if found.whole else ""
    return [
        f"a pack of the dense weights ({format_size(nbytes)}) would save {saved:.0f} % of the time{command}"
    ]


def _needs(table: Checkpoint, request: Request, budget: int, pack: Pack | None = None) -> Needs:
    """As a run would have them: this process has not loaded all that a run has."""
    needs = size_up(table, request, budget, Tuning(), pack).needs
    return replace(needs, runtime=max(needs.runtime, RUNTIME_BYTES))


def _look(directory: Path, also: Sequence[Path]) -> _Found:
    where = shlex.quote(str(directory))
    if (directory / "config.json").is_file():
        try:
            opened = Checkpoint.open(directory, also)
        except KimistreamError as error:
            return _incomplete(directory, where, error)
        nbytes = sum(file.size for file in opened.files)
        words = f"a checkpoint of {opened.config.num_layers} layers, {format_size(nbytes)}"
        more = "".join(f" --also {shlex.quote(str(place))}" for place in also)
        try:
            tokenizer, _ = try_tokenizer(directory, opened.config)
        except TextError as error:  # there, and damaged: ids go all the same
            tokenizer, words = None, f"{words}, without text ({error.what})"
        prompt = "--prompt Hello" if tokenizer is not None else "--ids 1,2,3"
        return _Found(words, opened, True, 0, f"kimistream run {where}{more} {prompt}")
    return _incomplete(directory, where, None)


def _incomplete(directory: Path, where: str, error: KimistreamError | None) -> _Found:
    there = _pulled_bytes(directory)
    missing = max(0, RELEASED_BYTES - VISION_BYTES - there)
    if there or (directory / FOLDER / STATE_NAME).is_file():
        words = f"a download of Kimi K3 that is not finished, {format_size(there)}"
        return _Found(words, paper_checkpoint(), False, missing, f"kimistream pull {where} --only text")
    if error is not None:
        return _Found(
            f"a checkpoint that is not whole ({error.what})",
            paper_checkpoint(),
            False,
            0,
            f"kimistream verify {where}",
        )
    return _Found(
        "no checkpoint yet", paper_checkpoint(), False, missing, f"kimistream pull {where} --only text"
    )


def _pulled_bytes(directory: Path) -> int:
    """Bytes of a pull that has begun here: whole files and partial ones."""
    try:
        pin = msgspec.json.decode((directory / FOLDER / STATE_NAME).read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    names = pin.get("files", {}) if isinstance(pin, dict) else {}
    paths = [directory / name for name in names if isinstance(name, str)]
    paths += (directory / FOLDER / "partial").glob("*.partial")
    return sum(path.stat().st_size for path in paths if path.is_file())


def _memory_rate() -> float:
    from kimistream.engine.rates import memory_rate

    return memory_rate()


def _rates(places: Sequence[Path], drive: Drive, say: Callable[[str], None]) -> tuple[DriveRates | None, str]:
    """On the largest files there are, else on a trial file."""
    large = []
    for place in places:
        for path in place.glob("*.safetensors"):
            if path.is_file() and path.stat().st_blocks * 512 >= LEAST_FILE:
                large.append(path)
    if large:
        say("measuring the disk")
        return measure(large, f"{len(large)} shards that are there", MEASURE_SECONDS), ""
    say("writing a file to measure the disk on")
    try:
        with trial_file(drive.directory, drive.free) as path:
            say("measuring the disk")
            size = format_size(path.stat().st_size)
            return measure([path], f"a trial file of {size}", MEASURE_SECONDS), ""
    except OutputError as error:
        return None, error.what


def _remarks(drive: Drive, rates: DriveRates | None, mine: Memory, least: int, found: _Found) -> list[str]:
    remarks = []
    if rates is not None and not rates.direct:
        remarks.append("direct reads are refused here: reads go through the page cache, same results")
    if rates is not None and rates.scattered < rates.sequential / 3:
        kind = "a rotating drive" if drive.rotating else "this drive"
        remarks.append(f"scattered reads are slow on {kind}: put the model on an NVMe SSD if there is one")
    if drive.network:
        remarks.append(f"{drive.file_system} is a network file system: each token's bytes cross the network")
    if mine.budget < least:
        remarks.append(
            f"{format_size(mine.budget)} of memory can be had ({mine.bound}), the least is {format_size(least)}"
        )
    if found.needed > drive.free:
        remarks.append(
            f"the disk has {format_size(drive.free)} free, {format_size(found.needed)} are still to be fetched"
        )
    return remarks


def _verdict(predictions: tuple[Prediction, ...], mine: Memory, least: int) -> str:
    if mine.budget < least:
        return f"it does not run here: {format_size(mine.budget)} of memory, {format_size(least)} are needed"
    now = next((each for each in predictions if each.budget == mine.budget), None)
    if now is None:  # a smaller budget holds everything already
        now = max((each for each in predictions if each.fits), key=lambda each: each.budget, default=None)
    if now is None or not now.seconds:
        return "it runs here; how fast could not be measured"
    return f"it runs here, with about {_seconds(now.seconds)} a token in the memory there is now"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def _command(directory: Path, found: _Found, drive: Drive, mine: Memory, least: int) -> str:
    if found.needed > drive.free or mine.budget < least:
        return "kimistream run demo --prompt Hello"
    return found.command
