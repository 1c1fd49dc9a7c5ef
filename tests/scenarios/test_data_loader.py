"""PyTorch's DataLoader and tf.data: by hand, recorded, by a second formulation, and in the steady state."""

from __future__ import annotations

import json
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from examples import examples
from hypothesis import assume, example, given
from hypothesis import strategies as st
from runs import run_text
from scenario_texts import write

from scenarios.builders.data_loaders import DataLoaderFields, TfDataFields
from scenarios.run.execute import Result
from sim.base.errors import ScenarioError
from sim.trace import Trace

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "data_loader_orders.json").read_text())["cases"]


def run(folder: Path, build: dict[str, Any], rest: str = "") -> Result:
    """Run a built workload on the machine, and under the policy, that it brings."""
    text = f"workload: {{build: {json.dumps(build)}}}\n{rest}"
    return run_text(text, folder)


def times(trace: Trace, kind: str) -> list[tuple[int, int]]:
    """Return when each op of a name began and ended, by number, in the first epoch of the first replica."""
    found = {}
    columns = (trace.tasks[name].tolist() for name in ("op", "start_ns", "end_ns", "iteration"))
    for op, start, end, iteration in zip(*columns, strict=True):
        name = trace.job.graph.op_names[op].removeprefix("0/")
        if not iteration and name.rstrip("0123456789") == kind:
            found[int(name.removeprefix(kind))] = start, end
    return [found[b] for b in range(len(found))]


def worker_of(trace: Trace, batches: int) -> list[int]:
    """Return the lane on which each batch was loaded."""
    lanes = {
        trace.job.graph.op_names[op]: lane
        for op, lane in zip(trace.tasks["op"].tolist(), trace.tasks["stream"].tolist(), strict=True)
    }
    first = trace.job.machine.first_stream[trace.job.machine.device_index("loader0")]
    return [lanes[f"load{b}"] - first for b in range(batches)]


# -- PyTorch ---------------------------------------------------------------------------------------

SLOW = {"model": "data-loader", "steps": 8, "train": "4ns", "workers": 2}
SLOW["load"] = ["10ns", "35ns", *["10ns"] * 6]
"""Two workers, prefetch 2; batch 1 is slow."""


def test_workers_that_do_not_persist_start_in_each_epoch(tmp_path: Path) -> None:
    """Three epochs: each takes as much longer as its workers take to start."""
    ends = []
    for start in ("0ns", "25us"):
        trace = run(tmp_path, {**SLOW, "start": start}, "iterations: 3").trace
        assert times(trace, "load")[0][0] == (25_000 if start == "25us" else 0)
        ends.append(trace.makespan_ns)
    assert ends[1] - ends[0] == 3 * 25_000
    with pytest.raises(ScenarioError, match=r"workload\.build\.start: there are no workers to start"):
        run(tmp_path, {**SLOW, "workers": 0, "start": "1us"})


@pytest.mark.parametrize(
    ("in_order", "workers", "begun", "returned"),
    [
        # 0 is returned at 10 and batch 4 handed to worker 0; 2 and 4 are there at 20 and 30, and wait for 1.
        # From 35 on: 1 (5 to worker 1), at 39 2 (6 to worker 0), at 45 3 (7 to worker 1) ...
        (True, [0, 1] * 4, [0, 0, 10, 35, 20, 45, 39, 55], [10, 35, 39, 45, 49, 55, 59, 65]),
        # 2 is returned at 20: 5 for worker 0, which had 2; 4 at 30: 6 for worker 0; 1 at 35: 7 for worker 1.
        (False, [0, 1, 0, 1, 0, 0, 0, 1], [0, 0, 10, 35, 20, 30, 40, 45], [10, 20, 30, 35, 40, 45, 50, 55]),
    ],
)
def test_event_list_with_a_slow_batch(
    tmp_path: Path, in_order: bool, workers: list[int], begun: list[int], returned: list[int]
) -> None:
    trace = run(tmp_path, {**SLOW, "in_order": in_order}, "policy: loader-queues\n").trace
    assert worker_of(trace, 8) == workers
    assert [start for start, _ in times(trace, "load")] == begun
    assert [start for start, _ in times(trace, "next")] == returned
    assert trace.makespan_ns == returned[-1] + 4


