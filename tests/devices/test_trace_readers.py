"""Everything that reads a trace, on runs whose devices share cores, SMs, bandwidth and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chrome_helpers import chrome_events
from drawn_runs import DrawnPlacement, DrawnStreams, draw_graph, draw_policy
from examples import seeds

from devices.machine import make_machine
from devices.memory.run_memory import tensor_memory
from sim import Trace, simulate
from sim.base.errors import RunError
from sim.explain.idle import idle_reasons
from sim.explain.narration import explain_text
from sim.explain.path import executed_path
from sim.metrics import device_use


def draw_device(rng: np.random.Generator) -> dict[str, Any]:
    """Return the description of a device that shares something."""
    kind = int(rng.integers(0, 4))
    if kind == 0:
        workers, cores = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        sharing = str(rng.choice(["time", "cores"]))
        return {"kind": "cpu", "cores": 4, "workers": workers, "cores_per_op": cores, "sharing": sharing}
    streams = int(rng.integers(1, 4))
    if kind == 1:
        sharing = str(rng.choice(["sm", "sm+dram"]))
        return {"kind": "gpu", "streams": streams, "sms": 8, "bandwidth": "1GB/s", "sharing": sharing}
    if kind == 2:
        return {"preset": "h200-sxm", "streams": streams}
    return {"kind": "gpu", "streams": streams, "launch_latency": "3ns", "queue_depth": 3, "event_hop": "2ns"}


def draw_shared_run(seed: int) -> Trace:
    """Return a run on one or two such devices, sometimes with memory that has to be waited for."""
    rng = np.random.default_rng(seed)
    iterations = int(rng.integers(1, 3))
    graph = draw_graph(rng, int(rng.integers(2, 25)), iterations > 1)
    devices = {f"d{k}": draw_device(rng) for k in range(int(rng.integers(1, 3)))}
    memory = None
    if rng.random() < 0.4:
        memory = tensor_memory(lifetime=str(rng.choice(["execution", "issue"])), when_full="wait")
        for description in devices.values():
            if "preset" not in description and rng.random() < 0.5:
                description["memory"] = "30kB"
    return simulate(
        graph,
        make_machine({"devices": devices}),
        draw_policy(rng),
        placement=DrawnPlacement(seed),
        streams=DrawnStreams(),
        iterations=iterations,
        seed=seed,
        memory=memory,
    )


@pytest.mark.parametrize("seed", seeds(150))
def test_a_run_is_sound_and_fully_explained(seed: int) -> None:
    try:
        trace = draw_shared_run(seed)
    except RunError as error:
        pytest.skip(f"drew too little memory: {error}")
    trace.check()
    reasons = idle_reasons(trace)
    for name, use in device_use(trace).items():
        assert sum(reasons[name].values()) == use.idle_ns
    assert sum(step.end_ns - step.start_ns for step in executed_path(trace)) == trace.makespan_ns
    assert trace.policy in explain_text(trace)
    slices = [
        event for event in chrome_events(trace) if event.get("cat") in ("kernel", "gpu_memcpy", "cpu_op")
    ]
    assert len(slices) == len(trace)
    assert len(trace.to_pandas()) == len(trace)
    assert len(trace.plan()) == len(trace)
