"""What `sim diff` answers: numbers and sentences, for a terminal, for programs and for a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from sim.diff.carried import own_ns
from sim.diff.differences import Differences
from sim.diff.schedule import Schedule
from sim.diff.time_spent import PathChange, idle_change, path_change
from sim.diff.why import Why, why_first_moved
from sim.words.arrays import IntArray

__all__ = ["SCHEMA", "Answer"]

SCHEMA: Final = "sim.diff/1"
"""What ``"schema"`` says in the output of ``sim diff --json``."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What differs between A and B.

    Attributes
    ----------
    differences : Differences
    top : int
        How many entries a list has.
    """

    differences: Differences
    top: int = 10

    @cached_property
    def why(self) -> Why | None:
        """Why the first op that moved has moved."""
        return why_first_moved(self.differences)

    @cached_property
    def own_ns(self) -> IntArray | None:
        """How much of each pair's move is its own, where it counts; None where a table says nothing of it."""
        own = own_ns(self.differences)
        return None if own is None else np.where(np.abs(own) > self.differences.over_ns, own, 0)

    @cached_property
    def idle(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Device -> reason -> idle time in A and in B; only what differs."""
        found = {
            device: {reason: both for reason, both in reasons.items() if both[0] != both[1]}
            for device, reasons in idle_change(self.differences).items()
        }
        return {device: reasons for device, reasons in found.items() if reasons}

    @cached_property
    def path(self) -> PathChange | None:
        """How the critical paths differ."""
        return path_change(self.differences)

    def only(self, schedule: Schedule, rows: IntArray) -> list[tuple[str, int, int, int]]:
        """Return (what, kind, how many, ns, first row) of rows that are in one schedule alone.

        Events of a recording are counted by what they do, and ops of a program each by itself.
        """
        label = schedule.labels if schedule.numbered else schedule.names
        groups: dict[str, list[int]] = {}
        for row in rows.tolist():
            groups.setdefault(label[row], []).append(row)
        found = [(name, len(of), int(schedule.lasted_ns[of].sum()), of[0]) for name, of in groups.items()]
        return sorted(found, key=lambda one: (-one[2], -one[1], one[3]))[: self.top]

    def to_json(self) -> dict[str, Any]:
        """Return what ``sim diff --json`` prints."""
        d, why = self.differences, self.why
        return {
            "schema": SCHEMA,
            "a": _side(d.a),
            "b": _side(d.b),
            "makespan_difference_ns": d.b.makespan_ns - d.a.makespan_ns,
            "over_ns": d.over_ns,
            "same": d.same,
            "matched_by": d.pairs.by,
            "matched": len(d.pairs.a),
            "moved": int(d.moved.sum()),
            "changed_duration": int(d.resized.sum()),
            "changed_lane": int(d.relaned.sum()),
            "first_moved": None if why is None else self._first(why),
            "moved_most": [
                {"by_ns": move.by_ns, "ops": move.ops, "first": self._pair(move.first)}
                for move in d.moves(self.top)
            ],
            "moved_by_themselves": None if self.own_ns is None else self._own(self.own_ns),
            "only_a": self._only(d.a, d.only_a),
            "only_b": self._only(d.b, d.only_b),
            "durations": [
                {
                    "kind": one.kind,
                    "ops": one.ops,
                    "a_ns": one.a_ns,
                    "b_ns": one.b_ns,
                    "changed_most": {
                        **self._pair(one.most),
                        "a_lasted_ns": int(d.a.lasted_ns[d.pairs.a[one.most]]),
                        "b_lasted_ns": int(d.b.lasted_ns[d.pairs.b[one.most]]),
                    },
                }
                for one in d.kinds(self.top)
            ],
            "idle": {
                device: {reason: _both(both) for reason, both in reasons.items()}
                for device, reasons in self.idle.items()
            },
            "critical_path": None if self.path is None else self._path(self.path),
        }

    def _first(self, why: Why) -> dict[str, Any]:
        assert self.differences.first is not None
        return {
            **self._pair(self.differences.first),
            "later_in": why.later,
            "reason": why.reason,
            "root": why.root,
            "why": list(why.chain),
            "waited_ns": {"a": why.waited_a, "b": why.waited_b},
        }

    def _own(self, own_ns: IntArray) -> dict[str, Any]:
        largest = self.differences.largest(own_ns, self.top)
        most = [{"by_ns": int(own_ns[k]), **self._pair(k)} for k in largest]
        return {"ops": int((own_ns != 0).sum()), "most": most}

    def _pair(self, k: int) -> dict[str, Any]:
        d = self.differences
        a, b = int(d.pairs.a[k]), int(d.pairs.b[k])
        return {
            "kind": d.a.kind_of(a),
            "iteration": int(d.a.iteration[a]),
            "a": {"op": d.a.names[a], "lane": d.a.lane_of(a), "start_ns": int(d.a.start_ns[a])},
            "b": {"op": d.b.names[b], "lane": d.b.lane_of(b), "start_ns": int(d.b.start_ns[b])},
        }

    def _only(self, schedule: Schedule, rows: IntArray) -> dict[str, Any]:
        return {
            "ops": len(rows),
            "most": [
                {
                    "op": name,
                    "kind": schedule.kind_of(row),
                    "ops": ops,
                    "ns": ns,
                    "first_start_ns": int(schedule.start_ns[row]),
                }
                for name, ops, ns, row in self.only(schedule, rows)
            ],
        }

    def _path(self, path: PathChange) -> dict[str, Any]:
        a, b = self.differences.a, self.differences.b
        return {
            "parts": {what: _both(both) for what, both in path.parts.items()},
            "ops_on_both": path.both,
            "only_a": [a.names[row] for row in path.only_a[: self.top]],
            "only_b": [b.names[row] for row in path.only_b[: self.top]],
        }


def _side(schedule: Schedule) -> dict[str, Any]:
    return {
        "title": schedule.title,
        "makespan_ns": schedule.makespan_ns,
        "recorded": schedule.recorded,
        "ops": int(schedule.compared.sum()),
    }


def _both(both: tuple[int, int]) -> Mapping[str, int]:
    return {"a_ns": both[0], "b_ns": both[1]}
