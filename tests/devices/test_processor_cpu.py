"""Cores of a CPU: held first come, first served, or shared by time slices, exactly."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import run_on_cpu as run

from devices.machine import make_device
from policies.issue.ready_queue import ReadyQueue
from sim import GraphBuilder, Machine, Trace, simulate
from sim.base.errors import InfeasibleError, InputError
from sim.explain.bounds import bounds
from sim.record.record import WAITS


def spans(trace: Trace) -> list[tuple[int, int]]:
    """Return (start, end) of each op, in the order given."""
    rows = zip(*(trace.tasks[c].tolist() for c in ("op", "start_ns", "end_ns")), strict=True)
    found = {trace.job.graph.op_names[op]: (start, end) for op, start, end in rows}
    return [span for name, span in sorted(found.items()) if name.startswith("op")]


def test_ops_hold_their_cores() -> None:
    # 4 cores, 2 an op, 3 workers: the third op waits for the shorter of the first two.
    trace = run([(0, 40), (0, 30), (0, 20)], cores=4, cores_per_op=2, workers=3, sharing="cores")
    assert spans(trace) == [(0, 40), (0, 30), (30, 50)]
    assert WAITS[trace.tasks["wait"][-1]] == "resources"


def test_nobody_overtakes_one_that_waits_for_more_cores() -> None:
    # op1 needs 3 cores and waits for op0; op2 would fit beside op0, but came later.
    wants = {0: {"cores": 2}, 1: {"cores": 3}, 2: {"cores": 1}}
    spec: dict[str, Any] = {"cores": 3, "workers": 4, "sharing": "cores"}
    ops = [(0, 10), (1, 10), (2, 10)]
    assert spans(run(ops, attributes=wants, **spec)) == [(0, 10), (10, 20), (20, 30)]


def test_more_cores_than_there_are_is_refused_before_time_0() -> None:
    spec: dict[str, Any] = {"cores": 3, "workers": 4, "sharing": "cores"}
    with pytest.raises(InfeasibleError, match="op 'op0' needs 4 cores and cpu0 has 3"):
        run([(0, 10)], attributes={0: {"cores": 4}}, **spec)
    with pytest.raises(InputError, match=r"op 'op0': cores: 1\.5 is no whole number of at least 1"):
        run([(0, 10)], attributes={0: {"cores": 1.5}}, **spec)


def test_time_slices_are_equal() -> None:
    # 8 workers on 4 cores: everybody at half.
    assert spans(run([(0, 100)] * 8, cores=4, workers=8)) == [(0, 200)] * 8
    # 3 on 2 cores at 2/3: the short one (20) ends at 30; then two cores for two.
    assert spans(run([(0, 20), (0, 100), (0, 100)], cores=2, workers=3)) == [(0, 30), (0, 110), (0, 110)]


def test_without_oversubscription_nothing_is_slower() -> None:
    assert make_device("cpu0", {"kind": "cpu", "cores": 4, "sharing": "time"}).processor is None
    assert spans(run([(0, 100)] * 4, cores=4, workers=8)) == [(0, 100)] * 4


def test_oversubscription_costs() -> None:
    # 8 threads on 4 cores are one more a core; at a cost of 0.5 all take 1.5 times the fair 200.
    assert spans(run([(0, 100)] * 8, cores=4, workers=8, oversubscription_cost=0.5)) == [(0, 300)] * 8
    # 2 ops of 3 threads on 4 cores: load 3/2, half a thread more a core: 100 * 3/2 * 5/4 = 187.5.
    spec: dict[str, Any] = {"cores": 4, "workers": 2, "cores_per_op": 3, "oversubscription_cost": 0.5}
    assert spans(run([(0, 100)] * 2, **spec)) == [(0, 188)] * 2


def test_pools_have_a_sweet_spot() -> None:
    """Four chains on 16 cores, ops with a fifth serial (Amdahl): 4 workers of 4 cores each are best."""

    def makespan(workers: int, cores_per_op: int, serial: float = 0.2) -> int:
        b = GraphBuilder("chains")
        for i in range(16):
            b.op(f"op{i}", after=[f"op{i - 4}"] if i >= 4 else [])
        spec = {
            "kind": "cpu", "cores": 16, "workers": workers, "cores_per_op": cores_per_op,
            "cost": {"fixed": "1ms"}, "serial_fraction": serial, "oversubscription_cost": 0.3,
        }  # fmt: skip
        return simulate(b.build(), Machine((make_device("c", spec),)), ReadyQueue()).makespan_ns

    # An op on n cores takes 0.2 + 0.8 / n ms; min(workers, 4) run at once.
    measured = {(w, n): makespan(w, n) for w, n in [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)]}
    assert measured == {
        (1, 16): 4_000_000, (2, 8): 2_400_000, (4, 4): 1_600_000, (8, 2): 2_400_000, (16, 1): 4_000_000
    }  # fmt: skip
    # Both pools as large as the machine: 4 ops of 16 threads on 16 cores are slower than that by far:
    # 4 * 0.25 ms, times 4 for the time slices, times 1 + 0.3 * 3 for their cost.
    assert makespan(16, 16) == 7_600_000
    assert makespan(1, 16, 0) == makespan(4, 4, 0)  # perfect scaling: no difference


def nanosecond_by_nanosecond(
    ops: list[tuple[int, int]], cores: int, threads: int, cost: Fraction
) -> list[int]:
    """End of each op when rates are set anew at every whole ns."""
    left = {i: Fraction(duration) for i, (_, duration) in enumerate(ops)}
    end: dict[int, int] = {}
    now = 0
    while left:
        running = [i for i in left if ops[i][0] <= now]
        for i in running:
            if left[i] <= 0:
                del left[i]
                end[i] = now
        running = [i for i in running if i in left]
        load = Fraction(len(running) * threads, cores)
        rate = Fraction(1) if load <= 1 else 1 / load / (1 + cost * (load - 1))
        for i in running:
            left[i] -= rate
        now += 1
    return [end[i] for i in range(len(ops))]


@examples(100)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from([0, 0.1, 0.25, 1]),
)
def test_time_slices_agree_with_a_simulation_of_every_nanosecond(
    ops: list[tuple[int, int]], cores: int, cores_per_op: int, cost: float
) -> None:
    cores_per_op = min(cores_per_op, cores)
    trace = run(
        ops, cores=cores, workers=8, cores_per_op=cores_per_op, sharing="time", oversubscription_cost=cost
    )
    expected = nanosecond_by_nanosecond(ops, cores, cores_per_op, Fraction(str(cost)))
    assert [end for _, end in spans(trace)] == expected


def test_work_is_conserved_without_cost() -> None:
    """As long as there is work for all cores, fair time slicing finishes it when exclusive cores would."""
    ops = [(0, 30)] * 12
    assert run(ops, cores=4, workers=12).makespan_ns == 90
    assert run(ops, cores=4, workers=12, sharing="cores").makespan_ns == 90
    assert run(ops, cores=4).makespan_ns == 90
    assert ceil(12 * 30 / 4) == 90


def test_ops_that_ask_for_more_cores_than_their_workers_wait_for_them() -> None:
    """Four workers, one for each core: beside three cores there is room for one, and not for two."""
    wants = {0: {"cores": 3}, 1: {"cores": 2}, 2: {"cores": 1}}
    trace = run([(0, 10), (1, 10), (2, 10)], attributes=wants, cores=4)
    assert spans(trace) == [(0, 10), (10, 20), (10, 20)]  # the last came later
    assert bounds(trace).lower_bound_ns == 15
    one = run([(0, 10), (0, 10), (0, 10)], attributes={0: {"cores": 1}}, cores=4)
    assert spans(one) == [(0, 10)] * 3


def test_where_time_is_shared_the_cores_that_an_op_asks_for_bound_nothing() -> None:
    trace = run([(0, 10), (0, 10)], attributes={0: {"cores": 4}}, cores=4, sharing="time")
    assert trace.makespan_ns == 10 == bounds(trace).lower_bound_ns
