"""What-ifs against programs that were run so: what one recording predicts is what happens, to the ns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_programs import CALL, Host, Run, gpu, host, operator, ran
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import columns, recorded
from test_import_kineto_what_if import STEPS, edges, starts_and_ends

from policies.rewrite.records import read
from scenarios.importers.kineto.kineto import load
from scenarios.recorded.changes import WhatIf, applied
from scenarios.recorded.setup import run_recorded
from scenarios.variants.recording_trials import straggler
from sim import Graph, GraphBuilder
from sim.base.arrays import Csr
from sim.base.errors import InputError

US = 1000
Program = list[tuple[Any, ...]]
BLOCKING = ("item", "sync stream", "sync event", "sync device")


def what_if(graph: Graph, *changes: dict[str, Any]) -> Graph:
    """Return a graph after changes, as a scenario has them."""
    return applied(graph, [WhatIf.model_validate(change) for change in changes])


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[dict[str, Any]]], Graph]:
    """Return what writes the events of a run into a file, and loads it."""
    path = tmp_path_factory.mktemp("drawn") / "trace.json"

    def write(events: Sequence[dict[str, Any]]) -> Graph:
        path.write_text(json.dumps({"traceEvents": [*events]}))
        return load(path)

    return write


def tasks_of(graph: Graph, run: Run) -> dict[int, str]:
    """Return the op of each task of a run."""
    streams = [event["args"]["stream"] for event in run.events if event["cat"] in ("kernel", "gpu_memcpy")]
    known = {(stream, US * run.start[i]): i for i, stream in enumerate(streams)}
    return {
        known[own["stream"], own["recorded_start_ns"]]: graph.op_names[op]
        for op, own in graph.attributes.items()
        if "kernel" in own
    }


def durations_of(program: Program, random: Any) -> list[int]:
    return [random.randint(1, 150) * 2 for step in program]


def assert_runs_as(graph: Graph, names: Sequence[str], run: Run) -> None:
    """Tasks start, and the host ends, as in a run; the engine says the same of when all is over."""
    start, end = starts_and_ends(graph)
    assert [start[name] for name in names] == [US * at for at in run.start]
    host_ends = [end[graph.op_names[op]] for op, own in graph.attributes.items() if "thread" in own]
    assert run_recorded(graph).makespan_ns == max(*end.values())
    assert max(host_ends) <= US * run.host_end


# -- drawn programs, recorded once, and run under the what-if ------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Return a program that begins and ends with a launch.

    Its work is even, so that it has a half, and its events were recorded before the host waits for them.
    """
    found: Program = [("launch", 7)]
    for step in draw(st.lists(STEPS, max_size=25)):
        known = {other[1] for other in found if other[0] == "record"}
        if step[0] != "sync event" or step[1] in known:
            found.append(("work", 2 * step[1]) if step[0] == "work" else step)
    return [*found, ("launch", 7)]


RANDOM = st.randoms(use_true_random=False)
Imported = Callable[[Sequence[dict[str, Any]]], Graph]


