"""Memory on the kernel: a run in which nobody waits for it, and what was taken and given back all the same.

Memory that holds no task up changes nothing in a run. So the kernel only notes who takes, and who ends::

    journal      a   b   ~a   c   ~b   ~c          a task takes, or (~) it has ended, as it happens

and when the run is over, whoever manages the memory works out all allocations and frees
(`MemoryAfterwards`). If somebody would have had to wait, it says so, and the run is of no use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from sim.base.arrays import IntArray

if TYPE_CHECKING:
    from sim.job.job import Job
    from sim.job.transfers import Flow


AT_ISSUE: Final = 1
AT_START: Final = 2
"""When an op takes its memory, as the loop knows it; 0: nobody asks."""


class Journal(NamedTuple):
    """Who took and who ended, in the order in which it happened.

    Attributes
    ----------
    task : array of int64
        A task takes its memory; or, as ``~task``, it has ended. Each does both once.
    time_ns : array of int64
    """

    task: IntArray
    time_ns: IntArray


Afterwards: TypeAlias = "Callable[[Journal], dict[str, IntArray] | str]"
"""From the journal of a run to the log of its memory (`sim.Trace.memory`), or why there is none, in words."""


@runtime_checkable
class MemoryAfterwards(Protocol):
    """What makes the memory of a run (``memory`` of `sim.simulate`), where the kernel can do without it."""

    @property
    def at_issue(self) -> bool:
        """Whether an op takes its memory when it is issued, else when it starts."""

    def afterwards(self, job: Job, flow: Flow) -> Afterwards | str:
        """Return how the log follows from the journal, or in words why it does not.

        Raises
        ------
        InputError, OutOfMemoryError
            What is refused before time 0.
        """


def journal_columns(memory: MemoryAfterwards | None, n_tasks: int) -> dict[str, int | IntArray]:
    """Return the columns in which the loop puts down its journal."""
    size = 0 if memory is None else 2 * n_tasks
    takes = 0 if memory is None else AT_ISSUE if memory.at_issue else AT_START
    out: dict[str, int | IntArray] = {"takes": takes, "n_noted": 0}
    return out | {"noted": np.zeros(size, np.int32), "noted_ns": np.zeros(size, np.int64)}
