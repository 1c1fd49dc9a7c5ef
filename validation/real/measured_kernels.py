"""What the measured kernels are, for every backend: kinds, sizes, and what they read.

Ops that compute leave a square matrix of `size` x `size` and read what their producers left, so the data
dependencies of a plan cost nothing extra and are real::

    kind         computes (x, y: results of the first and second producer, else constants of random data)
    matmul       x @ y, again and again: ((x @ y) @ y) ...      `repeat` times
    elementwise  x * 0.5 + y * 0.5                              `repeat` times
    copy         x
    softmax      row by row of x
    attention    softmax(x @ y^T / sqrt(size)) @ y
    block        a transformer block on x (cuda)
    h2d, d2h     nothing: a pinned matrix moves to the device, x moves to a pinned one (cuda)
    *-pageable   the same from and to memory that may be paged out, which holds the host up (cuda)
    spin, sleep  nothing, for a while

All constants are normal with variance 1 / size, so that products of any depth neither vanish nor explode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sim.graph.graph import Graph
from sim.words.errors import InputError, UnknownNameError
from validation.real.work import producers_of

__all__ = ["HOLDS_HOST", "MATRIX_KINDS", "TIMED_KINDS", "Kernel", "MatrixWork", "kernel_axes", "kernels_of"]

MATRIX_KINDS: Final = (
    "matmul", "elementwise", "copy", "softmax", "attention", "block", "h2d", "d2h",
    "h2d-pageable", "d2h-pageable",
)  # fmt: skip
"""Kinds whose result is a matrix."""

HOLDS_HOST: Final = ("h2d-pageable", "d2h-pageable")
"""Copies of pageable memory: the host makes them itself, and launches nothing meanwhile."""

TIMED_KINDS: Final = {"sleep": "sleep_ns", "spin": "spin_cycles"}
"""Kinds that only take time, and the attribute that says how much."""


@dataclass(frozen=True)
class Kernel:
    """One op as a backend executes it.

    Attributes
    ----------
    kind : str
    size : int
        Rows and columns of the matrices; 0 for kinds that only take time.
    repeat : int
        How often the kernel runs in one op.
    amount : int
        Of a kind that only takes time: ns of a sleep, clock cycles of a spin.
    """

    kind: str
    size: int = 0
    repeat: int = 1
    amount: int = 0


def kernel_axes(kind: str) -> tuple[str, ...]:
    """Return the attributes of an op that determine how long a kernel of `kind` takes."""
    if kind in TIMED_KINDS:
        return (TIMED_KINDS[kind],)
    return ("size", "repeat")


def kernels_of(graph: Graph) -> list[Kernel]:
    """Return the kernel of every op, read from its kind and attributes.

    Raises
    ------
    UnknownNameError
        A kind that is not in `MATRIX_KINDS` or `TIMED_KINDS`.
    InputError
        An attribute is missing, or is not a whole positive number.
    """
    return [
        _kernel(graph.op_names[op], graph.kind(op), graph.attributes.get(op, {})) for op in range(len(graph))
    ]


def _kernel(name: str, kind: str, facts: Mapping[str, Any]) -> Kernel:
    def whole(key: str, default: int | None = None) -> int:
        value = facts.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"op {name!r} ({kind}): {key} must be a whole positive number, found {value!r}")
        return value

    if kind in TIMED_KINDS:
        return Kernel(kind, amount=whole(TIMED_KINDS[kind]))
    if kind not in MATRIX_KINDS:
        raise UnknownNameError("kind of real kernel", kind, (*MATRIX_KINDS, *TIMED_KINDS))
    return Kernel(kind, size=whole("size"), repeat=whole("repeat", 1))


class MatrixWork(ABC):
    """The kernels of one graph with their matrices, whatever library computes them.

    Parameters
    ----------
    graph : Graph

    Attributes
    ----------
    constants : dict of int to (matrix, matrix)
        By size, what an op reads that has fewer than two producers of its size.
    results : list of matrix
        By op.
    """

    constants: dict[int, tuple[Any, Any]]
    results: list[Any]

    def __init__(self, graph: Graph) -> None:
        self.names = graph.op_names
        self.kernels = kernels_of(graph)
        self.producers = producers_of(graph)
        self.order = graph.topological_order.tolist()
        self.sizes = sorted({kernel.size for kernel in self.kernels if kernel.size})
        self.serial: list[Any] | None = None

    def inputs(self, op: int) -> tuple[Any, Any]:
        """Return what an op reads: results of its producers on the same device, else constants."""
        kernel = self.kernels[op]
        given = [
            self.results[p]
            for p in self.producers[op]
            if self.kernels[p].size == kernel.size and not self.kernels[p].kind.startswith("d2h")
        ]
        x, y = [*given, *self.constants[kernel.size][len(given) :]][:2]
        return x, y

    @abstractmethod
    def compute(self, op: int) -> None:
        """Compute one op from what its producers have left."""

    @abstractmethod
    def settled(self) -> list[Any]:
        """Return copies of all results, once they are all there."""

    @abstractmethod
    def alike(self, mine: Any, right: Any) -> bool:
        """Return whether a result is that of a serial execution, as far as the library is exact."""

    def wrong(self) -> list[str]:
        """Return the ops whose result differs from that of a serial execution."""
        left = self.settled()
        if self.serial is None:
            for op in self.order:
                self.compute(op)
            self.serial = self.settled()
        every = zip(self.names, self.kernels, left, self.serial, strict=True)
        return [name for name, kernel, mine, right in every if kernel.size and not self.alike(mine, right)]
