"""Chakra execution traces (.et): the ops of one rank, or of all ranks of a job, with their measured times.

::

    node 216  aten::flatten_dense_tensors  COMP        is_cpu_op, tid 1          318 us
    node 430  CatArrayBatchedCopy...       COMP        GPU, tid 7, data_deps 216   4 us
    node 435  ncclKernel_Broadcast...      COMM_COLL   BROADCAST of 212480 bytes  28 us

* Every node is an op, named after its node and id, pinned to ``cpu`` or ``gpu``, with its measured duration.
* ``data_deps`` are control edges. What they leave out is added (below): the order of streams and threads,
  and what kernels wait for on the GPU. Tensors between kernels are those of their operators.
* A collective's kind is what it does (``all_reduce``, ...); its size is what it reads and writes.
* In a trace from PyTorch (its nodes have ``rf_id`` or ``seq_id``), ``ctrl_deps`` is the call that encloses a
  node, often the node itself: not an order, and many name nodes that do not exist. It becomes the attribute
  ``parent``. In any other trace ``ctrl_deps`` are control edges as well.
* Outside PyTorch the machine times a collective without a duration, and the device's cost model
  times a computation that gives its flop (``num_ops``, with ``tensor_size`` bytes).
* Dependencies on nodes that are not in the file are reported, never dropped silently.

**Ranks** of a job are files whose names end in the rank (``trace.0.et``, ``trace.1.et``), as in ASTRA-sim.
Their collectives meet by process group (``pg_name``), or by stream, as in `rank_groups`. All members end
together, so the member with the shortest recorded time came last and waited for nobody: its time is the
transfer, and the duration of all. A send hands over its message and goes on; the message travels over the
machine's links to the recv that matches in ``comm_src``, ``comm_dst`` and ``comm_tag``, as in ASTRA-sim.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal

from scenarios.importers.chakra_nodes import ChakraNode, arguments, process_groups, read_nodes
from scenarios.importers.files import TRACES, trace_files
from scenarios.importers.kineto import kineto_ranks
from scenarios.importers.kineto.kernel_names import kind_of, short_name
from scenarios.importers.kineto.kineto_ranks import RecordedCall
from scenarios.importers.tensor_flow import TaskFlow, Tensor, Touch, tensor_flow, written_arguments
from sim.base.arrays import group_pairs
from sim.base.errors import GraphError, InputError, in_file
from sim.base.files import StrPath
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph
from sim.graph.walks import Dag, least_first

# ----------------------------------------------------------------------------------------------------------
# What a Chakra trace leaves out: the order on each stream and thread, and waits between them.
#
# Its dependencies say who launched a kernel, not what the kernel had to wait for on the GPU; with them alone
# all collectives run at once (https://github.com/mlcommons/chakra/pull/126, issue 215):
#
#     thread 1    mm ──► all_reduce ──► item ──────────► add     in order; after what is read back
#                 │          │            │               ▲
#     stream 7    └► k0 ─ ─ ┐└──┐         └► copy to host ┘      in order
#     stream 20             └ ─ ┴► nccl                          after what its thread launched before
#
# * **Order** is that of recorded starts if all nodes have one; otherwise of ids, which the PyTorch observer
#   assigns as operators begin. A kernel is ordered by the start of the host op that launched it: the last one
#   that it depends on. No op comes before its dependencies.
# * **A stream or thread** runs its ops in that order.
# * **A collective of PyTorch** waits for the kernel that its thread launched last: its stream waits for an
#   event on the thread's current stream (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ``syncStream``).
# * **A reader of a tensor** waits for the kernel that wrote it, on any stream (`tensor_flow`). Written are an
#   operator's outputs, the arguments that its schema marks as written (``Tensor(a!)``), and the inputs of a
#   collective: this is how the optimizer waits for the gradients' all-reduce, because the trace does not say
#   where the program called ``wait``.
# * **Read-back**: the host's next op waits for a copy to pageable memory, or of ``.item()``. The op
#   that launches the copy was recorded with that wait included. Its own time becomes the median of the
#   trace's launching ops.

_BACK: Final = re.compile(r"(DtoH|DeviceToHost).*Pageable", re.I)
_TO_HOST: Final = re.compile(r"DtoH|DeviceToHost", re.I)
_ITEM: Final = re.compile(r"_local_scalar_dense|aten::item\b")
_COMMUNICATES: Final = frozenset({"collective", "send", "recv"})


_COLLECTIVES: Final = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
"""Types of collective, numbered from 0."""
_RANK: Final = re.compile(r"(\d+)\.(et|chakra)(\.gz)?$")
_OF_PYTORCH: Final = ("rf_id", "seq_id", "op_schema")


def recognises(name: str, head: bytes) -> bool:
    """Whether the file is a Chakra trace, by its name: a protobuf has no signature."""
    return name.endswith(TRACES["chakra"])


def load(path: StrPath | Sequence[StrPath], *, unknown: Literal["warn", "error"] = "warn") -> Graph:
    """Return the graph of a trace, or of those of all ranks of a job.

    Parameters
    ----------
    path : path or list of paths
        One trace, or those of all ranks; a folder stands for the traces in it.
    unknown : {"warn", "error"}
        What to do about dependencies on nodes that are not in the file.

    Returns
    -------
    Graph
        On ``gpu`` and ``cpu``; rank 3 is ``gpu3`` and ``cpu3``, and its ops are named ``rank3/...``.
        Attributes of a GPU's task: ``stream``, ``kernel`` (its full name), ``operator``; of a host's op:
        ``thread``; of both: ``recorded_start_ns`` if the trace has starts, and the node's other attributes.
        Of a collective of ranks: ``communicator`` and ``recorded_ns``, including its waiting time; of a
        host's op that waits: ``recorded_wait_ns``.

    Raises
    ------
    InputError
        There is no trace, ranks do not belong together, or dependencies are on unknown nodes with
        ``unknown="error"``.
    GraphError
        Two nodes have the same id, or there is a cycle.

    Warns
    -----
    UserWarning
        The number of dependencies on unknown nodes, and some of the ids.
    """
    paths, name, one = trace_files(path, "chakra")
    traces = [_Trace(path, None if one else rank, unknown) for rank, path in _ranks(paths, one)]
    if not one:
        _meet(traces)
        _send(traces)
    builder = GraphBuilder(name)
    for trace in traces:
        with in_file(trace.path):
            trace.add_to(builder)
    with in_file(paths[0] if one else name):
        return builder.build()


def _ranks(paths: Sequence[StrPath], one: bool) -> list[tuple[int, StrPath]]:
    """Return the files with their ranks, in order."""
    if one:
        return [(0, paths[0])]
    ranks = []
    for path in paths:
        name = _RANK.search(os.fspath(path))
        if name is None or len(name[1]) > 9:
            raise InputError(f"{path}: does not say which rank it is; its name should end as in trace.3.et")
        ranks.append(int(name[1]))
    return [(rank, paths[file]) for rank, file in kineto_ranks.files_of_ranks(ranks, paths).items()]


class _Trace:
    """The trace of a rank, as ops."""

    def __init__(self, path: StrPath, rank: int | None, unknown: str) -> None:
        self.path, self.rank = path, rank
        self.nodes = nodes = read_nodes(path)
        place = {node.id: i for i, node in enumerate(nodes)}
        if len(place) < len(nodes):
            raise GraphError(f"{path}: {len(nodes) - len(place)} node id(s) are there twice")
        self.pytorch = any(name in node.attributes for node in nodes for name in _OF_PYTORCH)
        _report(path, nodes, place, unknown)
        self.parent = [
            [place[other] for other in node.ctrl_deps if other in place and other != node.id]
            for node in nodes
        ]
        self.needs = [
            [place[other] for other in dict.fromkeys(node.data_deps) if other in place]
            + ([] if self.pytorch else own)
            for node, own in zip(nodes, self.parent, strict=True)
        ]
        prefix, self.number = ("", "") if rank is None else (f"rank{rank}/", str(rank))
        self.names = [
            f"{prefix}{short_name(node.name) if node.name else node.type}#{node.id}" for node in nodes
        ]
        self.communicator: dict[int, tuple[str, int]] = {}
        """Of a collective that met others: its communicator, and the number of its ranks."""
        self.transfer_ns: dict[int, int] = {}
        self.sends: dict[int, list[int]] = {}
        """Send that somebody receives → its bytes."""
        self.arrives: dict[int, list[str]] = {}
        """Recv → its send."""
        self.begin_ns: int | None = None
        """Time 0 on this rank's clock, if the trace has starts."""
        if all(node.start_ns is not None for node in nodes):
            self.begin_ns = min(node.start_ns or 0 for node in nodes)
        self.lanes = [_lane(node) for node in nodes]
        """Device, and stream or thread, of each node; None: unknown."""
        self.launcher: list[int | None] = [
            None if node.on_host else max((d for d in own if nodes[d].on_host), key=self._began, default=None)
            for node, own in zip(nodes, self.needs, strict=True)
        ]
        """Host op that launched each kernel."""

    @cached_property
    def _ranks_of_groups(self) -> dict[str, list[int]]:
        return process_groups(self.nodes)

    def calls(self) -> list[RecordedCall]:
        """Return the collectives of the GPU, in order."""
        ranks, found = self._ranks_of_groups, []
        for i in self.issued:
            node = self.nodes[i]
            if node.on_host or node.type not in _COMMUNICATES:
                continue
            dimensions = node.attributes.get("involved_dim", ())
            name = node.attributes.get("pg_name")
            if name is None and isinstance(dimensions, list) and not all(dimensions):
                raise InputError(
                    f"{self.path}: {self.names[i]!r} involves only some dimensions of a network; which ranks "
                    "these are, only a process group (pg_name) says"
                )
            group = None if name is None else (str(name), str(ranks.get(str(name), "")))
            if not self.message(i):
                end_ns = (node.start_ns or 0) + node.duration_ns
                found.append(RecordedCall(i, _kind(node), self.lanes[i], end_ns, group))
        return found

    def message(self, i: int) -> tuple[int, int, int] | None:
        """Return source, destination and tag of a message, if the trace of a rank has them."""
        node = self.nodes[i]
        ends = {"send": ("comm_src", "comm_dst"), "recv": ("comm_dst", "comm_src")}.get(node.type)
        if self.rank is None or ends is None:
            return None
        own, other = (node.attributes.get(end) for end in ends)
        tag = node.attributes.get("comm_tag", 0)
        if type(other) is not int or type(tag) is not int or own not in (None, self.rank):
            return None
        return (self.rank, other, tag) if node.type == "send" else (other, self.rank, tag)

    # -- order, and dependencies that the trace leaves out ------------------------------------------

    def _began(self, i: int) -> int:
        start_ns = self.nodes[i].start_ns
        return self.nodes[i].id if self.begin_ns is None or start_ns is None else start_ns

    @cached_property
    def issued(self) -> list[int]:
        """The nodes in order, except those that depend on themselves."""
        nodes, launcher = self.nodes, self.launcher

        def key(i: int) -> tuple[int, int, int]:
            launched = launcher[i]
            began = self._began(i if self.begin_ns is not None or launched is None else launched)
            return began, launched is not None, nodes[i].id

        needs = [[*own] for own in self.needs]
        followers: list[list[int]] = [[] for _ in nodes]
        for i, own in enumerate(needs):
            for other in own:
                followers[other].append(i)
        return least_first(Dag(followers, needs), [key(i) for i in range(len(nodes))])

    @cached_property
    def before(self) -> list[list[int]]:
        """Dependencies of each node that the trace leaves out."""
        found: list[list[int]] = [[] for _ in self.nodes]
        if len(self.issued) < len(self.nodes):  # a cycle: no dependencies are added
            return found
        last: dict[Hashable, int] = {}
        computing: dict[Hashable, int] = {}
        awaited: dict[Hashable, list[int]] = defaultdict(list)
        for i in self.issued:
            lane = self.lanes[i]
            if lane is not None:
                found[i] += [last[lane]] if lane in last else []
                last[lane] = i
            launched = self.launcher[i]
            thread = lane if launched is None else self.lanes[launched]
            if self.nodes[i].on_host:
                found[i] += awaited.pop(thread, [])
            elif self.nodes[i].type in _COMMUNICATES:
                if self.pytorch and thread in computing and self.lanes[computing[thread]] != lane:
                    found[i].append(computing[thread])
            elif launched is not None:
                computing[thread] = i
                if self.reads_back(i):
                    awaited[thread].append(i)
        return found

    def reads_back(self, i: int) -> bool:
        """Whether a task is a copy that the host waits for."""
        name, launched = self.nodes[i].name, self.launcher[i]
        if launched is None or not self.pytorch:
            return False
        return bool(_BACK.search(name) or (_TO_HOST.search(name) and _ITEM.search(self.nodes[launched].name)))

    @cached_property
    def flows(self) -> Mapping[int, TaskFlow]:
        """Tensor dependencies between kernels, from their operators; by number of node."""
        if not self.pytorch or len(self.issued) < len(self.nodes):
            return {}
        kernels = [i for i in self.issued if not self.nodes[i].on_host]
        touches = [Touch(self._operator(i), self.nodes[i].reads, self._writes(i)) for i in kernels]
        flows = zip(kernels, tensor_flow(touches), strict=True)
        return {i: flow.renumber(kernels) for i, flow in flows}

    def _writes(self, i: int) -> list[Tensor]:
        """Return the tensors that a task writes: recorded outputs, and those written in place."""
        node, launched = self.nodes[i], self.launcher[i]
        if node.type in _COMMUNICATES and not node.writes:
            return node.reads
        schemas = (self.nodes[k].attributes.get("op_schema", "") for k in (i, launched) if k is not None)
        schema = next((text for text in schemas if text), "")
        if "!)" not in schema:
            return node.writes
        given = arguments(node.values)
        return [*node.writes, *(one for k in written_arguments(schema) if k < len(given) for one in given[k])]

    def _operator(self, i: int) -> Hashable:
        """Return a key for the operator call that launched a task, and its stream."""
        launched = self.launcher[i]
        for node in (i, launched):
            if node is not None and (number := self.nodes[node].attributes.get("rf_id")):
                return "rf", number, self.lanes[i]
        return None if launched is None else ("id", launched, self.lanes[i])

    def _waits(self) -> dict[int, tuple[int, int]]:
        """Return host ops that waited: their own time, and their wait."""
        launching = {launched for launched in self.launcher if launched is not None}
        waiting = {self.launcher[i] for i in range(len(self.nodes)) if self.reads_back(i)}
        own = sorted(self.nodes[i].duration_ns for i in launching - waiting)
        usual = own[len(own) // 2] if own else 0
        recorded = {i: self.nodes[i].duration_ns for i in launching & waiting}
        return {i: (min(usual, ns), max(0, ns - usual)) for i, ns in recorded.items()}

    # -- ops ----------------------------------------------------------------------------------------

    def add_to(self, builder: GraphBuilder) -> None:
        """Add the ops."""
        names, waits = self.names, self._waits()
        for i, node in enumerate(self.nodes):
            flow = self.flows.get(i)
            after = dict.fromkeys([*self.needs[i], *self.before[i], *(flow.after if flow else ())])
            attributes, facts = self._attributes(i), self._facts(i)
            if i in waits:
                facts["duration_ns"], attributes["recorded_wait_ns"] = waits[i]
            builder.op(
                names[i],
                kind=_kind(node),
                inputs=[f"{names[task]}:{k}" for task, k in flow.inputs] if flow else self.arrives.get(i, ()),
                after=[names[other] for other in after],
                outputs=flow.outputs if flow else self.sends.get(i, ()),
                device=f"{'cpu' if node.on_host else 'gpu'}{self.number}",
                attributes=attributes,
                **facts,
            )

    def _facts(self, i: int) -> dict[str, Any]:
        """Return the duration, bytes and cost of an op."""
        node = self.nodes[i]
        duration: int | None = self.transfer_ns.get(i, node.duration_ns)
        read, written = (sum(one.nbytes for one in tensors) for tensors in (node.reads, node.writes))
        members = self.communicator[i][1] if i in self.communicator else 1
        if size := node.amount("comm_size"):
            read, written = size, size * members if _kind(node) == "all_gather" else size
        if not (self.pytorch or node.on_host or duration):
            if node.type == "comp" and (flops := node.amount("num_ops")):
                read = node.amount("tensor_size")
                return {"duration_ns": None, "flops": flops, "bytes_read": read, "bytes_written": 0}
            if node.type == "collective" or (node.type in ("send", "recv") and not self.message(i)):
                duration = None
        return {"duration_ns": duration, "bytes_read": read, "bytes_written": written}

    def _attributes(self, i: int) -> dict[str, Any]:
        """Return the attributes of an op: those of the node, some under other names."""
        node = self.nodes[i]
        found = {k: v for k, v in node.attributes.items() if k not in ("is_cpu_op", "stream", "tid")}
        if self.pytorch and self.parent[i]:
            found["parent"] = self.names[self.parent[i][0]]
        lane, launched = self.lanes[i], self.launcher[i]
        if lane is not None:
            found[lane[0]] = lane[1]
        if not node.on_host:
            found["kernel"] = node.name
            if launched is not None:
                found["operator"] = re.sub(r"\(\d+\)$", "", self.nodes[launched].name)
        elif short_name(node.name) != node.name:
            found["full_name"] = node.name
        if node.start_ns is not None and self.begin_ns is not None:
            found["recorded_start_ns"] = node.start_ns - self.begin_ns
        name = node.attributes.get("pg_name")
        if name is not None and not node.on_host:
            found |= kineto_ranks.process_group(str(name), str(self._ranks_of_groups.get(str(name), "")))
        if i in self.communicator:
            found["communicator"] = self.communicator[i][0]
            if node.duration_ns:
                found["recorded_ns"] = node.duration_ns
        return found


def _lane(node: ChakraNode) -> tuple[str, int] | None:
    """Return the lane of a node; beside a kernel's stream the converter writes the thread of its launch."""
    names = ("tid",) if node.on_host else ("stream", "tid")
    number = next((node.attributes[name] for name in names if name in node.attributes), None)
    return None if not isinstance(number, int) else ("thread" if node.on_host else "stream", number)


def _kind(node: ChakraNode) -> str:
    """Return the op kind of a node: the collective, the kernel's kind, or a host op."""
    comm_type = node.attributes.get("comm_type") if node.type == "collective" else None
    if isinstance(comm_type, int) and 0 <= comm_type < len(_COLLECTIVES):
        return _COLLECTIVES[comm_type]
    if node.on_host:
        return "host"
    return kind_of(node.name) if node.type == "comp" else node.type


def _report(path: StrPath, nodes: list[ChakraNode], place: Mapping[int, int], unknown: str) -> None:
    """Warn, or raise, if dependencies are on nodes that do not exist."""
    for what in ("data_deps", "ctrl_deps"):
        missing = [(node.id, other) for node in nodes for other in getattr(node, what) if other not in place]
        if not missing:
            continue
        some = ", ".join(f"{node} on {other}" for node, other in missing[:4])
        message = (
            f"{path}: {len(missing)} {what} name nodes that are not in the file ({some}"
            f"{', ...' if len(missing) > 4 else ''})"
        )
        if unknown == "error":
            raise InputError(f"{message}; import without them by unknown='warn'")
        warnings.warn(f"{message}; the ops do not wait for them", stacklevel=4)


# -- ranks ----------------------------------------------------------------------------------------


def _meet(traces: Sequence[_Trace]) -> None:
    """Set the meetings of each rank's collectives, and time 0 on its clock."""
    paths = {trace.rank or 0: trace.path for trace in traces}
    calls = {trace.rank or 0: trace.calls() for trace in traces}
    if not any(call for own in calls.values() for call in own):
        return
    groups = kineto_ranks.communicators(calls, paths)
    for name, members in groups.items():
        for met in zip(*members.values(), strict=True):
            together = [traces[rank].nodes[i].duration_ns for rank, i in zip(members, met, strict=True)]
            for rank, i in zip(members, met, strict=True):
                traces[rank].communicator[i] = name, len(members)
                traces[rank].transfer_ns[i] = min(together)
    if all(trace.begin_ns is not None for trace in traces):
        offsets = kineto_ranks.clock_offsets(calls, groups, paths)
        first = min((trace.begin_ns or 0) + offsets[trace.rank or 0] for trace in traces)
        for trace in traces:
            trace.begin_ns = first - offsets[trace.rank or 0]


def _send(traces: Sequence[_Trace]) -> None:
    """Match each recv with its send: the n-th of the same sender, receiver and tag."""
    ends = group_pairs(
        (message, (trace, i))
        for trace in traces
        for i in trace.issued
        if (message := trace.message(i)) is not None
    )
    for (sender, receiver, tag), calls in sorted(ends.items()):
        sent = [(trace, i) for trace, i in calls if trace.nodes[i].type == "send"]
        got = [(trace, i) for trace, i in calls if trace.nodes[i].type == "recv"]
        if len(sent) != len(got):
            raise InputError(
                f"{(sent or got)[0][0].path}: rank {sender} sends {len(sent)} messages with tag {tag} to "
                f"rank {receiver}, which receives {len(got)}"
            )
        for (source, k), (sink, i) in zip(sent, got, strict=True):
            source.sends[k] = [source.nodes[k].amount("comm_size")]
            sink.arrives[i] = [source.names[k]]
