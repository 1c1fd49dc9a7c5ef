"""A program order that the user writes down: the names of all ops, first to last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sim import Job
from sim.words.errors import InputError

__all__ = ["Program"]


class Program:
    """The order given as a list of op names.

    Parameters
    ----------
    ops : sequence of str
        Every op of the graph exactly once. Producers need not come before consumers, but then a
        policy that keeps to the order gets stuck, and says so.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a"), b.op("b")
    >>> list(Program(["b", "a"]).order(make_job(b.build(), Machine((Device("gpu0"),)))))
    [1, 0]
    """

    def __init__(self, ops: Sequence[str]) -> None:
        if isinstance(ops, str) or not all(isinstance(name, str) for name in ops):
            raise InputError(f"program: ops must be a list of op names, found {ops!r}", path=("ops",))
        self.ops = list(ops)

    def order(self, job: Job) -> Sequence[int]:
        """Return every op once, in program order.

        Raises
        ------
        UnknownNameError
            A name that is no op of the graph.
        InputError
            An op that is missing, or there twice.
        """
        order = [job.graph.index(name) for name in self.ops]
        times = Counter(self.ops)
        for name in job.graph.op_names:
            if times[name] != 1:
                how = f"{times[name]} times" if times[name] else "nowhere"
                raise InputError(f"program: op {name!r} is {how} in the list, not once").about(name)
        return order
