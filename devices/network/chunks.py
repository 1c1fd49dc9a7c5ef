"""Messages in chunks, each link a queue: store and forward.

::

    message of 3 chunks over two links       link 1   [0][1][2]            a link sends one chunk at a time,
                                             link 2      [0][1][2]         first come, first served, and hands
                                                                           it on when it has all of it

A message gives all its chunks to its first link when it is ready, and has arrived when its last one has. A
link is busy with a chunk for bytes / bandwidth; the latency comes after that, and the next chunk does not
wait for it. Of chunks that reach a link at one time, the one of the message that began first goes first. The
most that a connection carries is one more queue, before the first link. This is the congestion-aware model of
ASTRA-sim's analytical network (astra-sim/astra-network-analytical, ``congestion_aware/network/Link.cpp``),
where each message is one chunk.

Times are whole numbers of ticks, so many a ns that every link sends a byte in whole ticks: nothing is rounded
but the arrival of a message, to the first whole ns. Nobody is woken for a chunk, only when a message may have
arrived: when its last chunk would, were there no more queues on its way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from math import gcd, lcm
from typing import Any, NamedTuple

from devices.fair_sharing import Alarm
from sim.base.units import NS_PER_S
from sim.job.context import Context


class Hop(NamedTuple):
    """A link on the way of a message: which queue, how fast it sends, and how long the way is after it."""

    link: int
    bytes_per_s: int | None
    latency_ns: int


class _Message:
    """What is on its way. In ticks: when its first link begins with it, when it is there at the earliest."""

    __slots__ = ("begin", "chunk", "due", "hops", "item", "last", "nbytes")

    def __init__(self, item: Any, nbytes: int, hops: tuple[Hop, ...], chunk: int | None) -> None:
        self.item, self.nbytes, self.hops = item, nbytes, hops
        self.chunk = chunk or max(nbytes, 1)
        self.last = max(0, -(-nbytes // self.chunk) - 1)
        self.begin = self.due = 0

    def up_to(self, chunk: int) -> int:
        """Return the bytes of all chunks up to this one."""
        return min(self.nbytes, (chunk + 1) * self.chunk)

    def size(self, chunk: int) -> int:
        """Return the bytes of one chunk."""
        return self.up_to(chunk) - chunk * self.chunk


class ChunkQueues:
    """All links that send chunks one after another.

    Parameters
    ----------
    context : Context
    rates : iterable of int
        Every bandwidth that a hop may have, in bytes/s.
    arrived : callable
        Called with a message's item at the first whole ns at which it is all there; of those that arrive at
        one instant, in the order of their exact times, then in that in which they began.
    """

    def __init__(self, context: Context, rates: Iterable[int], arrived: Callable[[Any], None]) -> None:
        self._context, self._arrived = context, arrived
        self._alarm = Alarm(context, self._ring)
        self._per_ns = lcm(*(rate // gcd(rate, NS_PER_S) for rate in rates))
        self._free: dict[int, int] = {}  # when a link has sent all that it was given
        self._messages: dict[int, _Message] = {}
        self._number = 0
        self._events: list[
            tuple[int, int, int, int]
        ] = []  # time, message, chunk, and the hop that it reaches
        self._due: list[tuple[int, int]] = []  # of messages; no longer true where theirs is another one
        self._there: list[Any] = []

    def add(self, item: Any, nbytes: int, hops: tuple[Hop, ...], chunk: int | None, after_ns: int) -> None:
        """Send a message; its first link gets it `after_ns` from now."""
        now = self._context.now_ns
        self._advance(now)  # what is on its way was there before
        self._number += 1
        message = self._messages[self._number] = _Message(item, nbytes, hops, chunk)
        time = (now + after_ns) * self._per_ns
        heapq.heappush(self._events, (time, self._number, 0, 0))
        self._expect(self._number, message, time, 0)
        self._advance(now)
        self._predict()

    def _ticks(self, nbytes: int, hop: Hop) -> int:
        return 0 if hop.bytes_per_s is None else nbytes * NS_PER_S * self._per_ns // hop.bytes_per_s

    def _advance(self, now_ns: int) -> None:
        until = now_ns * self._per_ns
        while self._events and self._events[0][0] <= until:
            self._reach(*heapq.heappop(self._events))

    def _reach(self, time: int, number: int, chunk: int, at: int) -> None:
        """A chunk reaches the hop `at` of its message's way, or its end; at the first hop all of them do."""
        message = self._messages[number]
        if at == len(message.hops):
            if chunk == message.last:
                del self._messages[number]
                self._there.append(message.item)
        else:
            hop = message.hops[at]
            begin = max(time, self._free.get(hop.link, 0))
            nbytes = message.size(chunk) if at else message.nbytes
            self._free[hop.link] = sent = begin + self._ticks(nbytes, hop)
            there = sent + hop.latency_ns * self._per_ns
            if at:
                heapq.heappush(self._events, (there, number, chunk, at + 1))
            else:
                message.begin = begin
                self._leave_first(number, message.last if len(message.hops) == 1 else 0)
            if not at or chunk == message.last:
                self._expect(number, message, there, at + 1)
        if at == 1 and chunk < message.last:
            self._leave_first(number, chunk + 1)

    def _leave_first(self, number: int, chunk: int) -> None:
        """Foresee when a chunk reaches the second hop. One at a time: a message may have very many."""
        message = self._messages[number]
        hop = message.hops[0]
        there = message.begin + self._ticks(message.up_to(chunk), hop) + hop.latency_ns * self._per_ns
        heapq.heappush(self._events, (there, number, chunk, 1))

    def _expect(self, number: int, message: _Message, time: int, at: int) -> None:
        """Put down when a message may have arrived, whose last chunk comes to a hop at `time` or later."""
        size = message.size(message.last)
        for hop in message.hops[at:]:
            time += self._ticks(size, hop) + hop.latency_ns * self._per_ns
        message.due = time
        heapq.heappush(self._due, (time, number))

    def _predict(self) -> None:
        due = self._due
        while due and (due[0][1] not in self._messages or self._messages[due[0][1]].due != due[0][0]):
            heapq.heappop(due)
        if self._there:
            self._alarm.by(self._context.now_ns)
        elif due:
            self._alarm.by(-(-due[0][0] // self._per_ns))

    def _ring(self) -> None:
        self._advance(self._context.now_ns)
        there, self._there = self._there, []
        for item in there:
            self._arrived(item)
        self._predict()
