"""Orders made for given times: validity, memory limits, and the proven optimum."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from policies.pipeline.evaluate import StageActivations, StageTimes, evaluate, peak_activations
from policies.pipeline.pipeline_schedule import Action, loop, one_pipeline, vee
from policies.pipeline.registry import generate
from policies.pipeline.validate import validate
from sim.base.errors import InfeasibleError, InputError, StuckError

NEEDS_ORTOOLS = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="ortools is not installed"
)


TIMES = st.integers(1, 12)


@given(
    ranks=st.integers(1, 4),
    micro_batches=st.integers(1, 6),
    chunks=st.integers(1, 2),
    transfer=st.integers(0, 4),
    spare=st.integers(0, 8),
    uniform=st.booleans(),
    objective=st.sampled_from(["span", "makespan"]),
    data=st.data(),
)
def test_a_searched_order_is_valid_and_keeps_to_its_memory(
    ranks: int,
    micro_batches: int,
    chunks: int,
    transfer: int,
    spare: int,
    uniform: bool,
    objective: Any,
    data: st.DataObject,
) -> None:
    stages = ranks * chunks
    one_or_all = TIMES if uniform else st.lists(TIMES, min_size=stages, max_size=stages)
    forward, input_grad, weight_grad = (data.draw(one_or_all) for _ in range(3))
    full = data.draw(st.integers(1, 5))
    left = data.draw(st.integers(0, full))
    limit = full * stages + spare
    schedule = generate(
        "zb-auto",
        ranks=ranks,
        micro_batches=micro_batches,
        chunks=chunks,
        forward=forward,
        input_grad=input_grad,
        weight_grad=weight_grad,
        transfer=transfer,
        kept={"backward": full, "weight_grad": left},
        limit=limit,
        objective=objective,
    )
    validate(schedule)
    assert max(peak_activations(schedule, StageActivations(full, left))) <= limit
    each = [v if isinstance(v, list) else [v] * stages for v in (forward, input_grad, weight_grad)]
    run = evaluate(
        schedule, [StageTimes(f, None, i, w) for f, i, w in zip(*each, strict=True)], transfer=transfer
    )
    assert schedule.meta["objective"] == (max(run.spans) if objective == "span" else run.makespan)


def test_a_rank_that_runs_all_its_forwards_first_does_not_hold_the_next_one_back() -> None:
    """3 ranks, 2 micro-batches, F 4, I 2, W 2, transfer 1: the shortest there is.

    The last rank starts at 10 and runs 2 F and 2 I until 22; the last gradient then takes 1 + 2 and 1 + 2
    to the first rank, whose last W ends at 30.
    """
    sizes = {"ranks": 3, "micro_batches": 2, "limit": 3, "objective": "makespan"}
    schedule = generate("zb-auto", **sizes, forward=4, input_grad=2, weight_grad=2, transfer=1)
    assert schedule.meta["objective"] == 30
    assert [[action.phase for action in program[:2]] for program in schedule.programs[:2]] == [["F", "F"]] * 2


@pytest.mark.parametrize(
    ("ranks", "micro_batches", "times", "transfer", "limit", "objective", "optimum"),
    [(3, 5, (1, 4, 1), 1, 4, "makespan", 42), (4, 6, (2, 3, 3), 2, 5, "span", 70)],
)
def test_a_rank_that_is_two_forwards_ahead_may_skip_one(
    ranks: int,
    micro_batches: int,
    times: tuple[int, int, int],
    transfer: int,
    limit: int,
    objective: str,
    optimum: int,
) -> None:
    """The search finds the optimum here (proven by CP-SAT), and would not if ranks ran further ahead."""
    schedule = generate(
        "zb-auto",
        ranks=ranks,
        micro_batches=micro_batches,
        **dict(zip(("forward", "input_grad", "weight_grad"), times, strict=True)),
        transfer=transfer,
        limit=limit,
        objective=objective,
    )
    assert schedule.meta["objective"] == optimum


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "micro_batches", "chunks", "times", "transfer", "limit", "span"),
    [  # spans of sail-sg/zero-bubble-pipeline-parallelism, scheduler/zb.py (one chunk) and zbv.py (two)
        (2, 6, 1, (19, 14, 19), 1, 2, 330),
        (2, 6, 2, (19, 14, 19), 1, 4, 631),
        (2, 6, 1, (14, 19, 15), 0, 4, 288),
        (2, 6, 2, (14, 19, 15), 0, 8, 581),
        (3, 6, 1, (18, 14, 13), 2, 3, 324),
        (3, 6, 2, (18, 14, 13), 2, 6, 566),
        (3, 6, 1, (7, 13, 10), 0, 6, 186),
        (3, 6, 2, (7, 13, 10), 0, 12, 372),
        (4, 8, 1, (14, 18, 20), 2, 4, 482),
        (4, 8, 2, (14, 18, 20), 2, 8, 868),
        (4, 8, 1, (15, 12, 13), 2, 8, 331),
        (4, 8, 2, (15, 12, 13), 2, 16, 652),
        (6, 12, 1, (15, 6, 19), 2, 6, 530),
        (6, 12, 2, (15, 6, 19), 2, 12, 1010),
        (6, 12, 1, (6, 6, 9), 0, 12, 252),
        (6, 12, 2, (6, 6, 9), 0, 24, 504),
        (8, 16, 1, (18, 13, 11), 1, 8, 840),
        (8, 16, 2, (18, 13, 11), 1, 16, 1466),
        (8, 16, 1, (14, 9, 16), 1, 16, 624),
        (8, 16, 2, (14, 9, 16), 1, 32, 1260),
    ],
)
def test_the_search_is_not_behind_the_authors(
    ranks: int,
    micro_batches: int,
    chunks: int,
    times: tuple[int, int, int],
    transfer: int,
    limit: int,
    span: int,
) -> None:
    """At the same limit, of so many activations, of which I leaves half."""
    found = generate(
        "zb-auto",
        ranks=ranks,
        micro_batches=micro_batches,
        chunks=chunks,
        **dict(zip(("forward", "input_grad", "weight_grad"), times, strict=True)),
        transfer=transfer,
        kept={"backward": 2, "weight_grad": 1},
        limit=2 * limit,
    )
    assert found.meta["objective"] <= span


@pytest.mark.slow
@given(data=st.data(), ranks=st.integers(2, 5), chunks=st.integers(1, 2), double=st.booleans())
@examples(40)
def test_the_search_is_not_behind_a_fixed_order_that_fits(
    data: st.DataObject, ranks: int, chunks: int, double: bool
) -> None:
    """Uneven stages: ZB-H1, ZB-H2, ZB-V, V-Half and V-Min at equal memory."""
    micro_batches = data.draw(st.integers(1, 3)) * ranks
    numbers = st.lists(st.integers(1, 20), min_size=ranks * chunks, max_size=ranks * chunks)
    forward, input_grad, weight_grad = (data.draw(numbers) for _ in range(3))
    limit = ranks * chunks * (1 + double)
    found = generate(
        "zb-auto",
        ranks=ranks,
        micro_batches=micro_batches,
        chunks=chunks,
        forward=forward,
        input_grad=input_grad,
        weight_grad=weight_grad,
        limit=limit,
    )
    assert max(peak_activations(found)) <= limit
    each = [StageTimes(f, None, i, w) for f, i, w in zip(forward, input_grad, weight_grad, strict=True)]
    for name in ("zb-h1", "zb-h2") if chunks == 1 else ("zb-v", "v-half", "v-min"):
        fixed = generate(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
        if max(peak_activations(fixed)) <= limit:
            assert found.meta["objective"] <= max(evaluate(fixed, each).spans)


def test_equal_times_leave_no_bubble() -> None:
    sizes = {"ranks": 4, "micro_batches": 16}
    wide = generate("zb-auto", **sizes, in_flight=7)
    assert wide.meta["objective"] == 16 * 3
    assert generate("zb-auto", **sizes, chunks=2).meta["objective"] == 16 * 6


@pytest.mark.slow
def test_more_memory_is_not_worse() -> None:
    sizes = {"ranks": 4, "micro_batches": 8, "forward": 5, "input_grad": 6, "weight_grad": 4, "transfer": 1}
    found = [generate("zb-auto", **sizes, limit=limit).meta["objective"] for limit in (2, 3, 4, 5, 6, 8)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_a_lean_v_takes_over_where_memory_is_short() -> None:
    sizes = {"ranks": 6, "micro_batches": 12, "chunks": 2}
    lean = generate("zb-auto", **sizes, limit=8)
    assert lean.programs == generate("v-half", ranks=6, micro_batches=12).programs
    leaner = generate("zb-auto", **sizes, limit=6)
    assert leaner.programs == generate("v-min", ranks=6, micro_batches=12).programs


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="rank 0 may hold 1 of activations and would need 2"):
        generate("zb-auto", ranks=2, micro_batches=4, kept=2, limit=1)
    with pytest.raises(InfeasibleError, match="raise in_flight or limit"):
        generate("zb-auto", ranks=6, micro_batches=12, chunks=2, limit=3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"chunks": 3}, "chunks 1.* and the V"),
        ({"forward": [1, 2, 3]}, "3 numbers of forward for 2 stages"),
        ({"weight_grad": -1}, "weight_grad must be a whole number of at least 0"),
        ({"forward": 1.5}, "forward: should be a whole number or a list"),
        ({"kept": {"weight_grad": 2}}, "cannot exceed"),
        ({"kept": {"weights": 2}}, "kept.weights: should be 'backward' or 'weight_grad'"),
        ({"solver": "greedi"}, "did you mean 'greedy'"),
        ({"objective": "spann"}, "did you mean 'span'"),
        ({"limt": 2}, "did you mean 'limit'"),
        ({"limit": 2, "in_flight": 2}, "both say what a rank may hold"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        generate("zb-auto", ranks=2, micro_batches=2, **wrong)


def every_order(stages: tuple[int, ...], micro_batches: int) -> list[list[Action]]:
    """Return all orders of one rank: F before I before W, each phase's micro-batches in order."""
    found = []
    letters = [(s, phase) for s in stages for phase in "FIW"] * micro_batches
    for word in set(itertools.permutations(letters)):
        seen = dict.fromkeys(word, 0)
        order = []
        for s, phase in word:
            order.append(Action(s, phase, seen[s, phase]))  # type: ignore[arg-type]
            seen[s, phase] += 1
            if not seen[s, "F"] >= seen[s, "I"] >= seen[s, "W"]:
                break
        else:
            found.append(order)
    return found