@examples(40)
@given(programs(), RANDOM)
def test_launch_calls_of_half_the_time(imported: Imported, program: Program, random: Any) -> None:
    durations = durations_of(program, random)
    was = ran(program, durations)
    graph = imported(was.events)
    names = [name for _, name in sorted(tasks_of(graph, was).items())]
    for change, cost in (("x0.5", CALL // 2), ("x0", 0), ("7us", 7), ("x3", 3 * CALL)):
        now = ran(program, durations, costs=Host(launch=cost))
        assert_runs_as(what_if(graph, {"issue_cost": change}), names, now)


@examples(40)
@given(programs(), RANDOM)
def test_a_host_of_half_the_time(imported: Imported, program: Program, random: Any) -> None:
    """Work, calls and what is left of waits; waiting itself is the GPU's."""
    durations = durations_of(program, random)
    was = ran(program, durations, costs=Host(tail=2))
    graph = imported(was.events)
    names = [name for _, name in sorted(tasks_of(graph, was).items())]
    for change, factor in (("x0.5", Fraction(1, 2)), ("x0", Fraction(0)), ("x2", Fraction(2))):
        steps = [("work", int(step[1] * factor)) if step[0] == "work" else step for step in program]
        costs = Host(*(int(cost * factor) for cost in (CALL, CALL, 2)))
        assert_runs_as(what_if(graph, {"host": change}), names, ran(steps, durations, costs=costs))


@examples(40)
@given(programs(), RANDOM)
def test_kernels_of_half_the_time(imported: Imported, program: Program, random: Any) -> None:
    """By kind: kernels are twice as fast; or copies to the host, three times as slow."""
    durations = durations_of(program, random)
    was = ran(program, durations)
    graph = imported(was.events)
    names = [name for _, name in sorted(tasks_of(graph, was).items())]
    copies = [step[0] == "item" for step in program if step[0] in ("launch", "item")]
    for kind, factor, which in (("kernel", Fraction(1, 2), False), ("transfers", Fraction(3), True)):
        if kind == "transfers" and not any(copies):
            continue
        now = [
            int(ns * (factor if copy is which else 1)) for ns, copy in zip(durations, copies, strict=False)
        ]
        change = f"x{float(factor)}"
        assert_runs_as(what_if(graph, {"scale": {kind: change}}), names, ran(program, now))
        if kind == "transfers":
            slower = what_if(graph, {"bandwidth": {"transfers": "x0.5"}})
            now = [2 * ns if copy else ns for ns, copy in zip(durations, copies, strict=False)]
            assert_runs_as(slower, names, ran(program, now))


@examples(60)
@given(programs(), RANDOM)
def test_ops_that_are_not_there(imported: Imported, program: Program, random: Any) -> None:
    """Kernels and copies go with their launches, and a copy with the host's wait for it."""
    durations = durations_of(program, random)
    was = ran(program, durations)
    graph = imported(was.events)
    tasks = tasks_of(graph, was)
    launching = [n for n, step in enumerate(program) if step[0] in ("launch", "item")]
    gone = {i for i in range(1, len(launching) - 1) if random.random() < 0.4}
    if not gone:
        return
    steps = [step for n, step in enumerate(program) if n not in {launching[i] for i in gone}]
    left = [i for i in range(len(launching)) if i not in gone]
    now = ran(steps, [durations[i] for i in left])
    changed = what_if(graph, {"remove": [tasks[i] for i in sorted(gone)]})
    assert_runs_as(changed, [tasks[i] for i in left], now)


def in_graphs(program: Program, launch: int, node: int) -> Program:
    """Return the program with a graph in place of the launches between steps that wait."""
    found: Program = []
    part: Program = []

    def close() -> None:
        last = max((n for n, step in enumerate(part) if step[0] == "launch"), default=None)
        if last is not None:
            inner = [step for step in part[: last + 1] if step[0] != "work"]
            nodes = sum(step[0] == "launch" for step in inner)
            found.append(("graph", launch + node * nodes, inner))
            found.extend(part[last + 1 :])
        else:
            found.extend(part)
        part.clear()

    for step in program:
        if step[0] in BLOCKING:
            close()
            found.append(step)
        elif part or step[0] == "launch":
            part.append(step)
        else:
            found.append(step)
    close()
    return found


@pytest.mark.filterwarnings("ignore:.*is the most that CUDA graphs can give")
@examples(60)
@given(programs(), RANDOM)
def test_launches_as_cuda_graphs(imported: Imported, program: Program, random: Any) -> None:
    durations = durations_of(program, random)
    was = ran(program, durations)
    graph = imported(was.events)
    names = [name for _, name in sorted(tasks_of(graph, was).items())]
    now = ran(in_graphs(program, 9, 2), durations)
    assert_runs_as(what_if(graph, {"cuda_graph": {"launch": "9us", "node": "2us"}}), names, now)


@examples(60)
@given(programs(), RANDOM)
def test_kernels_that_become_one(imported: Imported, program: Program, random: Any) -> None:
    """Two launches on one stream with nothing but work, or other streams' launches, between them."""
    durations = durations_of(program, random)
    was = ran(program, durations)
    graph = imported(was.events)
    tasks = tasks_of(graph, was)
    launching = [n for n, step in enumerate(program) if step[0] in ("launch", "item")]
    pairs = []
    for i, j in combinations(range(len(launching)), 2):
        between = program[launching[i] + 1 : launching[j]]
        apart = program[launching[i]] != program[launching[j]] or program[launching[i]][0] != "launch"
        if not apart and all(
            s[0] == "work" or (s[0] == "launch" and s != program[launching[i]]) for s in between
        ):
            pairs.append((i, j))
    if not pairs:
        return
    i, j = random.choice(pairs)
    longer = [*durations]
    longer[j] += durations[i]
    steps = [step for n, step in enumerate(program) if n != launching[i]]
    left = [n for n in range(len(launching)) if n != i]
    changed = what_if(graph, {"fuse": [[tasks[i], tasks[j]]]})
    assert_runs_as(changed, [tasks[n] for n in left], ran(steps, [longer[n] for n in left]))


@pytest.mark.filterwarnings("ignore:streams")
@examples(40)
@given(programs(), RANDOM, st.integers(2, 3))
def test_kernels_on_more_streams(imported: Imported, program: Program, random: Any, count: int) -> None:
    """Kernels of other operators are independent; events and waits of the host are of all kernels before."""
    program = without_waits_for_itself(program)
    durations = durations_of(program, random)
    was = ran(program, durations)
    tasks = [event for event in was.events if event["cat"] in ("kernel", "gpu_memcpy")]
    kinds = [random.choice("abc") for _ in tasks]
    named = [
        operator(kind, 0, 0, **{"External id": event["args"]["External id"]})
        for kind, event in zip(kinds, tasks, strict=True)
    ]
    graph = imported([*was.events, *named])
    ops = tasks_of(graph, was)
    changed = what_if(graph, {"streams": count})
    stream = {task: changed.attributes[changed.index(name)]["stream"] for task, name in ops.items()}
    split: dict[int, list[int]] = {}
    for task in sorted(ops):
        split.setdefault(tasks[task]["args"]["stream"], []).append(stream[task])
    split = {was_: sorted(set(now), key=now.index) for was_, now in split.items()}
    # the same program on these streams: an event is recorded, and waited for, on all that one became
    steps: Program = []
    before: dict[int, int] = {}
    task = 0
    for step in program:
        if step[0] in ("launch", "item"):
            last = before.get(step[1])
            if last is not None and kinds[last] == kinds[task] and stream[last] != stream[task]:
                sync = [("record", "own", stream[last]), ("wait", stream[task], "own")]
                steps.append(("graph", 0, sync))
            before[step[1]] = task
            steps.append((step[0], stream[task]))
            task += 1
        elif step[0] in ("record", "wait", "sync event", "sync stream"):
            steps.append(("many", step))
        else:
            steps.append(step)
    now = ran(list(on_all(steps, split)), durations)
    assert_runs_as(changed, [ops[n] for n in sorted(ops)], now)
    assert run_recorded(changed).makespan_ns <= run_recorded(graph).makespan_ns


def without_waits_for_itself(program: Program) -> Program:
    """Return the program without waits of a stream for its own kernels: nothing of them is in a recording."""
    found: Program = []
    waits_for: dict[int, set[int]] = {}  # stream → whose kernels are last on it, or awaited
    events: dict[object, set[int]] = {}
    for step in program:
        if step[0] in ("launch", "item"):
            waits_for[step[1]] = {step[1]}
        elif step[0] == "record":
            events[step[1]] = {*waits_for.get(step[2], ())}
        elif step[0] == "wait":
            if step[1] in events.get(step[2], ()):
                continue
            waits_for.setdefault(step[1], set()).update(events.get(step[2], ()))
        found.append(step)
    return found


def on_all(steps: Program, split: dict[int, list[int]]) -> Iterator[tuple[Any, ...]]:
    """Yield steps in which events and waits are of all streams that one became."""
    known: dict[object, list[int]] = {}
    for step in steps:
        if step[0] != "many":
            yield step
            continue
        kind, *where = step[1]
        if kind == "record":
            known[where[0]] = split.get(where[1], [where[1]])
            yield ("work", CALL)
            yield ("graph", 0, [("record", (where[0], s), s) for s in known[where[0]]])
        elif kind == "wait":
            streams, event = split.get(where[0], [where[0]]), where[1]
            yield ("work", CALL if event in known else 0)
            yield ("graph", 0, [("wait", s, (event, o)) for s in streams for o in known.get(event, [])])
        elif kind == "sync stream" or where[0] in known:
            # whatever ends last; then once more what is left of the call
            whole = known.get(where[0], []) if kind == "sync event" else split.get(where[0], [where[0]])
            yield ("sync many", [((where[0], s) if kind == "sync event" else s) for s in whole])


# -- by hand --------------------------------------------------------------------------------------


def trace_of(*events: dict[str, Any], path: Path) -> Graph:
    path.write_text(json.dumps({"traceEvents": [*events]}))
    return load(path)


@pytest.fixture
def three(tmp_path: Path) -> Graph:
    """Return three kernels, each launched in 5 us after 10 us of work; the second begins within its call.

    ::

        host     work  [a  ]  work  [b :  ]  work  [c  ]  sync
        stream              a 20       b 6               c 30
    """
    return trace_of(
        host("cudaLaunchKernel", 1, 10, 5),
        gpu("a_gemm", 1, 15, 5),
        host("cudaLaunchKernel", 2, 25, 5),
        gpu("b_elementwise", 2, 28, 6),
        host("cudaLaunchKernel", 3, 40, 5),
        gpu("c_elementwise", 3, 45, 30),
        host("cudaDeviceSynchronize", 4, 50, 30),
        path=tmp_path / "three.json",
    )


def times(graph: Graph) -> dict[str, tuple[float, float]]:
    start, end = starts_and_ends(graph)
    return {name: (start[name] / US, end[name] / US) for name in graph.op_names}


def test_parts_of_a_launch(three: Graph) -> None:
    """b's call takes effect after 3 us; its other 2 us are the next op's, and stay the call's."""
    parts = {
        graph_op: {key: own[key] for key in ("call_ns", "rest_of_call_ns") if key in own}
        for graph_op, own in ((three.op_names[op], own) for op, own in three.attributes.items())
        if "thread" in own
    }
    assert parts["launch.1"] == {"call_ns": 3 * US}
    assert parts["launch.2"] == {"call_ns": 5 * US, "rest_of_call_ns": 2 * US}
    faster = times(what_if(three, {"issue_cost": "x0"}))
    # 10 us less the call; 10 us of work; 10 us of work after the rest of b's call
    assert (faster["a_gemm.0"][0], faster["b_elementwise.1"][0], faster["c_elementwise.2"][0]) == (0, 10, 20)
    given = times(what_if(three, {"issue_cost": "10us"}))
    assert given["b_elementwise.1"][0] == 10 + 10 + 6  # 3 of 5 us are before it begins, so 6 of 10
    assert given["c_elementwise.2"][0] == 26 + 4 + 10 + 10


def test_a_removed_kernel_leaves_the_work_of_the_host(three: Graph) -> None:
    left = times(what_if(three, {"remove": ["b_elementwise"]}))
    assert left["c_elementwise.2"] == (5 + 10 + 10 + 5, 60)
    gone = times(what_if(three, {"remove": {"ops": ["b_elementwise"], "host": "goes"}}))
    assert gone["c_elementwise.2"] == (5 + 10 + 5, 50)
    assert set(left) == {
        "launch.0",
        "a_gemm.0",
        "launch.1",
        "launch.2",
        "c_elementwise.2",
        "host.3",
        "synchronize.3",
    }
    assert set(gone) == set(left) - {"launch.1"}


def test_what_read_or_followed_a_removed_op_goes_on_with_what_is_before_it() -> None:
    """c reads a in place of b; d follows z and itself an iteration later; b was before itself, too."""
    b = GraphBuilder("any")
    b.parameter("w", 8)
    b.op("a", duration_ns=1, outputs=[4, 4])
    b.op("z", duration_ns=1)
    b.op("b", duration_ns=1, inputs=["a:1", "w"], after=["z", ("b", 1)], outputs=4)
    b.op("c", duration_ns=1, inputs=["b"])
    b.op("d", duration_ns=1, after=[("b", 1), ("e", 1)])
    b.op("e", duration_ns=1, after=["d"])
    records = read(what_if(b.build(), {"remove": ["b", "e"]})).ops
    assert records["c"].inputs == [("a:1", 0), ("w", 0)]
    assert records["c"].after == [("z", 0)]
    assert records["d"].after == [("z", 1), ("d", 1)]
    assert [*records] == ["a", "z", "c", "d"]


def test_fused_kernels(three: Graph) -> None:
    """b and c: 36 us, launched where c was, without b's call; or what is given."""
    one = times(what_if(three, {"fuse": ["elementwise"]}))
    assert one["c_elementwise.2"] == (30, 66)
    given = what_if(three, {"fuse": [{"ops": ["b_elementwise", "c_elementwise"], "duration": "8us"}]})
    assert times(given)["c_elementwise.2"] == (30, 38)
    assert given.attributes[given.index("c_elementwise.2")]["fused"] == ["b_elementwise.1", "c_elementwise.2"]
    for words, says in (
        ([["gemm", "c_elementwise"]], r"^fuse\[0\]: no 'gemm', 'c_elementwise' stand one behind another"),
        (["gemm"], r"^fuse\[0\]: no two of 'gemm' stand one behind another on a stream"),
    ):
        with pytest.raises(InputError, match=says):
            what_if(three, {"fuse": words})


def test_kernels_with_something_between_them_are_not_fused(tmp_path: Path) -> None:
    """The host waits for the first before it launches the second."""
    program = [("launch", 7), ("sync stream", 7), ("launch", 7)]
    graph = trace_of(*ran(program, [10, 10]).events, path=tmp_path / "t.json")
    with pytest.raises(
        InputError, match=r"'kernel.0' and 'kernel.1' cannot be one kernel: 'synchronize.1' comes"
    ):
        what_if(graph, {"fuse": ["kernel"]})


def test_two_pairs_that_wait_for_each_other_are_not_both_fused() -> None:
    """a1 before b2 and b1 before a2: of the two pairs only one can be one kernel."""
    b = GraphBuilder("crossed")
    for name, stream, after in (
        ("a1", 7, []),
        ("b1", 20, []),
        ("a2", 7, ["a1", "b1"]),
        ("b2", 20, ["b1", "a1"]),
    ):
        b.op(name, kind="relu", duration_ns=5, device="gpu", after=after, attributes={"stream": stream})
    graph = what_if(b.build(), {"fuse": ["relu"]})
    assert graph.op_names == ["b1", "a2", "b2"]
    assert starts_and_ends(graph)[0] == {"b1": 0, "a2": 5, "b2": 15}


def test_a_cuda_graph_by_hand(three: Graph) -> None:
    """After 10 us of work a launch of 2.5 us and 3 ns; then the host does what it did after the last one."""
    with pytest.warns(
        UserWarning, match="^22 us that the host worked between launches is taken for dispatch"
    ):
        graph = what_if(three, {"cuda_graph": True})
    assert times(graph) == {
        "launch.0": (0, 2.503),
        "a_gemm.0": (2.503, 7.503),
        "b_elementwise.1": (7.503, 13.503),
        "c_elementwise.2": (13.503, 43.503),
        "host.3": (2.503, 7.503),
        "synchronize.3": (43.503, 48.503),
    }
    assert what_if(three, {"cuda_graph": False}) is three


@pytest.mark.filterwarnings("ignore:.*is the most that CUDA graphs can give")
def test_a_copy_from_the_host_is_in_no_cuda_graph(tmp_path: Path) -> None:
    """Each step a loader works 50 us, and its batch is copied; the work between other launches goes."""
    events, now = [], 0
    for step in range(2):
        for n, (work, name, category) in enumerate(
            [
                (50, "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"),
                (10, "kernel", "kernel"),
                (10, "kernel", "kernel"),
            ]
        ):
            now += work
            correlation = 3 * step + n + 1
            call = "cudaMemcpyAsync" if n == 0 else "cudaLaunchKernel"
            events += [host(call, correlation, now, 4), gpu(name, correlation, now + 4, 1, category=category)]
            now += 4
    graph = what_if(trace_of(*events, path=tmp_path / "t.json"), {"cuda_graph": {"launch": "2us", "node": 0}})
    calls = [name for name in graph.op_names if name.startswith("launch")]
    assert calls == ["launch.0", "launch.1", "launch.3", "launch.4"]
    assert graph.duration_ns[[graph.index(name) for name in calls]].tolist() == [
        *(4 * US, (10 + 2) * US),
        *((50 + 4) * US, (10 + 2) * US),
    ]


def test_the_gap_between_kernels() -> None:
    """Three kernels of 10 us, launched in 1 us each and 2 us apart; the idle time before c is there, too."""
    b = GraphBuilder("gaps")
    on = {"device": "gpu", "attributes": {"stream": 7}}
    call = {"kind": "launch", "device": "cpu", "duration_ns": US}
    for n, name in enumerate("abc"):
        before = [f"launch.{n - 1}"] if n else []
        b.op(f"launch.{n}", after=before, attributes={"thread": "thread0", "call_ns": US}, **call)
        if name == "c":
            b.op("delay.c", kind="delay", duration_ns=3 * US, after=["launch.2", "b"], **on)
        after = {"a": [], "b": ["a"], "c": ["b", "delay.c"]}[name]
        b.op(name, duration_ns=10 * US, after=[f"launch.{n}", *after], **on)
    graph = replace(b.build(), device_facts={"gpu": {"gap": "2us"}})
    assert run_recorded(graph).makespan_ns == (1 + 30 + 2 * 2 + 2 + 3) * US  # the delay has a gap of its own
    for change, gap_us in (("x0", 0), ("x0.5", 1), ("500ns", 0.5)):
        assert run_recorded(what_if(graph, {"gap": change})).makespan_ns == (1 + 30 + 3 + 3 * gap_us) * US
    one = what_if(graph, {"cuda_graph": {"launch": "1us", "node": 0, "gap": "1us"}, "remove": ["c"]})
    assert run_recorded(one).makespan_ns == (1 + 20 + 1) * US
    assert "delay.c" not in one.op_names
    assert one.device_facts == {"gpu": {"gap": "1000ns"}}


def test_streams_keep_what_is_read() -> None:
    """An execution graph: c reads a; b is independent, and so on a stream of its own. d waits for all."""
    b = GraphBuilder("read")
    more = {"device": "gpu", "outputs": 8}
    b.op("a", duration_ns=10, attributes={"stream": 7}, **more)
    b.op("b", duration_ns=15, after=["a"], attributes={"stream": 7}, **more)
    b.op("c", duration_ns=20, inputs=["a"], after=["b"], attributes={"stream": 7}, **more)
    b.op("d", duration_ns=5, after=["c"], attributes={"stream": 20}, **more)
    graph = what_if(b.build(), {"streams": 2})
    assert [graph.attributes[op]["stream"] for op in range(4)] == [7, 21, 7, 20]
    told = b.build()
    told = replace(told, after=Csr.of_rows([[], [0], [1, 0], [2]]), after_distance=np.zeros(4, np.int64))
    assert [op.get("stream") for op in what_if(told, {"streams": 2}).attributes.values()] == [7, 21, 7, 20]
    assert starts_and_ends(graph)[0] == {"a": 0, "b": 0, "c": 10, "d": 30}
    assert edges(graph) == {("a", "c"), ("b", "d"), ("c", "d")}
    assert what_if(b.build(), {"scale": {"d": "x2"}}).op_names == graph.op_names


def test_a_stream_with_collectives_stays_as_it_is(tmp_path: Path) -> None:
    kernel = "ncclKernel_AllReduce_RING_LL_Sum_float"
    events = [host("cudaLaunchKernel", 1, 0, 5), host("cudaLaunchKernel", 2, 5, 5)]
    events += [gpu(kernel, 1, 5, 10), gpu(kernel, 2, 15, 10)]
    graph = trace_of(*events, path=tmp_path / "t.json")
    with pytest.warns(UserWarning, match=r"^streams: changes nothing in 't'$"):
        assert what_if(graph, {"streams": 2}) is graph


@pytest.mark.parametrize(
    ("bound", "gemm_ns", "relu_ns", "small_ns"),
    [("low", 2_500, 5_000, 5_000), ("middle", 3_536, 5_000, 7_071), ("high", 5_000, 5_000, 10_000)],
)
def test_another_device(bound: str, gemm_ns: int, relu_ns: int, small_ns: int, monkeypatch: Any) -> None:
    """Four times the flop, twice the bytes: products between both, the rest by bytes, few blocks up to 1."""
    presets = {
        name: {"peak": {"fp32": f"{n * n}TFLOP/s"}, "bandwidth": f"{n}TB/s", "sms": 10}
        for name, n in (("one", 1), ("two", 2))
    }
    module = "scenarios.recorded.other_gpu"
    monkeypatch.setattr(f"{module}.device_preset", presets.__getitem__)
    monkeypatch.setattr(f"{module}.presets", lambda: [type("P", (), {"name": name}) for name in presets])
    b = GraphBuilder("kernels")
    for name, kind, blocks, flops in (
        *(("mm", "matmul", 10, 0), ("relu", "elementwise", 10, 0), ("small", "elementwise", 9, 0)),
        ("known", "matmul", 1, 10**9),
    ):
        own = {"stream": 7, "grid": [blocks, 1, 1], "kernel": "sgemm"}
        b.op(name, kind=kind, duration_ns=10_000, flops=flops, device="gpu", attributes=own)
    change = {"device": {"from": "one", "to": "tw", "bound": bound}}
    with pytest.warns(
        UserWarning, match=r"x0\.38 to x0\.56 .* on tw, taken as .* shapes of 1 of 4 .* 1 others"
    ):
        graph = what_if(b.build(), change)
    assert graph.duration_ns.tolist() == [gemm_ns, relu_ns, small_ns, 2_500]


def test_presets_of_devices(three: Graph) -> None:
    for pair, says in (
        ({"from": "a100", "to": "h200"}, r"device.from: 'a100' may be a100-sxm-40 or a100-sxm-80"),
        (
            {"from": "h100", "to": "h20O-sxm"},
            r"device.to: unknown GPU preset 'h20O-sxm'; did you mean 'h200-sxm'",
        ),
    ):
        with pytest.raises(InputError, match=says):
            what_if(three, {"device": pair})
    with pytest.warns(UserWarning, match="device: changes nothing"):
        assert what_if(three, {"device": {"from": "h100", "to": "h100-sxm"}}) is three


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 (h100-pcie or h100-sxm)"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB (v100-pcie-32 or v100-sxm)"),
        ("NVIDIA A100-PG509-200", None),
        ("a GPU that no preset knows", None),
    ],
)
def test_a_recording_of_another_gpu_is_told(three: Graph, recorded: str, told: str | None) -> None:
    graph = replace(three, device_facts={"gpu": {"description": recorded}})
    with pytest.warns(UserWarning, match="device: ") as caught:
        what_if(graph, {"device": {"from": "a100-sxm-80", "to": "h100"}})
    said = [str(one.message) for one in caught if "is not the GPU of the recording" in str(one.message)]
    assert len(said) == (told is not None)
    assert told is None or told in said[0]


