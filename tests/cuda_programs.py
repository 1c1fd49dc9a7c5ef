"""Programs of CUDA calls, run by the rules of CUDA, and the trace that a profiler writes of such a run.

A program is a list of steps of one host thread. All times are whole µs. Unless a GPU has latencies and gaps,
nothing of a run is the device's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

CALL, TAIL = 4, 3
"""What a call takes itself, and what is left of one that waited."""


class Host(NamedTuple):
    """How long calls take: any call, one that launches, and what is left of one that waited."""

    call: int = CALL
    launch: int = CALL
    tail: int = TAIL


class Gpu(NamedTuple):
    """What a GPU takes from a launch, from the task before on its stream, and from one of another stream."""

    latency: int = 0
    gap: int = 0
    hop: int = 0


Step = tuple[Any, ...]
"""``("work", µs)``, ``("launch", stream)``, ``("item", stream)`` (a copy to pageable memory),
``("record", event, stream)``, ``("wait", stream, event)``, ``("sync stream", stream)``, ``("sync event",
event)``, ``("sync device",)``, ``("collective", stream)``, ``("graph", µs, steps)`` (launches, records and
waits that take the host so long together), ``("sync many", [stream or event (a tuple), ...])``."""


@dataclass
class Run:
    """What happened: the events of a trace, and when each task started and ended."""

    events: list[dict[str, Any]] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    host_end: int = 0
    collectives: list[int] = field(default_factory=list)
    """The tasks that are collectives."""


def host(name: str, correlation: int, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    """Return a call."""
    args = {"correlation": correlation, "External id": correlation}
    return _slice("cuda_runtime", name, ts, dur, 9, tid, args)


def gpu(name: str, correlation: int, ts: float, dur: float, stream: int = 7, device: int = 0,
        category: str = "kernel", **more: Any) -> dict[str, Any]:  # fmt: skip
    """Return a task."""
    args = {"correlation": correlation, "stream": stream, "device": device, "External id": correlation}
    return _slice(category, name, ts, dur, 0, stream, args | more)


def operator(name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    """Return an operator of the framework."""
    return _slice("cpu_op", name, ts, dur, 9, tid, args)


def sync(name: str, correlation: int, stream: int, **args: Any) -> dict[str, Any]:
    """Return what the profiler notes about a wait."""
    known = {"stream": stream, "correlation": correlation, "device": 0}
    return _slice("cuda_sync", name, 0, 0, 0, stream, known | args)


def _slice(
    category: str, name: str, ts: float, dur: float, pid: int, tid: int, args: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def _flat(program: Sequence[Step]) -> Iterator[tuple[Step, bool]]:
    """Yield steps one by one, and whether each is in a graph, whose cost comes before them as work."""
    for step in program:
        if step[0] != "graph":
            yield step, False
            continue
        yield ("work", step[1]), False
        yield from ((inner, True) for inner in step[2])


def ran(
    program: Sequence[Step],
    durations: Sequence[int],
    *,
    clock: int = 0,
    ends: Sequence[int] = (),
    begin: int = 0,
    costs: Host = Host(),  # noqa: B008
    takes: Gpu = Gpu(),  # noqa: B008
) -> Run:
    """Run a program.

    Parameters
    ----------
    program, durations
        Of each task in turn; of a collective the end counts that `ends` says.
    clock : int
        What the clock of the trace shows at time 0.
    ends : sequence of int
        When each collective ends.
    begin : int
        When the host begins.
    costs : Host
        What its calls take.
    takes : Gpu
        What the GPU takes itself.
    """
    run, now, correlation = Run(), begin, 0
    # Of each stream, when all that it was told to do, or to wait for, ends: by the stream where that runs.
    told: dict[int, dict[int, int]] = {}
    recorded: dict[int, tuple[int, int, dict[int, int]]] = {}  # of each event: correlation, stream, the same
    for (kind, *where), in_graph in _flat(program):
        if kind == "work":
            now += where[0]
            continue
        if kind in ("wait", "sync event") and where[-1] not in recorded:
            continue  # CUDA does nothing
        correlation += 1
        called = now
        launches = kind in ("launch", "item", "collective")
        now += 0 if in_graph else costs.launch if launches else costs.call
        if launches:
            (stream,) = where
            task = len(run.start)
            before = told.get(stream, {}).items()
            ready = (end + (takes.gap if other == stream else takes.hop) for other, end in before)
            run.start.append(max(now + takes.latency, *ready, 0))
            run.end.append(run.start[task] + durations[task])
            name, category = "kernel", "kernel"
            if kind == "collective":
                run.end[task] = max(run.start[task], ends[len(run.collectives)])
                run.collectives.append(task)
                name = "ncclKernel_AllReduce_RING_LL_Sum_float"
            if kind == "item":
                name, category = "Memcpy DtoH (Device -> Pageable)", "gpu_memcpy"
                now = run.end[task] + costs.tail
            told[stream] = {stream: run.end[task]}
            length = run.end[task] - run.start[task]
            at = clock + run.start[task]
            run.events.append(gpu(name, correlation, at, length, stream, category=category))
            name = "cudaMemcpyAsync" if kind == "item" else "cudaLaunchKernel"
        elif kind == "record":
            event, stream = where
            recorded[event] = correlation, stream, dict(told.get(stream, {}))
            name = "cudaEventRecord"
        elif kind == "wait":
            stream, event = where
            name = "cudaStreamWaitEvent"
            since, other, reached = recorded[event]
            mine = told.setdefault(stream, {})
            mine |= {s: max(end, mine.get(s, 0)) for s, end in reached.items()}
            noted = {"wait_on_stream": other, "wait_on_cuda_event_record_corr_id": since}
            run.events.append(sync("Stream Wait Event", correlation, stream, **noted))
        else:
            if kind == "sync stream":
                until, name = _through(told.get(where[0])), "cudaStreamSynchronize"
                run.events.append(sync("Stream Sync", correlation, where[0]))
            elif kind == "sync event":
                since, other, reached = recorded[where[0]]
                until = _through(reached)
                name = "cudaEventSynchronize"
                noted = {"wait_on_stream": other, "wait_on_cuda_event_record_corr_id": since}
                run.events.append(sync("Event Sync", correlation, -1, **noted))
            elif kind == "sync many":
                each = [
                    _through(recorded.get(one, (0, 0, None))[2] if isinstance(one, tuple) else told.get(one))
                    for one in where[0]
                ]
                until, name = max(each, default=0), "cudaStreamSynchronize"
            else:
                until, name = max(map(_through, told.values()), default=0), "cudaDeviceSynchronize"
            now = max(called, until) + costs.tail
        run.events.append(host(name, correlation, clock + called, now - called))
    run.host_end = now
    return run


def _through(told: Mapping[int, int] | None) -> int:
    """Return when all that a stream was told has ended."""
    return max((told or {}).values(), default=0)


BLOCKING_COPY = (
    host("cudaLaunchKernel", 1, 0, 5),
    gpu("a", 1, 5, 1000),
    host("cudaMemcpy", 2, 10, 1010),
    gpu("Memcpy DtoH (Device -> Pinned)", 2, 1005, 10, category="gpu_memcpy"),
    host("cudaLaunchKernel", 3, 1030, 5),
    gpu("b", 3, 1035, 1000),
)
"""1 ms of kernel, a copy to the host, 1 ms of kernel."""
