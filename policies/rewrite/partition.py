"""Partition: one graph per device, with a Send and a Recv wherever an edge leaves a device.

::

    cpu0:  a ──► send ═╗                    one pair per (tensor, destination), shared by all users there
    gpu0:              ╚═► recv ──► b
                              └───► c

    cpu0:  a ╌╌► const ──► send ═╗          a control edge carries a dummy constant
    gpu0:                        ╚═► recv ──► identity ╌╌► b

    a loop on two devices: the device without the loop's condition gets its own control nodes and learns in
    each iteration whether there is another:

    cpu0:  ... loop_cond ──► send ═╗
                                   ╚═► recv ─┐
    gpu0:  const ─► enter ─► merge ─────────► switch ──true──► next_iteration ─┐
                               ▲ ╎╌╌► every recv of the iteration              │
                               └───────────────────────────────────────────────┘

A pair's attribute ``key`` is ``source;destination;tensor``; at run time frame and iteration are appended, so
that iterations do not mix. With ``rendezvous: true`` no edge leads from Send to Recv, since TensorFlow's
graphs of different devices share none: the two meet by key at run time (`sim.readiness.rendezvous`). Then
every device of a loop gets control nodes, because its Recvs have to know that an iteration has begun.

The simulator inserts transfers itself, so a graph need not be partitioned to be simulated. The explicit form
takes the same time over the same links unless Sends and Recvs, which take no time themselves, wait for a
thread or a stream. It is slower if they do, and where the implicit form sends less: control edges between
devices cost nothing there, and a loop's condition is sent only to switches that read it.

Source: tensorflow/core/graph/graph_partition.cc.
"""

from __future__ import annotations

from typing import Any, Final

from policies.rewrite.records import Edge, OpEntry, Records, frames_given, read, write
from sim import Graph, Policy
from sim.base.errors import InputError
from sim.graph.frames import FrameStructure, frame_structure, has_control_flow

_BACK_EDGE: Final = "next_iteration"


class Partition:
    """Insert Sends and Recvs.

    Every op has to be pinned to a device; in a scenario, ``compile: [partition]`` does that first, using the
    scenario's placement.

    Parameters
    ----------
    rendezvous : bool, optional
        Whether Recvs find their Sends by key at run time; otherwise an edge joins them. By default an edge;
        in a scenario, by key for a policy whose Recvs ask in turn (TensorFlow's).

    Raises
    ------
    InputError
        If an op has no device (when applied).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two users")
    >>> _ = b.op("a", outputs=8, device="cpu0")
    >>> _ = b.op("b", inputs=["a"], device="gpu0"), b.op("c", inputs=["a"], device="gpu0")
    >>> Partition().apply(b.build()).op_names
    ('a', 'a/to_gpu0/send', 'a/to_gpu0/recv', 'b', 'c')
    """

    placed: Final = True
    """Whether the rewrite reads the placement."""

    def __init__(self, rendezvous: bool | None = None) -> None:
        self.rendezvous = rendezvous

    def under(self, policy: Policy) -> Partition:
        """Return this rewrite with the default of `rendezvous` for a policy."""
        return self if self.rendezvous is not None else Partition(policy.asks_in_turn)

    def apply(self, graph: Graph) -> Graph:
        """Return all devices' graphs as one, in which only edges from Send to Recv leave a device."""
        records = read(graph)
        for name, record in records.ops.items():
            if record.device is None:
                message = f"op {name!r} is pinned to no device; place the graph, then partition it"
                raise InputError(message).about(name)
        structure = frame_structure(graph) if has_control_flow(graph) else None
        # As TensorFlow lowers loops, enters and next_iterations are on the device of the merge they feed:
        # a loop closes on one device. Otherwise a Recv would ask in every iteration for a tensor that an
        # enter sends once, or a dead tensor would have no receiver.
        for merge in (record for record in records.ops.values() if record.kind == "merge"):
            for producer in records.makers(merge.inputs):
                if producer.kind in ("enter", _BACK_EDGE):
                    producer.device = merge.device
        frames = [0] * len(graph) if structure is None else frames_given(graph, structure)
        cut = _Cut(records, dict(zip(graph.op_names, frames, strict=True)), bool(self.rendezvous))
        if structure is not None:
            cut.loops(graph, structure)
        for record in list(records.ops.values()):
            cut.edges(record)
        return write(cut.result())


