"""Memory with a layout decided before the run: allocating means looking up an offset.

The plan assumes an order. A run that departs from it (out of order, another batch first) may ask for a
tensor whose place is still occupied: then `try_alloc` returns None and the request waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from devices.describe.field_types import Alignment
from devices.memory.allocator import Allocator, plan_too_large
from devices.memory.device_memory import LIVE, Block, DeviceMemory, Owner, Span
from devices.memory.planners import PLANNERS, ArenaPlan, Lifetime
from devices.memory.trace_readers import MemoryEvent
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
        self._places: dict[Owner, list[tuple[int, int]]] = {}
        for owner, offset, lifetime in zip(owners, plan.offsets, plan.lifetimes, strict=True):
            if lifetime.nbytes:  # an empty tensor takes no place, and no turn
                self._places.setdefault(owner, []).append((base + offset, lifetime.nbytes))
        self._turn = dict.fromkeys(self._places, 0)
        self._addresses: list[int] = []
        self._live: dict[int, Block] = {}

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
        address, planned = self._place(owner)
        if nbytes > planned:
            raise InputError(
                f"{self.name}: {owner!r} asks for {nbytes} bytes, and {planned} were planned for it"
            )
        at = bisect_left(self._addresses, address + planned)
        if self._occupant(address, at) is not None:
            return None
        block = self._live[address] = Block(address, planned, nbytes, stream, owner, LIVE, None)
        self._addresses.insert(at, address)
        self._turn[owner] += 1
        self._took(block)
        return block

    def free(self, block: Block) -> tuple[int, ...]:
        """Vacate the place of `block`; see `Allocator.free`."""
        self._gave(block)
        if block.nbytes:
            del self._live[block.address]
            del self._addresses[bisect_left(self._addresses, block.address)]
        return ()

    def forget_last(self, owner: Owner) -> None:
        """Let `owner` have the same place again."""
        self._turn[owner] -= 1

    def fits_empty(self, nbytes: int, stream: int = 0, owner: Owner = None) -> bool:
        """Return whether the plan has a place for the owner that is large enough."""
        return nbytes == 0 or any(nbytes <= planned for _, planned in self._places.get(owner, ()))

    def spans(self) -> Iterator[Span]:
        """Yield the live tensors and the gaps between them, in address order."""
        end = self._base
        for address in (*self._addresses, self._base + self.reserved):
            if address > end:
                yield Span(self._base, end, address - end, "free", 0, 0, None)
            if address in self._live:
                yield self._live[address].span(self._base)
                end = address + self._live[address].nbytes

    def oom_hints(self, nbytes: int, stream: int, owner: Owner) -> list[str]:
        """Name the tensor that lies where this one is to lie."""
        address, planned = self._place(owner)
        occupant = self._occupant(address, bisect_left(self._addresses, address + planned))
        assert occupant is not None
        return [
            f"the order that the plan was made for: it puts {owner!r} where {occupant.owner!r} still lives; "
            "run in that order, let the task wait (memory.when_full: wait), or plan for this order"
        ]

    def _place(self, owner: Owner) -> tuple[int, int]:
        """Return address and size of what the owner gets next."""
        places = self._places.get(owner)
        if places is None:
            near = hint(str(owner), map(str, self._places))
            raise InputError(f"{self.name}: the memory plan has no place for {owner!r}{near}")
        return places[self._turn[owner] % len(places)]

    def _occupant(self, address: int, at: int) -> Block | None:
        """Return the block before index `at` if it reaches beyond `address`, or None."""
        if not at:
            return None
        block = self._live[self._addresses[at - 1]]
        return block if block.address + block.nbytes > address else None


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
