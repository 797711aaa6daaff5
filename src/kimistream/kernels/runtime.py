"""How kernels are compiled, and run on several cores.

Knows: every declared kernel; how many threads compute; the one compiled loop that hands pieces of work to
them. Does not know: what a kernel computes.

A kernel is declared with `@kernel("signature")` and compiled when it is first used, or with all others
by `compile_all`. It becomes a C function, and other kernels call it by its address (`caller`), so that
its code is compiled once and not again inside each caller. `run` is the one loop that runs in parallel.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import cfunc, njit, prange, types
from numba.np.ufunc import parallel

from kimistream.errors import OutputError, UsageError

from . import cores
from .folder import FOLDER, config
from .simd import I64, at, ld_i64, op

OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy"}
"""Never `fastmath`: it lets the order of additions depend on the CPU."""


# ------------------------------------------------------------------ declared kernels
def _kept(name: str, work: Callable[[], Any]) -> Any:
    """`work`, which loads or compiles function `name`; what the folder holds of it is deleted when it is damaged."""
    try:
        return work()
    except OSError as error:
        raise OutputError(
            f"the folder of compiled kernels, {FOLDER}, cannot be used: {error.strerror or error}",
            "Free some space there, or set NUMBA_CACHE_DIR to a folder with 20 MB of room.",
        ) from None
    except Exception:  # a torn file ends in any of a dozen errors of pickle, of Numba, of LLVM
        torn = [path for path in FOLDER.rglob(f"*.{name}-*") if path.suffix in (".nbi", ".nbc")]
        if not torn:
            raise
        for path in torn:
            path.unlink(missing_ok=True)
        return work()


class Kernel:
    """One function of a fixed signature, compiled on first use to a C function with an address."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self.function, self.signature = function, signature
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self._address = 0
        self._compiled: Any = None

    def compile(self) -> None:
        """Compile, or load from the folder of compiled kernels; nothing if that is done already."""
        if self._compiled is None:
            self._compiled = _kept(
                self.name, lambda: cfunc(self.signature, cache=True, **OPTIONS)(self.function)
            )
            self._address = int(self._compiled.address)

    @property
    def address(self) -> int:
        """Where the C function is."""
        if not self._address:
            self.compile()
        return self._address

    def __call__(self, *arguments: Any) -> Any:
        """Call it from Python (addresses are ints). For tests and for what is not worth a thread."""
        self.compile()
        return self._compiled.ctypes(*arguments)


class _Compiled:
    """An ordinary Numba function with given signatures that `compile_all` compiles too."""

    def __init__(self, dispatcher: Any, signatures: tuple[Any, ...]) -> None:
        self.dispatcher, self.signatures = dispatcher, signatures
        self.name = dispatcher.__name__

    def compile(self) -> None:
        for signature in self.signatures:
            _kept(self.name, partial(self.dispatcher.compile, signature))


_declared: list[Kernel | _Compiled] = []


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel: `@kernel("void(int64, int64)")` above a function of the module's top level."""

    def declare_kernel(function: Callable[..., Any]) -> Kernel:
        made = Kernel(function, signature)
        _declared.append(made)
        return made

    return declare_kernel


def declare(dispatcher: Any, *signatures: Any) -> Any:
    """Have `compile_all` compile an `njit` function for these signatures; returns the function."""
    _declared.append(_Compiled(dispatcher, signatures))
    return dispatcher


def declared() -> list[Kernel | _Compiled]:
    """Every kernel declared so far, in the order of declaration."""
    return list(_declared)


def compile_all(progress: Callable[[int, int], None] | None = None) -> int:
    """Compile every declared kernel (or load it), calling `progress(done, total)`; returns the total.

    Kernels are declared by importing their modules: `import kimistream.kernels.all` first to have them all.
    """
    total = len(_declared)
    for done, each in enumerate(_declared):
        if progress is not None:
            progress(done, total)
        each.compile()
    if progress is not None:
        progress(total, total)
    with contextlib.suppress(OSError):  # without the mark, the next run only says that it may have to compile
        _marker().write_text("all kernels of this build are compiled\n")
    return total


def _marker() -> Path:
    return FOLDER / "complete"


def is_cached() -> bool:
    """Whether an earlier `compile_all` of these very sources on this CPU left everything compiled."""
    return _marker().exists()


# ------------------------------------------------------------------ calling kernels by address
def caller(count: int) -> Any:
    """An intrinsic that calls the C function at an address with `count` int64 arguments; it returns nothing."""

    @op(types.void, *[types.int64] * (1 + count))
    def invoke(b, address, *values):
        kind = ir.FunctionType(ir.VoidType(), [I64] * count)
        b.call(b.inttoptr(address, kind.as_pointer()), values)

    return invoke