# -- words, order, identity -----------------------------------------------------------------------


def test_words() -> None:
    b = GraphBuilder("words")
    b.op("rank0/sgemm.0", kind="matmul", device="gpu0", duration_ns=8,
         attributes={"stream": 7, "operator": "aten::mm", "kernel": "cutlass::sgemm<int>(int)"})  # fmt: skip
    b.op("rank1/copy.1", kind="copy", device="gpu1", duration_ns=8,
         attributes={"stream": 7, "kernel": "Memcpy DtoH (Device -> Pinned)"})  # fmt: skip
    b.op("delay.2", kind="delay", device="gpu1", duration_ns=8, attributes={"stream": 7})
    b.op("launch.3", kind="launch", device="cpu0", duration_ns=8, attributes={"thread": "thread0"})
    found = {
        word: [ns == 4 for ns in what_if(b.build(), {"scale": {word: "x0.5"}}).duration_ns.tolist()]
        for word in ("gemm", "sgemm", "aten::mm", "*cutlass*", "rank0/*", "gpu0", "kernels", "matmul",
                     "gpu", "transfers", "copy", "rank1/copy.1", "delay", "launch", "cpu", "*", "?pu0")
        if word != "?pu0"
    }  # fmt: skip
    first = [True, False, False, False]
    second = [False, True, False, False]
    assert all(found[word] == first for word in [*found][:8])
    assert found["gpu"] == [True, True, False, False]
    assert all(found[word] == second for word in ("transfers", "copy", "rank1/copy.1"))
    assert found["delay"] == [False, False, True, False]
    assert found["launch"] == found["cpu"] == [False, False, False, True]
    assert found["*"] == [True] * 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scale": {"gem": "x2"}}, r"^scale\.gem: unknown op, kind, .* 'gem'; did you mean 'gemm'\?"),
        (
            {"remove": ["a_gemm", "b_elementwis"]},
            r"^remove\[1\]: unknown op.* did you mean 'b_elementwise'\?",
        ),
        ({"remove": ["x*"]}, r"^remove\[0\]: no op, kernel, operator or kind fits the pattern 'x\*'"),
        ({"remove": ["*"]}, r"^remove: nothing is left to run"),
    ],
)
def test_wrong_names(three: Graph, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        what_if(three, change)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": {"gemm": "x1"}},
        {"host": "x1"},
        {"issue_cost": "x1"},
        {"issue_cost": "5us"},
        {"bandwidth": "x1"},
        {"bandwidth": "x2"},
        {"streams": 1},
    ],
)
def test_what_changes_nothing_says_so(three: Graph, change: dict[str, Any]) -> None:
    (key,) = change
    with pytest.warns(UserWarning, match=f"^{key}: changes nothing in 'three'$"):
        assert columns(what_if(three, change)) == columns(three)


