"""Recordings of Nsight Systems: SQLite tables that become the graph that a profiler's trace becomes."""

from __future__ import annotations

import gzip
import os
import random as dice
import sqlite3
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from cuda_programs import Step, gpu, host, ran
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import recorded
from test_import_kineto_what_if import STEPS, starts_and_ends, tasks_of

from scenarios.importers import load_graph
from scenarios.importers.kineto.kineto import load
from scenarios.recorded.setup import run_recorded
from sim.base.errors import InputError
from studies.recordings import replay

US = 1000
PID = 4242
_TASK = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, streamId INTEGER, correlationId INTEGER"
)
_SHAPE = (
    "gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, staticSharedMemory, dynamicSharedMemory"
)
OLDER = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_TASK}, demangledName INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_TASK}, bytes, copyKind, srcKind, dstKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    "NVTX_EVENTS": "start, end, eventType, text, globalTid",
}
"""As of 2019: nothing about waits, names of ranges in their table only."""
NEWER = {
    **OLDER,
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_TASK}, contextId, globalPid, demangledName, {_SHAPE}, graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_TASK}, globalPid, bytes, copyKind, srcKind, dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_TASK}, globalPid, bytes",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_TASK}, globalPid, graphId, graphExecId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "deviceId, contextId, streamId, correlationId, syncType, eventId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId, contextId, streamId, correlationId, eventId",
    "NVTX_EVENTS": "start, end, eventType, text, textId, globalTid",
    "MPI_RANKS": "globalTid, rank",
    "TARGET_INFO_GPU": "id, name, cuDevice",
}
NEWEST = {
    **NEWER,
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": NEWER["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"] + ", eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": NEWER["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] + ", eventSyncId",
}
Schema = dict[str, str]
Rows = dict[str, list[dict[str, Any]]]


def rows_of(events: Sequence[dict[str, Any]], records: dict[int, tuple[int, int]] | None = None) -> Rows:
    """Return the rows of a profiler's events; of `records`, event and stream by call, the waits as well."""
    rows: Rows = {table: [] for table in NEWEST}
    names: dict[str, int] = {}
    place: dict[str, Any]
    of = {"pid": PID << 24, "tid": PID << 24}
    for event in events:
        name, args, start = event["name"], event["args"], US * event["ts"]
        span = {"start": start, "end": start + US * event["dur"], "correlationId": args["correlation"]}
        number = names.setdefault(name, len(names) + 1)
        place = {"deviceId": args.get("device", 0), "streamId": args.get("stream"), "contextId": 1}
        if event["cat"] == "cuda_runtime":
            call = {"globalTid": of["tid"] + event["tid"], "nameId": number, "eventClass": 0}
            rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(span | call)
        elif event["cat"] == "gpu_memcpy":
            copy = {"bytes": 8, "copyKind": 2, "srcKind": 2, "dstKind": 0, "globalPid": of["pid"]}
            rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append(span | place | copy)
        elif event["cat"] == "kernel":
            kernel = {"demangledName": number, "globalPid": of["pid"]}
            rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(span | place | kernel)
        elif records is not None:
            kind = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3}[name]
            record = args.get("wait_on_cuda_event_record_corr_id")
            on = {"eventId": records[record][0], "eventSyncId": record} if record is not None else {}
            place["streamId"] %= 2**32
            rows["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"].append(span | place | on | {"syncType": kind})
    for call, (event, stream) in (records or {}).items():
        own = {"deviceId": 0, "contextId": 1, "streamId": stream, "eventId": event}
        rows["CUPTI_ACTIVITY_KIND_CUDA_EVENT"].append(own | {"correlationId": call, "eventSyncId": call})
    rows["StringIds"] = [{"id": number, "value": name} for name, number in names.items()]
    return rows