def test_batches_behind_a_slow_one_pile_up(tmp_path: Path) -> None:
    """At 35 batches 2 and 4 are there; when they come, nobody waits for batches in any order."""
    assert run(tmp_path, SLOW).summary["data_loading"]["most_waiting"] == 2
    assert run(tmp_path, {**SLOW, "in_order": False}).summary["data_loading"]["most_waiting"] == 0
    script = {"model": "data-loader", "steps": 3, "load": "10ns", "train": "4ns"}
    assert run(tmp_path, script).summary["data_loading"]["most_waiting"] == 0


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['units'][:3]}-{case['in_order']}")
def test_workers_and_order_as_recorded_from_torch(tmp_path: Path, case: dict[str, Any]) -> None:
    batches = len(case["units"])
    build = {
        "model": "data-loader",
        "steps": batches,
        "load": [f"{units * 1000}ns" for units in case["units"]],
        "train": f"{case['step'] * 1000}ns",
        "workers": case["workers"],
        "prefetch_factor": case["prefetch"],
        "in_order": case["in_order"],
    }
    trace = run(tmp_path, build, "policy: loader-queues\n").trace
    handed_out = {batch: worker for what, batch, worker in case["events"] if what == "put"}
    assert worker_of(trace, batches) == [handed_out[b] for b in range(batches)]
    returned = [batch for what, batch, _ in case["events"] if what == "returned"]
    arrived = sorted(range(batches), key=lambda b: times(trace, "load")[b][1])
    assert returned == (list(range(batches)) if case["in_order"] else arrived)


def by_the_rules(loads: list[int], step: int, workers: int, prefetch: int, in_order: bool) -> list[int]:
    """Return when each call of next() returns: the five rules as an event loop, with queues and no graph."""
    queues: list[list[int]] = [[] for _ in range(workers)]
    busy = [False] * workers
    counts = [0] * workers
    put, cycle, events = 0, 0, list[tuple[int, int, int]]()
    has: dict[int, int] = {}
    done: list[int] = []
    out: list[int] = []
    asked_ns: int | None = 0

    def hand_out() -> None:
        nonlocal put, cycle
        if put == len(loads):
            return
        while not in_order and counts[cycle % workers] >= prefetch:
            cycle += 1
        worker = cycle % workers
        cycle += 1
        has[put] = worker
        counts[worker] += 1
        queues[worker].append(put)
        put += 1

    def begin(now: int) -> None:
        for worker, queue in enumerate(queues):
            if queue and not busy[worker]:
                busy[worker] = True
                heappush(events, (now + loads[queue[0]], worker, queue.pop(0)))

    for _ in range(workers * prefetch):
        hand_out()
    now = 0
    while len(out) < len(loads):
        begin(now)
        can = bool(done) and (not in_order or len(out) in done)
        if asked_ns is not None and asked_ns <= now and can:
            batch = len(out) if in_order else done[0]
            done.remove(batch)
            counts[has[batch]] -= 1
            hand_out()
            out.append(now)
            asked_ns = now + step
        elif asked_ns is not None and asked_ns > now and (not events or asked_ns < events[0][0]):
            now = asked_ns
        else:
            now, worker, batch = heappop(events)
            busy[worker] = False
            done.append(batch)
    return out


DRAWN = {
    "loads": st.lists(st.integers(1, 10**9), min_size=1, max_size=12),
    "step": st.integers(1, 10**9),
    "workers": st.integers(1, 4),
    "prefetch": st.integers(1, 3),
    "in_order": st.booleans(),
}


@examples(40)
@given(**DRAWN)
def test_the_five_rules_as_an_event_loop(
    tmp_path_factory: pytest.TempPathFactory,
    loads: list[int],
    step: int,
    workers: int,
    prefetch: int,
    in_order: bool,
) -> None:
    assume(len(set(loads)) == len(loads))
    folder = tmp_path_factory.mktemp("drawn")
    build = {
        "model": "data-loader",
        "steps": len(loads),
        "load": [f"{ns}ns" for ns in loads],
        "train": f"{step}ns",
        "workers": workers,
        "prefetch_factor": prefetch,
        "in_order": in_order,
    }
    expected = by_the_rules(loads, step, workers, prefetch, in_order)
    policies = ["ready-queue", "loader-queues"] if in_order else ["loader-queues"]
    for policy in policies:
        trace = run(folder, build, f"policy: {policy}\n").trace
        assert [start for start, _ in times(trace, "next")] == expected


