"""The threads backend: numpy kernels that release the interpreter's lock, on pinned threads.

Every op has its own result, filled with NaN before a run, so that a consumer which does not wait for its
producer leaves NaN or numbers of another op; the comparison with a serial execution finds it.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sim.base.errors import InputError
from sim.graph.graph import Graph
from sim.job.job import Job
from sim.machine.task import Task
from validation.real.clock import now_ns
from validation.real.driver import Driver
from validation.real.lanes import LaneBackend
from validation.real.measured_kernels import Kernel, MatrixWork
from validation.real.work import Observation

# --------------------------------------------------------------------------------------------------------
# One thread for BLAS: a kernel that spreads over all cores is not a kernel on one stream.
#
# numpy's wheels bring an OpenBLAS that reads its environment when it is loaded, which is usually too early
# for us; its own function can change the number later.

_PREFIXES: Final = ("scipy_openblas_", "openblas_")
_SUFFIXES: Final = ("64_", "_64_", "")


def _function(name: str) -> Callable[..., Any] | None:
    """Return a function of the OpenBLAS that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    libraries = map(ctypes.CDLL, sorted({line.split()[-1] for line in lines if "openblas" in line}))
    for library, prefix, suffix in itertools.product(libraries, _PREFIXES, _SUFFIXES):
        if found := getattr(library, f"{prefix}{name}{suffix}", None):
            return found  # type: ignore[no-any-return]
    return None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Make numpy's products use one thread, where they use OpenBLAS."""
    threads, limit = _function("get_num_threads"), _function("set_num_threads")
    if threads is None or limit is None:
        yield
        return
    before = threads()
    limit(1)
    try:
        yield
    finally:
        limit(before)


# --------------------------------------------------------------------------------------------------------
# A fixed piece of work on the calling thread: it warms the thread, and measures the speed of its core.
#
# The clock of a shared processor drops by about ten percent, on all cores at once, and recovers after a
# second or a minute; no counter visible to the guest of a hypervisor shows it. So every thread takes its own
# pulse where it works, right before the first op and right after the last one, in the same state of clock,
# caches and neighbours as the ops::
#
#     each thread   warm-up ─ pulse ─┤ all are ready ├─ ops of the run ─┤ it is over ├─ pulse

_SIZE: Final = 384
_WARM: Final = 2
_BEATS: Final = 7


class Products:
    """The product of two random matrices, repeatedly, in memory of its own.

    Examples
    --------
    >>> Products().pulse_ns() > 0
    True
    """

    def __init__(self) -> None:
        self.a = np.random.default_rng(1).normal(size=(_SIZE, _SIZE)) / _SIZE**0.5
        self.b = np.zeros_like(self.a)
        self.b.fill(0.0)  # touch the pages

    def pulse_ns(self) -> int:
        """Return the current median time of a product."""
        taken = []
        for k in range(_WARM + _BEATS):
            begin = now_ns()
            np.matmul(self.a, self.a, out=self.b)
            if k >= _WARM:
                taken.append(now_ns() - begin)
        return int(statistics.median(taken))


Matrix = npt.NDArray[np.float64]


