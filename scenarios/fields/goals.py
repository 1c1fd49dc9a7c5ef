"""The goal of a search: the least or the most of a result of ``expect:``, and limits on other results.

::

    --minimise step_time      --maximise tokens_per_s
    --subject-to 'peak_memory.gpu0<=80GB'      --subject-to 'mfu>=40%'      --subject-to fits

A row that failed (out of memory, say) is never the answer, so ``fits`` is always implied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scenarios.fields.results import WORDS, Value, check_named, column_of_result, holds, result_named
from sim.base.arrays import group_pairs
from sim.base.errors import InputError, in_file

_SIGNS: Final = {"<=": "at_most", ">=": "at_least", "=": "equals"}


class Limit(NamedTuple):
    """A limit of a result: ``at_most``, ``at_least`` or ``equals`` to a value in base units.

    `text` is the value as the user wrote it, in the user's unit.
    """

    result: str
    key: str
    value: Value
    text: str

    @property
    def column(self) -> str:
        """Column of the result in a row."""
        return column_of_result(self.result)

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether the limit holds in a row of results."""
        return holds(row[self.column], {self.key: self.value})

    def __str__(self) -> str:
        """Return ``peak_memory.gpu0 at most 80GB``."""
        return f"{self.result} {WORDS[self.key]}{self.text}"


class Goal(NamedTuple):
    """The goal of a search: the least or the most of a result, under some limits."""

    result: str
    most: bool = False
    limits: tuple[Limit, ...] = ()

    @property
    def results(self) -> tuple[str, ...]:
        """The results that the goal and its limits need."""
        return tuple(dict.fromkeys([self.result, *(limit.result for limit in self.limits)]))

    @property
    def column(self) -> str:
        """Column of the optimized result in a row."""
        return column_of_result(self.result)

    @property
    def sign(self) -> int:
        """Factor of a result that makes the least the best."""
        return -1 if self.most else 1

    def allows(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is an answer: it did not fail and keeps all limits."""
        return not row["error"] and all(limit.holds(row) for limit in self.limits)

    def rank_answers(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the indices of the answers, the best first; equal ones in the order of the table."""
        allowed = [i for i, row in enumerate(rows) if self.allows(row)]
        return sorted(allowed, key=lambda i: self.sign * rows[i][self.column])

    def answer(self, rows: Sequence[Mapping[str, Any]], settings: Sequence[str] = ()) -> dict[str, Any]:
        """Return the number of answers, the best row, and the runner-up; None if there is none."""
        ranked = self.rank_answers(rows)
        firsts = [rows[group[0]] for group in alike(rows, ranked, settings)]
        best, runner_up = (firsts[k] if k < len(firsts) else None for k in (0, 1))
        return {"answers": len(ranked), "best": best, "runner_up": runner_up}


def alike(
    rows: Sequence[Mapping[str, Any]], ranked: Sequence[int], settings: Sequence[str]
) -> list[list[int]]:
    """Return answers in groups with equal results, in the given order.

    Parameters
    ----------
    rows : sequence of mapping
    ranked : sequence of int
        Indices as `Goal.rank_answers` returns them.
    settings : sequence of str
        Columns that were varied, which are not results.

    Examples
    --------
    FSDP in a pipeline is ZeRO-1:

    >>> rows = [{"sharding": name, "step": ns} for name, ns in (("zero-1", 7), ("fsdp", 7), ("none", 9))]
    >>> alike(rows, [0, 1, 2], ["sharding"])
    [[0, 1], [2]]
    """

    def results(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        numbers = ((key, value) for key, value in row.items() if isinstance(value, (int, float)))
        return tuple((key, value) for key, value in numbers if key not in settings)

    return list(group_pairs((results(rows[i]), i) for i in ranked).values())


def read_goal(minimise: str | None, maximise: str | None, subject_to: Sequence[str] = ()) -> Goal | None:
    """Return the goal that the options of a command line describe, or None.

    Raises
    ------
    InputError
        Both at once, limits alone, an unknown result, a result without an order, a value without a unit.

    Examples
    --------
    >>> goal = read_goal("makespan", None, ["peak_memory.gpu0<=80GB", "fits"])
    >>> goal.column, [str(limit) for limit in goal.limits]
    ('makespan_ns', ['peak_memory.gpu0 at most 80GB'])
    """
    if minimise is not None and maximise is not None:
        raise InputError("give --minimise or --maximise, not both")
    result = minimise if minimise is not None else maximise
    if result is None:
        if subject_to:
            raise InputError("--subject-to is a limit on an answer: say what to --minimise or --maximise")
        return None
    option = "--minimise" if minimise is not None else "--maximise"
    with in_file(f"{option} {result}"):
        check_named(result)
    if not result_named(result).is_amount:
        raise InputError(f"{option} {result}: has no least and no most")
    return Goal(result, maximise is not None, tuple(_limits(subject_to)))


def _limits(texts: Sequence[str]) -> Iterator[Limit]:
    for text in texts:
        parts = re.fullmatch(r"\s*(.+?)\s*(?:(<=|>=|=)\s*(.+?)\s*)?", text)
        result, sign, value = parts.groups() if parts else ("", None, "")
        if not result or (sign is None and re.search("[<>]", result)):
            raise InputError(f"--subject-to {text!r}: give a result and its limit, as in 'mfu>=40%', or fits")
        if result == "fits" and sign is None:
            continue
        with in_file(f"--subject-to {result}"):
            check_named(result)
        if sign is None:
            raise InputError(f"--subject-to {text!r}: give its limit, too, as in '{result}<=...'")
        with in_file(f"--subject-to {text!r}"):
            yield Limit(result, _SIGNS[sign], result_named(result).read_text(value), value)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the Pareto-optimal points (less is better), by rising first value.

    Examples
    --------
    >>> front([(3, 1), (1, 3), (3, 3), (2, 2)])
    [1, 3, 0]
    """
    order = sorted(range(len(points)), key=lambda i: (*points[i], i))
    indices: list[int] = []
    for i in order:
        if not indices or points[i][1] < points[indices[-1]][1]:
            indices.append(i)
    return indices
