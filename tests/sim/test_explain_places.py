"""`sim explain` about a place and a time: blame adds up to what is idle there, whatever one asks about."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from communicator_helpers import draw_collectives, draw_ranks
from drawn_runs import draw_run
from examples import examples, seeds
from hypothesis import given
from hypothesis import strategies as st

from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.streams import Recorded
from sim import Device, GraphBuilder, Machine, Trace, simulate
from sim.base.errors import InputError, StuckError, UnknownNameError
from sim.explain.communication import INSIDE, communicates, exposed_communication
from sim.explain.derived import DerivedColumns
from sim.explain.idle import idle_reasons
from sim.explain.narration import explain_text, grouped_gaps, largest_gaps, op_text, steps_in
from sim.explain.path import executed_path
from sim.explain.sentences import lives
from sim.explain.time_use import time_use


def draw_part(rng: np.random.Generator, trace: Trace) -> dict[str, Any]:
    """Return a random place and time of a run."""
    machine, makespan = trace.job.machine, trace.makespan_ns
    begin, end = np.sort(rng.choice(makespan + 1, 2, replace=False)).tolist()
    device = machine.devices[int(rng.integers(0, len(machine.devices)))]
    where: dict[str, Any] = {"from_ns": begin, "to_ns": end}
    if rng.random() < 0.7:
        where["device"] = device.name
        if rng.random() < 0.4:
            where["stream"] = int(rng.integers(0, device.lanes))
    return where


def idle_there(f: DerivedColumns, device: int) -> int:
    """Return for how many ns no task of a place runs, one ns after another."""
    here = np.flatnonzero(f.counts & (f.device == device))
    runs = np.zeros(f.trace.makespan_ns, bool)
    for row in here.tolist():
        runs[int(f.begins[row]) : int(f.trace.occupied_until_ns[row])] = True
    return int((~runs[f.from_ns : f.to_ns]).sum())


@pytest.mark.parametrize("seed", seeds(120))
def test_blame_adds_up_to_what_is_idle_in_any_place_and_time(seed: int) -> None:
    trace = draw_run(seed)
    if trace.makespan_ns < 2:
        return
    rng = np.random.default_rng(seed)
    where = draw_part(rng, trace)
    f = DerivedColumns(trace).within(**where)
    reasons, use = idle_reasons(f), time_use(f)
    names = [device.name for device in f.devices]
    assert list(reasons) == ([where["device"]] if "device" in where else names)
    for name, why in reasons.items():
        assert sum(why.values()) == idle_there(f, names.index(name))
        assert sum(use[name].values()) == f.to_ns - f.from_ns
    groups = grouped_gaps(f)
    grouped = sum(group.total_ns * len(group.devices) for group in groups)
    over = sum(why.get("finished", 0) + why.get("unused", 0) for why in reasons.values())
    assert grouped == sum(sum(why.values()) for why in reasons.values()) - over
    for group in groups:
        assert {group.reason} <= {r for name in group.devices for r in reasons[name]}
        assert group.longest.length_ns >= group.median_ns
    middle = (f.from_ns + f.to_ns) // 2
    if "stream" not in where and middle > f.from_ns:  # two halves of a time make the whole
        halves = [idle_reasons(f.within(**where | cut)) for cut in ({"to_ns": middle}, {"from_ns": middle})]
        for name, why in reasons.items():
            assert sum(sum(half[name].values()) for half in halves) == sum(why.values())
    assert explain_text(f)


@given(st.integers(0, 10**6))
@examples(100)
def test_exposed_communication_adds_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(1, 5))
    graph = draw_collectives(rng, ranks, int(rng.integers(1, 12)), crossing=rng.random() < 0.4, copies=True)
    own = {op: {INSIDE: int(rng.integers(0, 20))} for op in range(len(graph)) if rng.random() < 0.3}
    graph = replace(
        graph,
        attributes={op: {**graph.attributes.get(op, {}), **own.get(op, {})} for op in range(len(graph))},
    )
    with suppress(StuckError):
        trace = simulate(
            graph, draw_ranks(rng, ranks), ReadyQueue(synchronisation="issue"), streams=Recorded()
        )
        f, use = DerivedColumns(trace), time_use(trace)
        of_device = exposed_communication(f)
        moves = communicates(trace)
        for d, device in enumerate(f.devices):
            parts = of_device.get(device.name, {})
            waits, runs = (np.zeros(trace.makespan_ns, bool) for _ in range(2))
            for row in np.flatnonzero((f.device == d) & ~trace.alone).tolist():
                runs[int(f.begins[row]) : int(f.end[row])] = True
                if moves[row]:
                    waits[int(f.start[row]) : int(f.begins[row])] = True
            waited = int((waits & ~runs).sum())
            assert sum(parts.values()) == use[device.name]["communicate"] + waited
            assert parts.get("straggler", 0) >= waited


def two_streams() -> Trace:
    """Return backward and update on stream 0, a collective on stream 1 that the host issues late::

    host      b  ├20┤  r  ├40┤  u  ├60┤
    stream 0           ├20 backward 70┤       ├100 update 110┤
    stream 1                          ├70 reduce 100┤
    """
    b = GraphBuilder("step")
    b.op("backward", duration_ns=50, outputs=4, attributes={"stream": 0})
    b.op(
        "reduce", kind="all_reduce", duration_ns=30, inputs=["backward"], outputs=4, attributes={"stream": 1}
    )
    b.op("update", duration_ns=10, inputs=["reduce"], attributes={"stream": 0})
    machine = Machine((Device("gpu0", issue_ns=20, streams=2),))
    return simulate(b.build(), machine, ReadyQueue(synchronisation="issue"), streams=Recorded())


def test_a_stream_is_idle_for_the_sake_of_its_own_tasks() -> None:
    trace = two_streams()
    f = DerivedColumns(trace)
    assert idle_reasons(trace) == {"gpu0": {"issue": 20}}  # the device: some stream is busy from then on
    assert idle_reasons(f.within("gpu0", 0)) == {"gpu0": {"dependency": 30, "issue": 20}}
    assert idle_reasons(f.within("gpu0", 1)) == {"gpu0": {"dependency": 70, "finished": 10}}
    gaps = largest_gaps(f.within("gpu0", 0, 60, 90))
    assert [gap[1:] for gap in gaps] == [
        (70, 20, "dependency", "'update' needs 'reduce', which runs on gpu0/1")
    ]


def test_exposed_communication_is_charged_to_the_host_that_came_late() -> None:
    """Without the host's 20 ns the collective would have run from 50 to 80, behind other work until 70."""
    b = GraphBuilder("late")
    b.op("a", duration_ns=30, outputs=4, attributes={"stream": 0})
    b.op("c", duration_ns=45, attributes={"stream": 0})
    b.op("reduce", kind="all_reduce", duration_ns=30, inputs=["a"], attributes={"stream": 1})
    machine = Machine((Device("gpu0", issue_ns=25, streams=2),))
    trace = simulate(b.build(), machine, ReadyQueue(), streams=Recorded())
    # a runs 25-55, c 55-100, the collective is issued 55-80 and runs 80-110: 10 ns are exposed, of 25 late.
    assert trace.tasks["start_ns"].tolist() == [25, 55, 80]
    assert exposed_communication(DerivedColumns(trace)) == {"gpu0": {"host late": 10}}


