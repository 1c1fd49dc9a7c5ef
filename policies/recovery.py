"""The protocol of recovery policies: what a training run does when a worker has failed.

::

    failure ──► detected ──► after_failure(fleet) ──► Restart(workers, ...)   ──► the run goes on
                                     │
                                     └──► None: wait until a machine is repaired, and ask again
    checkpoint ─────────────► at_checkpoint(fleet) ─► Restart: with other workers; None: go on

A policy decides and never waits: it sees how many machines there are and answers with a number of workers.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import NamedTuple

from sim.base.errors import InputError


class Fleet(NamedTuple):
    """The machines of a run at the moment a policy is asked.

    Attributes
    ----------
    full : int
        Workers of the run at its full size.
    running : int
        Workers of the run that have not failed.
    spare : int
        Machines that could be workers but are not in use.
    in_repair : int
        Machines that have failed and are not back yet.
    replica : int or Fraction
        Workers that hold one copy of the model; a copy may take a part of a worker.
    minimum : int
        Fewest workers with which the run can go on.
    """

    full: int
    running: int
    spare: int
    in_repair: int
    replica: int | Fraction = 1
    minimum: int = 1

    def fitting(self, machines: int) -> int:
        """Return how many workers `machines` allow, in whole replicas and at most `full`; 0: too few."""
        workers = min(ceil(machines // self.replica * self.replica), self.full)
        return workers if workers >= self.minimum else 0


class Restart(NamedTuple):
    """An answer: load the last checkpoint and go on.

    Attributes
    ----------
    workers : int
        Number of workers to go on with. Running workers stay; spare machines join, lowest number first.
    whole_job : bool
        Whether every process restarts; otherwise the processes of workers that have not failed go on.
    """

    workers: int
    whole_job: bool = False


class Recovery:
    """Override `after_failure`, and `at_checkpoint` if the run may change its size without a failure."""

    def after_failure(self, fleet: Fleet) -> Restart | None:
        """Return how the run goes on; None: wait until a machine is back, then ask again."""
        raise InputError(f"{type(self).__name__} must define after_failure()")

    def at_checkpoint(self, fleet: Fleet) -> Restart | None:
        """Return how the run goes on after a checkpoint; None: unchanged."""
        return None


# ----------------------------------------------------------------------------------------------------------
# Recovery at full size: the run goes on with as many workers as it began with, or it waits.


class ReplaceWorker(Recovery):
    """A spare machine takes the place of the failed one; the processes of the others go on."""

    whole_job = False

    def after_failure(self, fleet: Fleet) -> Restart | None:
        """Return the run at full size when there are machines for it."""
        return Restart(fleet.full, self.whole_job) if fleet.running + fleet.spare >= fleet.full else None


class RestartJob(ReplaceWorker):
    """All processes restart, with spare machines in place of failed ones.

    Examples
    --------
    >>> RestartJob().after_failure(Fleet(full=4, running=3, spare=1, in_repair=1))
    Restart(workers=4, whole_job=True)
    >>> RestartJob().after_failure(Fleet(full=4, running=3, spare=0, in_repair=1))  # waits
    """

    whole_job = True


class WaitForRepair(Recovery):
    """The run waits until every failed machine is repaired; spare machines stay spare."""

    def after_failure(self, fleet: Fleet) -> Restart | None:
        """Return the run at full size when nothing is in repair."""
        return None if fleet.in_repair else Restart(fleet.full)


# ----------------------------------------------------------------------------------------------------------
# Elastic recovery: the run goes on with fewer replicas of the model, which share the same global batch.


class Shrink(Recovery):
    """The replica of the failed worker leaves for good; below the minimum, spare machines join.

    Examples
    --------
    >>> Shrink().after_failure(Fleet(full=8, running=7, spare=4, in_repair=1, replica=2))
    Restart(workers=6, whole_job=False)
    """

    def after_failure(self, fleet: Fleet) -> Restart | None:
        """Return a run with the replicas that are still complete."""
        workers = fleet.fitting(fleet.running) or fleet.fitting(fleet.running + fleet.spare)
        return Restart(workers) if workers else None


class ShrinkAndRegrow(Recovery):
    """Go on with all available machines; after a checkpoint, repaired machines join again.

    Examples
    --------
    >>> fleet = Fleet(full=8, running=7, spare=0, in_repair=1)
    >>> ShrinkAndRegrow().after_failure(fleet), ShrinkAndRegrow().at_checkpoint(fleet)
    (Restart(workers=7, whole_job=False), None)
    >>> ShrinkAndRegrow().at_checkpoint(Fleet(full=8, running=7, spare=1, in_repair=0))
    Restart(workers=8, whole_job=False)
    """

    def after_failure(self, fleet: Fleet) -> Restart | None:
        """Return a run with as many replicas as there are machines for."""
        workers = fleet.fitting(fleet.running + fleet.spare)
        return Restart(workers) if workers else None

    def at_checkpoint(self, fleet: Fleet) -> Restart | None:
        """Return a larger run when there are machines for it."""
        workers = fleet.fitting(fleet.running + fleet.spare)
        return Restart(workers) if workers > fleet.running else None