@pytest.mark.parametrize(
    "change", [{"issue_cost": "x2"}, {"cuda_graph": True}, {"host": "x2"}, {"streams": 2}]
)
def test_what_a_recording_without_a_host_says(change: dict[str, Any]) -> None:
    b = GraphBuilder("alone")
    b.op("a", duration_ns=10, device="gpu", attributes={"stream": 7})
    (key,) = change
    if key in ("host", "streams"):
        with pytest.warns(UserWarning, match=f"^{key}: changes nothing in 'alone'$"):
            what_if(b.build(), change)
    else:
        with pytest.raises(InputError, match=rf"^{key}: this recording has no launch calls of the host"):
            what_if(b.build(), change)


def test_ops_without_a_duration_are_refused() -> None:
    b = GraphBuilder("costed")
    b.op("a", kind="matmul", flops=8)
    with pytest.raises(InputError, match=r"^scale\.gemm: 1 of 1 ops, 'a' for one, have no duration"):
        what_if(b.build(), {"scale": {"gemm": "x0.5"}})


def test_a_rank_alone_is_told_of_what_it_waited(tmp_path: Path) -> None:
    kernel = "ncclKernel_AllReduce_RING_LL_Sum_float"
    graph = trace_of(host("cudaLaunchKernel", 1, 0, 5), gpu(kernel, 1, 5, 10), path=tmp_path / "t.json")
    with pytest.warns(UserWarning, match="1 collectives are of one rank alone"):
        faster = what_if(graph, {"bandwidth": {"collectives": "x4"}})
    assert faster.duration_ns[faster.index(f"{kernel}.0")] == 2500