def records_of(program: Sequence[Step]) -> dict[int, tuple[int, int]]:
    """Return event and stream of each call that records one, by correlation."""
    found: dict[int, tuple[int, int]] = {}
    call = 0
    for kind, *where in program:
        if kind == "work" or (kind in ("wait", "sync event") and where[-1] not in dict(found.values())):
            continue
        call += 1
        if kind == "record":
            found[call] = where[0], where[1]
    return found


def written(path: Path, rows: Rows, schema: Schema = NEWER) -> Path:
    """Write the tables of a schema that have rows; what they have no column for is left out."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        for table, columns in schema.items():
            if not rows.get(table) and table != "StringIds":
                continue
            database.execute(f"CREATE TABLE {table} ({columns})")
            names = [column.split()[0] for column in columns.split(", ")]
            values = [[row.get(name) for name in names] for row in rows.get(table, [])]
            database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", values)
        database.commit()
    return path


# -- recordings and programs ------------------------------------------------------------------------


def test_a_recording_comes_out_again() -> None:
    """MPI and CUDA on an A100, exported in 2023: its end, the order of starts, its ranges and its GPU."""
    path = recorded("nsys/a100_saxpy_mpi.sqlite")
    graph = load_graph(path)
    found = replay(graph, run_recorded(graph))
    assert (found.tasks, found.tau) == (20, 1.0)
    assert abs(found.off) < 1e-6
    assert graph.device_facts["gpu"]["description"] == "NVIDIA A100-SXM4-40GB"
    kernel = graph.attributes[graph.index("saxpy.2")]
    assert (kernel["module"], kernel["grid"], kernel["registers"]) == ("saxpy", [2, 1, 1], 26)
    assert graph.attributes[graph.index("HtoD.0")]["kernel"] == "Memcpy HtoD (Pageable -> Device)"
    done = sim("run", path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "makespan 1.707 s" in done.stdout


@pytest.mark.parametrize("schema", [NEWER, NEWEST], ids=["eventId", "eventSyncId"])
@examples(40)
@given(st.lists(STEPS, max_size=30), st.randoms(use_true_random=False))
def test_the_recording_of_a_run_tells_any_other_run_of_the_program(
    tmp_path_factory: pytest.TempPathFactory, schema: Schema, steps: list[Step], random: Any
) -> None:
    """Recorded with some durations, simulated with others: every task starts when the program starts it."""
    program = [("launch", 7), *steps, ("launch", 7)]
    one, two = ([random.randint(1, 300) for _ in program] for _ in range(2))
    was = ran(program, one, clock=1000)
    path = tmp_path_factory.mktemp("drawn") / "report.sqlite"
    graph = load(written(path, rows_of(was.events, records_of(program)), schema))
    task_of = tasks_of(graph, was)
    for durations in (one, two):
        ns = graph.duration_ns.copy()
        for op, task in task_of.items():
            ns[op] = US * durations[task]
        start, _ = starts_and_ends(replace(graph, duration_ns=ns))
        run = ran(program, durations)
        assert [start[graph.op_names[op]] for op in task_of] == [US * run.start[i] for i in task_of.values()]


@examples(40)
@given(st.lists(STEPS, max_size=30), st.randoms(use_true_random=False))
@pytest.mark.filterwarnings("ignore:.*do not say for which stream or event they wait")
def test_an_older_recording_comes_out_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], random: Any
) -> None:
    """Waits have no table there: they are inferred from the calls."""
    program = [("launch", 7), *steps, ("launch", 7)]
    was = ran(program, [random.randint(1, 300) for _ in program], clock=1000)
    path = tmp_path_factory.mktemp("drawn") / "report.sqlite"
    graph = load(written(path, rows_of(was.events), OLDER))
    start, _ = starts_and_ends(graph)
    assert {task: start[graph.op_names[op]] for op, task in tasks_of(graph, was).items()} == {
        task: US * at for task, at in enumerate(was.start)
    }


TWO_THREADS = [
    host("cudaLaunchKernel_v7000", 1, 0, 5),
    gpu("a", 1, 5, 100),
    host("cudaLaunchKernel_ptsz", 2, 3, 5, tid=2),
    gpu("b", 2, 8, 50, stream=20),
    host("cudaDeviceSynchronize_v3020", 3, 5, 103),
    host("cudaDeviceSynchronize", 3, 6, 101),
    host("cudaGraphLaunch_v10000", 4, 110, 5),
    gpu("c", 4, 115, 10),
    gpu("d", 4, 125, 10),
]
"""Two threads, a call that stands there twice, as it is with a backtrace, and the kernels of a CUDA graph."""


@pytest.mark.parametrize("schema", [OLDER, NEWEST])
def test_threads_ranges_and_graphs(tmp_path: Path, schema: Schema) -> None:
    rows = rows_of(TWO_THREADS)
    rows["NVTX_EVENTS"] = [
        {"start": 0, "end": 200_000, "eventType": 59, "text": "step", "globalTid": (PID << 24) + 1},
        {"start": 109_000, "end": 120_000, "eventType": 59, "text": "replay", "globalTid": (PID << 24) + 1},
        {"start": 1_000, "end": None, "eventType": 34, "text": "a mark", "globalTid": (PID << 24) + 2},
        {"start": 0, "end": 200_000, "eventType": 59, "text": "not ours", "globalTid": (9 << 24) + 1},
    ]
    graph = load(written(tmp_path / "report.sqlite", rows, schema))
    start, end = starts_and_ends(graph)
    assert [start[name] for name in ("a.0", "b.1", "c.2", "d.3")] == [5000, 8000, 115_000, 125_000]
    own = {name: graph.attributes[graph.index(name)] for name in graph.op_names}
    assert [own[f"launch.{n}"]["thread"] for n in (0, 1, 3)] == ["thread0", "thread1", "thread0"]
    assert own["launch.0"]["call"] == "cudaLaunchKernel"
    assert [own[name].get("module") for name in ("a.0", "b.1", "d.3")] == ["step", None, "step/replay"]
    assert sum(name.startswith("synchronize") for name in graph.op_names) == 1
    assert max(end.values()) == run_recorded(graph).makespan_ns == 135_000


def test_fills_and_graphs_that_were_recorded_as_a_whole(tmp_path: Path) -> None:
    rows = rows_of([host("cudaMemsetAsync", 1, 0, 5), host("cudaGraphLaunch", 2, 5, 5), *TWO_THREADS[7:8]])
    place = {"deviceId": 0, "streamId": 7, "globalPid": PID << 24}
    fill = {"start": 5000, "end": 6000, "correlationId": 1, "bytes": 64, **place}
    whole = {"start": 10_000, "end": 90_000, "correlationId": 2, "graphId": 3, **place}
    rows |= {"CUPTI_ACTIVITY_KIND_MEMSET": [fill], "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [whole]}
    rows["CUPTI_ACTIVITY_KIND_KERNEL"] = []
    graph = load(written(tmp_path / "report.sqlite", rows))
    tasks = [op for op, own in sorted(graph.attributes.items()) if "kernel" in own]
    assert [graph.attributes[op]["kernel"] for op in tasks] == ["Memset (Device)", "CUDA graph 3"]
    assert [graph.kind(op) for op in tasks] == ["fill", "kernel"]
    assert graph.duration_ns[tasks].tolist() == [1000, 80_000]
    assert int(graph.bytes_written[tasks[0]]) == 64


def test_unified_memory_that_moves_is_left_out(tmp_path: Path) -> None:
    rows = rows_of(TWO_THREADS)
    move = {"start": 20_000, "end": 30_000, "deviceId": 0, "streamId": 13, "correlationId": 0, "bytes": 4096}
    rows["CUPTI_ACTIVITY_KIND_MEMCPY"] = [move | {"copyKind": 11, "srcKind": 4, "dstKind": 4}]
    path = written(tmp_path / "report.sqlite", rows)
    with pytest.warns(UserWarning, match=r"report.sqlite: 1 move\(s\) of unified memory are left out"):
        graph = load(path)
    assert "copy" not in graph.kinds


def test_a_packed_report_is_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path / "report.sqlite", rows_of(TWO_THREADS))
    packed = tmp_path / "report.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    first, second = (sim("run", each) for each in (plain, packed))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout.partition("\n")[2] == second.stdout.partition("\n")[2]


def test_tasks_without_times_are_left_out(tmp_path: Path) -> None:
    """CUPTI writes zeros where it has none."""
    rows = rows_of(TWO_THREADS)
    all_of_it = load(written(tmp_path / "all.sqlite", rows))
    rows[KERNEL] = [{**rows[KERNEL][0], "start": 0, "end": 0}, *rows[KERNEL][1:]]
    with pytest.warns(UserWarning, match="1 task.s. of .*KERNEL are left out: their times were not recorded"):
        graph = load(written(tmp_path / "report.sqlite", rows))
    assert sum("kernel" in of for of in graph.attributes.values()) == len(rows[KERNEL]) - 1
    assert max(graph.attribute("recorded_start_ns").values()) <= max(
        all_of_it.attribute("recorded_start_ns").values()
    )


def test_a_report_that_was_not_exported(tmp_path: Path) -> None:
    (tmp_path / "report.nsys-rep").write_bytes(b"NVIDIA")
    done = sim("run", tmp_path / "report.nsys-rep")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "`nsys export --type sqlite` writes what is" in done.stderr


@pytest.mark.parametrize("named", [True, False], ids=["ranks of MPI", "by their order"])
def test_ranks_in_a_folder(tmp_path: Path, named: bool) -> None:
    program = [("launch", 7), ("collective", 20), ("launch", 20)]
    for rank in range(2):
        run = ran(program, [50, 0, 10 + rank], clock=300 * rank, begin=20 * rank, ends=[90])
        rows = rows_of(run.events)
        rows["MPI_RANKS"] = [{"globalTid": PID << 24, "rank": 1 - rank}] if named else []
        written(tmp_path / f"report{rank + 1}.sqlite", rows)
    done = sim("run", tmp_path, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    graph = load(tmp_path)
    assert sorted(graph.pins) == ["cpu0", "cpu1", "gpu0", "gpu1"]
    longer = graph.attributes[graph.index(f"rank{int(not named)}/kernel.2")]
    assert graph.duration_ns[graph.index(f"rank{int(not named)}/kernel.2")] == 11_000
    assert longer["stream"] == 20
    os.remove(tmp_path / "report2.sqlite")
    if named:
        with pytest.raises(InputError, match="missing: 0"):
            load(tmp_path)


def together(first: Rows, second: Rows, *, gpu_of_second: int = 1) -> Rows:
    """Return the rows of one report of two processes, the second of which has another number and GPU."""
    moved, names = 777 - PID, len(first["StringIds"])
    both: Rows = {table: list(rows) for table, rows in first.items()}
    for table, rows in second.items():
        for row in rows:
            new = dict(row)
            for key in new:
                if key in ("globalPid", "globalTid"):
                    new[key] += moved << 24
                elif key in ("nameId", "demangledName", "id"):
                    new[key] += names
                elif key == "deviceId":
                    new[key] = gpu_of_second
            both.setdefault(table, []).append(new)
    return both


WAITS = ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT")
OF_PROCESSES = {**NEWEST, **{table: NEWEST[table] + ", globalPid" for table in WAITS}}


@examples(40)
@given(st.lists(STEPS, max_size=20), st.lists(STEPS, max_size=20), st.randoms(use_true_random=False))
@pytest.mark.filterwarnings("ignore:.*2 ranks share no collective of NCCL")
def test_processes_of_one_report_are_ranks(
    tmp_path_factory: pytest.TempPathFactory, first: list[Step], second: list[Step], random: Any
) -> None:
    """Each runs as by itself: numbers of calls, events and streams of one are not taken for another's."""
    folder = tmp_path_factory.mktemp("drawn")
    rows, alone = list[Rows](), list[dict[str, int]]()
    for rank, steps in enumerate((first, second)):
        program = [("launch", 7), *steps, ("launch", 7)]
        run = ran(program, [random.randint(1, 300) for _ in program], clock=1000)
        mine = rows_of(run.events, records_of(program))
        mine |= {table: [row | {"globalPid": PID << 24} for row in mine[table]] for table in WAITS}
        rows.append(mine)
        alone.append(starts_and_ends(load(written(folder / f"{rank}.sqlite", mine, OF_PROCESSES)))[0])
    both = load(written(folder / "report.sqlite", together(*rows), OF_PROCESSES))
    assert (both.name, {pin[:3] for pin in both.pins}) == ("report", {"cpu", "gpu"})
    start, _ = starts_and_ends(both)
    for rank, own in enumerate(alone):
        assert {name: start[f"rank{rank}/{name}"] for name in own} == own


