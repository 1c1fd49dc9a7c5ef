"""Memory plans: TVM's tokens to the letter, and how far the heuristics are from the optimum."""

from __future__ import annotations

from itertools import accumulate, combinations, permutations
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plan_programs import Program, Step, plan_program

from devices.memory.device_memories import events_in_order, make_buffers
from devices.memory.device_memory import round_up
from devices.memory.planned import (
    PLANNERS,
    ArenaPlan,
    Lifetime,
    TokenPool,
    lifetimes_of_events,
    peak_live,
    plan_greedy,
    plan_relax,
    plan_relay,
)
from sim import Device, GraphBuilder, Machine
from sim.job.build_job import make_job
from sim.job.transfers import make_flow


def check(plan: ArenaPlan, alignment: int = 1) -> None:
    """Assert that no two tensors that live at the same time share a byte."""
    rows = sorted(
        (offset, offset + lifetime.nbytes, lifetime)
        for offset, lifetime in zip(plan.offsets, plan.lifetimes, strict=True)
    )
    for offset, end, lifetime in rows:
        inside = offset >= 0 and end <= plan.nbytes and not offset % alignment
        assert inside, f"plan {plan.planner}: {lifetime} at {offset} of {plan.nbytes} bytes"
    for (_, end, one), (offset, _, other) in combinations(rows, 2):
        together = one.first <= other.last and other.first <= one.last
        apart = offset >= end or not other.nbytes or not together
        assert apart, f"plan {plan.planner}: {one} and {other} share byte {offset}"


def chain(sizes: list[int], outputs: frozenset[int] | None = None) -> Program:
    """Return a chain of ops: tensor 0 is the input, op i makes tensor i + 1 from tensor i."""
    steps = [Step((i,), (i + 1,)) for i in range(len(sizes) - 1)]
    return Program(sizes, steps, frozenset({len(sizes) - 1}) if outputs is None else outputs)


def test_tokens_of_a_chain() -> None:
    # x → a → b → c → d, all of 4. An op requests before its input is released:
    #   a: new 1. b: new 2, then a's 1 is free. c: 1, then 2 is free. d: 2. The input keeps token 0 for good.
    plan = plan_program(chain([4, 4, 4, 4, 4]))
    assert plan.token_of == (0, 1, 2, 1, 2)
    assert plan.token_nbytes == (4, 4, 4)


def test_smallest_token_between_size_and_16_times_size() -> None:
    pool = TokenPool()
    big, small, mid = (pool.request(n) for n in (1601, 100, 400))
    for token in (big, small, mid):
        pool.release(token)
    assert pool.request(100) == small  # exactly the size
    assert pool.request(100) == mid  # the smallest that is larger
    # 1601 > 16 × 100: not taken, though free; nothing smaller either: a new one.
    assert pool.request(100) == 3
    # 1601 ≤ 16 × 101.
    assert pool.request(101) == big
    assert pool.sizes == [1601, 100, 400, 100]


def test_range_ends_are_included() -> None:
    pool = TokenPool()
    token = pool.request(1600)
    pool.release(token)
    assert pool.request(100) == token  # 1600 = 16 × 100
    pool.release(token)
    tiny = TokenPool()
    token = tiny.request(6)
    tiny.release(token)
    assert tiny.request(100) == token  # 100 // 16 = 6, enlarged
    assert tiny.sizes == [100]
    tiny.release(token)
    assert tiny.request(1616) == 1  # 1616 // 16 = 101 > 100
    assert tiny.sizes == [100, 1616]


def test_largest_smaller_token_is_enlarged() -> None:
    pool = TokenPool()
    a, b = pool.request(30), pool.request(50)
    pool.release(a)
    pool.release(b)
    assert pool.request(60) == b
    assert pool.sizes == [30, 60]
    # The larger side goes first, however much larger: 480 = 16 × 30 before the 29 that nearly fit.
    pool = TokenPool()
    big, near = pool.request(480), pool.request(29)
    pool.release(near)
    pool.release(big)
    assert pool.request(30) == big


def test_equal_tokens_oldest_first_upward_newest_first_downward() -> None:
    pool = TokenPool()
    tokens = [pool.request(64) for _ in range(3)]
    for i in (1, 2, 0):
        pool.release(tokens[i])
    assert [pool.request(64) for _ in range(3)] == [1, 2, 0]
    for i in (1, 2, 0):
        pool.release(tokens[i])
    assert pool.request(65) == 0  # enlarging takes the last released of the largest below


