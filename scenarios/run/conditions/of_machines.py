"""Keys of the machine: presets that become ideal, links, the network."""

from __future__ import annotations

from typing import Final

from scenarios.run.conditions.rule import Rule

__all__ = ["OF_MACHINES"]

OF_MACHINES: Final[tuple[Rule, ...]] = (
    Rule(
        ("machine.ideal",),
        lambda case, loc: (
            "preset" in case.scenario.machine_spec
            or any("preset" in values for values in case.scenario.described_devices.values())
        ),
        "it drops the overheads of presets, and none is named; leave out the overheads themselves",
    ),
    Rule(
        ("machine.links.*.efficiency",),
        lambda case, loc: {"bandwidth", "name"} & set(case.scenario.machine_spec["links"][loc[2]]) != set(),
        "it is a part of the link's bandwidth, which is not given; give bandwidth, or leave it out",
    ),
    Rule(
        ("machine.links.*.on_request",),
        lambda case, loc: bool(set(case.work.graph.kinds) & {"recv", "Recv", "_Recv"}),
        "no op of the workload receives by key (kind recv), so nothing is requested; leave it out",
    ),
    Rule(
        ("machine.network", "machine.routing", "machine.routes"),
        lambda case, loc: bool(case.work.machine.links),
        "the machine has no links; give it links or a topology, or leave it out",
    ),
)
