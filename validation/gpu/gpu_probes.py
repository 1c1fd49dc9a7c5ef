"""Costs of a CUDA device besides kernels: launch queue, copies, allocator and events, calls of the host.

Every probe runs something small and returns samples without interpreting them. To measure the device
alone, a spin gates the stream, so that the host is far ahead when the clock starts::

    stream   [ spin ]─start─ what is measured ─end─        host: launch, launch, launch ......... wait

Host times of calls are measured behind a spin that outlasts all of them, so that the device does not hold
the host up.

Needs torch and numpy; `torch` is an argument, because tests pass another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from sim.base.errors import RunError
from validation.gpu.torch_memory import idle_streams
from validation.gpu.torch_work import captured
from validation.real.clock import now_ns, quiet_interpreter

CALLS: Final = 64
"""Calls in a row between two readings of the clock: few compared with a launch queue of about 1,000."""

_COPY_BYTES: Final = 4096

GATE_CYCLES: Final = 400_000
"""About 200 us: longer than the few launches behind it take."""

_QUEUE_GATE_CYCLES: Final = 200_000_000
"""About 100 ms: longer than `most` launches take, so that the queue fills first if it can be filled."""

_BLOCKED_NS: Final = 1_000_000
"""A launch that takes this long, and ends when the gate opens, has waited for a place in the queue."""


class Depth(NamedTuple):
    """Number of launches that fit in the queue.

    Attributes
    ----------
    launches : int
        Launches behind the spin and an event, before the host was held up.
    held_up : bool
        False: the host never was, and `launches` is only a lower bound.
    """

    launches: int
    held_up: bool


def sampled(n: int, once: Callable[[], Mapping[str, float]]) -> dict[str, list[float]]:
    """Return `n` samples of everything that `once` measures, after two that are discarded."""
    rows = [once() for _ in range(n + 2)][2:]
    return {name: [row[name] for row in rows] for name in rows[0]}


def timed(
    torch: Any,
    launch: Callable[[], Any],
    *,
    gate_cycles: int = GATE_CYCLES,
    before: Callable[[], Any] = lambda: None,
) -> tuple[Any, Any]:
    """Return events around what `launch` puts on the current stream, behind a spin and what `before` does."""
    start, end = timers(torch)
    torch.cuda.synchronize()
    if gate_cycles:
        torch.cuda._sleep(gate_cycles)
    before()
    start.record()
    launch()
    end.record()
    torch.cuda.synchronize()
    return start, end


def timed_ns(torch: Any, launch: Callable[[], Any], *, gate_cycles: int = GATE_CYCLES) -> int:
    """Return how long the current stream is busy with the work that `launch` puts on it."""
    return elapsed_ns(*timed(torch, launch, gate_cycles=gate_cycles))


def host_ns(call: Callable[[], Any]) -> int:
    """Return how long a call takes the host."""
    begin = now_ns()
    call()
    return now_ns() - begin


def timers(torch: Any) -> tuple[Any, Any]:
    """Return two events that measure the time between them."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def elapsed_ns(start: Any, end: Any) -> int:
    """Return the time between two events, converted from torch's ms."""
    return int(np.floor(start.elapsed_time(end) * 1e6 + 0.5))


def queue_depth(torch: Any, most: int = 4096) -> Depth:
    """Launch behind a spin until the host is held up, at most `most` times.

    Raises
    ------
    RunError
        The spin ended before either happened.
    """
    torch.cuda.synchronize()
    opened = torch.cuda.Event()
    with quiet_interpreter():
        torch.cuda._sleep(_QUEUE_GATE_CYCLES)
        opened.record()
        for launched in range(most):
            took_ns = host_ns(lambda: torch.cuda._sleep(1))
            if opened.query():
                torch.cuda.synchronize()
                if took_ns < _BLOCKED_NS:
                    raise RunError(f"the spin ended after {launched} launches, and the queue was not full")
                return Depth(launched, True)
    torch.cuda.synchronize()
    return Depth(most, False)