def test_tokens_of_a_diamond_with_a_weight() -> None:
    #        ┌─► b (40) ─┐
    # x ─► a (10)        ├─► d (20) ─► e (10)       w (8) is read by op 3
    #        └─► c (30) ─┘
    # 0: x, 1: w, 2: a, 3: b, 4: c, 5: d, 6: e
    steps = [Step((0,), (2,)), Step((2,), (3,)), Step((2,), (4,)), Step((3, 4, 1), (5,)), Step((5,), (6,))]
    plan = plan_program(Program([10, 8, 10, 40, 30, 20, 10], steps, frozenset({6})))
    # x, w: 0, 1 for good. a: 2 (10). b: 3 (40). c: 4 (30), then a's 2 is free (its second reader).
    # d (20): free is 2 (10): none of 20 … 320, the largest from 1 up is 10: enlarged. Then 3, 4 are free.
    # e (10): free are 4 (30) and 3 (40), within 10 … 160: the smallest, 4.
    assert plan.token_of == (0, 1, 2, 3, 4, 2, 4)
    assert plan.token_nbytes == (10, 8, 20, 40, 30)


def test_tensor_read_twice_by_one_op_and_one_nobody_reads() -> None:
    # Op 0 writes a (1) and an orphan (2): the orphan's token is free at once, before the inputs.
    # Op 1 reads a twice: released once, at the second.
    steps = [Step((0,), (1, 2)), Step((1, 1), (3,)), Step((3,), (4,))]
    plan = plan_program(Program([4, 4, 4, 4, 4], steps, frozenset({4})))
    assert plan.token_of == (0, 1, 2, 2, 1)


def test_outputs_and_parameters_are_never_shared() -> None:
    # Tensor 1 is an output read by op 1: still not released.
    plan = plan_program(chain([4, 4, 4, 4, 4], outputs=frozenset({1, 4})))
    assert plan.token_of == (0, 1, 2, 3, 2)


def test_classes_do_not_share() -> None:
    # As the chain, but a and c are float16 and the others float32: each reuses its own kind.
    kinds = ["f32", "f16", "f32", "f16", "f32"]
    assert plan_program(chain([4] * 5), kinds).token_of == (0, 1, 2, 1, 2)
    kinds = ["f32", "f16", "f32", "f32", "f16"]
    assert plan_program(chain([4] * 5), kinds).token_of == (0, 1, 2, 3, 1)


def test_program_and_its_lifetimes_make_the_same_tokens() -> None:
    program = chain([64, 32, 16, 48, 8, 64, 4])
    plan = plan_relay(program.lifetimes(), alignment=16)
    tokens = plan_program(program)
    starts = [0, *accumulate(round_up(nbytes, 16) for nbytes in tokens.token_nbytes)]
    assert plan.offsets == tuple(starts[token] for token in tokens.token_of)
    assert plan.nbytes == starts[-1]
    check(plan, 16)


def planned(ops: dict[str, dict[str, Any]], planner: str) -> dict[str, int]:
    """Return where each tensor lies whose ops run in program order."""
    builder = GraphBuilder("program")
    for name, facts in ops.items():
        builder.op(name, **{"outputs": 4, "duration_ns": 1, **facts})
    job = make_job(builder.build(), Machine((Device("gpu0"),)))
    flow = make_flow(job)
    events = events_in_order(make_buffers(job, flow), job, flow, 0, unread_first=planner == "relay")
    names, lifetimes = lifetimes_of_events(events)
    plan = PLANNERS[planner](lifetimes, 1)
    check(plan)
    return dict(zip(map(str, names), plan.offsets, strict=True))


def test_relay_releases_an_unread_output_before_the_arguments_and_relax_after() -> None:
    """b makes b:1, which nobody reads, and reads a: c takes the token that was released first."""
    ops = {"a": {}, "b": {"inputs": ["a"], "outputs": (8, 4)}, "c": {"inputs": ["b"]}}
    assert planned(ops, "relay") == {"a": 0, "b": 4, "b:1": 12, "c": 12}
    assert planned(ops, "relax") == {"a": 0, "b": 4, "b:1": 12, "c": 0}


def test_relax_keeps_data_types_apart_and_allocates_what_is_returned() -> None:
    ops = {
        "a": {"dtype": "fp32"},
        "b": {"dtype": "fp32", "inputs": ["a"]},
        "c": {"dtype": "int32", "inputs": ["b"]},
        "d": {"dtype": "fp32", "inputs": ["c"]},
        "e": {"dtype": "fp32", "inputs": ["c", "d"]},
        "fetch": {"kind": "retval", "inputs": ["e"], "outputs": ()},
    }
    # Relay: c takes a's token, d b's; e finds none free, as c and d are still read.
    assert planned(ops, "relay") == {"a": 0, "b": 4, "c": 0, "d": 4, "e": 8}
    # Relax: c is another data type; d takes a's, and e, though b's is free, is no part of the plan.
    assert planned(ops, "relax") == {"a": 0, "b": 4, "c": 8, "d": 0, "e": 12}


