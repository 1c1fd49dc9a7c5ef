"""Rendezvous: Sends and Recvs that no edge connects meet at run time, by key.

::

    send k ──► offers:  s1 s2 ─┐
                               ├─ the n-th offer meets the n-th request of a key ──► (transfer) ──► recv
    recv k ──► requests: r1 ───┘

A key is ``source;destination;tensor``; frame and iteration are added to it at run time, so that iterations of
a loop, and repetitions of the graph, do not mix. Each key has one queue, of offers or of requests: whichever
side comes first waits. A Send never blocks: it ends, and its offer stays. A Recv requests its tensor when all
ops that it follows have ended or, if the policy says so (`sim.policy.Policy.asks_in_turn`: TensorFlow), only
when an issuer takes it. It runs once it has the tensor, and is dead if the tensor is dead. Between devices
with links, the bytes travel once offer and request have met; over a link with ``rendezvous`` (between
processes: gRPC over TCP, or RDMA) only once the request has travelled to the producer, which takes the
latency of the route.

This wraps the readiness of a run and filters the tasks that become eligible; a graph without such Recvs does
not use it and pays nothing.

Source: tensorflow/core/framework/rendezvous.cc (``LocalRendezvous``) and
tensorflow/core/distributed_runtime/rpc/rpc_rendezvous_mgr.cc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Any

import numpy as np

from sim.base.errors import GraphError
from sim.graph.failures import ABORTED
from sim.graph.rendezvous_keys import RendezvousKeys, sent_nbytes
from sim.job.context import Context
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.machine.task import Task
from sim.readiness.counters import Readiness


def transfers_of(flow: Flow, sends: Collection[int]) -> dict[int, int]:
    """Return Send → the transfer (node) that carries its tensor, for Sends that have one."""
    edges = zip(flow.producer.tolist(), flow.consumer.tolist(), strict=True)
    return {send: node for send, node in edges if send in sends and node >= flow.n_ops}


def with_keyed_transfers(job: Job, flow: Flow, keys: RendezvousKeys) -> Flow:
    """Return `flow` with a transfer for each Send whose Recv is on another device.

    The transfer follows its Send; the Recv that gets its bytes is known only at run time.

    Raises
    ------
    GraphError
        A key is received on two devices.
    """
    graph, machine = job.graph, job.machine
    where: dict[str, int] = {}
    for op, key in keys.recvs.items():
        device = int(job.device_of[op])
        if where.setdefault(key, device) != device:
            names = " and ".join(machine.devices[d].name for d in (where[key], device))
            raise GraphError(f"what is sent with key {key!r} is received on {names}; give each a key")
    remote = [op for op, key in keys.sends.items() if where[key] != int(job.device_of[op])]
    if not remote or not machine.links:
        return flow
    sends = np.array(remote)
    tensor = graph.first_output[sends]
    more = {
        "producer": sends,
        "consumer": flow.n_nodes + np.arange(len(remote)),
        "distance": np.zeros(len(remote), np.int64),
        "carries": tensor,
        "tensor": tensor,
        "source": job.device_of[sends],
        "destination": np.array([where[keys.sends[op]] for op in remote]),
        "nbytes": np.array([sent_nbytes(graph, op) for op in remote]),
    }
    columns: dict[str, Any] = {
        name: np.concatenate((getattr(flow, name), column)) for name, column in more.items()
    }
    return flow._replace(n_nodes=flow.n_nodes + len(remote), **columns)


_Key = tuple[str, int, str]
"""Key, repetition of the graph, and frame with iteration."""


class Rendezvous:
    """A `sim.readiness.counters.Readiness` in which Recvs wait for Sends by key (see the module).

    Parameters
    ----------
    inner : Readiness
        Readiness of the same graph, without keys.
    context : Context
        The run, whose flow includes the transfers of `with_keyed_transfers`.
    keys : RendezvousKeys
    in_turn : bool
        Whether Recvs ask when they are taken, by `ask`, rather than as soon as they are eligible.
    aborted : callable
        ``aborted(task)``: whether the step of a task has been aborted. Then nothing meets in it any more.
    on_meeting : callable
        ``on_meeting(send, recv)``: called for a pair that meets if nothing has to travel.

    Attributes
    ----------
    asking : frozenset of int
        The Recvs for which `ask` is called.
    met : list of (int, int)
        Ids of the pairs that met: the Send, or the transfer that it caused, and the Recv.
    """

    def __init__(
        self,
        inner: Readiness,
        context: Context,
        keys: RendezvousKeys,
        in_turn: bool,
        aborted: Callable[[Task], bool],
        on_meeting: Callable[[Task, Task], None],
    ) -> None:
        self._aborted, self._on_meeting = aborted, on_meeting
        self.inner, self.asynchronous, self.name = inner, inner.asynchronous, inner.name
        self.met: list[tuple[int, int]] = []
        self._context, self._recvs = context, keys.recvs
        job, flow, n_ops = context.job, context.flow, context.flow.n_ops
        by_transfer = transfers_of(flow, keys.sends)
        self._transfers = {node: keys.sends[send] for send, node in by_transfer.items()}
        self._sends = {op: key for op, key in keys.sends.items() if op not in by_transfer}
        self.asking = frozenset(keys.recvs if in_turn else ())
        at_once = {} if in_turn else keys.recvs
        self._eligible = {**at_once, **self._transfers}  # nodes that meet once eligible → their key
        self._arrived: list[Task] = []  # Recvs of `asking` that have their tensor
        self._request_ns = {node: _request_ns(job, flow, node - n_ops) for node in self._transfers}
        launched = [*job.launched.tolist(), *([True] * (flow.n_nodes - n_ops))]
        receiver = {key: op for op, key in keys.recvs.items()}
        self._at_issue = frozenset(
            source
            for source, key in {**self._sends, **self._transfers}.items()
            if inner.asynchronous and not in_turn and launched[receiver[key]] and launched[source]
        )
        devices = job.machine.devices
        self._event_ns = {op: devices[int(job.device_of[op])].event_ns for op in keys.recvs}
        self._waiting: dict[_Key, deque[tuple[Task, int]]] = {}  # Recvs or their sources, and since when
        self._receiver_of: dict[int, Task] = {}  # id of a transfer → the Recv that asked for it
        self._event: dict[int, Task] = {}  # id of a Recv → the task that has to end before it starts
        self._refused: list[Task] = []
        self._ready: list[Task] = []  # tasks that become eligible because of the current one

    # -- sim.readiness.counters.Readiness ---------------------------------------------------------------

    @property
    def total(self) -> int:
        """Number of tasks that have to end: a transfer that nothing asks for need not."""
        return self.inner.total - len(self._find_unasked())

    def roots(self) -> list[Task]:
        """Return the tasks that are eligible at time 0; Recvs among them ask."""
        return self.match(self.inner.roots())

    def on_issue(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` was issued."""
        if task.op in self._at_issue and not task.dead:
            self._provide(task)
        return self.match(self.inner.on_issue(task))

    def on_end(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` ended: the task that it met, then its successors."""
        if task.op not in self._at_issue or task.dead:
            self._provide(task)
        return self.match(self.inner.on_end(task))

    def may_start(self, task: Task) -> bool:
        """Whether all that the task waits for, including its source, has ended."""
        source = self._event.get(task.id)
        if source is not None and source.end_ns < 0:
            self._refused.append(task)
            return False
        if not self.inner.may_start(task):
            return False
        if source is not None:
            del self._event[task.id]
            if source.stream != task.stream:
                task.floor_ns = max(task.floor_ns, source.end_ns + self._event_ns[task.op])
        return True

    def take_released(self) -> list[Task]:
        """Return and clear the tasks that `may_start` refused and that may start now."""
        free = [task for task in self._refused if self._event[task.id].end_ns >= 0]
        if free:
            self._refused = [task for task in self._refused if self._event[task.id].end_ns < 0]
        return free + self.inner.take_released()

    def find_unfinished(self, finished: Set[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield (task id, ids of the producers it waits for) for every task that is not `finished`."""
        unasked = {task.id for task in self._find_unasked()}
        for id, producers in self.inner.find_unfinished(finished):
            if id not in unasked:
                yield id, producers

    def ask(self, recv: Task) -> list[Task]:
        """Let a Recv that was taken ask; return the transfer that this starts, if any."""
        self._arrive(recv, self._recvs[recv.op])
        ready, self._ready = self._ready, []
        return ready

    def abort(self) -> None:
        """Drop the tasks that wait in steps aborted since."""
        for key, waiting in list(self._waiting.items()):
            if self._aborted(waiting[0][0]):
                del self._waiting[key]
                for task, _ in waiting:
                    self._give_up(task)

    def take_arrived(self) -> list[Task]:
        """Return and clear the Recvs that asked and have their tensor, or are aborted."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def lacks(self) -> Mapping[int, str]:
        """Return, for each Recv (id) that is still asking, what it waits for."""
        return {
            recv.id: f"a send with key '{key};{frame or f'0:{repetition}'}'"
            for (key, repetition, frame), waiting in self._waiting.items()
            for recv, _ in waiting
            if recv.op in self._recvs
        }

    # -- arrivals and meetings -------------------------------------------------------------------

    def match(self, tasks: list[Task]) -> list[Task]:
        """Let Recvs ask and transfers offer; return the tasks, these replaced by those that they freed."""
        for task in tasks:
            key = self._eligible.get(task.op)
            if key is None:
                self._ready.append(task)
            else:
                self._arrive(task, key)
        ready, self._ready = self._ready, []
        return ready

    def _arrive(self, task: Task, key: str) -> None:
        """Let a Recv, or its source, meet the first counterpart that waits, or wait itself."""
        if self._aborted(task):
            self._give_up(task)
            return
        queue_key, now_ns = (key, task.iteration, str(task.frame or "")), self._context.now_ns
        asks = task.op in self._recvs
        waiting = self._waiting.setdefault(queue_key, deque())
        if not waiting or (waiting[0][0].op in self._recvs) == asks:
            waiting.append((task, now_ns))
            return
        first, since_ns = waiting.popleft()
        if not waiting:
            del self._waiting[queue_key]
        source, recv, asked_ns = (first, task, now_ns) if asks else (task, first, since_ns)
        self.met.append((source.id, recv.id))
        recv.dead = recv.dead or source.dead
        if source.op not in self._transfers:
            self._on_meeting(source, recv)
            self._hand_over(source, recv)
            return
        self._receiver_of[source.id] = recv
        if not source.dead and self._request_ns[source.op]:
            source.floor_ns = asked_ns + self._request_ns[source.op]
        self._ready.append(source)

    def _give_up(self, task: Task) -> None:
        """End a taken Recv as aborted; drop any other task that waits or comes."""
        if task.op in self.asking:
            task.status = ABORTED
            self._arrived.append(task)

    def _provide(self, task: Task) -> None:
        """Handle the issue or end of `task`: a Send offers, a transfer gives its Recv the tensor."""
        key = self._sends.get(task.op)
        if key is not None:
            self._arrive(task, key)
        recv = self._receiver_of.pop(task.id, None)
        if recv is not None:
            self._hand_over(task, recv)

    def _hand_over(self, source: Task, recv: Task) -> None:
        if source.op in self._at_issue:
            self._event[recv.id] = source
        (self._arrived if recv.op in self.asking else self._ready).append(recv)

    def _find_unasked(self) -> list[Task]:
        """Return the transfers that nothing has asked for."""
        waiting = (task for of_key in self._waiting.values() for task, _ in of_key)
        return [task for task in waiting if task.op in self._transfers]


def _request_ns(job: Job, flow: Flow, transfer: int) -> int:
    """Return the travel time of the request for a transfer; 0 over links that need none."""
    route = job.machine.route(*(int(col[transfer]) for col in (flow.source, flow.destination, flow.tensor)))
    links = [job.machine.links[k] for k in route]
    return job.machine.latency_ns(route) if any(link.rendezvous for link in links) else 0
