"""Traces of the PyTorch profiler (Kineto .json) and Nsight Systems (.sqlite), of a process or a job's ranks.

Every kernel, copy and fill is an op with its measured duration, pinned to the GPU; every call that
launches one, or waits for the GPU, is an op of the host. Edges are the recorded dependencies::

    cpu thread     launch ──► launch ──► launch ──────────► synchronize      (program order)
                     │          │          │                    ▲
    gpu stream 7     └► kernel ─┼► kernel  └────► kernel ───────┘            (stream order; launches)
                                │     └ ─ ─ ┐
    gpu stream 20               └►  . . . . nccl                             (waits between streams)

Launch latency and gaps between kernels are the device's, and the graph has them as
`Graph.device_facts`, estimated in `overheads`. Idle time that nothing explains is an op ``delay``. See
`kineto_host` for what the host does and waits for, `waits` for what tasks wait for on the GPU, and
`kineto_ranks` for how ranks meet.

A trace written by a simulation states its dependencies itself; `simulated` reads it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from scenarios.importers.files import trace_files
from scenarios.importers.kineto.execution_kernels import KernelNotes, notes_of
from scenarios.importers.kineto.inferred_waits import Waits, waits_of
from scenarios.importers.kineto.kernel_names import dtype_of, kind_of, short_name
from scenarios.importers.kineto.kineto_events import read_events, what_it_is
from scenarios.importers.kineto.kineto_host import APART_NS, STREAM_WAIT, HostOps, Record, Streams
from scenarios.importers.kineto.kineto_ranks import Rank, align_ranks, process_group
from scenarios.importers.kineto.kineto_rows import GpuTask, RecordedTrace
from scenarios.importers.kineto.nsight_systems import MAGIC
from scenarios.importers.kineto.simulated_trace import is_simulated
from scenarios.importers.kineto.simulated_trace import load as load_simulated
from scenarios.importers.kineto.xplane import HEAD
from sim.base.arrays import UNSET, IntArray, most_by
from sim.base.errors import InputError, in_file
from sim.base.files import StrPath
from sim.base.startup import collector_paused
from sim.base.units import format_duration, round_half_up
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph

_Place = tuple[int, int, int, int]
"""Sort key of an op in the graph: time, rank, the host before the GPU, number."""


def recognises(name: str, head: bytes) -> bool:
    """Whether `head` looks like Kineto's (a trace, including what precedes the events), or a list of events.

    Recordings of Nsight Systems (SQLite databases) and of XLA's profiler become the same graphs.
    """
    if head.startswith(MAGIC) or HEAD.match(head):
        return True
    keys = rb'"(traceEvents|deviceProperties|displayTimeUnit)"\s*:'
    return re.search(keys + rb'|\A\s*\[\s*\{[^{}]*"ph"\s*:', head) is not None


@collector_paused(keeps=True)
def load(
    path: StrPath | Sequence[StrPath],
    *,
    host: Literal["calls", "none"] = "calls",
    execution_graph: StrPath | Sequence[StrPath] | None = None,
) -> Graph:
    """Return the graph of a recorded process, or of all ranks of a job.

    Parameters
    ----------
    path : path or list of paths
        One trace, or those of all ranks; a folder stands for the traces in it, and a recording of
        Nsight Systems for all processes in it that use a GPU.
    host : {"calls", "none"}
        Whether the host's calls are ops too; without them there are only the GPU's tasks, for a machine
        whose issuers launch them.
    execution_graph : path or list of paths, optional
        Output of PyTorch's ``ExecutionTraceObserver`` for the same program, one for each trace, in their
        order: then tasks have tensors, shapes, data types, flop and bytes.

    Returns
    -------
    Graph
        Ops in order of their recorded start, on ``gpu`` and ``cpu``; rank 3 is ``gpu3`` and ``cpu3``, and
        its ops are named ``rank3/...``. Attributes of an op: ``recorded_start_ns`` (from the beginning, by
        the clock of the lowest rank); of a task: ``stream``, ``kernel`` (its full name), ``operator``,
        ``grid``, ``block``, ``registers``, ``shared_memory``; of a collective of ranks ``communicator`` and
        ``recorded_ns``, including its waiting time; of a kernel that began before the previous one on its
        stream ended, ``recorded_ns``, including the overlap. Of a host's op that waits:
        ``recorded_wait_ns``; of one that launches: ``call_ns`` (`scenarios.importers.kineto.kineto_host`).

    Raises
    ------
    InputError
        There is no trace, no task of a GPU in one, or ranks do not belong together.

    Warns
    -----
    UserWarning
        Tasks whose launch is not in the trace; they wait only for their streams. Threads that run gradients
        for an unknown thread. Calls whose awaited stream or event is
        ambiguous. Sends and recvs that did not meet, or whose peer is ambiguous. Ranks that share
        no collective.
    """
    paths, name, single = trace_files(path, "kineto")
    if simulated := [file for file in paths if is_simulated(file)]:
        if len(simulated) < len(paths):
            raise InputError(f"{simulated[0]}: was written by a simulation, and not all others were")
        return load_simulated(paths, name, host=host == "calls")
    traces = list[RecordedTrace]()
    files, paths = paths, []
    for file in files:  # a recording of Nsight Systems may have several processes
        recorded = read_events(file, len(traces))
        if not all(trace.tasks for trace in recorded):
            raise InputError(f"{file}: no kernel, copy or fill of a GPU in the trace{what_it_is(file)}")
        traces += recorded
        paths += [file] * len(recorded)
    single = len(traces) == 1 and single
    graphs: list[StrPath] = [] if execution_graph is None else trace_files(execution_graph, "kineto")[0]
    if graphs and len(graphs) != len(paths):
        raise InputError(
            f"{len(paths)} trace(s) and {len(graphs)} execution graph(s): there has to be one for each",
            path=("execution_graph",),
        )
    notes = [notes_of(*files) for files in zip(paths, graphs, traces, strict=False)]
    waits = waits_of(traces)
    ranks = [Rank(None, 0, traces[0])] if single else align_ranks(paths, traces)
    processes = [
        _Process(
            *(paths[rank.file], rank, waits[rank.file], Streams(rank.trace, waits[rank.file].streams)),
            notes[rank.file] if notes else (),
        )
        for rank in ranks
    ]
    _warn_of_doubts(processes, host)
    begin_ns = min(rank.trace.begin_ns for rank in ranks)
    rows = [row for process in processes for row in process.rows(begin_ns, host)]
    rows.sort(key=lambda row: row[0])
    builder = GraphBuilder(name)
    with in_file(paths[0] if single else name):
        for _, record in rows:
            builder.op(**record)
        facts = {gpu: p.facts(number) for p in processes for number, gpu in p.gpus.items()}
        return replace(builder.build(), device_facts=facts)


def _warn_of_doubts(processes: Sequence[_Process], host: str) -> None:
    """Warn, in one line for all ranks, of calls that may have waited for something else than inferred."""
    doubts = [
        (process, call)
        for process in processes
        for call in process.waits.doubts.values()
        if host == "calls" or STREAM_WAIT.match(call.name)
    ]
    if doubts:
        first, call = doubts[0]
        at_ms = (call.start_ns - first.rank.trace.begin_ns) / 1e6
        warnings.warn(
            f"{first.path}: {len(doubts)} call(s) do not say for which stream or event they wait, and "
            f"several fit (the first is {call.name} at {at_ms:.3f} ms); the likeliest is assumed, so "
            "what-ifs may be off. To know: torch.profiler.profile(..., experimental_config="
            "torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))",
            stacklevel=5,
        )


@dataclass(frozen=True)
class _Process:
    """One recorded process, as ops."""

    path: StrPath
    rank: Rank
    waits: Waits
    streams: Streams
    notes: Sequence[KernelNotes] = ()
    """What an execution graph adds to each task."""

    @cached_property
    def overheads(self) -> Overheads:
        """Overheads of its GPUs."""
        of_gpu = self.rank.trace.kind == "gpu"
        return overheads(self.rank.trace, self.streams) if of_gpu else Overheads()

    @cached_property
    def gpus(self) -> dict[int, str]:
        """Names of its GPUs, by number."""
        numbers = sorted({task.device for task in self.rank.trace.tasks})
        kind = self.rank.trace.kind
        return {n: f"{kind}{n}" if len(numbers) > 1 else f"{kind}{self._number}" for n in numbers}

    def facts(self, number: int) -> dict[str, str]:
        """Return the facts about a GPU, as keys of a device."""
        if self.rank.trace.kind == "cpu":  # its tasks ran on threads
            return {}
        name = self.rank.trace.gpus.get(number)
        return self.overheads.describe() | ({"description": name} if name else {})

    def _lane(self, task: GpuTask) -> dict[str, Any]:
        """Return the stream or thread on which a task ran."""
        of_cpu = self.rank.trace.kind == "cpu"
        return {"thread": f"thread{task.stream}"} if of_cpu else {"stream": task.stream}

    @property
    def _number(self) -> str:
        return "" if self.rank.number is None else str(self.rank.number)

    def rows(self, begin_ns: int, host: str) -> Iterator[tuple[_Place, Record]]:
        """Yield the ops with their sort keys."""
        trace, rank = self.rank.trace, self.rank.number
        prefix = "" if rank is None else f"rank{rank}/"
        names = [f"{prefix}{short_name(task.name)}.{i}" for i, task in enumerate(trace.tasks)]
        launcher: Mapping[int, str] = {}
        delay_of: Mapping[int, tuple[int, int]] = {}
        if host == "calls":
            latency_ns, cpu = self.overheads.launch_latency.usual_ns, f"cpu{self._number}"
            host_ops = HostOps(trace, names, self.streams, self.waits.host, begin_ns, latency_ns, prefix, cpu)
            yield from (((start, rank or 0, 0, n), op) for n, (start, op) in enumerate(host_ops.ops))
            launcher = host_ops.launcher
            delay_of = delays(trace, self.streams, host_ops.issued_ns, begin_ns, self.overheads)
            launched = trace.kind == "gpu"
            self._warn([task for i, task in enumerate(trace.tasks) if launched and i not in launcher])
        for i, task in enumerate(trace.tasks):
            pin = {"device": self.gpus[task.device]}
            after = [*([launcher[i]] if i in launcher else []), *(names[p] for p in self.streams.before[i])]
            if i in delay_of:
                since_ns, ns = delay_of[i]
                name = f"{prefix}delay.{i}"
                where = {**self._lane(task), "recorded_start_ns": since_ns - begin_ns}
                delay = {"name": name, "kind": "delay", "after": after, "duration_ns": ns}
                yield (since_ns, rank or 0, 1, i), delay | {"attributes": where} | pin
                after = [*after, name]
            op = {"name": names[i], "after": after} | pin | self._op(i, task, begin_ns)
            yield (task.start_ns, rank or 0, 2, i), self.notes[i].added_to(op, names) if self.notes else op

    def _op(self, i: int, task: GpuTask, begin_ns: int) -> Record:
        attributes: dict[str, Any] = {
            **self._lane(task),
            "kernel": task.name,
            "recorded_start_ns": task.start_ns - begin_ns,
        }
        if (module := self.rank.trace.around.get(task.correlation, {}).get("module")) is not None:
            attributes["module"] = module
        if (operator := self.rank.trace.operators[i]) is not None:
            attributes["operator"] = operator
        if task.group is not None and task.communicates:
            attributes |= process_group(*task.group, task.group_size)
        meeting = self.rank.meetings.get(i)
        duration_ns = self._alone_ns.get(i, task.duration_ns)
        if meeting is not None:
            attributes["communicator"] = meeting.communicator
            if meeting.peer != UNSET:
                attributes["peer"] = f"gpu{meeting.peer}"
            duration_ns = meeting.transfer_ns
        if meeting is not None or duration_ns != task.duration_ns:
            attributes["recorded_ns"] = task.duration_ns
        kind = kind_of(task.name, task.collective)
        message = task.message if meeting is None else meeting.message
        facts = dict(task.facts)
        dtype = facts.pop("dtype", None)
        if not (task.communicates or kind in ("copy", "fill")):
            dtype = dtype_of(task.name) or dtype
        return {
            "kind": kind,
            "dtype": dtype,
            "duration_ns": duration_ns,
            "bytes_read": facts.pop("bytes_read", 0) or (task.nbytes if kind == "copy" else message[0]),
            "bytes_written": facts.pop("bytes_written", 0) or task.nbytes or message[1],
            "attributes": {**attributes, **facts},
        }

    @cached_property
    def _alone_ns(self) -> dict[int, int]:
        """Durations, without the overlap, of tasks that began before the previous one on their stream ended.

        With programmatic dependent launch a kernel begins while the previous one still runs, and waits for it
        before it reads its results (CUDA C++ Programming Guide, "Programmatic Dependent Launch and
        Synchronization"); in the simulation it begins after that wait. Less than `OVERLAP_NS` is part of the
        gap, if there is one.
        """
        trace, gap_ns = self.rank.trace, self.overheads.gap.usual_ns
        tasks, others, same_stream = self.streams.edges
        free_ns = most_by(tasks[same_stream], trace.end_ns[others[same_stream]], len(trace.tasks))
        overlapping = np.flatnonzero(free_ns - trace.start_ns > (OVERLAP_NS if gap_ns else 0))
        alone_ns = np.maximum(0, trace.end_ns[overlapping] - free_ns[overlapping] - gap_ns)
        return dict(zip(overlapping.tolist(), alone_ns.tolist(), strict=True))

    def _warn(self, early: Sequence[GpuTask]) -> None:
        """Warn of ambiguous threads, and of tasks without a launch, there twice, or before their launch."""
        trace, messages = self.rank.trace, []
        if trace.uncalled:
            messages.append(
                f"{len(trace.uncalled)} thread(s) run gradients, and it is not clear who waits for each; "
                "the time that the caller of backward waits for them counts as its own work"
            )
        if trace.in_turn:
            messages.append(
                f"two threads look as if they took turns; {trace.in_turn} wait(s) of one for the other "
                "are inferred, as no operators tell who waits for whom"
            )
        if early:
            messages.append(
                f"{len(early)} of {len(trace.tasks)} GPU tasks have no launch in the trace (the first is "
                f"{early[0].name[:60]!r}); they wait only for their streams"
            )
        if n := len(trace.tasks) - len({task[:5] for task in trace.tasks}):
            messages.append(
                f"{n} of {len(trace.tasks)} GPU tasks are there twice; each runs as often as it is there"
            )
        called_ns = {call.correlation: call.start_ns for call in trace.calls}
        ahead_ns = [called_ns.get(task.correlation, 0) - task.start_ns for task in trace.tasks]
        if n := sum(ns > APART_NS for ns in ahead_ns):
            messages.append(
                f"{n} of {len(trace.tasks)} GPU tasks begin before the call that launches them, by up to "
                f"{format_duration(max(ahead_ns))}: the clocks or units of host and GPU differ, and when "
                "tasks were launched is not known"
            )
        for message in messages:
            warnings.warn(f"{self.path}: {message}", stacklevel=3)


# ----------------------------------------------------------------------------------------------------------
# The overheads of a GPU between two tasks, estimated from a recording; further idle time is a delay.
#
# ::
#
#     host       [launch b][launch c]                                  [launch d]
#     stream 7   [ a                      ]  [ b         ]  [ c ]                  [ d ]
#                                          gap            gap           launch latency
#
# A task starts a little after its launch, the previous task on its stream and the events that its stream
# waits for allow it. The overhead is visible where one of the three came long after the others: b and c were
# launched long before, so theirs is the *gap*; d found an idle stream, and has the *launch latency*; after a
# task of another stream it is the *event hop*. The usual value is the mean of samples up to three
# medians, so that all usual ones together keep their length; a negative gap, in a CUDA graph,
# counts with its sign.
#
# A task that starts later was held by something that the trace does not show (a kernel that the profiler left
# out, SMs that another kernel had, a launch before the trace): this time becomes a delay.

_CAUSES: Final = ("launch_latency", "gap", "event_hop")
_NEVER: Final = -(2**61)
"""In a column of times: it did not happen."""
_MAX_OVERHEAD_NS: Final = 20_000
"""Maximum overhead of any GPU; longer times are not overhead."""
OVERLAP_NS: Final = 1_000
"""Maximum overlap: in a CUDA graph a kernel may begin before the last blocks of the previous one end."""
_CERTAIN_NS: Final = 10_000
"""A cause that came this much later than all others counts as the only one."""


class Usual(NamedTuple):
    """An overhead: its usual time, and its maximum when nothing else is in the way."""

    usual_ns: int = 0
    most_ns: int = 0


class Overheads(NamedTuple):
    """Overheads of a GPU; the names are those of a device's keys."""

    gap: Usual = Usual()
    event_hop: Usual = Usual()
    launch_latency: Usual = Usual()

    def describe(self) -> dict[str, str]:
        """Return them as keys of a device.

        Examples
        --------
        >>> Overheads(gap=Usual(1200, 3000)).describe()
        {'gap': '1200ns', 'event_hop': '0ns', 'launch_latency': '0ns'}
        """
        return {name: f"{usual.usual_ns}ns" for name, usual in zip(self._fields, self, strict=True)}


def overheads(trace: RecordedTrace, streams: Streams) -> Overheads:
    """Return the overheads of the GPUs of a process."""
    ends = {call.correlation: call.end_ns for call in trace.calls}
    launches = trace.correlation.tolist()
    causes = _causes(trace, streams, [ends.get(launch, _NEVER) for launch in launches])
    *_, second_ns, last_ns = np.sort(causes, axis=0)
    late_ns, cause = trace.start_ns - last_ns, np.argmax(causes, axis=0)
    launched = np.flatnonzero(last_ns != _NEVER)
    _, first_tasks = np.unique(trace.correlation[launched], return_index=True)
    visible = (causes[1:] != _NEVER).any(axis=0)  # in a CUDA graph only the first task shows a latency
    visible[launched[first_tasks]] = True
    visible &= (last_ns - second_ns >= _CERTAIN_NS) & (late_ns <= _MAX_OVERHEAD_NS)
    visible &= late_ns >= np.where(cause == _CAUSES.index("gap"), -OVERLAP_NS, 0)
    samples = {name: late_ns[visible & (cause == n)].tolist() for n, name in enumerate(_CAUSES)}
    samples["event_hop"] = samples["event_hop"] or samples["gap"]
    return Overheads(**{name: _usual(late) for name, late in samples.items()})


def delays(
    trace: RecordedTrace, streams: Streams, issued_ns: Mapping[int, int], begin_ns: int, usual: Overheads
) -> dict[int, tuple[int, int]]:
    """Return, by task, begin and length of delays: tasks held by something not in the trace.

    Parameters
    ----------
    trace : RecordedTrace
    streams : Streams
        What tasks wait for on the GPU.
    issued_ns : mapping
        Task → the end of its launch; other tasks were launched before the trace.
    begin_ns : int
        Earliest start of the first task.
    usual : Overheads
        Overheads of the GPU, which apply again after the delay.
    """
    n = len(trace.tasks)
    causes = _causes(trace, streams, [issued_ns.get(i, _NEVER) for i in range(n)])
    since_ns, jitter_ns = np.full(n, begin_ns), np.zeros(n, np.int64)
    for name, came_ns in zip(_CAUSES, causes, strict=True):
        usual_ns, most_ns = getattr(usual, name)
        later = came_ns + usual_ns >= since_ns
        since_ns[later], jitter_ns[later] = came_ns[later] + usual_ns, most_ns - usual_ns
    late_ns = trace.start_ns - since_ns
    delayed = np.flatnonzero(late_ns > np.maximum(jitter_ns, usual.gap.usual_ns))
    lasts_ns = late_ns[delayed] - usual.gap.usual_ns
    spans = zip(since_ns[delayed].tolist(), lasts_ns.tolist(), strict=True)
    return dict(zip(delayed.tolist(), spans, strict=True))


def _causes(trace: RecordedTrace, streams: Streams, issued_ns: Sequence[int]) -> IntArray:
    """Return the time at which each of `_CAUSES` allowed each task to start; `_NEVER` if it did not apply."""
    tasks, others, same_stream = streams.edges
    causes = np.full((len(_CAUSES), len(trace.tasks)), _NEVER)
    causes[0] = issued_ns
    for row, mask in zip(causes[1:], (same_stream, ~same_stream), strict=True):
        row[tasks[mask]] = 0
        np.maximum.at(row, tasks[mask], trace.end_ns[others[mask]])
    return causes


def _usual(samples: Sequence[int]) -> Usual:
    late = sorted(ns for ns in samples if ns >= 0)
    if not late:
        return Usual()
    limit_ns = 3 * late[(len(late) - 1) // 2]  # the lower median of an even number, because outliers are long
    typical = [ns for ns in samples if ns <= limit_ns]
    return Usual(max(0, round_half_up(sum(typical) / len(typical))), limit_ns)
