"""PyTorch profiler traces (Kineto .json): host calls and GPU tasks of a process, or of all ranks of a job.

Every kernel, copy and fill is an op with its measured duration, pinned to the GPU; every call that
launches one, or waits for the GPU, is an op of the host. Edges say what had to come first::

    cpu thread     launch ──► launch ──► launch ──────────► synchronize      (program order)
                     │          │          │                    ▲
    gpu stream 7     └► kernel ─┼► kernel  └────► kernel ───────┘            (stream order; launches)
                                │     └ ─ ─ ┐
    gpu stream 20               └►  . . . . nccl                             (waits between streams)

Launch latency and gaps between kernels are the device's, and the graph says what they were
(`Graph.device_facts`, estimated in `overheads`). Idle time that nothing explains is an op ``delay``. What
the host does and waits for is in `kineto_host`, what tasks wait for on the GPU in `kineto_waits`, how ranks
meet in `kineto_ranks`.

A trace that a simulation wrote in these words says itself what came before what; `simulated` reads it.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any, Literal, NamedTuple

import numpy as np

from scenarios.importers.execution_graph.kernels import Told
from scenarios.importers.files import StrPath, all_files, choice, fixed_batch, in_file, job_name, stem
from scenarios.importers.traces.host_ops import HostOps, host_ops, no_host
from scenarios.importers.traces.kernel_names import kind_of, short_name
from scenarios.importers.traces.kineto_host import host_steps
from scenarios.importers.traces.kineto_ranks import Rank, together
from scenarios.importers.traces.kineto_tensors import told_of
from scenarios.importers.traces.kineto_waits import Streams, event_waits
from scenarios.importers.traces.overheads import NO_DELAYS, Overheads, delays, overheads
from scenarios.importers.traces.rank_groups import process_group
from scenarios.importers.traces.simulated.load import is_simulated
from scenarios.importers.traces.simulated.load import load as load_simulated
from scenarios.importers.traces.trace_events.kineto_events import read_events
from scenarios.importers.traces.trace_events.kineto_rows import GpuTask
from scenarios.importers.traces.trace_events.other_traces import what_it_is
from sim.graph.builder import GraphBuilder
from sim.graph.csr import Csr
from sim.graph.graph import Graph
from sim.words.arrays import UNSET, Codes, IntArray
from sim.words.collector import collector_paused
from sim.words.errors import InputError

__all__ = ["load", "recognises"]


def recognises(name: str, head: bytes) -> bool:
    """Whether `head` looks like Kineto's (a trace, what it writes before the events), or a list of events."""
    keys = rb'"(traceEvents|deviceProperties|displayTimeUnit)"\s*:'
    return re.search(keys + rb'|\A\s*\[\s*\{[^{}]*"ph"\s*:', head) is not None


def load(
    path: StrPath | Sequence[StrPath],
    *,
    batch: int | None = None,
    host: Literal["calls", "none"] = "calls",
    execution_graph: StrPath | Sequence[StrPath] | None = None,
) -> Graph:
    """Return the graph of a recorded process, or of all ranks of a job.

    Parameters
    ----------
    path : path or list of paths
        Of one trace, or of those of all ranks; a folder stands for the traces in it.
    batch : int, optional
        Not possible: the times were measured at one batch size.
    host : {"calls", "none"}
        Whether the host's calls are ops too; without them only the GPU's tasks are there, for a machine
        whose issuers launch them.
    execution_graph : path or list of paths, optional
        What PyTorch's ``ExecutionTraceObserver`` recorded of the same program, one for each trace, in their
        order: then tasks have tensors, shapes, data types, flop and bytes.

    Returns
    -------
    Graph
        Ops in order of their recorded start, on ``gpu`` and ``cpu``; rank 3 is ``gpu3`` and ``cpu3``, and
        its ops are called ``rank3/...``. Attributes of an op: ``recorded_start_ns`` (from the beginning, by
        the clock of the lowest rank); of a task: ``stream``, ``kernel`` (its full name), ``operator``,
        ``grid``, ``block``, ``registers``, ``shared_memory``; of a collective of ranks ``communicator`` and
        ``recorded_ns``, with the time that it waited. Of a host's op that waits: ``recorded_wait_ns``; of one
        that launches: ``call_ns`` (`scenarios.importers.traces.kineto_host`).

    Raises
    ------
    InputError
        No trace, a trace without any task of a GPU, ranks that do not belong together, or `batch` given.

    Warns
    -----
    UserWarning
        Tasks whose launch is not in the trace; they wait only for their streams. Threads that run gradients
        of which nobody knows who waits for them. Kernels of ranks that communicate in pairs; they do not
        meet.
    """
    one = isinstance(path, str | os.PathLike) and not os.path.isdir(path)
    paths = all_files(path, "kineto")
    fixed_batch(paths[0], batch, "its times were measured at one batch size")
    choice("host", host, ("calls", "none"))
    with collector_paused():
        return _load(paths, path, one, host, execution_graph)


