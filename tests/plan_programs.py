"""Programs as TVM plans them: ops in a fixed order, and which token each tensor has."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from devices.memory.planned import Lifetime, TokenPool


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


class Tokens(NamedTuple):
    """Token of each tensor, and bytes of each token."""

    token_of: tuple[int, ...]
    token_nbytes: tuple[int, ...]


def plan_program(program: Program, classes: Sequence[Hashable] | None = None) -> Tokens:
    """Plan a program as TVM's graph executor does; tensors of different classes never share."""
    pool = TokenPool()
    kinds = [None] * len(program.nbytes) if classes is None else classes
    token_of = [-1] * len(program.nbytes)
    readers = [0] * len(program.nbytes)
    for step in program.steps:
        for tensor in step.reads:
            readers[tensor] += 1
    for tensor in program.resident():
        token_of[tensor] = pool.new(program.nbytes[tensor])
    for tensor in (*program.resident(), *program.outputs):
        readers[tensor] += 1  # never the last
    for step in program.steps:
        for tensor in step.writes:
            token_of[tensor] = pool.request(program.nbytes[tensor], kinds[tensor])
        for tensor in step.writes:
            if not readers[tensor]:
                pool.release(token_of[tensor], kinds[tensor])
        for tensor in step.reads:
            readers[tensor] -= 1
            if not readers[tensor]:
                pool.release(token_of[tensor], kinds[tensor])
    return Tokens(tuple(token_of), tuple(pool.sizes))