def test_changes_are_made_in_a_fixed_order_and_a_list_in_its_own(three: Graph) -> None:
    """Launch calls are set after the host is scaled, whatever is written first; a list has its own order."""
    both = {"issue_cost": "4us", "host": "x0.5"}
    one, other = what_if(three, both), what_if(three, dict(reversed(both.items())))
    assert columns(one) == columns(other) == columns(what_if(three, {"host": "x0.5"}, {"issue_cost": "4us"}))
    turned = what_if(three, {"issue_cost": "4us"}, {"host": "x0.5"})
    assert turned.duration_ns[turned.index("launch.0")] == 2 * US
    assert one.duration_ns[one.index("launch.0")] == 4 * US
    with pytest.raises(InputError, match=r"^\[1\].remove\[0\]: unknown op"):
        what_if(three, {"host": "x2"}, {"remove": ["d"]})


def test_removed_and_fused_kernels_in_one_graph(three: Graph) -> None:
    """Without a, b and c as one, in a CUDA graph, at half the time, the host twice as slow."""
    graph = what_if(
        three,
        {
            "remove": ["a_gemm"],
            "fuse": ["elementwise"],
            "scale": {"c_elementwise": "x0.5"},
            "host": "x2",
            "cuda_graph": {"launch": "3us", "node": 0},
        },
    )
    # work before: none before the first launch of the recording, 10 us and 10 us after a and b, doubled
    assert times(graph)["c_elementwise.2"] == (2 * (10 + 10) + 3, 43 + 18)