ORDERS = {1: [every_order((r,), 2) for r in (0, 1)], 2: [every_order(own, 1) for own in ((0, 3), (1, 2))]}
"""Of two ranks with one stage and two micro-batches each, or two stages and one."""

PLACES = {1: loop(2), 2: vee(2)}


@NEEDS_ORTOOLS
@examples(12)
@given(
    times=st.lists(st.tuples(*[st.integers(0, 12)] * 3), min_size=4, max_size=4),
    c=st.integers(0, 4),
    chunks=st.integers(1, 2),
    limit=st.integers(2, 6),
    left=st.integers(0, 2),
    objective=st.sampled_from(["span", "makespan"]),
)
def test_the_optimum_is_that_of_trying_all_orders(
    times: list[tuple[int, int, int]], c: int, chunks: int, limit: int, left: int, objective: str
) -> None:
    """And the bound that the search tells holds, and the search keeps to it."""
    stages = [StageTimes(f, None, i, w) for f, i, w in times[: 2 * chunks]]
    best = None
    for pair in itertools.product(*ORDERS[chunks]):
        schedule = one_pipeline("tried", pair, 3 - chunks, PLACES[chunks])
        if max(peak_activations(schedule, StageActivations(2, left))) <= limit:
            try:
                run = evaluate(schedule, stages, transfer=c)
            except StuckError:
                continue
            cost = max(run.spans) if objective == "span" else run.makespan
            best = cost if best is None else min(best, cost)
    forward, input_grad, weight_grad = (list(each) for each in zip(*times[: 2 * chunks], strict=True))
    given_: dict[str, Any] = {
        "ranks": 2,
        "micro_batches": 3 - chunks,
        "chunks": chunks,
        "forward": forward,
        "input_grad": input_grad,
        "weight_grad": weight_grad,
        "transfer": c,
        "kept": {"backward": 2, "weight_grad": left},
        "limit": limit,
        "objective": objective,
    }
    if best is None:
        with pytest.raises(InfeasibleError):
            generate("zb-auto", **given_, solver="cp-sat")
        return
    found = generate("zb-auto", **given_, solver="cp-sat")
    run = evaluate(found, stages, transfer=c)
    assert found.meta["proven"]
    assert found.meta["objective"] == (max(run.spans) if objective == "span" else run.makespan) == best
    assert max(peak_activations(found, StageActivations(2, left))) <= limit
    searched = generate("zb-auto", **given_).meta
    assert searched["bound"] <= best <= searched["objective"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "micro_batches", "times", "transfer", "mult", "optimum"),
    [  # proven by CP-SAT
        (3, 5, (13, 18, 16), 4, 2, 486),
        (2, 6, (16, 10, 6), 2, 2, 384),
        (3, 5, (19, 18, 13), 1, 1, 521),
        (3, 6, (18, 11, 15), 2, 2, 532),
        (4, 7, (6, 15, 12), 3, 1, 507),
        (4, 8, (10, 20, 10), 2, 1, 708),
    ],
)
def test_the_search_finds_the_optimum_of_small_vs(
    ranks: int, micro_batches: int, times: tuple[int, int, int], transfer: int, mult: int, optimum: int
) -> None:
    schedule = generate(
        "zb-auto",
        ranks=ranks,
        micro_batches=micro_batches,
        chunks=2,
        **dict(zip(("forward", "input_grad", "weight_grad"), times, strict=True)),
        transfer=transfer,
        kept={"backward": 2, "weight_grad": 1},
        limit=4 * ranks * mult,
    )
    validate(schedule)
    assert max(peak_activations(schedule, StageActivations(2, 1))) <= 4 * ranks * mult
    assert schedule.meta["objective"] == optimum


