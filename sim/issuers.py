"""Issuers during a run: the free ones of each group, and those that copy pageable memory.

A transfer of pageable memory (`sim.job.transfers`) takes a free issuer when it is issued and keeps it to its
end. Without a free one it waits, first come, first served, ahead of all ops.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from operator import attrgetter

import numpy as np

from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InputError
from sim.graph.graph import Graph
from sim.job.job import Decided, Job
from sim.machine.machine import Host, Machine
from sim.machine.task import Issuer, Task
from sim.policy import Policy

_by_index = attrgetter("index")


class Issuers:
    """The free issuers of a machine.

    Parameters
    ----------
    machine : Machine
    policy : Policy
        The policy that they ask for tasks.
    copies : mapping of int to int
        Node → group, for the transfers that one of its issuers has to make.

    Attributes
    ----------
    idle : list of lists of Issuer
        The free issuers of each group.
    changed : set of int
        Groups in which a task has become eligible, or an issuer free, since they were last asked; never
        cleared unless the policy has ``scope = "group"``.
    stopped : set of int
        Groups that take nothing more.
    """

    def __init__(self, machine: Machine, policy: Policy, copies: Mapping[int, int]) -> None:
        self.policy, self.copies = policy, copies
        self._copying: dict[int, Issuer] = {}  # id of a transfer → the issuer that makes it
        self._waiting: dict[int, deque[Task]] = {group: deque() for group in sorted(set(copies.values()))}
        self.idle: list[list[Issuer]] = [[] for _ in machine.hosts_in_order]
        self.changed: set[int] = set()
        self.stopped: set[int] = set()
        for issuer in machine.issuers():
            self.free(issuer)

    def free(self, issuer: Issuer | None) -> None:
        """Make an issuer free, so that it is asked again."""
        assert issuer is not None
        if issuer.group in self.stopped:
            return
        insort(self.idle[issuer.group], issuer, key=_by_index)
        self.changed.add(issuer.group)

    def stop(self, groups: Set[int]) -> None:
        """Stop the issuers of groups: they take and copy nothing more."""
        self.stopped |= groups
        for group in groups:
            self.idle[group].clear()

    def ask(self, take: Callable[[Issuer, Task], None]) -> None:
        """Ask free issuers until none takes a task; call ``take(issuer, task)`` for each task taken.

        If the policy has ``scope = "group"``, only groups in which something changed are asked.
        """
        ask = self.policy.next
        if self.policy.scope == "group":
            while self.changed:
                groups = sorted(self.changed)
                self.changed.clear()
                for group in groups:
                    idle = self.idle[group]
                    while idle and (task := ask(idle[0])) is not None:
                        take(idle.pop(0), task)
            return
        took = True
        while took:
            took = False
            for idle in self.idle:
                for issuer in idle[:]:
                    if issuer in idle and (task := ask(issuer)) is not None:
                        took = True
                        idle.remove(issuer)
                        take(issuer, task)

    def begin_copy(self, transfer: Task) -> bool:
        """Reserve an issuer for `transfer` if it needs one; return whether it can be issued now."""
        group = self.copies.get(transfer.op)
        if group is None or transfer.dead:
            return True
        if self.idle[group] and not self._waiting[group]:
            self._copying[transfer.id] = self.idle[group].pop(0)
            return True
        self._waiting[group].append(transfer)
        return False

    def next_copy(self) -> Task | None:
        """Return a transfer that waited for an issuer and has one now."""
        for group, waiting in self._waiting.items():
            if waiting and self.idle[group]:
                transfer = waiting.popleft()
                self._copying[transfer.id] = self.idle[group].pop(0)
                return transfer
        return None

    def end_copy(self, transfer: Task) -> None:
        """Free the issuer that made `transfer`, if one did."""
        issuer = self._copying.pop(transfer.id, None)
        if issuer is not None:
            self.free(issuer)


def refuse_wrong(policy: Policy, job: Job, n_nodes: int, issuer: Issuer, task: Task) -> None:
    """Raise if a policy gave an issuer something that the issuer may not take.

    Raises
    ------
    InputError
        It is not a task, or the task was taken before, is not eligible, is for another group of issuers, or
        was modified.
    """
    prefix = f"policy {type(policy).__name__} gave {issuer.name}"
    if not isinstance(task, Task):
        raise InputError(f"{prefix} {task!r}, which is no task: next() returns a task or None")
    try:
        changed = task.frame is None and task.id != task.iteration * n_nodes + task.op
        changed = changed or not 0 <= task.op < len(job.graph) or task.group != job.group_of[task.op]
    except TypeError:
        changed = True
    if changed:
        raise InputError(f"{prefix} {task!r} with id {task.id}, which it has changed: tasks are to be read")
    if task.issuer is not None or task.ready_ns < 0 or task.group != issuer.group:
        raise InputError(
            f"{prefix} op {job.graph.op_names[task.op]!r}, "
            + ("which was taken before" if task.issuer is not None else "which it may not take (now)")
        )


# ----------------------------------------------------------------------------------------------------------
# Sessions in processes of their own: each has its own host threads and streams.
#
#     one process      gpu0/host         a0 b0 a1 b1  ──►  gpu0/0        one thread launches for both
#     two processes    gpu0/host/a       a0 a1        ──►  gpu0/0        each launches for itself; how the
#                      gpu0/host/b       b0 b1        ──►  gpu0/1        device shares is up to the device
#
# The attribute ``process`` of an op names its process (`scenarios.workloads.sessions`); an op that a rewrite
# made belongs to the process of its neighbours. Workers of a CPU are its cores, so processes share them; they
# also share the threads of a host whose threads are such workers.


def process_names(graph: Graph) -> list[str]:
    """Return the processes that the ops of a graph name."""
    return list(dict.fromkeys(map(str, graph.attribute("process").values())))


def with_processes(job: Job) -> Job:
    """Return `job` with a host, and streams, for each process, if there are several.

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two")
    >>> for name in "ab":
    ...     _ = b.op(name, duration_ns=10, attributes={"process": name})
    >>> job = with_processes(make_job(b.build(), Machine((Device("gpu0"),))))
    >>> [issuer.name for issuer in job.machine.issuers()], job.group_of.tolist()
    (['gpu0/host/a', 'gpu0/host/b'], [0, 1])
    """
    names = process_names(job.graph)
    if len(names) < 2:
        return job
    process_of = _process_of(job.graph, names)
    machine = job.machine
    devices, lane = list(machine.devices), job.stream_of - np.array(machine.first_stream)[job.device_of]
    for d, device in enumerate(devices):
        users = np.unique(process_of[job.device_of == d])
        if len(users) > 1 and device.for_processes is not None:
            # Each process has streams of its own, assigned as if it were alone.
            devices[d] = device.for_processes(device, len(users))
            for index, process in enumerate(users.tolist()):
                ops = (job.device_of == d) & (process_of == process)
                lane[ops] = _lanes_of_process(job, process_of == process)[ops] + index * device.streams
    hosts = [host for shared in machine.hosts_in_order for host in _hosts_by_process(shared, machine, names)]
    return replace(
        job,
        machine=replace(machine, devices=tuple(devices), hosts=tuple(hosts)),
        streams=Decided(lane.tolist()),
        processes=tuple(names),
        process_of=process_of,
    )


def _process_of(graph: Graph, names: Sequence[str]) -> IntArray:
    """Return the process of each op: the one it names, else that of its neighbours."""
    process_of = np.full(len(graph), UNSET)
    for op, process in graph.attribute("process").items():
        process_of[op] = names.index(str(process))
    if (process_of == UNSET).any():
        edges = graph.edges
        pairs = list(zip(edges.producer.tolist(), edges.consumer.tolist(), strict=True))
        current, previous = process_of.tolist(), None
        while current != previous:  # from producers to consumers and back, until nothing changes
            previous = list(current)
            for a, b in (*pairs, *reversed(pairs)):
                if current[a] == UNSET:
                    current[a] = current[b]
                elif current[b] == UNSET:
                    current[b] = current[a]
        process_of = np.maximum(np.array(current, np.int64), 0)  # if no neighbour has one, the first
    return process_of


def _hosts_by_process(host: Host, machine: Machine, names: Sequence[str]) -> list[Host]:
    """Return a copy of a host per process; if its threads are workers of a CPU, all share the host."""
    if any(machine.devices[machine.device_index(name)].workers for name in host.serves):
        return [host]
    return [replace(host, name=f"{host.name}/{name}", process=name) for name in names]


def _lanes_of_process(job: Job, selected: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> IntArray:
    """Return the stream of each op within its device if the ops of one process are assigned first."""
    if job.streams is None:
        return np.zeros(len(selected), np.int64)
    first = np.concatenate((job.order[selected[job.order]], job.order[~selected[job.order]]))
    return np.asarray(job.streams.assign(replace(job, linearize=Decided(first.tolist()))), np.int64)