@pytest.mark.parametrize(
    ("reads", "shared", "parts"),
    [
        # From 50 on the copy could run, and the gather from 55 to 115: 15 ns are exposed then, and not 60.
        (["a"], False, {"host late": 45, "bandwidth": 15}),
        # From time 0 on: it is enough that the gather ends with c.
        ([], False, {"host late": 60}),
        # When c has ended there is nothing left to hide behind.
        (["c"], False, {"bandwidth": 60}),
        # What an op that computes reads, too, is no part of the communication: its 15 ns alone help nobody.
        (["a"], True, {"bandwidth": 60}),
    ],
)
def test_a_copy_that_the_host_launches_late_delays_what_it_prepares(
    reads: list[str], shared: bool, parts: dict[str, int]
) -> None:
    """The host launches an op in 20 ns, and all in this order::

    stream 0   ├20 a 50┤├50 c 100┤
    stream 1                        ├100 copy 105┤
    stream 2                                        ├120 gather 180┤
    """
    b = GraphBuilder("copy in")
    b.op("a", duration_ns=30, outputs=4, attributes={"stream": 0})
    b.op("c", duration_ns=50, outputs=4, attributes={"stream": 0})
    for name in ("n", "m"):  # which keep the host
        b.op(name, duration_ns=0, attributes={"stream": 0})
    b.op("copy", kind="copy_in", duration_ns=5, inputs=reads, outputs=4, attributes={"stream": 1})
    b.op("gather", kind="all_gather", duration_ns=60, inputs=["copy"], attributes={"stream": 2})
    if shared:
        b.op("reader", duration_ns=0, inputs=["copy"], attributes={"stream": 0})
    machine = Machine((Device("gpu0", issue_ns=20, streams=3),))
    trace = simulate(b.build(), machine, InOrder(synchronisation="issue"), streams=Recorded())
    starts = {
        trace.job.graph.op_names[op]: at
        for op, at in zip(trace.tasks["op"].tolist(), trace.tasks["start_ns"].tolist(), strict=True)
    }
    assert (starts["a"], starts["c"], starts["copy"], starts["gather"]) == (20, 50, 100, 120)
    assert exposed_communication(DerivedColumns(trace)) == {"gpu0": parts}


def test_the_life_of_an_op() -> None:
    trace = two_streams()
    f = DerivedColumns(trace)
    (life,) = lives(f, "update")
    assert [piece[:3] for piece in life.pieces] == [("runs", 100, 10)]
    assert life.path == executed_path(trace)
    (life,) = lives(f, "backward")
    assert [piece[:3] for piece in life.pieces] == [("issue", 0, 20), ("runs", 20, 50)]
    assert life.pieces[0].blame == "'backward' is ready, and gpu0/host issues it"
    assert [trace.job.graph.op_names[int(trace.tasks["op"][row])] for row in life.held_up] == ["reduce"]
    assert op_text(f, "backward").splitlines()[0] == "'backward' on gpu0/0"
    with pytest.raises(UnknownNameError, match="update"):
        lives(f, "updat")
    with pytest.raises(InputError, match=r"op 'update' did not execute from 0 ns to 50 ns on gpu0"):
        lives(f.within("gpu0", to_ns=50), "update")


