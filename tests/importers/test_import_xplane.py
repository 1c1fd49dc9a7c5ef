"""Recordings of XLA's profiler: planes of events that become the graph that a profiler's trace becomes."""

from __future__ import annotations

import gzip
import json
import random as dice
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from cuda_programs import Host, Step, gpu, host, ran
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from test_import_kineto_what_if import STEPS, starts_and_ends, tasks_of

from scenarios.importers import load_graph
from scenarios.importers.kineto.kineto import load
from scenarios.importers.kineto.kineto_host import APART_NS
from scenarios.recorded.setup import run_recorded
from sim.base.errors import InputError

US = 1000
HERE = Path(__file__).parent.parent / "data"
JAX = HERE / "jax_cpu.xplane.pb.gz"
"""Two steps of a scan and its gradient, recorded by JAX 0.10 on a CPU."""


def message(*fields: tuple[int, int | bytes | str]) -> bytes:
    """Return a protobuf message of these fields."""
    written = b""
    for number, value in fields:
        if isinstance(value, int):
            written += _varint(number << 3) + _varint(value % 2**64)
        else:
            text = value.encode() if isinstance(value, str) else value
            written += _varint(number << 3 | 2) + _varint(len(text)) + text
    return written


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


Event = tuple[str, int, int, Mapping[str, int | str]]
"""Name, start and duration in ns, what is noted about it."""


def plane(name: str, lines: Mapping[str, Iterable[Event]], noted: Mapping[str, str] | None = None) -> bytes:
    """Return a plane; of texts every second is written by its number, as names of stats are."""
    names: dict[str, int] = {}
    stats: dict[str, int] = {}

    def stat(key: str, value: int | str) -> bytes:
        number = stats.setdefault(key, len(stats) + 1)
        if isinstance(value, int):
            return message((1, number), (3 + number % 2, value))
        if number % 2:
            return message((1, number), (7, stats.setdefault(value, len(stats) + 1)))
        return message((1, number), (5, value))

    rows = []
    for n, (line, events) in enumerate(lines.items()):
        written = [
            message(
                (1, names.setdefault(called, len(names) + 1)),
                (2, 1000 * (start - 500)),
                (3, 1000 * duration),
                *((4, stat(*one)) for one in said.items()),
            )
            for called, start, duration, said in events
        ]
        rows.append(message((1, n), (2, line), (3, 500), *((4, each) for each in written)))
    own = [(6, stat(*one)) for one in (noted or {}).items()]
    tables = [
        *((4, message((1, n), (2, message((1, n), (2, each))))) for each, n in names.items()),
        *((5, message((1, n), (2, message((1, n), (2, each))))) for each, n in stats.items()),
    ]
    return message((1, 3), (2, name), *((3, row) for row in rows), *tables, *own)


def written(path: Path, *planes: bytes) -> Path:
    path.write_bytes(b"".join(message((1, each)) for each in planes))
    return path


DETAILS = "regs:32 static_shared:0 dynamic_shared:64 grid:8,1,1 block:256,1,1 occ_pct:100"
COPIED = "kind_src:device kind_dst:pageable size:8 dest:0 async:1"


def planes_of(events: Sequence[dict[str, Any]]) -> list[bytes]:
    """Return the planes of a profiler's events: the host's calls are called as what they launch."""
    tasks = {each["args"]["correlation"]: each for each in events if each["cat"] in ("kernel", "gpu_memcpy")}
    streams: dict[str, list[Event]] = {}
    threads: dict[str, list[Event]] = {}
    for event in events:
        call, name = event["args"]["correlation"], event["name"]
        noted: dict[str, int | str] = {"correlation_id": call}
        task = tasks.get(call)
        if task is not None and task["cat"] == "gpu_memcpy":
            name, noted = "MemcpyD2H", noted | {"memcpy_details": COPIED}
        elif task is not None:
            name, noted = task["name"], noted | {"kernel_details": DETAILS}
        row = name, US * event["ts"] + 500, US * event["dur"], noted
        if event is task:
            streams.setdefault(f"Stream #{event['args']['stream']}(Compute)", []).append(row)
        elif event["cat"] == "cuda_runtime":
            threads.setdefault(f"thread/{event['tid']}", []).append(row)
    ops = {"TensorFlow Ops": [("not a task", 500, 10**9, {})]}
    device = plane("/device:GPU:0", streams | ops, {"device_type_string": "NVIDIA A100"})
    return [plane("/host:CPU", threads), device, plane("Task Environment", {})]


