"""What-ifs against programs that were run so: what one recording predicts is what happens, to the ns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from cuda_programs import BLOCKING_COPY, CALL, Host, Run, operator, ran
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import recorded
from test_import_kineto_what_if import STEPS, starts_and_ends
from what_if_helpers import US, times, trace_of, what_if

from scenarios.importers.kineto.kineto import load
from scenarios.recorded.setup import run_recorded
from scenarios.variants.what_ifs import straggler
from sim import Graph, GraphBuilder
from sim.base.errors import InputError

Program = list[tuple[Any, ...]]
BLOCKING = ("item", "sync stream", "sync event", "sync device")


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
    assert_runs_as(what_if(graph, {"cuda_graph": {"issue_cost": "9us", "node": "2us"}}), names, now)


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
    graph = trace_of(*BLOCKING_COPY, path=tmp_path / "t.json")
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
    assert [*what_if(b.build(), {"remove": ["collectives"]}).op_names] == ["rank0/gemm", "rank1/gemm"]
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
    {"cuda_graph": {"issue_cost": 0, "node": 0, "gap": 0}},
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


@pytest.mark.filterwarnings("ignore:.* GPU tasks have no launch")
def test_the_rank_that_is_late_most() -> None:
    """DLRM: rank 7 began last and does no more than the others; one rank alone is late for nobody."""
    graph = load(recorded("kineto/v100_dlrm_8_ranks"))
    assert straggler(graph) == (7, {})
    found = straggler(load(recorded("kineto/h100_vit.json.gz")))
    assert found is None