invoke_3 = caller(3)


@op(types.int64, types.int64)
def draw_ticket(b, address):
    """The counter at `address`, which then stands one higher; each ticket is drawn once over all threads."""
    return b.atomic_rmw("add", b.inttoptr(address, I64.as_pointer()), I64(1), "monotonic")


@njit(forceinline=True, **OPTIONS)
def argument(arguments, i):
    """Argument number `i` of a kernel started by `run`."""
    return ld_i64(at(arguments), i * 8)


# ------------------------------------------------------------------ threads
_lock = threading.Lock()
_ticket = np.zeros(16, np.int64)
_threads = 0

# OpenMP's threads spin for milliseconds when they wait, which takes a core away from the disk's threads and from
# the other compute threads (docs/LEARNED.md, "Waiting threads"); read when its library loads, at the first `run`.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
config.THREADING_LAYER_PRIORITY = ["omp", "workqueue", "tbb"]


def threads() -> int:
    """How many threads compute: what `set_threads` said, or one for each fast physical core."""
    if not _threads:
        set_threads(cores.default_threads())
    return _threads


def set_threads(count: int) -> None:
    """Compute with `count` threads from now on. The results do not depend on it."""
    global _threads
    if not 1 <= count <= MOST_THREADS:
        raise UsageError(f"threads is {count}: must be 1 to {MOST_THREADS}", "Leave it out for one per core.")
    if count > config.NUMBA_NUM_THREADS:
        if _started:
            raise UsageError(
                f"threads is {count}, and {config.NUMBA_NUM_THREADS} have been started already",
                "Set the number of threads before the first computation.",
            )
        config.NUMBA_NUM_THREADS = count
    _threads = count


def threads_started() -> bool:
    """Whether the compute threads exist, after which their greatest number is fixed."""
    return _started


_started = False
MOST_THREADS = 1024
"""More than any machine has cores to spare for."""
PARALLEL = "void(int64, int64, int64, int64, int64)"


@njit(parallel=True, nogil=True, cache=True, **OPTIONS)
def _run_parallel(function, arguments, items, workers, ticket):
    for worker in prange(workers):
        item = draw_ticket(ticket)
        while item < items:
            invoke_3(function, arguments, item, worker)
            item = draw_ticket(ticket)


@njit(nogil=True, cache=True, **OPTIONS)
def _run_here(function, arguments, items, workers, ticket):
    for item in range(items):
        invoke_3(function, arguments, item, 0)


declare(_run_parallel, PARALLEL)
declare(_run_here, PARALLEL)


def _use_threads(count: int) -> None:
    """`numba.set_num_threads`, also for more threads than Numba would have started by itself."""
    try:
        numba.set_num_threads(count)
    except ValueError:
        # It compares with the figure of its import; as many were started as its configuration said by then.
        if not hasattr(parallel, "_set_num_threads"):
            raise UsageError(
                f"threads is {count}: this Numba ({numba.__version__}) starts at most one for each CPU it was told of",
                f"Set the environment variable NUMBA_NUM_THREADS to {count} too.",
            ) from None
        parallel._set_num_threads(count)


def run(piece: Kernel, arguments: npt.NDArray[np.int64], items: int) -> None:
    """Call piece(address of `arguments`, item, worker) for each item, over all compute threads.

    Items are handed out in ascending order to whoever is free, so they need not be of equal size. `worker` tells
    the threads apart (0 .. threads() - 1), for scratch. One Python thread computes at a time; another one waits.
    """
    global _started
    workers = min(threads(), items)
    address = piece.address
    with _lock:
        if workers <= 1:
            _run_here(address, arguments.ctypes.data, items, 1, 0)
            return
        if not _started:
            _started = True
            _use_threads(config.NUMBA_NUM_THREADS)
        _ticket[0] = 0
        _use_threads(workers)
        _run_parallel(address, arguments.ctypes.data, items, workers, _ticket.ctypes.data)


_scratch = np.zeros(0, np.uint8)
_outgrown: list[npt.NDArray[np.uint8]] = []


def scratch(nbytes_each: int) -> int:
    """The address of `nbytes_each` bytes of scratch for each compute thread, one behind the other.

    It belongs to this module, grows to the largest size asked for, and is valid until the next call.
    """
    global _scratch
    needed = nbytes_each * threads() + 4096
    if _scratch.size < needed:
        # a run in another thread may still use the old one: it is kept (all of them are no larger than the new one)
        _outgrown.append(_scratch)
        _scratch = np.zeros(max(needed, 2 * _scratch.size), np.uint8)
    return (int(_scratch.ctypes.data) + 4095) & -4096