def test_steps_are_cut_at_the_ends_of_the_time() -> None:
    trace = two_streams()
    f = DerivedColumns(trace).within(from_ns=60, to_ns=105)
    cut = steps_in(f, executed_path(trace))
    assert [(step.start_ns, step.end_ns) for step in cut] == [(60, 70), (70, 100), (100, 105)]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"device": "gpu1"}, "gpu0"),
        ({"device": "gpu0", "stream": 2}, r"gpu0 has no stream 2; its streams are 0 to 1"),
        ({"stream": 1}, "stream 1: of which device"),
        ({"from_ns": 200}, r"from 200 ns to 110 ns there is no time; the run lasts 110 ns"),
        ({"from_ns": 20, "to_ns": 20}, r"from 20 ns to 20 ns there is no time"),
    ],
)
def test_places_that_there_are_not(asked: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DerivedColumns(two_streams()).within(**asked)  # type: ignore[arg-type]


SCENARIO = """
machine: {devices: {gpu0: {kind: gpu, streams: 2, issue_cost: 3.5us}}}
workload:
  ops:
    a: {duration: 1us}
    b: {duration: 1us, after: [a]}
    c: {duration: 1us, after: [b]}
policy: {name: ready-queue}
"""


def test_the_command_answers_about_a_place_and_a_time(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    whole = sim("explain", path)
    assert "  gpu0                10.5 us  3 x 3.5 us         issue" in whole.stdout
    part = sim("explain", path, "--device", "gpu0", "--stream", "0", "--from", "4us", "--to", "9us")
    assert "Only what happens from 4 us to 9 us on gpu0/0." in part.stdout
    told = json.loads(sim("explain", path, "--from", "4us", "--to", "9us", "--op", "b", "--json").stdout)
    assert (told["from_ns"], told["to_ns"]) == (4000, 9000)
    assert sum(told["idle_reasons"]["gpu0"].values()) == 3500
    assert [step["op"] for step in told["executions"][0]["path"]] == ["a", "a", "b", "b"]
    assert told["idle_groups"][0]["reason"] == "issue"
    one = sim("explain", path, "--set", "iterations=3", "--op", "b[2]").stdout
    assert "'b'[2] on gpu0/0" in one
    assert "'b'[1] on gpu0/0\n" not in one
    assert sim("explain", path, "--set", "iterations=3", "--op", f"b[{'9' * 5000}]").exit_code == 2


@pytest.mark.parametrize(
    ("host_ns", "told"),
    [
        ((3500, 3500), "2 x 3.5 us"),
        ((20_000, 30_000), "2 x ~25 us"),
        ((10_500, 10_501), "2 x 10.5 us"),
        ((1000, 2700), "2 x ~1.9 us"),
    ],
)
def test_unlike_stretches_are_told_with_their_mean(host_ns: tuple[int, int], told: str) -> None:
    b = GraphBuilder("two gaps")
    before = b.op("start", duration_ns=1, device="gpu0")
    for n, ns in enumerate(host_ns):
        b.op(f"host{n}", duration_ns=ns, device="cpu0", inputs=[before])
        before = b.op(f"kernel{n}", duration_ns=1, device="gpu0", inputs=[f"host{n}"])
    text = explain_text(simulate(b.build(), Machine((Device("gpu0"), Device("cpu0"))), ReadyQueue()))
    assert f" {told}  " in text


def test_a_wrong_place_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    for wrong in (["--device", "gpu9"], ["--from", "4"], ["--op", "z"], ["--stream", "0"], ["--from", "1s"]):
        done = sim("explain", path, *wrong)
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_the_time_of_several_hosts_is_a_share_of_the_time_of_all() -> None:
    """Two hosts spend 30 and 10 of 40 us in one operator: half of their time, not all of one's."""
    b = GraphBuilder("two ranks")
    for name, us in (("a", 30), ("b", 10)):
        b.op(name, duration_ns=1000 * us, device=f"cpu{name}", attributes={"operator": "aten::mm"})
    b.op("end", duration_ns=10_000, inputs=["a"], device="cpua")
    machine = Machine(tuple(Device(f"cpu{name}", "cpu", workers=1) for name in "ab"))
    trace = simulate(b.build(), machine, ReadyQueue())
    f = DerivedColumns(trace)
    both, one = explain_text(f), explain_text(f.within(device="cpua"))
    assert "\nHost time by operator, of the 2 hosts together\n" in both
    assert re.search(r"aten::mm +40 us +50\.0 %  2 x", both)
    assert "\nHost time by operator\n" in one
    assert re.search(r"aten::mm +30 us +75\.0 %  1 x", one)
