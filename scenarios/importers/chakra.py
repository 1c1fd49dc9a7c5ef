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
from sim.base.arrays import Csr, group_pairs
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

_PAGEABLE_COPY: Final = re.compile(r"(DtoH|DeviceToHost).*Pageable", re.I)
_TO_HOST: Final = re.compile(r"DtoH|DeviceToHost", re.I)
_ITEM: Final = re.compile(r"_local_scalar_dense|aten::item\b")
_COMMUNICATION: Final = frozenset({"collective", "send", "recv"})


_COLLECTIVES: Final = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
"""Types of collective, numbered from 0."""
_RANK: Final = re.compile(r"(\d+)\.(et|chakra)(\.gz)?$")
_PYTORCH_ATTRIBUTES: Final = ("rf_id", "seq_id", "op_schema")


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
    paths, name, single = trace_files(path, "chakra")
    traces = [_Trace(path, None if single else rank, unknown) for rank, path in _ranks(paths, single)]
    if not single:
        _match_collectives(traces)
        _match_messages(traces)
    builder = GraphBuilder(name)
    for trace in traces:
        with in_file(trace.path):
            trace.add_to(builder)
    with in_file(paths[0] if single else name):
        return builder.build()


def _ranks(paths: Sequence[StrPath], single: bool) -> list[tuple[int, StrPath]]:
    """Return the files with their ranks, in order."""
    if single:
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
        index = {node.id: i for i, node in enumerate(nodes)}
        if len(index) < len(nodes):
            raise GraphError(f"{path}: {len(nodes) - len(index)} node id(s) are there twice")
        self.pytorch = any(name in node.attributes for node in nodes for name in _PYTORCH_ATTRIBUTES)
        _report_missing(path, nodes, index, unknown)
        self.parent = [
            [index[other] for other in node.ctrl_deps if other in index and other != node.id]
            for node in nodes
        ]
        self.needs = [
            [index[other] for other in dict.fromkeys(node.data_deps) if other in index]
            + ([] if self.pytorch else parents)
            for node, parents in zip(nodes, self.parent, strict=True)
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
            None if node.on_host else max((d for d in deps if nodes[d].on_host), key=self._key, default=None)
            for node, deps in zip(nodes, self.needs, strict=True)
        ]
        """Host op that launched each kernel."""

    @cached_property
    def _ranks_of_groups(self) -> dict[str, list[int]]:
        return process_groups(self.nodes)

    def calls(self) -> list[RecordedCall]:
        """Return the collectives of the GPU, in order."""
        ranks, calls = self._ranks_of_groups, []
        for i in self.issued:
            node = self.nodes[i]
            if node.on_host or node.type not in _COMMUNICATION:
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
                calls.append(RecordedCall(i, _kind(node), self.lanes[i], end_ns, group))
        return calls

    def message(self, i: int) -> tuple[int, int, int] | None:
        """Return source, destination and tag of a message, if the trace of a rank has them."""
        node = self.nodes[i]
        ends = {"send": ("comm_src", "comm_dst"), "recv": ("comm_dst", "comm_src")}.get(node.type)
        if self.rank is None or ends is None:
            return None
        own_rank, other_rank = (node.attributes.get(end) for end in ends)
        tag = node.attributes.get("comm_tag", 0)
        if type(other_rank) is not int or type(tag) is not int or own_rank not in (None, self.rank):
            return None
        return (self.rank, other_rank, tag) if node.type == "send" else (other_rank, self.rank, tag)

    # -- order, and dependencies that the trace leaves out ------------------------------------------

    def _key(self, i: int) -> int:
        """Return what orders a node: its recorded start, or its id if the trace has no starts."""
        start_ns = self.nodes[i].start_ns
        return self.nodes[i].id if self.begin_ns is None or start_ns is None else start_ns

    @cached_property
    def issued(self) -> list[int]:
        """The nodes in order, except those that depend on themselves."""
        nodes, launcher = self.nodes, self.launcher

        def key(i: int) -> tuple[int, int, int]:
            host_op = launcher[i]
            start = self._key(i if self.begin_ns is not None or host_op is None else host_op)
            return start, host_op is not None, nodes[i].id

        needs = Csr.of_rows(self.needs)
        followers = Csr.group(needs.indices, needs.rows(), len(nodes)).lists()
        return least_first(Dag(followers, self.needs), [key(i) for i in range(len(nodes))])

    @cached_property
    def before(self) -> list[list[int]]:
        """Dependencies of each node that the trace leaves out."""
        edges: list[list[int]] = [[] for _ in self.nodes]
        if len(self.issued) < len(self.nodes):  # a cycle: no dependencies are added
            return edges
        last: dict[Hashable, int] = {}
        computing: dict[Hashable, int] = {}
        awaited: dict[Hashable, list[int]] = defaultdict(list)
        for i in self.issued:
            lane = self.lanes[i]
            if lane is not None:
                edges[i] += [last[lane]] if lane in last else []
                last[lane] = i
            launcher = self.launcher[i]
            thread = lane if launcher is None else self.lanes[launcher]
            if self.nodes[i].on_host:
                edges[i] += awaited.pop(thread, [])
            elif self.nodes[i].type in _COMMUNICATION:
                if self.pytorch and thread in computing and self.lanes[computing[thread]] != lane:
                    edges[i].append(computing[thread])
            elif launcher is not None:
                computing[thread] = i
                if self.reads_back(i):
                    awaited[thread].append(i)
        return edges

    def reads_back(self, i: int) -> bool:
        """Whether a task is a copy that the host waits for."""
        name, launcher = self.nodes[i].name, self.launcher[i]
        if launcher is None or not self.pytorch:
            return False
        is_item = _TO_HOST.search(name) and _ITEM.search(self.nodes[launcher].name)
        return bool(_PAGEABLE_COPY.search(name) or is_item)

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
        node, launcher = self.nodes[i], self.launcher[i]
        if node.type in _COMMUNICATION and not node.writes:
            return node.reads
        schemas = (self.nodes[k].attributes.get("op_schema", "") for k in (i, launcher) if k is not None)
        schema = next((text for text in schemas if text), "")
        if "!)" not in schema:
            return node.writes
        args = arguments(node.values)
        return [*node.writes, *(t for k in written_arguments(schema) if k < len(args) for t in args[k])]

    def _operator(self, i: int) -> Hashable:
        """Return a key for the operator call that launched a task, and its stream."""
        launcher = self.launcher[i]
        for node in (i, launcher):
            if node is not None and (number := self.nodes[node].attributes.get("rf_id")):
                return "rf", number, self.lanes[i]
        return None if launcher is None else ("id", launcher, self.lanes[i])

    def _waits(self) -> dict[int, tuple[int, int]]:
        """Return host ops that waited: their own time, and their wait."""
        launching = {op for op in self.launcher if op is not None}
        waiting = {self.launcher[i] for i in range(len(self.nodes)) if self.reads_back(i)}
        own_ns = sorted(self.nodes[i].duration_ns for i in launching - waiting)
        usual = own_ns[len(own_ns) // 2] if own_ns else 0
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
        read, written = (sum(tensor.nbytes for tensor in tensors) for tensors in (node.reads, node.writes))
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
        attributes = {k: v for k, v in node.attributes.items() if k not in ("is_cpu_op", "stream", "tid")}
        if self.pytorch and self.parent[i]:
            attributes["parent"] = self.names[self.parent[i][0]]
        lane, launcher = self.lanes[i], self.launcher[i]
        if lane is not None:
            attributes[lane[0]] = lane[1]
        if not node.on_host:
            attributes["kernel"] = node.name
            if launcher is not None:
                attributes["operator"] = re.sub(r"\(\d+\)$", "", self.nodes[launcher].name)
        elif short_name(node.name) != node.name:
            attributes["full_name"] = node.name
        if node.start_ns is not None and self.begin_ns is not None:
            attributes["recorded_start_ns"] = node.start_ns - self.begin_ns
        name = node.attributes.get("pg_name")
        if name is not None and not node.on_host:
            attributes |= kineto_ranks.process_group(str(name), str(self._ranks_of_groups.get(str(name), "")))
        if i in self.communicator:
            attributes["communicator"] = self.communicator[i][0]
            if node.duration_ns:
                attributes["recorded_ns"] = node.duration_ns
        return attributes


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


def _report_missing(path: StrPath, nodes: list[ChakraNode], index: Mapping[int, int], unknown: str) -> None:
    """Warn, or raise, if dependencies are on nodes that do not exist."""
    for key in ("data_deps", "ctrl_deps"):
        missing = [(node.id, other) for node in nodes for other in getattr(node, key) if other not in index]
        if not missing:
            continue
        examples = ", ".join(f"{node} on {other}" for node, other in missing[:4])
        message = (
            f"{path}: {len(missing)} {key} name nodes that are not in the file ({examples}"
            f"{', ...' if len(missing) > 4 else ''})"
        )
        if unknown == "error":
            raise InputError(f"{message}; import without them by unknown='warn'")
        warnings.warn(f"{message}; the ops do not wait for them", stacklevel=4)


# -- ranks ----------------------------------------------------------------------------------------


def _match_collectives(traces: Sequence[_Trace]) -> None:
    """Set the meetings of each rank's collectives, and time 0 on its clock."""
    paths = {trace.rank or 0: trace.path for trace in traces}
    calls = {trace.rank or 0: trace.calls() for trace in traces}
    if not any(call for rank_calls in calls.values() for call in rank_calls):
        return
    groups = kineto_ranks.communicators(calls, paths)
    for name, members in groups.items():
        for indices in zip(*members.values(), strict=True):
            durations = [traces[rank].nodes[i].duration_ns for rank, i in zip(members, indices, strict=True)]
            for rank, i in zip(members, indices, strict=True):
                traces[rank].communicator[i] = name, len(members)
                traces[rank].transfer_ns[i] = min(durations)
    if all(trace.begin_ns is not None for trace in traces):
        offsets = kineto_ranks.clock_offsets(calls, groups, paths)
        first = min((trace.begin_ns or 0) + offsets[trace.rank or 0] for trace in traces)
        for trace in traces:
            trace.begin_ns = first - offsets[trace.rank or 0]


def _match_messages(traces: Sequence[_Trace]) -> None:
    """Match each recv with its send: the n-th of the same sender, receiver and tag."""
    ends = group_pairs(
        (message, (trace, i))
        for trace in traces
        for i in trace.issued
        if (message := trace.message(i)) is not None
    )
    for (sender, receiver, tag), calls in sorted(ends.items()):
        sends = [(trace, i) for trace, i in calls if trace.nodes[i].type == "send"]
        recvs = [(trace, i) for trace, i in calls if trace.nodes[i].type == "recv"]
        if len(sends) != len(recvs):
            raise InputError(
                f"{(sends or recvs)[0][0].path}: rank {sender} sends {len(sends)} messages with tag {tag} to "
                f"rank {receiver}, which receives {len(recvs)}"
            )
        for (source, k), (sink, i) in zip(sends, recvs, strict=True):
            source.sends[k] = [source.nodes[k].amount("comm_size")]
            sink.arrives[i] = [source.names[k]]
