"""Packages whose public names are imported on first use."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def lazy(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` (PEP 562), which imports a public name from its module.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    where : mapping of str to str
        Name → module.

    Examples
    --------
    >>> lazy("sim", {"Graph": "sim.graph.graph"})("Graph")
    <class 'sim.graph.graph.Graph'>
    """

    def load(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(where[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


# ----------------------------------------------------------------------------------------------------------
# Pausing the garbage collector: a run makes many objects, but no cycles worth collecting.


@contextmanager
def collector_paused(*, keeps: bool = False) -> Iterator[None]:
    """Pause the garbage collector, which would otherwise visit every object of the run again and again.

    Parameters
    ----------
    keeps : bool
        Whether the new objects stay: then they are visited once, and count as old.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if keeps:
                gc.collect(1)  # visits only new objects, once; what others froze stays frozen
            gc.enable()
