"""Kinds of workload, each a class whose fields are the keys of ``workload:``.

::

    entry point of group sim.workloads        workload: {ops: {...}}         the name is the key that
    ops = "scenarios.workloads...:InlineOps"            ───                  tells the kind, and a field

The project's own kinds and those of other packages are found alike. All are loaded when the first scenario is
checked, for together they are the schema; so a kind comes with an installed package, and cannot be registered
later in the process.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final

from scenarios.workloads.base import Work, Workload
from sim import plugins
from sim.errors import UnknownNameError

__all__ = ["WORKLOADS", "Work", "Workload"]

_GROUP: Final = "sim.workloads"


def _found() -> dict[str, type[Workload]]:
    """Return the kinds by name; of what is no kind, warn and leave it out."""
    kinds: dict[str, type[Workload]] = {}
    for name in plugins.names(_GROUP):
        try:
            kind = plugins.lookup(_GROUP, name)
        except UnknownNameError:  # it cannot be loaded: a warning has told why
            continue
        if isinstance(kind, type) and issubclass(kind, Workload) and name in _keys(kind):
            kinds[name] = kind
        else:
            warnings.warn(
                f"the kind of workload {name!r} is left out: {kind!r:.80} should be a class that extends "
                f"scenarios.workloads.Workload and has a field {name}",
                plugins.PluginWarning,
                stacklevel=2,
            )
    return kinds


def _keys(kind: type[Workload]) -> set[str]:
    return {field.alias or name for name, field in kind.model_fields.items()}


WORKLOADS: Final[Mapping[str, type[Workload]]] = _found()
"""The key that tells a kind, and the kind; sorted."""