def test_a_bound_that_is_met_proves() -> None:
    assert generate("zb-auto", ranks=4, micro_batches=16, in_flight=7).meta == {
        "objective": 48,
        "bound": 48,
        "proven": True,
    }


@pytest.mark.slow
@NEEDS_ORTOOLS
@pytest.mark.parametrize("objective", ["span", "makespan"])
@pytest.mark.parametrize(("chunks", "limit", "micro_batches"), [(1, 3, 5), (1, 6, 5), (2, 4, 3), (2, 6, 3)])
def test_the_optimum_bounds_the_search(chunks: int, limit: int, micro_batches: int, objective: str) -> None:
    given_ = {
        "ranks": 3,
        "micro_batches": micro_batches,
        "chunks": chunks,
        "forward": 3,
        "input_grad": 2,
        "weight_grad": 1,
        "transfer": 1,
        "limit": limit,
        "objective": objective,
    }
    greedy = generate("zb-auto", **given_)
    best = generate("zb-auto", **given_, solver="cp-sat")
    validate(best)
    run = evaluate(best, StageTimes(3, None, 2, 1), transfer=1)
    assert best.meta["proven"]
    assert best.meta["objective"] == (max(run.spans) if objective == "span" else run.makespan)
    assert best.meta["objective"] <= greedy.meta["objective"]
    assert max(peak_activations(best)) <= limit


