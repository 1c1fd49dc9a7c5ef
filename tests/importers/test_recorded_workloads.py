"""Recorded traces as workloads: the recorded run comes out again, on its own streams."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from chakra_files import host, kernel, trace_of
from cli_runner import sim
from import_helpers import recorded
from policy_helpers import gpu, job_of
from scenario_texts import write

from policies.streams import Recorded
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.run.result_sections import stream_notes
from sim import Device, GraphBuilder, Machine
from sim.base.errors import InputError, ScenarioError
from sim.trace import Trace

SCENARIO = """\
name: recorded
machine:
  devices:
    gpu0: {{kind: gpu, streams: {streams}}}
    cpu0: {{kind: cpu, cores: {threads}}}
workload: {{{kind}: {file}{more}}}
policy: {{name: ready-queue, synchronisation: {synchronisation}, streams: {assignment}}}
"""

pytestmark = pytest.mark.filterwarnings("ignore:.* do not say for which stream or event they wait")
"""Of what streams wait for in older recordings."""


def prepare(folder: Path, source: Path, rest: str = "", **values: object) -> Path:
    """Write a scenario of a recorded file that lies elsewhere: a scenario names files relative to itself."""
    link = folder / source.name
    if not link.exists():
        link.symlink_to(source)
    given = {"kind": "kineto", "more": "", "streams": 4, "threads": 2}
    given |= {"synchronisation": "issue", "assignment": "recorded"}
    return write(folder, SCENARIO.format(file=source.name, **(given | values)) + rest)


def run(folder: Path, source: Path, **values: object) -> Trace:
    """Run it."""
    return run_scenario(load_scenario(prepare(folder, source, **values), allow_outside=True)).trace


def gpu_end_ns(trace: Trace) -> tuple[int, int]:
    """Return when the last task of the GPU ended: as simulated, and as recorded."""
    graph = trace.job.graph
    known = {op: a["recorded_start_ns"] for op, a in graph.attributes.items() if "kernel" in a}
    ends = dict(zip(trace.tasks["op"].tolist(), trace.tasks["end_ns"].tolist(), strict=True))
    return max(ends[op] for op in known), max(s + int(graph.duration_ns[op]) for op, s in known.items())


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("h100_bert_small", 0.001),
        ("h100_vit", 0.001),
        ("h100_qwen_0_5b", 0.001),
        ("v100_dlrm_8_ranks/rank0", 0.001),
        ("v100_dlrm_8_ranks/rank4", 0.001),
        ("v100_dlrm_8_ranks/rank7", 0.001),
    ],
)
@pytest.mark.filterwarnings("ignore:.* GPU tasks have no launch in the trace")
def test_a_recorded_run_comes_out_again(tmp_path: Path, name: str, share: float) -> None:
    trace = run(tmp_path, recorded(f"kineto/{name}.json.gz"))
    trace.check()
    simulated, measured = gpu_end_ns(trace)
    assert abs(simulated - measured) <= share * measured


@pytest.mark.slow
def test_a100_needs_its_streams(tmp_path: Path) -> None:
    """465 ms were recorded on four streams; all on one, collectives no longer overlap: 529 ms."""
    source = recorded("kineto/a100_training_rank3.json.gz")
    scenario = load_scenario(
        prepare(tmp_path, source, "compare: [{label: one stream, streams: single}]\n"), allow_outside=True
    )
    simulated, measured = gpu_end_ns(run_scenario(scenario).trace)
    assert measured == 464_704_000
    assert abs(simulated - measured) <= 0.001 * measured
    one_stream, _ = gpu_end_ns(run_scenario(scenario, "one stream").trace)
    assert one_stream > 1.1 * measured


def test_the_gpu_alone(tmp_path: Path) -> None:
    """Without the host's calls nothing holds the kernels back but their streams and events."""
    trace = run(tmp_path, recorded("kineto/v100_dlrm_8_ranks/rank7.json.gz"), more=", host: none")
    assert len(trace) == 262
    simulated, measured = gpu_end_ns(trace)
    assert simulated < measured / 2


