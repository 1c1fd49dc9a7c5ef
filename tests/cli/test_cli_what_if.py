"""`sim whatif`: the standard list on a recording, a folder of ranks, a graph file and a scenario."""

from __future__ import annotations

import json
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from cuda_programs import ran
from import_helpers import recorded
from scenario_texts import TWO_RANKS

from policies.issue.ready_queue import ReadyQueue
from scenarios.recorded.select import Names
from scenarios.report.pictures import draw_what_ifs
from scenarios.variants.machine_what_ifs import machine_trials
from scenarios.variants.variant import Variant
from scenarios.variants.what_ifs import WhatIfs, try_all
from sim import Device, GraphBuilder, Machine, simulate
from sim.base.units import format_duration

FOLDER = Path(__file__).resolve().parents[2] / "scenarios" / "examples"
STEP = FOLDER / "recordings" / "step.json"
TABLE = """\
step: 167 us simulated, 167 us recorded (+0.00%)
what if                              what_if                       makespan     saved  share
as recorded                                                          167 us
all kernels twice as fast            {scale: {kernels: x0.5}}        107 us     60 us  35.9%
matmul twice as fast                 {scale: {matmul: x0.5}}         122 us     45 us  26.9%
copies between host and device gone  {remove: [transfers]}           124 us     43 us  25.7%
host twice as fast                   {host: x0.5}                  146.5 us   20.5 us  12.3%
elementwise twice as fast            {scale: {elementwise: x0.5}}    152 us     15 us   9.0%
launch calls take no time            {issue_cost: x0}                155 us     12 us   7.2%
launch calls twice as fast           {issue_cost: x0.5}              161 us      6 us   3.6%
CUDA graphs                          {cuda_graph: true}            162.5 us  4.494 us   2.7%
no gaps between kernels              {gap: x0}                       167 us      0 ns   0.0%
no gaps between kernels: gap: changes nothing in 'step'
not tried: elementwise kernels in a row fused: no two of 'elementwise' stand one behind another on a stream
not tried: communication twice as fast, communication takes no time: nothing communicates
not tried: unexplained idle time gone: all idle time is explained
"""


def test_the_table_of_a_recording() -> None:
    """The same numbers as in the example, which is worked out by hand."""
    result = sim("whatif", STEP)
    assert (result.exit_code, result.stdout) == (0, TABLE)


