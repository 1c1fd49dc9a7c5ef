"""A step of a distributed session: the client calls the master, which asks every worker to run its part.

::

    client    call ─┐                                                  ┌─► return ──distance 1──► call
    master          └─► run ─┐                                 ┌► done ┘
    worker0                  ├─► run/worker0 ─► a ─► b ──► reply/worker0
    worker1                  └─► run/worker1 ─► c ───────► reply/worker1

The master sends one request a step to each worker that has a part in it, and takes no part in the execution
of single ops: Sends and Recvs synchronise the workers. What a worker's executor would begin with (ops that
need nothing of the same worker, its Recvs among them) waits for the request; the reply leaves when the last
op of the worker is over, and the step ends with the last reply. A worker is a host of the machine: a process
with its devices.

Requests and replies are tensors: they travel over the links of the machine, and where there are none, or
besides, take `latency` each, on no thread of who gets them.

Sources: *TensorFlow: large-scale machine learning on heterogeneous distributed systems* (arXiv:1603.04467),
sections 3.1 and 3.3; tensorflow/core/distributed_runtime/master_session.cc
(``MasterSession::ReffedClientGraph::RunPartitions``: one ``RunGraphAsync`` for each partition, then all are
awaited).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.compile.records import Edge, Record, Records, by_name, read, write
from sim import Graph, Machine
from sim.machine.machine import Host
from sim.words.errors import InputError, UnknownNameError, located
from sim.words.units import parse_bytes, parse_duration

__all__ = ["DistributedSession"]


class DistributedSession:
    """Add client, master and the requests to workers.

    Parameters
    ----------
    master : str
        Device on which the master runs, such as a CPU.
    client : str, optional
        ... the client; default: beside the master.
    message : str or int, optional
        Size of a request, and of a reply.
    latency : str or int, optional
        What each takes besides the links.

    Raises
    ------
    InputError
        A device that the machine does not have, or an op without a device (when applied).
    """

    placed: Final = True
    """It reads where ops run."""

    def __init__(
        self, master: str, client: str | None = None, message: str | int = 0, latency: str | int = 0
    ) -> None:
        self.master, self.client = master, master if client is None else client
        self.nbytes = parse_bytes(message, what="message")
        self.latency_ns = parse_duration(latency, what="latency")

    def apply(self, graph: Graph, machine: Machine | None = None) -> Graph:
        """Return the graph of a step with what client and master do.

        The hosts of the machine are the workers; without a machine, each device is one.
        """
        records = read(graph)
        workers = {str(record.device): str(record.device) for record in records.ops.values()}
        first = dict(workers)
        if machine is not None:
            for option, name in (("master", self.master), ("client", self.client)):
                if name not in machine.positions:
                    with located(option):
                        raise UnknownNameError("device", name, machine.positions)
            workers = {name: host.name for host in machine.hosts_in_order for name in host.serves}
            first = {host.name: _first_device(host, machine) for host in machine.hosts_in_order}
        parts: dict[str, list[Record]] = {}
        for record in records.ops.values():
            if record.device is None:
                raise InputError(f"op {record.name!r} is pinned to no device").about(record.name)
            parts.setdefault(workers[record.device], []).append(record)
        begin = [
            self._op("step/call", self.client),
            self._op("step/run", self.master, [("step/call", 0)]),
        ]
        begin[0].after = [("step/return", 1)]
        end: list[Record] = []
        for worker, part in parts.items():
            roots, last = _ends(records, part)
            begin.append(self._op(f"step/run/{worker}", first[worker], [("step/run", 0)]))
            for record in roots:
                record.after.append((f"step/run/{worker}", 0))
            reply = self._op(f"step/reply/{worker}", first[worker])
            reply.after = [(record.name, 0) for record in last]
            end.append(reply)
        replies = [(record.name, 0) for record in end]
        end.append(self._op("step/done", self.master, replies))
        end.append(self._op("step/return", self.client, [("step/done", 0)]))
        records.ops = by_name((*begin, *records.ops.values(), *end))
        return write(records)

    def _op(self, name: str, device: str, inputs: Sequence[Edge] = ()) -> Record:
        """Return an op that waits for messages, which have their latency, and makes one."""
        ns = self.latency_ns if inputs else 0
        more = {"async": True} if ns else {}
        outputs = (self.nbytes,)
        return Record(name, "no_op", [*inputs], [], outputs, duration_ns=ns, device=device, attributes=more)


def _first_device(host: Host, machine: Machine) -> str:
    """Return the device whose threads talk to the master: the first CPU of a worker, if it has one."""
    cpus = [name for name in host.serves if machine.devices[machine.device_index(name)].workers]
    return (cpus or [*host.serves])[0]


def _ends(records: Records, part: list[Record]) -> tuple[list[Record], list[Record]]:
    """Return the ops of a worker that need, and that serve, no other of it in the same step."""
    names = {record.name for record in part}
    roots: list[Record] = []
    inner: set[str] = set()
    for record in part:
        producers = {
            producer.name
            for tensor, distance in record.inputs
            if not distance and (producer := records.producer(tensor)) is not None
        }
        producers |= {name for name, distance in record.after if not distance}
        inner |= producers & names
        if not producers & names:
            roots.append(record)
    return roots, [record for record in part if record.name not in inner]
