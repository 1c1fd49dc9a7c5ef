"""Parts of a machine that fail, slow down and come back, in the simulation of steps: exact small cases."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.machine import make_device
from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.streams import RoundRobinStreams
from scenarios.ops.control_flow import while_loop
from sim import Device, Graph, GraphBuilder, Link, Machine, Trace, simulate
from sim.base.errors import InputError, InvariantError, RunError, StuckError
from sim.explain.failed_ops import too_late
from sim.explain.idle import idle_reasons
from sim.explain.narration import explain_text
from sim.explain.path import executed_path
from sim.explain.time_use import time_use
from sim.faults import FOREVER, Cause, Conditions, Faults, HealthCheck, SpeedProfile, Window
from sim.job.noise import Noise
from sim.kernel.run import NotOnKernelError
from sim.machine.machine import Host
from sim.metrics import summary

GPUS = (Device("gpu0"), Device("gpu1"))


def run(graph: Graph, machine: Machine, faults: Faults, **more: Any) -> Trace:
    """Simulate, and hold every invariant."""
    return checked(graph, machine, more.pop("policy", None) or ReadyQueue(), faults=faults, **more)


def once(name: str, at_ns: int, **more: Any) -> Cause:
    """Something that happens to the first of its parts."""
    return Cause(name, at=((at_ns, 0),), **{"parts": (0,), **more})


def chain(*durations_ns: int, device: str = "gpu0") -> Graph:
    b = GraphBuilder("chain")
    for k, ns in enumerate(durations_ns):
        b.op(f"op{k}", duration_ns=ns, inputs=[f"op{k - 1}"] if k else [], device=device)
    return b.build()


def sends(*nbytes: int) -> Graph:
    """Each op of gpu0 takes no time and sends bytes to one of gpu1."""
    b = GraphBuilder("sends")
    for k, n in enumerate(nbytes):
        b.op(f"send{k}", outputs=n, device="gpu0", duration_ns=0)
        b.op(f"recv{k}", inputs=[f"send{k}"], device="gpu1", duration_ns=0)
    return b.build()


def linked(sharing: str = "shared", latency_ns: int = 0) -> Machine:
    """gpu0 and gpu1 with a link of 1 byte/ns."""
    return Machine(GPUS, (Link("link", "gpu0", "gpu1", latency_ns, 10**9, sharing),), network=make_network)


def arrivals(trace: Trace) -> list[int]:
    return trace.transfers["end_ns"].tolist()


# -- pace -----------------------------------------------------------------------------------------

WINDOWS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30), st.sampled_from([None, "2", "3", "1.3"])), max_size=4
)


@examples(40)
@given(WINDOWS, st.integers(0, 60), st.integers(0, 40))
def test_a_pace_does_the_work_of_every_nanosecond(
    drawn: list[tuple[int, int, str | None]], start: int, work: int
) -> None:
    windows = sorted(
        (Window(s, s + n, None if f is None else Fraction(f)) for s, n, f in drawn), key=lambda w: w.start_ns
    )

    def rate(ns: int) -> Fraction:
        here = [w.factor for w in windows if w.start_ns <= ns < w.end_ns]
        return Fraction(0) if None in here else 1 / max([f for f in here if f is not None] or [Fraction(1)])

    done, ns = Fraction(0), start
    while done < work:
        done += rate(ns)
        ns += 1
    assert SpeedProfile(windows).end_ns(start, work) == ns


def test_what_stands_still_for_good_never_ends() -> None:
    pace = SpeedProfile([Window(5, FOREVER, None), *(Window(k, k + 1, Fraction(2)) for k in range(6, 9))])
    assert (pace.end_ns(0, 5), pace.end_ns(0, 6), pace.end_ns(7, 1)) == (5, None, None)


# -- slow-downs -----------------------------------------------------------------------------------


def test_a_device_slows_down_in_the_middle_of_a_task() -> None:
    """10 ns, then 5 of 20 at full speed, 10 ns at half speed, the last 10 at full speed."""
    faults = Faults((once("heat", 15, factor=Fraction(2), lasts_ns=10),))
    trace = run(chain(10, 20), Machine(GPUS), faults)
    assert (trace.tasks["start_ns"].tolist(), trace.tasks["end_ns"].tolist()) == ([0, 10], [10, 35])
    assert trace.engine == "simpy: parts of the machine fail, or become slow"
    with pytest.raises(NotOnKernelError, match="parts of the machine fail"):
        simulate(chain(1), Machine(GPUS), ReadyQueue(), faults=faults, engine="kernel")


@pytest.mark.parametrize("sharing", ["none", "sm"])
def test_what_a_device_shares_slows_down_with_it(sharing: str) -> None:
    """Two kernels at once, each of all SMs, or half the time: 40 ns of work, 10 of them at half speed."""
    device = make_device("gpu0", {"kind": "gpu", "sms": 4, "streams": 2, "sharing": sharing})
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=20, device="gpu0", attributes={"grid": 4})
    faults = Faults((once("heat", 15, factor=Fraction(2), lasts_ns=20),))
    trace = run(b.build(), Machine((device,)), faults)
    assert trace.makespan_ns == 50
    steady = simulate(b.build(), Machine((device,)), ReadyQueue()).makespan_ns
    assert steady == 40


@pytest.mark.parametrize(("slow", "end_ns"), [(0, 22), (1, 22), (None, 17)])
def test_a_collective_lasts_as_long_as_on_the_slowest_device(slow: int | None, end_ns: int) -> None:
    """Both meet at 10 ns; of 7 ns, 2 are done at full speed until 12, and 5 at half speed."""
    causes = () if slow is None else (once("heat", 12, parts=(slow,), factor=Fraction(2), lasts_ns=30),)
    assert run(reduced(), Machine(GPUS), Faults(causes)).makespan_ns == end_ns


def test_cores_slow_down_with_their_worker() -> None:
    """Two ops of 20 ns on a sliced core: 40 ns of work, of which 20 take twice as long."""
    cpu = make_device("cpu0", {"kind": "cpu", "cores": 1, "workers": 2, "sharing": "time"})
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=20, device="cpu0")
    faults = Faults((once("neighbour", 10, kind="worker", factor=Fraction(2), lasts_ns=40),))
    assert run(b.build(), Machine((cpu,)), faults).makespan_ns == 60


@pytest.mark.parametrize(
    ("kind", "more"), [("gpu", {"sms": 4, "streams": 2}), ("cpu", {"cores": 1, "workers": 2})]
)
def test_what_shares_a_device_that_fails_is_cut_off_if_it_has_begun(kind: str, more: dict[str, int]) -> None:
    """A kernel that has all SMs keeps the other from starting until 20 ns; threads take turns on a core."""
    device = make_device("d", {"kind": kind, "sharing": "sm" if kind == "gpu" else "time", **more})
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=20, device="d", attributes={"grid": 4} if kind == "gpu" else None)
    faults = Faults((once("crash", 8),), health_check=HealthCheck(30))
    trace = run(b.build(), Machine((device,)), faults, streams=RoundRobinStreams())
    assert trace.tasks["end_ns"].tolist() == ([8] if kind == "gpu" else [8, 8])


@pytest.mark.parametrize(
    ("sharing", "slow", "down"),
    [("shared", [24, 24], [28, 28]), ("serial", [14, 24], [18, 28]), ("independent", [14, 14], [18, 18])],
)
def test_a_link_at_half_bandwidth_and_one_that_is_down(
    sharing: str, slow: list[int], down: list[int]
) -> None:
    """Two flows of 10 bytes; from 4 to 12 ns the link has half its bandwidth, or none."""
    graph, machine = sends(10, 10), linked(sharing)
    congested = once("congestion", 4, kind="link", factor=Fraction(2), lasts_ns=8)
    assert arrivals(run(graph, machine, Faults((congested,)))) == slow
    pulled = once("cable", 4, kind="link", lasts_ns=8)
    assert arrivals(run(graph, machine, Faults((pulled,)))) == down
    # A timeout of 8 ns is not reached: it is back at that instant. One of 7 is.
    assert arrivals(run(graph, machine, Faults((pulled,), connection_timeout_ns=8))) == down
    assert run(graph, machine, Faults((pulled,), connection_timeout_ns=7)).makespan_ns == 4 + 7


@examples(30)
@given(WINDOWS, st.lists(st.integers(1, 25), min_size=1, max_size=4), st.sampled_from([0, 3]))
def test_flows_have_their_share_of_every_nanosecond(
    drawn: list[tuple[int, int, str | None]], nbytes: list[int], latency_ns: int
) -> None:
    """One shared link, against a count ns by ns with exact fractions."""
    causes = [
        once(f"{k}", s, kind="link", lasts_ns=n, factor=None if f is None else Fraction(f))
        for k, (s, n, f) in enumerate(drawn)
    ]
    left = {k: Fraction(n) for k, n in enumerate(nbytes)}
    end, ns = dict.fromkeys(left, 0), latency_ns
    while left:
        here = [f for s, n, f in drawn if s <= ns < s + n]
        rate = Fraction(0) if None in here else 1 / max([Fraction(f) for f in here if f] or [Fraction(1)])
        # Within a ns the first to end leaves its share to the others only from the next whole ns on.
        share = rate / len(left)
        ns += 1
        left = {k: n - share for k, n in left.items()}
        end |= {k: ns for k, n in left.items() if n <= 0}
        left = {k: n for k, n in left.items() if n > 0}
    trace = run(sends(*nbytes), linked("shared", latency_ns), Faults(tuple(causes)))
    by_tensor = dict(zip(trace.transfers["tensor"].tolist(), arrivals(trace), strict=True))
    assert [by_tensor[k] for k in sorted(by_tensor)] == [end[k] for k in sorted(end)]


# -- detection ------------------------------------------------------------------------------------


def detected(trace: Trace) -> tuple[str, str, int]:
    (attempt,) = trace.attempts
    detection = attempt.trace.detection
    assert detection is not None
    return detection.how, detection.by, detection.time_ns


def two_workers(ns: int = 20) -> Graph:
    """gpu0 computes and sends; gpu1 has something to do, then needs it."""
    b = GraphBuilder("two workers")
    b.op("a", duration_ns=ns, outputs=10, device="gpu0")
    b.op("own", duration_ns=50, device="gpu1")
    b.op("b", duration_ns=5, inputs=["a"], device="gpu1")
    return b.build()


def test_a_dead_link_stands_still_until_the_timeout() -> None:
    faults = Faults((once("cable", 25, kind="link"),), connection_timeout_ns=30)
    trace = run(two_workers(), linked(), faults)
    assert detected(trace) == ("send-recv", "gpu1", 55)  # 5 of 10 bytes had gone
    rows = dict(zip(trace.tasks["op"].tolist(), trace.tasks["end_ns"].tolist(), strict=True))
    assert rows == {0: 20, 1: 50}
    assert len(trace.transfers["id"]) == 0
    assert summary(trace)["failures"]["never_ran"] == 1


def test_a_link_that_fails_before_anything_is_sent_is_noticed_by_who_waits() -> None:
    faults = Faults((once("cable", 5, kind="link"),), connection_timeout_ns=30)
    assert detected(run(two_workers(), linked(), faults)) == ("send-recv", "gpu1", 20 + 30)


@pytest.mark.parametrize(("silent", "at_ns"), [(False, 12), (True, 12 + 30)])
def test_a_recv_from_a_worker_that_crashed_fails_at_once(silent: bool, at_ns: int) -> None:
    crash = once("crash", 12, kind="worker", silent=silent)
    trace = run(two_workers(), linked(), Faults((crash,), connection_timeout_ns=30))
    assert detected(trace) == ("send-recv", "gpu1", at_ns)
    assert too_late(trace) == {}
    status = dict(zip(trace.tasks["op"].tolist(), trace.status.tolist(), strict=True))
    assert status == {0: 1, 1: 2}  # a failed with its device, gpu1's own op was cut with the step
    assert trace.tasks["end_ns"][trace.status == 1].tolist() == [12]
    assert trace.tasks["end_ns"][trace.status == 2].tolist() == [at_ns]


def test_a_send_to_a_device_that_is_gone_fails_when_it_is_tried() -> None:
    assert detected(run(two_workers(), linked(), Faults((once("gpu", 12, parts=(1,)),)))) == (
        "send-recv", "gpu0", 20,
    )  # fmt: skip


@pytest.mark.parametrize(("at_ns", "known_ns"), [(30, 55), (49, 55), (50, 55), (51, 80), (0, 5)])
def test_a_health_check_that_is_missed(at_ns: int, known_ns: int) -> None:
    """Checks come every 25 ns from 0, and their answers are awaited for 5 ns."""
    check = HealthCheck(25, 5)
    trace = run(chain(200), Machine(GPUS), Faults((once("crash", at_ns, kind="worker"),), health_check=check))
    assert detected(trace) == ("health-check", "master", known_ns)


def reduced(late_ns: int = 10, ns: int = 7) -> Graph:
    b = GraphBuilder("all-reduce")
    for k, own in enumerate((0, late_ns)):
        b.op(f"own{k}", duration_ns=own, device=f"gpu{k}")
        b.op(
            f"sum{k}", kind="all_reduce", duration_ns=ns, device=f"gpu{k}", inputs=[f"own{k}"],
            attributes={"communicator": "dp", "nbytes": 8},
        )  # fmt: skip
    return b.build()


@pytest.mark.parametrize("at_ns", [5, 12])
def test_a_collective_waits_for_a_rank_that_is_gone_until_its_timeout(at_ns: int) -> None:
    """gpu1 fails before it comes, or while the sum is under way: gpu0 launched at 0 and waits 40 ns."""
    faults = Faults((once("gpu", at_ns, parts=(1,)),), collective_timeout_ns=40)
    trace = run(reduced(), Machine(GPUS), faults)
    assert detected(trace) == ("timeout", "gpu0", 40)
    assert trace.makespan_ns == sum(step.end_ns - step.start_ns for step in executed_path(trace)) == 40
    assert idle_reasons(trace)["gpu1"] == {"recovery": 40 - at_ns}
    late = run(reduced(late_ns=60), Machine(GPUS), Faults((once("x", 900),), collective_timeout_ns=40))
    assert detected(late) == ("timeout", "gpu0", 40)  # nothing failed: the rank is only late
    assert run(reduced(), Machine(GPUS), replace(faults, causes=(once("x", 18),))).makespan_ns == 17


def test_a_collective_times_out_that_was_launched_and_has_not_begun() -> None:
    """On gpu1 it is launched at 0 behind busy; the other rank, launched at 7, has begun and has time."""
    b = GraphBuilder("behind")
    b.op("busy", duration_ns=100, device="gpu1")
    for k in range(2):
        b.op(f"sum{k}", kind="all_reduce", device=f"gpu{k}", attributes={"communicator": "c", "nbytes": 1})
    faults = Faults((once("heat", 4, factor=Fraction(2), lasts_ns=30),), collective_timeout_ns=9)
    trace = run(b.build(), Machine((Device("gpu0", issue_ns=7), Device("gpu1"))), faults)
    assert detected(trace) == ("timeout", "gpu1", 9)


def test_what_nobody_notices_is_an_error_and_what_hurts_nobody_is_none() -> None:
    faults = Faults((once("crash", 12, kind="worker"),))
    with pytest.raises(StuckError, match=r"gpu0/host has failed at 12 ns \(crash\), and nothing detects"):
        simulate(chain(20), Machine(GPUS), ReadyQueue(), faults=faults)
    trace = run(chain(12), Machine(GPUS), faults)  # it ends at that very instant
    assert (trace.makespan_ns, trace.failed) == (12, False)
    assert run(chain(20, device="gpu1"), Machine(GPUS), faults).makespan_ns == 20


def test_a_worker_takes_its_threads_and_all_its_devices_with_it() -> None:
    machine = Machine(
        (Device("cpu0", "cpu", workers=1), Device("gpu0"), Device("gpu1")),
        hosts=(Host("w0", ("cpu0", "gpu0")),),
    )
    b = GraphBuilder("host")
    b.op("read", duration_ns=10, device="cpu0")
    b.op("kernel", duration_ns=10, inputs=["read"], device="gpu0")
    b.op("other", duration_ns=30, device="gpu1")
    faults = Faults((once("crash", 15, kind="worker"),), health_check=HealthCheck(10))
    trace = run(b.build(), machine, faults)
    assert detected(trace) == ("health-check", "master", 20)
    status = dict(zip(trace.tasks["op"].tolist(), trace.status.tolist(), strict=True))
    assert status == {0: 0, 1: 1, 2: 2}


# -- restarts -------------------------------------------------------------------------------------


def attempts(trace: Trace) -> list[tuple[int, int, int, int]]:
    return [(each.begin_ns, each.step, each.done, each.lost) for each in trace.attempts]


@pytest.mark.parametrize(
    ("every", "expected", "makespan_ns"),
    [
        (None, [(0, 0, 3, 3), (335 + 50, 0, 4, 0)], 335 + 50 + 400),  # nothing was saved, nothing is loaded
        (1, [(0, 0, 3, 0), (335 + 57, 3, 1, 0)], 335 + 57 + 100),
        (2, [(0, 0, 3, 1), (335 + 57, 2, 2, 0)], 335 + 57 + 200),
    ],
)
def test_a_run_goes_on_from_its_last_checkpoint(
    every: int | None, expected: list[tuple[int, int, int, int]], makespan_ns: int
) -> None:
    """Steps of 100 ns; a crash at 330, a check at 335, 50 ns to start anew and 7 to restore."""
    faults = Faults(
        (once("crash", 330, kind="worker", lasts_ns=0),),
        health_check=HealthCheck(67),
        restart_ns=50,
        every_steps=every,
        restore_ns=7,
    )
    b = GraphBuilder("step")
    b.op("step", duration_ns=100, device="gpu0", after=[])
    trace = run(b.build(), Machine(GPUS), faults, iterations=4, policy=InOrder())
    assert attempts(trace) == expected
    assert trace.makespan_ns == makespan_ns
    told = summary(trace)["failures"]
    assert (told["steps"], told["steps_lost"]) == (4, expected[0][3])
    assert told["attempts"][0]["detection"]["time_ns"] == 335
    line = "worker gpu0/host failed at 330 ns (crash); master noticed at 335 ns (health-check: gpu0/host)"
    assert line in explain_text(trace)
    reasons = idle_reasons(trace)["gpu0"]
    assert reasons == {"recovery": expected[1][0] - 330}


def test_all_starts_anew_when_something_fails_meanwhile_and_waits_for_a_repair() -> None:
    """Restarting takes 50 ns: from 20, when gpu0 is back; again from 60; and not before 130."""
    faults = Faults(
        (
            once("first", 10, kind="worker", lasts_ns=10),
            once("second", 60, kind="worker", lasts_ns=0),
            once("third", 100, parts=(1,), lasts_ns=30),
        ),
        health_check=HealthCheck(10),
        restart_ns=50,
    )
    trace = run(chain(30), Machine(GPUS), faults)
    assert [each.begin_ns for each in trace.attempts] == [0, 130 + 50]
    assert trace.makespan_ns == 180 + 30
    never = replace(faults, causes=(once("first", 10, kind="worker"),))
    trace = run(chain(30), Machine(GPUS), never)  # it never comes back
    assert (len(trace.attempts), trace.makespan_ns) == (1, 10)


def test_ranks_that_waited_in_vain_meet_nobody_of_the_next_attempt() -> None:
    """gpu0 waits 40 ns for nobody, all start anew in 10 ns, and 10 ns later gpu1 comes: then they sum."""
    faults = Faults((once("gpu", 5, parts=(1,), lasts_ns=0),), collective_timeout_ns=40, restart_ns=10)
    trace = run(reduced(), Machine(GPUS), faults)
    assert idle_reasons(trace)["gpu0"] == {"late rank": 40 + 10, "recovery": 10}
    assert time_use(trace)["gpu0"]["communicate"] == 7
    assert trace.meetings is not None
    assert trace.meetings.size.tolist() == [1, 2]
    assert trace.makespan_ns == 67


def test_a_run_that_comes_no_further_is_given_up() -> None:
    faults = Faults((once("x", 10**9),), collective_timeout_ns=5, restart_ns=1)
    message = (
        r"fails: after 101 attempts, steps done are 0 of 1; .* no further \(timeout at gpu0, 5 ns: .*sum0"
    )
    with pytest.raises(RunError, match=message):
        simulate(reduced(), Machine(GPUS), ReadyQueue(), faults=faults)


def test_a_restart_that_something_always_interrupts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.engine.attempts.MOST_FAILURES", 1000)
    often = Cause("often", Fraction(10), kind="worker", parts=(0,), lasts_ns=0)
    faults = Faults((often,), health_check=HealthCheck(50), restart_ns=500)
    with pytest.raises(RunError, match="1,000 failures leave no time to restart, which takes 500 ns"):
        simulate(chain(300), Machine(GPUS), ReadyQueue(), faults=faults)


def test_a_step_that_is_computed_again_takes_as_long_as_before() -> None:
    faults = Faults(
        (once("crash", 250, kind="worker", lasts_ns=0),), health_check=HealthCheck(50), restart_ns=0
    )
    noise = Noise(sigma=0.3)
    trace = run(chain(100), Machine(GPUS), faults, iterations=4, policy=InOrder(), noise=noise, seed=3)
    alone = simulate(chain(100), Machine(GPUS), InOrder(), iterations=4, noise=noise, seed=3)
    took = trace.tasks["end_ns"] - trace.tasks["start_ns"]
    done = trace.status == 0
    assert took[done][-4:].tolist() == (alone.tasks["end_ns"] - alone.tasks["start_ns"]).tolist()


# -- chance ---------------------------------------------------------------------------------------


def test_the_same_seed_has_the_same_failures() -> None:
    machine = Machine(tuple(Device(f"gpu{k}") for k in range(8)))
    faults = Faults((Cause("gpu", Fraction(1000), parts=tuple(range(8)), lasts_ns=0),))

    def first(seed: int, from_ns: int = 0) -> list[tuple[int, int]]:
        failures = Conditions(faults, machine, seed, from_ns).failures()
        return [
            (from_ns + failed.time_ns, failed.part) for failed, _ in zip(failures, range(20), strict=False)
        ]

    assert first(1) == first(1) != first(2)
    later = [each for each in first(1) if each[0] >= 300]
    assert later == first(1, from_ns=300)[: len(later)]  # a restart changes nobody's luck


def test_no_causes_change_nothing() -> None:
    graph, machine = two_workers(), linked()
    plain = simulate(graph, machine, ReadyQueue(), iterations=3)
    with_none = simulate(graph, machine, ReadyQueue(), iterations=3, faults=Faults(restart_ns=5))
    later = simulate(graph, machine, ReadyQueue(), iterations=3, faults=Faults((once("late", 10**12),)))
    for trace in (with_none, later):
        for of in ("tasks", "transfers"):
            for name, column in getattr(plain, of).items():
                assert (column == getattr(trace, of)[name]).all()
    assert with_none.engine == plain.engine
    assert explain_text(with_none) == explain_text(plain)


def test_what_does_not_go_together() -> None:
    faults = Faults((once("crash", 5, kind="worker"),))
    loop = GraphBuilder("loop")
    loop.op("i", outputs=4, duration_ns=0)

    def body(b: GraphBuilder, variables: dict[str, str]) -> dict[str, str]:
        b.op("n", inputs=[variables["i"]], outputs=4, duration_ns=0)
        return {"i": "n"}

    while_loop(loop, "loop", {"i": "i"}, body, trips=2)
    fails = GraphBuilder("fails")
    fails.op("a", duration_ns=1, attributes={"fails": True})
    for graph, why in ((loop.build(), "control flow"), (fails.build(), "ops that fail")):
        with pytest.raises(InputError, match=why):
            simulate(graph, Machine(GPUS), ReadyQueue(), faults=faults)
    with pytest.raises(InputError, match="an allocator cannot follow"):
        simulate(chain(1), Machine(GPUS), ReadyQueue(), faults=faults, memory=tensor_memory({}))


# -- invariants -----------------------------------------------------------------------------------


def changed(trace: Trace, of: str, name: str, row: int, value: int) -> Trace:
    """Return a trace of one attempt of which one number is another, in both of its copies."""
    (attempt,) = trace.attempts
    columns = {key: column.copy() for key, column in getattr(attempt.trace, of).items()}
    columns[name][row] = value
    own = replace(attempt.trace, **{of: columns})
    return replace(trace, **{of: columns}, attempts=(attempt._replace(trace=own),))


def test_invariants_notice_what_cannot_be() -> None:
    trace = run(two_workers(), linked(), Faults((once("crash", 12, kind="worker"),), connection_timeout_ns=9))
    rows = {op: k for k, op in enumerate(trace.tasks["op"].tolist())}
    for row, name, value, why in (
        (rows[0], "end_ns", 13, "its device had failed at 12 ns"),
        (rows[0], "end_ns", 11, "as failed; its device failed at 12 ns"),
        (rows[1], "end_ns", 11, "as aborted; the step was at 12 ns"),
        (rows[0], "status", 0, "took 12 ns on gpu0, where it takes 20"),
    ):
        with pytest.raises(InvariantError, match=why):
            changed(trace, "tasks", name, row, value).check()
    slow = run(chain(20), Machine(GPUS), Faults((once("heat", 5, factor=Fraction(2)),)))
    with pytest.raises(InvariantError, match="took 34 ns on gpu0, where it takes 35"):
        changed(slow, "tasks", "end_ns", 0, 34).check()
    (attempt,) = trace.attempts
    detection = attempt.trace.detection
    assert detection is not None
    own = replace(attempt.trace, detection=detection._replace(how="health-check"))
    with pytest.raises(InvariantError, match="nothing was wrong then"):
        replace(trace, attempts=(attempt._replace(trace=own),)).check()


@examples(40)
@given(st.data())
def test_any_faults_keep_the_invariants(data: st.DataObject) -> None:
    """Drawn graphs, machines and faults: every trace holds, says why devices were idle, and repeats."""
    draw = data.draw
    n = draw(st.integers(1, 3))
    sharing = draw(st.sampled_from(["serial", "shared", "independent"]))
    kinds = [draw(st.sampled_from(["cpu", "none", "sm"])) for _ in range(n)]
    devices = tuple(
        Device(f"d{k}", "cpu", workers=2)
        if kind == "cpu"
        else make_device(
            f"d{k}", {"kind": "gpu", "streams": 2, "sms": 4, "sharing": "sm" if kind == "sm" else "none"}
        )
        for k, kind in enumerate(kinds)
    )
    links = tuple(
        Link(f"{a}->{b}", f"d{a}", f"d{b}", 2, 10**9, sharing) for a in range(n) for b in range(n) if a != b
    )
    machine = Machine(devices, links, network=make_network)
    b = GraphBuilder("drawn")
    for k in range(draw(st.integers(1, 8))):
        b.op(
            f"o{k}",
            inputs=[
                f"o{j}" for j in draw(st.sets(st.integers(0, k - 1), max_size=2) if k else st.just(set()))
            ],
            duration_ns=draw(st.integers(0, 20)),
            outputs=draw(st.integers(0, 30)),
            device=f"d{draw(st.integers(0, n - 1))}",
        )
    causes = []
    for k in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["device", "worker", *(["link"] if links else [])]))
        size = len(links) if kind == "link" else n
        causes.append(
            Cause(
                f"c{k}",
                at=((draw(st.integers(0, 80)), draw(st.integers(0, size - 1))),),
                kind=kind,
                parts=tuple(range(size)),
                factor=draw(st.sampled_from([None, Fraction(2), Fraction(13, 10)])),
                lasts_ns=draw(st.sampled_from([None, 10, 30])),
                silent=draw(st.booleans()),
            )
        )
    faults = Faults(
        tuple(causes),
        connection_timeout_ns=draw(st.sampled_from([0, 15])),
        health_check=draw(st.sampled_from([None, HealthCheck(20, 3), HealthCheck(7)])),
        restart_ns=draw(st.sampled_from([None, 0, 13])),
        every_steps=draw(st.sampled_from([None, 1, 2])),
    )
    steps = draw(st.integers(1, 3))
    graph = b.build()
    if faults.health_check is None:  # nobody may notice
        with suppress(StuckError):
            run(graph, machine, faults, iterations=steps)
        return
    trace = run(graph, machine, faults, iterations=steps)
    for use in summary(trace)["devices"].values():
        assert sum(use["idle_reasons"].values()) == use["idle_ns"]
    explain_text(trace)
    again = run(graph, machine, faults, iterations=steps)
    assert all((trace.tasks[name] == again.tasks[name]).all() for name in trace.tasks)
    last = trace.attempts[-1]
    assert last.trace.detection is not None or last.step + last.done == steps


def test_what_had_arrived_before_its_sender_failed_is_not_waited_for() -> None:
    """a's tensor is there at 30, gpu0 fails at 45, and gpu1 ends what it does."""
    trace = run(two_workers(), linked(), Faults((once("gpu", 45, parts=(0,)),)))
    assert trace.detection is None
    assert trace.makespan_ns == 55


def test_a_step_may_have_begun_with_its_inputs_alone() -> None:
    """x of the second step is sent from 10 to 20 ns, and the first fails: its transfer was one of no step."""
    b = GraphBuilder("inputs")
    b.input("x", 10, device="gpu0")
    b.op("a", inputs=["x"], duration_ns=100, device="gpu1")
    for restart_ns, steps in ((None, 2), (5, 4)):
        faults = Faults((once("heat", 50, lasts_ns=3),), health_check=HealthCheck(20), restart_ns=restart_ns)
        trace = run(b.build(), linked(), faults, iterations=2)
        assert (trace.job.iterations, len(trace.attempts[0].trace.transfers["id"])) == (steps, 2)
        explain_text(trace)
