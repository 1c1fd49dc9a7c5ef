"""What the user did wrong: one clear line on stderr, nothing on stdout, and the right exit status."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import GOOD, changed, write

import scenarios.run.prepare_job

MISTAKES = {
    "cycle": (changed("inputs: [a]", "inputs: [d]"), "{file}:8:8: workload.ops.b: "),
    "input": (changed("inputs: [b, c]", "inputs: [b, cc]"), "{file}:10:36: workload.ops.d.inputs.1: "),
    "device": (changed("5us,", "5us, device: gpu0,"), "{file}:10:32: workload.ops.d.device: op 'd' is "),
    "policy": (changed("ready-queue", "raedy-queue"), "{file}:11:16: policy.name: unknown policy "),
    "key": (changed("policy", "polici"), "{file}:11:1: polici: no such key; did you mean 'policy'?"),
    "duplicate": (changed("    b: {", "    a: {"), "{file}:8:5: the key 'a' is given twice "),
    "negative": (changed("20us", "-20us"), "{file}:8:19: workload.ops.b.duration: '-20us' is negative"),
    "unit": (changed("20us", "20"), "{file}:8:19: workload.ops.b.duration: 20 has no unit; "),
    "no device": (changed("{duration: 20us,", "{kind: conv, flops: 1GFLOP,"), "{file}:8:8: workload.ops.b: "),
    "only the run sees it": (
        changed("cores: 2", "cores: 2, workers: 3, sharing: cores")
        .replace("{duration: 20us,", "{duration: 20us, attributes: {cores: 0},"),
        "{file}:8:45: workload.ops.b.attributes.cores: ",
    ),
    "only the policy sees it": (
        changed("ready-queue", "tfrt, blocking_threads: 2"), "{file}:11:40: policy.blocking_threads: "
    ),
    "bomb": ("a: &a [x, x]\nb: &b [" + "*a, " * 9000 + "]\n", "{file}:2:"),
    "no op": (GOOD.partition("  ops:")[0] + "  ops: {}\n", "{file}:6:8: workload.ops: is empty"),
    "binary": ("\x00\x01\x02", "{file}: is a binary file, not a scenario (YAML text)"),
    "empty": ("", "{file}: is empty"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "says"), MISTAKES.values(), ids=MISTAKES)
def test_wrong_input_is_one_clear_line_and_exit_status_2(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    for verb in ("run", "compare", "explain"):
        result = sim(verb, path, "--json")
        assert result.exit_code == 2
        told = json.loads(result.stdout)
        assert (told["schema"], told["exit_status"]) == ("sim.error/1", 2)
        assert told["message"] + "\n" == result.stderr
        assert result.stderr.startswith(says.format(file=path))
        assert result.stderr.count("\n") == 1
    assert sim("check", path).exit_code == 2


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    assert sim("run", tmp_path).stderr == f"{tmp_path}: is a directory, not a file\n"
    missing = sim("run", tmp_path / "no.yaml")
    assert (missing.exit_code, missing.stderr) == (2, f"{tmp_path}/no.yaml: no such file\n")
    ships = sim("explain", tmp_path / "scenarios" / "unet.yaml")
    assert (ships.exit_code, ships.stderr) == (
        2,
        f"{tmp_path}/scenarios/unet.yaml: no such file; `sim new unet.yaml --template unet` copies the one "
        "that ships\n",
    )


def test_a_graph_file_that_is_not_what_it_says(tmp_path: Path) -> None:
    write(tmp_path, "PK\x03\x04", "g.json.gz")
    head, _, _ = GOOD.partition("  ops:")
    result = sim("run", write(tmp_path, head + "  graph: g.json.gz\n"))
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"{tmp_path}/s.yaml:6:10: workload.graph: {tmp_path}/g.json.gz: no known format"
    )


def test_a_misspelt_key_beside_a_graph_file_names_the_nearest(tmp_path: Path) -> None:
    graph = b'{"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a", "duration_ns": 1}]}'
    (tmp_path / "g.json").write_bytes(graph)
    head, _, _ = GOOD.partition("  ops:")
    result = sim("run", write(tmp_path, head + "  graph: g.json\n  formt: graph-json\n"))
    assert result.exit_code == 2
    assert result.stderr.endswith("has no option 'formt'; did you mean 'format'?\n")


def test_a_recording_that_is_damaged_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    result = sim("run", path)
    assert (result.exit_code, result.stderr.count("t.json")) == (2, 1)
    assert result.stderr.startswith(f"{path}: no kernel, copy or fill of a GPU in the trace")


def test_what_cannot_go_on_is_exit_status_1(tmp_path: Path) -> None:
    text = changed("{name: ready-queue}", "{name: in-order, linearize: {name: program, ops: [b, a, c, d]}}")
    result = sim("run", write(tmp_path, text))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("nothing can happen any more and 4 tasks remain:\n")
    told = json.loads(sim("run", write(tmp_path, text), "--json").stdout)
    assert told == {
        "schema": "sim.error/1",
        "error": "StuckError",
        "message": result.stderr[:-1],
        "exit_status": 1,
    }


def test_a_result_in_json_stays_alone_when_its_files_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up after the result is printed: the error is on stderr only, stdout is one value."""

    def write_to_a_full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "ops.csv")

    monkeypatch.setattr("scenarios.report.outputs.write_outputs", write_to_a_full_disk)
    result = sim("run", write(tmp_path), "--json", "--ops", tmp_path / "ops.csv")
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert json.loads(result.stdout)["schema"] == "sim.result/1"


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["run"], ["run", "x.yaml", "--polcy", "y"], ["import", "x"], ["explain", "x", "--most=-1"]],
)
def test_wrong_usage_is_exit_status_2(arguments: list[str]) -> None:
    result = sim(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr


def test_the_run_that_cannot_go_on_is_named_among_several(tmp_path: Path) -> None:
    """In program order b is given back before d asks; breadth first d comes before c, and 2 GB do not fit."""
    path = write(
        tmp_path,
        """
machine: {devices: {gpu0: {kind: gpu, memory: 1500MB}}}
workload:
  ops:
    b: {duration: 1us, output: 1GB}
    c: {duration: 1us, inputs: [b], output: 1kB}
    d: {duration: 1us, output: 1GB}
    e: {duration: 1us, inputs: [d], output: 1kB}
policy: in-order
compare: [in-order, {label: breadth first, name: ready-queue}]
""",
    )
    result = sim("compare", path)
    assert result.exit_code == 1
    assert result.stderr.startswith("breadth first (2 of 2):\nout of memory on gpu0")
    alone = sim("run", path, "--policy", "breadth first")
    assert alone.stderr.startswith("out of memory on gpu0")


@pytest.mark.parametrize("nothing", ["", "null", "~"])
def test_setting_nothing_is_as_leaving_out(tmp_path: Path, nothing: str) -> None:
    path = write(
        tmp_path, changed("{name: ready-queue}", "{name: ready-queue}\nmemory: {allocator: caching}")
    )
    assert "memory of" in sim("run", path).stdout
    result = sim("run", path, "--set", f"memory={nothing}")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "memory of" not in result.stdout


def test_a_policy_that_is_unknown_or_given_twice(tmp_path: Path) -> None:
    path = write(tmp_path)
    result = sim("run", path, "--policy", "in-odrer")
    assert (result.exit_code, result.stderr) == (
        2,
        "--policy: unknown policy 'in-odrer'; did you mean 'in-order'?\n",
    )
    result = sim("run", path, "--allow-code", "--policy", "{name: in-order}")
    assert (result.exit_code, result.stderr) == (
        2,
        "--policy: '{name: in-order}' is no name; give options in compare:, or by --set 'policy={...}'\n",
    )
    result = sim("compare", path, "--policy", "in-order", "--policy", "in-order")
    assert (result.exit_code, result.stderr) == (2, "--policy in-order is given twice\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["import", "--format", "onx"], "--format onx: unknown importer 'onx'; did you mean 'onnx'?"),
        (["optimum", "--minimise", "enrgy"], "--minimise enrgy: unknown objective 'enrgy'; did you mean"),
    ],
)
def test_an_unknown_name_is_told_with_its_option(tmp_path: Path, words: list[str], says: str) -> None:
    out = ["--out", tmp_path / "g.json"] if words[0] == "import" else []
    result = sim(words[0], write(tmp_path), *words[1:], *out)
    assert (result.exit_code, result.stderr.startswith(says)) == (2, True)


