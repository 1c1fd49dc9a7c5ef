"""What all tests share: recorded inputs, reproducible property tests, drawing without a display."""

from __future__ import annotations

import builtins
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import load_profile
from hanging import pytest_configure, pytest_runtest_protocol  # noqa: F401

import sim.base
import sim.kernel
from sim.kernel.run import is_compiled

if checked := os.environ.get("SIM_CHECKED_KERNEL"):  # `make test-all` has built it there
    for package in (sim.kernel, sim.base):
        package.__path__.insert(0, str(Path(checked).resolve() / package.__name__.replace(".", "/")))
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ |= {"COLUMNS": "80", "_TYPER_FORCE_DISABLE_TERMINAL": "1"}  # help is as wide and plain anywhere
if not is_compiled():  # its source runs where it would
    os.environ.setdefault("SIM_PURE", "1")

load_profile()
collect_ignore_glob = ["*.yaml"]  # what tests read; `pytest tests` checks none of it as a scenario


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is slow first: a long test at the end would run alone."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Let garbage collections pass over the thousands of collected tests, which live to the end."""
    _freeze()


@pytest.fixture(scope="module", autouse=True)
def _what_a_file_leaves_stays() -> Iterator[None]:
    """Let the collections of other files pass over the modules that one has imported, and what they keep."""
    known = len(sys.modules)
    yield
    if len(sys.modules) != known:
        _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", params=["auto", "simpy"])
def both_engines(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run what a test simulates on the engine that is chosen, and once more on SimPy."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "simpy":
            patch.setattr("sim.kernel.run.run", lambda *_, **__: "a test wants SimPy")
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the folder of the repository."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir(root: Path) -> Path:
    """Return the folder of recorded inputs, or skip: they are other people's and not part of the repository.

    It is ``$SIM_DATA``, or ``shared/data`` beside the repository.
    """
    given = os.environ.get("SIM_DATA")
    folder = Path(given) if given else root.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no recorded inputs: {folder} is not a folder (set SIM_DATA to where they are)")
    return folder


@pytest.fixture
def without_ortools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ortools be missing."""
    real_import = builtins.__import__

    def no_ortools(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("ortools"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_ortools)