# -- recordings and programs ------------------------------------------------------------------------


def test_a_recording_comes_out_again_as_xla_itself_reads_it() -> None:
    """Every HLO op starts when the profiler's own JSON of the recording says, and lasts as long."""
    rows = json.loads(gzip.decompress((HERE / "jax_cpu.trace.json.gz").read_bytes()))["traceEvents"]
    ops = [
        (round(1000 * row["ts"]), round(1000 * row["dur"]), row["name"], row["tid"])
        for row in rows
        if "hlo_op" in row.get("args", {})
    ]

    def lies_in(one: tuple[int, int, str, int], other: tuple[int, int, str, int]) -> bool:
        within = other[0] <= one[0] and sum(one[:2]) <= sum(other[:2])
        return within and one[3] == other[3] and one is not other

    inner = sorted(op[:3] for op in ops if not any(lies_in(other, op) for other in ops))
    assert (len(ops), len(inner)) == (158, 154)
    graph = load_graph(JAX)
    trace = run_recorded(graph)
    rows_of = (trace.tasks[key].tolist() for key in ("op", "start_ns", "end_ns"))
    found = sorted(
        (start + inner[0][0], end - start, graph.op_names[op].rpartition(".")[0])
        for op, start, end in zip(*rows_of, strict=True)
        if graph.kinds[graph.kind_code[op]] != "delay"
    )
    assert found == inner
    assert {graph.pins[code] for code in graph.pin_code.tolist()} == {"cpu"}


@examples(40)
@given(st.lists(STEPS, max_size=30), st.randoms(use_true_random=False))
@pytest.mark.filterwarnings("ignore:.*do not say for which stream or event they wait")
def test_the_recording_of_a_drawn_program_comes_out_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], random: Any
) -> None:
    """Times are whole `unit`s: by less the clocks of host and GPU may be apart, and order tells nothing."""
    unit = APART_NS // US + 1
    steps = [("work", unit * step[1]) if step[0] == "work" else step for step in steps]
    program = [("launch", 7), *steps, ("launch", 7)]
    durations = [unit * random.randint(1, 300) for _ in program]
    was = ran(program, durations, clock=1000, costs=Host(*(unit * cost for cost in Host())))
    path = tmp_path_factory.mktemp("drawn") / "host.xplane.pb"
    graph = load(written(path, *planes_of(was.events)))
    start, _ = starts_and_ends(graph)
    assert {task: start[graph.op_names[op]] for op, task in tasks_of(graph, was).items()} == {
        task: US * at for task, at in enumerate(was.start)
    }


def test_what_is_noted_of_a_task_is_known(tmp_path: Path) -> None:
    launched: dict[str, int | str] = {"correlation_id": 1, "kernel_details": DETAILS}
    noted = launched | {"hlo_op": "fusion.3", "tf_op": "jit(f)/dot_general", "hlo_module": "jit_f"}
    copied: dict[str, int | str] = {"correlation_id": 2, "memcpy_details": COPIED}
    wild = {
        "correlation_id": 3,
        "kernel_details": "regs:687194767361 grid:2256,139757090178736,1 block:0,0,0",
    }
    host_plane = plane(
        "/host:CPU",
        {
            "python/1": [
                ("PjitFunction(f)", 1000, 9000, {}),
                ("$builtins len", 1500, 3000, {}),
                ("gemm", 2000, 1000, launched),
                ("MemcpyD2H", 4000, 9000, copied),
                ("fill", 14_000, 500, wild),
            ]
        },
    )
    device = plane(
        "/device:GPU:2",
        {
            "Stream #7(Compute)": [("gemm", 4000, 5000, noted), ("fill", 15_000, 100, wild)],
            "Stream #9(MemcpyD2H)": [("MemcpyD2H", 10_000, 2000, copied)],
        },
        {"device_type_string": "NVIDIA H100"},
    )
    graph = load(written(tmp_path / "a.xplane.pb", host_plane, device))
    of = {name: graph.attributes[op] for op, name in enumerate(graph.op_names)}
    gemm = of["gemm.0"]
    assert [gemm[key] for key in ("operator", "module", "grid", "registers", "shared_memory", "stream")] == [
        "fusion.3", "jit(f)/dot_general", [8, 1, 1], 32, 64, 7,
    ]  # fmt: skip
    assert "grid" not in of["fill.2"]
    assert of["launch.0"]["operator"] == "PjitFunction(f)"
    copy = graph.index("DtoH.1")
    assert (int(graph.bytes_read[copy]), of["DtoH.1"]["kernel"]) == (8, "Memcpy DtoH (Device -> Pageable)")
    assert "synchronize.1" in of
    assert graph.device_facts["gpu"]["description"] == "NVIDIA H100"