@NEEDS_ORTOOLS
def test_the_solver_says_what_cannot_fit() -> None:
    with pytest.raises(InfeasibleError, match="too small"):
        generate("zb-auto", ranks=2, micro_batches=2, kept=2, limit=1, solver="cp-sat")


def test_a_rank_runs_all_its_forwards_where_the_one_before_does() -> None:
    """Rank 0 runs both forwards, so rank 1 need not stay behind: F1 before I0, which could begin at 19.

    ::

        0   F0 0-7, F1 7-14                        I0 26-34, W0 34-36, I1 36-44, W1 44-46
        1           F0 7-14, F1 14-21, I0 21-26, I1 26-31, W0 31-37, W1 37-43
        2                F0 14-15, I0 15-19, W0 19-20, F1 21-22, I1 22-26, W1 26-27
    """
    times = {"forward": [7, 7, 1], "input_grad": [8, 5, 4], "weight_grad": [2, 6, 1], "transfer": 0}
    memory = {"kept": {"backward": 1, "weight_grad": 0}, "limit": 3}
    schedule = generate("zb-auto", ranks=3, micro_batches=2, solver="greedy", **times, **memory)
    second = [f"{action.phase}{action.micro_batch}" for action in schedule.programs[1]]
    assert second == ["F0", "F1", "I0", "I1", "W0", "W1"]
    assert schedule.meta["objective"] == 46
