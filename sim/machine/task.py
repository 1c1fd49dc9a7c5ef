"""Tasks, and the issuers that take them: what policies handle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BACKGROUND: Final = -2
"""In place of a stream: where a task goes on without the issuer that took it."""


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """One execution of an op. Times are integer ns, -1 until they happen.

    Attributes
    ----------
    id : int
        Unique in a run; ``iteration * n_nodes + op`` on a static graph. Ties break by it.
    op : int
        Index of the op in the graph; transfers have indices from ``len(graph)`` on.
    iteration : int
        Which repetition of the graph.
    group : int
        Which group of issuers may take it (`Issuer.group`); -1 for a transfer.
    stream : int
        Number of the stream it is put on, counted over the machine; -1 until issued, `BACKGROUND` for one
        that runs on none.
    issuer : Issuer or None
        Who took it.
    ready_ns, issue_ns, start_ns, end_ns : int
        When it became eligible, was put on a stream, began and finished executing.
    round : int
        In which round of the instant ``start_ns`` it began: what takes no time ends in the next one.
    floor_ns : int
        It may not start before (an event has to travel from another stream).
    calls_ns : int
        What its issuer spent on calls of the allocator for it.
    wait : int
        Code of the last reason for which it did not start (`sim.record.record.WAITS`).
    frame : object
        Execution frame in TensorFlow's control flow, None on a static graph.
    dead : bool
        Whether it ran as a dead op (control flow), which executes nothing.
    status : int
        What became of it (`sim.graph.failures.STATUSES`).
    """

    id: int
    op: int
    iteration: int
    group: int
    stream: int = -1
    issuer: Issuer | None = None
    ready_ns: int = -1
    issue_ns: int = -1
    start_ns: int = -1
    end_ns: int = -1
    round: int = 0
    floor_ns: int = 0
    calls_ns: int = 0
    wait: int = 0
    frame: Any = None
    dead: bool = False
    status: int = 0

    def __repr__(self) -> str:
        """Return op and iteration, for debugging."""
        return f"<Task op={self.op} iteration={self.iteration}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Issuer:
    """Who asks the policy for tasks: a host thread that launches, or a CPU worker that executes.

    Attributes
    ----------
    index : int
        Position in machine order, in which free issuers are asked.
    name : str
        ``"cpu0/w1"`` for a worker, ``"gpu0/host"`` for a host thread.
    group : int
        Issuers of one group serve the same devices and may take the same tasks.
    executes : bool
        Whether it is a worker, which runs the tasks of its own CPU that it takes; the tasks of the
        other devices it serves it puts on their streams, as a host thread does with all of them.
    devices : tuple of int
        Indices of the devices it serves.
    stream : int
        A worker's own lane, counted over the machine; -1 for a host thread.
    other_lanes : mapping of int to int
        Of a worker of several CPUs: device → its lane there, for all but the first.
    """

    index: int
    name: str
    group: int
    executes: bool
    devices: tuple[int, ...]
    stream: int
    other_lanes: Mapping[int, int] = field(default_factory=dict)

    def lane_on(self, device: int) -> int:
        """Return the lane on which it executes tasks of a CPU."""
        return self.other_lanes.get(device, self.stream)

    def __repr__(self) -> str:
        """Return the name, for debugging."""
        return f"<Issuer {self.name}>"
