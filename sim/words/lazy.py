"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy"]


def lazy(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` (PEP 562), which imports a public name from the module that has it.

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
