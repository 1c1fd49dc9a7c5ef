"""The plan of a run: which issuer puts which task where, in which order, and the event waits between them.

::

    host        a        b        c        d            order of issue, per issuer
                │        │        │        │
    stream 0    a ───────┼──────► c                     order on the stream
                └record  │        ▲
    stream 1             b ──wait─┘└record     d        c waits for b's event; on its own stream it
                                                        needs no event: order is enough

A plan does not depend on internal numbering: ops, devices, streams and issuers go by name, so
that the same plan can be followed by a policy (`policies.issue.replay`), executed on real threads
and streams (`validation.real`), written to a file and compared by its hash. A wait implied by an earlier one
on the same stream is left out, as a good runtime would. It has no times, except for tasks that wait on
purpose: to leave a resource to a more urgent op, or to run together with another one, which saves energy.

Only numpy is imported here, because the machine that measures real kernels has nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from sim.base.arrays import LATEST_NS, UNSET, BoolArray, Csr, IntArray, by_first_use
from sim.base.errors import InputError
from sim.base.files import loads_once
from sim.base.options import whole_numbers
from sim.base.units import format_count

if TYPE_CHECKING:
    from sim.graph.graph import Graph
    from sim.record.record import Record


SCHEMA: Final = "sim.plan/1"


class PlannedTask(NamedTuple):
    """One task of a plan.

    Attributes
    ----------
    op : str
    iteration : int
    device, stream, issuer : str
        Where it runs and what issues it; for the task of a CPU worker all but the device name the
        worker.
    waits : tuple of int
        Tasks of other streams (numbers in the plan) that must have ended before it starts.
    records : bool
        Whether some task waits for it.
    not_before_ns : int
        Time before which its issuer does not take it, though it could; 0: it never waits on purpose.
    """

    op: str
    iteration: int
    device: str
    stream: str
    issuer: str
    waits: tuple[int, ...]
    records: bool
    not_before_ns: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Tasks in the order in which they are issued; numbers are positions in that order.

    Attributes
    ----------
    graph : str
        Name of the graph.
    ops, streams, issuers : tuple of str
        Names, in order of first use.
    devices : tuple of str
        Device of each stream.
    op, iteration, stream, issuer : arrays of int64, one entry per task
        Indices into the names, and the iteration.
    waits : Csr
        task → tasks of other streams that must have ended before it starts, all of them issued
        before it; ascending.
    not_before_ns : array of int64, optional
        One entry per task; None: no task waits on purpose.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("fork")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=10)
    >>> machine = Machine((Device("cpu0", "cpu", workers=2),))
    >>> plan = simulate(b.build(), machine, ReadyQueue()).plan()
    >>> for task in plan:
    ...     print(task.op, task.stream, task.waits, task.records)
    a cpu0/w0 () True
    b cpu0/w0 () False
    c cpu0/w1 (0,) False
    >>> Plan.from_json(plan.to_json()).digest == plan.digest
    True
    """

    graph: str
    ops: tuple[str, ...]
    streams: tuple[str, ...]
    devices: tuple[str, ...]
    issuers: tuple[str, ...]
    op: IntArray
    iteration: IntArray
    stream: IntArray
    issuer: IntArray
    waits: Csr
    not_before_ns: IntArray | None = None

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.op)

    def __repr__(self) -> str:
        """Return the sizes and the beginning of the hash."""
        tasks, streams = format_count(len(self), "task"), format_count(len(self.streams), "stream")
        waits = format_count(len(self.waits.indices), "wait")
        return f"<Plan of {self.graph!r}: {tasks} on {streams}, {waits}, {self.digest[:12]}>"

    def __getitem__(self, k: int) -> PlannedTask:
        """Return task number `k`."""
        stream = int(self.stream[k])
        return PlannedTask(
            self.ops[int(self.op[k])],
            int(self.iteration[k]),
            self.devices[stream],
            self.streams[stream],
            self.issuers[int(self.issuer[k])],
            tuple(self.waits.row(k).tolist()),
            bool(self.records[k]),
            0 if self.not_before_ns is None else int(self.not_before_ns[k]),
        )

    def __iter__(self) -> Iterator[PlannedTask]:
        """Yield the tasks in issue order."""
        return map(self.__getitem__, range(len(self)))

    @cached_property
    def records(self) -> BoolArray:
        """Whether each task is waited for by another, so that its event has to be recorded."""
        records = np.zeros(len(self), dtype=bool)
        records[self.waits.indices] = True
        return records

    # -- files --------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the plan as JSON; equal plans give equal text."""
        tasks = {name: getattr(self, name).tolist() for name in _COLUMNS}
        if self.not_before_ns is not None:
            tasks["not_before_ns"] = self.not_before_ns.tolist()
        content = {
            "schema": SCHEMA,
            "graph": self.graph,
            **{name: getattr(self, name) for name in _NAMES},
            "tasks": tasks,
            "waits": {"task": self.waits.rows().tolist(), "for": self.waits.indices.tolist()},
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the plan's JSON, in hexadecimal: equal for equal plans, on any machine."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from the output of `to_json`.

        Raises
        ------
        InputError
            The text is not JSON or not a plan, or a task waits for itself or for one issued later.
        """
        try:
            content = loads_once(text)
        except json.JSONDecodeError as error:
            raise InputError(f"a plan is JSON: line {error.lineno}: {error.msg}") from None
        except (ValueError, RecursionError) as error:  # thousands of digits, or of levels
            raise InputError(f"a plan is JSON: {error}") from None
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise InputError(f'a plan has "schema": "{SCHEMA}"; this has none or another')
        try:
            return _read_content(content)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the plan lacks something or has it in the wrong form: {error!r}") from None


_NAMES: Final = ("ops", "streams", "devices", "issuers")
_COLUMNS: Final = ("op", "iteration", "stream", "issuer")


def _read_content(content: Mapping[str, Any]) -> Plan:
    ops, streams, devices, issuers = (tuple(map(str, content[noun])) for noun in _NAMES)
    columns = {name: np.array(content["tasks"][name], np.int64) for name in _COLUMNS}
    op, stream, issuer = columns["op"], columns["stream"], columns["issuer"]
    if "not_before_ns" in content["tasks"]:
        not_before, source = content["tasks"]["not_before_ns"], "not_before_ns of the plan"
        columns["not_before_ns"] = whole_numbers(not_before, source, len(op), below=LATEST_NS)
    task, event = (np.array(content["waits"][end], np.int64) for end in ("task", "for"))
    for column, names, noun in ((op, ops, "op"), (stream, streams, "stream"), (issuer, issuers, "issuer")):
        if len(column) != len(op) or bool(((column < 0) | (column >= len(names))).any()):
            raise InputError(f"the plan names {format_count(len(names), noun)}, and its tasks others")
    if len(devices) != len(streams) or len(columns["iteration"]) != len(op) or len(task) != len(event):
        raise InputError("the columns of the plan have different lengths")
    wrong = (task < 0) | (task >= len(op)) | (event < 0) | (event >= task)
    if wrong.any():
        k = int(wrong.argmax())
        raise InputError(f"task {task[k]} of the plan waits for {event[k]}, which is not issued before it")
    waits = _rows(task, event, len(op))
    return Plan(content["graph"], ops, streams, devices, issuers, **columns, waits=waits)


def check_planned(graph: Graph) -> None:
    """Raise if a graph cannot have a plan.

    Raises
    ------
    InputError
        The graph has control flow, which decides during the run which ops run.
    """
    from sim.graph.frames import has_control_flow

    if has_control_flow(graph):
        raise InputError(
            f"graph {graph.name!r} has control flow: what runs is decided during the run, "
            "and a plan cannot say it beforehand"
        )


def plan_of(trace: Record, *, timed: bool = False) -> Plan:
    """Return the plan that a run followed.

    Parameters
    ----------
    trace : Trace
        The trace of a graph without control flow.
    timed : bool
        Whether a task that was held back, as at the head of a line, waits until the time when it was taken.

    Raises
    ------
    InputError
        The graph has control flow, which decides during the run which ops run; or an op ran on no
        stream.
    """
    from sim.job.costs import issue_costs_ns
    from sim.record.dependencies import dependencies, waited_for

    job, tasks = trace.job, trace.tasks
    check_planned(job.graph)
    if trace.failed:
        raise InputError("an op failed, so that others never ran; a plan says of every op when it runs")
    if trace.alone.any():
        name = job.graph.op_names[int(tasks["op"][trace.alone.argmax()])]
        raise InputError(
            f"op {name!r} ran asynchronously, on no stream; a plan says of every op on which it runs"
        )
    n = len(trace)
    # Rows have producers before their consumers. But at one instant, a launch that had to be paid for was
    # issued before the free launches of its issuer.
    is_paid = (job.launched & (issue_costs_ns(job) > 0))[tasks["op"]]
    in_order = np.lexsort((np.arange(n), ~is_paid, tasks["issue_ns"]))
    edges = waited_for(trace, dependencies(trace))
    # Number in the plan of each row; a transfer has that of the task whose output it carries.
    number = np.full(n + len(trace.transfers["id"]), UNSET)
    number[in_order] = np.arange(n)
    sent = edges.consumer >= n
    number[edges.consumer[sent]] = number[edges.producer[sent]]
    producer, consumer = number[edges.producer[~sent]], number[edges.consumer[~sent]]
    produced = producer != UNSET

    op, ops, _ = by_first_use(tasks["op"][in_order])
    stream, streams, _ = by_first_use(tasks["stream"][in_order])
    issuer, issuers, _ = by_first_use(tasks["issuer"][in_order])
    issuer_names = [entry.name for entry in job.machine.issuers()]
    device = np.searchsorted(np.array(job.machine.first_stream), streams, side="right") - 1
    return Plan(
        graph=job.graph.name,
        ops=tuple(job.graph.op_names[k] for k in ops.tolist()),
        streams=tuple(job.machine.stream_name(s) for s in streams.tolist()),
        devices=tuple(job.machine.devices[d].name for d in device.tolist()),
        issuers=tuple(issuer_names[i] for i in issuers.tolist()),
        op=op,
        iteration=tasks["iteration"][in_order],
        stream=stream,
        issuer=issuer,
        waits=_needed_waits(producer[produced], consumer[produced], stream),
        not_before_ns=_deliberate_waits(trace, timed, in_order),
    )


def _deliberate_waits(trace: Record, timed: bool, in_order: IntArray) -> IntArray | None:
    """Return the time until which each task waited on purpose, 0 for those that did not; None: none did."""
    from sim.job.costs import issue_costs_ns

    tasks, job = trace.tasks, trace.job
    if timed:
        until_ns = tasks["issue_ns"] - np.where(job.launched, issue_costs_ns(job), 0)[tasks["op"]]
    elif trace.not_before_ns is not None:
        until_ns = trace.not_before_ns[tasks["iteration"] * len(job.graph) + tasks["op"]]
    else:
        return None
    waited = np.where(until_ns > tasks["ready_ns"], until_ns, 0)[in_order]
    return waited if waited.any() else None


def _needed_waits(producer: IntArray, consumer: IntArray, stream: IntArray) -> Csr:
    """Reduce "every consumer waits for its producers" to the waits that streams do not imply."""
    other = stream[producer] != stream[consumer]
    producer, consumer = producer[other], consumer[other]
    # 1. Of several producers on one stream keep the last: a stream ends its tasks in order.
    order = np.lexsort((producer, stream[producer], consumer))
    producer, consumer = producer[order], consumer[order]
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (consumer[1:] != consumer[:-1]) | (stream[producer[1:]] != stream[producer[:-1]])
    producer, consumer = producer[last], consumer[last]
    # 2. Drop waits for a task that an earlier task on the consumer's stream already waited for, or passed.
    order = np.lexsort((consumer, stream[producer], stream[consumer]))
    producer, consumer = producer[order], consumer[order]
    pair = stream[consumer] * (int(stream.max(initial=0)) + 1) + stream[producer]
    reached = np.maximum.accumulate(producer + pair * len(stream)) if len(producer) else producer
    new = np.ones(len(producer), dtype=bool)
    new[1:] = (pair[1:] != pair[:-1]) | (reached[1:] > reached[:-1])
    return _rows(consumer[new], producer[new], len(stream))


def _rows(task: IntArray, event: IntArray, n: int) -> Csr:
    order = np.lexsort((event, task))
    return Csr.group(task[order], event[order], n)
