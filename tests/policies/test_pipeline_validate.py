"""A wrong order is explained in words: what is missing, doubled, impossible; who waits for whom."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pipeline.custom import from_programs, parse_csv
from policies.pipeline.evaluate import StageTimes, evaluate
from policies.pipeline.pipeline_schedule import Action, Schedule
from policies.pipeline.registry import generate
from policies.pipeline.validate import Dependencies, problems, validate
from sim.base import plugins
from sim.base.errors import InputError, StuckError


def order(text: str) -> Schedule:
    return from_programs(parse_csv(text))


def runs_to_the_end(schedule: Schedule) -> bool:
    """Let rank after rank go on as far as it can, until none can."""
    depends, made, left = (
        Dependencies(schedule),
        set[Action](),
        [list(program) for program in schedule.programs],
    )
    going = True
    while going:
        going = False
        for program in left:
            while program and made.issuperset(depends.of(program[0])):
                made.update(program.pop(0).parts)
                going = True
    return not any(left)


GOOD = "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"


def test_a_good_order_has_no_problem() -> None:
    assert problems(order(GOOD)) == []
    validate(order(GOOD))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0 0F1 0B0\n1F0 1B0 1F1 1B1", "0B1 is missing: rank 0 runs 0F1 and never its backward"),
        ("0F0 0B0 0B1\n1F0 1B0 1F1 1B1", "0F1 is missing: rank 0 runs a later phase of it"),
        ("0F0 0B0\n1F0 1B0 1F1 1B1", "0F1 and its backward are missing: rank 0"),
        ("0F0 0F1 0B0 0B1\n1F0 1I0 1F1 1B1", "1W0 is missing: rank 1 runs 1I0"),
        ("0F0 0F1 0B0 0B1\n1F0 1W0 1F1 1B1", "1I0 is missing: rank 1 runs 1W0"),
        (
            "0F0 0F1 0B0 0F1 0B1\n1F0 1B0 1F1 1B1",
            "0F1 is doubled: it stands at rank 0 position 1, rank 0 position 3",
        ),
        ("0F0 0F1 0B0 0B1\n1F0 1B0 1I0 1W0 1F1 1B1", "1B0 is impossible beside 1I0 and 1W0"),
    ],
)
def test_each_mistake_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        validate(order(text))
    assert said in str(error.value)


def test_stages_and_micro_batches_that_do_not_exist() -> None:
    good = order(GOOD)
    wrong = replace(
        good, programs=((*good.programs[0], Action(2, "F", 0), Action(0, "F", 2)), good.programs[1])
    )
    assert problems(wrong) == [
        "rank 0, position 4: 2F0 is impossible: there is no stage 2, stages are 0..1",
        "rank 0, position 5: 0F2 is impossible: there is no micro-batch 2, they are 0..1",
    ]


def test_an_action_on_a_rank_that_does_not_hold_its_stage() -> None:
    good = order(GOOD)
    moved = replace(good, programs=(good.programs[0][:3], (*good.programs[1], Action(0, "B", 1))))
    assert problems(moved) == [
        "0B1 is impossible on rank 1 (position 4): micro-batch 1 of stage 0 is on rank 0"
    ]


def test_many_mistakes_are_counted() -> None:
    good = generate("gpipe", ranks=2, micro_batches=20)
    with pytest.raises(InputError, match=r"\.\.\. and 8 more"):
        validate(replace(good, programs=(good.programs[0][:20], good.programs[1])))


def test_a_circle_of_two_ranks() -> None:
    with pytest.raises(StuckError) as error:
        validate(order("0F0 0B0 0F1 0B1\n1F1 1F0 1B0 1B1"))
    assert str(error.value).splitlines() == [
        "the order of 'custom' deadlocks, no rank can go on:",
        "  rank 0 waits at position 1 with 0B0 for 1B0 of rank 1 (position 2)",
        "  rank 1 waits at position 0 with 1F1 for 0F1 of rank 0 (position 2)",
        "  the circle: rank 0 waits for rank 1 waits for rank 0; "
        "one of these ranks must run what it is asked for earlier",
    ]


def test_a_rank_that_waits_for_itself() -> None:
    with pytest.raises(StuckError) as error:
        validate(order("0F0 0B0\n1B0 1F0"))
    assert (
        "rank 1 waits at position 0 with 1B0 for 1F0, which stands later on the same rank (position 1)"
        in str(error.value)
    )
    assert "rank 1 waits for itself" in str(error.value)


def test_an_overlap_of_an_action_with_its_own_input() -> None:
    with pytest.raises(StuckError, match="which stands in the same slot"):
        validate(order("(0F0;0B0)OVERLAP_F_B"))


def test_a_recompute_after_its_backward() -> None:
    with pytest.raises(StuckError, match="0B0 for 0R0, which stands later"):
        validate(order("0F0 0B0 0R0"))


def test_evaluation_tells_the_same_story() -> None:
    with pytest.raises(StuckError, match="rank 0 waits at position 1 with 0B0 for 1B0 of rank 1"):
        evaluate(order("0F0 0B0 0F1 0B1\n1F1 1F0 1B0 1B1"), StageTimes(forward=1, backward=1))


def test_evaluation_of_what_nobody_runs() -> None:
    good = order(GOOD)
    with pytest.raises(StuckError, match="for 1B1, which no rank runs"):
        evaluate(replace(good, programs=(good.programs[0], good.programs[1][:3])), StageTimes(1, 1))


@given(random=st.randoms(use_true_random=False), ranks=st.integers(1, 4), micro_batches=st.integers(1, 4))
def test_a_shuffled_order_runs_or_is_explained(random: Random, ranks: int, micro_batches: int) -> None:
    good = generate("zb-h1", ranks=ranks, micro_batches=micro_batches)
    programs = [list(program) for program in good.programs]
    for program in programs:
        random.shuffle(program)
    shuffled = replace(good, programs=tuple(map(tuple, programs)))
    assert problems(shuffled) == []
    times = StageTimes(forward=1, input_grad=1, weight_grad=1)
    if runs_to_the_end(shuffled):
        validate(shuffled)
        assert evaluate(shuffled, times).makespan >= 3 * micro_batches
    else:
        with pytest.raises(StuckError, match="waits"):
            validate(shuffled)
        with pytest.raises(StuckError, match="waits"):
            evaluate(shuffled, times)


@given(data=st.data())
def test_a_removed_action_is_missed(data: st.DataObject) -> None:
    good = generate("zb-v", ranks=3, micro_batches=5)
    rank = data.draw(st.integers(0, 2))
    gone = data.draw(st.integers(0, len(good.programs[rank]) - 1))
    program = good.programs[rank][:gone] + good.programs[rank][gone + 1 :]
    found = problems(replace(good, programs=(*good.programs[:rank], program, *good.programs[rank + 1 :])))
    action = good.programs[rank][gone].parts[0]
    assert len(found) == 1
    assert found[0].startswith(f"{action} is missing")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0F0,0B0\n1F0,1B0", "the mine order has 1 micro-batch, not 2"),
        ("0F0,0F1,0B0\n1F0,1F1,1B0,1B1", "0B1 is missing: rank 0 runs 0F1 and never its backward"),
        ("0F0,0F1,0I0,0I1\n1F0,1F1,1B0,1B1", "0W0 is missing"),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", "no rank can go on"),
    ],
)
def test_an_incomplete_schedule_of_another_package_is_refused(text: str, says: str) -> None:
    """Left as it is, it would do less work, and seem faster than complete ones."""
    plugins.register("sim.pipelines", "mine", lambda ranks, micro_batches: replace(order(text), name="mine"))
    try:
        with pytest.raises((InputError, StuckError), match=says):
            generate("mine", ranks=2, micro_batches=2)
    finally:
        plugins.unregister("sim.pipelines", "mine")
