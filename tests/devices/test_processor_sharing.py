"""Which processor the kernels of a GPU get, and that the simpler one does what the other would."""

from __future__ import annotations

from typing import Any

import pytest
from examples import examples
from gpu_kernels import Launch, kernels, run, spans
from hypothesis import given
from hypothesis import strategies as st

from devices.machine import make_device
from devices.shared_sms import SharedSMs
from devices.sm_processor import LeftoverSMs
from policies.issue.ready_queue import ReadyQueue
from sim import GraphBuilder, Machine
from sim.engine.engine import Engine
from sim.job.build_job import make_job


def chosen(attributes: dict[str, Any], duration_ns: int = 10, **spec: Any) -> type:
    """Return the class of the processor that a run with one such kernel gets."""
    spec = {"kind": "gpu", "sms": 4, "streams": 2, "sharing": "sm+dram", "bandwidth": "100GB/s", **spec}
    b = GraphBuilder("one")
    b.op("a", duration_ns=duration_ns, attributes=attributes)
    made = Engine(make_job(b.build(), Machine((make_device("gpu0", spec),))), ReadyQueue()).processors[0]
    return type(made)


@pytest.mark.parametrize(
    ("attributes", "spec", "expected"),
    [
        ({}, {"sharing": "none"}, type(None)),
        ({"sms": 2, "dram_bytes": 1000}, {"sharing": "sm"}, LeftoverSMs),
        # 100 B/ns among 4 SMs: 25 each. 1000 B in 10 ns: 25 for each of 4 loads, 50 for each of 2.
        ({"dram_bytes": 1000}, {}, LeftoverSMs),
        ({"sms": 2, "dram_bytes": 1000}, {}, SharedSMs),
        ({"sms": 2, "dram_bytes": 500}, {}, LeftoverSMs),
        ({"sms": 2, "dram_bytes": 510}, {}, SharedSMs),
        # 6 loads, two waves of 5 ns: 5000 B cannot all have come from DRAM, alone it draws 100 B/ns at most.
        ({"grid": 6, "dram_bytes": 5000}, {}, LeftoverSMs),
        ({"dram_bytes": 1000}, {"streams": [{}, {"priority": -1}]}, SharedSMs),
        ({}, {"sharing": "sm", "streams": [{}, {"priority": -1}]}, SharedSMs),
        ({}, {"sharing": "sm", "max_resident": 1}, SharedSMs),
    ],
)
def test_the_simplest_that_does_what_is_asked_for(
    attributes: dict[str, Any], spec: dict[str, Any], expected: type
) -> None:
    assert chosen(attributes, **spec) is expected


@examples(300)
@given(
    st.lists(kernels, min_size=1, max_size=7),
    st.sampled_from(["5GB/s", "60GB/s", "100GB/s", "1TB/s"]),
    st.sampled_from([None, (2, 4)]),
)
def test_what_is_chosen_does_what_the_general_one_does(
    launches: list[Launch], bandwidth: str, split: tuple[int, int] | None
) -> None:
    launches = sorted(launches, key=lambda launch: launch.ready_ns)
    spec: dict[str, Any] = {"sms": 6, "sharing": "sm+dram", "bandwidth": bandwidth, "gap": "3ns"}
    if split:
        spec["partitions"] = {"a": split[0], "b": split[1]}
    assert spans(run(launches, **spec)) == spans(run(launches, processor=SharedSMs, **spec))
