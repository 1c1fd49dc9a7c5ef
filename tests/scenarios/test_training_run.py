"""Training runs of many steps: timelines worked by hand, the exact expectation, recovery policies, luck."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from fractions import Fraction
from itertools import islice, pairwise
from math import exp, log

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from policies.recovery import (
    Fleet,
    Recovery,
    ReplaceWorker,
    Restart,
    RestartJob,
    Shrink,
    ShrinkAndRegrow,
    WaitForRepair,
)
from scenarios.training_run.lifecycle import live
from scenarios.training_run.plan import (
    Checkpoints,
    Failure,
    Life,
    SlowDown,
    TrainingPlan,
    best,
    daly,
    young,
)
from sim.base.errors import InputError, RunError
from sim.faults import arrivals

S = 10**9
HOUR = 3600 * S
POLICIES = (RestartJob(), ReplaceWorker(), WaitForRepair(), Shrink(), ShrinkAndRegrow())


def picture(life: Life) -> str:
    """Return what a run does as one line of text: 'computing 0-20, saving 20-22'."""
    return ", ".join(f"{state} {start}-{end}" for state, start, end in life.timeline)


def broken(*at: tuple[int, int], **told: object) -> tuple[Failure, ...]:
    """Return one cause with failures at times, each of a machine."""
    return (Failure("broken", at=at, **told),)  # type: ignore[arg-type]


# -- timelines worked by hand ----------------------------------------------------------------------


def test_nothing_happens() -> None:
    life = live(TrainingPlan(10, 5, None, 3, checkpoints=Checkpoints(every_steps=2, save_ns=3)), RestartJob())
    assert picture(life) == "computing 0-20, saving 20-23, computing 23-43, saving 43-46, computing 46-56"
    assert (life.end_ns, life.steps, life.useful_ns, life.lost_ns, life.checkpoints) == (56, 5, 50, 0, 2)
    assert life.goodput == 50 / 56


def test_one_failure_and_a_synchronous_checkpoint() -> None:
    """The fourth step fails in its middle: it and the third are done again, after a restart and a restore."""
    saved = Checkpoints(every_steps=2, save_ns=3, restore_ns=4)
    life = live(
        TrainingPlan(10, 5, None, 1, checkpoints=saved, failures=broken((38, 0)), restart_ns=6), RestartJob()
    )
    assert picture(life) == (
        "computing 0-20, saving 20-23, computing 23-38, restarting 38-48, redoing 48-58, computing 58-68, "
        "saving 68-71, computing 71-81"
    )
    assert (life.lost_ns, life.checkpoints, life.restarts) == (15, 2, 1)
    assert life.interruptions == {"broken": 1}


def test_a_failure_while_saving_loses_the_checkpoint() -> None:
    saved = Checkpoints(every_steps=2, save_ns=3)
    life = live(
        TrainingPlan(10, 3, None, 1, checkpoints=saved, failures=broken((22, 0)), restart_ns=5), RestartJob()
    )
    assert picture(life) == (
        "computing 0-20, saving 20-22, restarting 22-27, redoing 27-47, saving 47-50, computing 50-60"
    )
    assert life.lost_ns == 20


def test_what_ends_at_the_instant_of_a_failure_has_ended() -> None:
    saved = Checkpoints(every_steps=2, save_ns=3)
    life = live(
        TrainingPlan(10, 3, None, 1, checkpoints=saved, failures=broken((23, 0)), restart_ns=5), RestartJob()
    )
    assert picture(life) == "computing 0-20, saving 20-23, restarting 23-28, computing 28-38"
    assert life.lost_ns == 0


def test_a_failure_while_restarting_begins_the_restart_again() -> None:
    life = live(TrainingPlan(10, 1, None, 1, failures=broken((4, 0), (8, 0)), restart_ns=6), RestartJob())
    assert picture(life) == "computing 0-4, restarting 4-14, computing 14-24"
    assert (life.restarts, life.interruptions) == (2, {"broken": 2})


def test_a_repair_that_ends_at_the_instant_of_a_failure_has_ended() -> None:
    twice = broken((4, 0), (14, 0), repair_ns=10)
    life = live(TrainingPlan(10, 1, None, 1, failures=twice, restart_ns=6), RestartJob())
    assert picture(life) == "computing 0-4, waiting 4-24, restarting 24-30, computing 30-40"
    assert (life.restarts, life.interruptions) == (1, {"broken": 1})


def test_a_failure_at_the_end_of_the_run_interrupts_nothing() -> None:
    saved = Checkpoints(every_steps=1, save_ns=3)
    life = live(TrainingPlan(10, 2, None, 1, checkpoints=saved, failures=broken((23, 0))), RestartJob())
    assert picture(life) == "computing 0-10, saving 10-13, computing 13-23"
    assert life.interruptions == {"broken": 0}


@pytest.mark.parametrize("of_a_spare", [(), ((7, 2),)])
def test_a_failure_at_the_instant_of_a_detection_is_part_of_it(
    of_a_spare: tuple[tuple[int, int], ...],
) -> None:
    """Whether a machine that is not of the run fails in between does not matter."""
    failures = broken((4, 0), *of_a_spare, (14, 1), detect="timeout")
    life = live(TrainingPlan(10, 1, None, 2, 1, failures=failures, restart_ns=6, timeout_ns=10), RestartJob())
    assert picture(life) == "computing 0-4, detecting 4-14, restarting 14-20, computing 20-30"
    assert (life.restarts, life.interruptions) == (1, {"broken": 1})


@pytest.mark.parametrize("policy", [RestartJob(), ReplaceWorker()], ids=lambda each: type(each).__name__)
def test_a_detection_that_ends_with_the_run_restarts_nothing(policy: Recovery) -> None:
    plan = TrainingPlan(10, None, 14, 1, 1, failures=broken((4, 0), detect="timeout"), timeout_ns=10)
    life = live(plan, policy)
    assert picture(life) == "computing 0-4, detecting 4-14"
    assert (life.restarts, life.interruptions) == (0, {"broken": 1})


def test_a_checkpoint_that_ends_with_the_run_is_written_and_asks_nobody() -> None:
    """One of two workers computes at half the pace until the other, repaired at 6, may join it at 25."""
    saved = Checkpoints(every_steps=1, save_ns=3)
    failed = broken((1, 0), repair_ns=5)
    plan = TrainingPlan(
        10, None, 25, 2, minimum=1, checkpoints=saved, failures=failed, restart_ns=1, restart_worker_ns=1
    )
    life = live(plan, ShrinkAndRegrow())
    assert picture(life) == "computing 0-1, restarting 1-2, computing 2-22, saving 22-25"
    assert (life.restarts, life.checkpoints) == (1, 1)


def test_two_workers_that_fail_at_once_are_one_interruption() -> None:
    life = live(TrainingPlan(10, 1, None, 2, failures=broken((4, 0), (4, 1)), restart_ns=6), RestartJob())
    assert picture(life) == "computing 0-4, restarting 4-10, computing 10-20"
    assert (life.restarts, life.interruptions) == (1, {"broken": 1})


def test_an_asynchronous_checkpoint_counts_when_it_is_written() -> None:
    """The second one is under way when the worker fails, so the run goes back to the first."""
    saved = Checkpoints(every_steps=2, save_ns=15, asynchronous=True, pause_ns=1)
    life = live(
        TrainingPlan(10, 5, None, 1, checkpoints=saved, failures=broken((50, 0)), restart_ns=5), RestartJob()
    )
    assert picture(life) == (
        "computing 0-20, saving 20-21, computing 21-41, saving 41-42, computing 42-50, restarting 50-55, "
        "redoing 55-75, saving 75-76, computing 76-86"
    )
    assert (life.lost_ns, life.steps) == (28, 5)


def test_an_asynchronous_checkpoint_waits_until_the_last_one_is_written() -> None:
    saved = Checkpoints(every_steps=1, save_ns=15, asynchronous=True, pause_ns=1)
    life = live(TrainingPlan(10, 3, None, 1, checkpoints=saved), RestartJob())
    assert picture(life) == "computing 0-10, saving 10-11, computing 11-21, saving 21-27, computing 27-37"


@pytest.mark.parametrize(("second_ns", "until"), [(4, 4), (9, 9), (14, 14), (15, 14)], ids=str)
def test_of_two_failures_the_one_that_is_noticed_first_ends_the_detection(second_ns: int, until: int) -> None:
    """The collective would give up at 14; a broken connection is noticed at once."""
    slow, quick = broken((4, 0), detect="timeout"), broken((second_ns, 1))
    plan = TrainingPlan(10, 1, None, 2, 1, failures=slow + quick, restart_ns=1, timeout_ns=10)
    life = live(plan, RestartJob())
    assert life.time_ns["detecting"] == until - 4
    assert sum(life.interruptions.values()) == (2 if second_ns > until else 1)


def test_a_checkpoint_by_time_comes_at_the_end_of_a_step() -> None:
    life = live(TrainingPlan(10, 6, None, 1, checkpoints=Checkpoints(every_ns=15, save_ns=1)), RestartJob())
    assert picture(life) == "computing 0-20, saving 20-21, computing 21-41, saving 41-42, computing 42-62"


@pytest.mark.parametrize(
    ("detect", "until"),
    [("send-recv", 13), ("health-check", 16), ("timeout", 33)],
    ids=lambda each: str(each),
)
def test_a_failure_is_detected(detect: str, until: int) -> None:
    plan = TrainingPlan(
        10,
        2,
        None,
        1,
        failures=broken((13, 0), detect=detect),
        restart_ns=2,
        health_check_ns=8,
        timeout_ns=20,
    )
    life = live(plan, RestartJob())
    assert life.time_ns["detecting"] == until - 13
    assert life.end_ns == until + 2 + 20


def test_a_spare_worker_takes_the_place() -> None:
    plan = TrainingPlan(
        10, 2, None, 2, spares=1, failures=broken((15, 1), repair_ns=100), restart_ns=7, restart_worker_ns=3
    )
    replaced, anew, waited = (
        live(plan, policy) for policy in (ReplaceWorker(), RestartJob(), WaitForRepair())
    )
    assert picture(replaced) == "computing 0-15, restarting 15-18, redoing 18-28, computing 28-38"
    assert picture(anew) == "computing 0-15, restarting 15-22, redoing 22-32, computing 32-42"
    assert picture(waited) == (
        "computing 0-15, waiting 15-115, restarting 115-118, redoing 118-128, computing 128-138"
    )
    assert [tuple(each) for each in replaced.changes] == [
        (0, 2, "spare"),
        (15, 1, "in repair"),
        (15, 2, "job"),
    ]


def test_without_a_spare_worker_the_run_waits_for_one() -> None:
    plan = TrainingPlan(10, 2, None, 2, failures=broken((15, 1), repair_ns=20), restart_worker_ns=3)
    life = live(plan, ReplaceWorker())
    assert picture(life) == "computing 0-15, waiting 15-35, restarting 35-38, redoing 38-48, computing 48-58"


def test_a_spare_worker_may_fail() -> None:
    plan = TrainingPlan(
        10, 2, None, 1, spares=1, failures=broken((5, 1), (15, 0), repair_ns=20), restart_worker_ns=3
    )
    life = live(plan, ReplaceWorker())
    assert picture(life) == "computing 0-15, waiting 15-25, restarting 25-28, redoing 28-38, computing 38-48"
    assert life.interruptions == {"broken": 1}


def test_elastic_runs_shrink_and_grow() -> None:
    """Half of the workers take twice as long; the failed one is back at 45, and joins at the checkpoint."""
    saved = Checkpoints(every_steps=2, save_ns=1)
    failed = broken((15, 0), repair_ns=30)
    plan = TrainingPlan(
        10, 5, None, 4, replica=2, minimum=2, checkpoints=saved, failures=failed, restart_worker_ns=3
    )
    shrunk, grown = live(plan, Shrink()), live(plan, ShrinkAndRegrow())
    assert picture(shrunk) == (
        "computing 0-15, restarting 15-18, redoing 18-38, computing 38-58, saving 58-59, computing 59-99, "
        "saving 99-100, computing 100-120"
    )
    assert picture(grown) == (
        "computing 0-15, restarting 15-18, redoing 18-38, computing 38-58, saving 58-59, restarting 59-62, "
        "computing 62-82, saving 82-83, computing 83-93"
    )
    assert shrunk.fewest_workers == grown.fewest_workers == 2
    assert [tuple(each) for each in grown.changes] == [
        (15, 0, "in repair"),
        (15, 3, "spare"),
        (45, 0, "spare"),
        (59, 0, "job"),
        (59, 3, "job"),
    ]


def test_below_the_minimum_an_elastic_run_waits() -> None:
    plan = TrainingPlan(10, 1, None, 2, minimum=2, failures=broken((5, 0), repair_ns=10), restart_worker_ns=1)
    for policy in (Shrink(), ShrinkAndRegrow()):
        assert picture(live(plan, policy)) == "computing 0-5, waiting 5-15, restarting 15-16, computing 16-26"


def test_all_wait_for_a_slow_worker() -> None:
    """A step keeps the pace that it began with: the second one is slow until its end, the third fast."""
    slow = (SlowDown("heat", at=((10, 1),), lasts_ns=5, factor=Fraction(3, 2)),)
    life = live(TrainingPlan(10, 3, None, 2, slow_downs=slow), RestartJob())
    assert (picture(life), life.useful_ns) == ("computing 0-35", 30)
    later = (SlowDown("heat", at=((11, 1), (12, 2)), lasts_ns=5, factor=Fraction(3, 2)),)
    assert live(TrainingPlan(10, 3, None, 2, spares=1, slow_downs=later), RestartJob()).end_ns == 30


def test_a_cause_may_have_a_restart_of_its_own() -> None:
    plan = TrainingPlan(10, 1, None, 1, failures=broken((5, 0), restart_ns=2), restart_ns=50)
    assert picture(live(plan, RestartJob())) == "computing 0-5, restarting 5-7, computing 7-17"


def test_a_run_may_end_at_a_time() -> None:
    saved = Checkpoints(every_steps=2, save_ns=3)
    life = live(
        TrainingPlan(10, None, 45, 1, checkpoints=saved, failures=broken((38, 0)), restart_ns=6), RestartJob()
    )
    assert picture(life) == "computing 0-20, saving 20-23, computing 23-38, restarting 38-44, redoing 44-45"
    assert (life.end_ns, life.steps, life.goodput) == (45, 2, 20 / 45)


# -- against another formulation -------------------------------------------------------------------


def walked(plan: TrainingPlan, failures: list[int]) -> tuple[int, int, int]:
    """Return end, work lost and checkpoints of one worker, walked from failure to failure without events."""
    how, at, done, saved, lost, kept, since = plan.checkpoints, 0, 0, 0, 0, 0, 0
    failures = sorted(set(failures))
    todo = "steps"
    while done < (plan.steps or 0):
        todo_ns = {"steps": plan.step_ns, "save": how.save_ns, "restart": plan.restart_ns}[todo]
        if todo == "restart" and kept:  # before the first checkpoint there is none to load
            todo_ns += how.restore_ns
        hit = next((time for time in failures if at <= time < at + todo_ns), None)
        if hit is not None:
            lost += (done - saved) * plan.step_ns + (hit - at) * (todo == "steps")
            failures = [time for time in failures if time > hit]
            at, done, todo = hit, saved, "restart"
            continue
        at += todo_ns
        if todo == "steps":
            done += 1
            todo = "save" if done - since == how.every_steps else "steps"
        elif todo == "save":
            saved, kept, since, todo = done, kept + 1, done, "steps"
        else:
            since, todo = done, "steps"
    return at, lost, kept


@examples(200)
@given(
    step=st.integers(1, 9),
    steps=st.integers(1, 20),
    every=st.integers(1, 6),
    save=st.integers(0, 9),
    restart=st.integers(0, 9),
    restore=st.integers(0, 9),
    failures=st.lists(st.integers(0, 200), max_size=12),
)
def test_one_worker_is_as_walked(
    step: int, steps: int, every: int, save: int, restart: int, restore: int, failures: list[int]
) -> None:
    saved = Checkpoints(every_steps=every, save_ns=save, restore_ns=restore)
    cause = broken(*((time, 0) for time in failures))
    plan = TrainingPlan(step, steps, None, 1, checkpoints=saved, failures=cause, restart_ns=restart)
    life = live(plan, RestartJob())
    assert (life.end_ns, life.lost_ns, life.checkpoints) == walked(plan, failures)


@examples(200)
@given(
    workers=st.integers(1, 4),
    replica=st.integers(1, 2),
    spares=st.integers(0, 2),
    policy=st.sampled_from(POLICIES),
    asynchronous=st.booleans(),
    repair=st.integers(0, 60),
    failures=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=8),
    slow=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=3),
    seed=st.integers(0, 3),
)
def test_every_instant_is_accounted_for(
    workers: int,
    replica: int,
    spares: int,
    policy: Recovery,
    asynchronous: bool,
    repair: int,
    failures: list[tuple[int, int]],
    slow: list[tuple[int, int]],
    seed: int,
) -> None:
    machines = workers * replica + spares
    plan = TrainingPlan(
        7,
        30,
        None,
        workers * replica,
        spares=spares,
        replica=replica,
        minimum=replica,
        checkpoints=Checkpoints(every_steps=4, save_ns=3, asynchronous=asynchronous, restore_ns=2),
        failures=(
            Failure(
                "given",
                at=tuple((at, machine % machines) for at, machine in failures),
                repair_ns=repair,
                detect="health-check",
            ),
            Failure("drawn", mtbf_ns=Fraction(400 * machines)),
        ),
        slow_downs=(
            SlowDown(
                "heat",
                at=tuple((at, machine % machines) for at, machine in slow),
                lasts_ns=20,
                factor=Fraction(3, 2),
            ),
        ),
        restart_ns=5,
        restart_worker_ns=2,
        health_check_ns=6,
    )
    life = live(plan, policy, seed)
    assert life.timeline[0][1] == 0
    assert life.timeline[-1][2] == life.end_ns
    assert all(before[2] == after[1] and before[0] != after[0] for before, after in pairwise(life.timeline))
    assert sum(life.time_ns.values()) == life.end_ns
    assert (life.steps, life.useful_ns) == (30, 210)
    computed = life.time_ns["computing"] + life.time_ns["redoing"]
    assert computed >= life.useful_ns + life.lost_ns
    if life.fewest_workers == plan.workers and not slow:
        assert computed == life.useful_ns + life.lost_ns
    assert life == live(plan, policy, seed)


def test_many_checkpoints_take_some_seconds() -> None:
    plan = TrainingPlan(10, 200_000, None, 4, checkpoints=Checkpoints(every_steps=1, save_ns=1))
    begun = time.process_time()
    life = live(plan, RestartJob())
    assert (life.checkpoints, life.end_ns) == (199_999, 200_000 * 11 - 1)
    assert time.process_time() - begun < 12


# -- the expectation, and the best interval --------------------------------------------------------


def expected_goodput(interval: float, save: float, restart: float, mtbf: float) -> float:
    """Return the expected useful share of the time, exact for exponential failures, in any unit of time."""
    if (interval + save) / mtbf > 700:  # a float cannot hold much more than e**700
        return 0.0
    return interval / (mtbf * math.exp(restart / mtbf) * math.expm1((interval + save) / mtbf))


@pytest.mark.parametrize(
    ("save", "restart", "by_best", "by_young", "goodput"),
    [
        (1 / 6, 10, 7.8, 7.9, 0.908),
        (1, 10, 18.6, 19.3, 0.853),
        (5, 10, 39.8, 43.1, 0.744),
        (5, 30, 39.8, 43.1, 0.668),
    ],
)
def test_intervals_for_llama_3(
    save: float, restart: float, by_best: float, by_young: float, goodput: float
) -> None:
    """In minutes, with its failure every 3.093 h (arXiv:2407.21783: 419 in 54 days)."""
    mtbf = 3.093 * 60
    assert round(best(save, mtbf), 1) == by_best
    assert round(young(save, mtbf), 1) == by_young
    assert round(expected_goodput(best(save, mtbf), save, restart, mtbf), 3) == goodput
    assert daly(save, mtbf) == pytest.approx(best(save, mtbf), rel=1e-3)


def test_more_than_90_percent_needs_fast_checkpoints_and_fast_restarts() -> None:
    """Llama 3 reports it with a failure every 3.093 h: ten seconds and ten minutes are just enough."""

    def at_best(save_s: float, restart_min: float) -> float:
        mtbf = 3.093 * 3600
        return expected_goodput(best(save_s, mtbf), save_s, 60 * restart_min, mtbf)

    assert at_best(10, 10) > 0.9
    assert at_best(20, 10) < 0.9
    assert at_best(10, 12) < 0.9
    assert at_best(60, 5) < 0.9


@given(save=st.floats(0.01, 1e4), mtbf=st.floats(1, 1e5))
def test_the_best_interval_is_the_best(save: float, mtbf: float) -> None:
    there = expected_goodput(best(save, mtbf), save, 0, mtbf)
    assert all(expected_goodput(best(save, mtbf) * f, save, 0, mtbf) <= there for f in (0.9, 0.99, 1.01, 1.1))


def exponential(mtbf_s: int, failures: int, every: int, save_s: int, restart_s: int) -> TrainingPlan:
    """Return one worker with steps of a second, for as long as so many failures take on average."""
    return TrainingPlan(
        S,
        None,
        failures * mtbf_s * S,
        1,
        checkpoints=Checkpoints(every_steps=every, save_ns=save_s * S),
        failures=(Failure("any", mtbf_ns=Fraction(mtbf_s * S)),),
        restart_ns=restart_s * S,
    )


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_goodput_is_as_expected_over_2000_failures(seed: int) -> None:
    """Within 0.5 %, for Llama 3's MTBF."""
    life = live(exponential(11135, 2000, 465, 10, 600), RestartJob(), seed)
    assert life.goodput == pytest.approx(expected_goodput(465, 10, 600, 11135), rel=5e-3)
    assert abs(life.interruptions["any"] - 2000) < 3 * 2000**0.5