# -- properties -----------------------------------------------------------------------------------


@examples(20)
@given(programs(), RANDOM)
def test_less_time_is_never_later_by_edges(imported: Imported, program: Program, random: Any) -> None:
    """Edges alone have no anomalies: shorter ops, fewer ops and more streams never end later."""
    graph = imported(ran(program, durations_of(program, random)).events)
    before = max(starts_and_ends(graph)[1].values())
    for change in ({"scale": {"gpu": "x0.3"}}, {"host": "x0.3"}, {"issue_cost": "x0.3"}):
        assert max(starts_and_ends(what_if(graph, change))[1].values()) <= before


def test_a_chain_at_half_the_time_takes_half_the_time(tmp_path: Path) -> None:
    """Host and GPU take turns: with both twice as fast all is over in half the time."""
    program = [("work", 20), ("launch", 7), ("item", 7)] * 5
    events = ran(program, [30, 8] * 5, costs=Host(tail=2)).events
    graph = trace_of(*events, path=tmp_path / "t.json")
    halved = what_if(graph, {"scale": {"gpu": "x0.5"}, "host": "x0.5"})
    assert 2 * run_recorded(halved).makespan_ns == run_recorded(graph).makespan_ns


def test_the_smallest_case(tmp_path: Path) -> None:
    """1 ms of kernel, a copy to the host, 1 ms of kernel: without the copy the second need not wait."""
    graph = trace_of(
        host("cudaLaunchKernel", 1, 0, 5),
        gpu("a", 1, 5, 1000),
        host("cudaMemcpy", 2, 10, 1010),
        gpu("Memcpy DtoH (Device -> Pinned)", 2, 1005, 10, category="gpu_memcpy"),
        host("cudaLaunchKernel", 3, 1030, 5),
        gpu("b", 3, 1035, 1000),
        path=tmp_path / "t.json",
    )
    assert times(what_if(graph, {"scale": {"gpu": "x0.01"}}))["b.2"] == (35.1, 45.1)
    assert times(what_if(graph, {"remove": ["transfers"]}))["b.2"] == (1005, 2005)  # after a, on its stream
    assert times(what_if(graph, {"issue_cost": "x0"}))["b.2"] == (5 + 1010 + 10, 2025)


