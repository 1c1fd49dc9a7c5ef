"""Tasks, and the issuers that take them: what policies handle."""

from __future__ import annotations

from typing import Any

__all__ = ["Issuer", "Task"]


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
        Number of the stream it is put on, counted over the machine; -1 until issued.
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
    """

    __slots__ = (
        "calls_ns",
        "dead",
        "end_ns",
        "floor_ns",
        "frame",
        "group",
        "id",
        "issue_ns",
        "issuer",
        "iteration",
        "op",
        "ready_ns",
        "round",
        "start_ns",
        "stream",
        "wait",
    )

    def __init__(self, id: int, op: int, iteration: int, group: int) -> None:
        self.id = id
        self.op = op
        self.iteration = iteration
        self.group = group
        self.stream = -1
        self.issuer: Issuer | None = None
        self.ready_ns = self.issue_ns = self.start_ns = self.end_ns = -1
        self.floor_ns = self.round = self.wait = self.calls_ns = 0
        self.frame: Any = None
        self.dead = False

    def __repr__(self) -> str:
        """Return op and iteration, for debugging."""
        return f"<Task op={self.op} iteration={self.iteration}>"


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
    """

    __slots__ = ("devices", "executes", "group", "index", "name", "stream")

    def __init__(
        self, index: int, name: str, group: int, executes: bool, devices: tuple[int, ...], stream: int
    ) -> None:
        self.index = index
        self.name = name
        self.group = group
        self.executes = executes
        self.devices = devices
        self.stream = stream  # a worker's own lane, counted over the machine; -1 for a host thread

    def __repr__(self) -> str:
        """Return the name, for debugging."""
        return f"<Issuer {self.name}>"