class _Cut:
    """Cuts edges; each new op precedes the first op that needs it."""

    def __init__(self, records: Records, frames: dict[str, int], by_key: bool) -> None:
        self.records, self.frames, self.by_key = records, frames, by_key
        self.before: dict[str, list[OpEntry]] = {name: [] for name in records.ops}
        self.received: dict[tuple[str, str], str] = {}
        self.controlled: dict[tuple[str, str], str] = {}
        self.starts: dict[tuple[int, str], str] = {}
        """(frame, device) → merge that starts an iteration there, for a loop whose condition is elsewhere."""

    def result(self) -> Records:
        """Return all ops, old and new."""
        ops = self.records.ops
        self.records.make_all(record for name in ops for record in (*self.before[name], ops[name]))
        return self.records

    def edges(self, record: OpEntry) -> None:
        """Make `record` read and follow only ops on its own device."""
        for k, (tensor, distance) in enumerate(record.inputs):
            producer = self.records.producer(tensor)
            if producer is not None and producer.device != record.device:
                record.inputs[k] = (self._receive(tensor, producer, record), distance)
        for k, (name, distance) in enumerate(record.after):
            if self.records.ops[name].device != record.device:
                record.after[k] = (self._follow(self.records.ops[name], record), distance)

    def _receive(self, tensor: str, producer: OpEntry, user: OpEntry) -> str:
        """Return the copy of `tensor` on the device of `user`, shared by all its users there."""
        key = (tensor, str(user.device))
        if key not in self.received:
            frame = self.frames[producer.name]
            self.received[key] = self._pair(tensor, self.records.nbytes(tensor), producer, frame, user)
        return self.received[key]

    def _follow(self, first: OpEntry, then: OpEntry) -> str:
        """Return an op on the device of `then` that comes after `first`."""
        key = (first.name, str(then.device))
        if key not in self.controlled:
            frame = self.frames[first.name]
            name = f"{first.name}/to_{then.device}/control"
            dummy = self._add(then, name, "const", first.device, after=[(first.name, 0)])
            recv = self._pair(dummy, 0, first, frame, then)
            self.controlled[key] = self._add(
                then, f"{first.name}/to_{then.device}/done", "identity", then.device, inputs=[(recv, 0)]
            )
        return self.controlled[key]

    def _pair(self, tensor: str, nbytes: int, producer: OpEntry, frame: int, user: OpEntry) -> str:
        source, target = str(producer.device), str(user.device)
        base = f"{tensor}/to_{target}"
        facts: dict[str, Any] = {"outputs": (nbytes,), "attributes": {"key": f"{source};{target};{tensor}"}}
        send = self._add(user, f"{base}/send", "send", source, inputs=[(tensor, 0)], **facts)
        start = self.starts.get((frame, target))
        after = [] if start is None else [(start, 0)]
        inputs = [] if self.by_key else [(send, 0)]
        return self._add(user, f"{base}/recv", "recv", target, inputs=inputs, after=after, **facts)

    def _add(self, user: OpEntry, name: str, kind: str, device: str | None, **facts: Any) -> str:
        """Add an op that takes no time before `user`, by default with one output and nothing else."""
        nothing: dict[str, Any] = {"inputs": [], "after": [], "outputs": (0,)}
        record = OpEntry(name, kind, **(nothing | facts), duration_ns=0, device=device)
        self.before[user.name].append(record)
        return name

    # -- loops over several devices --------------------------------------------------------------

    def loops(self, graph: Graph, structure: FrameStructure) -> None:
        """Add control nodes to every device with ops of a loop but not its condition.

        By key, the condition's device gets them too, as does a device with ops only in an inner loop.
        """
        ops_in: list[list[OpEntry]] = [[] for _ in structure.parent]
        deeper: list[list[OpEntry]] = [[] for _ in structure.parent]
        for op, name in enumerate(graph.op_names):
            frame = structure.frame_of[op]
            ops_in[frame].append(self.records.ops[name])
            while self.by_key and (frame := structure.parent[frame]) > 0:
                deeper[frame].append(self.records.ops[name])
        for frame in range(1, len(structure.parent)):
            condition = next((record for record in ops_in[frame] if record.kind == "loop_cond"), None)
            if condition is None and not self.by_key:
                continue  # a call, which has its own frame
            first_enter = next(op for op, child in structure.child_of.items() if child == frame)
            enter = self.records.ops[graph.op_names[first_enter]]
            ops = [*ops_in[frame], *deeper[frame]]
            for device in dict.fromkeys(str(record.device) for record in ops):
                if self.by_key or condition is None or device != condition.device:
                    first = next(record for record in ops if record.device == device)
                    outer = self._outer_start(structure.parent[frame], ops_in, first, enter)
                    self._control_loop(frame, condition, enter, first, outer)

    def _outer_start(
        self, parent: int, ops_in: list[list[OpEntry]], first: OpEntry, enter: OpEntry
    ) -> list[Edge]:
        """Return the start of a loop's control nodes: none outside all loops, else the outer iteration."""
        if parent == 0:
            return []
        start = self.starts.get((parent, str(first.device)))
        if start is not None:
            return [(start, 0)]
        # The outer condition is on this device. A merge begins an outer iteration; values entering the inner
        # loop may be dead in the last one.
        merges = (record for record in ops_in[parent] if record.kind == "merge")
        producer = self.records.producer(enter.inputs[0][0])
        begins = next(
            (m for m in merges if any(p.kind == _BACK_EDGE for p in self.records.makers(m.inputs))), producer
        )
        assert begins is not None
        same_device = begins.device == first.device
        return [(begins.name if same_device else self._follow(begins, first), 0)]

    def _control_loop(
        self, frame: int, condition: OpEntry | None, opened: OpEntry, first: OpEntry, outer: list[Edge]
    ) -> None:
        """Add the control nodes of the loop that `opened` enters to the device of its op `first`."""
        attributes = {k: v for k, v in opened.attributes.items() if k in ("frame", "parallel_iterations")}
        device = str(first.device)
        base = f"{attributes['frame']}/on_{device}"
        const = self._add(first, f"{base}/const", "const", device, after=outer)
        inputs = [(const, 0)]
        enter = self._add(first, f"{base}/enter", "enter", device, inputs=inputs, attributes=attributes)
        if condition is None:  # entered once
            self.starts[frame, device] = enter
            return
        merge = self._add(first, f"{base}/merge", "merge", device, inputs=[(enter, 0), (f"{base}/next", 1)])
        self.starts[frame, device] = merge
        same_device = condition.device == device
        goes_on = condition.name if same_device else self._receive(condition.name, condition, first)
        inputs = [(merge, 0), (goes_on, 0)]
        switch = self._add(first, f"{base}/switch", "switch", device, inputs=inputs, outputs=(0, 0))
        self._add(first, f"{base}/next", _BACK_EDGE, device, inputs=[(f"{switch}:1", 0)])
