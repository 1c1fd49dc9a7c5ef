"""Two recordings of one program: the durations of one in the graph of the other, and what rules predict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_programs import gpu, host, operator, ran
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from scenarios.importers.kineto.kineto import load
from scenarios.recorded.setup import run_recorded
from sim import Graph, GraphBuilder
from sim.base.errors import InputError
from studies.what_if_reality.__main__ import main, predictions
from studies.what_if_reality.transplant import (
    Measures,
    host_work_ns,
    ranges_of,
    recorded,
    simulated,
    tasks_of,
    with_host,
    with_kernels,
    without_ranges,
)

STREAMS = st.sampled_from([7, 20])
STEPS = st.one_of(
    st.tuples(st.just("work"), st.integers(1, 40)),
    st.tuples(st.just("launch"), STREAMS),
    st.tuples(st.just("item"), STREAMS),
    st.tuples(st.just("sync stream"), STREAMS),
)


def written(path: Path, events: list[dict[str, Any]]) -> Path:
    """Write a trace."""
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@examples(40)
@given(st.lists(STEPS, max_size=25), st.randoms(use_true_random=False))
def test_kernels_of_another_run_give_that_run(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], random: Any
) -> None:
    """A program runs twice: the recording of one run, with the kernels of the other, runs as that one did."""
    folder = tmp_path_factory.mktemp("twice")
    program = [("launch", 7), *steps, ("launch", 7)]
    runs = [ran(program, [random.randint(1, 300) for _ in program]) for _ in range(2)]
    a, b = (load(written(folder / f"{n}.json", run.events)) for n, run in enumerate(runs))
    found = run_recorded(with_kernels(a, b))
    assert simulated(found) == recorded(b)
    assert simulated(found).span == 1000 * max(runs[1].host_end, *runs[1].end)


def recording(*runs: tuple[str, list[int]]) -> Graph:
    """Return a graph of operators, each with what its kernels take."""
    b = GraphBuilder("recording")
    launch, last = None, None
    for n, (name, durations) in enumerate(runs):
        launch = b.op(
            f"launch.{n}",
            kind="launch",
            duration_ns=5,
            device="cpu",
            after=[launch] if launch else [],
            attributes={"thread": "thread0", "recorded_start_ns": 5 * n},
        )
        for k, ns in enumerate(durations):
            own = {"stream": 7, "kernel": f"{name}{k}", "operator": name, "recorded_start_ns": 5 * n}
            after = [launch, *([last] if last else [])]
            last = b.op(
                f"{name}.{n}.{k}", kind="kernel", duration_ns=ns, device="gpu", after=after, attributes=own
            )
    return b.build()


def kernels(graph: Graph) -> list[int]:
    return graph.duration_ns[tasks_of(graph)].tolist()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # as many kernels: one by one; another number: each its share of the total, whole
        ([("mm", [10, 30]), ("add", [4])], [("mm", [7, 9]), ("add", [2])], [7, 9, 2]),
        ([("mm", [10, 30]), ("add", [4])], [("mm", [3, 3, 4]), ("add", [2])], [2, 8, 2]),
        ([("mm", [0, 0]), ("add", [4])], [("mm", [5]), ("add", [2])], [2, 3, 2]),
        # what only B has goes to the run before it, at the beginning to the one after; what only A has is 0
        ([("mm", [10]), ("add", [4])], [("mm", [8]), ("fill", [1]), ("add", [2])], [9, 2]),
        ([("mm", [10]), ("add", [4])], [("fill", [1]), ("mm", [8]), ("add", [2])], [9, 2]),
        ([("mm", [10]), ("fill", [1]), ("add", [4])], [("mm", [8]), ("add", [2])], [8, 0, 2]),
        # another name in the same place is another library's
        ([("a", [1]), ("cudnn", [10]), ("b", [1])], [("a", [2]), ("miopen", [7, 7]), ("b", [3])], [2, 14, 3]),
    ],
)
def test_runs_of_an_operator_are_matched(one: Any, other: Any, expected: list[int]) -> None:
    a, b = recording(*one), recording(*other)
    found = with_kernels(a, b)
    assert kernels(found) == expected
    assert sum(kernels(found)) == sum(kernels(b))
    hosts = found.is_kind("launch")
    assert (found.duration_ns[hosts] == a.duration_ns[hosts]).all()


RUN = st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 99), min_size=1, max_size=4))


@examples(60)
@given(st.lists(RUN, min_size=1, max_size=12), st.lists(RUN, min_size=1, max_size=12))
def test_the_total_is_that_of_the_other_recording(one: Any, other: Any) -> None:
    same = [("x", [1]), ("y", [2])] * 7
    a, b = (recording(*each, *same) for each in (one, other))
    assert sum(kernels(with_kernels(a, b))) == sum(kernels(b))


def test_other_programs_are_refused() -> None:
    a, b = (
        recording(("mm", [1]), ("add", [1]), ("mm", [1])),
        recording(("conv", [1]), ("relu", [1]), ("conv", [1])),
    )
    with pytest.raises(InputError, match="are hardly of one program: 0% of their runs match"):
        with_kernels(a, b)


def test_the_host_works_as_long_as_in_the_other_recording() -> None:
    a, b = recording(("mm", [10]), ("mm", [30])), recording(*[("mm", [1])] * 6)
    assert (host_work_ns(a), host_work_ns(b)) == (10, 30)
    assert with_host(a, b).duration_ns.tolist() == [15, 10, 15, 30]
    none = replace(a, duration_ns=np.where(a.is_kind("launch"), 0, a.duration_ns))
    with pytest.raises(InputError, match="has no work of the host"):
        with_host(none, b)


def test_measures_by_hand(tmp_path: Path) -> None:
    """Two streams: busy is their union; a step is the median from one kernel of a name to the next."""
    events = [
        *(host("cudaLaunchKernel", n, 10 * n, 5) for n in range(4)),
        gpu("step_begin", 0, 5, 8),
        gpu("other", 1, 15, 20, stream=20),
        gpu("step_begin", 2, 25, 5),
        gpu("step_begin", 3, 45, 5),
    ]
    graph = load(written(tmp_path / "t.json", events))
    assert recorded(graph) == Measures(50_000, 33_000, 50_000)
    assert recorded(graph).idle == 17_000
    assert recorded(graph, "begin").step == 20_000
    with pytest.raises(InputError, match=r"t: 1 kernels are called \*other\*, so there is no step"):
        recorded(graph, "other")


def loop(path: Path, loader_us: int) -> Path:
    """Record three steps: the loader, 5 us of work, 4 us of launching, a kernel of 30 us; then a wait."""
    step = [("work", loader_us + 5), ("launch", 7)]
    run = ran([*step, *step, *step, ("sync device",)], [30] * 3)
    loader = "enumerate(DataLoader)#__next__"
    return written(path, [*(operator(loader, n * (loader_us + 9), loader_us) for n in range(3)), *run.events])


def test_a_range_of_the_host_that_is_spent_elsewhere(tmp_path: Path) -> None:
    """The loader of 90 us goes: the recording predicts the one without, which the GPU's time limits."""
    slow, fast = loop(tmp_path / "slow.json", 90), loop(tmp_path / "fast.json", 0)
    a, b = load(slow), load(fast)
    # the trace begins with the first call, at 95: the first loader is before
    start, end = ranges_of(slow, "DataLoader")
    assert (start.tolist(), end.tolist()) == ([-95_000, 4_000, 103_000], [-5_000, 94_000, 193_000])
    less = without_ranges(a, start, end)
    assert host_work_ns(a) - host_work_ns(less) == 180_000
    assert simulated(run_recorded(less)) == recorded(b) == simulated(run_recorded(b))
    found = {each.rule: each.step_ns for each in predictions(a, b, "kernel", {"less": less}, 180_000)}
    assert recorded(a, "kernel").step == 99_000
    assert recorded(b, "kernel").step == 30_000
    assert found["less"] == 30_000
    assert found["no change"] == found["A's graph"] == found["A's graph, B's kernels"] == 99_000
    with pytest.raises(InputError, match=r"no range of the host is called \*Loader9\*"):
        ranges_of(slow, "Loader9")


def test_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = loop(tmp_path / "slow.json", 90), loop(tmp_path / "fast.json", 0)
    main(slow, fast, step="kernel", without="DataLoader", what_if="{host: x0.1}")
    text = capsys.readouterr().out
    assert "| A | slow.json | 0.099 | 0.235 | 0.090 | 0.145 | 0.205 |" in text
    assert "the change seen is -0.069" in text
    assert "| less the time in the range | 0.023 | -0.076 | -22.8 % | – |" in text
    assert "| A's graph without the range | 0.030 | -0.069 | +0.0 % | 0.007 |" in text
    assert "| A's graph, {host: x0.1} | 0.030 | -0.069 | +0.0 % |" in text
    assert "| B's graph, A's kernels | 0.030 | +0.000 | -69.7 % |" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": "gemm"}, r"slow: 0 kernels are called \*gemm\*"),
        ({"without": "gemm"}, r"slow\.json: no range of the host is called \*gemm\*"),
        ({"what_if": "{hosts: x0.1}"}, "hosts"),
        ({"what_if": "{"}, "--what-if: "),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    slow = loop(tmp_path / "slow.json", 90)
    with pytest.raises(InputError, match=message):
        main(slow, slow, **arguments)
