"""Examples in docstrings run as they are shown."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import sim
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sim", "devices", "policies", "scenarios", "validation", "studies")


def with_examples() -> dict[str, list[str]]:
    """Return the modules whose docstrings have examples, by package: ``sim.graph``."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                parts = path.relative_to(ROOT).with_suffix("").parts
                module = ".".join(parts).removesuffix(".__init__")
                found.setdefault(".".join(parts[:2]), []).append(module)
    return found


FOUND = with_examples()


def test_no_public_parameters_share_a_line_without_a_type() -> None:
    """The reference would give each of them the type of another one."""
    public = [getattr(sim, name) for name in sim.__all__] + [load_scenario, run_scenario]
    members = [
        value for each in public if inspect.isclass(each) for value in vars(each).values() if callable(value)
    ]
    shared = re.compile(r"^ +\w+(, \w+)+$\n +[A-Z]", re.MULTILINE)
    assert not [found[0] for each in public + members if (found := shared.search(each.__doc__ or ""))]


@pytest.mark.parametrize(
    "package",
    [pytest.param(name, marks=pytest.mark.slow if name.startswith("studies.") else ()) for name in FOUND],
)
def test_examples_in_docstrings(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    modules = map(importlib.import_module, FOUND[package])
    failed = [each.__name__ for each in modules if doctest.testmod(each, optionflags=flags).failed]
    assert not failed, "what was expected and what came out is in the output above"
