"""The answer of `sim diff`: numbers and sentences, for a terminal, for programs and for a picture."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from policies.issue.ready_queue import ReadyQueue
from policies.issue.replay import Planned, ReplayPlan
from scenarios.file.document import Document
from scenarios.importers import load_graph
from scenarios.importers.files import read_head
from scenarios.recorded.setup import as_recorded, run_recorded
from scenarios.run.execute import run_case
from scenarios.run.scenario import Case, Scenario, scenario_of
from sim.base.arrays import UNSET, IntArray, group_pairs
from sim.base.errors import InputError, in_file
from sim.base.files import read_bytes
from sim.base.plugins import NOTHING, Allowed
from sim.diff.differences import Differences, PathChange, idle_change, path_change
from sim.diff.propagated_delays import Why, own_ns, why_first_moved
from sim.diff.schedule import OpSchedule, read_ops_table, runs_in, schedule_of, schedule_of_table
from sim.explain.makespan_breakdown import BUBBLE, PARTS, MakespanChange, change
from sim.graph.graph import Graph
from sim.record.plan import SCHEMA as PLAN
from sim.record.record import TRANSFER_COLUMNS
from sim.trace import Trace

SCHEMA: Final = "sim.diff/1"
"""Value of ``"schema"`` in the output of ``sim diff --json``."""


@dataclass(frozen=True, eq=False)
class Answer:
    """The differences between A and B.

    Attributes
    ----------
    differences : Differences
    top : int
        Number of entries in each list.
    """

    differences: Differences
    top: int = 10

    @cached_property
    def why(self) -> Why | None:
        """Why the first op that moved did so."""
        return why_first_moved(self.differences)

    @cached_property
    def own_ns(self) -> IntArray | None:
        """Part of each pair's move that is its own, if above the threshold; None if a table cannot tell."""
        move_ns = own_ns(self.differences)
        return None if move_ns is None else np.where(np.abs(move_ns) > self.differences.over_ns, move_ns, 0)

    @cached_property
    def idle(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Device -> reason -> idle time in A and in B; only where they differ."""
        changes = {
            device: {reason: times for reason, times in reasons.items() if times[0] != times[1]}
            for device, reasons in idle_change(self.differences).items()
        }
        return {device: reasons for device, reasons in changes.items() if reasons}

    @cached_property
    def path(self) -> PathChange | None:
        """Differences between the critical paths."""
        return path_change(self.differences)

    @cached_property
    def makespan_change(self) -> MakespanChange | None:
        """Why the makespans differ; None if a table cannot tell."""
        a, b = self.differences.a.derived, self.differences.b.derived
        return None if a is None or b is None else change(a, b)

    def to_json(self) -> dict[str, Any]:
        """Return what ``sim diff --json`` prints."""
        diff, cause = self.differences, self.why
        return {
            "schema": SCHEMA,
            "a": _side(diff.a),
            "b": _side(diff.b),
            "makespan_difference_ns": diff.b.makespan_ns - diff.a.makespan_ns,
            "over_ns": diff.over_ns,
            "same": diff.same,
            "matched_by": diff.pairs.by,
            "matched": len(diff.pairs.a),
            "moved": int(diff.moved.sum()),
            "changed_duration": int(diff.resized.sum()),
            "changed_lane": int(diff.relaned.sum()),
            "first_moved": None if cause is None else self._first(cause),
            "moved_most": [{**move, "first": self._pair(move["first"])} for move in diff.moves(self.top)],
            "moved_by_themselves": None if self.own_ns is None else self._own(self.own_ns),
            "only_a": self._only(diff.a, diff.only_a),
            "only_b": self._only(diff.b, diff.only_b),
            "durations": [
                one | {"changed_most": self._durations(one["changed_most"])} for one in diff.kinds(self.top)
            ],
            "idle": {
                device: {reason: {"a_ns": a_ns, "b_ns": b_ns} for reason, (a_ns, b_ns) in reasons.items()}
                for device, reasons in self.idle.items()
            },
            "makespan": None if self.makespan_change is None else self._makespan(self.makespan_change),
            "critical_path": None if self.path is None else self._path(self.path),
        }

    def _first(self, cause: Why) -> dict[str, Any]:
        assert self.differences.first is not None
        return {
            **self._pair(self.differences.first),
            "later_in": cause.later,
            "reason": cause.reason,
            "root": cause.root,
            "why": list(cause.chain),
            "waited_ns": {"a": cause.waited_a, "b": cause.waited_b},
        }

    def _own(self, own_ns: IntArray) -> dict[str, Any]:
        largest = self.differences.largest(own_ns, self.top)
        moves = [{"by_ns": int(own_ns[k]), **self._pair(k)} for k in largest]
        return {"ops": int((own_ns != 0).sum()), "most": moves}

    def _pair(self, k: int) -> dict[str, Any]:
        diff = self.differences
        a, b = int(diff.pairs.a[k]), int(diff.pairs.b[k])
        shared = {"kind": diff.a.kind_of(a), "iteration": int(diff.a.iteration[a])}
        return {**shared, "a": _start(diff.a, a), "b": _start(diff.b, b)}

    def _durations(self, k: int) -> dict[str, Any]:
        diff = self.differences
        a_ns, b_ns = int(diff.a.lasted_ns[diff.pairs.a[k]]), int(diff.b.lasted_ns[diff.pairs.b[k]])
        return {**self._pair(k), "a_lasted_ns": a_ns, "b_lasted_ns": b_ns}

    def _only(self, schedule: OpSchedule, rows: IntArray) -> dict[str, Any]:
        """Return the number of rows in only one schedule, and the ops among them that take longest."""
        label = schedule.labels if schedule.numbered else schedule.names
        groups = group_pairs((label[row], row) for row in rows.tolist())
        ns = {name: int(schedule.lasted_ns[members].sum()) for name, members in groups.items()}
        ranked = sorted(groups, key=lambda name: (-ns[name], -len(groups[name]), groups[name][0]))
        ops = [
            {
                "op": name,
                "kind": schedule.kind_of(row),
                "ops": len(groups[name]),
                "ns": ns[name],
                "first_lane": schedule.lane_of(row),
                "first_start_ns": int(schedule.start_ns[row]),
            }
            for name, row in ((name, groups[name][0]) for name in ranked[: self.top])
        ]
        return {"ops": len(rows), "most": ops}

    def _makespan(self, change: MakespanChange) -> dict[str, Any]:
        a, b = change.a, change.b
        parts: dict[str, Any] = {"parts_of": {"a": a.device, "b": b.device}}
        parts["parts"] = _beside(PARTS, a.parts, b.parts)
        bubble = _beside(BUBBLE, a.bubble, b.bubble)
        return parts | ({"bubble": bubble} if bubble else {})

    def _path(self, path: PathChange) -> dict[str, Any]:
        a, b = self.differences.a, self.differences.b
        return {
            "ops_on_both": path.both,
            "only_a": [a.names[row] for row in path.only_a[: self.top]],
            "only_b": [b.names[row] for row in path.only_b[: self.top]],
        }


def _beside(names: Iterable[str], a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the parts of two makespans, in A and in B."""
    present = (name for name in names if name in a or name in b)
    return {name: {"a_ns": a.get(name, 0), "b_ns": b.get(name, 0)} for name in present}


def _side(schedule: OpSchedule) -> dict[str, Any]:
    return {
        "title": schedule.title,
        "makespan_ns": schedule.makespan_ns,
        "recorded": schedule.recorded,
        "ops": int((schedule.compared & (schedule.device != UNSET)).sum()),
        "transfers": int((schedule.compared & (schedule.device == UNSET)).sum()),
    }


def _start(schedule: OpSchedule, row: int) -> dict[str, Any]:
    return {
        "op": schedule.names[row],
        "name": schedule.name_of(row),
        "lane": schedule.lane_of(row),
        "start_ns": int(schedule.start_ns[row]),
    }


# ----------------------------------------------------------------------------------------------------------
# A recording as a trace, so that `sim.explain` and everything else works on recordings as on runs.
#
# The trace has the ops, lanes and edges of the recording's simulation, and the recorded times. The rest is
# derived: a task is issued when the call that launches it has ended, but no later than it starts; an op of
# the host is issued when it starts.


def recorded_trace(graph: Graph, path: object, run: Callable[[], Trace] | None = None) -> Trace:
    """Return a recording as a trace.

    Parameters
    ----------
    graph : Graph
        Graph that an importer made of the recording.
    path : object
        Its file, for messages.
    run : callable, optional
        Returns its simulation, if that exists already.

    Raises
    ------
    InputError
        No op has a recorded time.
    """
    recorded = as_recorded(graph)
    if not len(recorded.op):
        raise InputError(
            f"{path}: no op says when it was recorded (recorded_start_ns), so it is no recording"
        )
    simulated = run_recorded(graph) if run is None else run()
    start, end = (np.full(len(graph), UNSET) for _ in range(2))
    start[recorded.op], end[recorded.op] = recorded.start_ns, recorded.end_ns
    launched = simulated.job.launched
    ready = _ready(graph, start, end, launched.tolist())
    row = np.empty(len(graph), np.int64)
    row[simulated.tasks["op"]] = np.arange(len(simulated))
    stream, issuer = simulated.tasks["stream"][row], simulated.tasks["issuer"][row]
    op = np.flatnonzero(start != UNSET)
    op = op[np.lexsort((op, stream[op], start[op]))]
    columns = {
        "id": op,
        "stream": stream[op],
        "ready_ns": ready[op],
        "issue_ns": np.where(launched, ready, start)[op],
        "start_ns": start[op],
        "end_ns": end[op],
        "wait": np.zeros(len(op), np.int64),
        "issuer": issuer[op],
    }
    none = {name: np.zeros(0, np.int64) for name in ("id", *TRANSFER_COLUMNS)}
    return Trace.from_columns(
        simulated.job, simulated.flow, ReadyQueue(synchronisation="issue"), columns, none
    )


def _ready(graph: Graph, start: IntArray, end: IntArray, launched: list[bool]) -> IntArray:
    """Return when each op could be issued: its calls have ended, and its GPU predecessors are issued."""
    ready = np.zeros(len(graph), np.int64)
    starts, ends = start.tolist(), end.tolist()
    for op in graph.topological_order.tolist():
        ready_ns = 0
        for before in graph.predecessors.row(op).tolist():
            ahead = launched[op] and launched[before]
            ready_ns = max(ready_ns, int(ready[before]) if ahead else ends[before])
        ready[op] = min(ready_ns, starts[op]) if starts[op] != UNSET else ready_ns
    return ready


# ----------------------------------------------------------------------------------------------------------
# The two sides of `sim diff`, and how a command line names them.
#
#     sim diff head.yaml --policy in-order --policy window-4    one scenario under two policies
#     sim diff head.yaml --policy window-4                      ... its own policy and another one
#     sim diff head.yaml --set-b workload.batch=64              ... without and with a setting
#     sim diff before.yaml after.yaml                           two scenarios
#     sim diff head.yaml plan.json                              a scenario, and the same following a plan
#     sim diff before.csv head.yaml                             a table of ops, and a scenario
#     sim diff trace.json.gz                                    a recording and its simulation
#     sim diff monday.json.gz tuesday.json.gz                   two recordings, as they were recorded
#
# Each may be on either side. A recording is compared as recorded; it is simulated on a side with a policy or
# a setting, and then on both sides if a single file is both.

_SCENARIO: Final = (".yaml", ".yml")
_TABLE: Final = (".csv", ".csv.gz", ".parquet")
_NO_TIMES: Final = "a plan has no times; name the scenario that it is of as the other side"
_SCHEMA: Final = re.compile(rb'"schema"\s*:\s*"(sim\.[a-z_]+/\d+)"')


class Side(NamedTuple):
    """One side of a comparison.

    Attributes
    ----------
    title : str
        Title in the output.
    schedule : callable
        Runs or reads it. Names were checked before.
    """

    title: str
    schedule: Callable[[], OpSchedule]


class _Request(NamedTuple):
    """One side as requested: `sets` are the settings of both, `own_sets` its own, given with `option`;
    `is_both`: its file is both sides.
    """

    path: str
    policy: str | None
    own_sets: Sequence[str]
    option: str
    sets: Sequence[str]
    allowed: Allowed
    is_both: bool

    @property
    def runs(self) -> bool:
        """Whether a recording is simulated: it is changed, or compared with itself under a change."""
        return self.policy is not None or bool(self.sets or self.own_sets) or self.is_both


def two_sides(
    paths: Sequence[str],
    policies: Sequence[str] = (),
    sets: Sequence[str] = (),
    sets_a: Sequence[str] = (),
    sets_b: Sequence[str] = (),
    allowed: Allowed = NOTHING,
) -> tuple[Side, Side]:
    """Return the sides A and B.

    Parameters
    ----------
    paths : sequence of str
        One or two files.
    policies : sequence of str
        ``--policy``: one for both sides, or one for each.
    sets, sets_a, sets_b : sequence of str
        ``--set``, ``--set-a``, ``--set-b``.
    allowed : Allowed

    Raises
    ------
    InputError
        The files cannot be compared, or there is a single path with only one schedule.
    """
    if len(policies) > 2:
        raise InputError(f"--policy: takes one policy for each side, not {len(policies)}")
    chosen: Sequence[str | None] = (None, None)
    if len(policies) == 2:
        chosen = policies
    elif policies:
        named = [_names_policies(path) for path in paths]
        if named in ([True, False], [False, True]):  # the policy belongs to that side
            chosen = (policies[0], None) if named[0] else (None, policies[0])
        else:
            chosen = (policies[0] if len(paths) == 2 or sets_a or sets_b else None, policies[0])
    a, b = (
        _Request(path, policy, *settings, sets, allowed, len(paths) == 1)
        for path, policy, settings in zip(
            (paths[0], paths[-1]), chosen, ((sets_a, "--set-a"), (sets_b, "--set-b")), strict=True
        )
    )
    kinds = _kind(a.path), _kind(b.path)
    if len(paths) == 1 and not policies and not sets_a and not sets_b:
        return _sides_of_one_file(a, kinds[0])
    return _read_side(a, kinds[0], b), _read_side(b, kinds[1], a)


def _names_policies(path: str) -> bool:
    """Whether a file has policies: a scenario, or a table with the runs of several."""
    kind = _kind(path)
    return kind == "scenario" or (kind == "table" and bool(runs_in(read_ops_table(path))))


def _kind(path: str) -> str:
    """Return the kind of a file: ``scenario``, ``table``, ``plan`` or ``recording``."""
    name = path.lower()
    if name.endswith(_SCENARIO):
        return "scenario"
    if name.endswith(_TABLE):
        return "table"
    if os.path.isdir(path):
        return "recording"
    head = read_head(path, 4096)
    if head.startswith(b'{"devices":'):  # a plan, whose keys are sorted: its schema may come later
        head = read_bytes(path)
    if head.lstrip()[:1] == b"[" and b'"op"' in head:
        return "table"
    match = _SCHEMA.search(head)
    schema = match[1].decode() if match else ""
    if schema == PLAN:
        return "plan"
    if schema and not schema.startswith("sim.graph/"):
        raise InputError(f"{path}: is {schema}, which has no ops; `sim run --ops FILE.csv` writes what ran")
    return "recording"


def _read_side(one: _Request, kind: str, other: _Request) -> Side:
    if kind == "scenario" or (kind == "recording" and one.runs):
        return _case_side(_scenario(one).case(one.policy), one.own_sets)
    if kind == "plan":
        return _plan_side(one, other)
    if kind == "table":
        for option, given in (("--set", one.sets), (one.option, one.own_sets)):
            if given:
                raise InputError(
                    f"{option} {given[0]}: {one.path} is a table of what ran, and nothing to run"
                )
        return _table_side(one.path, one.policy)
    return Side(f"{_name(one.path)}, as recorded", lambda: _as_recorded(_graph(one.path), one.path))


def _sides_of_one_file(one: _Request, kind: str) -> tuple[Side, Side]:
    """Return both sides of one file: a recording and its simulation, or the two runs of a table."""
    if kind == "recording":
        graph = cache(lambda: _graph(one.path))
        run = cache(lambda: run_recorded(graph()))
        if one.sets:
            simulated = _case_side(_scenario(one).case())
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
            return _table_side(one.path, runs[0]), _table_side(one.path, runs[1])
        if len(runs) > 1:
            raise InputError(
                f"{one.path}: holds the runs {', '.join(runs)}; name two with --policy, or a second file"
            )
        raise InputError(f"{one.path}: holds one run; name a second file")
    if kind == "plan":
        raise InputError(f"{one.path}: {_NO_TIMES}")
    scenario = _scenario(one)
    case = scenario.case()
    if case.work.graph.attribute("recorded_start_ns"):
        title = f"{case.scenario.name}, as recorded"
        return Side(title, lambda: _as_recorded(case.work.graph, one.path)), _case_side(case)
    policies = ", ".join(scenario.variants)
    raise InputError(
        f"{one.path}: is one run; name a second file, another --policy"
        + (f" (it compares {policies})" if policies else "")
        + ", or a setting of one side (--set-b KEY=VALUE)"
    )


# -- scenarios --------------------------------------------------------------------------------------


def _scenario(one: _Request) -> Scenario:
    document = Document.read(one.path, one.allowed).with_settings(one.sets)
    return scenario_of(document.with_settings(one.own_sets, one.option))


def _case_side(case: Case, own_sets: Sequence[str] = ()) -> Side:
    """Return the run of a case; `own_sets` are settings of this side only, which its title names."""
    title = f"{case.scenario.name}: {case.label}" + (f" ({', '.join(own_sets)})" if own_sets else "")
    return Side(title, lambda: schedule_of(run_case(case).trace, title, policy=case.label))


def _plan_side(one: _Request, other: _Request) -> Side:
    """Return the run of the other side's scenario when it follows a plan."""
    if _kind(other.path) != "scenario":
        raise InputError(f"{one.path}: {_NO_TIMES}")
    if one.policy is not None:
        raise InputError(f"--policy {one.policy}: {one.path} is a plan, which decides everything")
    case = _scenario(one._replace(path=other.path)).case(other.policy)
    policy = ReplayPlan(file=Path(one.path), synchronisation=case.decisions.policy.synchronisation)
    decided: dict[str, Any] = {"policy": policy, "streams": Planned(policy.plan)}
    if not case.decisions.compile:  # a compiler places the scenario's ops; the plan has those that it makes
        decided["placement"] = decided["streams"]
    side = _case_side(case.deciding(**decided, label=_name(one.path)), one.own_sets)
    return side._replace(schedule=in_file(one.path)(side.schedule))


# -- tables and recordings --------------------------------------------------------------------------


def _table_side(path: str, policy: str | None) -> Side:
    table = read_ops_table(path)
    schedule = schedule_of_table(path, table, policy)
    return Side(schedule.title, lambda: schedule)


def _name(path: str) -> str:
    return os.path.basename(os.path.abspath(path))


def _graph(path: str) -> Graph:
    return load_graph(path, format="kineto" if os.path.isdir(path) else None)


def _as_recorded(graph: Graph, path: str, run: Callable[[], Trace] | None = None) -> OpSchedule:
    return schedule_of(recorded_trace(graph, path, run), f"{_name(path)}, as recorded", recorded=True)
