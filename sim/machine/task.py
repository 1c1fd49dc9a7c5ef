"""Tasks, and the issuers that take them: the objects that policies handle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BACKGROUND: Final = -2
"""Stands for a stream: the task goes on without the issuer that took it."""


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """One execution of an op. Times are integer ns, -1 until they happen.

    Attributes
    ----------
    id : int
        Unique in a run; ``iteration * n_nodes + op`` on a static graph. It breaks ties.
    op : int
        Index of the op in the graph; transfers have indices from ``len(graph)`` on.
    iteration : int
        The repetition of the graph.
    group : int
        The group of issuers that may take it (`Issuer.group`); -1 for a transfer.
    stream : int
        Number of the stream it is put on, counted over the machine; -1 until issued, `BACKGROUND` if it
        runs on none.
    issuer : Issuer or None
        The issuer that took it.
    ready_ns, issue_ns, start_ns, end_ns : int
        When it became eligible, was put on a stream, began and finished executing.
    round : int
        The round of the instant ``start_ns`` in which it began: a task of no time ends in the next one.
    floor_ns : int
        Earliest start (an event has to travel from another stream).
    calls_ns : int
        Time that its issuer spent on allocator calls for it.
    wait : int
        Code of the last reason why it did not start (`sim.record.record.WAITS`).
    frame : object
        Execution frame in TensorFlow's control flow, None on a static graph.
    dead : bool
        Whether it ran as a dead op (control flow), which executes nothing.
    status : int
        Its outcome (`sim.graph.failures.STATUSES`).
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
    """What asks the policy for tasks: a host thread that launches, or a CPU worker that executes.

    Attributes
    ----------
    index : int
        Position in machine order, which is the order of asking free issuers.
    name : str
        ``"cpu0/w1"`` for a worker, ``"gpu0/host"`` for a host thread.
    group : int
        Issuers of one group serve the same devices and may take the same tasks.
    executes : bool
        Whether it is a worker: it runs the tasks that it takes for its own CPU, and puts those for the
        other devices that it serves on their streams, as a host thread does with all tasks.
    devices : tuple of int
        Indices of the devices it serves.
    stream : int
        A worker's own lane, counted over the machine; -1 for a host thread.
    other_lanes : mapping of int to int
        For a worker of several CPUs: device → its lane there, for all but the first.
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
