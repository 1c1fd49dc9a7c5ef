"""Every scenario that the kernel can run gives the same trace on both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.run.execute import memory_of
from scenarios.run.load import load_scenario
from scenarios.run.prepare_job import job_of
from sim.engine.engine import Engine
from sim.kernel.run import run
from sim.trace import Trace
from tests.kernel_helpers import KERNELS, same

FOLDER = Path(__file__).resolve().parents[2] / "scenarios"
LARGE = "zero_bubble"
"""Folder of schedules of thousands of tasks: each model with few, more and many micro-batches."""
LONG = ("ddp", "parallel_layers", "serving")


def _few(path: Path) -> bool:
    """Whether a file is not large, or the one with the fewest micro-batches of its model."""
    model, _, count = path.stem.rpartition("x")
    others = path.parent.glob(f"{model}x*.yaml")
    return path.parent.name != LARGE or all(
        int(count) <= int(other.stem.rpartition("x")[2]) for other in others
    )


FILES = [
    pytest.param(
        path, id=path.stem, marks=[pytest.mark.slow] if LARGE in path.parts or path.stem in LONG else []
    )
    for path in sorted(FOLDER.rglob("*.yaml"))
    # sizes of models; calibrations; scenarios whose files `sim new` copies
    if not {"builders", "calibrations_data", "templates"} & set(path.parts)
    if _few(path)
]

REFUSED = {
    "condition": "the graph has control flow",
    "data_loader": "the policy LoaderQueues has to be asked task by task",
    "failure": "the graph has Sends and Recvs that meet by key",
    "loop": "the graph has control flow",
    "npu_tiles": "the tasks of npu0 share its cores, SMs or bandwidth",
    "parallel_layers": "sends and recvs are grouped",
    "peak_memory": "the memory of gpu0 runs short",
    "rendezvous": "the graph has Sends and Recvs that meet by key",
    "sessions": "the tasks of cpu0 share its cores, SMs or bandwidth",
    "shared_gpu": "the memory of gpu0 runs short",
    "thread_pools": "the tasks of cpu0 share its cores, SMs or bandwidth",
    "worker_fails": "parts of the machine fail, or become slow",
}
"""What stands in the way of some cases of these; every case of all others runs."""


@pytest.mark.filterwarnings("ignore::devices.cost.unreliable.PlainRooflineWarning")
@pytest.mark.parametrize("path", FILES)
def test_a_scenario_gives_the_same_trace(path: Path) -> None:
    refused = set()
    for case in load_scenario(path).cases():
        job, policy = job_of(case), case.decisions.policy
        memory = memory_of(case, job)
        expected = None
        for pure in KERNELS:
            found = run(job, policy, memory=memory, pure=pure)
            if not isinstance(found, Trace):
                refused.add(found)
                break
            expected = expected or Engine(job, policy, memory=memory).run()
            same(expected.tasks, found.tasks)
            same(expected.transfers, found.transfers)
            same(expected.memory or {}, found.memory or {})
    assert REFUSED.get(path.stem) in refused if path.stem in REFUSED else not refused
