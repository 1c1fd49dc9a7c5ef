"""Every scenario that the kernel can run gives the same trace on both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.load import load_scenario
from scenarios.run import job_of
from sim.engine import Engine
from sim.kernel.run import run
from sim.trace import Trace
from tests.kernel_helpers import KERNELS, same

FOLDER = Path(__file__).resolve().parents[1] / "scenarios"
FILES = sorted(FOLDER.rglob("*.yaml"))


@pytest.mark.filterwarnings("ignore::devices.cost.unreliable.PlainRooflineWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_gives_the_same_trace(path: Path) -> None:
    for case in load_scenario(path).cases():
        job, policy = job_of(case), case.decisions.policy
        expected = None
        for pure in KERNELS:
            found = run(job, policy, pure=pure)
            if not isinstance(found, Trace):
                print(path.stem, case.label, found)
                break
            expected = expected or Engine(job, policy).run()
            same(expected.tasks, found.tasks)
            same(expected.transfers, found.transfers)