def test_what_is_returned_never_gives_its_token_back() -> None:
    rows = [Lifetime(4, 0, 1, returned=True), Lifetime(4, 2, 3)]
    assert plan_relay(rows).offsets == plan_relax(rows).offsets == (0, 4)


def test_greedy_by_size_worked() -> None:
    #  step    0  1  2  3
    #  a (6)   ████            at 0
    #  b (5)      █████        at 6, on a
    #  c (4)         ████      beside b only: at 0, the gap of 6 below b
    #  d (2)            ██     beside c, at 4
    #  e (1)   █               beside a, at 6
    tensors = [Lifetime(6, 0, 1), Lifetime(5, 1, 2), Lifetime(4, 2, 3), Lifetime(2, 3, 3), Lifetime(1, 0, 0)]
    plan = plan_greedy(tensors)
    assert plan.offsets == (0, 6, 0, 4, 6)
    assert (plan.nbytes, plan.bound) == (11, 11)


def test_greedy_takes_the_tightest_gap() -> None:
    # 70 ┌───────┐         At step 1 there are two gaps when the 2 comes: [17, 20) below the 19, and
    #    │   15  │         [53, 55) below the 15. First fit would take the lower one, best fit the tighter.
    # 55 ├──┐┌───┤
    #    │16││14 │
    # 39 ├──┴┴───┤
    #    │   19  │
    # 20 ├──┐┌───┤
    #    │20││17 │
    #  0 └──┘└───┘
    #   step 0  1
    steps = {20: (0, 0), 19: (0, 1), 17: (1, 1), 16: (0, 0), 15: (0, 1), 14: (1, 1), 2: (1, 1)}
    plan = plan_greedy([Lifetime(nbytes, *step) for nbytes, step in steps.items()])
    assert dict(zip(steps, plan.offsets, strict=True)) == {
        20: 0,
        19: 20,
        17: 0,
        16: 39,
        15: 55,
        14: 39,
        2: 53,
    }


def test_alignment_is_of_every_offset() -> None:
    tensors = [Lifetime(100, 0, 1), Lifetime(50, 0, 1), Lifetime(10, 1, 1)]
    for planner in PLANNERS.values():
        plan = planner(tensors, 64)
        check(plan, 64)
        assert all(offset % 64 == 0 for offset in plan.offsets)
        assert plan.nbytes == 128 + 64 + 64 == plan.bound


def test_greedy_above_the_optimum() -> None:
    # Greedy puts 4 at 0, 3 at 0, the long 2 on the 4, and the other 2 on top: 8. Optimal: 0–2 the long one.
    tensors = [Lifetime(2, 4, 4), Lifetime(3, 4, 4), Lifetime(4, 3, 3), Lifetime(2, 2, 4)]
    assert plan_greedy(tensors).nbytes == 8
    assert least_pile(tensors, 1) == 7


lifetimes = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(0, 3)).map(
        lambda row: Lifetime(row[0], row[1], row[1] + row[2])
    ),
    max_size=6,
)


def least_pile(rows: list[Lifetime], alignment: int) -> int:
    """Return the least height of tensors dropped on one another in any order.

    In some best plan no tensor can be lowered, so each lies on the floor or on one that it lives with:
    dropping the tensors in ascending order of offset makes that plan.
    """
    least = []
    for order in permutations(row for row in rows if row.nbytes):
        heights = [0] * 11
        for row in order:
            steps = slice(row.first, row.last + 1)
            top = max(heights[steps]) + round_up(row.nbytes, alignment)
            heights[steps] = [top] * (row.last + 1 - row.first)
        least.append(max(heights))
    return min(least)


@examples(40)
@given(lifetimes, st.sampled_from([1, 4]))
def test_plans_do_not_overlap_and_none_beats_the_optimum(rows: list[Lifetime], alignment: int) -> None:
    least = least_pile(rows, alignment)
    for name, planner in PLANNERS.items():
        plan = planner(rows, alignment)
        check(plan, alignment)
        assert plan.lifetimes == tuple(rows)
        assert peak_live(rows, alignment) <= plan.bound <= least <= plan.nbytes
        tops = [
            o + round_up(row.nbytes, alignment)
            for o, row in zip(plan.offsets, rows, strict=True)
            if row.nbytes
        ]
        assert name == "relay" or plan.nbytes == max(tops, default=0)


def test_check_finds_a_wrong_plan() -> None:
    rows = (Lifetime(4, 0, 1), Lifetime(4, 1, 2))
    with pytest.raises(AssertionError, match="share byte 3"):
        check(ArenaPlan(rows, (0, 3), 7, 7, "by hand"))
    with pytest.raises(AssertionError, match="at 4 of 7 bytes"):
        check(ArenaPlan(rows, (0, 4), 7, 7, "by hand"))
    check(ArenaPlan((Lifetime(4, 0, 0), Lifetime(4, 1, 2)), (0, 3), 7, 7, "by hand"))  # apart in time
