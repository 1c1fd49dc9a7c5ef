"""Each family's picture is the one in its docstring; so are the clock cycles."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import pytest

from policies.pipeline.custom import picture
from policies.pipeline.evaluate import StageTimes, evaluate
from policies.pipeline.registry import generate
from policies.pipeline.straight_schedules import clock_cycles, clock_table
from sim.base.errors import InputError
from sim.base.plugins import lookup

PICTURES: list[tuple[str, dict[str, Any], StageTimes | None]] = [
    ("gpipe", {"ranks": 3, "micro_batches": 4}, None),
    ("1f1b", {"ranks": 3, "micro_batches": 4}, None),
    ("pipedream", {"ranks": 3, "micro_batches": 5}, None),
    ("interleaved-1f1b", {"ranks": 2, "micro_batches": 2, "chunks": 2}, None),
    ("looped-bfs", {"ranks": 2, "micro_batches": 2, "chunks": 2}, None),
    ("zb-h1", {"ranks": 3, "micro_batches": 5}, None),
    ("zb-h2", {"ranks": 3, "micro_batches": 5}, None),
    ("interleaved-zb", {"ranks": 2, "micro_batches": 2, "chunks": 2}, None),
    ("zb-v", {"ranks": 2, "micro_batches": 4}, None),
    (
        "zb-auto",
        {"ranks": 3, "micro_batches": 4, "forward": 3, "input_grad": 2, "limit": 4},
        StageTimes(forward=3, input_grad=2, weight_grad=1),
    ),
    ("v-half", {"ranks": 2, "micro_batches": 3}, None),
    ("v-min", {"ranks": 2, "micro_batches": 3}, None),
    ("dualpipe-v", {"ranks": 2, "micro_batches": 4}, None),
    ("chimera", {"ranks": 4, "micro_batches": 4}, None),
]


@pytest.mark.parametrize(("name", "sizes", "times"), PICTURES, ids=[each[0] for each in PICTURES])
def test_the_picture_is_the_docstrings(name: str, sizes: dict[str, Any], times: StageTimes | None) -> None:
    schedule = generate(name, **sizes)
    drawn = picture(schedule, evaluate(schedule, times) if times else None)
    make = lookup("sim.pipelines", name)
    told = f"{inspect.getdoc(make)}\n{inspect.getdoc(inspect.getmodule(make))}"
    assert f"``{name}`` with {sizes['ranks']} ranks" in told
    assert textwrap.indent(drawn, "    ") in told, f"\n{drawn}"


def test_clock_cycles_are_diagonals() -> None:
    #  m=4 micro-batches        clock_cycles: (micro-batch, stage)
    #   stage 0  0 1 2 3 . .
    #   stage 1  . 0 1 2 3 .
    #   stage 2  . . 0 1 2 3
    assert list(clock_cycles(4, 3)) == [
        [(0, 0)],
        [(1, 0), (0, 1)],
        [(2, 0), (1, 1), (0, 2)],
        [(3, 0), (2, 1), (1, 2)],
        [(3, 1), (2, 2)],
        [(3, 2)],
    ]
    assert list(clock_cycles(1, 3)) == [[(0, 0)], [(0, 1)], [(0, 2)]]
    assert list(clock_cycles(3, 1)) == [[(0, 0)], [(1, 0)], [(2, 0)]]


def test_the_clock_table_is_the_docstrings() -> None:
    told = clock_cycles.__doc__ or ""
    table = [found[0] for line in told.splitlines() if (found := re.search(r"cycle \d .*", line))]
    assert clock_table(4, 3).splitlines() == table


def test_clock_cycles_are_when_gpipe_runs_its_forwards() -> None:
    schedule = generate("gpipe", ranks=3, micro_batches=4)
    run = evaluate(schedule, StageTimes(forward=1, backward=2))
    for cycle, pairs in enumerate(clock_cycles(4, 3)):
        assert [run.starts[stage][i] for i, stage in pairs] == [cycle] * len(pairs)


def test_names_are_as_short_as_can_be_told_apart() -> None:
    one = picture(generate("1f1b", ranks=2, micro_batches=2))
    two = picture(generate("looped-bfs", ranks=2, micro_batches=2, chunks=2))
    three = picture(generate("looped-bfs", ranks=2, micro_batches=2, chunks=3))
    assert "F1" in one
    assert "f1" not in one
    assert "F1" in two
    assert "f1" in two
    assert "4F1" in three


def test_a_picture_nobody_can_read_is_refused() -> None:
    schedule = generate("gpipe", ranks=1, micro_batches=2)
    with pytest.raises(InputError, match="cannot be read"):
        picture(schedule, evaluate(schedule, StageTimes(forward=4001, backward=4003)))