def test_code_needs_permission(tmp_path: Path) -> None:
    (tmp_path / "own_of_test_cli.py").write_text(
        "from policies.issue.program_order import InOrder\nclass Own(InOrder):\n    'Mine.'\n"
    )
    path = write(tmp_path, changed("ready-queue", "'own_of_test_cli:Own'"))
    refused = sim("run", path)
    assert refused.exit_code == 2
    assert "allow it with --allow-code" in refused.stderr
    assert sim("run", path, "--allow-code").exit_code == 0


def test_code_that_is_no_policy_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "other_of_test_cli.py").write_text("class Other:\n    'No policy.'\n")
    path = write(tmp_path, changed("ready-queue", "'other_of_test_cli:Other'"))
    result = sim("run", path, "--allow-code")
    assert result.exit_code == 2
    assert result.stderr == (
        f"{path}:11:16: policy.name: 'other_of_test_cli:Other' is no policy: "
        "Other does not extend sim.Policy\n"
    )


def test_calibrating_into_no_folder_is_refused_before_it_begins(tmp_path: Path) -> None:
    result = sim("calibrate", "--backend", "timer", "--out", str(tmp_path / "none" / "c.json"))
    assert (result.exit_code, result.stdout) == (2, "")
    folder = tmp_path / "none"
    assert result.stderr == f"--out {folder / 'c.json'}: the directory {folder} does not exist\n"