@pytest.mark.slow
def test_chakra(tmp_path: Path) -> None:
    """Many of its nodes name an enclosing call that is not in the file: the importer says so."""
    source = recorded("chakra/chakra.0.et.gz")
    with pytest.warns(UserWarning, match="1277 ctrl_deps name nodes that are not in the file"):
        trace = run(tmp_path, source, kind="chakra", streams=4, threads=8)
    trace.check()
    assert len(trace) == 3664
    with pytest.raises(
        ScenarioError,
        match=r"workload\.chakra: .*: 1277 ctrl_deps .*\(216 on 3, .*import without them by unknown='warn'",
    ):
        run(tmp_path, source, kind="chakra", more=", unknown: error")


TINY = {
    "traceEvents": [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "ts": start,
            "dur": 10,
            "args": {"device": 0, "stream": stream, "correlation": i},
        }
        for i, (name, start, stream) in enumerate([("a", 0, 7), ("b", 0, 20), ("c", 10, 7), ("d", 10, 20)])
    ]
}
"""a and c on stream 7, b and d on stream 20, 10 us each: 20 us side by side, 40 us one after another."""


@pytest.mark.parametrize(("assignment", "makespan_ns"), [("recorded", 20_000), ("single", 40_000)])
def test_streams_by_hand(tmp_path: Path, assignment: str, makespan_ns: int) -> None:
    source = tmp_path / "made" / "tiny.json"
    source.parent.mkdir()
    source.write_text(json.dumps(TINY))
    trace = run(tmp_path, source, more=", host: none", streams=2, assignment=assignment)
    assert trace.makespan_ns == makespan_ns


def test_a_recorded_program_that_runs_again_begins_when_it_has_ended(tmp_path: Path) -> None:
    """A step of 167 us, which ends as its thread has waited for the GPU."""
    examples = Path(__file__).resolve().parents[2] / "scenarios" / "examples"
    (tmp_path / "step.json").symlink_to(examples / "recordings" / "step.json")
    path = write(tmp_path, "workload: {kineto: step.json}\niterations: 3\n")
    assert run_scenario(load_scenario(path, allow_outside=True)).trace.makespan_ns == 3 * 167_000


@pytest.mark.parametrize("told", [True, False])
def test_recorded_kernels_that_share_sms_once_more_are_told(tmp_path: Path, told: bool) -> None:
    """Their durations were measured side by side already."""
    source = tmp_path / "made" / "tiny.json"
    source.parent.mkdir()
    source.write_text(json.dumps(TINY))
    scenario = prepare(tmp_path, source, more=", host: none")
    gpu = "{kind: gpu, sms: 8, sharing: sm}" if told else "{kind: gpu}"
    machine = f"machine={{devices: {{gpu0: {gpu}}}}}"
    result = run_scenario(load_scenario(scenario, sets=[machine], allow_outside=True))
    notes = stream_notes({result.policy: result.trace})
    assert [note.startswith("kernels share the SMs of gpu0, and did so when") for note in notes] == [
        True
    ] * told


def test_a_batch_is_no_option_of_a_recording(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match=r"workload\.batch: no such key; known: execution_graph, host, kineto"
    ):
        run(tmp_path, tmp_path / "tiny.json", more=", batch: 2")


def test_too_few_streams_are_told() -> None:
    b = GraphBuilder("two")
    b.op("a", duration_ns=1, attributes={"stream": 7})
    b.op("b", duration_ns=1, attributes={"stream": "comm"})
    message = r"the ops of gpu0 name 2 streams \(7, comm\), and it has 1; .*, or say streams: 2"
    with pytest.raises(InputError, match=message):
        Recorded().assign(job_of(b.build(), gpu()))


def test_each_device_numbers_its_own_streams() -> None:
    b = GraphBuilder("devices")
    for i, (device, stream) in enumerate(
        [("gpu0", 7), ("gpu1", 20), ("cpu0", 3), ("gpu1", 7), ("gpu0", None)]
    ):
        b.op(f"o{i}", duration_ns=1, device=device, attributes={} if stream is None else {"stream": stream})
    devices = (
        Device("gpu0", "gpu", streams=1),
        Device("gpu1", "gpu", streams=2),
        Device("cpu0", "cpu", workers=2),
    )
    assert Recorded().assign(job_of(b.build(), Machine(devices))) == [0, 0, 0, 1, 0]


