"""What did not hold, written anew into scenarios and tables of ops (``sim check --update``).

::

    makespan: {at_most: 45us}   # both cores    ──►    makespan: {at_most: 65us}   # both cores
    schedule: golden.csv                        ──►    golden.csv: the rows of this run are written anew

Only what failed changes. What stands in another file (``extends``) stays: others are held to it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scenarios.expect.expectation import Expectation, Outcome
from scenarios.fields.results import ORDER, RESULTS
from scenarios.file.document import Loc
from scenarios.file.rewrite import rewrite_file
from scenarios.file.yaml_read import Node, read_yaml
from scenarios.regression.golden import write_golden
from scenarios.regression.new_values import new_values
from sim.words.errors import InputError

if TYPE_CHECKING:
    from scenarios.run.execute import Result

__all__ = ["Updated", "update"]


class Updated(NamedTuple):
    """What was done about an outcome that failed.

    Attributes
    ----------
    outcome : Outcome
    told : str
        What was written, or why nothing was.
    done : bool
        Whether it holds now.
    """

    outcome: Outcome
    told: str
    done: bool


def update(result: Result) -> list[Updated]:
    """Write what came out in place of what was expected and did not.

    Raises
    ------
    OSError
        A file cannot be written.
    """
    found = []
    for outcome in result.outcomes:
        if not outcome.passed:
            try:
                found.append(Updated(outcome, f"written: {_written(outcome, result)}", True))
            except InputError as error:
                found.append(Updated(outcome, f"not written: {error}", False))
    return found


def _written(outcome: Outcome, result: Result) -> str:
    table = outcome.expectation.table
    if table is None:
        return _rewritten(outcome)
    write_golden(table, result, _holders(outcome.expectation, result))
    return str(outcome.condition["equals"])


def _rewritten(outcome: Outcome) -> str:
    """Change the scenario, which may have changed since it was read; return what was written."""
    expectation = outcome.expectation
    path = expectation.document.path
    there = _node(expectation, expectation.loc, read_yaml(path))
    if RESULTS[expectation.what.partition(".")[0]].unit is ORDER:
        values, told = _reordered(outcome, there), f"[{', '.join(outcome.actual)}]"  # type: ignore[arg-type]
    else:
        whole = not isinstance(there.value, dict)
        nodes = {"equals": there} if whole else dict(there.value)  # type: ignore[arg-type]
        percent = {key for key, node in nodes.items() if str(node.value).endswith("%")}
        values = [(nodes[key], text) for key, text in new_values(outcome, percent=percent).items()]
        told = ", ".join(f"{text} in place of {node.value}" for node, text in values)
    rewrite_file(path, {(node.place.line, node.place.column): text for node, text in values})
    return told


def _node(expectation: Expectation, loc: Loc, root: Node) -> Node:
    """Return the value of an expectation in its file as it is now."""
    node: Node | None = root
    for part in loc:
        node = node and node.child(part)
    place = expectation.place
    if node is None or (node.place.source, node.place.line) != (place.source, place.line):
        raise InputError(f"it stands in {place}, and holds for more than this scenario")
    return node


def _reordered(outcome: Outcome, there: Node) -> list[tuple[Node, str]]:
    """Return the names of a list of ops that change places."""
    listed = there.value["equals"].value if isinstance(there.value, dict) else there.value
    assert isinstance(listed, list)
    assert isinstance(outcome.actual, list)
    missing = [str(node.value) for node in listed if str(node.value) not in outcome.actual]
    if missing:  # it never ran, or was folded into another rank
        raise InputError(f"{missing[0]!r} is not among them")
    pairs = zip(listed, outcome.actual, strict=True)
    return [(node, name) for node, name in pairs if str(node.value) != name]


def _holders(expectation: Expectation, result: Result) -> list[str]:
    """Return the labels of the runs that are held to the same table."""
    return [
        case.label
        for case in result.case.base.expected()
        if any(each.table == expectation.table for each in case.expectations)
    ]
