"""The page of the Python API: the public names of `sim`, and others for scripts and plugins."""

from __future__ import annotations

from typing import Final

import sim

_HEAD: Final = """\
# Python

Names of `sim` are public, and are changed last. What is below them may move between minor versions, and
every change is in the [changelog](../CHANGELOG.md).
"""
_BESIDES: Final = {
    "Scenarios": ("scenarios.run.load.load_scenario", "scenarios.run.execute.run_scenario"),
    "Names and plugins": (
        "sim.base.plugins.names",
        "sim.base.plugins.lookup",
        "sim.base.plugins.register",
        "sim.base.plugins.unregister",
    ),
    "Errors": tuple(
        f"sim.base.errors.{name}"
        for name in (
            "SimError",
            "InputError",
            "ScenarioError",
            "InfeasibleError",
            "StuckError",
            "OutOfMemoryError",
        )
    ),
}


def text() -> str:
    """Return the page; Python tells where a name is defined, because `sim` imports its names lazily."""
    where = [f"{getattr(sim, name).__module__}.{name}" for name in sim.__all__]
    parts = [_HEAD, "## sim\n", *(f"::: {path}\n" for path in where)]
    for title, paths in _BESIDES.items():
        parts += [f"## {title}\n", *(f"::: {path}\n" for path in paths)]
    return "\n".join(parts)