@pytest.mark.filterwarnings("default:.*share no collective of NCCL")
def test_processes_that_meet_nowhere_are_told(tmp_path: Path) -> None:
    rows = rows_of(ran([("launch", 7)], [50]).events)
    done = sim("run", written(tmp_path / "report.sqlite", together(rows, rows)))
    assert done.exit_code == 0
    assert "2 ranks share no collective of NCCL: they run beside one another" in done.stderr


def test_processes_of_one_report_share_a_clock(tmp_path: Path) -> None:
    """A collective that ends 100 us later on one rank, by the same clock, is no shift of clocks."""
    program = [("launch", 7), ("collective", 20), ("launch", 20)]
    runs = [ran(program, [50, 0, 10], clock=300, begin=20 * rank, ends=[90 + 10 * rank]) for rank in (0, 1)]
    report = written(tmp_path / "report.sqlite", together(*(rows_of(run.events) for run in runs)))
    graph = load(report)
    at = {name: graph.attributes[graph.index(name)]["recorded_start_ns"] for name in graph.op_names}
    assert at["rank1/kernel.2"] - at["rank0/kernel.2"] == US * (runs[1].start[2] - runs[0].start[2])


# -- what is wrong ----------------------------------------------------------------------------------

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


def changed(table: str, **values: Any) -> Callable[[Path], object]:
    """Return what writes the recording with another second row of a table."""

    def write(path: Path) -> None:
        rows = rows_of(TWO_THREADS)
        rows[table][1] |= values
        written(path, rows)

    return write


