"""Memory with a layout decided before the run: allocating means looking up an offset.

Planners by name, each a function of lifetimes and an alignment:

===========  ===========================================================================
``relay``    TVM's rule: tensors in turn share storage tokens
``relax``    the same in TVM's successor of Relay, for each data type apart
``greedy``   the largest tensor first, each at the best fitting offset
===========  ===========================================================================
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Literal, NamedTuple

import numpy as np

from devices.describe.field_types import Alignment
from devices.memory.allocator import Allocator, largest_holders, more_memory, out_of_memory, size_text
from devices.memory.device_memory import LIVE, Block, DeviceMemory, Owner, Span, round_up
from devices.memory.trace_readers import MemoryEvent
from sim.base.arrays import UNSET, IntArray, group_pairs
from sim.base.errors import InputError, OutOfMemoryError, UnknownNameError, hint
from sim.base.intervals import in_use

# ----------------------------------------------------------------------------------------------------------
# What a planner is given, and what it answers.
#
# A tensor is a rectangle: as wide as it lives, as high as it is large. A plan shifts the rectangles up and
# down, never sideways, so that no two overlap, and wants the pile low::
#
#     offset
#       ▲  ┌─────────┐
#       │  │    c    │ ┌──────┐
#       │  ├──────┬──┘ │      │      lower bound: the most bytes alive at one step,
#       │  │  a   │┌───┤  d   │      whatever the plan
#       │  │      ││ b │      │
#       └──┴──────┴┴───┴──────┴──► step


class Lifetime(NamedTuple):
    """A tensor of `nbytes`, alive from step `first` through step `last`, both included.

    Some planners look at its `dtype` (empty: not known), and at whether the program returns it.
    """

    nbytes: int
    first: int
    last: int
    dtype: str = ""
    returned: bool = False


@dataclass(frozen=True)
class ArenaPlan:
    """Where each tensor lies in one arena.

    Attributes
    ----------
    lifetimes : tuple of Lifetime
        What was planned.
    offsets : tuple of int
        First byte of each, in the same order.
    nbytes : int
        Size of the arena.
    bound : int
        No plan takes fewer bytes: the most alive at one step.
    planner : str
        Who made it.
    """

    lifetimes: tuple[Lifetime, ...]
    offsets: tuple[int, ...]
    nbytes: int
    bound: int
    planner: str


def peak_live(lifetimes: Iterable[Lifetime], alignment: int = 1) -> int:
    """Return the most bytes alive at one step: a lower bound of every plan.

    Examples
    --------
    >>> peak_live([Lifetime(4, 0, 1), Lifetime(2, 1, 2), Lifetime(5, 2, 2)])
    7
    """
    return int(_live_at_steps(lifetimes, alignment)[1].max(initial=0))


def fullest_step(lifetimes: Iterable[Lifetime]) -> int:
    """Return the first step at which most bytes are alive; 0 without lifetimes.

    Examples
    --------
    >>> fullest_step([Lifetime(4, 0, 1), Lifetime(2, 1, 2), Lifetime(5, 2, 2)])
    2
    """
    steps, live = _live_at_steps(lifetimes, alignment=1)
    return int(steps[live.argmax()]) if len(steps) else 0


def _live_at_steps(lifetimes: Iterable[Lifetime], alignment: int) -> tuple[IntArray, IntArray]:
    """Return the steps at which it changes what is alive, and the bytes alive from each on."""
    rows = [(first, last + 1, round_up(nbytes, alignment)) for nbytes, first, last, *_ in lifetimes]
    return in_use(*np.array(rows, np.int64).reshape(-1, 3).T)


# ----------------------------------------------------------------------------------------------------------
# Greedy by size: the largest tensor first, each into the tightest gap that holds it.
#
# The heuristic of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (MLSys
# workshop 2020, arXiv 2001.03288, algorithm 3), which TensorFlow Lite uses. Large tensors are placed while
# there is freedom; the small ones fill what is left between those that live at the same time.


def plan_greedy(lifetimes: Sequence[Lifetime], alignment: int = 1) -> ArenaPlan:
    """Place tensors by descending size (then by first step, then in order), each at the best fitting offset.

    Parameters
    ----------
    lifetimes : sequence of Lifetime
        n tensors; O(n²) comparisons, in numpy.
    alignment : int
        Of every offset, in bytes.

    Examples
    --------
    >>> plan = plan_greedy([Lifetime(4, 0, 1), Lifetime(6, 1, 2), Lifetime(5, 2, 3)])
    >>> plan.offsets, plan.nbytes, plan.bound
    ((6, 0, 6), 11, 11)
    """
    rows = tuple(lifetimes)
    # What is placed so far, in order of first step, so that those which begin later are not looked at.
    first_of = np.array([row.first for row in rows], np.int64)
    order = first_of.argsort(kind="stable")
    begins, rank = first_of[order], order.argsort().tolist()
    starts, ends, last_steps = np.zeros((3, len(rows)), np.int64) - 1
    for i in sorted(range(len(rows)), key=lambda i: (-rows[i].nbytes, rows[i].first, i)):
        nbytes, first, last, *_ = rows[i]
        if not nbytes:
            continue
        size = round_up(nbytes, alignment)
        beside = np.flatnonzero(last_steps[: begins.searchsorted(last, "right")] >= first)
        beside = beside[starts[beside].argsort()]
        tops = np.maximum.accumulate(np.concatenate(([0], ends[beside])))
        gaps = starts[beside] - tops[:-1]
        fitting = np.flatnonzero(gaps >= size)
        best = fitting[np.argmin(gaps[fitting])] if len(fitting) else -1
        offset = int(tops[best])
        starts[rank[i]], ends[rank[i]], last_steps[rank[i]] = offset, offset + size, last
    offsets = tuple(starts.clip(0)[rank].tolist())
    return ArenaPlan(rows, offsets, int(ends.max(initial=0)), peak_live(rows, alignment), "greedy")


# ----------------------------------------------------------------------------------------------------------
# TVM's two plans: tensors share storage tokens in turn.
#
# A token is a buffer that one tensor after the other uses whole. In program order, an op's outputs request
# tokens before its inputs are released (an op never writes where it reads). A request of s bytes takes
#
# 1. the smallest free token of s to 16·s bytes, the one released first among equals; else
# 2. the largest free token below s, down to s/16, the one released last among equals, and enlarges it; else
# 3. a new token.
#
# Parameters and inputs have tokens of their own for good. What the program returns never releases its token.
#
# =========  ==========================  ========================================  =======================
# planner    an output that no op reads  tensors of different data types           what the program returns
# =========  ==========================  ========================================  =======================
# ``relay``  is released first            share tokens                               takes a token like others
# ``relax``  is released last             have a pool each                           is allocated apart
# =========  ==========================  ========================================  =======================
#
# Source: `TokenAllocator1D` and `StorageAllocator` of TVM, in src/relay/backend/graph_plan_memory.cc
# and src/relax/transform/static_plan_block_memory.cc. In Relax an op's output is its last argument.

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
        index = bisect_left(free, (nbytes,))
        if index < len(free) and free[index][0] <= nbytes * MATCH_RANGE:
            return free.pop(index)[2]
        if index and free[index - 1][0] >= nbytes // MATCH_RANGE:
            token = free.pop(index - 1)[2]
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


def plan_relay(lifetimes: Sequence[Lifetime], alignment: int = 1) -> ArenaPlan:
    """Plan lifetimes as Relay does; at each step the new tensors request before the dying ones release.

    Examples
    --------
    >>> plan_relay([Lifetime(4, 0, 1), Lifetime(4, 1, 2), Lifetime(4, 2, 2, "int32")]).offsets
    (0, 4, 0)
    """
    rows = tuple(lifetimes)
    return _plan([row._replace(dtype="") for row in rows], rows, alignment, "relay")


def plan_relax(lifetimes: Sequence[Lifetime], alignment: int = 1) -> ArenaPlan:
    """Plan lifetimes as Relax does.

    Examples
    --------
    >>> plan_relax([Lifetime(4, 0, 1), Lifetime(4, 1, 2), Lifetime(4, 2, 2, "int32")]).offsets
    (0, 4, 8)
    """
    rows = tuple(lifetimes)
    tagged = [row._replace(dtype=f"returned {i}") if row.returned else row for i, row in enumerate(rows)]
    return _plan(tagged, rows, alignment, "relax")


def _plan(tagged: Sequence[Lifetime], rows: tuple[Lifetime, ...], alignment: int, planner: str) -> ArenaPlan:
    """Plan lifetimes; tensors share tokens only where those of `tagged` have the same data type."""
    turns = [(row.first, False, tensor) for tensor, row in enumerate(rows)]
    turns += [(row.last, True, tensor) for tensor, row in enumerate(rows)]
    pool = TokenPool()
    token_of = [-1] * len(rows)
    for _, dies, tensor in sorted(turns):
        row = tagged[tensor]
        if not dies:
            token_of[tensor] = pool.request(row.nbytes, row.dtype)
        elif not row.returned:
            pool.release(token_of[tensor], row.dtype)
    starts = [0, *accumulate(round_up(nbytes, alignment) for nbytes in pool.sizes)]
    offsets = tuple(starts[token] for token in token_of)
    return ArenaPlan(rows, offsets, starts[-1], peak_live(rows, alignment), planner)


Planner = Callable[[Sequence[Lifetime], int], ArenaPlan]
"""A planner: lifetimes and an alignment in bytes → a plan."""

PLANNERS: dict[str, Planner] = {"relay": plan_relay, "relax": plan_relax, "greedy": plan_greedy}


# ----------------------------------------------------------------------------------------------------------
# Out of memory before the run: a static plan is larger than the memory left on its device.
#
# The message is that of a failed request, with the tensors of the fullest step in place of those in use.


def plan_too_large(
    plan: ArenaPlan, owners: Sequence[Owner], memory: DeviceMemory, name: str
) -> OutOfMemoryError:
    """Return an error that says why a plan does not fit its device, and what would help.

    Parameters
    ----------
    plan : ArenaPlan
        Plan that is too large.
    owners : sequence
        Owners of its tensors, in plan order.
    memory : DeviceMemory
        Memory of the device, including its other contents (parameters).
    name : str
        Name of the device.

    Examples
    --------
    >>> plan = plan_greedy([Lifetime(6144, 0, 1), Lifetime(4096, 1, 2), Lifetime(2048, 2, 2)])
    >>> print(plan_too_large(plan, ["a", "b", "c"], DeviceMemory(8192), "npu"))
    out of memory on npu (planned allocator): the plan (greedy) takes 10 KiB of 8 KiB left, before time 0
      limit            8 KiB
      least plan       10 KiB: no plan for this order is known to take less
      largest holders  'a' 6 KiB; 'b' 4 KiB, at step 1 of the plan, its fullest
      what would help  at least 2 KiB more memory, or as much less in use: a smaller batch, recomputation
    """
    free = (memory.capacity or 0) - memory.used
    lines = [("limit", size_text(memory.capacity))]
    if memory.used:
        lines.append(("other users", f"{size_text(memory.used)} that are not planned, such as parameters"))
    lines.append(("least plan", f"{size_text(plan.bound)}: no plan for this order is known to take less"))
    step = fullest_step(plan.lifetimes)
    live = [
        (owner, one.nbytes)
        for owner, one in zip(owners, plan.lifetimes, strict=True)
        if one.nbytes and one.first <= step <= one.last
    ]
    holders = "; ".join(largest_holders(live))
    lines.append(("largest holders", f"{holders}, at step {step} of the plan, its fullest"))
    if plan.bound <= free:
        lines.append(("what would help", "another planner, or the order of another linearizer"))
    lines.append(("what would help", more_memory(plan.nbytes - free)))
    problem = (
        f"the plan ({plan.planner}) takes {size_text(plan.nbytes)} of {size_text(free)} left, before time 0"
    )
    return out_of_memory(name, "planned", problem, lines)


# ----------------------------------------------------------------------------------------------------------
# Tensors take turns at their bytes in the order that the plan was made for, and then from the beginning again
# (the next iteration). A tensor that is asked for before its turn has to wait: `try_alloc` returns None::
#
#     plan    a ▇▇▇▇      ▇▇▇ c         c waits for a and b to be freed, the next a for c
#             b ▇▇▇▇▇▇                  b could come before a, and c before neither


class PlannedAllocator(Allocator):
    """One arena, with the offset of every tensor known beforehand.

    Parameters
    ----------
    events : iterable of MemoryEvent
        What is about to be asked for. An owner that allocates several times has several tensors, which it
        gets in turn, and from the first again when it comes back (the next iteration).
    capacity : int, DeviceMemory or None
        Bytes of the device; None: unlimited.
    planner : str
        ``relay`` and ``relax`` (TVM), or ``greedy`` (by size).
    alignment : int
        Every tensor begins at, and is rounded up to, a multiple of so many bytes.
    name : str
        The device, in error messages.

    Raises
    ------
    UnknownNameError
        There is no such planner.
    OutOfMemoryError
        The plan is larger than the device.

    Examples
    --------
    >>> events = [MemoryEvent("alloc", "a", 4), MemoryEvent("alloc", "b", 6), MemoryEvent("free", "a")]
    >>> planned = PlannedAllocator([*events, MemoryEvent("alloc", "c", 5)])
    >>> a, b = planned.alloc(4, owner="a"), planned.alloc(6, owner="b")
    >>> planned.try_alloc(5, owner="c") is None, planned.free(a)  # where "a" still lies
    (True, ())
    >>> planned.alloc(5, owner="c").address
    6
    """

    kind = "planned"
    may_synchronise = False

    def __init__(
        self,
        events: Iterable[MemoryEvent],
        capacity: int | DeviceMemory | None = None,
        *,
        planner: Literal["relay", "relax", "greedy"] = "greedy",
        alignment: Alignment = 1,
        name: str = "device",
    ) -> None:
        super().__init__(capacity, name)
        if planner not in PLANNERS:
            raise UnknownNameError("memory planner", planner, PLANNERS)
        owners, lifetimes = lifetimes_of_events(events)
        plan = PLANNERS[planner](lifetimes, alignment)
        base = self.memory.malloc(plan.nbytes)
        if base is None:
            raise plan_too_large(plan, owners, self.memory, name)
        self._base = base
        self.device_mallocs = 1
        self._reserve(plan.nbytes)
        self._plan, self._owners = plan, owners
        # An empty tensor takes no place, and no turn.
        filled = ((owner, i) for i, owner in enumerate(owners) if plan.lifetimes[i].nbytes)
        self._tensors = group_pairs(filled)
        self._turn = dict.fromkeys(self._tensors, 0)
        self._before = _tenants_before(plan)
        self._taken, self._freed = [0] * len(owners), [0] * len(owners)  # of each tensor, how often
        self._live: dict[int, tuple[Block, int]] = {}  # by address, with the tensor

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Return the owner's place, or None while something else lies there; see `Allocator.alloc`.

        Raises
        ------
        InputError
            The plan has no place for this owner, or a smaller one.
        """
        if nbytes <= 0:
            return self._empty(nbytes, stream, owner)
        tensor = self._next(owner)
        planned = self._plan.lifetimes[tensor].nbytes
        if nbytes > planned:
            raise InputError(
                f"{self.name}: {owner!r} asks for {nbytes} bytes, and {planned} were planned for it"
            )
        if self._tenant_before(tensor) is not None:
            return None
        address = self._base + self._plan.offsets[tensor]
        block = Block(address, planned, nbytes, stream, owner, LIVE, None)
        self._live[address] = block, tensor
        self._turn[owner] += 1
        self._taken[tensor] += 1
        self._took(block)
        return block

    def free(self, block: Block) -> tuple[int, ...]:
        """Vacate the place of `block`; see `Allocator.free`."""
        self._gave(block)
        if block.nbytes:
            self._freed[self._live.pop(block.address)[1]] += 1
        return ()

    def forget_last(self, owner: Owner) -> None:
        """Let `owner` have the same place again."""
        self._turn[owner] -= 1
        tensor = self._next(owner)
        self._taken[tensor] -= 1
        self._freed[tensor] -= 1

    def fits_empty(self, nbytes: int, stream: int = 0, owner: Owner = None) -> bool:
        """Return whether the plan has a place for the owner that is large enough."""
        lifetimes = (self._plan.lifetimes[tensor] for tensor in self._tensors.get(owner, ()))
        return nbytes == 0 or any(nbytes <= planned.nbytes for planned in lifetimes)

    def spans(self) -> Iterator[Span]:
        """Yield the live tensors and the gaps between them, in address order."""
        end = self._base
        for address in (*sorted(self._live), self._base + self.reserved):
            if address > end:
                yield Span(self._base, end, address - end, "free", 0, 0, None)
            if address in self._live:
                yield self._live[address][0].span(self._base)
                end = address + self._live[address][0].nbytes

    def oom_hints(self, nbytes: int, stream: int, owner: Owner) -> list[str]:
        """Name a tensor whose turn is before this one's."""
        awaited = self._tenant_before(self._next(owner))
        assert awaited is not None
        return [
            f"the order that the plan was made for: it puts {owner!r} where {self._owners[awaited]!r} lies "
            "before it; run in that order, or plan for this one"
        ]

    def _next(self, owner: Owner) -> int:
        """Return the tensor that the owner gets next."""
        tensors = self._tensors.get(owner)
        if tensors is None:
            near = hint(str(owner), map(str, self._tensors))
            raise InputError(f"{self.name}: the memory plan has no place for {owner!r}{near}")
        return tensors[self._turn[owner] % len(tensors)]

    def _tenant_before(self, tensor: int) -> int | None:
        """Return a tensor that has yet to come, or to go, before this one may come; None: it may."""
        for before in self._before[tensor]:
            # Who comes earlier in the order comes first in this iteration, too, others in the last one.
            turns = self._taken[tensor] + (1 if before < tensor else 0)
            if self._freed[before] < turns:
                return before
        return None


