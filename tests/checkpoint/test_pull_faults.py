"""Pulling from a hub that fails in every way it can: right bytes at the end, in bounded time and requests."""

from __future__ import annotations

import threading
import time

import pytest
from hub_server import FakeHub, Fault
from pull_fixtures import QUICK, SHARDS, assert_manifest, held, pull, some_files
from test_pull import _no_outside  # noqa: F401

from kimistream.checkpoint.pull import Pull, Wanted
from kimistream.checkpoint.pull_fetch import Fetcher
from kimistream.checkpoint.pull_patience import Policy
from kimistream.errors import DownloadError, Interrupted, OutputError

SCENARIOS = {
    "dropped connections": [Fault("drop", at=0.4, times=9)],
    "dropped at once": [Fault("drop", at=0.0, times=5)],
    "a stall in the middle": [Fault("stall", at=0.6, times=2)],
    "a stall before the first byte": [Fault("stall", at=0.0, times=2)],
    "a drip": [Fault("drip", at=0.3, stall=3, times=2)],
    "429 with Retry-After": [Fault("status", status=429, headers={"Retry-After": "0"}, times=6)],
    "429 with the hub's own header": [
        Fault("status", status=429, headers={"RateLimit": '"x";r=0;t=0'}, times=3)
    ],
    "503": [Fault("status", status=503, times=6)],
    "500 and 502": [Fault("status", status=500, times=3), Fault("status", status=502, times=3)],
    "one expired address": [Fault("status", status=403, times=1)],
    "wrong bytes once each": [Fault("wrong bytes", name=name) for name in SHARDS],
    "wrong bytes twice": [Fault("wrong bytes", name=SHARDS[2], times=2)],
    "wrong bytes in a small file": [Fault("wrong bytes", name="docs/notes.md")],
    "longer than listed": [Fault("longer", name=SHARDS[0]), Fault("longer chunked", name=SHARDS[1])],
    "shorter than listed": [Fault("shorter", name=SHARDS[0]), Fault("shorter chunked", name=SHARDS[1])],
    "ranges ignored": [Fault("drop", at=0.5, times=5), Fault("range ignored", ranged=True, times=9)],
    "ranges refused": [
        Fault("drop", at=0.5, times=5, ranged=False),
        Fault("range refused", ranged=True, times=5),
    ],
    "a range that starts elsewhere": [
        Fault("drop", at=0.5, times=2, ranged=False),
        Fault("wrong start", ranged=True),
    ],
    "a drop, then wrong bytes behind it": [
        Fault("drop", at=0.5, name=SHARDS[3], ranged=False),
        Fault("wrong bytes", at=0.9, name=SHARDS[3], ranged=True),
    ],
    "everything at once": [
        Fault("drop", at=0.3, times=4),
        Fault("status", status=503, times=2),
        Fault("stall", at=0.2),
        Fault("wrong bytes", name=SHARDS[1]),
        Fault("range ignored", ranged=True, times=2),
        Fault("shorter", name=SHARDS[4]),
    ],
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_bytes_are_right_after(name, tmp_path):
    hub = FakeHub(some_files(), limit=120)
    hub.faults = [Fault(**vars(fault)) for fault in SCENARIOS[name]]
    hub.api_faults.extend([(503, {}), (429, {"Retry-After": "0"})] if name == "everything at once" else [])
    started = time.monotonic()
    with hub.serve() as endpoint:
        done = pull(endpoint, tmp_path)
    assert time.monotonic() - started < 12
    assert done.complete
    assert held(tmp_path) == hub.files
    assert_manifest(tmp_path, hub, set(hub.files))
    assert not list(tmp_path.rglob("*.partial"))
    met = [before.times - after.times for before, after in zip(SCENARIOS[name], hub.faults, strict=True)]
    assert all(met), "a fault was never met"


def test_a_resumed_file_is_not_begun_again(tmp_path):
    hub = FakeHub({"config.json": b"{}", SHARDS[0]: some_files()[SHARDS[0]]})
    hub.faults = [Fault("drop", at=0.5, times=4, name=SHARDS[0])]
    with hub.serve() as endpoint:
        pull(endpoint, tmp_path)
    ranges = hub.downloads(SHARDS[0])
    assert len(ranges) == 5
    assert ranges[0] is None
    starts = [int(r.removeprefix("bytes=").removesuffix("-")) for r in ranges[1:]]
    assert starts == sorted(set(starts))
    assert starts[0] > 50_000


def test_wrong_bytes_that_do_not_end_are_told_with_both_digests(tmp_path):
    hub = FakeHub(some_files(), limit=60)
    hub.faults = [Fault("wrong bytes", name=SHARDS[1], times=99)]
    with (
        hub.serve() as endpoint,
        pytest.raises(DownloadError, match=r"wrong bytes: [0-9a-f]{64} arrived") as info,
    ):
        pull(endpoint, tmp_path)
    assert SHARDS[1] in str(info.value)
    assert len(hub.downloads(SHARDS[1])) == QUICK.refusals
    # the other files are there all the same, the wrong one is not
    assert held(tmp_path) == {name: data for name, data in hub.files.items() if name != SHARDS[1]}
    hub.faults.clear()
    with hub.serve() as endpoint:
        assert pull(endpoint, tmp_path).fetched == (SHARDS[1],)
    assert held(tmp_path) == hub.files


def test_a_wrong_length_that_does_not_end_is_told_with_both(tmp_path):
    hub = FakeHub(some_files(), limit=60)
    hub.faults = [Fault("longer", name=SHARDS[1], times=99)]
    size = len(hub.files[SHARDS[1]])
    with hub.serve() as endpoint, pytest.raises(DownloadError, match="wrong length") as info:
        pull(endpoint, tmp_path)
    assert f"{size + 4:,}" in str(info.value)
    assert f"{size:,}" in str(info.value)
    assert len(hub.downloads(SHARDS[1])) == QUICK.refusals


@pytest.mark.parametrize("kind", ["status", "drop", "stall"])
def test_a_hub_that_never_answers_is_given_up_in_bounded_requests(tmp_path, kind):
    hub = FakeHub(some_files(size=5000), limit=200)
    hub.faults = [Fault(kind, at=0.0, times=10_000, stall=0.3)]
    policy = Policy(**{f: getattr(QUICK, f) for f in QUICK.__dataclass_fields__} | {"stall_seconds": 0.1})
    started = time.monotonic()
    with hub.serve() as endpoint, pytest.raises(DownloadError) as info:
        pull(endpoint, tmp_path, policy=policy)
    assert time.monotonic() - started < 20
    assert len(hub.requests) < 120
    assert "attempts in a row" in str(info.value)
    assert "goes on from here" in str(info.value)


def test_questions_before_the_download_are_given_up_sooner(tmp_path):
    hub = FakeHub(some_files())
    hub.api_faults.extend([(503, {})] * 50)
    with hub.serve() as endpoint, pytest.raises(DownloadError, match=r"503.*4 attempts in a row"):
        pull(endpoint, tmp_path)
    assert len(hub.requests) == QUICK.first_attempts


def test_an_endpoint_where_nobody_listens_is_named(tmp_path):
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9") as info:
        pull("http://127.0.0.1:9", tmp_path / "model")
    assert "Check the network" in info.value.remedy
    assert not (tmp_path / "model").exists()


def test_retry_after_is_waited_for_by_all_workers(tmp_path):
    hub = FakeHub(some_files(), limit=60)
    hub.faults = [Fault("status", status=429, headers={"Retry-After": "1"}, times=1)]
    policy = Policy(**{f: getattr(QUICK, f) for f in QUICK.__dataclass_fields__} | {"wait_told_most": 1.0})
    started = time.monotonic()
    with hub.serve() as endpoint:
        pull(endpoint, tmp_path, policy=policy, workers=1)
    assert time.monotonic() - started >= 1.0


def test_a_full_disk_is_told_and_the_next_pull_goes_on(tmp_path, monkeypatch):
    hub = FakeHub(some_files())
    written = 0
    whole = Fetcher._write

    def full(self, handle, view, partial):
        nonlocal written
        written += len(view)
        if written > 200_000:
            from kimistream.checkpoint.pull_fetch import disk_error

            raise disk_error(OSError(28, "No space left on device"), partial)
        whole(self, handle, view, partial)

    with hub.serve() as endpoint:
        monkeypatch.setattr(Fetcher, "_write", full)
        with pytest.raises(OutputError, match=r"is full, .* are free") as info:
            pull(endpoint, tmp_path)
        assert "goes on from here" in info.value.remedy
        assert all(hub.files[name] == data for name, data in held(tmp_path).items())
        monkeypatch.setattr(Fetcher, "_write", whole)
        sent = hub.sent
        pull(endpoint, tmp_path)
    assert hub.sent - sent < sum(map(len, hub.files.values())) - 100_000
    assert held(tmp_path) == hub.files


def test_an_interrupt_ends_the_pull_at_once_and_keeps_what_came(tmp_path):
    hub = FakeHub(some_files())
    hub.delay, hub.chunk = 0.05, 4096
    with hub.serve() as endpoint:
        work = Pull(tmp_path, Wanted("owner/model"), endpoint=endpoint, policy=QUICK)
        threading.Timer(0.6, work.stop).start()
        started = time.monotonic()
        with pytest.raises(Interrupted):
            work.run()
        assert time.monotonic() - started < 3
        seen = hub.sent
        hub.delay = 0
        pull(endpoint, tmp_path)
    assert held(tmp_path) == hub.files
    assert seen > 0
    total = sum(map(len, hub.files.values()))
    assert hub.sent <= total + 20 * 70_000
