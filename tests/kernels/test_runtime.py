"""How kernels are declared, compiled, kept and run; how many threads there are."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from kimistream.errors import OutputError, UsageError
from kimistream.kernels import cores, folder, runtime, simd
from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.matrix import matmul

IMPORT = "from kimistream.kernels import folder; print(folder.FOLDER)"


def folder_with(**env: str) -> Path:
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    done = subprocess.run([sys.executable, "-c", IMPORT], env={**kept, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_compiled_kernels_are_kept_where_the_user_says(tmp_path):
    assert folder_with(NUMBA_CACHE_DIR=str(tmp_path / "a")).parent == tmp_path / "a"
    assert folder_with(XDG_CACHE_HOME=str(tmp_path / "b")).parent == tmp_path / "b" / "kimistream"
    assert folder_with(HOME=str(tmp_path)).parent == tmp_path / ".cache" / "kimistream"


def test_a_folder_that_cannot_be_made_is_replaced_by_a_temporary_one(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    found = folder_with(HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    assert found.parent.parent == tmp_path
    assert found.is_dir()


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert not folder.is_private(open_to_all)
    assert folder.is_private(tmp_path / "new")


def test_the_name_of_the_folder_depends_on_the_cpu(tmp_path):
    usual = folder_with(NUMBA_CACHE_DIR=str(tmp_path))
    assert folder_with(NUMBA_CACHE_DIR=str(tmp_path)) == usual
    others = [
        folder_with(NUMBA_CACHE_DIR=str(tmp_path), NUMBA_CPU_NAME="generic"),
        folder_with(NUMBA_CACHE_DIR=str(tmp_path), NUMBA_CPU_FEATURES="+sse2"),
        folder_with(NUMBA_CACHE_DIR=str(tmp_path), KIMISTREAM_GENERIC_KERNELS="1"),
    ]
    assert len({usual, *others}) == 4


def _cannot_tell():
    raise RuntimeError("failed to get host cpu features.")


@pytest.mark.parametrize("told", [_cannot_tell, dict, lambda: {"crc": True, "sve": False}])
@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin24.1.0"])
def test_every_64_bit_arm_cpu_has_neon_whatever_llvm_can_tell_of_it(triple, told, monkeypatch):
    monkeypatch.setattr(simd, "GENERIC", False)
    monkeypatch.setattr(simd.llvm, "get_host_cpu_features", told)
    monkeypatch.setattr(simd.llvm, "get_process_triple", lambda: triple)
    monkeypatch.setattr(folder.config, "CPU_FEATURES", None)
    assert simd.features() - {"crc"} == {"neon"}
    assert len(folder.cache_key()) == 20
    monkeypatch.setattr(folder.config, "CPU_FEATURES", "+crc,+aes")
    assert simd.features() == {"crc", "aes", "neon"}
    monkeypatch.setattr(folder.config, "CPU_FEATURES", "+crc,-neon")
    assert simd.features() == {"crc"}
    monkeypatch.setattr(simd, "GENERIC", True)
    assert simd.features() == set()


def test_a_cpu_of_another_kind_has_only_what_llvm_tells_of_it(monkeypatch):
    monkeypatch.setattr(simd, "GENERIC", False)
    monkeypatch.setattr(folder.config, "CPU_FEATURES", None)
    monkeypatch.setattr(simd.llvm, "get_process_triple", lambda: "x86_64-unknown-linux-gnu")
    for told, want in ((_cannot_tell, set()), (lambda: {"avx2": True, "avx512f": False}, {"avx2"})):
        monkeypatch.setattr(simd.llvm, "get_host_cpu_features", told)
        assert simd.features() == want


def test_compile_all_counts_up_to_the_total():
    import kimistream.kernels.all  # noqa: F401

    seen = []
    total = runtime.compile_all(lambda done, of: seen.append((done, of)))
    assert seen == [(k, total) for k in range(total + 1)]
    assert runtime.is_cached()


@pytest.mark.parametrize("count", [0, -3])
def test_fewer_than_one_thread_is_refused(count):
    with pytest.raises(UsageError, match="threads"):
        runtime.set_threads(count)


def test_more_threads_than_were_started_are_refused_with_both_numbers(with_threads):
    with_threads(2)
    _product(np.ones((400, 1024), np.float32))
    most = folder.config.NUMBA_NUM_THREADS
    with pytest.raises(UsageError, match=f"{most + 5}.*{most}"):
        runtime.set_threads(most + 5)


def _product(weights):
    y = np.empty((1, len(weights)), np.float32)
    x = np.ones((1, weights.shape[1]), np.float32)
    matmul(WeightFormat.F32, weights.ctypes.data, 0, *weights.shape, x, y)
    return y


def test_several_python_threads_may_compute_at_once(with_threads):
    with_threads(2)
    weights = [np.full((600, 1024), k, np.float32) for k in range(4)]
    wrong = []

    def work(k):
        for _ in range(30):
            if not (_product(weights[k]) == 1024 * k).all():
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def _machine(root: Path, siblings: dict[int, str], **files: str) -> Path:
    for cpu, text in siblings.items():
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_two_threads_of_one_core_count_once(tmp_path):
    root = _machine(tmp_path, {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"})
    assert cores.fast_physical_cores({0, 1, 4, 5}, root) == 2
    assert cores.fast_physical_cores({4}, root) == 1


def test_efficiency_cores_do_not_count(tmp_path):
    root = _machine(
        tmp_path / "x86", {0: "0-1", 1: "0-1", 2: "2", 3: "3"}, sys__devices__cpu_core__cpus="0-1"
    )
    assert cores.fast_physical_cores({0, 1, 2, 3}, root) == 1
    root = _machine(tmp_path / "arm", {c: str(c) for c in range(4)})
    for cpu, capacity in enumerate((380, 380, 1024, 1000)):
        (root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity").write_text(str(capacity))
    assert cores.fast_physical_cores({0, 1, 2, 3}, root) == 2
    assert cores.fast_physical_cores({0, 1}, root) == 2


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/", {}, math.inf),
        ("0::/a/b", {"cpu.max": "max 100000"}, math.inf),
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "400000 100000"}, 1.5),
        (
            "4:cpu,cpuacct:/a",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("4:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, math.inf),
    ],
)
def test_the_quota_of_a_container_and_its_parents_counts(tmp_path, group, files, limit):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert cores.cgroup_cpu_limit(tmp_path) == limit


def test_there_is_at_least_one_thread():
    assert cores.default_threads() >= 1


MORE = """
import os, sys
import numpy as np
from kimistream.kernels import runtime
from kimistream.kernels.formats import WeightFormat
from kimistream.kernels.matrix import matmul
weights = np.random.default_rng(0).standard_normal((900, 1024)).astype(np.float32)
x, y = np.ones((1, 1024), np.float32), np.empty((1, 900), np.float32)
count = int(sys.argv[1]) * (os.cpu_count() or 1) + 1
runtime.set_threads(count)
matmul(WeightFormat.F32, weights.ctypes.data, 0, *weights.shape, x, y)
runtime.set_threads(1)
one = np.empty_like(y)
matmul(WeightFormat.F32, weights.ctypes.data, 0, *weights.shape, x, one)
threads = len(os.listdir("/proc/self/task"))
print(np.array_equal(y, one), threads >= count, runtime.threads_started())
"""


@pytest.mark.parametrize("environment", [{}, {"NUMBA_NUM_THREADS": "1"}])
@pytest.mark.parametrize("times", [1, 8])
def test_more_threads_than_cpus_are_started_and_change_nothing(times, environment):
    done = subprocess.run(
        [sys.executable, "-c", MORE, str(times)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["True"] * 3, done.stderr


TORN = """
import kimistream.kernels.all
from kimistream.kernels import runtime
from kimistream.errors import KimistreamError
try:
    runtime.compile_all()
