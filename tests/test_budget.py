from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimistream.budget import (
    RESERVE_BYTES,
    current_rss,
    default_budget,
    format_size,
    parse_size,
    peak_rss,
    reset_peak_rss,
)
from kimistream.errors import UsageError

GB = 10**9


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8GB", 8 * GB),
        ("512MiB", 512 << 20),
        ("1.5gb", 1_500_000_000),
        ("1.25 GiB", 5 << 28),
        (" 400mb ", 400_000_000),
        ("2TB", 2 * 10**12),
        ("4096b", 4096),
        ("0.1GB", 100_000_000),
    ],
)
def test_sizes_with_a_unit_are_understood(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["8", "-1GB", "", "GB", "8 G", "1e3GB", "0GB", "0.0MB", "8GB8GB", "nan", "１GB", "1,5GB", "+8GB"]
)
def test_anything_else_is_refused_with_an_example_that_works(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text, "--ram")
    assert caught.value.exit_code == 2
    assert repr(text) in caught.value.what
    example = caught.value.remedy.split("`--ram ")[1].split("`")[0]
    assert parse_size(example) > 0


@given(st.integers(1, 10**15))
def test_a_formatted_size_can_be_typed_back_within_its_three_figures(nbytes: int) -> None:
    text = format_size(nbytes)
    assert parse_size(text) == pytest.approx(nbytes, rel=0.006)
    assert len(text.replace(".", "").split()[0]) <= 4


def test_sizes_are_shown_with_three_figures() -> None:
    assert [format_size(n) for n in (0, 999, 1000, 9_999, 123_456, 8.24e9, 99.96e9, 1.56e12)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "10.0 kB",
        "123 kB",
        "8.24 GB",
        "100 GB",
        "1.56 TB",
    ]


class Machine:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write(self.proc / "self" / "status", "Name:\tx\nVmHWM:\t  200000 kB\nVmRSS:\t  100000 kB\n")
        self.write(self.proc / "meminfo", "MemTotal: 99999999 kB\nMemAvailable: 60000000 kB\n")
        self.write(self.proc / "self" / "cgroup", "0::/\n")
        self.cgroups.mkdir()

    def write(self, path: Path, text: str | int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if isinstance(text, int) else text)

    def group(self, path: str, **files: str | int) -> None:
        for name, text in files.items():
            self.write(self.cgroups / path / name.replace("__", "."), text)

    @property
    def budget(self) -> int:
        return default_budget(self.proc, self.cgroups).nbytes

    @property
    def source(self) -> str:
        return default_budget(self.proc, self.cgroups).source


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


OWN = 100_000 * 1024


def less_reserve(nbytes: int) -> int:
    return nbytes - RESERVE_BYTES - nbytes // 16


def test_without_containers_it_is_what_is_free_and_what_we_hold_less_a_reserve(machine: Machine) -> None:
    assert machine.budget == less_reserve(60_000_000 * 1024 + OWN)
    assert "machine" in machine.source


def test_a_cgroup_v2_limit_counts(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/box\n")
    machine.group("box", memory__max=4 * GB, memory__high="max\n", memory__current=OWN)
    assert machine.budget == less_reserve(4 * GB)
    assert "memory.max" in machine.source


def test_memory_high_counts_like_memory_max(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/box\n")
    machine.group("box", memory__max=4 * GB, memory__high=3 * GB, memory__current=OWN)
    assert machine.budget == less_reserve(3 * GB)
    assert "memory.high" in machine.source


def test_a_limit_of_an_ancestor_counts_with_what_its_other_children_use(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/a/b/c\n")
    machine.group("a", memory__max=8 * GB, memory__current=3 * GB + OWN)
    machine.group("a/b", memory__max="max\n", memory__current=OWN)
    machine.group("a/b/c", memory__max=7 * GB, memory__current=OWN)
    assert machine.budget == less_reserve(5 * GB)


def test_file_pages_in_a_cgroup_give_way(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/box\n")
    machine.group(
        "box",
        memory__max=4 * GB,
        memory__current=3 * GB + OWN,
        memory__stat=f"anon {OWN}\ninactive_file {2 * GB}\nactive_file {GB}\n",
    )
    assert machine.budget == less_reserve(4 * GB)


def test_a_container_that_sees_itself_as_the_root_is_limited_too(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/../../docker/abc\n")
    machine.group(".", memory__max=2 * GB, memory__current=OWN)
    assert machine.budget == less_reserve(2 * GB)


V1 = "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n"


def test_a_cgroup_v1_limit_counts(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", V1)
    machine.group(
        "memory/docker/abc",
        memory__limit_in_bytes=3 * GB,
        memory__usage_in_bytes=GB + OWN,
        memory__stat="cache 0\n",
    )
    assert machine.budget == less_reserve(2 * GB)


def test_the_v1_sentinel_is_no_limit(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", V1)
    for path in ("memory", "memory/docker", "memory/docker/abc"):
        machine.group(
            path,
            memory__limit_in_bytes=9223372036854771712,
            memory__usage_in_bytes=50 * GB,
            memory__stat="hierarchical_memory_limit 9223372036854771712\n",
        )
    assert machine.budget == less_reserve(60_000_000 * 1024 + OWN)


def test_v1_limits_of_ancestors_count_mounted_or_not(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", V1)
    machine.group("memory/docker", memory__limit_in_bytes=5 * GB, memory__usage_in_bytes=OWN)
    assert machine.budget == less_reserve(5 * GB)
    machine.group(  # only the group itself is mounted, and tells of an ancestor's limit
        "memory/docker/abc",
        memory__limit_in_bytes=9223372036854771712,
        memory__usage_in_bytes=OWN,
        memory__stat=f"hierarchical_memory_limit {2 * GB}\n",
    )
    assert machine.budget == less_reserve(2 * GB)


def test_a_limit_that_is_used_up_leaves_what_we_hold(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/box\n")
    machine.group("box", memory__max=GB, memory__current=2 * GB)
    assert machine.budget == 0
    machine.group("box", memory__max=2 * OWN, memory__current=2 * OWN)
    assert 0 < machine.budget <= OWN


def test_without_proc_part_of_the_physical_memory_is_offered(tmp_path: Path) -> None:
    assert default_budget(tmp_path / "none", tmp_path / "none").nbytes > 0


def test_this_machine_offers_something() -> None:
    assert default_budget().nbytes > 0


def test_the_peak_is_measured_and_can_be_measured_anew(tmp_path: Path) -> None:
    ballast = bytearray(b"x") * (64 << 20)
    assert peak_rss() >= current_rss() - (1 << 20) >= 64 << 20
    high = peak_rss()
    del ballast
    if reset_peak_rss():
        assert peak_rss() < high - (32 << 20)
    assert not reset_peak_rss(tmp_path / "none")
    assert peak_rss(tmp_path) > 0
