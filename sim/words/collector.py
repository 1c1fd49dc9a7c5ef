"""The garbage collector, out of the way: a run makes many objects, and no cycles worth collecting."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]


@contextmanager
def collector_paused(*, keeps: bool = False) -> Iterator[None]:
    """Pause the garbage collector, which would otherwise visit every object of the run again and again.

    Parameters
    ----------
    keeps : bool
        Whether what is made meanwhile stays: then it is visited once, and counts as old.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if keeps:
                gc.collect(1)  # visits only what is new, once; what others froze stays frozen
            gc.enable()