@examples(40)
@given(
    loads=st.lists(st.integers(1, 99), min_size=1, max_size=5),
    others=st.tuples(st.integers(0, 99), st.integers(1, 99)),
    workers=st.integers(0, 2),
    ahead=st.integers(0, 7),
    epochs=st.integers(1, 4),
)
@example(loads=[11_662], others=(3_296, 11_440), workers=0, ahead=1, epochs=3)
def test_a_script_that_runs_ahead_over_epochs(
    tmp_path_factory: pytest.TempPathFactory,
    loads: list[int],
    others: tuple[int, int],
    workers: int,
    ahead: int,
    epochs: int,
) -> None:
    """By recurrence: what ended when, of all batches of all epochs in one list."""
    copy, train = others
    build = {"model": "data-loader", "steps": len(loads), "load": [f"{ns}ns" for ns in loads]}
    build |= {"transfer": f"{copy}ns", "train": f"{train}ns", "workers": workers, "in_flight": 1 + ahead}
    trace = run(tmp_path_factory.mktemp("epochs"), build, f"iterations: {epochs}\n").trace
    came: list[int] = []
    over: list[int] = []
    loaded: list[int] = []
    epoch = 0
    for k in range(epochs * len(loads)):
        b = k % len(loads)
        asked = max([0, *came[-1:], *([over[k - 1 - ahead]] if k > ahead else [])])
        begun = asked
        if workers:
            epoch = asked if not b else epoch
            begun = came[k - 2 * workers] if b >= 2 * workers else epoch
            begun = max(begun, loaded[k - workers] if b >= workers else 0)
        loaded.append(begun + loads[b])
        came.append(max(asked, loaded[-1]))
        over.append(max([came[-1], *over[-1:]]) + copy + train)
    names, op = trace.job.graph.op_names, trace.tasks["op"].tolist()
    ends = sorted(
        end
        for row, end in zip(op, trace.tasks["end_ns"].tolist(), strict=True)
        if names[row].startswith("next")
    )
    assert ends == sorted(came)
    if loads == [11_662]:
        assert ends == [11_662, 23_324, 38_060]


def test_edges_on_the_kernel_and_queues_on_simpy_agree(tmp_path: Path) -> None:
    build = {
        "model": "data-loader",
        "steps": 60,
        "batch": 3,
        "load": "2us",
        "jitter": {"load": 0.5, "size": 0.5},
        "size": "1kB",
        "bandwidth": "1GB/s",
        "train": "4us",
        "transfer": "1us",
        "pin_memory": "1us",
        "in_flight": 2,
        "workers": 3,
    }
    edges = run(tmp_path, build, "engine: kernel\niterations: 2\n").trace
    queues = run(tmp_path, build, "policy: loader-queues\niterations: 2\n").trace
    assert edges.engine.startswith("kernel")
    assert queues.engine.startswith("simpy")
    for kind in ("request", "load", "pin_memory", "next", "copy", "train"):
        assert times(edges, kind) == times(queues, kind)
    assert edges.makespan_ns == queues.makespan_ns


def test_pinning_is_in_the_order_in_which_batches_come(tmp_path: Path) -> None:
    """Batches 0, 2, 4 come at 10, 20, 30, batch 1 at 35: it is pinned after them, though wanted first."""
    trace = run(tmp_path, {**SLOW, "pin_memory": "7ns"}).trace
    pinned = sorted(range(8), key=lambda b: times(trace, "pin_memory")[b])
    assert pinned[:4] == [0, 2, 4, 1]
    assert times(trace, "pin_memory")[1] == (37, 44)


def test_without_workers_the_script_does_one_thing_after_another(tmp_path: Path) -> None:
    build = {"model": "data-loader", "steps": 5, "load": "2ns", "train": "4ns", "transfer": "1ns"}
    result = run(tmp_path, {**build, "pin_memory": "3ns"})
    assert result.trace.makespan_ns == 5 * (2 + 3 + 1 + 4)
    assert result.summary["data_loading"]["needs_ns"] == {"training loop": 10}


