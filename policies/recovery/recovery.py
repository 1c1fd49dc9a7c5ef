"""The protocol of recovery policies: what a training run does when a worker has failed.

::

    failure ──► detected ──► after_failure(fleet) ──► Restart(workers, ...)   ──► the run goes on
                                     │
                                     └──► None: wait until a machine is repaired, and ask again
    checkpoint ─────────────► at_checkpoint(fleet) ─► Restart: with other workers; None: go on

A policy decides and never waits: it sees how many machines there are, and answers with a number.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.words.errors import InputError

__all__ = ["Fleet", "Recovery", "Restart"]


class Fleet(NamedTuple):
    """The machines of a run, as they are when a policy is asked.

    Attributes
    ----------
    full : int
        Workers of the run at its full size.
    running : int
        Workers of the run that have not failed.
    spare : int
        Machines that could be workers and are none.
    in_repair : int
        Machines that have failed and are not back yet.
    replica : int
        Workers that hold one copy of the model: the run has a multiple of that.
    minimum : int
        With fewer workers the run cannot go on.
    """

    full: int
    running: int
    spare: int
    in_repair: int
    replica: int = 1
    minimum: int = 1

    def fitting(self, machines: int) -> int:
        """Return how many workers so many machines make: whole replicas, at most all; 0: too few."""
        workers = min(machines // self.replica * self.replica, self.full)
        return workers if workers >= self.minimum else 0


class Restart(NamedTuple):
    """An answer: load the last checkpoint and go on.

    Attributes
    ----------
    workers : int
        With so many; those that run stay, spare machines join, the lowest number first.
    whole_job : bool
        Whether every process is started anew, or those of workers that have not failed go on.
    """

    workers: int
    whole_job: bool = False


class Recovery:
    """Override `after_failure`, and `at_checkpoint` where the run may change its size without a failure."""

    def after_failure(self, fleet: Fleet) -> Restart | None:
        """Return how the run goes on; None: wait until a machine is back, and ask again."""
        raise InputError(f"{type(self).__name__} must define after_failure()")

    def at_checkpoint(self, fleet: Fleet) -> Restart | None:
        """Return how the run goes on after a checkpoint; None: as it is."""
        return None
