"""What DeepSpeed's ZeRO-3 gathers, and when: a machine of states that knows no clock and no ops.

::

    visits     a  b  c  c' b' a'          modules with parameters, in the order in which they are entered
    fetch      gather what is missing of the module; what was gathered and it needs becomes available;
               gather ahead what comes next, fewer elements than `prefetch`, and than may be live besides
    release    parameters go, but for those that a visit within `reuse` elements needs again

From the second step on the visits of the first are known; before that nothing is gathered ahead and nothing
stays. Parameters of at most `persistence` elements never leave.

Sources: DeepSpeed, deepspeed/runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``,
``release_sub_module``, ``reset_step``) and config.py (defaults, in elements).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Coordinator", "Fetch", "Limits", "Sized"]


class Sized(Protocol):
    """A parameter: its name, which is its own, and its elements."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def elements(self) -> int:
        """How large it is."""
        ...


@dataclass(frozen=True)
class Limits:
    """Settings of ZeRO-3, in elements; the defaults are DeepSpeed's.

    Attributes
    ----------
    prefetch, persistence, max_live, reuse : int
        ``prefetch_bucket_size``, ``param_persistence_threshold``, ``max_live_parameters``,
        ``max_reuse_distance``.
    first_step : bool
        Nothing is known yet.
    """

    prefetch: int = 50_000_000
    persistence: int = 100_000
    max_live: int = 1_000_000_000
    reuse: int = 1_000_000_000
    first_step: bool = False


P = TypeVar("P", bound=Sized)


class Fetch(NamedTuple, Generic[P]):
    """What is done as a module is entered.

    Attributes
    ----------
    missing : list
        Gathered now, in one piece.
    arrived : list of list
        Pieces, this one or earlier ones, that become available.
    ahead : list
        Gathered behind that, in one piece.
    """

    missing: list[P]
    arrived: list[list[P]]
    ahead: list[P]


class Coordinator(Generic[P]):
    """Decides for the host of a rank.

    Parameters
    ----------
    visits : sequence of sequence
        The parameters of each module, in the order in which a forward and its backward enter them.
    limits : Limits

    Attributes
    ----------
    live : int
        Elements that are there or on their way, persistent ones not counted.

    Examples
    --------
    >>> from collections import namedtuple
    >>> P = namedtuple("P", "name elements")
    >>> a, b = P("a", 30), P("b", 30)
    >>> of = Coordinator([[a], [b], [b], [a]], Limits(prefetch=10, persistence=0, reuse=0))
    >>> [[p.name for p in part] for part in (of.fetch().missing, of.fetch().missing)], of.live
    ([['a'], []], 60)
    """

    def __init__(self, visits: Sequence[Sequence[P]], limits: Limits) -> None:
        self.visits, self.limits = visits, limits
        self.reset()
        self.kept = {each.name for module in visits for each in module if each.elements <= limits.persistence}
        self.available = set(self.kept)
        self.in_flight: dict[str, list[P]] = {}
        """Parameter → all that are gathered with it."""
        self.live = 0

    def reset(self) -> None:
        """Begin the visits anew, as each forward does: what is there stays there."""
        self.queue = deque((each, visit) for visit, module in enumerate(self.visits) for each in module)
        self.entered = 0
        self.fetched_for: dict[str, int] = {}

    def fetch(self) -> Fetch[P]:
        """Enter the next module."""
        module = self.visits[self.entered]
        missing = self._gather(module)
        arrived = []
        for each in module:
            if each.name in self.in_flight:
                arrived.append(self.in_flight[each.name])
                self._arrive(arrived[-1])
        ahead: list[P] = []
        if not self.limits.first_step:
            own = {each.name for each in module if self._seen(each) < self.entered}
            while self.queue and own:
                each, visit = self.queue.popleft()
                self.fetched_for[each.name] = visit
                own.discard(each.name)
            ahead = self._gather_ahead()
        self.entered += 1
        return Fetch(missing, arrived, ahead)

    def release(self, module: Sequence[P]) -> None:
        """Leave a module."""
        held = set(self.kept)
        if not self.limits.first_step:
            held |= {each.name for each in module if self._seen(each) > self.entered}
            traversed = 0
            for coming in self.visits[self.entered :]:
                if traversed >= self.limits.reuse:
                    break
                held |= {each.name for each in coming}
                traversed += sum(each.elements for each in coming)
        for each in module:
            if each.name not in held and each.name in self.available:
                self.available.remove(each.name)
                self.live -= each.elements

    def _gather_ahead(self) -> list[P]:
        most = min(self.limits.max_live - self.live, self.limits.prefetch)
        ahead: list[P] = []
        while self.queue and sum(each.elements for each in ahead) < most:
            each, visit = self.queue.popleft()
            self.fetched_for[each.name] = max(self._seen(each), visit)
            if self._is_missing(each) and each not in ahead:
                ahead.append(each)
        return self._gather(ahead)

    def _gather(self, parameters: Sequence[P]) -> list[P]:
        missing = [each for each in parameters if self._is_missing(each)]
        self.live += sum(each.elements for each in missing)
        self.in_flight.update((each.name, missing) for each in missing)
        return missing

    def _arrive(self, together: Sequence[P]) -> None:
        for each in together:
            self.available.add(each.name)
            del self.in_flight[each.name]

    def _seen(self, each: P) -> int:
        """Return the last visit for which a parameter was fetched."""
        return self.fetched_for.get(each.name, -1)

    def _is_missing(self, each: P) -> bool:
        return each.name not in self.available and each.name not in self.in_flight