def _load(
    paths: Sequence[StrPath],
    path: StrPath | Sequence[StrPath],
    one: bool,
    host: str,
    execution_graph: StrPath | Sequence[StrPath] | None,
) -> Graph:
    """Return the graph of one process, or of several together."""
    name = stem(paths[0], ".json") if one else job_name(path)
    if simulated := [each for each in paths if is_simulated(each)]:
        if len(simulated) < len(paths):
            raise InputError(f"{simulated[0]}: was written by a simulation, and not all others were")
        return load_simulated(paths, name, host=host == "calls")
    traces = [read_events(each) for each in paths]
    for each, trace in zip(paths, traces, strict=True):
        if not trace.tasks:
            raise InputError(f"{each}: no kernel, copy or fill of a GPU in the trace{what_it_is(each)}")
    graphs: list[StrPath] = [] if execution_graph is None else all_files(execution_graph, "kineto")
    if graphs and len(graphs) != len(paths):
        raise InputError(
            f"{len(paths)} trace(s) and {len(graphs)} execution graph(s): there has to be one for each",
            path=("execution_graph",),
        )
    known = [told_of(*each) for each in zip(paths, graphs, traces, strict=False)]
    waits = event_waits(traces)
    ranks = [Rank(None, 0, traces[0])] if one else together(paths, traces)
    processes = [
        _Process(
            *(paths[rank.file], rank, Streams(rank.trace, waits[rank.file])),
            known[rank.file] if known else (),
        )
        for rank in ranks
    ]
    begin_ns = min(rank.trace.begin_ns for rank in ranks)
    parts = [process.ops(begin_ns, host) for process in processes]
    facts = {gpu: each.overheads.described() for each in processes for gpu in each.gpus.values()}
    with in_file(paths[0] if one else name):
        return replace(_graph(name, parts), device_facts=facts)


class _Row(NamedTuple):
    """An op, but for what it follows."""

    name: str
    kind: str
    device: str
    start_ns: int
    duration_ns: int
    attributes: dict[str, Any]
    bytes_read: int = UNSET
    bytes_written: int = UNSET
    flops: int = 0
    dtype: str | None = None
    outputs: Sequence[int] = (0,)


class _Ops(NamedTuple):
    """The ops of a process, those of one time in order, and what each follows and reads.

    Attributes
    ----------
    rows : list of _Row
    after, inputs : Csr
        Row → rows that it follows, and those of which it reads a tensor.
    outputs : array
        Which of their tensors these are.
    """

    rows: list[_Row]
    after: Csr
    inputs: Csr
    outputs: IntArray


