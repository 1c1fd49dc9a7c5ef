"""What a recording knows of its machine, for what a scenario leaves open.

::

    machine: {preset: recorded}                              all of it; so does a scenario without a machine
    machine: {preset: recorded, devices: {gpu: {gap: 0}}}    all of it, but for the gap
    machine: {devices: {gpu0: {kind: gpu, streams: 4}}}      gap, event_hop and launch_latency of gpu0

A key that a description has, itself or by its preset, is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devices.over_presets import described_devices
from scenarios.recorded.setup import AS_RECORDED, recorded_setup
from sim.graph.graph import Graph
from sim.words.errors import InputError
from sim.words.plugins import NOWHERE, Origin

__all__ = ["as_recorded_machine", "with_facts"]


def as_recorded_machine(spec: Mapping[str, Any], graph: Graph) -> dict[str, Any]:
    """Return a description whose preset is the machine of a recording, written out; any other as it is.

    Raises
    ------
    InputError
        The graph is no recording: none of its ops has a stream or a thread.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("recorded")
    >>> _ = b.op("a", device="gpu", attributes={"stream": 7})
    >>> as_recorded_machine({"preset": "recorded", "devices": {"gpu": {"gap": "1us"}}}, b.build())
    {'devices': {'gpu': {'kind': 'gpu', 'streams': 1, 'gap': '1us'}}}
    """
    if spec.get("preset") != AS_RECORDED["preset"]:
        return dict(spec)
    devices = dict(recorded_setup(graph).machine["devices"])
    if not devices:
        raise InputError(
            f"{graph.name!r} is no recording: none of its ops has a stream or a thread",
            path=("machine", "preset"),
        )
    for name, over in spec.get("devices", {}).items():
        devices[name] = {**devices.get(name, {}), **over}
    return {key: value for key, value in spec.items() if key != "preset"} | {"devices": devices}


def with_facts(spec: Mapping[str, Any], graph: Graph, origin: Origin = NOWHERE) -> dict[str, Any]:
    """Return a description with what a recording knows of its GPUs, where the description says nothing.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("recorded")
    >>> _ = b.op("a", device="gpu")
    >>> graph = replace(b.build(), device_facts={"gpu": {"gap": "1200ns", "event_hop": "2us"}})
    >>> with_facts({"devices": {"gpu0": {"kind": "gpu", "gap": "0ns"}}}, graph)
    {'devices': {'gpu0': {'kind': 'gpu', 'gap': '0ns', 'event_hop': '2us'}}}
    """
    if not graph.device_facts:
        return dict(spec)
    devices = dict(spec.get("devices", {}))
    for name, values in described_devices(spec, origin).items():
        known = graph.device_facts.get(name, graph.device_facts.get(values.get("kind", ""), {}))
        missing = {key: value for key, value in known.items() if key not in values}
        if missing and values.get("kind") == "gpu" and not values.get("ideal"):
            devices[name] = {**devices.get(name, {}), **missing}
    return {**spec, "devices": devices}