def _tenants_before(plan: ArenaPlan) -> list[list[int]]:
    """Return of each tensor those that had its bytes last, where iterations follow one another.

    Examples
    --------
    >>> _tenants_before(plan_greedy([Lifetime(4, 0, 1), Lifetime(6, 1, 2), Lifetime(5, 2, 3)]))
    [[2], [1], [0, 2]]
    """
    ends, tenants = [plan.nbytes], [UNSET]  # of the parts of the arena, in order of addresses
    before: list[list[int]] = []
    for _ in range(2):  # in the second iteration each has a tenant before it
        before = []
        for tensor, (start, lifetime) in enumerate(zip(plan.offsets, plan.lifetimes, strict=True)):
            if not lifetime.nbytes:
                before.append([])
                continue
            end = start + lifetime.nbytes
            first, last = bisect_right(ends, start), bisect_left(ends, end)
            span = slice(first, last + 1)  # the parts on which it lies
            before.append([*dict.fromkeys(tenants[span])])
            # What is left of the first of them, the tensor, what is left of the last: begin, end, tenant.
            begin = ends[first - 1] if first else 0
            parts = [(begin, start, tenants[first]), (start, end, tensor), (end, ends[last], tenants[last])]
            pieces = [(high, tenant) for low, high, tenant in parts if high > low]
            ends[span], tenants[span] = map(list, zip(*pieces, strict=True))
    return before


def lifetimes_of_events(events: Iterable[MemoryEvent]) -> tuple[list[Owner], list[Lifetime]]:
    """Return who allocates, and from which event to which it lives, in the order of the allocations.

    Examples
    --------
    >>> events = [MemoryEvent("alloc", "a", 8), MemoryEvent("alloc", "b", 4), MemoryEvent("free", "a")]
    >>> [(one.first, one.last) for one in lifetimes_of_events(events)[1]]
    [(0, 1), (1, 2)]
    """
    owners: list[Owner] = []
    rows: list[Lifetime] = []
    alive: dict[Owner, list[int]] = {}
    end = -1
    for end, event in enumerate(events):
        if event.op == "alloc":
            alive.setdefault(event.id, []).append(len(rows))
            owners.append(event.id)
            rows.append(Lifetime(event.nbytes, end, end, event.dtype, event.returned))
        elif event.op == "free":
            i = alive[event.id].pop()
            rows[i] = rows[i]._replace(last=end - 1)
    for i in chain.from_iterable(alive.values()):  # what is never freed lives to the last event
        rows[i] = rows[i]._replace(last=end)
    return owners, rows
