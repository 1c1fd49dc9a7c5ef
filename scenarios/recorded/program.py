"""A recorded program being changed: who launched what, what is on which stream, and removal of ops.

Order is kept when an op is removed: its followers then follow what it followed::

    launch ──► launch ──► launch            launch ──► launch (the host's work before the call, or nothing)
      │          │          │                 │             │
      └► a ────► b ───────► c                 └► a ───────► c
                 └──────► synchronize              └──────► synchronize

Nothing else needs to wait for its launch, which is removed with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from policies.rewrite.records import Edge, OpEntry, read, write
from scenarios.recorded import select as roles
from sim.base.arrays import BoolArray, group_pairs
from sim.graph.graph import Graph, split_output


class RecordedProgram:
    """A graph as records, with the role of each.

    Parameters
    ----------
    graph : Graph

    Attributes
    ----------
    records : Records
    order : list of str
        All ops, each after the ops it waits for.
    tasks : set of str
        Ops that run on a GPU, without unexplained idle time.
    launch_of : dict of str to str
        Task → the op that launches it.
    tasks_of : dict of str to list of str
        The inverse: op → the tasks that it launches.
    threads, lanes : dict of (device, thread or stream) to list of str
        Ops of a host thread, and ops on a stream, in order.
    following : dict of str to str
        Op of a thread → the next op of that thread.
    """

    def __init__(self, graph: Graph) -> None:
        self.records, self._facts = read(graph), graph.device_facts
        names = graph.op_names
        self.order = [names[op] for op in graph.topological_order.tolist()]
        self.tasks = _names_of(graph, roles.tasks(graph))
        launches = _names_of(graph, roles.launches(graph))
        self.launch_of: dict[str, str] = {}
        self.tasks_of: dict[str, list[str]] = {name: [] for name in launches}
        records = self.records.ops.values()
        self.threads, self.lanes = (
            group_pairs(((r.device, r.attributes[key]), r.name) for r in records if key in r.attributes)
            for key in ("thread", "stream")
        )
        self._on_host = _names_of(graph, roles.has_key(graph, "thread"))
        for record in records:
            if "stream" in record.attributes:
                launch = next((name for name, _ in record.after if name in launches), None)
                if launch is None and (before := self.delay_of(record)) is not None:
                    launch = self.launch_of.get(before)  # idle time has the launch of the task behind it
                if launch is not None:
                    self.launch_of[record.name] = launch
                    if record.name in self.tasks:
                        self.tasks_of[launch].append(record.name)
        self.following = {a: b for thread in self.threads.values() for a, b in pairwise(thread)}

    def delay_of(self, record: OpEntry) -> str | None:
        """Return the unexplained idle time before a task, if there is some."""
        ops = self.records.ops
        return next((name for name, _ in record.after if name in ops and ops[name].kind == "delay"), None)

    def graph(self) -> Graph:
        """Return the current graph."""
        return replace(write(self.records), device_facts=self._facts)

    # -- the host --------------------------------------------------------------------------------------

    def call_ns(self, launch: str) -> int:
        """Return how much of a launch op's time is the call itself."""
        record = self.records.ops[launch]
        return int(record.attributes.get("call_ns", record.duration_ns or 0))

    def end_call(self, launch: str) -> None:
        """End a launch call with its op, removing the rest of it from the next op of the thread."""
        if (name := self.following.get(launch)) is not None:
            record = self.records.ops[name]
            rest_ns = int(record.attributes.pop("rest_of_call_ns", 0))
            record.duration_ns = max(0, (record.duration_ns or 0) - rest_ns)

    def wait_of(self, launch: str) -> str | None:
        """Return the wait in the same call as a launch: the host waits for the launched copy."""
        name = self.following.get(launch)
        if name is None:
            return None
        first, second = self.records.ops[launch], self.records.ops[name]
        same = second.kind == "synchronize" and first.attributes.get("call") == second.attributes.get("call")
        return name if same else None

    def forget_inferred(self) -> int:
        """Remove host waits that are only inferred and delayed nothing; return their number."""
        waits = [record for record in self.records.ops.values() if "inferred_wait" in record.attributes]
        for record in waits:
            record.after = self._host_edges(record)
        return len(waits)

    # -- removing ops ------------------------------------------------------------------------------

    def drop(self, names: Iterable[str], *, host_work: bool = True) -> None:
        """Remove tasks, each with the idle time before it, its launch, and the host's wait for it.

        Parameters
        ----------
        names : iterable of str
            Names of any ops; for an op that is not a task nothing else is removed.
        host_work : bool
            Whether the host's work before each launch stays.
        """
        ops = self.records.ops
        removed = dict.fromkeys(names)
        delays = [self.delay_of(ops[name]) for name in removed if name in self.tasks]
        removed |= dict.fromkeys(name for name in delays if name is not None)
        bypass = {name: [e for e in ops[name].after if e[0] != self.launch_of.get(name)] for name in removed}
        self.contract(bypass | self.without_launches(removed, host_work=host_work))

    def without_launches(self, removed: Collection[str], *, host_work: bool) -> dict[str, list[Edge]]:
        """Remove the calls that launch only removed tasks; return those that leave nothing, for `contract`.

        If the host's work before a call stays, it becomes an op of its own. Waits for a copy that the
        call launched are removed.
        """
        launches = {self.launch_of[name] for name in removed if name in self.launch_of}
        in_order = (name for thread in self.threads.values() for name in thread if name in launches)
        idle = [name for name in in_order if all(task in removed for task in self.tasks_of[name])]
        ops, empty = self.records.ops, {}
        for name in idle:
            record, wait = ops[name], self.wait_of(name)
            if wait is not None:
                empty[wait] = self._host_edges(ops[wait])
            self.end_call(name)
            attributes = record.attributes
            rest_ns = int(attributes.get("rest_of_call_ns", 0))
            work_ns = max(0, (record.duration_ns or 0) - self.call_ns(name) - rest_ns)
            record.duration_ns = rest_ns + (work_ns if host_work else 0)
            record.kind, record.after = "host", self._host_edges(record)
            record.attributes = {key: attributes[key] for key in attributes if key not in ("call", "call_ns")}
            if not record.duration_ns:
                empty[name] = record.after
        return empty

    def _host_edges(self, record: OpEntry) -> list[Edge]:
        """Return the host ops that an op of the host waits for."""
        return [edge for edge in record.after if edge[0] in self._on_host]

    def contract(
        self,
        bypass: Mapping[str, Sequence[Edge]],
        reads: Mapping[str, Sequence[Edge]] = MappingProxyType({}),
    ) -> None:
        """Remove ops.

        Parameters
        ----------
        bypass : mapping of str to sequence of (str, int)
            Removed op → what its followers then follow.
        reads : mapping of str to sequence of (str, int)
            Removed op → what its readers then read; default: its own inputs.
        """
        ops = self.records.ops
        after: dict[str, dict[Edge, None]] = {}
        inputs: dict[str, dict[Edge, None]] = {}
        for name in self.order:
            if name in bypass:
                after[name] = self._replace_removed(bypass[name], after, name)
                inputs[name] = self._replace_removed(reads.get(name, ops[name].inputs), inputs, name)
        for replacements in (after, inputs):
            for name in replacements:  # ops of an earlier iteration may also be removed
                replacements[name] = self._follow_to_end(name, replacements)
        for name in bypass:
            del ops[name]
        for record in ops.values():
            if any(edge[0] in bypass for edge in record.after):
                record.after = list(self._replace_removed(record.after, after, record.name))
            owners = [self.owner(tensor) for tensor, _ in record.inputs]
            if any(owner in bypass for owner in owners):
                extra = [edge for owner in owners if owner in bypass for edge in after[owner]]
                record.inputs = list(self._replace_removed(record.inputs, inputs, record.name))
                extra = [edge for edge in extra if edge != (record.name, 0)]
                record.after = list(dict.fromkeys([*record.after, *extra]))

    def _follow_to_end(self, name: str, replacements: Mapping[str, Mapping[Edge, None]]) -> dict[Edge, None]:
        """Return the edges that replace a removed op, followed until none leads to a removed op."""
        edges: dict[Edge, None] = {}
        seen, stack = {name}, [*replacements[name]][::-1]
        while stack:
            edge = stack.pop()
            owner = edge[0] if edge[0] in replacements else self.owner(edge[0])
            if owner not in replacements:
                edges[edge] = None
            elif owner not in seen:
                seen.add(owner)
                stack += [(before, edge[1] + more) for before, more in [*replacements[owner]][::-1]]
        return edges

    def owner(self, tensor: str) -> str:
        """Return the op that makes a tensor, or the tensor itself if it is an input of the graph."""
        op, _ = split_output(tensor) or (tensor, 0)
        return tensor if tensor in self.records.ops else op

    def _replace_removed(
        self, edges: Iterable[Edge], replacements: Mapping[str, Mapping[Edge, None]], reader: str
    ) -> dict[Edge, None]:
        """Return edges with removed ops replaced; an op does not wait for itself."""
        result: dict[Edge, None] = {}
        for name, distance in edges:
            owner = name if name in replacements else self.owner(name)
            if owner in replacements:
                replaced = ((op, distance + more) for op, more in replacements[owner])
                result |= dict.fromkeys(edge for edge in replaced if edge != (reader, 0))
            else:
                result[name, distance] = None
        return result


def _names_of(graph: Graph, mask: BoolArray) -> set[str]:
    return {graph.op_names[op] for op in np.flatnonzero(mask).tolist()}