def buffers(torch: Any, direction: str, nbytes: int, *, pinned: bool) -> tuple[Any, Any]:
    """Return source and target of a copy: random bytes, and their destination.

    Parameters
    ----------
    direction : str
        ``"h2d"``, ``"d2h"`` or ``"d2d"``.
    """
    source, target = (end == "d" for end in (direction[0], direction[2]))
    made = []
    for on_device, random in ((source, True), (target, False)):
        place = {"device": "cuda"} if on_device else {"pin_memory": pinned}
        buffer = torch.empty(nbytes, dtype=torch.uint8, **place)
        made.append(buffer.random_() if random else buffer.fill_(0))  # touched, so that its pages exist
    return made[0], made[1]


def copy_ns(torch: Any, direction: str, nbytes: int, n: int, *, pinned: bool = True) -> list[float]:
    """Return samples of how long a copy takes, between events.

    A copy of pageable memory passes through the driver's own pinned buffers and holds the host up, so nothing
    gates it.
    """
    source, target = buffers(torch, direction, nbytes, pinned=pinned)
    gate = GATE_CYCLES if pinned or direction == "d2d" else 0

    def copy() -> None:
        target.copy_(source, non_blocking=True)

    return sampled(n, lambda: {"copy": timed_ns(torch, copy, gate_cycles=gate)})["copy"]


def duplex_ns(torch: Any, nbytes: int, n: int) -> dict[str, list[float]]:
    """Return samples of pinned copies to the device, from it, and of both at once on two streams."""
    pairs = [buffers(torch, direction, nbytes, pinned=True) for direction in ("h2d", "d2h")]
    streams = [torch.cuda.Stream() for _ in pairs]

    def launch(chosen: Sequence[int]) -> None:
        gate = torch.cuda.current_stream()
        begun = torch.cuda.Event()
        begun.record(gate)
        for k in chosen:
            streams[k].wait_event(begun)
            with torch.cuda.stream(streams[k]):
                pairs[k][1].copy_(pairs[k][0], non_blocking=True)
            over = torch.cuda.Event()
            over.record(streams[k])
            gate.wait_event(over)

    ways = {"h2d": [0], "d2h": [1], "both": [0, 1]}
    return sampled(n, lambda: {way: timed_ns(torch, partial(launch, ways[way])) for way in ways})


def allocation_ns(torch: Any, nbytes: int, n: int) -> dict[str, list[float]]:
    """Return samples of the host's time to allocate from the device, to allocate from the cache, and to
    release the segment to the device.
    """  # fmt: skip
    [stream] = idle_streams(torch, 1)

    def take() -> None:  # and release it
        with torch.cuda.stream(stream):
            torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def once() -> dict[str, float]:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return {"fresh": host_ns(take), "reuse": host_ns(take), "release": host_ns(torch.cuda.empty_cache)}

    with quiet_interpreter():
        return sampled(n, once)


def kernel_ns(torch: Any, launch: Callable[[], Any], context: str, n: int) -> list[float]:
    """Return samples of how long a kernel takes in a context.

    Parameters
    ----------
    torch : module
    launch : callable
        Launches it on the current stream.
    context : str
        ``"warm"``: after itself. ``"cold"``: after a write over twice the L2 cache, which leaves nothing of
        its inputs there. ``"neighbours busy"``: beside products that keep another stream busy all the while.
    n : int

    Raises
    ------
    RunError
        The neighbours were not busy all the time.
    """
    before: Callable[[], Any] = launch
    busy = _Neighbours(torch) if context == "neighbours busy" else None
    if busy is not None:
        before = busy.begin
    elif context == "cold":
        before = partial(_flush(torch).fill_, 1)

    def once() -> dict[str, float]:
        start, end = timed(torch, launch, gate_cycles=2 * GATE_CYCLES, before=before)
        if busy is not None:
            busy.check(start, end)
        return {"kernel": elapsed_ns(start, end)}

    return sampled(n, once)["kernel"]