def _graph(name: str, processes: Sequence[_Ops]) -> Graph:
    """Return the graph of all ops, in order of time, then of ranks."""
    rows = [row for ops in processes for row in ops.rows]
    order = np.argsort([row.start_ns for row in rows], kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    columns: Any = _Row(*zip(*(rows[i] for i in order.tolist()), strict=True))  # type: ignore[arg-type]
    after = Csr.joined([ops.after for ops in processes]).take(order)
    made = Csr.of_rows(columns.outputs)
    read = Csr.joined([ops.inputs for ops in processes])
    output = read._replace(indices=np.concatenate([ops.outputs for ops in processes])).take(order).indices
    read = read.take(order)
    builder = GraphBuilder(name)
    builder.extend(
        columns.name,
        kind=_coded(columns.kind),
        inputs=read._replace(indices=made.indptr[place[read.indices]] + output),
        outputs=made,
        duration_ns=np.array(columns.duration_ns),
        device=_coded(columns.device),
        after=after._replace(indices=place[after.indices]),
        dtype=_coded(columns.dtype),
        flops=np.array(columns.flops),
        bytes_read=np.array(columns.bytes_read),
        bytes_written=np.array(columns.bytes_written),
        attributes=dict(enumerate(columns.attributes)),
    )
    return builder.build()


def _coded(words: Sequence[str | None]) -> tuple[list[str], IntArray]:
    """Return the different words, and which of them each is; `UNSET` for None."""
    codes = Codes[str]()
    numbers = np.array([UNSET if word is None else codes[word] for word in words], np.int64)
    return [*codes], numbers


@dataclass(frozen=True)
class _Process:
    """One recorded process, as ops."""

    path: StrPath
    rank: Rank
    streams: Streams
    told: Sequence[Told] = ()
    """What an execution graph tells of each task."""

    @cached_property
    def overheads(self) -> Overheads:
        """What its GPUs take themselves."""
        return overheads(self.rank.trace, self.streams)

    @cached_property
    def gpus(self) -> dict[int, str]:
        """What its GPUs are called, by their numbers."""
        numbers = sorted({task.device for task in self.rank.trace.tasks})
        return {n: f"gpu{n}" if len(numbers) > 1 else f"gpu{self._number}" for n in numbers}

    @property
    def _number(self) -> str:
        return "" if self.rank.number is None else str(self.rank.number)

    def ops(self, begin_ns: int, host: str) -> _Ops:
        """Return its ops: those of the host, delays of tasks, and tasks."""
        trace, rank = self.rank.trace, self.rank.number
        prefix = "" if rank is None else f"rank{rank}/"
        own, held = no_host(len(trace.tasks)), NO_DELAYS
        if host == "calls":
            steps = host_steps(trace, self.streams, self.overheads.launch_latency.usual_ns)
            own = host_ops(trace, steps, begin_ns, prefix)
            held = delays(trace, self.streams, own.issued_ns, begin_ns, self.overheads)
            self._warn_of_gradients(trace.uncalled)
            self._warn_of_early(np.flatnonzero(own.launcher == UNSET).tolist())
        cpu = repeat(f"cpu{self._number}")
        times = own.start_ns.tolist(), own.duration_ns.tolist()
        rows = [*map(_Row, own.names, own.kinds, cpu, *times, own.attributes)]
        for i, since_ns, ns in zip(*(column.tolist() for column in held), strict=True):
            task = trace.tasks[i]
            where = {"stream": task.stream, "recorded_start_ns": since_ns - begin_ns}
            rows.append(_Row(f"{prefix}delay.{i}", "delay", self.gpus[task.device], since_ns, ns, where))
        for i, task in enumerate(trace.tasks):
            row = self._row(i, task, f"{prefix}{short_name(task.name)}.{i}", begin_ns)
            rows.append(_with_told(row, self.told[i]) if self.told else row)
        read = [*repeat((), len(rows) - len(self.told)), *(one.flow.inputs for one in self.told)]
        first = len(rows) - len(trace.tasks)
        inputs = Csr.of_rows([[first + task for task, _ in row] for row in read])
        outputs = np.array([output for row in read for _, output in row], np.int64)
        return _Ops(rows, self._after(own, held.task), inputs, outputs)

    def _after(self, own: HostOps, held: IntArray) -> Csr:
        """Return what each op follows: of a delay what its task follows, and of the task the delay, too."""
        before, n_host = self.streams.before, len(own.names)
        first = n_host + len(held)
        delay = np.full(first + len(own.launcher), UNSET)
        delay[first + held] = n_host + np.arange(len(held))
        launched, mine = np.flatnonzero(own.launcher != UNSET), np.flatnonzero(own.before != UNSET)
        edges = (
            (mine, own.before[mine]),
            (own.awaited[0], first + own.awaited[1]),
            (first + launched, own.launcher[launched]),
            (first + before.rows(), first + before.indices),
        )
        op, other = np.concatenate(edges, axis=1)
        is_held = delay[op] != UNSET
        op = np.concatenate((op, delay[op[is_held]], first + held))
        after = Csr.group(op, np.concatenate((other, other[is_held], delay[first + held])), len(delay))
        if not self.told:
            return after
        rows = after.lists()
        for i, one in enumerate(self.told, start=first):
            rows[i] = [*dict.fromkeys([*rows[i], *(first + n for n in one.flow.after)])]
        return Csr.of_rows(rows)

    def _row(self, i: int, task: GpuTask, name: str, begin_ns: int) -> _Row:
        attributes: dict[str, Any] = {
            "stream": task.stream,
            "kernel": task.name,
            "recorded_start_ns": task.start_ns - begin_ns,
        }
        if (operator := self.rank.trace.operators[i]) is not None:
            attributes["operator"] = operator
        if task.group is not None and task.communicates:
            attributes |= process_group(*task.group, task.group_size)
        meeting, duration_ns = self.rank.meetings.get(i), task.duration_ns
        if meeting is not None:
            attributes |= {"communicator": meeting.communicator, "recorded_ns": duration_ns}
            duration_ns = meeting.transfer_ns
        kind = kind_of(task.name)
        message = task.message if meeting is None else meeting.message
        nbytes = task.nbytes if kind == "copy" else message[0], task.nbytes or message[1]
        attributes |= task.facts
        return _Row(name, kind, self.gpus[task.device], task.start_ns, duration_ns, attributes, *nbytes)

    def _warn_of_gradients(self, threads: int) -> None:
        if threads:
            warnings.warn(
                f"{self.path}: {threads} thread(s) run gradients, and it is not clear who waits for each; "
                "the time that the caller of backward waits for them counts as its own work",
                stacklevel=3,
            )

    def _warn_of_early(self, missing: Sequence[int]) -> None:
        if missing:
            first = self.rank.trace.tasks[missing[0]].name
            warnings.warn(
                f"{self.path}: {len(missing)} of {len(self.rank.trace.tasks)} GPU tasks were launched before "
                f"the trace begins (the first is {first[:60]!r}); they wait only for their streams",
                stacklevel=3,
            )


def _with_told(row: _Row, one: Told) -> _Row:
    """Return an op with what is told of it; a copy keeps its own bytes."""
    facts = {} if row.kind in ("copy", "fill") else one.facts
    return row._replace(**facts, outputs=one.flow.outputs or (0,), attributes=row.attributes | one.attributes)