def test_an_epoch_begins_when_the_script_has_left_the_one_before(tmp_path: Path) -> None:
    build = {"model": "data-loader", "steps": 3, "load": "2ns", "train": "4ns", "workers": 1}
    assert run(tmp_path, build, "iterations: 2\n").trace.makespan_ns == 2 * (2 + 3 * 4)
    for in_order in (True, False):  # the epoch's end waits for step 1: 2 is under way for another 4 ns
        ahead = {**build, "in_flight": 2, "in_order": in_order}
        assert run(tmp_path, ahead, "iterations: 2\n").trace.makespan_ns == 2 * 3 * 4 + 2


# -- the steady state ------------------------------------------------------------------------------

RATES = {"load": "6us", "transfer": "1us", "pin_memory": "1us", "train": "4us", "in_flight": 3, "workers": 4}


@pytest.mark.parametrize(
    ("options", "limit", "needs_us", "step_us"),
    [
        ({}, "training step", 4, 4),
        ({"workers": 1}, "workers", 6, 6),
        ({"workers": 2, "load": "10us"}, "workers", 5, 5),
        ({"pin_memory": "5us"}, "pin thread", 5, 5),
        ({"transfer": "7us"}, "copy", 7, 7),
        ({"transfer": "3us", "in_flight": 1}, "training step", 7, 7),  # one after the other
        ({"workers": 0, "in_flight": 1}, "main process", 12, 12),
        ({"size": "10kB", "bandwidth": "1GB/s", "load": "0us"}, "storage", 10, 10),
        # Workers that began together read together, and while they load nobody reads: 4 * 10 + 6 for four.
        ({"size": "10kB", "bandwidth": "1GB/s"}, "storage", 10, 11.5),
        ({"size": "1kB", "bandwidth": "1GB/s", "load": "19us"}, "workers", 5, 5.75),
        ({"replicas": 2, "all_reduce": "5us"}, "all-reduce", 9, 9),
        ({"replicas": 8, "size": "1kB", "bandwidth": "1GB/s", "load": "0us"}, "storage", 8, 8),
        ({"replicas": 8, "size": "1kB", "bandwidth": "1GB/s"}, "storage", 8, (32 + 6) / 4),
        ({"in_order": False, "load": "18us"}, "workers", 4.5, 4.5),
    ],
)
def test_the_slowest_is_named_and_reached(
    tmp_path: Path, options: dict[str, Any], limit: str, needs_us: float, step_us: float
) -> None:
    result = run(tmp_path, {"model": "data-loader", "steps": 200, **RATES, **options})
    told = result.summary["data_loading"]
    assert told["limit"] == limit
    assert told["limit_step_ns"] == 1000 * needs_us
    assert told["steady_step_ns"] == pytest.approx(1000 * step_us, rel=5e-3)


def test_a_pool_smaller_than_the_calls(tmp_path: Path) -> None:
    """Of four calls of a map two run at once, on a pool of two threads."""
    build = {"model": "tf-data", "steps": 40, "load": "9us", "workers": 4, "train": "1us"}
    threads = {name: {"kind": "cpu"} for name in ("prefetch0", "main0")}
    devices = {"loader0": {"kind": "cpu", "cores": 2}, **threads, "gpu0": {"kind": "gpu", "streams": 2}}
    told = run(tmp_path, build, f"machine: {json.dumps({'devices': devices})}").summary["data_loading"]
    assert (told["limit"], told["limit_step_ns"], told["steady_step_ns"]) == ("workers", 4500, 4500)


def test_run_and_explain_say_what_limits_it(tmp_path: Path) -> None:
    build = {"model": "data-loader", "steps": 40, "load": "9us", "train": "4us", "workers": 1}
    path = write(tmp_path, f"workload: {{build: {json.dumps(build)}}}\n")
    line = "A step every 9 us in the steady state, limited by the workers: workers 9 us, training loop 4 us."
    for verb in ("run", "explain"):
        assert line in sim(verb, path).stdout.splitlines()
        told = json.loads(sim(verb, path, "--json").stdout)["data_loading"]
        assert (told["limit"], told["steady_step_ns"]) == ("workers", 9000)


