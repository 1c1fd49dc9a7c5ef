"""What-ifs worked by hand, and what their words may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_programs import gpu, host, ran
from import_helpers import columns
from test_import_kineto_what_if import edges, starts_and_ends
from what_if_helpers import US, times, trace_of, what_if

from devices.cost.kernel_costs import load_fits
from devices.machine import make_device
from policies.rewrite.records import read
from scenarios.recorded.setup import run_recorded
from sim import Graph, GraphBuilder
from sim.base.arrays import Csr
from sim.base.errors import InputError


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


def test_unexplained_idle_time_between_fused_kernels_goes() -> None:
    b = GraphBuilder("late")
    for name, kind, after in (("a", "relu", []), ("idle", "delay", ["a"]), ("b", "relu", ["a", "idle"])):
        b.op(name, kind=kind, duration_ns=5, device="gpu", after=after, attributes={"stream": 7})
    graph = what_if(b.build(), {"fuse": ["relu"]})
    assert (graph.op_names, graph.duration_ns.tolist()) == (("b",), [10])


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
    assert [*graph.op_names] == ["b1", "a2", "b2"]
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
    graph = what_if(
        trace_of(*events, path=tmp_path / "t.json"), {"cuda_graph": {"issue_cost": "2us", "node": 0}}
    )
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
    one = what_if(graph, {"cuda_graph": {"issue_cost": "1us", "node": 0, "gap": "1us"}, "remove": ["c"]})
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


def test_another_device_by_its_rates() -> None:
    """As much flop, 4,800 in place of 3,350 GB/s: products between, the rest by bytes, few blocks to 1."""
    b = GraphBuilder("kernels")
    for name, kind, blocks in (
        ("mm", "matmul", 200),
        ("relu", "elementwise", 200),
        ("small", "elementwise", 9),
    ):
        own = {"stream": 7, "grid": [blocks, 1, 1], "kernel": "sgemm"}
        b.op(name, kind=kind, duration_ns=10_000, dtype="fp32", device="gpu", attributes=own)
    for bound, ns in (
        ("low", [6_979, 6_979, 6_979]),
        ("middle", [8_354, 6_979, 8_354]),
        ("high", [10_000, 6_979, 10_000]),
    ):
        change = {"device": {"from": "h100-sxm", "to": "h200", "bound": bound}}
        with pytest.warns(UserWarning, match=r"x0\.70 to x0\.90 .* on h200, .* sizes of 0 of 3 .* 1 others"):
            assert what_if(b.build(), change).duration_ns.tolist() == ns


@pytest.mark.parametrize(("target", "share"), [("h200-sxm", 1), ("a100-sxm-80", 0.5)])
def test_another_device_by_its_kernels(target: str, share: float) -> None:
    """What a kernel took beyond its GPU's model another GPU takes, too, or in part."""
    product = {"m": 4096, "n": 4096, "k": 1024}

    def graph(product_ns: int, add_ns: int) -> Graph:
        b = GraphBuilder("kernels")
        own = {"stream": 7, "kernel": "a"}
        b.op(
            "mm", kind="matmul", dtype="bf16", duration_ns=product_ns, device="gpu", attributes=own | product
        )
        b.op("add", kind="elementwise", dtype="bf16", duration_ns=add_ns, device="gpu", attributes=own,
             bytes_read=2**29, bytes_written=2**28)  # fmt: skip
        return b.build()

    def modelled(preset: str) -> np.ndarray:
        device = make_device("gpu0", {"preset": preset})
        assert device.cost is not None
        return device.cost.durations_ns(graph(1, 1), device)

    here, there = modelled("h100-sxm"), modelled(target)
    for beyond in (1, 1.5):
        recorded = graph(*(beyond * here).astype(int).tolist())
        change = {"device": {"from": "h100-sxm", "to": target}}
        with pytest.warns(UserWarning, match="sizes of 2 of 2 are known, 0 others"):
            moved = what_if(recorded, change).duration_ns
        assert moved == pytest.approx(there * beyond**share, rel=1e-4)
        with pytest.warns(UserWarning, match="device: "):
            low, high = (
                what_if(recorded, {"device": {**change["device"], "bound": bound}}).duration_ns
                for bound in ("low", "high")
            )
        assert (low < moved).all()
        assert (moved < high).all()
        assert moved == pytest.approx((low * high) ** 0.5, rel=1e-4)


