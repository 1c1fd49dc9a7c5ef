"""Names of policies, linearizers, stream assignments and placements: each loads and says what it is."""

from __future__ import annotations

import inspect

import pytest

from sim.base.plugins import describe, lookup

NAMES = {
    "sim.policies": ["critical-path", "in-order", "out-of-order", "ready-queue", "replay"],
    "sim.linearizers": [
        *["critical-path-first", "depth-first", "memory-aware", "priority", "program"],
        *["replay", "reverse-depth-first", "topological", "greedy", "heft", "cpop", "peft"],
    ],
    "sim.streams": ["per-branch", "per-kind", "recorded", "replay", "round-robin", "single"],
    "sim.placements": [
        *["auto-tune", "cpop", "device-kind", "greedy", "heft", "min-cut", "optimal"],
        *["peft", "pinned", "replay", "round-robin", "single"],
    ],
    "sim.recoveries": ["replace-worker", "restart-job", "shrink", "shrink-and-regrow", "wait-for-repair"],
}
VERB = {
    "sim.policies": "next",
    "sim.linearizers": "order",
    "sim.streams": "assign",
    "sim.placements": "place",
    "sim.recoveries": "after_failure",
}
MUST_BE_GIVEN = {"program": {"ops": ["a"]}}


@pytest.mark.parametrize("group", NAMES)
def test_every_name_is_there_and_described(group: str) -> None:
    known = {found.name: found for found in describe(group)}
    for name in NAMES[group]:
        assert known[name].summary
        assert len(known[name].summary) <= 110
        assert known[name].distribution == "graph-schedule-sim"


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, names in NAMES.items() for name in names if name != "replay"]
)
def test_every_name_makes_something_that_decides(group: str, name: str) -> None:
    made = lookup(group, name)(**MUST_BE_GIVEN.get(name, {}))
    assert callable(getattr(made, VERB[group]))


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, names in NAMES.items() for name in names]
)
def test_no_option_is_called_as_a_key_of_scenarios(group: str, name: str) -> None:
    """``name`` says which policy it is, and the decisions have keys of their own beside the options."""
    options = set(inspect.signature(lookup(group, name)).parameters)
    taken = {"name"}
    if group == "sim.policies":
        taken |= {"runtime", "placement", "streams", "linearize", "knowledge"}
    assert not options & taken
