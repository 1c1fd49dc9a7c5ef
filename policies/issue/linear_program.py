"""The linear program that in-order and out-of-order issue walk through.

Every group of issuers has a program: its ops in program order (`sim.Job.programs`), repeated once
per iteration. A task has a *place* in it, and a list with one slot per place says which tasks are
eligible::

    iteration      0           1           2
    op             a  b  c     a  b  c     a  b  c
    place          0  1  2     3  4  5     6  7  8
    slots          ·  b  ·     a  ·  ·     ·  ·  ·      · not eligible (yet, or any more)
                   ^head
"""

from __future__ import annotations

from collections.abc import Sequence

from sim import Job, Task
from sim.graph.frames import has_control_flow
from sim.words.arrays import IntArray
from sim.words.errors import InputError

__all__ = ["Program", "group_programs", "places", "programs_of", "refuse_control_flow"]


class Program:
    """One program.

    Attributes
    ----------
    length : int
        Ops in one iteration of it.
    slots : list of Task or None
        The eligible task of each place; one empty slot more at the end.
    head : int
        Place of the oldest task that has not been issued.
    in_flight : int
        Tasks issued and not ended, where somebody counts them.
    """

    __slots__ = ("head", "in_flight", "length", "slots")

    def __init__(self, length: int, iterations: int) -> None:
        self.length = length
        self.slots: list[Task | None] = [None] * (length * iterations + 1)
        self.head = 0
        self.in_flight = 0


def programs_of(job: Job) -> list[Program]:
    """Return an empty program for every group of issuers."""
    return [Program(len(ops), job.iterations) for ops in job.programs]


def group_programs(job: Job) -> list[IntArray]:
    """Return the program order of every group of issuers, as arrays."""
    group = job.group_of[job.order]
    return [job.order[group == g] for g in range(job.n_groups)]


def places(n_ops: int, programs: Sequence[Sequence[int]]) -> list[int]:
    """Return the place of each op in the first iteration of its own program.

    Examples
    --------
    >>> places(4, [[0, 3], [2, 1]])
    [0, 1, 0, 1]
    """
    place = [0] * n_ops
    for ops in programs:
        for k, op in enumerate(ops):
            place[op] = k
    return place


def refuse_control_flow(policy: str, job: Job) -> None:
    """Refuse a graph whose ops have no fixed order.

    Parameters
    ----------
    policy : str
        For the message.
    job : Job

    Raises
    ------
    InputError
        The graph has conditions or loops.
    """
    if has_control_flow(job.graph):
        raise InputError(
            f"{policy}: graph {job.graph.name!r} has conditions or loops, so its ops have no fixed order; "
            "the policy sequential runs it as a program with jumps"
        )
