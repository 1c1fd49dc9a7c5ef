"""Holistic Trace Analysis opens our traces, and its breakdowns are ours, to the nanosecond.

Three ways to one number: HTA's own (`hta_reads.py`), its rules applied to the file by hand, and ours from
the run. HTA 0.5.0 needs pandas below 3 and brings Jupyter with it, so it is no part of the tests'
environment. What it said is recorded in ``data/hta_breakdown.json``. To ask it again::

    python -m venv hta && hta/bin/pip install HolisticTraceAnalysis 'pandas<3'
    SIM_HTA_PYTHON=hta/bin/python python -m pytest tests/sim/test_export_hta.py
"""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicator_helpers import draw_collectives, draw_ranks
from import_helpers import recorded

from policies.issue.program_order import InOrder
from policies.streams import Recorded
from scenarios.importers.kineto.kineto import load
from scenarios.recorded.setup import run_recorded
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Trace, simulate
from sim.base.intervals import union
from sim.explain.communication import moving_ops
from sim.explain.idle import idle_reasons
from sim.explain.time_use import time_use
from sim.export.chrome import write_ranks
from sim.job.costs import issue_costs_ns
from sim.metrics import summary

HERE = Path(__file__).parents[1]
EXAMPLES = ("data_parallel", "fsdp2", "one_communicator", "straggler", "unet")
DRAWN = (3, 5, 8)
CASES = (*EXAMPLES, *(f"drawn_{seed}" for seed in DRAWN))
DELAY_NS = 5
"""`hta_reads.DELAY_US`."""

EIGHTH_NS = 125
"""An eighth of a µs: sums of such times are exact in HTA's floats of µs."""

Answer = dict[str, Any]


@cache
def run_of(case: str) -> Trace:
    if case in EXAMPLES:
        path = HERE.parent / "scenarios" / "examples" / f"{case}.yaml"
        return run_scenario(load_scenario(path)).trace
    rng = np.random.default_rng(int(case.removeprefix("drawn_")))
    graph = draw_collectives(rng, 3, 12)
    copies = graph.is_kind("matmul") & (rng.random(len(graph)) < 0.4)
    graph = replace(
        graph,
        kinds=(*graph.kinds, "copy"),
        kind_code=np.where(copies, len(graph.kinds), graph.kind_code),
        duration_ns=EIGHTH_NS * np.maximum(1, graph.duration_ns),
    )
    machine = draw_ranks(rng, 3)
    costs = ("issue_ns", "launch_latency_ns", "gap_ns", "event_ns")
    devices = [
        replace(
            device,
            kind="gpu",
            workers=0,
            streams=3,
            **{name: EIGHTH_NS * getattr(device, name) for name in costs},
        )
        for device in machine.devices
    ]
    policy = InOrder(synchronisation="issue")
    return simulate(graph, replace(machine, devices=tuple(devices)), policy, streams=Recorded())


def ours(run: Trace) -> Answer:
    """Return the breakdown of every GPU that ran something, from the run."""
    use, parts = time_use(run), summary(run)["devices"]
    n = len(run.job.machine.devices)
    start, begins, end = run.tasks["start_ns"], run.begins_ns, run.tasks["end_ns"]
    # Where nothing but collectives is there, which wait for a late rank, a device is idle to us; where
    # nothing but a recording's delay is there, it is busy.
    work = ~run.job.graph.is_kind("delay")[run.tasks["op"]]
    waits = union(start[work], end[work], run.device[work]).lengths(n)
    waits -= union(begins, end, run.device).lengths(n)
    found = {}
    gpus = [d for d in np.unique(run.device).tolist() if not run.job.machine.devices[d].workers]
    for rank, d in enumerate(gpus):
        name = run.job.machine.devices[d].name
        compute, span = use[name]["compute"], parts[name]["span_ns"]
        busy = parts[name]["busy_ns"] + int(waits[d])
        found[str(rank)] = {
            "compute": compute,
            "non_compute": busy - compute,
            "idle": span - busy,
            "kernel": span,
            "overlap": overlap(run, d),
            "streams": dict(streams(run, d)),
        }
    return found


def overlap(run: Trace, d: int) -> float | None:
    """Return how much of the time in which a device communicates it computes as well, in percent."""
    tasks, moves = run.tasks, moving_ops(run.job)
    here = run.device == d
    communicates = here & (moves & ~run.job.graph.is_kind("copy"))[tasks["op"]]
    computes = here & ~moves[tasks["op"]]

    def length(which: np.ndarray) -> int:
        start, end = tasks["start_ns"][which], tasks["end_ns"][which]
        return int(union(start, end, np.zeros(len(start), np.int64)).lengths(1)[0])

    total = length(communicates)
    hidden = total + length(computes) - length(communicates | computes)
    return round(100 * hidden / total, 2) if total else None