class NumpyWork(MatrixWork):
    """Numpy kernels of one graph with their matrices.

    Parameters
    ----------
    graph : Graph
        Ops as `validation.real.measured_kernels` describes them.

    Raises
    ------
    InputError, UnknownNameError
        See `validation.real.measured_kernels.MatrixWork`.
    """

    where = "the threads backend"
    kinds = ("matmul", "elementwise", "copy", "softmax", "attention")

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        rng = np.random.default_rng(0)
        self.constants = {
            n: (rng.normal(size=(n, n)) / n**0.5, rng.normal(size=(n, n)) / n**0.5) for n in self.sizes
        }
        self.results = [np.full((k.size, k.size), np.nan) for k in self.kernels]
        self.scratch = [np.zeros_like(result) for result in self.results]
        for scratch in self.scratch:
            scratch.fill(0.0)  # touch the pages: the first touch takes longer than a product
        self.products: dict[int, Products] = {}

    def reset(self) -> None:
        """Fill all results with NaN."""
        for result in self.results:
            result.fill(np.nan)

    def issue(self, task: Task) -> None:
        """Do nothing: issuing has its own real cost."""

    def run(self, task: Task) -> None:
        """Compute the op of `task`."""
        self.compute(task.op)

    def compute(self, op: int) -> None:
        """Compute one op from the results of its producers."""
        _compute(self.kernels[op], *self.inputs(op), self.results[op], self.scratch[op])

    def settled(self) -> list[Matrix]:
        """Return copies of all results."""
        return [result.copy() for result in self.results]

    def alike(self, mine: Matrix, right: Matrix) -> bool:
        """Return whether two results are equal except for rounding."""
        return np.allclose(mine, right, rtol=1e-9, atol=1e-12)

    def pulse_ns(self, thread: int) -> int:
        """Return the current time of a product on the calling thread."""
        if thread not in self.products:
            self.products[thread] = Products()  # created by the thread that uses it, near its core
        taken_ns = self.products[thread].pulse_ns()
        for pair in self.constants.values():
            for constant in pair:
                constant.sum()  # load it into this core's caches, where later ops also find it
        return taken_ns


def _compute(kernel: Kernel, x: Matrix, y: Matrix, out: Matrix, scratch: Matrix) -> None:
    """Run one kernel, allocating nothing, so that the interpreter's lock is free while numpy computes."""
    if kernel.kind == "matmul":
        # Alternate between two buffers such that the last product lands in `out`.
        there, other = (out, scratch) if kernel.repeat % 2 else (scratch, out)
        np.matmul(x, y, out=there)
        for _ in range(kernel.repeat - 1):
            np.matmul(there, y, out=other)
            there, other = other, there
    elif kernel.kind == "elementwise":
        source = x
        for _ in range(kernel.repeat):
            np.multiply(y, 0.5, out=scratch)
            np.multiply(source, 0.5, out=out)
            np.add(out, scratch, out=out)
            source = out
    elif kernel.kind == "copy":
        for _ in range(kernel.repeat):
            np.copyto(out, x)
    elif kernel.kind == "softmax":
        source = x
        for _ in range(kernel.repeat):
            _softmax(source, out)
            source = out
    else:  # attention
        for _ in range(kernel.repeat):
            np.matmul(x, y.T, out=scratch)
            np.multiply(scratch, kernel.size**-0.5, out=scratch)
            _softmax(scratch, scratch)
            np.matmul(scratch, y, out=out)


def _softmax(x: Matrix, out: Matrix) -> None:
    np.subtract(x, x.max(axis=1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=1, keepdims=True), out=out)


class Threads(LaneBackend):
    """Executes numpy kernels on pinned threads, BLAS on one thread.

    Examples
    --------
    >>> from policies.issue.program_order import InOrder
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two products")
    >>> _ = b.op("a", kind="matmul", duration_ns=1, attributes={"size": 32})
    >>> _ = b.op("b", kind="matmul", inputs=["a"], duration_ns=1, attributes={"size": 32})
    >>> job = make_job(b.build(), Machine((Device("cpu0", "cpu", workers=2),)))
    >>> Threads().drive(job, InOrder()).wrong
    []
    """

    name = "threads"
    pinned = True

    def __init__(self) -> None:
        self._works: dict[int, tuple[Any, NumpyWork]] = {}

    def _run(self, driver: Driver) -> Observation:
        with single_threaded_blas():
            return super()._run(driver)

    def work(self, job: Job) -> NumpyWork:
        """Return the matrices of a graph, created once: their pages must be touched before a measurement."""
        if job.iterations != 1:
            raise InputError("the threads backend runs one iteration at a time")
        key = id(job.graph)
        if key not in self._works:
            self._works = {key: (job.graph, NumpyWork(job.graph))}  # only one at a time, to save memory
        return self._works[key][1]