def test_jitter_keeps_the_mean_and_one_seed_the_same_items() -> None:
    sizes: dict[str, Any] = {"steps": 4000, "batch": 4, "load": "1us", "train": "1us", "workers": 1}

    def drawn(**more: Any) -> list[int]:
        return DataLoaderFields(model="data-loader", **sizes, **more).draw_batches(0)[0]

    assert set(drawn()) == {4000}
    noisy = drawn(jitter=0.4)
    assert noisy == drawn(jitter=0.4) != drawn(jitter=0.4, seed=1)
    assert sum(noisy) / len(noisy) == pytest.approx(4000, rel=0.02)
    deviation = (sum((ns - 4000) ** 2 for ns in noisy) / len(noisy)) ** 0.5
    assert deviation == pytest.approx(2 * 1000 * (2.718281828 ** (0.4**2) - 1) ** 0.5, rel=0.05)


# -- tf.data ---------------------------------------------------------------------------------------


def test_the_autotuner_by_hand(tmp_path: Path) -> None:
    """Loads 10 2 2 2 14, steps of 4.

    Element 0 is taken at 10 from a full buffer of 1 (mode down); 1, 2, 3 at 14, 18, 22, each there in time,
    and the next one made only then. At 26 the buffer is empty: limit 2, up. 4 comes at 36, 5 at 46, 6 at 48,
    7 at 50.
    """
    build = {"model": "tf-data", "steps": 9, "train": "4ns", "load": ["10ns", "2ns", "2ns", "2ns", "14ns"]}
    trace = run(tmp_path, build).trace
    assert [start for start, _ in times(trace, "next")] == [10, 14, 18, 22, 36, 46, 50, 54, 58]
    assert [start for start, _ in times(trace, "load")] == [0, 10, 14, 18, 22, 36, 46, 48, 50]


def by_tf_data(loads: list[int], step: int, calls: int | None, prefetch: int | str) -> list[int]:
    """Return when each element is given out: threads and a buffer, instant by instant."""
    limit, up = (1, True) if prefetch == "auto" else (int(prefetch), None)
    running: dict[int, int] = {}  # element → when its call ends
    made: set[int] = set()
    begun = pulled = pushed = 0
    waiting = False  # the thread has asked for element `pulled` - 1, and not put it into the buffer
    out: list[int] = []
    now, asks_ns, told_empty = 0, 0, False

    def note(size: int) -> None:
        nonlocal limit, up
        if up:
            up = size != limit
        elif up is False and size == 0:
            limit, up = limit * 2, True

    while len(out) < len(loads):
        for element in [e for e, end in running.items() if end <= now]:
            del running[element]
            made.add(element)
        moved = True
        while moved:
            moved = False
            if calls is not None:
                while begun < len(loads) and len(running) < calls and begun - pulled < calls:
                    running[begun] = now + loads[begun]
                    begun, moved = begun + 1, True
            if not waiting and pulled < len(loads) and pushed - len(out) < limit:
                if calls is None:
                    running[pulled] = now + loads[pulled]
                pulled, waiting, moved = pulled + 1, True, True
            if waiting and pulled - 1 in made:
                pushed, waiting, moved = pushed + 1, False, True
            if asks_ns <= now and len(out) < len(loads):
                size = pushed - len(out)
                if size:
                    note(size)
                    out.append(now)
                    asks_ns, told_empty, moved = now + step, False, True
                elif not told_empty and not moved:
                    told_empty = moved = True
                    note(0)
        later = [end for end in running.values() if end > now] + [asks_ns] * (asks_ns > now)
        if later:
            now = min(later)
    return out


