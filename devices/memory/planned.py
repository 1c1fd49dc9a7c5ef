"""Memory with a layout decided before the run: allocating means looking up an offset.

Tensors take turns at their bytes in the order that the plan was made for, and then from the beginning again
(the next iteration). A tensor that is asked for before its turn has to wait: `try_alloc` returns None::

    plan    a ▇▇▇▇      ▇▇▇ c         c waits for a and b to be freed, the next a for c
            b ▇▇▇▇▇▇                  b could come before a, and c before neither
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from devices.describe.field_types import Alignment
from devices.memory.allocator import Allocator, plan_too_large
from devices.memory.device_memory import LIVE, Block, DeviceMemory, Owner, Span
from devices.memory.planners import PLANNERS, ArenaPlan, Lifetime
from devices.memory.trace_readers import MemoryEvent
from sim.base.arrays import UNSET, group_pairs
from sim.base.errors import InputError, UnknownNameError, hint


class PlannedAllocator(Allocator):
    """One arena, with the offset of every tensor known beforehand.

    Parameters
    ----------
    plan : ArenaPlan
        Where everything lies.
    owners : sequence of str or int
        Who asks for each tensor of the plan, in its order. An owner named several times has several tensors,
        which it gets in turn, and from the first again when it comes back (the next iteration).
    capacity : int, DeviceMemory or None
        Bytes of the device; None: unlimited.
    name : str
        The device, in error messages.

    Raises
    ------
    OutOfMemoryError
        The plan is larger than the device.

    Examples
    --------
    >>> from devices.memory.planners import plan_greedy
    >>> plan = plan_greedy([Lifetime(4, 0, 1), Lifetime(6, 1, 2), Lifetime(5, 2, 3)])
    >>> planned = PlannedAllocator(plan, ["a", "b", "c"])
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
        plan: ArenaPlan,
        owners: Sequence[Owner],
        capacity: int | DeviceMemory | None = None,
        *,
        name: str = "device",
    ) -> None:
        super().__init__(capacity, name)
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

    @classmethod
    def from_events(
        cls,
        events: Iterable[MemoryEvent],
        capacity: int | DeviceMemory | None = None,
        *,
        planner: str = "greedy",
        alignment: Alignment = 1,
        name: str = "device",
    ) -> PlannedAllocator:
        """Plan for a trace that is about to be replayed.

        Parameters
        ----------
        events : iterable of MemoryEvent
            The trace.
        planner : str
            ``relay`` and ``relax`` (TVM), ``greedy`` (by size) or ``optimal``.
        alignment : int
            Every tensor begins at, and is rounded up to, a multiple of so many bytes.
        capacity, name
            Of the device.

        Raises
        ------
        UnknownNameError
            There is no such planner.
        OutOfMemoryError
            The plan is larger than the device.
        """
        if planner not in PLANNERS:
            raise UnknownNameError("memory planner", planner, PLANNERS)
        owners, lifetimes = lifetimes_of_events(events)
        return cls(PLANNERS[planner](lifetimes, alignment), owners, capacity, name=name)

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
        return nbytes == 0 or any(
            nbytes <= self._plan.lifetimes[tensor].nbytes for tensor in self._tensors.get(owner, ())
        )

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
        tensor = self._next(owner)
        awaited = self._tenant_before(tensor)
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
        turn, freed = self._taken[tensor], self._freed
        return next((j for j in self._before[tensor] if freed[j] < turn + (j < tensor)), None)


def _tenants_before(plan: ArenaPlan) -> list[list[int]]:
    """Return of each tensor those that had its bytes last, where iterations follow one another.

    Examples
    --------
    >>> from devices.memory.planners import plan_greedy
    >>> _tenants_before(plan_greedy([Lifetime(4, 0, 1), Lifetime(6, 1, 2), Lifetime(5, 2, 3)]))
    [[2], [1], [0, 2]]
    """
    ends, tenants = [plan.nbytes], [UNSET]  # of the parts of the arena, in order of addresses
    before: list[list[int]] = []
    for _ in range(2):  # in the second iteration each has somebody before it
        before = []
        for tensor, (start, lifetime) in enumerate(zip(plan.offsets, plan.lifetimes, strict=True)):
            end = start + lifetime.nbytes
            a, b = bisect_right(ends, start), bisect_left(ends, end)
            before.append([*dict.fromkeys(tenants[a : b + 1])] if lifetime.nbytes else [])
            if not lifetime.nbytes:
                continue
            parts = [(start, tenants[a]), (end, tensor), (ends[b], tenants[b])]
            at = [ends[a - 1] if a else 0, start, end]
            kept = [part for part, begin in zip(parts, at, strict=True) if part[0] > begin]
            ends[a : b + 1], tenants[a : b + 1] = map(list, zip(*kept, strict=True))
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
