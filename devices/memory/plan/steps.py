"""A program for planning: ops in a fixed order, and which tensors each reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from devices.memory.plan.plan_problem import Lifetime

__all__ = ["Program", "Step"]


class Step(NamedTuple):
    """One op: the tensors it reads, in argument order, and those it writes (indices)."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """Ops in the order in which they run.

    Attributes
    ----------
    nbytes : sequence of int
        Bytes of each tensor.
    steps : sequence of Step
        The ops.
    outputs : frozenset of int
        Tensors that outlive the program.

    Notes
    -----
    A tensor that no step writes is a parameter or an input: it is there before the first step, and stays.

    Examples
    --------
    >>> steps = [Step((0,), (1,)), Step((1,), (2,)), Step((2,), (3,))]
    >>> program = Program([8, 4, 4, 2], steps, outputs=frozenset({3}))
    >>> [(lifetime.first, lifetime.last) for lifetime in program.lifetimes()]
    [(-1, 3), (0, 1), (1, 2), (2, 3)]
    """

    nbytes: Sequence[int]
    steps: Sequence[Step]
    outputs: frozenset[int] = field(default_factory=frozenset)

    def resident(self) -> list[int]:
        """Return the tensors that no step writes, in order."""
        written = {tensor for step in self.steps for tensor in step.writes}
        return [tensor for tensor in range(len(self.nbytes)) if tensor not in written]

    def lifetimes(self) -> list[Lifetime]:
        """Return from which step to which each tensor lives.

        An op's outputs and inputs live together. Parameters and inputs live from step −1, and they and the
        program's outputs to the step after the last.
        """
        end = len(self.steps)
        first = [-1] * len(self.nbytes)
        last = [end] * len(self.nbytes)
        for i, step in enumerate(self.steps):
            for tensor in step.writes:
                first[tensor] = last[tensor] = i
        for i, step in enumerate(self.steps):
            for tensor in step.reads:
                if first[tensor] >= 0:
                    last[tensor] = i
        for tensor in self.outputs:
            last[tensor] = end
        return [Lifetime(*row) for row in zip(self.nbytes, first, last, strict=True)]
