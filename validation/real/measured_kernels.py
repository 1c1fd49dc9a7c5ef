"""The measured kernels of every backend: kinds, sizes, and inputs.

Ops that compute leave a square matrix of `size` x `size` and read the results of their producers, so the data
dependencies of a plan are real and cost nothing extra::

    kind         computes (x, y: results of the first and second producer, else constants of random data)
    matmul       x @ y, repeatedly: ((x @ y) @ y) ...           `repeat` times
    elementwise  x * 0.5 + y * 0.5                              `repeat` times
    copy         x
    softmax      row by row of x
    attention    softmax(x @ y^T / sqrt(size)) @ y
    block        a transformer block on x (cuda)
    h2d, d2h     nothing: a pinned matrix moves to the device, x moves to a pinned one (cuda)
    *-pageable   the same from and to memory that may be paged out, which holds the host up (cuda)
    sleep        nothing, for a while (timer)

All constants are normal with variance 1 / size, so that products of any depth neither vanish nor explode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sim.base.errors import InputError, UnknownNameError
from sim.graph.graph import Graph
from validation.real.work import producers_of

MATRIX_KINDS: Final = (
    "matmul", "elementwise", "copy", "softmax", "attention", "block", "h2d", "d2h",
    "h2d-pageable", "d2h-pageable",
)  # fmt: skip
"""Kinds whose result is a matrix."""

HOLDS_HOST: Final = ("h2d-pageable", "d2h-pageable")
"""Copies of pageable memory: the host makes them itself, and launches nothing meanwhile."""


@dataclass(frozen=True)
class Kernel:
    """One op as a backend executes it.

    Attributes
    ----------
    kind : str
    size : int
        Rows and columns of the matrices.
    repeat : int
        Number of times that the kernel runs in one op.
    """

    kind: str
    size: int
    repeat: int = 1


def kernel_axes(kind: str) -> tuple[str, ...]:
    """Return the attributes of an op that determine the duration of a kernel of `kind`."""
    return ("sleep_ns",) if kind == "sleep" else ("size", "repeat")


class MatrixWork(ABC):
    """The kernels of one graph with their matrices, independent of the computing library.

    Parameters
    ----------
    graph : Graph
        Ops with the kind and attributes of a kernel.

    Attributes
    ----------
    where : str
        Name of the backend, for messages.
    kinds : sequence of str
        Supported kinds.
    constants : dict of int to (matrix, matrix)
        By size: inputs of an op that has fewer than two producers of its size.
    results : list of matrix
        By op.

    Raises
    ------
    UnknownNameError
        A kind is not in `kinds`.
    InputError
        An attribute is missing, or is not a whole positive number.
    """

    where: str
    kinds: Sequence[str] = MATRIX_KINDS
    constants: dict[int, tuple[Any, Any]]
    results: list[Any]

    def __init__(self, graph: Graph) -> None:
        self.names = graph.op_names
        self.kernels = [
            self._kernel(name, graph.kind(op), graph.attributes.get(op, {}))
            for op, name in enumerate(self.names)
        ]
        self.producers = producers_of(graph)
        self.order = graph.topological_order.tolist()
        self.sizes = sorted({kernel.size for kernel in self.kernels})
        self.serial: list[Any] | None = None

    def _kernel(self, name: str, kind: str, facts: Mapping[str, Any]) -> Kernel:
        if kind not in self.kinds:
            raise UnknownNameError(f"kind of op {name!r} on {self.where}:", kind, self.kinds)
        kernel = Kernel(kind, facts.get("size", 0), facts.get("repeat", 1))
        for key in ("size", "repeat"):
            value = getattr(kernel, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(
                    f"op {name!r} ({kind}): {key} must be a whole positive number, found {value!r}"
                )
        return kernel

    def inputs(self, op: int) -> tuple[Any, Any]:
        """Return the inputs of an op: results of its producers on the same device, else constants."""
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
        """Compute one op from the results of its producers."""

    @abstractmethod
    def settled(self) -> list[Any]:
        """Return copies of all results, once they are complete."""

    @abstractmethod
    def alike(self, mine: Any, right: Any) -> bool:
        """Return whether a result is that of a serial execution, within the accuracy of the library."""

    def wrong(self) -> list[str]:
        """Return the ops whose result differs from that of a serial execution."""
        left = self.settled()
        if self.serial is None:
            for op in self.order:
                self.compute(op)
            self.serial = self.settled()
        every = zip(self.names, left, self.serial, strict=True)
        return [name for name, mine, right in every if not self.alike(mine, right)]
