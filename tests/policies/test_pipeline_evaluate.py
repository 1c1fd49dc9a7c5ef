"""Times of schedules: closed forms hold exactly, and two independent evaluations agree."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import pytest
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.pipeline.evaluate import StageTimes, closed_form, evaluate
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.registry import generate, schedules
from sim.base.errors import InputError

NAMES = [name for name, _ in schedules() if name not in ("custom", "zb-auto")]
TIME = st.integers(0, 20)


def relaxed(schedule: Schedule, times: list[StageTimes], transfer: int) -> list[list[tuple[int, int]]]:
    """Find all (start, end) another way: raise starts until every rule holds (Bellman and Ford)."""
    slots = [(r, i) for r, program in enumerate(schedule.programs) for i in range(len(program))]
    place = {a: (r, i) for r, i in slots for a in schedule.programs[r][i].parts}
    before: dict[tuple[int, int], list[tuple[tuple[int, int], int]]] = defaultdict(list)
    for r, i in slots:
        if i:
            before[r, i].append(((r, i - 1), 0))
        for a in schedule.programs[r][i].parts:
            needs = {
                "F": [("F", -1)],
                "R": [("F", 0)],
                "W": [("I", 0)],
                "B": [("F", 0), ("R", 0), ("B", 1), ("I", 1)],
                "I": [("F", 0), ("R", 0), ("B", 1), ("I", 1)],
            }[a.phase]
            for phase, step in needs:
                found = place.get(a._replace(stage=a.stage + step, phase=phase))  # type: ignore[arg-type]
                if found is not None:
                    before[r, i].append((found, transfer if found[0] != r else 0))
    start = dict.fromkeys(slots, 0)

    def end(slot: tuple[int, int]) -> int:
        parts = schedule.programs[slot[0]][slot[1]].parts
        return start[slot] + sum(times[a.stage].of(a.phase) for a in parts)

    changed = True
    while changed:
        changed = False
        for slot in slots:
            earliest = max((end(other) + lag for other, lag in before[slot]), default=0)
            if earliest > start[slot]:
                start[slot], changed = earliest, True
    return [
        [(start[r, i], end((r, i))) for i in range(len(program))]
        for r, program in enumerate(schedule.programs)
    ]


@examples(40)
@given(
    name=st.sampled_from(NAMES),
    ranks=st.integers(1, 4),
    micro_batches=st.integers(1, 9),
    chunks=st.integers(1, 3),
    checkpoint=st.sampled_from(["never", "except_last"]),
    transfer=st.integers(0, 5),
    data=st.data(),
)
def test_two_evaluations_agree(
    name: str,
    ranks: int,
    micro_batches: int,
    chunks: int,
    checkpoint: Any,
    transfer: int,
    data: st.DataObject,
) -> None:
    try:
        schedule = generate(
            name, ranks=ranks, micro_batches=micro_batches, chunks=chunks, checkpoint=checkpoint
        )
    except InputError:
        assume(False)
        return
    times = [
        StageTimes(*data.draw(st.tuples(TIME, st.none() | TIME, TIME, TIME, st.none() | TIME)))
        for _ in range(schedule.stages)
    ]
    run = evaluate(schedule, times, transfer=transfer)
    pairs = [list(zip(s, e, strict=True)) for s, e in zip(run.starts, run.ends, strict=True)]
    assert pairs == relaxed(schedule, times, transfer)


SIZES = {
    "name": st.sampled_from(NAMES),
    "ranks": st.integers(1, 9),
    "micro_batches": st.integers(1, 40),
    "chunks": st.integers(1, 4),
}


@given(**SIZES, forward=TIME, input_grad=TIME, weight_grad=TIME)
def test_closed_forms_hold_exactly(
    name: str, ranks: int, micro_batches: int, chunks: int, forward: int, input_grad: int, weight_grad: int
) -> None:
    times = StageTimes(forward=forward, input_grad=input_grad, weight_grad=weight_grad)
    check(name, ranks, micro_batches, chunks, times)


@given(**SIZES, forward=TIME, weight_grad=TIME)
def test_closed_forms_of_balanced_stages_hold_exactly(
    name: str, ranks: int, micro_batches: int, chunks: int, forward: int, weight_grad: int
) -> None:
    weight_grad = min(forward, weight_grad)
    check(name, ranks, micro_batches, chunks, StageTimes(forward, None, forward, weight_grad))
    check(name, ranks, micro_batches, chunks, StageTimes(forward, None, forward, forward))
    check(name, ranks, micro_batches, chunks, StageTimes(forward, forward))


def check(name: str, ranks: int, micro_batches: int, chunks: int, times: StageTimes) -> None:
    """Compare the formula with the evaluation, where both exist."""
    try:
        schedule = generate(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    except InputError:
        return
    sizes = {"ranks": ranks, "micro_batches": micro_batches, "chunks": chunks}
    form = closed_form(name, **sizes, times=times)
    if form is None:
        return
    run = evaluate(schedule, times)
    assert set(run.busy) == {form.work}
    assert form.value == (run.makespan if form.quantity == "makespan" else max(run.spans))


@pytest.mark.parametrize(
    ("name", "sizes", "times", "value"),
    [
        ("gpipe", (4, 1, 8), StageTimes(1, 2), 11 * 3),
        ("1f1b", (4, 1, 8), StageTimes(1, 2), 11 * 3),
        ("interleaved-1f1b", (4, 2, 8), StageTimes(1, 2), (8 * 2 + 3) * 3),
        ("looped-bfs", (4, 2, 8), StageTimes(1, 2), (8 * 2 + 3) * 3),
        ("zb-h1", (4, 1, 8), StageTimes(1, None, 1, 1), 8 * 3 + 3),
        ("zb-h1", (4, 1, 4), StageTimes(2, None, 9, 8), 4 * 19 + 3 * 9),
        ("zb-h2", (4, 1, 7), StageTimes(1, None, 1, 1), 7 * 3),
        ("zb-h2", (4, 1, 8), StageTimes(5, None, 6, 4), 8 * 15 + 3 * 3),
        ("zb-v", (4, 2, 8), StageTimes(1, None, 1, 1), 8 * 2 * 3),
        ("dualpipe", (8, 1, 20), StageTimes(1, None, 1, 1), 20 * 3 + 3 * 2),
        ("dualpipe-v", (4, 2, 10), StageTimes(1, None, 1, 1), 20 * 3 + 3 * 2),
        ("chimera", (4, 1, 4), StageTimes(1, 2), 4 * 3 + 2 * 2),
        ("chimera", (4, 1, 8), StageTimes(1, 1), 8 * 2 + 2),
    ],
)
def test_textbook_values(name: str, sizes: tuple[int, int, int], times: StageTimes, value: int) -> None:
    ranks, chunks, micro_batches = sizes
    form = closed_form(name, ranks=ranks, chunks=chunks, micro_batches=micro_batches, times=times)
    assert form is not None
    assert form.value == value
    check(name, ranks, micro_batches, chunks, times)


def test_bubbles_of_the_textbook() -> None:
    times = StageTimes(forward=1, backward=2)
    gpipe = closed_form("gpipe", ranks=4, micro_batches=8, times=times)
    interleaved = closed_form("interleaved-1f1b", ranks=4, micro_batches=8, chunks=2, times=times)
    assert gpipe is not None
    assert gpipe.bubble == Fraction(3, 11)
    assert interleaved is not None
    assert Fraction(interleaved.excess, interleaved.work) == Fraction(3, 2 * 8)
    run = evaluate(generate("interleaved-1f1b", ranks=4, micro_batches=8, chunks=2), times)
    assert run.bubble == interleaved.bubble


def test_formulas_keep_to_their_domain() -> None:
    split = StageTimes(forward=1, input_grad=1, weight_grad=1)
    fused = StageTimes(forward=1, backward=2)
    assert closed_form("1f1b", ranks=4, micro_batches=3, times=fused) is None
    assert closed_form("zb-h1", ranks=4, micro_batches=3, times=split) is None
    assert closed_form("zb-h1", ranks=4, micro_batches=8, times=fused) is None
    with pytest.raises(InputError, match="no time for them: give backward"):
        closed_form("gpipe", ranks=4, micro_batches=8, times=StageTimes(forward=2))
    assert closed_form("zb-h2", ranks=4, micro_batches=6, times=split) is None
    assert closed_form("zb-v", ranks=4, chunks=2, micro_batches=6, times=split) is None
    assert closed_form("chimera", ranks=4, micro_batches=8, times=fused) is None
    assert closed_form("v-min", ranks=4, chunks=2, micro_batches=8, times=split) is None


def test_zero_bubble_is_about_each_ranks_span() -> None:
    times = StageTimes(forward=5, input_grad=5, weight_grad=5)
    for name in ("zb-h2", "zb-v"):
        schedule = generate(name, ranks=4, micro_batches=12)
        run = evaluate(schedule, times)
        assert run.idle == (0, 0, 0, 0)
        assert run.span_bubble == 0
        assert run.makespan == run.busy[0] + (4 - 1) * 5
        assert run.bubble > 0


def test_a_fused_backward_gives_its_gradient_when_all_of_it_ends() -> None:
    fused = generate("custom", order="0F0 0B0\n1F0 1B0")
    split = generate("custom", order="0F0 0B0\n1F0 1I0 1W0")
    times = StageTimes(forward=3, input_grad=4, weight_grad=5)
    assert evaluate(fused, times, transfer=1).starts[0] == (0, 3 + 1 + 3 + 9 + 1)
    assert evaluate(split, times, transfer=1).starts[0] == (0, 3 + 1 + 3 + 4 + 1)


def test_a_recompute_overlaps_the_gradients_transfer() -> None:
    schedule = generate("gpipe", ranks=2, micro_batches=1, checkpoint="always")
    run = evaluate(schedule, StageTimes(forward=2, backward=3, recompute=2), transfer=7)
    # rank 0: F 0-2, R at once 2-4, B when the gradient is there: 2+7+2+2+3+7 = 23
    assert run.starts == ((0, 2, 23), (9, 11, 13))


def test_a_transfer_may_depend_on_the_link() -> None:
    schedule = generate("gpipe", ranks=3, micro_batches=1)
    links = {(0, 1): 1, (1, 2): 10, (2, 1): 100, (1, 0): 1000}
    run = evaluate(
        schedule, StageTimes(1, 1), transfer=lambda source, destination: links[source, destination]
    )
    assert run.makespan == 6 + 1111
    assert run.idle == (1115, 112, 0)


def test_a_v_turns_without_a_transfer() -> None:
    schedule = generate("zb-v", ranks=1, micro_batches=1)
    assert evaluate(schedule, StageTimes(1, None, 1, 1), transfer=99).makespan == 6


def test_a_compound_slot_takes_its_own_time() -> None:
    schedule = generate("dualpipe-v", ranks=1, micro_batches=2)
    sequential = evaluate(schedule, StageTimes(2, None, 2, 2)).makespan
    together = evaluate(schedule, StageTimes(2, None, 2, 2, overlapped=5)).makespan
    assert sequential - together == 1


def test_times_that_are_missing_are_asked_for() -> None:
    with pytest.raises(InputError, match=r"has I actions .* give input_grad and weight_grad"):
        evaluate(generate("zb-h1", ranks=2, micro_batches=2), StageTimes(forward=1, backward=2))
    with pytest.raises(InputError, match="has B actions"):
        evaluate(generate("gpipe", ranks=2, micro_batches=2), StageTimes(forward=1))
    with pytest.raises(InputError, match="3 stage times for 2 stages"):
        evaluate(generate("gpipe", ranks=2, micro_batches=2), [StageTimes(1, 1)] * 3)