@pytest.mark.parametrize(("beyond", "told"), [(2, 0), (3, 1), (0.6, 0), (0.3, 1)])
def test_a_gpu_that_took_another_time_than_its_kernels_take_is_told(beyond: float, told: int) -> None:
    b = GraphBuilder("one")
    own = {"stream": 7, "kernel": "a", "m": 4096, "n": 4096, "k": 4096}
    taken_ns = round(beyond * load_fits("t4").predict("products", "fp16", m=4096, n=4096, k=4096)[0][0])
    b.op("mm", kind="matmul", dtype="fp16", duration_ns=taken_ns, device="gpu", attributes=own)
    with pytest.warns(UserWarning, match="device: ") as caught:
        what_if(b.build(), {"device": {"from": "t4", "to": "h100"}})
    assert sum("is it the GPU of the recording?" in str(one.message) for one in caught) == told


def test_another_device_without_the_data_type_says_whose_rate_it_takes() -> None:
    b = GraphBuilder("one")
    own = {"stream": 7, "kernel": "a", "m": 4096, "n": 4096, "k": 4096}
    b.op("mm", kind="matmul", dtype="bf16", duration_ns=300_000, device="gpu", attributes=own)
    with (
        pytest.warns(UserWarning, match="sizes of 1 of 1 are known"),
        pytest.warns(UserWarning, match="t4: 1 op in bf16 computes at the rate of fp32"),
    ):
        what_if(b.build(), {"device": {"from": "h100", "to": "t4"}})


@pytest.mark.parametrize(("beyond", "known"), [(19, 1), (21, 0), (0.06, 1), (0.04, 0)])
def test_a_kernel_whose_sizes_cannot_be_its_own_goes_by_rates(beyond: float, known: int) -> None:
    b = GraphBuilder("one")
    own = {"stream": 7, "kernel": "a"}
    moved = {"bytes_read": 2**31, "bytes_written": 2**30}
    device = make_device("gpu0", {"preset": "h100-sxm"})
    b.op("a", kind="elementwise", dtype="fp32", device="gpu", attributes=own, duration_ns=1, **moved)
    assert device.cost is not None
    taken = round(beyond * device.cost.durations_ns(b.build(), device)[0])
    b = GraphBuilder("one")
    b.op("a", kind="elementwise", dtype="fp32", device="gpu", attributes=own, duration_ns=taken, **moved)
    with pytest.warns(UserWarning, match="device: ") as caught:
        graph = what_if(b.build(), {"device": {"from": "h100-sxm", "to": "a100-sxm-80"}})
    assert any(f"the sizes of {known} of 1 are known" in str(one.message) for one in caught)
    by_rates = round(taken * 3350 / 2039)
    assert (int(graph.duration_ns[0]) == pytest.approx(by_rates, rel=1e-3)) == (known == 0)


def test_presets_of_devices(three: Graph) -> None:
    for pair, says in (
        ({"from": "a100", "to": "h200"}, r"device.from: 'a100' may be a100-sxm-40 or a100-sxm-80"),
        (
            {"from": "h100", "to": "h20O-sxm"},
            r"device.to: unknown GPU preset 'h20O-sxm'; did you mean 'h200-sxm'",
        ),
        ({"from": "H100", "to": "l4"}, r"device.from: unknown GPU preset 'H100'; did you mean 'h100-sxm'"),
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
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "Server Edition (rtx-pro-6000)"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090 (rtx-4090)"),
        ("NVIDIA GeForce RTX 4080", None),
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
         attributes={"stream": 7, "operator": "mm_2", "kernel": "cutlass::sgemm<int>(int)"})  # fmt: skip
    b.op("rank1/copy.1", kind="copy", device="gpu1", duration_ns=8,
         attributes={"stream": 7, "kernel": "Memcpy DtoH (Device -> Pinned)"})  # fmt: skip
    b.op("delay.2", kind="delay", device="gpu1", duration_ns=8, attributes={"stream": 7})
    b.op("launch.3", kind="launch", device="cpu0", duration_ns=8, attributes={"thread": "thread0"})
    found = {
        word: [ns == 4 for ns in what_if(b.build(), {"scale": {word: "x0.5"}}).duration_ns.tolist()]
        for word in ("gemm", "sgemm", "mm", "mm_2", "*cutlass*", "rank0/*", "gpu0", "kernels", "matmul",
                     "gpu", "transfers", "copy", "rank1/copy.1", "delay", "launch", "cpu", "*", "?pu0")
        if word != "?pu0"
    }  # fmt: skip
    first = [True, False, False, False]
    second = [False, True, False, False]
    assert all(found[word] == first for word in [*found][:9])
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
    with pytest.warns(UserWarning, match="some collectives are of one rank alone"):
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
            "cuda_graph": {"issue_cost": "3us", "node": 0},
        },
    )
    # work before: none before the first launch of the recording, 10 us and 10 us after a and b, doubled
    assert times(graph)["c_elementwise.2"] == (2 * (10 + 10) + 3, 43 + 18)
