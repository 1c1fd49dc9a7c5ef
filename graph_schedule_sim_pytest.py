"""Scenarios as pytest tests (``pytest --sim-check scenarios/``), and a fixture for tests: ``simulate``.

Each run of which a scenario expects something is one test, called after its policy::

    scenarios/examples/head_of_line.yaml::window 2  PASSED

Without ``--sim-check``, or ``sim_check = true`` in pytest's configuration, nothing is collected, so that
having this package installed changes no test suite.
pytest imports this file in every project, even one with a folder ``scenarios`` or ``devices`` of its own. So
the file has a name that nobody else uses, and imports our packages only for what is asked of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from scenarios.regression import Checked
    from scenarios.run.scenario import Case
    from scenarios.simulate_fixture import Simulate
    from sim.base.plugins import Allowed

__all__ = ["ScenarioFile", "ScenarioTest", "simulate"]

_UPDATED: Final = pytest.StashKey[list[str]]()
"""What ``--sim-update`` wrote, a line each."""

_TABLES: Final = pytest.StashKey[dict[tuple[Path, str], str]]()
"""Tables of ops that it wrote."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options, which begin with ``--sim-``, and ``sim_check`` of the configuration."""
    group = parser.getgroup("sim", "scenarios of graph-schedule-sim")
    group.addoption(
        "--sim-check", action="store_true", help="collect scenarios (*.yaml) that expect something"
    )
    group.addoption(
        "--sim-update",
        action="store_true",
        help="write what came out into scenarios and tables of ops, in place of what does not hold",
    )
    group.addoption("--sim-allow-code", action="store_true", help="let scenarios name module:Class")
    group.addoption(
        "--sim-allow-outside", action="store_true", help="let scenarios name files outside their folders"
    )
    parser.addini("sim_check", "collect scenarios (*.yaml) that expect something", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to write from several processes at once."""
    config.stash[_UPDATED] = []
    config.stash[_TABLES] = {}
    several = hasattr(config, "workerinput") or config.getoption("numprocesses", None)
    if config.getoption("--sim-update") and several:
        raise pytest.UsageError("--sim-update writes files, which only one process may: add -n 0")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what ``--sim-update`` wrote."""
    tables = [f"{table}: the schedule of {run}" for (table, _), run in config.stash[_TABLES].items()]
    if lines := config.stash[_UPDATED] + tables:
        terminalreporter.section("sim: new values")
        for line in lines:
            terminalreporter.line(line)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect scenario files: those named on the command line, and those found in folders."""
    if not (parent.config.getoption("--sim-check") or parent.config.getini("sim_check")):
        return None
    if found := _shadowed():
        raise parent.CollectError(f"--sim-check: {found}")
    from scenarios.regression import SUFFIXES, is_scenario

    if file_path.suffix not in SUFFIXES:
        return None
    if not parent.session.isinitpath(file_path) and not is_scenario(file_path):
        return None
    collector: pytest.Collector = ScenarioFile.from_parent(parent, path=file_path)
    return collector


def _shadowed() -> str | None:
    """Return which package of ours Python finds elsewhere than beside this file, and what to do; or None."""
    here = Path(__file__).resolve().parent
    for package in ("sim", "devices", "policies", "scenarios"):
        spec = find_spec(package)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin != here / package / "__init__.py":
            return (
                f"{origin} shadows the package {package!r} of graph-schedule-sim; rename it or keep it off "
                "sys.path (`python -m pytest` puts the current folder there, `pytest` does not)"
            )
    return None


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Simulate:
    """Run a scenario or a graph: ``simulate("s.yaml", policy=Mine)["makespan"]``; see docs/regression.md."""
    if found := _shadowed():
        pytest.fail(f"simulate: {found}", pytrace=False)
    from scenarios.simulate_fixture import Simulate

    new_tables = request.config.stash[_TABLES] if request.config.getoption("--sim-update") else None
    return Simulate(request.path, new_tables, _allowed(request.config))


def _allowed(config: pytest.Config) -> Allowed:
    from sim.base.plugins import Allowed

    return Allowed(config.getoption("--sim-allow-code"), config.getoption("--sim-allow-outside"))


class ScenarioFile(pytest.File):
    """One scenario; a test for each of its runs that expects something."""

    def collect(self) -> Iterator[pytest.Item]:
        """Read the file; a mistake in it fails the collection with its place."""
        from scenarios.file.document import Document
        from scenarios.run.scenario import scenario_of
        from sim.base.errors import InputError

        try:
            cases = scenario_of(Document.read(self.path, _allowed(self.config))).expected_cases()
        except InputError as error:
            raise self.CollectError(str(error)) from None
        for i, case in enumerate(cases):
            # The scenario's own policy may be among those that it compares.
            again = any(case.label == other.label for other in cases[:i])
            yield ScenarioTest.from_parent(
                self, name=f"{case.label} (compared)" if again else case.label, case=case
            )


class ScenarioTest(pytest.Item):
    """One run, and everything that is expected of it."""

    def __init__(self, *, case: Case, **more: Any) -> None:
        super().__init__(**more)
        self.case = case
        # What `sim check` prints as a warning is one here, too, where warnings are errors.
        self.add_marker(pytest.mark.filterwarnings("default::UserWarning"))

    def runtest(self) -> None:
        """Run it, check the invariants of its trace, and fail with every expectation that does not hold."""
        from scenarios.regression import check_case

        rewritten = self.config.stash[_TABLES] if self.config.getoption("--sim-update") else None
        checked: Checked = check_case(self.case, rewritten=rewritten)
        short = os.path.relpath(self.path, self.config.invocation_params.dir)
        lines = [line.replace(str(self.path), short) for line in checked.messages]
        if checked.exit_status:
            pytest.fail("\n".join(lines), pytrace=False)
        self.config.stash[_UPDATED] += lines

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where it comes from: the line of what is first expected of it."""
        return self.path, self.case.expectations[0].place.line - 1, f"{self.path.name}: {self.name}"