def _flush(torch: Any) -> Any:
    properties = torch.cuda.get_device_properties(0)
    nbytes = 2 * getattr(properties, "L2_cache_size", 64 << 20)
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


class _Neighbours:
    """Products on another stream."""

    _PRODUCTS: Final = 24

    def __init__(self, torch: Any) -> None:
        self.torch, self.stream = torch, torch.cuda.Stream()
        self.a, self.b, self.out = (
            torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3)
        )
        self.first, self.last = timers(torch)

    def begin(self) -> None:
        """Be busy from the current stream's position on, and let that stream spin until then."""
        opened = self.torch.cuda.Event()
        opened.record()
        self.stream.wait_event(opened)
        with self.torch.cuda.stream(self.stream):
            self.first.record(self.stream)
            for _ in range(self._PRODUCTS):
                self.torch.mm(self.a, self.b, out=self.out)
            self.last.record(self.stream)
        self.torch.cuda._sleep(GATE_CYCLES // 4)

    def check(self, start: Any, end: Any) -> None:
        """Raise unless they were busy from `start` to `end`."""
        if self.first.elapsed_time(start) < 0 or end.elapsed_time(self.last) < 0:
            raise RunError("the neighbours were not busy while the kernel ran")


def event_hop_ns(torch: Any, n: int, length: int = 40) -> dict[str, list[float]]:
    """Return the cost of an event recorded and waited for between kernels, within a stream and across two.

    From makespans alone, without measuring events: a chain with the hops less the same chain without, per
    hop. Waiting within a stream, which orders nothing new, is what a careless program does.
    """
    streams = [torch.cuda.Stream() for _ in range(2)]

    def chain(lanes: Sequence[int], *, hops: bool) -> Callable[[], None]:
        def launch() -> None:
            gate = torch.cuda.current_stream()
            reached = torch.cuda.Event()
            reached.record(gate)
            for stream in {lanes[0]: 0, lanes[1]: 0}:
                streams[stream].wait_event(reached)
            for k in range(length):
                stream = streams[lanes[k % 2]]
                if hops and k:
                    stream.wait_event(reached)
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(20_000)
                if hops or k == length - 1:
                    reached = torch.cuda.Event()
                    reached.record(stream)
            gate.wait_event(reached)

        return launch

    def once() -> dict[str, float]:
        plain, within, across = (
            timed_ns(torch, chain(lanes, hops=hops), gate_cycles=10 * GATE_CYCLES)
            for lanes, hops in (((0, 0), False), ((0, 0), True), ((0, 1), True))
        )
        return {"within": (within - plain) / (length - 1), "across": (across - plain) / (length - 1)}

    return sampled(n, once)


def issue_costs_ns(torch: Any, n: int) -> dict[str, list[float]]:
    """Return samples of the host time of one call of each kind.

    Parameters
    ----------
    torch : module
    n : int
        Samples of each kind.

    Returns
    -------
    dict of str to list of float
        ns by kind: ``kernel``, ``copy`` (pinned, to the device), ``graph`` (of one kernel), ``record`` and
        ``wait``.
    """
    source, target = buffers(torch, "h2d", _COPY_BYTES, pinned=True)
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph = captured(torch, lambda: torch.cuda._sleep(1), torch.cuda.graph_pool_handle())
        event.record(stream)
        kinds: dict[str, Callable[[], Any]] = {
            "kernel": lambda: torch.cuda._sleep(1),
            "copy": lambda: target.copy_(source, non_blocking=True),
            "graph": graph.replay,
            "record": lambda: event.record(stream),
            "wait": lambda: stream.wait_event(event),
        }
        return sampled(n, lambda: {kind: _cost_ns(torch, call) for kind, call in kinds.items()})


def _cost_ns(torch: Any, call: Callable[[], Any]) -> float:
    """Return the time of one call, from `CALLS` calls behind a spin."""
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * GATE_CYCLES)
    with quiet_interpreter():
        took_ns = host_ns(lambda: [call() for _ in range(CALLS)])
    torch.cuda.synchronize()
    return took_ns / CALLS
