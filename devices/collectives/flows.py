"""Collectives as messages over the machine's links, which they share with all other traffic.

::

    ring, step k      0 ──► 1 ──► 2      a message goes when both its ends are through with their earlier
                                         steps; how fast it goes, the network says

Alone on uniform links a collective takes the time of the formula (`devices.collectives.formulas`), except for
rounding each step to whole ns and each message to whole bytes. Two of them on one link, or a transfer beside
one, take longer: this is the purpose of flows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import ceil

from devices.collectives.formulas import Formula
from devices.collectives.schedules import CollectiveStep, Steps
from sim.base.errors import InputError
from sim.job.context import Context
from sim.machine.communicators import Call
from sim.machine.links import Network
from sim.machine.machine import Machine


@dataclass(frozen=True)
class Flows(Formula):
    """Collectives as messages that share the machine's links with all else that travels there.

    Parameters
    ----------
    algorithm, group, pieces, latency_ns
        As for the model ``formula``; ``auto`` takes what is the fastest alone.
    """

    bandwidth: None = field(default=None, init=False, repr=False)  # the links say it

    def time_ns(self, call: Call, machine: Machine) -> int:
        """Return the ns that a call takes where nothing else travels."""
        if not machine.links:
            raise InputError("flows need links between the devices, and the machine has none")
        return super().time_ns(call, machine)

    def carrier(self, machine: Machine, context: Context, network: Network) -> _Carrier:
        """Return what carries the collectives of a run."""
        return _Carrier(self, machine, context, network)


class _Carrier:
    """A `sim.machine.communicators.CollectiveCarrier`."""

    def __init__(self, model: Flows, machine: Machine, context: Context, network: Network) -> None:
        self._model, self._machine, self.context, self._network = model, machine, context, network

    def begin(self, call: Call, done: Callable[[], None]) -> None:
        steps = self._model.best(call, self._machine).steps
        if steps:
            _Run(steps, call, self, done).begin()
        else:
            self.context.call_at(self.context.now_ns, lambda _: done())

    def send(self, source: int, destination: int, nbytes: int, arrived: Callable[[], None]) -> None:
        send = partial(self._network.send, source, destination, nbytes, arrived)
        if self._model.latency_ns:
            self.context.call_at(self.context.now_ns + self._model.latency_ns, lambda _: send())
        else:
            send()


class _Part:
    """The messages of each rank in a step, as sender and as receiver: which they are, by their place."""

    def __init__(self, step: CollectiveStep, nbytes: int) -> None:
        self.nbytes = [ceil(share * nbytes) for share in step.shares]
        self.ends = list(zip(step.source.tolist(), step.destination.tolist(), strict=True))
        self.of: dict[int, list[int]] = defaultdict(list)
        for k, ends in enumerate(self.ends):
            for rank in ends:
                self.of[rank].append(k)


class _Run:
    """One call: each rank goes through its steps, one after the other."""

    def __init__(self, steps: Steps, call: Call, carrier: _Carrier, done: Callable[[], None]) -> None:
        parts = {id(step): _Part(step, call.nbytes) for step in steps}
        self._parts = [parts[id(step)] for step in steps for _ in range(step.times)]
        self._ranks, self._carrier, self._done = call.ranks, carrier, done
        self._going: list[tuple[int, int]] = []  # messages that begin at this instant
        self._step = [0] * len(call.ranks)  # of each rank
        self._left = [0] * len(call.ranks)  # messages of that step
        self._ready: set[tuple[int, int]] = set()  # step and place of messages for which one end is ready
        self._under_way = len(call.ranks)

    def begin(self) -> None:
        for rank in range(len(self._ranks)):
            self._enter(rank)

    def _go(self) -> None:
        """Send the messages of an instant in the algorithm's order, in which not all go to one rank first."""
        messages, self._going = sorted(self._going), []
        for number, k in messages:
            part = self._parts[number]
            source, destination = (self._ranks[end] for end in part.ends[k])
            self._carrier.send(source, destination, part.nbytes[k], partial(self._on_arrival, *part.ends[k]))

    def _enter(self, rank: int) -> None:
        """Begin the next step in which a rank has messages; each goes when its other end is there, too."""
        while self._step[rank] < len(self._parts):
            number = self._step[rank]
            part = self._parts[number]
            mine = part.of.get(rank, ())
            self._left[rank] = len(mine)
            if mine:
                both = [(number, k) for k in mine if (number, k) in self._ready]
                self._ready ^= {(number, k) for k in mine}
                if both and not self._going:
                    self._carrier.context.when_settled(self._go)
                self._going += both
                return
            self._step[rank] += 1
        self._under_way -= 1
        if not self._under_way:
            self._done()

    def _on_arrival(self, source: int, destination: int) -> None:
        for rank in (source, destination):
            self._left[rank] -= 1
            if not self._left[rank]:
                self._step[rank] += 1
                self._enter(rank)
