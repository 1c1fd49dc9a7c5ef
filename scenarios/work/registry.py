"""Kinds of workload, each a class whose fields are the keys of ``workload:``.

::

    entry point of group sim.workloads        workload: {ops: {...}}         the name is the key that
    ops = "scenarios.work...:InlineOps"                 ───                  tells the kind, and a field

The kinds of this project and of other packages are found alike, by name, and one is loaded when a scenario
names it: ``sim run`` of a few ops imports no pipelines and no importers. The schema is made of all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Final

from scenarios.work.workload import Work, Workload
from sim.words import plugins
from sim.words.errors import UnknownNameError

__all__ = ["Work", "Workload", "every_kind", "kind_names", "kind_of", "kinds_in"]

_GROUP: Final = "sim.workloads"


def kind_names() -> list[str]:
    """Return the keys that tell a kind, sorted; nothing is imported."""
    return plugins.names(_GROUP)


def kinds_in(keys: Collection[str]) -> list[str]:
    """Return the kinds that a workload with such keys names; other packages are asked where none is ours."""
    return [kind for kind in plugins.built_in(_GROUP) if kind in keys] or [
        kind for kind in kind_names() if kind in keys
    ]


def kind_of(name: str) -> type[Workload] | None:
    """Return the kind of that name; of what is no kind, or cannot be loaded, warn and return None."""
    try:
        kind = plugins.lookup(_GROUP, name)
    except UnknownNameError:  # it cannot be loaded: a warning says why
        return None
    if isinstance(kind, type) and issubclass(kind, Workload) and name in _keys(kind):
        return kind
    warnings.warn(
        f"the kind of workload {name!r} is left out: {kind!r:.80} should be a class that extends "
        f"scenarios.work.workload.Workload and has a field {name}",
        plugins.PluginWarning,
        stacklevel=2,
    )
    return None


def every_kind() -> Mapping[str, type[Workload]]:
    """Load all kinds; return them by name, sorted."""
    found = {name: kind_of(name) for name in kind_names()}
    return {name: kind for name, kind in found.items() if kind is not None}


def _keys(kind: type[Workload]) -> set[str]:
    return {field.alias or name for name, field in kind.model_fields.items()}
