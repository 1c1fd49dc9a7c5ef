"""One pool of threads inside ops, shared by all that run at once: TensorFlow's; times by hand."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import run_on_cpu as run

from devices.kinds import speedup
from devices.machine import make_device
from policies.issue.ready_queue import ReadyQueue
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import GraphBuilder, Machine, Trace, simulate
from sim.base.errors import InputError, ScenarioError
from sim.explain.bounds import bounds
from sim.explain.time_use import used_core_ns


def ends(trace: Trace) -> list[int]:
    """Return the end of each op, in the order given."""
    rows = zip(trace.tasks["op"].tolist(), trace.tasks["end_ns"].tolist(), strict=True)
    found = {trace.job.graph.op_names[op]: end for op, end in rows}
    return [found[f"op{i}"] for i in range(sum(name.startswith("op") for name in found))]


CURVE = {1: 1, 2: 2, 4: 3.2, 8: 4}


@pytest.mark.parametrize(
    ("ops", "spec", "expected"),
    [
        # Two ops, two of the four threads each; then the longer one has all four.
        ([(0, 20), (0, 40)], {"intra_op_parallelism_threads": 4}, [40, 60]),
        # The second comes at 10, when 30 of the first are left: both at half speed until 70.
        ([(0, 40), (10, 30)], {"intra_op_parallelism_threads": 4}, [70, 70]),
        # Ops that can use two of the four threads: two at once disturb nobody, three have 4/3 threads each.
        ([(0, 20)] * 2, {"intra_op_parallelism_threads": 4, "cores_per_op": 2}, [20, 20]),
        ([(0, 20)] * 3, {"intra_op_parallelism_threads": 4, "cores_per_op": 2}, [30, 30, 30]),
        # Eight threads are four times as fast as one, and two are twice: four ops at half speed each.
        ([(0, 20)] * 4, {"intra_op_parallelism_threads": 8, "speedup": CURVE}, [40] * 4),
        # Amdahl, half serial: 4 threads are 8/5 times as fast, 2 are 4/3; 4/3 / (8/5) = 5/6.
        ([(0, 50)] * 2, {"intra_op_parallelism_threads": 4, "serial_fraction": 0.5}, [60, 60]),
        # Six ops on two threads: a third of a thread each, a sixth of what each has alone.
        ([(0, 10)] * 6, {"intra_op_parallelism_threads": 2}, [60] * 6),
        # In a pool of one thread an op runs on its worker: eight workers.
        ([(0, 10)] * 8, {"intra_op_parallelism_threads": 1}, [10] * 8),
        # Two workers take two ops at a time: 2 x (2 x 20).
        ([(0, 20)] * 4, {"intra_op_parallelism_threads": 4, "workers": 2}, [40, 40, 80, 80]),
        # Sixteen threads on eight cores: two ops of eight threads each, at half speed.
        ([(0, 20)] * 2, {"intra_op_parallelism_threads": 16}, [40, 40]),
        # ... and each thread a core beyond the first adds a tenth.
        ([(0, 20)] * 2, {"intra_op_parallelism_threads": 16, "oversubscription_cost": 0.1}, [44, 44]),
    ],
    ids=str,
)
def test_ops_share_the_threads(ops: list[tuple[int, int]], spec: dict[str, Any], expected: list[int]) -> None:
    assert ends(run(ops, cores=8, **spec)) == expected


def test_the_pool_speeds_up_what_a_cost_model_times() -> None:
    """8 us on one core; a pool of four threads, of which an op may use two."""
    b = GraphBuilder("one")
    b.op("a", kind="conv", flops=8)
    for more, ns in (({}, 2000), ({"cores_per_op": 2}, 4000), ({"cores_per_op": 8}, 2000)):
        device = make_device(
            "c",
            {"kind": "cpu", "cores": 8, "intra_op_parallelism_threads": 4, "cost": {"fixed": "8us"}, **more},
        )
        assert simulate(b.build(), Machine((device,)), ReadyQueue()).makespan_ns == ns


def test_the_pool_bounds_the_cores_that_are_used() -> None:
    trace = run([(0, 40)] * 2, cores=8, intra_op_parallelism_threads=4)
    assert used_core_ns(trace).tolist()[0] == 4 * 80
    assert bounds(trace).by_source["device cpu0"] == 80


@pytest.mark.parametrize("sharing", ["cores", "none"])
def test_ops_cannot_have_cores_of_their_own_too(sharing: str) -> None:
    with pytest.raises(InputError, match=r"cpu0.sharing: ops share one pool of threads"):
        make_device(
            "cpu0", {"kind": "cpu", "cores": 4, "intra_op_parallelism_threads": 4, "sharing": sharing}
        )


def nanosecond_by_nanosecond(
    ops: list[tuple[int, int]], cores: int, pool: int, serial: Fraction
) -> list[int]:
    """End of each op when rates are set anew at every whole ns."""
    most = min(cores, pool)
    left = {i: Fraction(duration) for i, (_, duration) in enumerate(ops)}
    end: dict[int, int] = {}
    now = 0
    while left:
        for i in [i for i in left if ops[i][0] <= now and left[i] <= 0]:
            del left[i]
            end[i] = now
        running = [i for i in left if ops[i][0] <= now]
        if running:
            n = len(running)
            each = min(Fraction(most), Fraction(pool, n))
            fast = speedup(each, serial) if each > 1 else each
            load = Fraction(min(n * most, pool), cores)
            for i in running:
                left[i] -= fast / speedup(most, serial) / max(load, Fraction(1))
        now += 1
    return [end[i] for i in range(len(ops))]


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(2, 8),
    st.integers(2, 12),
    st.sampled_from(["0", "0.25", "0.5"]),
)
def test_shares_are_those_of_every_nanosecond(
    ops: list[tuple[int, int]], cores: int, pool: int, serial: str
) -> None:
    trace = run(ops, cores=cores, workers=8, intra_op_parallelism_threads=pool, serial_fraction=float(serial))
    assert ends(trace) == nanosecond_by_nanosecond(ops, cores, pool, Fraction(serial))
    assert trace.makespan_ns >= ceil(bounds(trace).lower_bound_ns)


SESSIONS = """
machine: {devices: {cpu0: {kind: cpu, cores: 8}}}
workload:
  sessions:
    a: {workload: {ops: {f: {duration: 20us}}}}
    b: {workload: {ops: {f: {duration: 40us}}}}
