"""Resources of the machine that ops take beside their device: licences, ports, people.

::

    resources: {crane: 1}       a ▇▇▇▇▇ crane
                                b ·····▇▇▇ crane        waits for a
                                c ▇▇▇▇▇▇▇▇▇             needs none
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from sim.job.job import Job
from sim.machine.task import Task


class SharedResources:
    """What is free of each, and who waits: first come, first served, in a line for each resource.

    An op takes all that it needs at once, from its start to its end. So whoever holds a resource runs, or
    waits for what its own device shares, and nobody waits for ever.

    Parameters
    ----------
    job : Job
    """

    def __init__(self, job: Job) -> None:
        self._free = dict(job.machine.resources)
        self._needs: Mapping[int, Mapping[str, int]] = job.graph.attribute("resources")
        self._lines: dict[str, deque[Task]] = {name: deque() for name in self._free}
        self._waiting: set[int] = set()
        self._held: set[int] = set()

    def take(self, task: Task) -> bool:
        """Take what a task needs, or put it in line; one that has it already keeps it."""
        needs = self._needs.get(task.op, {})
        if task.id in self._held or not needs:
            return True
        if task.id in self._waiting:
            return False
        if all(not self._lines[name] and self._free[name] >= n for name, n in needs.items()):
            self._hold(task)
            return True
        self._waiting.add(task.id)
        for name in needs:
            self._lines[name].append(task)
        return False

    def give_back(self, task: Task) -> list[Task]:
        """Give back what a task took; return who has what it waited for now."""
        if task.id not in self._held:
            return []
        self._held.remove(task.id)
        for name, n in self._needs[task.op].items():
            self._free[name] += n
        granted: list[Task] = []
        names = [*self._needs[task.op]]
        while names:
            line = self._lines[names.pop()]
            if line and self._is_next(line[0]):
                following = line[0]
                for name in self._needs[following.op]:
                    self._lines[name].popleft()
                    names.append(name)
                self._waiting.remove(following.id)
                self._hold(following)
                granted.append(following)
        return granted

    def _is_next(self, task: Task) -> bool:
        """Whether a task is first in all of its lines, and all that it needs is free."""
        needs = self._needs[task.op].items()
        return all(self._lines[name][0] is task and self._free[name] >= n for name, n in needs)

    def _hold(self, task: Task) -> None:
        self._held.add(task.id)
        for name, n in self._needs[task.op].items():
            self._free[name] -= n
