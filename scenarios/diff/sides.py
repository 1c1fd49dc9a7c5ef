"""What the two sides of `sim diff` may be, and how a command line names them.

::

    sim diff head.yaml --policy in-order --policy window-4    one scenario under two policies
    sim diff head.yaml --policy window-4                      ... its own policy against another one
    sim diff head.yaml --set-b workload.batch=64              ... as it is, and with a setting
    sim diff before.yaml after.yaml                           two scenarios
    sim diff head.yaml plan.json                              a scenario, and the same under a plan
    sim diff before.csv head.yaml                             a table of ops, and a scenario
    sim diff trace.json.gz                                    a recording and its simulation
    sim diff monday.json.gz tuesday.json.gz                   two recordings, as they were recorded

Anything may stand on either side. A recording is taken as recorded; it is simulated on a side for which a
policy or a setting is given, and on both if one file stands for both sides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from scenarios.importers.files import read_head
from sim.diff.ops_table import read_ops_table, runs_in, schedule_of_table
from sim.diff.schedule import Schedule, schedule_of
from sim.export.perfetto import PERFETTO_ENDINGS
from sim.record.plan import SCHEMA as PLAN
from sim.words.errors import InputError

if TYPE_CHECKING:
    from scenarios.run.scenario import Case, Scenario
    from sim.graph.graph import Graph
    from sim.trace import Trace

__all__ = ["Asked", "Side", "two_sides"]

_SCENARIO: Final = (".yaml", ".yml")
_TABLE: Final = (".csv", ".csv.gz", ".parquet")
_NO_TIMES: Final = "a plan has no times; name the scenario that it is of as the other side"
_SCHEMA: Final = re.compile(rb'"schema"\s*:\s*"(sim\.[a-z_]+/\d+)"')


@dataclass(frozen=True)
class Asked:
    """What the command line says of both sides.

    Attributes
    ----------
    paths : sequence of str
        One or two.
    policies : sequence of str
        ``--policy``: for both sides, or one for each.
    sets, sets_a, sets_b : sequence of str
        ``--set``, ``--set-a``, ``--set-b``.
    allow_code, allow_outside : bool
    """

    paths: Sequence[str]
    policies: Sequence[str] = ()
    sets: Sequence[str] = ()
    sets_a: Sequence[str] = ()
    sets_b: Sequence[str] = ()
    allow_code: bool = False
    allow_outside: bool = False


class Side(NamedTuple):
    """One side.

    Attributes
    ----------
    title : str
        What it is called.
    schedule : callable
        Runs it, or reads it. What is wrong with names was said before.
    case : Case, optional
        What runs, if it does.
    """

    title: str
    schedule: Callable[[], Schedule]
    case: Case | None = None


@dataclass(frozen=True)
class _One:
    """What is asked of one side."""

    path: str
    policy: str | None
    own: Sequence[str]
    asked: Asked = field(repr=False)

    @property
    def sets(self) -> list[str]:
        """The settings of both sides and its own."""
        return [*self.asked.sets, *self.own]

    @property
    def runs(self) -> bool:
        """Whether a recording runs: it is changed, or compared with itself under a change."""
        return self.policy is not None or bool(self.sets) or len(self.asked.paths) == 1


def two_sides(asked: Asked) -> tuple[Side, Side]:
    """Return A and B.

    Raises
    ------
    InputError
        What cannot be compared, or a single path of which there is one schedule only.
    """
    if len(asked.policies) > 2:
        raise InputError(f"--policy: takes one policy for each side, not {len(asked.policies)}")
    a, b = _given(asked)
    kinds = _kind(a.path), _kind(b.path)
    if len(asked.paths) == 1 and not asked.policies and not asked.sets_a and not asked.sets_b:
        return _alone(a, kinds[0])
    if kinds == ("plan", "plan"):
        raise InputError(f"{a.path}: {_NO_TIMES}")
    return _side(a, kinds[0], b), _side(b, kinds[1], a)


def _given(asked: Asked) -> tuple[_One, _One]:
    policies: tuple[str | None, str | None] = (None, None)
    if len(asked.policies) == 2:
        policies = asked.policies[0], asked.policies[1]
    elif asked.policies:
        both = len(asked.paths) == 2 or asked.sets_a or asked.sets_b
        policies = (asked.policies[0] if both else None, asked.policies[0])
        named = [_names_policies(path) for path in asked.paths]
        if named in ([True, False], [False, True]):  # the name is of that one
            policies = (asked.policies[0], None) if named[0] else (None, asked.policies[0])
    paths = asked.paths[0], asked.paths[-1]
    more = asked.sets_a, asked.sets_b
    a, b = (_One(paths[k], policies[k], more[k], asked) for k in (0, 1))
    return a, b


def _names_policies(path: str) -> bool:
    """Whether a file names policies: a scenario, or a table that holds the runs of several."""
    kind = _kind(path)
    return kind == "scenario" or (kind == "table" and bool(runs_in(read_ops_table(path))))


def _kind(path: str) -> str:
    """Return whether a file is a ``scenario``, a ``table``, a ``plan`` or a ``recording``."""
    name = path.lower()
    if name.endswith(_SCENARIO):
        return "scenario"
    if name.endswith(_TABLE):
        return "table"
    if os.path.isdir(path):
        return "recording"
    if name.endswith(PERFETTO_ENDINGS):
        raise InputError(
            f"{path}: Perfetto's own format is not read; `sim run --trace FILE.json` writes another"
        )
    head = read_head(path, 4096)
    if head.lstrip()[:1] == b"[" and b'"op"' in head:
        return "table"
    schema = _SCHEMA.search(head)
    what = schema[1].decode() if schema else ""
    if what == PLAN:
        return "plan"
    if what and not what.startswith("sim.graph/"):
        raise InputError(f"{path}: is {what}, which has no ops; `sim run --ops FILE.csv` writes what ran")
    return "recording"


def _side(one: _One, kind: str, other: _One) -> Side:
    if kind == "scenario" or (kind == "recording" and one.runs):
        return _of_case(_case(_scenario(one), one.policy), one.own)
    if kind == "plan":
        return _of_plan(one, other)
    if kind == "table":
        if one.sets:
            raise InputError(f"--set {one.sets[0]}: {one.path} is a table of what ran, and nothing to run")
        return _of_table(one.path, one.policy)
    return Side(f"{_name(one.path)}, as recorded", lambda: _as_recorded(_graph(one.path), one.path))


def _alone(one: _One, kind: str) -> tuple[Side, Side]:
    """Return both sides of one file: what was recorded and its simulation, or the two runs of a table."""
    if kind == "recording":
        graph = cache(lambda: _graph(one.path))
        run = cache(lambda: _simulated(graph()))
        if one.sets:
            simulated = _of_case(_case(_scenario(one), None))
        else:
            title = f"{_name(one.path)}, simulated"
            simulated = Side(title, lambda: schedule_of(run(), title, policy="the recorded order"))
        recorded = Side(
            f"{_name(one.path)}, as recorded",
            lambda: _as_recorded(graph(), one.path, None if one.sets else run),
        )
        return recorded, simulated
    if kind == "table":
        runs = runs_in(read_ops_table(one.path))
        if len(runs) == 2:
            return _of_table(one.path, runs[0]), _of_table(one.path, runs[1])
        if len(runs) > 1:
            raise InputError(
                f"{one.path}: holds the runs {', '.join(runs)}; name two with --policy, or a second file"
            )
        raise InputError(f"{one.path}: holds one run; name a second file")
    if kind == "plan":
        raise InputError(f"{one.path}: {_NO_TIMES}")
    scenario = _scenario(one)
    case = _case(scenario, None)
    if _is_recorded(case):
        title = f"{case.scenario.name}, as recorded"
        return Side(title, lambda: _as_recorded(case.work.graph, one.path)), _of_case(case)
    known = ", ".join(scenario.variants)
    raise InputError(
        f"{one.path}: is one run; name a second file, another --policy"
        + (f" (it compares {known})" if known else "")
        + ", or a setting of one side (--set-b KEY=VALUE)"
    )


# -- scenarios --------------------------------------------------------------------------------------


def _scenario(one: _One) -> Scenario:
    from scenarios.run.load import load_scenario

    asked = one.asked
    return load_scenario(
        one.path, sets=one.sets, allow_code=asked.allow_code, allow_outside=asked.allow_outside
    )


def _case(scenario: Scenario, policy: str | None) -> Case:
    return scenario.case(policy) if policy else scenario.case()


def _of_case(case: Case, own: Sequence[str] = (), label: str = "") -> Side:
    """Return the run of a case; `own` are the settings of this side alone, which its title names."""

    def run() -> Schedule:
        from scenarios.run.execute import run_case

        return schedule_of(run_case(case).trace, title, policy=case.label)

    title = f"{case.scenario.name}: {label or case.label}" + (f" ({', '.join(own)})" if own else "")
    return Side(title, run, case)


def _of_plan(one: _One, other: _One) -> Side:
    """Return the run in which the other side's scenario follows a plan."""
    if _kind(other.path) != "scenario":
        raise InputError(f"{one.path}: {_NO_TIMES}")
    if one.policy is not None:
        raise InputError(f"--policy {one.policy}: {one.path} is a plan, which decides everything")
    own = _case(_scenario(other), other.policy)
    policy = f"{{name: replay, file: {os.path.abspath(one.path)!r}"
    policy += f", synchronisation: {own.decisions.policy.synchronisation}}}"
    asked = replace(one.asked, allow_outside=True)  # the plan is named here, and not by the scenario
    scenario = _scenario(_One(other.path, None, [*one.own, f"policy={policy}"], asked))
    return _of_case(_case(scenario, None), one.own, _name(one.path))


# -- tables and recordings --------------------------------------------------------------------------


def _of_table(path: str, policy: str | None) -> Side:
    table = read_ops_table(path)
    schedule = schedule_of_table(path, table, policy)
    return Side(schedule.title, lambda: schedule)


def _name(path: str) -> str:
    return os.path.basename(os.path.abspath(path))


def _graph(path: str) -> Graph:
    from scenarios.importers import load_graph

    return load_graph(path, format="kineto" if os.path.isdir(path) else None)


def _is_recorded(case: Case) -> bool:
    return bool(case.work.graph.attribute("recorded_start_ns"))


def _simulated(graph: Graph) -> Trace:
    from scenarios.recorded.setup import run_recorded

    return run_recorded(graph)


def _as_recorded(graph: Graph, path: str, run: Callable[[], Trace] | None = None) -> Schedule:
    from scenarios.diff.recording import recorded_trace

    return schedule_of(recorded_trace(graph, path, run), f"{_name(path)}, as recorded", recorded=True)