def test_a_collective_goes_on_all_ranks_or_none() -> None:
    b = GraphBuilder("ranks")
    for rank in range(2):
        own = {"stream": 7, "communicator": "world", "kernel": "ncclAllReduce"}
        b.op(f"rank{rank}/first", kind="all_reduce", duration_ns=5, device=f"gpu{rank}", attributes=own)
        more = {"stream": 7, "kernel": "gemm"}
        b.op(
            f"rank{rank}/gemm",
            duration_ns=7,
            device=f"gpu{rank}",
            after=[f"rank{rank}/first"],
            attributes=more,
        )
    with pytest.raises(
        InputError, match=r"^remove: of communicator 'world' gpu0 would have 0 .* left and gpu1 1"
    ):
        what_if(b.build(), {"remove": ["rank0/first"]})
    assert what_if(b.build(), {"remove": ["collectives"]}).op_names == ["rank0/gemm", "rank1/gemm"]
    with pytest.raises(InputError, match=r"^fuse\[0\]: no two of '\*' stand one behind another"):
        what_if(b.build(), {"fuse": ["*"]})


ANY = [
    {"remove": ["DtoH"]},
    {"remove": {"ops": ["kernel"], "host": "goes"}},
    {"fuse": ["kernel"]},
    {"fuse": [{"ops": "kernel", "host": "goes", "duration": "3us"}]},
    {"scale": {"*": "x0.7"}},
    {"host": "x1.3", "issue_cost": "1us"},
    {"cuda_graph": True},
    {"cuda_graph": {"launch": 0, "node": 0, "gap": 0}},
    {"streams": 3},
]


@pytest.mark.filterwarnings("ignore:streams", "ignore:.* changes nothing")
@examples(40)
@given(programs(), RANDOM, st.lists(st.sampled_from(ANY), min_size=1, max_size=4))
def test_any_changes_one_after_another_give_a_program_that_runs(
    imported: Imported, program: Program, random: Any, changes: list[dict[str, Any]]
) -> None:
    """Every trace keeps the invariants, runs as its edges say, and no change makes negative times."""
    graph = imported(ran(program, durations_of(program, random)).events)
    for change in changes:
        with suppress(InputError):  # nothing of that name is left, or no two stand one behind another
            graph = what_if(graph, change)
    trace = run_recorded(graph)
    trace.check()
    assert (graph.duration_ns >= 0).all()
    assert trace.makespan_ns == max(starts_and_ends(graph)[1].values())


@pytest.mark.filterwarnings("ignore:.* GPU tasks were launched")
def test_the_rank_that_is_late_most() -> None:
    """DLRM: rank 7 began last and does no more than the others; one rank alone is late for nobody."""
    graph = load(recorded("kineto/v100_dlrm_8_ranks"))
    assert straggler(graph) == (7, {})
    found = straggler(load(recorded("kineto/h100_vit.json.gz")))
    assert found is None