@examples(40)
@given(
    loads=st.lists(st.integers(1, 10**9), min_size=1, max_size=20),
    step=st.integers(1, 10**9),
    calls=st.none() | st.integers(1, 3),
    prefetch=st.just("auto") | st.integers(1, 3),
)
def test_tf_data_instant_by_instant(
    tmp_path_factory: pytest.TempPathFactory,
    loads: list[int],
    step: int,
    calls: int | None,
    prefetch: int | str,
) -> None:
    assume(len(set(loads)) == len(loads))
    build = {
        "model": "tf-data",
        "steps": len(loads),
        "load": [f"{ns}ns" for ns in loads],
        "train": f"{step}ns",
        "prefetch": prefetch,
        **({} if calls is None else {"workers": calls}),
    }
    trace = run(tmp_path_factory.mktemp("drawn"), build).trace
    assert [start for start, _ in times(trace, "next")] == by_tf_data(loads, step, calls, prefetch)


@pytest.mark.parametrize(
    ("options", "makespan"),
    [
        ({"prefetch": "none"}, 5 * (2 + 4)),  # nothing is made ahead
        ({"prefetch": 0}, 2 + 5 * 4),  # TensorFlow adds a prefetch behind a sequential map
        ({"prefetch": 1}, 2 + 5 * 4),
        ({"prefetch": 0, "workers": 1}, 2 + 5 * 4),  # the map makes one ahead
        ({"prefetch": 1, "workers": 2, "load": "8ns"}, 8 + 4 * 4 + 4),
        ({"prefetch": 2, "workers": 2, "size": "8B", "bandwidth": "1GB/s"}, 18 + 18 + 10 + 4),
    ],
)
def test_tf_data_by_hand(tmp_path: Path, options: dict[str, Any], makespan: int) -> None:
    build = {"model": "tf-data", "steps": 5, "load": "2ns", "train": "4ns", **options}
    assert run(tmp_path, build).trace.makespan_ns == makespan


def test_a_call_of_the_map_keeps_its_thread_while_it_reads(tmp_path: Path) -> None:
    build = {"model": "tf-data", "steps": 9, "load": "2ns", "train": "1ns", "workers": 2}
    trace = run(tmp_path, {**build, "size": "8B", "bandwidth": "1GB/s", "prefetch": 4}).trace
    began, ended = [times(trace, kind) for kind in ("request", "load")]
    for at, _ in began:
        assert sum(a <= at < end for (a, _), (_, end) in zip(began, ended, strict=True)) <= 2


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "rest", "said"),
    [
        ({"in_order": False}, "policy: ready-queue\n", "only the policy loader-queues decides it"),
        ({"in_order": False, "workers": 0}, "", "in_order: has no effect: the script loads by itself"),
        ({"prefetch_factor": 2, "workers": 0}, "", "prefetch_factor: has no effect: the script loads"),
        ({"bandwidth": "1GB/s"}, "", "bandwidth: has no effect: items have no size"),
        ({"all_reduce": "1us"}, "", "all_reduce: has no effect: one replica"),
        ({"seed": 3}, "", "seed: has no effect: nothing is drawn"),
        ({"load": []}, "", "workload.build.load"),
        ({"steps": 0}, "", "workload.build.steps"),
        ({"steps": 1000000, "replicas": 100}, "", "ops are more than the 10,000,000"),
        ({"worker": 2}, "", "workers"),
    ],
)
def test_wrong_keys(tmp_path: Path, build: dict[str, Any], rest: str, said: str) -> None:
    good = {"model": "data-loader", "steps": 4, "load": "2us", "train": "1us", "workers": 2}
    with pytest.raises(ScenarioError) as caught:
        run(tmp_path, {**good, **build}, rest)
    assert said in str(caught.value)


def test_a_machine_with_too_few_workers_is_refused(tmp_path: Path) -> None:
    machine = "machine: {devices: {loader0: {kind: cpu}, main0: {kind: cpu}, gpu0: {kind: gpu}}}\n"
    good = {"model": "data-loader", "steps": 4, "load": "2us", "train": "1us", "workers": 2}
    with pytest.raises(ScenarioError, match=r"s\.yaml:.*loader0 has 1; give it as many cores"):
        run(tmp_path, {**good, "in_order": False}, machine + "policy: {streams: single}\n")


@pytest.mark.parametrize("prefetch", [-1, True, "automatic"])
def test_a_wrong_buffer(prefetch: Any) -> None:
    with pytest.raises(Exception, match="'auto' or 'none', not"):
        TfDataFields(model="tf-data", steps=1, load="1ns", train="1ns", prefetch=prefetch)