@pytest.mark.slow
def test_goodput_follows_the_failures_that_are_met() -> None:
    """Where failures cost a third of the time: within 0.5 % for the MTBF that each seed happened to bring."""
    for seed in range(4):
        life = live(exponential(1000, 2000, 300, 50, 60), RestartJob(), seed)
        met = life.end_ns / S / life.interruptions["any"]
        assert life.goodput == pytest.approx(expected_goodput(300, 50, 60, met), rel=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_best_interval_by_simulation_is_dalys(seed: int) -> None:
    """Within 5 %, where Young's is 17 % off: the top of a cubic through nine intervals with the same luck."""
    wanted = daly(100, 1000)
    every = [round(wanted * exp(x)) for x in np.linspace(-0.7, 0.7, 9)]
    goodput = [live(exponential(1000, 2000, steps, 100, 60), RestartJob(), seed).goodput for steps in every]
    slope = np.polynomial.Polynomial.fit(np.log(every), np.log(goodput), 3).convert().deriv()
    top = max(root.real for root in slope.roots() if slope.deriv()(root.real) < 0)
    assert exp(top) == pytest.approx(wanted, rel=0.05)
    assert abs(young(100, 1000) / wanted - 1) > 0.16
    assert log(every[0]) < top < log(every[-1])


# -- luck ------------------------------------------------------------------------------------------


def drawn(name: str = "gpu", machines: int = 4, seed: int = 0, **told: object) -> list[tuple[int, int]]:
    """Return the first hundred failures of machines of two devices."""
    cause = Failure(name, mtbf_ns=Fraction(HOUR), per_machine=2)
    return [(event.time_ns, event.machine) for event in islice(arrivals((cause,), machines, seed), 100)]


def test_the_same_seed_the_same_failures() -> None:
    assert drawn() == drawn()
    assert len({tuple(found) for found in (drawn(), drawn(seed=1), drawn("nic"))}) == 3
    times = [time for time, _ in drawn()]
    assert times == sorted(times)


def test_a_component_has_a_stream_of_its_own() -> None:
    """More machines beside it, or another cause, change nothing for it."""
    few, many = drawn(), drawn(machines=6)
    until = min(few[-1][0], many[-1][0])
    assert [each for each in few if each[0] < until] == [
        each for each in many if each[0] < until and each[1] < 4
    ]
    causes = (Failure("nic", mtbf_ns=Fraction(HOUR)), Failure("gpu", mtbf_ns=Fraction(HOUR), per_machine=2))
    both = [event for event in islice(arrivals(causes, 4, 0), 100) if event.source == 1]
    assert [(event.time_ns, event.machine) for event in both] == few[: len(both)]


def test_mtbf_is_of_a_component() -> None:
    """Eight devices with an hour each fail 8,000 times in 1,000 hours, give or take three deviations."""
    cause = Failure("gpu", mtbf_ns=Fraction(HOUR), per_machine=2)
    found = next(n for n, event in enumerate(arrivals((cause,), 4, 0)) if event.time_ns > 1000 * HOUR)
    assert abs(found - 8000) < 3 * 8000**0.5
    assert cause.rate(4) == Fraction(8, HOUR)


def test_policies_meet_the_same_failures() -> None:
    """What machines do beside the run tells of every failure, whatever the policy."""
    plan = TrainingPlan(
        S,
        None,
        100 * HOUR,
        4,
        spares=2,
        failures=(Failure("gpu", mtbf_ns=Fraction(10 * HOUR), per_machine=2, repair_ns=60 * S),),
    )
    failed = [
        [each for each in live(plan, policy).changes if each.state == "in repair"] for policy in POLICIES
    ]
    assert len(failed[0]) > 50
    assert all(each == failed[0] for each in failed)


# -- what cannot go on -----------------------------------------------------------------------------


def test_a_policy_that_waits_for_nothing_is_told() -> None:
    class Never(Recovery):
        def after_failure(self, fleet: Fleet) -> Restart | None:
            return None

    with pytest.raises(RunError, match="Never waits, and no machine is in repair"):
        live(TrainingPlan(10, 1, None, 1, failures=broken((5, 0))), Never())


def test_a_policy_cannot_have_more_workers_than_there_are() -> None:
    class More(Recovery):
        def after_failure(self, fleet: Fleet) -> Restart | None:
            return Restart(2)

    with pytest.raises(InputError, match="More asks for 2 workers of Fleet"):
        live(TrainingPlan(10, 1, None, 2, failures=broken((5, 0), repair_ns=9)), More())


def test_a_policy_must_decide() -> None:
    with pytest.raises(InputError, match=r"Recovery must define after_failure\(\)"):
        Recovery().after_failure(Fleet(1, 0, 1, 0))


def test_a_run_that_never_gets_far_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scenarios.training_run.lifecycle.MOST_FAILURES", 1000)
    plan = TrainingPlan(100, 1, None, 1, failures=(Failure("any", mtbf_ns=Fraction(1)),))
    with pytest.raises(RunError, match="after 1,000 failures 0 steps are done"):
        live(plan, RestartJob())


def test_a_run_that_always_restarts_from_one_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scenarios.training_run.lifecycle._MOST_RESTARTS", 20)
    often = broken(*((15 + 8 * k, 0) for k in range(100)))
    plan = TrainingPlan(10, 10, None, 1, checkpoints=Checkpoints(every_steps=1), failures=often)
    with pytest.raises(RunError, match="20 failures in a row come before a checkpoint after step 1"):
        live(plan, RestartJob())
    assert live(replace(plan, limit_ns=500), RestartJob()).steps == 1  # such a run ends by itself


def test_a_run_that_takes_centuries_is_told() -> None:
    with pytest.raises(RunError, match="after 146 years 46 of 100 steps are done"):
        live(TrainingPlan(10**17, 100, None, 1), RestartJob())