def after(*statements: str) -> Callable[[Path], object]:
    """Return what writes the recording, and changes it."""

    def write(path: Path) -> None:
        with closing(sqlite3.connect(written(path, rows_of(TWO_THREADS)))) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    return write


def of_nobody(path: Path) -> None:
    """Let two processes launch, in a recording that does not say whose tasks are whose."""
    thread = (7 << 24) + 1
    after(
        f"UPDATE {KERNEL} SET globalPid = NULL",
        f"UPDATE {RUNTIME} SET globalTid = {thread} WHERE correlationId = 4",
    )(path)


def cut(path: Path) -> None:
    written(path, rows_of(TWO_THREADS * 200))
    path.write_bytes(path.read_bytes()[:9000])


def packed_and_cut(path: Path) -> None:
    cut(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def many_rows(path: Path) -> None:
    """Let every page of a table's tree be the same one."""
    rows = rows_of(TWO_THREADS)
    rows["StringIds"] += [{"id": 100 + n, "value": "x" * 500} for n in range(2000)]
    content = bytearray(written(path, rows).read_bytes())
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'StringIds'").fetchone()
    page = (root - 1) * 4096
    cells = int.from_bytes(content[page + 3 : page + 5], "big")
    for n in range(cells):
        at = page + int.from_bytes(content[page + 12 + 2 * n : page + 14 + 2 * n], "big")
        content[at : at + 4] = (2**31).to_bytes(4, "big")
    path.write_bytes(content)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "wrong magic": (lambda path: path.write_bytes(b"SQLite format 2\0" + b"\0" * 5000), "not JSON"),
    "nothing but the magic": (lambda path: path.write_bytes(b"SQLite format 3\0"), "damaged SQLite database"),
    "no page": (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000), "damaged SQLite"),
    "truncated": (cut, "damaged SQLite database"),
    "pages beyond the end": (many_rows, "damaged SQLite database"),
    "packed and cut": (packed_and_cut, "damaged"),
    "another database": (after(*(f"DROP TABLE {table}" for table in (KERNEL, RUNTIME, "StringIds"))),
        "no export of Nsight Systems .*: no table StringIds, but no table"),
    "no names": (after("DROP TABLE StringIds"), "no export of Nsight Systems"),
    "no kernels": (after(f"DROP TABLE {KERNEL}"), "no kernel, copy or fill of a GPU in the recording"),
    "a view": (
        after(f"ALTER TABLE {KERNEL} RENAME TO x", f"CREATE VIEW {KERNEL} AS SELECT * FROM x"),
        "no kernel, copy or fill of a GPU in the recording",
    ),
    "no column": (after(f"ALTER TABLE {KERNEL} DROP COLUMN streamId"), "KERNEL has no column streamId"),
    "no stream": (changed(KERNEL, streamId=None), "row 2: streamId: None is no whole number from 0 on"),
    "negative stream": (changed(KERNEL, streamId=-7), "row 2: streamId: -7 is no whole number"),
    "a text": (changed(KERNEL, deviceId="x' OR 1"), 'deviceId: "x\' OR 1" is no whole number'),
    "a fraction": (changed(KERNEL, correlationId=1.5), "correlationId: 1.5 is no whole number"),
    "no launch": (changed(KERNEL, correlationId=None), "correlationId: None is no whole number"),
    "unknown name": (changed(KERNEL, demangledName=77), "demangledName: no string has the number 77"),
    "name of a call": (changed(RUNTIME, nameId=77), "row 2: nameId: no string has the number 77"),
    "ends before it begins": (changed(KERNEL, end=10), "row 2: from 8000 to 10 ns is no span of time"),
    "endless": (changed(KERNEL, end=2**62 + 1), "row 2: from 8000 to 4611686018427387905 ns is no span"),
    "before the beginning": (changed(RUNTIME, start=-5), "row 2: start: -5 is no whole number from 0 on"),
    "several processes": (of_nobody, r"GPU tasks of 2 processes \(7, 4242\) and does not say whose"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_files_are_told_in_a_line(what: str, tmp_path: Path) -> None:
    write, message = WRONG[what]
    path, out = tmp_path / "report.sqlite", tmp_path / "out.json"
    write(path)
    was = path.read_bytes()
    for done in (sim("import", path, "--format", "kineto", "--out", out), sim("run", path)):
        assert (done.exit_code, done.stdout, out.exists()) == (2, "", False)
    done = sim("import", path, "--format", "kineto", "--out", out)
    assert len(done.stderr.splitlines()) == 1
    with pytest.raises(InputError, match=message):
        load(path)
    assert [each.name for each in tmp_path.iterdir()] == ["report.sqlite"]
    assert path.read_bytes() == was


@examples(60)
@given(st.integers(0, 2**31), st.integers(1, 12))
def test_bytes_that_changed_are_read_or_told(
    tmp_path_factory: pytest.TempPathFactory, seed: int, changes: int
) -> None:
    drawn = dice.Random(seed)
    path = written(tmp_path_factory.mktemp("damaged") / "report.sqlite", rows_of(TWO_THREADS), NEWEST)
    content = bytearray(path.read_bytes())
    for _ in range(changes):
        content[drawn.randrange(16, len(content))] = drawn.randrange(256)
    path.write_bytes(content)
    with suppress(InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(path)
