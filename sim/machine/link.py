"""Links between devices, and what carries bytes over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sim.machine.task import Task

__all__ = ["Link", "Message", "Network"]


@dataclass(frozen=True)
class Link:
    """Carries bytes one way between two devices.

    Attributes
    ----------
    name, source, destination : str
        Names of the link and of the devices at its ends.
    latency_ns : int
        Time before the first byte arrives.
    bandwidth_bytes_per_s : int or None
        None is unlimited: a transfer takes the latency.
    sharing : str
        ``"serial"``: transfers go one after another, in the order in which they became ready, and hold their
        whole route.
        ``"fifo"``: each link sends chunks one after another, first come, first served, and hands each one on
        when it has all of it (store and forward).
        ``"shared"``: concurrent transfers share the bandwidth max-min fairly.
        ``"independent"``: each has the bandwidth for itself, as in the literature on list scheduling.
    on_request : bool
        Whether what a Recv finds by key (`sim.readiness.rendezvous`) travels only when its request has
        arrived, which takes the latency of the route: between processes. Otherwise the bytes need no request.
    medium : str
        Links that name the same medium are one: the two directions of a half-duplex link, or all links of a
        bus. They share its bandwidth, or are held together. They are alike in latency, bandwidth and
        `sharing`.
    connection_bytes_per_s : int or None
        What all transfers from one device to another get together at most, as over one TCP connection.
    overhead_ns : int
        What each message costs besides: of the links of a route, the most, and once.
    host_copies : bool
        Whether a thread of the sender's host copies the bytes, and does nothing else meanwhile
        (`sim.job.pageable`).
    chunk_bytes : int or None
        Of a link with ``sharing="fifo"``: the largest chunk; a message is cut into chunks as large as the
        smallest of its route allows. None: messages stay whole.
    """

    name: str
    source: str
    destination: str
    latency_ns: int = 0
    bandwidth_bytes_per_s: int | None = None
    sharing: str = "serial"
    on_request: bool = False
    medium: str = ""
    connection_bytes_per_s: int | None = None
    overhead_ns: int = 0
    host_copies: bool = False
    chunk_bytes: int | None = None


class Message(NamedTuple):
    """What was carried and is no transfer of a tensor: part of a collective.

    Attributes
    ----------
    source, destination : int
        Positions of devices.
    nbytes : int
    ready_ns, start_ns, end_ns : int
        When it was given to the network, when it began, and when it had arrived.
    """

    source: int
    destination: int
    nbytes: int
    ready_ns: int
    start_ns: int
    end_ns: int


class Network(Protocol):
    """Carries transfers over links."""

    def start(self, task: Task) -> None:
        """Take a transfer that is ready; say `started` when it begins and `finish` when it has arrived."""

    def send(self, source: int, destination: int, nbytes: int, arrived: Callable[[], None]) -> None:
        """Carry a message that is no transfer of a tensor; call ``arrived()`` when it is there."""