def test_ops_of_a_tpu_run_one_after_the_other(tmp_path: Path) -> None:
    """Of a loop only what runs in it counts; steps and modules are no ops."""
    ops: list[Event] = [
        ("while.1", 1000, 900, {}),
        ("fusion.2", 1000, 400, {}),
        ("all-reduce.3", 1450, 450, {}),
    ]
    lines = {
        "Steps": [("0", 900, 2000, {})],
        "XLA Ops": [*ops, ("all-reduce.3", 1450, 450, {}), ("copy.4", 2000, 100, {})],
    }
    path = written(
        tmp_path / "host.xplane.pb",
        plane("/device:TPU:0", lines, {"device_type_string": "TPU v5 lite"}),
        plane("/host:CPU", {"main": [("call", 0, 5000, {})]}),
    )
    graph = load(path)
    tasks = run_recorded(graph).tasks
    start = {graph.op_names[op]: at for op, at in zip(tasks["op"], tasks["start_ns"], strict=True)}
    assert {name: at for name, at in start.items() if "delay" not in name} == {
        "fusion.2.0": 0, "all-reduce.3.1": 450, "copy.4.2": 1000,
    }  # fmt: skip
    assert {graph.pins[code] for code in graph.pin_code.tolist()} == {"tpu"}
    shown = sim("run", path)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "tpu" in shown.stdout


def test_a_folder_as_the_profiler_writes_it_is_read(tmp_path: Path) -> None:
    """Beside the planes it holds the same as JSON, which tells less."""
    kernels = [host("cudaLaunchKernel", 1, 0, 5), gpu("a", 1, 5, 100)]
    written(tmp_path / "host.xplane.pb", *planes_of(kernels))
    (tmp_path / "host.trace.json.gz").write_bytes((HERE / "jax_cpu.trace.json.gz").read_bytes())
    shown = sim("run", tmp_path)
    assert (shown.exit_code, shown.stderr) == (0, "")
    alone = sim("run", tmp_path / "host.trace.json.gz")
    assert alone.exit_code == 2
    assert "read the .xplane.pb that their profiler writes beside it" in alone.stderr


WRONG = {
    "no device": ([plane("/host:CPU", {"main": [("call", 500, 10, {})]})], "no op of a GPU, TPU or CPU"),
    "before the beginning": (
        [plane("/device:GPU:0", {"Stream #1": [("a", -900, 10, {"correlation_id": 1})]})],
        "a: from -900000 to -890000 ps is no span of time",
    ),
    "cut": ([plane("/device:TPU:0", {"XLA Ops": [("a", 1, 2, {})]})[:-3]], "ends in the middle"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_files_are_told_in_a_line(what: str, tmp_path: Path) -> None:
    planes, said = WRONG[what]
    path = written(tmp_path / "host.xplane.pb", *planes)
    done = sim("run", path)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert said in done.stderr


@examples(60)
@given(st.integers(0, 2**31), st.integers(1, 12))
def test_bytes_that_changed_are_read_or_told(
    tmp_path_factory: pytest.TempPathFactory, seed: int, changes: int
) -> None:
    drawn = dice.Random(seed)
    kernels = [host("cudaLaunchKernel", 1, 0, 5), gpu("a", 1, 5, 100), host("cudaMemcpyAsync", 2, 6, 200)]
    content = bytearray(b"".join(message((1, each)) for each in planes_of(kernels)))
    for _ in range(changes):
        content[drawn.randrange(40, len(content))] = drawn.randrange(256)
    path = tmp_path_factory.mktemp("damaged") / "host.xplane.pb"
    path.write_bytes(content)
    with suppress(InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(path)
