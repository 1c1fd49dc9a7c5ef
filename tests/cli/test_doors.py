"""What a careless or a malicious file cannot do: read others, steer a terminal, take all memory or time."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import GOOD, write

from scenarios.cli.output import escape
from scenarios.importers import load_graph
from scenarios.run.load import load_scenario
from sim.base.errors import InputError
from sim.base.files import FileTooLargeError, read_bytes, write_text

PLAIN = "machine: {devices: {g: {kind: gpu}}}\nworkload: {ops: {a: {duration: 5us}}}\npolicy: in-order\n"
SECRET = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin\n"


# -- files outside the scenario's folder -----------------------------------------------------------


NAMED = {
    "graph": "machine: {devices: {g: {kind: gpu}}}\nworkload: {graph: FILE}\npolicy: in-order\n",
    "order": "workload: {pipeline: {stages: 2, micro_batches: 2, forward: 1ms, backward: 2ms}}\n"
    "policy: {name: custom, file: FILE}\n",
    "plan": PLAIN.replace("policy: in-order", "policy: {name: replay, file: FILE}"),
    "cost": "machine: {devices: {g: {kind: gpu, cost: {table: FILE}}}}\n"
    "workload: {ops: {a: {flops: 5GFLOP}}}\npolicy: in-order\n",
    "profile": "workload: {pipeline: {layers: FILE, stages: 2, micro_batches: 2}}\npolicy: gpipe\n",
    "extends": "extends: FILE\n",
}
"""Every way in which a scenario names a file."""


@pytest.mark.parametrize("text", NAMED.values(), ids=NAMED)
def test_a_scenario_names_no_file_outside_its_folder(tmp_path: Path, text: str) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    path = write(tmp_path / "below", text.replace("FILE", "../secret"))
    done = sim("run", path)
    assert done.exit_code == 2
    assert "../secret: is outside the scenario's folder; allow it with --allow-outside" in done.stderr
    assert done.stderr.startswith(f"{path}:")
    allowed = sim("run", path, "--allow-outside")  # and is still no file of the expected form
    assert allowed.exit_code == 2
    assert "outside" not in allowed.stderr
    assert not any(word in allowed.stderr for word in ("root:", "daemon", "bash"))


FINE = {
    "graph": json.dumps({"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a", "duration_ns": 7}]}),
    "extends": PLAIN,
}


@pytest.mark.parametrize("text", [NAMED[name] for name in FINE], ids=FINE)
@pytest.mark.parametrize("verb", ["run", "compare", "explain", "check", "sweep"])
def test_every_command_that_reads_a_scenario_may_be_let_outside(tmp_path: Path, verb: str, text: str) -> None:
    (tmp_path / "below").mkdir()
    content = next(FINE[name] for name in FINE if NAMED[name] == text)
    (tmp_path / "other.json").write_text(content, encoding="utf-8")
    text = text.replace("FILE", "../other.json")
    if verb in ("compare", "check"):
        text += "compare: [in-order, ready-queue]\nexpect: {makespan: {at_least: 1ns}}\n"
    path = write(tmp_path / "below", text)
    more = ["--vary", "seed=1,2"] if verb == "sweep" else []
    refused = sim(verb, path, *more)
    assert refused.exit_code == 2
    assert "../other.json: is outside the scenario's folder; allow it with --allow-outside" in refused.output
    allowed = sim(verb, path, *more, "--allow-outside")
    assert allowed.exit_code == 0, allowed.output


def test_a_link_counts_as_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    (tmp_path / "below" / "graph.json").symlink_to("../secret")
    path = write(tmp_path / "below", NAMED["graph"].replace("FILE", "graph.json"))
    assert "is outside the scenario's folder" in sim("run", path).stderr


def test_a_file_in_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    graph = {"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a", "duration_ns": 7}]}
    (tmp_path / "graphs" / "g.json").write_text(json.dumps(graph), encoding="utf-8")
    scenario = load_scenario(write(tmp_path, NAMED["graph"].replace("FILE", "graphs/../graphs/g.json")))
    assert len(scenario.graph) == 1


@pytest.mark.parametrize("format", ["chakra", "graph-json", "kineto", "pipedream", "stg", "wfformat"])
@pytest.mark.parametrize("content", [SECRET, '["root"]', '"root"', '{"root": 1}'])
def test_messages_show_nothing_of_a_file_of_another_form(tmp_path: Path, format: str, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_graph(path, format=format)
    said = str(caught.value).replace(str(tmp_path), "")
    assert "daemon" not in said
    assert "bash" not in said
    assert (
        content.startswith("{") or "root" not in said
    )  # keys of a mapping are shown, to find a typing error


# -- names that would steer a terminal -------------------------------------------------------------


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    graph = {"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a\x1b[2J\x9b\u202e", "duration_ns": 7}]}
    (tmp_path / "g.json").write_text(json.dumps(graph), encoding="utf-8")
    path = write(tmp_path, NAMED["graph"].replace("FILE", "g.json"))
    for verb in ("explain", "run"):
        done = sim(verb, path)
        assert done.exit_code == 0
        assert not set(done.output) & {"\x1b", "\x9b", "\u202e"}
    assert "a\\x1b[2J\\x9b\\u202e" in sim("explain", path).stdout
    told = sim("explain", path, "--json")
    assert (
        "a\x1b[2J\x9b\u202e" in json.dumps(json.loads(told.stdout), ensure_ascii=False)
        or "\\u009b" in told.stdout
    )
    wrong = sim("run", path, "--set", "wor\x1b[31mk=1")
    assert wrong.exit_code == 2
    assert "\x1b" not in wrong.stderr


def test_what_is_escaped() -> None:
    assert escape("two\nlines\tand \x1b[1mbold\x1b[0m ü €") == "two\nlines\tand \x1b[1mbold\x1b[0m ü €"
    assert escape("\r\x07\x85\u2066\udc80") == "\\u000d\\u0007\\u0085\\u2066\\udc80"


# -- what is read ----------------------------------------------------------------------------------


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for arguments in (["run", pipe], ["import", pipe, "--out", tmp_path / "o.json"], ["memory", pipe]):
        done = sim(*arguments)
        assert done.exit_code == 2
        assert done.stderr == f"{pipe}: is not a regular file\n"
    assert "is not a regular file" in sim("run", "/dev/zero").stderr


@pytest.mark.parametrize("name", ["m.onnx", "t.json.gz", "t.et", "t.sqlite", "t.xplane.pb", "s.yaml"])
def test_a_pointer_of_git_lfs_is_no_damaged_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 7\n")
    done = sim("import", path, "--out", tmp_path / "g.json") if name == "m.onnx" else sim("run", path)
    assert f"{name}: is a pointer of Git LFS" in done.stderr


def test_unpacking_stops_at_a_ratio(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (65 << 20)))
    with pytest.raises(InputError, match=r"bomb.json.gz: unpacks to more than 100 times its size"):
        read_bytes(bomb)
    small = tmp_path / "small.gz"
    small.write_bytes(gzip.compress(b" " * (1 << 20)))
    assert len(read_bytes(small)) == 1 << 20
    with pytest.raises(FileTooLargeError, match=r"small.gz: is larger than 0 MiB"):
        read_bytes(small, most=1000)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.json"
    with path.open("wb") as file:
        file.truncate(5 << 30)
    with pytest.raises(FileTooLargeError, match=r"sparse.json: is larger than 4 GiB"):
        read_bytes(path)


# -- how large things may be -----------------------------------------------------------------------


def calls(depth: int, width: int) -> str:
    """Return a scenario of functions, each calling the next so many times."""
    lines = ["machine: {devices: {g: {kind: gpu}}}", "workload:", "  ops:", "    x: {duration: 1us}"]
    lines += ["    r: {kind: call, inputs: [x], attributes: {body: f0}}", "  functions:"]
    for i in range(depth):
        body = (
            f"kind: call, inputs: [a], attributes: {{body: f{i + 1}}}" if i < depth - 1 else "duration: 1us"
        )
        ops = ", ".join(f"p{k}: {{{body}}}" for k in range(width))
        lines.append(f"    f{i}: {{inputs: [a], ops: {{{ops}}}, outputs: [p0]}}")
    return "\n".join([*lines, "policy: in-order\n"])


def random_dag(**sizes: int) -> str:
    spec = ", ".join(f"{key}: {value}" for key, value in sizes.items())
    return PLAIN.replace("{ops: {a: {duration: 5us}}}", f"{{build: {{model: random-dag, {spec}}}}}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (calls(40, 2), "ops, with those of functions, are more than the 10,000,000 that there may be"),
        (calls(200, 1), "functions call one another more than 64 levels deep"),
        (random_dag(layers=100_000, width=100_000), "10,000,000,000 ops are more than the 10,000,000"),
        (random_dag(layers=1_000_000, width=9), "8,099,999,100,000 edges are more than the 100,000,000"),
    ],
)
def test_sizes_are_computed_before_anything_is_built(tmp_path: Path, text: str, says: str) -> None:
    done = sim("run", write(tmp_path, text))
    assert done.exit_code == 2
    assert says in done.stderr


def test_runs_and_points_are_counted_first(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    done = sim("run", path, "--repeat", "99999999999999999999")
    assert (done.exit_code, done.stderr) == (
        2,
        "99,999,999,999,999,999,999 runs are more than the 1,000,000 that there may be\n",
    )
    vary = [x for key in "abcdefg" for x in ("--vary", f"{key}={','.join('0123456789')}")]
    done = sim("sweep", path, *vary)
    assert done.exit_code == 2
    assert "10,000,000 points are more than the 1,000,000 that there may be" in done.stderr


def test_times_that_do_not_fit_64_bits(tmp_path: Path) -> None:
    ops = "{a: {duration: 2500000h}, b: {duration: 2500000h, inputs: [a]}}"
    path = write(tmp_path, PLAIN.replace("{a: {duration: 5us}}", ops))
    for engine in ("auto", "simpy"):
        done = sim("run", path, "--set", f"engine={engine}")
        assert done.exit_code == 2
        assert "all tasks take 1.8e+10 s together, more than the 4.61e+09 s (146 years)" in done.stderr
        assert "'a'" in done.stderr
    noisy = PLAIN + "noise: {stragglers: {probability: 1, factor: 1e30}}\n"
    done = sim("run", write(tmp_path, noisy))
    assert done.exit_code == 2
    assert "noise: makes a task longer than 146 years" in done.stderr


def test_a_batch_beyond_all_bounds(tmp_path: Path) -> None:
    graph = "scenarios/examples/graphs/inception_v1.json.gz"
    for batch, says in (
        ("99999999999999999999", "samples in a batch are more than"),
        (str(10**12), "does not fit 64 bits at batch 1000000000000"),
    ):
        done = sim("import", graph, "--out", tmp_path / "o.json", "--batch", batch)
        assert done.exit_code == 2
        assert says in done.stderr


@pytest.mark.filterwarnings("ignore:.* GPU tasks have no launch")
@pytest.mark.parametrize("duration", ["1e300", "Infinity", "NaN"])
def test_recorded_times_beyond_all_bounds(tmp_path: Path, duration: str) -> None:
    event = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": %s, "args": %s}'
    kineto = tmp_path / "k.json"
    kineto.write_text(
        '{"traceEvents": [%s]}' % (event % (duration, '{"stream": 7, "correlation": 1, "device": 0}'))
    )
    tasks = f'{{"name": "w", "workflow": {{"tasks": [{{"name": "a", "runtime": {duration}}}]}}}}'
    workflow = tmp_path / "w.json"
    workflow.write_text(tasks)
    for path in (kineto, workflow):
        with pytest.raises(InputError) as caught:
            load_graph(path)
        assert str(caught.value).startswith(f"{path}: ")


# -- what is written -------------------------------------------------------------------------------


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: object, content: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    target = tmp_path / "out.txt"
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_text(target, "text")
    assert caught.value.filename == str(target)
    assert not list(tmp_path.iterdir())


def test_options_for_files_may_be_given_twice_others_not(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    files = [tmp_path / name for name in ("a.csv", "b.json")]
    done = sim("run", path, *(x for file in files for x in ("--ops", file)))
    assert done.exit_code == 0
    assert all(file.exists() for file in files)
    done = sim("run", path, "--ops", files[0], "--ops", files[0])
    assert done.exit_code == 2
    assert "is what --ops writes" in done.stderr
    done = sim("run", path, "--repeat", "1", "--repeat", "2")
    assert done.exit_code == 2
    assert "--repeat is given twice" in done.stderr


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    recording = tmp_path / "t.json"
    assert sim("run", write(tmp_path, GOOD), "--trace", recording).exit_code == 0
    content, other = recording.read_bytes(), tmp_path / "x" / ".." / "t.json"
    (tmp_path / "x").mkdir()
    for verb, *options in (
        ("run", "--trace", other),
        ("compare", "--ops", recording),
        ("sweep", "--vary", "seed=1,2", "--out", recording, "--force"),
        ("import", "--out", recording),
        ("run", "--show-graph", tmp_path / "g.json", recording),
    ):
        done = sim(verb, recording, *options)
        assert (done.exit_code, recording.read_bytes()) == (2, content), done.output
        assert done.stderr.endswith(f"t.json: would write over {recording}, which is read\n")
    scenario = write(
        tmp_path, "workload: {graph: t.json, batch: null}\nmachine: {preset: as-recorded}\n", "s.yaml"
    )
    done = sim("run", scenario, "--trace", other)
    assert (done.exit_code, recording.read_bytes()) == (2, content), done.output
    assert done.stderr.endswith(f"t.json: would write over {recording}, which {scenario} names\n")
