"""Every block of code in docs/ is whole: it runs as pasted, beside the reader's files that it names."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cli_runner import sim
from cuda_programs import ran
from scenario_texts import write

from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.shipped import find_shipped, write_scenario
from sim.base import plugins

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = [
    (page.name, language, code)
    for page in sorted(DOCS.glob("*.md"))
    for language, code in re.findall(
        r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
]


def of(language: str) -> list[Any]:
    """Return the blocks in a language, named by page and number."""
    found = [(page, code) for page, of_block, code in BLOCKS if of_block == language]
    return [pytest.param(page, code, id=f"{page}-{k}") for k, (page, code) in enumerate(found)]


@pytest.fixture
def accelerator() -> Iterator[None]:
    """Install the package that extending.md describes, as its TOML says."""
    code = {language: code for page, language, code in BLOCKS if page == "extending.md"}
    module = ModuleType("my_accelerator")
    exec(code["python"], module.__dict__)
    sys.modules["my_accelerator"] = module
    points = tomllib.loads(code["toml"])["project"]["entry-points"]
    named = [(group, name, target) for group, entries in points.items() for name, target in entries.items()]
    for group, name, target in named:
        plugins.register(group, name, getattr(module, target.partition(":")[2]))
    yield
    for group, name, _ in named:
        plugins.unregister(group, name)
    del sys.modules["my_accelerator"]


def files_of_the_reader(folder: Path, code: str) -> None:
    """Write the model and the trace that blocks name."""
    if "model.onnx" in code:
        onnx = pytest.importorskip("onnx")
        onnx.save(_decoder(onnx), folder / "model.onnx")
    if "resnet50.onnx" in code:
        light = Path(pytest.importorskip("onnx").__file__).parent / "backend" / "test" / "data" / "light"
        shutil.copy(light / "light_resnet50.onnx", folder / "resnet50.onnx")
    if "trace.json.gz" in code:
        with gzip.open(folder / "trace.json.gz", "wt") as file:
            json.dump(_trace(), file)
    if "et.json" in code:
        (folder / "et.json").write_text(json.dumps(_execution_graph()))
    if "rank0.json.gz" in code:
        group = {"Process Group Name": "1", "Group size": 4, "In msg nelems": 8, "dtype": "Float"}
        rank = _trace()
        rank["traceEvents"][-1] |= {"name": "ncclDevKernel_AllReduce"}
        rank["traceEvents"][-1]["args"] |= group
        with gzip.open(folder / "rank0.json.gz", "wt") as file:
            json.dump(rank, file)
    if "kineto: traces" in code:
        (folder / "traces").mkdir()
        for rank in range(8):
            run = ran([("work", rank), ("launch", 7), ("collective", 20)], [10, 0], ends=[30])
            info = {"rank": rank, "world_size": 8}
            content = json.dumps({"distributedInfo": info, "traceEvents": run.events})
            (folder / "traces" / f"rank{rank}.json").write_text(content)


def _decoder(onnx: ModuleType) -> object:
    """A Loop `decode` whose count is an input, and in its body an If `early` on another input."""
    helper, kinds = onnx.helper, onnx.TensorProto
    info = helper.make_tensor_value_info
    x, y, v, v2 = (info(name, kinds.FLOAT, [4, 4]) for name in ("x", "y", "v", "v2"))
    n, i = (info(name, kinds.INT64, []) for name in ("n", "i"))
    c, go = (info(name, kinds.BOOL, []) for name in ("c", "go"))
    branch = {
        f"{word}_branch": helper.make_graph(
            [helper.make_node("Relu", ["v"], ["z"])], word, [], [info("z", kinds.FLOAT, [4, 4])]
        )
        for word in ("then", "else")
    }
    early = helper.make_node("If", ["c"], ["v2"], name="early", **branch)
    body = helper.make_graph([early], "body", [i, go, v], [go, v2])
    decode = helper.make_node("Loop", ["n", "", "x"], ["y"], name="decode", body=body)
    return helper.make_model(
        helper.make_graph([decode], "decoder", [x, n, c], [y]), opset_imports=[helper.make_opsetid("", 20)]
    )


def _execution_graph() -> dict[str, Any]:
    """What the operators of `_trace` were given and returned."""
    sides = {"values": [[1, 2, 0, 16, 4, "cuda:0"]], "shapes": [[4, 4]], "types": ["Tensor(float)"]}
    attrs = [{"name": "rf_id", "value": 1}, {"name": "op_schema", "value": "aten::relu(Tensor a) -> Tensor"}]
    node = {"id": 1, "ctrl_deps": 1, "name": "aten::relu", "inputs": sides, "outputs": sides, "attrs": attrs}
    return {"schema": "1.1.0-chakra.0.0.4", "nodes": [node]}


def _trace() -> dict[str, Any]:
    """Two kernels on two streams, launched one after the other inside an operator."""
    events = []
    for k, stream in enumerate((7, 20)):
        told = {"correlation": k, "External id": k}
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 10 * k, "dur": 5}
        kernel = {"cat": "kernel", "name": "gemm", "pid": 0, "tid": stream, "ts": 20 + 10 * k, "dur": 30}
        events.append({"ph": "X", "pid": 9, "args": told, **launch})
        events.append({"ph": "X", "args": {**told, "stream": stream, "device": 0}, **kernel})
    operator = {"cat": "cpu_op", "name": "aten::relu", "pid": 9, "tid": 1, "args": {"External id": 1}}
    events.insert(0, {"ph": "X", "ts": 0, "dur": 15, **operator})
    return {"schemaVersion": 1, "traceEvents": events}


@pytest.mark.usefixtures("accelerator")
@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
@pytest.mark.parametrize(("page", "code"), of("yaml"))
def test_a_scenario_runs_as_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, code: str
) -> None:
    files_of_the_reader(tmp_path, code)
    monkeypatch.setattr("scenarios.run.execute.run_case", partial(run_case, check=True))
    path = write(tmp_path, code)
    result = sim("run", path)
    assert result.exit_code == 0, f"{page}: {result.output}"
    assert ("all as expected" in result.stdout) == ("expect:" in code)
    for case in load_scenario(path).cases() if "compare:" in code else ():
        run_case(case, check=True)


@pytest.mark.parametrize(("page", "code"), of("python"))
def test_python_runs_as_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, code: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for of_page, language, other in BLOCKS:  # those that say of which file they are
        if of_page == page and language == "python" and (name := re.match(r"# (\w+\.py)\n", other)):
            (tmp_path / name[1]).write_text(other)
    exec(compile(code, page, "exec"), {"__name__": page})


@pytest.mark.parametrize(("page", "code"), of("console"))
def test_a_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, code: str
) -> None:
    """A line of dots stands for any lines; scenarios are blocks of the page, or copies of those that ship."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scenarios.cli.running._show_progress", lambda *told: None)  # no times
    command, _, shown = code.removeprefix("$ sim ").partition("\n")
    words = shlex.split(command)
    if words[0] != "new":
        for name in (word.removesuffix(".yaml") for word in words if word.endswith(".yaml")):
            begin = f"# {name}.yaml\n"
            own = [block for of_page, _, block in BLOCKS if of_page == page and block.startswith(begin)]
            if own:
                files_of_the_reader(tmp_path, own[0])
                Path(f"{name}.yaml").write_text(own[0], encoding="utf-8")
                continue
            one = find_shipped(_TUTORIAL.get(name, name))
            write_scenario(Path(f"{name}.yaml"), one.path.read_text(encoding="utf-8"))
    found = sim(*words)
    lines = [r"(?:.*\n)*?" if line == "..." else re.escape(f"{line}\n") for line in shown.splitlines()]
    told = re.sub(r"^simulating .*\n", "", found.stdout or found.stderr)  # where it takes a while
    assert re.fullmatch("".join(lines), told), f"{page}: {found.output}"


_TUTORIAL = {"first": "synchronous"}
"""What the tutorial calls its copy of an example."""


def test_every_block_says_its_language() -> None:
    assert {language for _, language, _ in BLOCKS} <= {"yaml", "python", "toml", "console"}
    assert len(BLOCKS) > 15


def test_every_file_of_the_source_that_a_page_names_is_there() -> None:
    """As `sim/engine/engine.py`, or a folder of it."""
    root, rooms = DOCS.parent, "sim|devices|policies|scenarios|studies"
    path = re.compile(rf"`((?:{rooms})/[a-z_0-9/]+(?:\.\w+)?)`")
    pages = [
        *DOCS.glob("*.md"),
        *root.glob("*.md"),
        root / "benchmarks/README.md",
        root / "validation/README.md",
    ]
    named = {(page.name, found) for page in pages for found in path.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 50
    assert not sorted(
        each for each in named if not ((root / each[1]).exists() or (root / f"{each[1]}.py").exists())
    )
