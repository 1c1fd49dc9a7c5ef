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
        Whether what is made meanwhile stays: then it counts as old, and is not visited then either.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if keeps and gc.get_freeze_count() == 0:  # else they are frozen for somebody who wants that
                gc.freeze()
                gc.unfreeze()
            gc.enable()