@pytest.mark.parametrize(
    ("name", "makespan", "shares"),
    [
        ("h100_bert_small", "4.383 ms", "81.4 50.0 0.0 7.6 – 0.0"),
        ("h100_vit", "7.869 ms", "79.9 50.0 0.0 9.7 – 0.0"),
        pytest.param("a100_training_rank3", "464.7 ms", "15.7 15.1 1.1 8.3 8.1 0.1", marks=pytest.mark.slow),
        pytest.param("h100_qwen_0_5b", "49.65 ms", "2.2 1.9 18.1 0.5 – 4.7", marks=pytest.mark.slow),
        pytest.param("v100_dlrm_8_ranks", "19.82 ms", "44.8 30.5 0.0 8.0 0.0 0.0", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.* GPU tasks have no launch")
def test_savings_of_recordings(name: str, makespan: str, shares: str) -> None:
    """In per cent; those that docs/what_if.md names among them."""
    path = recorded(f"kineto/{name}" + ("" if "ranks" in name else ".json.gz"))
    words = ["cuda_graph", "host", "all kernels", "calls take no time", "communication takes no time", "gap"]
    options = [text for word in words for text in ("--only", word)]
    found = json.loads(sim("whatif", path, *options, "--json").stdout)
    saved = {one["label"]: one["saved_ns"] for one in found["what_ifs"]}
    assert makespan == format_duration(found["makespan_ns"])
    labels = [
        *("CUDA graphs", "host twice as fast", "all kernels twice as fast", "launch calls take no time"),
        *("communication takes no time", "no gaps between kernels"),
    ]
    told = [
        "–" if saved[each] is None else f"{100 * saved[each] / found['makespan_ns']:.1f}" for each in labels
    ]
    assert told == shares.split()


def test_a_scenario_and_a_graph_file_say_the_same(tmp_path: Path) -> None:
    graph = tmp_path / "g.json.gz"
    assert sim("import", STEP, "--out", graph).exit_code == 0
    for file in (FOLDER / "what_if.yaml", graph):
        _, *lines = sim("whatif", file).stdout.splitlines()
        assert lines == TABLE.splitlines()[1:]


def test_only_some_and_one_of_ones_own() -> None:
    also = "{fuse: [[gemm, elementwise]], host: x0.5}"
    found = json.loads(sim("whatif", STEP, "--only", "host", "--also", also, "--json").stdout)
    assert (found["schema"], found["recorded_ns"], found["makespan_ns"]) == ("sim.whatif/1", 167_000, 167_000)
    assert [(one["label"], one["makespan_ns"], one["saved_ns"]) for one in found["what_ifs"]] == [
        ("host twice as fast", 146_500, 20_500),
        (also, 146_500, 20_500),
    ]
    assert found["what_ifs"][1]["what_if"] == {"fuse": [["gemm", "elementwise"]], "host": "x0.5"}


def test_a_list_is_tried_as_one_what_if_one_change_after_another() -> None:
    twice, once = "[{host: x0.5}, {host: x0.5, gap: 1us}]", "{host: x0.25, gap: 1us}"
    found = json.loads(sim("whatif", STEP, "--only", "gap", "--also", twice, "--also", once, "--json").stdout)
    both, same = (next(one for one in found["what_ifs"] if one["label"] == text) for text in (twice, once))
    assert both["what_if"] == [{"host": "x0.5"}, {"host": "x0.5", "gap": "1us"}]
    assert both["makespan_ns"] == same["makespan_ns"] != found["makespan_ns"]


def test_settings_of_a_recording() -> None:
    """A gap of 1 us before two kernels of each step; without the host's calls only the GPU is there."""
    found = json.loads(
        sim("whatif", STEP, "--only", "host", "--set", "machine.devices.gpu.gap=1us", "--json").stdout
    )
    assert found["makespan_ns"] == 167_000 + 3 * 2_000
    found = json.loads(sim("whatif", STEP, "--only", "scale", "--set", "workload.host=none", "--json").stdout)
    assert found["makespan_ns"] == 126_000
    noisy = ("--set", "noise.jitter=0.1", "--only", "cuda_graph", "--only", "host")
    host, graphs = json.loads(sim("whatif", STEP, *noisy, "--json").stdout)["what_ifs"]
    assert (host["label"], host["notes"]) == ("host twice as fast", [])
    assert graphs["notes"] == ["noise draws other durations for other ops, which is part of the difference"]


@pytest.mark.filterwarnings("ignore:.* GPU tasks have no launch")
def test_all_ranks_of_a_job() -> None:
    folder = recorded("kineto/v100_dlrm_8_ranks")
    found = json.loads(sim("whatif", folder, "--only", "late", "--only", "bandwidth", "--json").stdout)
    assert abs(found["makespan_ns"] / found["recorded_ns"] - 1) < 0.005
    faster, late = found["what_ifs"]
    assert (faster["label"], late["makespan_ns"]) == ("communication twice as fast", None)
    assert late["label"] == "rank 7, which is late most, as fast as the others"
    assert late["notes"] == ["it has no more to do than they; it began later"]


def test_a_straggler_is_found_and_helped(tmp_path: Path) -> None:
    """Rank 1 works three times as long before each of two all-reduces; as fast as rank 0, nobody waits."""
    ends = [144, 288]
    for rank, work in enumerate((40, 120)):
        program = [("work", work), ("collective", 20), ("sync device",)] * 2
        # each starts when its rank is there, and ends 20 us after the last one started
        events = ran(program, [20, 20], ends=ends).events
        info = {"distributedInfo": {"rank": rank, "world_size": 2}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({**info, "traceEvents": events}))
    found = json.loads(sim("whatif", tmp_path, "--only", "late", "--json").stdout)
    (late,) = found["what_ifs"]
    assert late["label"] == "rank 1, which is late most, as fast as the others"
    assert list(late["what_if"]["scale"]) == ["cpu1"]
    assert late["saved_ns"] > 0


def test_a_scenario_that_is_no_recording() -> None:
    """Ops get their durations from the cost models first."""
    result = sim("whatif", FOLDER / "gpipe.yaml")
    line = next(line for line in result.stdout.splitlines() if line.startswith("B twice as fast "))
    assert line.split()[4:] == ["{scale:", "{B:", "x0.5}}", "22", "ms", "11", "ms", "33.3%"]


def test_a_picture(tmp_path: Path) -> None:
    """A bar for each what-if, the largest on top; what costs time goes the other way."""
    path = tmp_path / "what.svg"
    result = sim("whatif", STEP, "--plot", path)
    assert f"wrote {path}" in result.stderr
    assert path.read_bytes().startswith(b"<?xml")
    makespans = (("base", 200), ("slower", 210), ("faster", 150), ("impossible", None))
    rows = [
        {"label": name, "makespan_ns": ns, "saved_ns": None if ns is None else 200 - ns}
        for name, ns in makespans
    ]
    ax = draw_what_ifs("drawn", rows)
    assert [bar.get_width() for bar in ax.patches] == [25.0, -5.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["faster", "slower"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing.json"], "nothing.json: no such file"),
        ([STEP, "--only", "hots"], "unknown what-if 'hots'; did you mean 'host'?"),
        ([STEP, "--also", "3"], "--also 3: should be a what-if"),
        ([STEP, "--also", "[gap: x0, 3]"], "--also [gap: x0, 3]: should be a what-if"),
        ([STEP, "--also", "[gap: x0, hots: x2]"], "what_if[1].hots: no such key; did you mean 'host'?"),
        ([STEP, "--also", "hots: x2"], "--also hots: x2: what_if.hots: no such key; did you mean 'host'?"),
        (
            [STEP, "--also", "host: x0.5", "--also", "remove: [relu]"],
            "--also {remove: [relu]}: remove[0]: unknown op, kind, kernel, operator or device 'relu'",
        ),
        ([STEP, "--plot", "x.txt"], "--plot x.txt: should end in .png, .svg, .pdf"),
        ([STEP, "--set", "workload.hots=none"], "workload.hots: no such key; did you mean 'host'?"),
    ],
)
def test_mistakes(words: list[object], says: str) -> None:
    result = sim("whatif", *words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_the_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from scenarios.importers.kineto import kineto

    reads = []
    load = kineto.load

    @wraps(load)
    def counted(*words: Any, **more: Any) -> Any:
        reads.append(words)
        return load(*words, **more)

    monkeypatch.setattr(kineto, "load", counted)
    base = WhatIfs(str(STEP))
    base.case(Variant()).work  # noqa: B018
    assert len(reads) == 1


def test_a_scenario_s_machine_is_changed_too(tmp_path: Path) -> None:
    """Two ops in turn, 3 us to issue each, on one stream: what each bottleneck costs, worked by hand."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {gpu0: {kind: gpu, streams: 1, issue_cost: 3us, memory: 1GB}}}\n"
        "workload: {ops: {a: {kind: matmul, duration: 10us}, b: {kind: relu, duration: 4us}}}\n"
        "policy: {name: ready-queue}\n"
    )
    told = json.loads(sim("whatif", path, "--json").stdout)
    # a is issued at 3 and runs until 13, b until 17
    found = {each["label"]: each["makespan_ns"] for each in told["what_ifs"]}
    assert told["makespan_ns"] == 17_000
    assert found == {
        "all kernels twice as fast": 10_000,
        "gpu0 twice as fast": 10_000,
        "matmul twice as fast": 12_000,
        "relu twice as fast": 15_000,
        "one more stream on gpu0": None,  # everything is on the first one
        "memory without limit": None,  # nothing waits for it
        "issuing and launching take no time": 14_000,
        "'a' twice as fast": 12_000,
        "'b' twice as fast": 15_000,
    }
    halved = ["workload.ops.a.duration=5us", "workload.ops.b.duration=2us"]
    by_hand = {
        "all kernels twice as fast": halved,
        "gpu0 twice as fast": halved,
        "issuing and launching take no time": ["machine.devices.gpu0.issue_cost=0us"],
    }
    unused = sim("run", path, "--set", "machine.devices.gpu0.streams=2", "--json")
    assert json.loads(unused.stdout)["makespan_ns"] == 17_000
    assert told["what_ifs"][0]["label"] in by_hand
    for label, sets in by_hand.items():
        again = sim("run", path, *(word for one in sets for word in ("--set", one)), "--json")
        assert json.loads(again.stdout)["makespan_ns"] == found[label]


@pytest.mark.parametrize(
    ("work", "compile_", "takes", "all_kernels", "products"),
    [
        ("a: {kind: matmul, duration: 10us}, b: {kind: relu, inputs: [a], output: 1B}", "", 14, 7, 9),
        # a, loss_grad and weight_grad, all of a's duration, and the update
        ("a: {kind: matmul, inputs: [w], output: 1B, duration: 10us}", ", compile: [training]", 34, 17, 19),
    ],
)
def test_a_scenario_whose_device_has_costs_is_changed_in_all_ops(
    tmp_path: Path, work: str, compile_: str, takes: int, all_kernels: int, products: int
) -> None:
    """What the cost model times takes 4 us; with products twice as fast, every op has a duration."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {gpu0: {kind: gpu}}}\ncost: {fixed: 4us}\n"
        f"workload: {{parameters: {{w: 1B}}, ops: {{{work}}}}}\npolicy: {{name: in-order{compile_}}}\n"
    )
    told = json.loads(sim("whatif", path, "--json").stdout)
    found = {each["label"]: each["makespan_ns"] // 1000 for each in told["what_ifs"] if each["makespan_ns"]}
    assert told["makespan_ns"] == takes * 1000
    assert found["all kernels twice as fast"] == all_kernels
    assert found["matmul twice as fast"] == products
    written = {each["label"]: each["what_if"] for each in told["what_ifs"]}["all kernels twice as fast"]
    assert bool(written) != bool(compile_)  # a key of what_if changes the graph that is compiled


@pytest.mark.parametrize(
    ("number", "streams", "attributes", "takes"),
    [
        ("", None, "", None),  # all on the first one
        (", streams: 1", None, "", None),
        ("", "single", "", None),
        ("", "{name: per-kind, streams: {relu: 1}}", "", None),
        ("", "recorded", ", attributes: {stream: 7}", None),
        ("", "per-branch", "", 10_000),  # it spreads over those that there are: one, and now two
        (", streams: 1", "per-branch", "", 10_000),
        (", streams: 2", "per-branch", "", None),  # there are no more branches
        ("", "per-kind", "", 10_000),
    ],
)
def test_one_more_stream_is_tried_where_ops_would_go_there(
    tmp_path: Path, number: str, streams: str | None, attributes: str, takes: int | None
) -> None:
    """A GPU that says no streams has as many as its ops name. Two ops of 10 and 4 us are independent."""
    path = tmp_path / "s.yaml"
    path.write_text(
        f"machine: {{devices: {{gpu0: {{kind: gpu{number}}}}}}}\n"
        "workload:\n"
        "  ops:\n"
        f"    a: {{kind: matmul, duration: 10us{attributes}}}\n"
        f"    b: {{kind: relu, duration: 4us{attributes.replace('7', '9')}}}\n"
        f"policy: {{name: in-order{f', streams: {streams}' if streams else ''}}}\n"
    )
    base = WhatIfs(str(path))
    tried = [each for each in machine_trials(base.trace) if each.label == "one more stream on gpu0"]
    [_, outcome] = try_all(base, tried)
    assert outcome["makespan_ns"] == takes
    assert (outcome["notes"] == ["policy.streams would put no op on it"]) == (takes is None)


def test_one_more_stream_shares_the_sms_of_a_gpu(tmp_path: Path) -> None:
    """The preset's kernels share SMs: two of 1 ms on two streams take as long as where the file says two."""
    path, made = tmp_path / "s.yaml", {}
    for more in ("", ", streams: 1", ", streams: 2"):
        path.write_text(
            f"machine: {{devices: {{gpu0: {{preset: h100-sxm{more}}}}}}}\n"
            "workload: {ops: {a: {kind: matmul, duration: 1ms}, b: {kind: relu, duration: 1ms}}}\n"
            "policy: {name: in-order, streams: per-branch}\n"
        )
        made[more] = WhatIfs(str(path))
    *ones, two = made.values()
    for one in ones:
        (tried,) = [each for each in machine_trials(one.trace) if each.label == "one more stream on gpu0"]
        (_, outcome) = try_all(one, [tried])
        assert outcome["makespan_ns"] == two.trace.makespan_ns > 2_000_000


def test_kernels_and_communication_of_a_compiled_step_are_tried(tmp_path: Path) -> None:
    """Each of two ranks does everything in turn on one stream, so that all that is saved counts."""
    path = tmp_path / "s.yaml"
    path.write_text(TWO_RANKS)
    base = WhatIfs(str(path))
    _, *found = try_all(base, machine_trials(base.trace))
    took = {row["label"]: row["makespan_ns"] for row in found}
    job, whole = base.trace.job, base.trace.makespan_ns
    sums = int(job.duration_ns[job.meets].sum()) // 2
    assert sums > 0
    assert took["communication takes no time"] == whole - sums
    assert took["communication twice as fast"] == whole - sums // 2
    assert took["all kernels twice as fast"] == whole - (whole - sums) // 2
    assert took["gpu0 and 1 like it twice as fast"] == took["all kernels twice as fast"]
    assert "one more stream on gpu0 and 1 like it" in took
    labels = [each["label"] for each in json.loads(sim("whatif", path, "--json").stdout)["what_ifs"]]
    assert len(labels) == len(set(labels))
    assert set(took) <= set(labels)


def test_an_op_that_others_meet_is_faster_on_all_ranks() -> None:
    """On one of two ranks alone it would save nothing: both take as long as the slower one."""
    b = GraphBuilder("one sum")
    for gpu in ("gpu0", "gpu1"):
        b.op(f"{gpu}/sum", kind="all_reduce", duration_ns=80, device=gpu, attributes={"communicator": "dp"})
    trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue())
    (trial,) = [each for each in machine_trials(trace) if each.label == "'gpu0/sum' twice as fast"]
    assert trial.job is not None
    assert trial.job(trace.job).duration_ns.tolist() == [40, 40]


def test_an_op_that_every_replica_has_is_faster_on_all() -> None:
    """On one of two replicas alone it would save nothing: the sum waits for the slower one."""
    b = GraphBuilder("two replicas")
    for gpu in ("gpu0", "gpu1"):
        b.op(f"{gpu}/head", duration_ns=100, device=gpu)
        b.op(f"{gpu}/sum", inputs=[f"{gpu}/head"], kind="all_reduce", duration_ns=80, device=gpu)
    b.op("gpu1/alone", after=["gpu1/sum"], duration_ns=7, device="gpu1")
    trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue())
    halved = {}
    for trial in machine_trials(trace):
        if trial.label.startswith("'"):
            assert trial.job is not None
            halved[trial.label] = trial.job(trace.job).duration_ns.tolist()
    assert halved == {
        "'gpu1/head' and 1 like it twice as fast": [50, 80, 50, 80, 7],
        "'gpu1/sum' and 1 like it twice as fast": [100, 40, 100, 40, 7],
        "'gpu1/alone' twice as fast": [100, 80, 100, 80, 4],
    }


def test_ops_with_a_duration_for_each_kind_of_device_stay_where_they_are_placed(tmp_path: Path) -> None:
    """HEFT puts both on the GPU: the CPU takes 30 us for either, so b ends at 20 us, as the run says."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {cpu0: {kind: cpu, cores: 1}, gpu0: {kind: gpu}}}\n"
        "workload: {ops: {a: {duration: {cpu: 30us, gpu: 10us}}, b: {duration: {cpu: 30us, gpu: 10us}}}}\n"
        "policy: {name: ready-queue, placement: heft}\n"
    )
    told = json.loads(sim("whatif", path, "--json").stdout)
    found = {each["label"]: each["makespan_ns"] for each in told["what_ifs"]}
    assert told["makespan_ns"] == json.loads(sim("run", path, "--json").stdout)["makespan_ns"] == 20_000
    assert found["all kernels twice as fast"] == found["gpu0 twice as fast"] == 10_000
    assert "cpu0 twice as fast" not in found


def test_links_are_made_faster_or_free(tmp_path: Path) -> None:
    """10 us, 5 us of latency and 1000 us on the link, 10 us."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine:\n"
        "  devices: {gpu: {kind: gpu, count: 2}}\n"
        "  links: [{from: gpu0, to: gpu1, bandwidth: 1GB/s, latency: 5us}]\n"
        "workload:\n"
        "  ops:\n"
        "    a: {duration: 10us, output: 1MB, device: gpu0}\n"
        "    b: {duration: 10us, inputs: [a], device: gpu1}\n"
        "policy: in-order\n"
    )
    told = json.loads(sim("whatif", path, "--only", "links", "--json").stdout)
    found = {each["label"]: each["makespan_ns"] for each in told["what_ifs"]}
    assert found == {"links take no time": 20_000, "links with twice the bandwidth": 525_000}


def test_kernels_without_a_stream_are_kernels() -> None:
    """Only b has a stream; c is on another GPU."""
    b = GraphBuilder("abc")
    b.op("a", kind="matmul", duration_ns=100_000, device="gpu0")
    b.op("b", kind="add", inputs=["a"], duration_ns=10_000, device="gpu0", attributes={"stream": 1})
    b.op("c", kind="matmul", inputs=["b"], duration_ns=100_000, device="gpu1")
    b.op("host", inputs=["c"], duration_ns=10_000, device="cpu0")
    graph = b.build()
    found = [Names(graph).find(word).tolist() for word in ("kernels", "matmul")]
    assert found == [[True, True, True, False], [True, False, True, False]]


def test_kernels_that_copy_are_kernels() -> None:
    b = GraphBuilder("recording")
    for name, kind, kernel in (
        ("cat", "copy", "CatArrayBatchedCopy"),
        ("in", "copy", "Memcpy HtoD (Pinned -> Device)"),
        ("zero", "fill", "Memset (Device)"),
        ("nccl", "all_reduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("mm", "matmul", "gemm"),
    ):
        b.op(name, kind=kind, duration_ns=10, device="gpu", attributes={"stream": 7, "kernel": kernel})
    assert Names(b.build()).find("kernels").tolist() == [True, False, False, False, True]
