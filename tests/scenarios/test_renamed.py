"""Keys of older versions: each is refused where it stands, and the message says what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_texts import write

from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import ScenarioError

OLD = """\
machine:
  devices: {d: {kind: gpu, dma_engines: 1, allocator: pool}, e: {kind: cpu}}
  links: [{from: d, to: e, source: x}]
workload: {ops: {a: {duration: 10us, output: 1MB}}}
"""


def test_old_keys_are_told_with_what_they_are_now(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(tmp_path, OLD))
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        "s.yaml:2:28: machine.devices.d.dma_engines: no such key; dma_engines is now copy_engines",
        "s.yaml:2:44: machine.devices.d.allocator: no such key; allocator is now memory.allocator",
        "s.yaml:3:28: machine.links.0.source: no such key; source is now sources",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "policy: {name: in-order, allocator: bfc}",
            "3:26: policy.allocator: in-order has no option 'allocator'; allocator is now memory.allocator",
        ),
        (
            "compare: [{name: in-order, run_ahead: 2}]",
            "3:28: compare.0.run_ahead: in-order has no option 'run_ahead'; run_ahead is now in_flight",
        ),
        (
            "memory: {allocator: {name: pool, lifetime: issue}}",
            "3:34: memory.allocator.lifetime: the pool allocator has no option 'lifetime'; "
            "lifetime is now memory.lifetime",
        ),
    ],
)
def test_old_options_are_told_with_what_they_are_now(tmp_path: Path, text: str, says: str) -> None:
    machine = "machine: {devices: {d: {kind: gpu}}}\nworkload: {ops: {a: {duration: 1us}}}\n"
    with pytest.raises(ScenarioError) as caught:
        run_scenario(load_scenario(write(tmp_path, machine + text)))
    assert str(caught.value) == f"{tmp_path}/s.yaml:{says}"