def test_warnings_are_one_line_on_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*arguments: object, **options: object) -> None:
        warnings.warn("the sky is falling", stacklevel=1)
        raise KeyboardInterrupt

    monkeypatch.setattr(scenarios.run.prepare_job, "make_job", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = sim("run", write(tmp_path))
    assert result.exit_code == 130
    assert result.stderr.splitlines() == ["warning: the sky is falling", "interrupted"]


def test_bugs_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios.run.prepare_job, "make_job", None)
    path = write(tmp_path)
    done = sim("run", path)
    assert done.exit_code == 3
    assert done.stderr == (
        f"{path}: a mistake of sim itself, please report it (TypeError: 'NoneType' object is not callable); "
        "SIM_TRACEBACK=1 shows where\n"
    )
    monkeypatch.setenv("SIM_TRACEBACK", "1")
    done = sim("run", path)
    assert done.exit_code == 3
    assert "Traceback" in done.stderr
    assert "in job_of" in done.stderr


def test_an_interrupt_inside_the_making_of_a_class_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(scenarios.run.prepare_job, "make_job", interrupted)
    done = sim("run", write(tmp_path))
    assert (done.exit_code, done.stderr) == (130, "interrupted\n")


OF_A_USER = """\
from heapq import heappop
from sim import Policy
class Popped(Policy):
    def ready(self, task): ...
    def next(self, issuer): return heappop([])
class Misspelt(Popped):
    def next(self, issuer): return issuer.nosuch
class Asks(Popped):
    def prepare(self, job): job.graph.kind("conv")
class Writes(Popped):
    def prepare(self, job): job.graph.name = "mine"
class Names(Popped):
    def prepare(self, job): job.graph.index("nope")
class Half(Policy):
    def ready(self, task): ...
"""


def test_a_mistake_in_a_policy_of_the_user_is_theirs(tmp_path: Path) -> None:
    mine = tmp_path / "of_a_user.py"
    mine.write_text(OF_A_USER)
    for name, told in (
        ("Popped", f"{mine}:5: IndexError: index out of range; SIM_TRACEBACK=1 shows how it came there"),
        ("Misspelt", f"{mine}:7: AttributeError: 'Issuer' object has no attribute 'nosuch'; SIM_TRACEBACK=1"),
        ("Asks", f"{mine}:9: IndexError: only integers, slices"),
        ("Writes", f"{mine}:11: FrozenInstanceError: cannot assign to field 'name'"),
        ("Names", f"{mine}:13: unknown op 'nope'. Known: a, b, c, d\n"),
        ("Half", "Half must define next()"),
    ):
        done = sim("run", write(tmp_path), "--policy", f"of_a_user:{name}", "--allow-code")
        assert (done.exit_code, done.stderr[: len(told)]) == (2, told)


def test_a_kind_of_device_that_is_nearly_one_of_ours(tmp_path: Path) -> None:
    for kind, meant in (("GPU", "gpu"), ("cpuu", "cpu"), ("gpus", "gpu"), ("swich", "switch")):
        text = f"machine: {{devices: {{d: {{kind: {kind}}}}}}}\nworkload: {{ops: {{a: {{duration: 1us}}}}}}\n"
        done = sim("run", write(tmp_path, text + "policy: in-order\n"))
        assert done.exit_code == 2
        assert f"there is no kind '{kind}'; did you mean '{meant}'?" in done.stderr
    for kind in ("tpu", "cu", "pe"):
        own = f"machine: {{devices: {{d: {{kind: {kind}}}}}}}\nworkload: {{ops: {{a: {{duration: 1us}}}}}}\n"
        assert sim("run", write(tmp_path, own + "policy: in-order\n")).exit_code == 0


def test_a_picture_that_cannot_be_drawn_does_not_take_the_result_along(tmp_path: Path) -> None:
    text = "machine: {devices: {d: {kind: gpu}}}\nworkload: {ops: {a: {duration: 1us}}}\npolicy: in-order\n"
    wanted = [name for option in ("memory", "links") for name in (f"--{option}", tmp_path / f"{option}.png")]
    done = sim("run", write(tmp_path, text), *wanted)
    assert done.exit_code == 2
    assert "makespan 1 us" in done.stdout
    assert done.stderr.count(": there is nothing to draw: ") == 2, "each that is missing"


def test_an_allocation_trace_without_events(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    done = sim("memory", empty)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "has no event" in done.stderr


def test_characters_that_the_font_lacks_are_told_once(tmp_path: Path) -> None:
    text = (
        "machine: {devices: {プロセッサ: {kind: gpu}}}\n"
        "workload: {ops: {🐙: {duration: 1us}}}\npolicy: in-order\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.simplefilter("ignore", DeprecationWarning)  # of other packages; Python shows none either
        done = sim("run", write(tmp_path, text), "--gantt", tmp_path / "gantt.png")
    assert done.exit_code == 0
    said = [line for line in done.stderr.splitlines() if "warning" in line]
    assert len(said) == 1
    assert "has no glyph for" in said[0]


@pytest.mark.parametrize(
    ("verb", "told"), [("plot", "sim run SCENARIO --gantt"), ("polices", "Did you mean 'policies'")]
)
def test_an_unknown_verb_is_told_what_is_there(verb: str, told: str) -> None:
    """`plot` looks like `import` to difflib, and is an option of `run`."""
    result = sim(verb, "x.yaml")
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())
    assert "import" not in result.stderr