def streams(run: Trace, d: int) -> Iterator[tuple[str, float]]:
    """Yield the idle time of each stream by category, in µs: what launches came late for, and the rest."""
    tasks = run.tasks
    begin = tasks["issue_ns"] - issue_costs_ns(run.job)[tasks["op"]]
    for stream in np.unique(tasks["stream"][run.device == d]).tolist():
        rows = np.flatnonzero(tasks["stream"] == stream)
        found: dict[str, int] = defaultdict(int, other=0)  # the first task of a stream waited for nothing
        for one, following in itertools.pairwise(rows.tolist()):
            last, gap = int(tasks["end_ns"][one]), int(tasks["start_ns"][following] - tasks["end_ns"][one])
            late = "kernel_wait" if gap < DELAY_NS else "other"
            found["host_wait" if begin[following] > last else late] += gap
        yield from ((f"{stream + 1} {category}", round(ns / 1000, 2)) for category, ns in found.items())


def by_hand(events: list[Any]) -> Answer:
    """Return HTA's temporal breakdown of the events of a rank: names tell what is what."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and "stream" in event["args"]:
            name, start = event["name"], round(1000 * event["ts"])
            kind = "communicate" if re.match(r"nccl.*Kernel", name) else "compute"
            kind = "memory" if re.match(r"Memcpy|Memset|dma", name) else kind
            assert (kind == "memory") == (event["cat"] in ("gpu_memcpy", "gpu_memset"))
            kind = "other" if kind == "compute" and re.match(r".*Memcpy|Memset|.*Sync", name) else kind
            spans[kind].append((start, start + round(1000 * event["dur"])))
    every = [span for found in spans.values() for span in found]
    kernel = max(end for _, end in every) - min(start for start, _ in every)
    busy, compute = covered(every), covered(spans["compute"])
    return {"compute": compute, "non_compute": busy - compute, "idle": kernel - busy, "kernel": kernel}


def covered(spans: list[tuple[int, int]]) -> int:
    total = reach = 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def said() -> dict[str, Answer]:
    found: dict[str, Answer] = json.loads((HERE / "data" / "hta_breakdown.json").read_text())
    return found


@pytest.mark.parametrize("case", CASES)
def test_ours_is_what_hta_said(case: str) -> None:
    assert ours(run_of(case)) == said()[case]


@pytest.mark.parametrize("case", CASES)
def test_by_its_rules_the_file_says_the_same(case: str, tmp_path: Path) -> None:
    temporal = {
        rank: {name: found[name] for name in ("compute", "non_compute", "idle", "kernel")}
        for rank, found in ours(run_of(case)).items()
    }
    files = write_ranks(run_of(case), tmp_path / "ranks")
    events = [json.loads(gzip.decompress(Path(name).read_bytes()))["traceEvents"] for name in files]
    assert {str(rank): by_hand(found) for rank, found in enumerate(events)} == temporal


@pytest.mark.filterwarnings("ignore:.*no launch in the trace")
@pytest.mark.parametrize(
    "name", ["h100_bert_small.json.gz", pytest.param("v100_dlrm_8_ranks", marks=pytest.mark.slow)]
)
def test_so_it_is_of_recordings(name: str, tmp_path: Path) -> None:
    """Delays are no work, kernels that concatenate compute, fills are memory."""
    run = run_recorded(load(recorded(f"kineto/{name}")))
    files = write_ranks(run, tmp_path / "ranks")
    for rank, answer in ours(run).items():
        events = json.loads(gzip.decompress(Path(files[int(rank)]).read_bytes()))["traceEvents"]
        theirs = by_hand(events)
        assert {key: answer[key] for key in theirs} == theirs


def test_the_cases_have_something_of_everything() -> None:
    answers = [answer for case in CASES for answer in ours(run_of(case)).values()]
    for what in ("compute", "non_compute", "idle"):
        assert sum(answer[what] > 0 for answer in answers) > 5
    assert sum(answer["compute"] % 1000 > 0 for answer in answers) > 5, "parts of µs"
    assert len({answer["overlap"] for answer in answers}) > 6
    copied = [run_of(case).job.graph.is_kind("copy").sum() for case in CASES]
    assert sum(copied) > 5
    assert any("late rank" in why for case in CASES for why in idle_reasons(run_of(case)).values())
    categories = {name.split()[1] for answer in answers for name in answer["streams"]}
    assert categories == {"host_wait", "kernel_wait", "other"}


def test_hta_itself(tmp_path: Path) -> None:
    """Asked again, with whatever version there is."""
    python = os.environ.get("SIM_HTA_PYTHON")
    if python is None and importlib.util.find_spec("hta") is not None:
        python = sys.executable
    if python is None:
        pytest.skip("HTA is not installed: set SIM_HTA_PYTHON to the Python of an environment that has it")
    folders = [tmp_path / case for case in CASES]
    for case, folder in zip(CASES, folders, strict=True):
        write_ranks(run_of(case), folder)
    command = [python, str(HERE / "hta_reads.py"), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if (to := os.environ.get("SIM_HTA_RECORD")) is not None:
        Path(to).write_text(done.stdout)
    assert json.loads(done.stdout) == {case: ours(run_of(case)) for case in CASES}