def test_a_graph_takes_the_options_of_its_importer(tmp_path: Path) -> None:
    source = recorded("h100_bert_small")
    short = prepare(tmp_path, source, more=", host: none")
    graph = load_scenario(short, allow_outside=True).graph
    assert len(graph) < len(load_scenario(prepare(tmp_path, source), allow_outside=True).graph)
    for more in (", host: none", ", host: none, format: kineto"):
        long = load_scenario(prepare(tmp_path, source, kind="graph", more=more), allow_outside=True)
        assert long.graph.op_names == graph.op_names
    for more, says in (
        ("host: nobody", r"s\.yaml:6:\d+: workload\.host: should be 'calls' or 'none', not 'nobody'"),
        ("hots: none", r"s\.yaml:6:\d+: workload\.hots: the importer of .* did you mean 'host'\?"),
        ("bacth: 3", r"s\.yaml:6:\d+: workload\.bacth: the importer of .* did you mean 'batch'\?"),
        ("format: kinto", r"s\.yaml:6:\d+: workload\.graph: unknown importer 'kinto'; did you mean 'kineto'"),
    ):
        with pytest.raises(ScenarioError, match=says):
            load_scenario(prepare(tmp_path, source, kind="graph", more=f", {more}"), allow_outside=True).graph  # noqa: B018


@pytest.mark.parametrize("preset", ["t4", "h100-sxm"])
def test_kernels_of_another_gpu_are_told(tmp_path: Path, preset: str) -> None:
    """They take as long as recorded, which a preset does not change; the what-if of a device does."""
    scenario = prepare(tmp_path, recorded("kineto/h100_bert_small.json.gz"))
    gpu = f"machine={{devices: {{gpu0: {{preset: {preset}}}, cpu0: {{kind: cpu}}}}}}"
    notes = []
    for moved in ("{}", "{device: {from: h100-sxm, to: t4}}"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sets = [gpu, f"workload.what_if={moved}"]
            result = run_scenario(load_scenario(scenario, sets=sets, allow_outside=True))
        said = stream_notes({result.policy: result.trace})
        notes.append([note for note in said if "as long as they were recorded on" in note])
    assert [bool(each) for each in notes] == [preset == "t4", preset != "t4"]
    if preset == "t4":
        assert notes[0][0].startswith(
            "gpu0 is a t4, and kernels take as long as they were recorded on NVIDIA H100"
        )


def test_the_sizes_of_a_model_are_no_graph(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 12}')
    for words in (("run", path), ("import", path, "--out", tmp_path / "g.json.gz")):
        done = sim(*words)
        assert done.exit_code == 2
        assert "config.json: has a model's sizes, and no graph" in done.stderr
        assert "train: {model: ./config.json, ...}" in done.stderr


@pytest.mark.parametrize("text", ["name: x\nworkload: {ops: {}}\n", '{"name": "x", "workload": {"ops": {}}}'])
def test_a_scenario_in_place_of_a_graph_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    done = sim("import", path, "--out", tmp_path / "g.json")
    assert done.exit_code == 2
    assert f"scenario.yaml: is a scenario; `sim run {path} --show-graph BEFORE.json" in done.stderr


def test_a_model_in_place_of_a_scenario_is_told(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x08\x07")
    done = sim("run", path)
    assert done.exit_code == 2
    assert done.stderr.endswith("is a model, not a scenario; name it in one: `workload: {graph: net.onnx}`\n")


@pytest.mark.parametrize("name", ["frozen.pb", "graph.pbtxt", "net.keras", "net.pt2"])
def test_a_model_that_nothing_reads_is_told_what_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x0a\x07")
    for words in (["run", path], ["import", path, "--out", tmp_path / "g.json"]):
        done = sim(*words)
        assert done.exit_code == 2
        assert f"{name}: this format is not read; export the model as ONNX" in done.stderr


def test_a_folder_of_chakra_traces_runs_like_one_of_them(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"t.{rank}.et").write_bytes(trace_of(host(1, "a"), kernel(2, by=1)))
    (tmp_path / "network.json").write_text("{}")
    done = sim("run", tmp_path, "--json")
    assert sorted(json.loads(done.stdout)["devices"]) == ["cpu0", "cpu1", "gpu0", "gpu1"]
