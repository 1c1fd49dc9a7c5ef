"""TVM's rule: tensors share storage tokens in turn.

A token is a buffer that one tensor after the other uses whole. In program order, an op's outputs request
tokens before its inputs are released (an op never writes where it reads). A request of s bytes takes

1. the smallest free token of s to 16·s bytes, the one released first among equals; else
2. the largest free token below s, down to s/16, the one released last among equals, and enlarges it; else
3. a new token.

Parameters and inputs have tokens of their own for good. Source: `TokenAllocator1D` of TVM's Relay and Relax
(`src/relay/backend/graph_plan_memory.cc`, `src/relax/transform/static_plan_block_memory.cc`); Relax keeps a
pool for each storage scope and dtype, the `classes` of `plan_program`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from devices.memory.blocks import round_up
from devices.memory.plan.plan_problem import Lifetime, Plan, checked, peak_live
from devices.memory.plan.steps import Program

__all__ = ["TokenPlan", "TokenPool", "plan_program", "plan_tokens"]

MATCH_RANGE = 16


class TokenPool:
    """Tokens by size; those that are free can be requested.

    Examples
    --------
    >>> pool = TokenPool()
    >>> a = pool.request(100)
    >>> pool.release(a)
    >>> pool.request(200), pool.request(50), pool.sizes  # the first enlarges it, the second finds none free
    (0, 1, [200, 50])
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        """Bytes of each token; its index is its identity."""
        self._free: dict[Hashable, list[tuple[int, int, int]]] = {}
        self._released = 0

    def request(self, nbytes: int, kind: Hashable = None) -> int:
        """Return a token for `nbytes`, of those of the same `kind` (device, scope, dtype)."""
        free = self._free.get(kind, [])
        at = bisect_left(free, (nbytes,))
        if at < len(free) and free[at][0] <= nbytes * MATCH_RANGE:
            return free.pop(at)[2]
        if at and free[at - 1][0] >= nbytes // MATCH_RANGE:
            token = free.pop(at - 1)[2]
            self.sizes[token] = nbytes
            return token
        return self.new(nbytes)

    def new(self, nbytes: int) -> int:
        """Return a token that did not exist before."""
        self.sizes.append(nbytes)
        return len(self.sizes) - 1

    def release(self, token: int, kind: Hashable = None) -> None:
        """Make a token free for others of its kind."""
        insort(self._free.setdefault(kind, []), (self.sizes[token], self._released, token))
        self._released += 1


@dataclass(frozen=True)
class TokenPlan:
    """Which token each tensor has.

    Attributes
    ----------
    token_of : tuple of int
        Token of each tensor.
    token_nbytes : tuple of int
        Bytes of each token.
    """

    token_of: tuple[int, ...]
    token_nbytes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tokens together."""
        return sum(self.token_nbytes)

    def arena(self, lifetimes: Sequence[Lifetime], alignment: int = 1) -> Plan:
        """Lay the tokens out one after the other."""
        starts = [0]
        for nbytes in self.token_nbytes:
            starts.append(starts[-1] + round_up(nbytes, alignment))
        return Plan(
            lifetimes=tuple(lifetimes),
            offsets=tuple(starts[token] for token in self.token_of),
            nbytes=starts[-1],
            bound=peak_live(lifetimes, alignment),
            planner="tokens",
            alignment=alignment,
        )


_Event = tuple[Literal["new", "request", "release"], int]


def plan_program(program: Program, classes: Sequence[Hashable] | None = None) -> TokenPlan:
    """Plan a program as TVM's graph executor does.

    Parameters
    ----------
    program : Program
        Ops in order; parameters and inputs are given tokens first, in order.
    classes : sequence, optional
        Kind of each tensor: device, or scope and dtype. Tensors of different kinds never share.

    Examples
    --------
    A chain of three ops: the third reuses what the first wrote.

    >>> from devices.memory.plan import Step
    >>> chain = Program([8, 4, 4, 4], [Step((0,), (1,)), Step((1,), (2,)), Step((2,), (3,))], frozenset({3}))
    >>> plan_program(chain)
    TokenPlan(token_of=(0, 1, 2, 1), token_nbytes=(8, 4, 4))
    """
    return _run(_events_of_program(program), program.nbytes, classes)


def plan_tokens(lifetimes: Sequence[Lifetime], alignment: int = 1) -> Plan:
    """Plan lifetimes by TVM's rule; at each step the new tensors request before the dying ones release.

    Raises
    ------
    InputError
        A lifetime makes no sense.

    Examples
    --------
    >>> plan_tokens([Lifetime(4, 0, 1), Lifetime(4, 1, 2), Lifetime(4, 2, 2)]).offsets
    (0, 4, 0)
    """
    rows = checked(lifetimes, alignment)
    return _run(_events_of_lifetimes(rows), [row.nbytes for row in rows], None).arena(rows, alignment)


def _run(events: Iterator[_Event], nbytes: Sequence[int], classes: Sequence[Hashable] | None) -> TokenPlan:
    pool = TokenPool()
    token_of = [-1] * len(nbytes)
    for event, tensor in events:
        kind = None if classes is None else classes[tensor]
        if event == "release":
            pool.release(token_of[tensor], kind)
        elif event == "request":
            token_of[tensor] = pool.request(nbytes[tensor], kind)
        else:
            token_of[tensor] = pool.new(nbytes[tensor])
    return TokenPlan(tuple(token_of), tuple(pool.sizes))


def _events_of_program(program: Program) -> Iterator[_Event]:
    readers = [0] * len(program.nbytes)
    for step in program.steps:
        for tensor in step.reads:
            readers[tensor] += 1
    resident = program.resident()
    for tensor in (*resident, *program.outputs):
        readers[tensor] += 1  # never the last
    for tensor in resident:
        yield "new", tensor
    for step in program.steps:
        for tensor in step.writes:
            yield "request", tensor
        for tensor in step.writes:
            if not readers[tensor]:
                yield "release", tensor
        for tensor in step.reads:
            readers[tensor] -= 1
            if not readers[tensor]:
                yield "release", tensor


def _events_of_lifetimes(rows: Sequence[Lifetime]) -> Iterator[_Event]:
    born: dict[int, list[int]] = {}
    dead: dict[int, list[int]] = {}
    for tensor, row in enumerate(rows):
        born.setdefault(row.first, []).append(tensor)
        dead.setdefault(row.last, []).append(tensor)
    for step in sorted({*born, *dead}):
        for tensor in born.get(step, ()):
            yield "request", tensor
        for tensor in dead.get(step, ()):
            yield "release", tensor