except KimistreamError as error:
    print(error.what)
"""


@pytest.mark.parametrize("suffix", [".nbc", ".nbi"])
@pytest.mark.parametrize("length", [0, 50])
def test_a_torn_file_of_compiled_kernels_costs_compiling_that_kernel_again(tmp_path, suffix, length):
    import kimistream.kernels.all  # noqa: F401

    runtime.compile_all()
    place = tmp_path / folder.FOLDER.name
    shutil.copytree(folder.FOLDER, place)
    torn = [p for name in ("bf16_direct", "_run_here") for p in place.rglob(f"*.{name}-*{suffix}")]
    assert len(torn) >= 2
    others = {p: p.stat().st_mtime_ns for p in place.rglob("*.nbc") if p not in torn}
    for path in torn:
        os.truncate(path, length)
    done = subprocess.run(
        [sys.executable, "-c", TORN],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for name in ("bf16_direct", "_run_here"):
        found = list(place.rglob(f"*.{name}-*"))
        assert {path.suffix for path in found} == {".nbi", ".nbc"}
        assert all(path.stat().st_size > 50 for path in found)
    kept = [p for p in others if p.exists() and p.stat().st_mtime_ns == others[p]]
    assert len(kept) >= len(others) - 8  # the rest was not compiled again


def test_a_full_disk_under_the_compiled_kernels_is_told_with_their_folder(monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="No space left on device") as caught:
        runtime._kept("nothing", full)
    assert str(folder.FOLDER) in caught.value.what
    assert "NUMBA_CACHE_DIR" in caught.value.remedy