policy: {runtime: tensorflow}
"""


def scenario(folder: Path, text: str, *sets: str) -> Any:
    path = folder / "s.yaml"
    path.write_text(text)
    return load_scenario(path, sets=sets)


def test_sessions_share_the_pool_of_their_process(tmp_path: Path) -> None:
    shared = SESSIONS.replace("tensorflow}", "tensorflow, intra_op_parallelism_threads: 4}")
    assert run_scenario(scenario(tmp_path, SESSIONS)).trace.makespan_ns == 40_000  # cores of their own
    assert run_scenario(scenario(tmp_path, shared)).trace.makespan_ns == 60_000
    each = SESSIONS.replace("tensorflow}", "tensorflow, use_per_session_threads: true, "
                            "inter_op_parallelism_threads: 2, intra_op_parallelism_threads: 4}")  # fmt: skip
    assert run_scenario(scenario(tmp_path, each)).trace.makespan_ns == 60_000


def test_the_first_session_makes_the_pool(tmp_path: Path) -> None:
    first = SESSIONS.replace("20us}}}}", "20us}}}, intra_op_parallelism_threads: 2}")
    device = run_scenario(scenario(tmp_path, first)).trace.job.machine.devices[0]
    assert (device.details.intra_op_pool, device.cores_per_op, device.workers) == (2, 2, 8)
    same = first.replace("40us}}}}", "40us}}}, intra_op_parallelism_threads: 2}")
    assert run_scenario(scenario(tmp_path, same)).trace.makespan_ns == 60_000
    other = first.replace("40us}}}}", "40us}}}, intra_op_parallelism_threads: 4}")
    with pytest.raises(
        ScenarioError, match=r"s.yaml:6:.*sessions.b.intra_op_parallelism_threads: has no effect"
    ):
        run_scenario(scenario(tmp_path, other))


def test_no_number_is_as_many_threads_as_cores(tmp_path: Path) -> None:
    text = SESSIONS.replace("tensorflow}", "tensorflow, intra_op_parallelism_threads: 0}")
    assert run_scenario(scenario(tmp_path, text)).trace.job.machine.devices[0].details.intra_op_pool == 8


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        ("{devices: {cpu0: {kind: cpu, cores: 4, intra_op_parallelism_threads: 2}}}",
         r"intra_op_parallelism_threads: .*give one of them"),
        ("{devices: {cpu: {kind: cpu, count: 2}}, hosts: {p: {devices: ['cpu*']}}}",
         r"machine.hosts.p: launches for cpu0 and cpu1: .*not modelled"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path: Path, machine: str, says: str) -> None:
    text = SESSIONS.replace("{devices: {cpu0: {kind: cpu, cores: 8}}}", machine)
    text = text.replace("tensorflow}", "tensorflow, intra_op_parallelism_threads: 4}")
    with pytest.raises(ScenarioError, match=says):
        run_scenario(scenario(tmp_path, text))


def test_cpus_of_presets_and_of_a_count_have_the_pool(tmp_path: Path) -> None:
    text = SESSIONS.replace("tensorflow}", "tensorflow, intra_op_parallelism_threads: 4}")
    for machine in ("{devices: {cpu: {kind: cpu, cores: 8, count: 2}}}", "{preset: dgx-h100}"):
        case = scenario(tmp_path, text.replace("{devices: {cpu0: {kind: cpu, cores: 8}}}", machine)).case()
        pools = {d.name: d.details.intra_op_pool for d in case.work.machine.devices}
        plain = [d.name for d in case.scenario.machine.devices]
        assert list(pools) == plain
        assert pools == {name: 4 if name.startswith("cpu") else None for name in plain}
