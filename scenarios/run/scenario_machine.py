"""The machine of a scenario: what its file says, what its workload or recording adds, and what is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from devices.machine import make_machine
from devices.presets import machine_preset
from scenarios.recorded.setup import AS_RECORDED, as_recorded_machine, with_facts
from sim.base.errors import InputError
from sim.machine.machine import Host, Machine

if TYPE_CHECKING:
    from scenarios.file.document import Document
    from scenarios.schema import ScenarioFile
    from sim.base.plugins import Origin


def given_machine(content: ScenarioFile) -> dict[str, Any]:
    """Return what a scenario says of its machine, or its workload of the one that is meant."""
    if content.machine is None:
        return dict(content.workload.default_machine() or {})
    return content.machine.model_dump(by_alias=True, exclude_unset=True)


def meant_machine(spec: dict[str, Any], content: ScenarioFile, document: Document) -> dict[str, Any]:
    """Return a description in which the machine of a recording, where that is meant, is written out.

    Raises
    ------
    ScenarioError
        The machine of a recording is asked for, and the graph is none.
    """
    if spec.get("preset") != AS_RECORDED["preset"]:
        return spec
    recording = content.workload.recording(document)
    if recording is None:
        return spec
    try:
        return as_recorded_machine(spec, recording)
    except InputError as error:
        if content.machine is None:  # of a graph that is no recording
            return {}
        raise document.wrong(error) from error


def build_machine(spec: dict[str, Any], content: ScenarioFile, document: Document) -> Machine:
    """Return the machine of a description, with the scenario's cost model and what its recording knows.

    Raises
    ------
    ScenarioError
        There is no description, or it contradicts itself.
    """
    if not spec:
        raise document.error((), "machine: is missing")
    recording, origin = content.workload.recording(document), document.origin
    try:
        # Kinds of op are checked where those of the graph are known (`scenarios.run.prepare_job`).
        spec = _with_cost(spec, content.cost, origin)
        spec = spec if recording is None else with_facts(spec, recording, origin)
        return make_machine(spec, origin=origin, kinds=None)
    except InputError as error:
        if error.path[3:4] == ("cost",) and document.at(error.path[:4]) is None:
            error.path = error.path[3:]  # it is the scenario's
        raise document.wrong(error) from error


def _with_cost(spec: dict[str, Any], cost: Any, origin: Origin) -> dict[str, Any]:
    """Give the scenario's cost model to every device for which it names none, those of a preset included."""
    if cost is None:
        return spec
    preset = machine_preset(spec["preset"], origin).get("devices", {}) if "preset" in spec else {}
    given = {**{name: {} for name in preset}, **spec.get("devices", {})}
    return {**spec, "devices": {name: {"cost": cost, **device} for name, device in given.items()}}


def with_intra_op_threads(
    spec: Mapping[str, Any],
    described: Mapping[str, Mapping[str, Any]],
    hosts: Iterable[Host],
    threads: int,
    document: Document,
) -> dict[str, Any]:
    """Return a description in which every CPU has an intra-op pool of so many threads; 0: as many as cores.

    Parameters
    ----------
    spec : mapping
    described : mapping
        What `spec` says of each device: see `devices.preset_overlay.described_devices`.
    hosts : iterable of Host
        The processes of the machine.
    threads : int
    document : Document
        For messages.

    Raises
    ------
    ScenarioError
        A CPU with an ``intra_op_pool`` already, or several CPUs of one process.
    """
    cpus = [name for name, values in described.items() if values.get("kind") == "cpu"]
    for host in hosts:
        pooled = [name for name in host.serves if name in cpus]
        if len(pooled) > 1:
            message = f"serves {' and '.join(pooled)}: that CPUs share one intra-op pool is not modelled"
            raise document.error(("machine", "hosts", host.name), message)
    devices = dict(spec.get("devices", {}))
    for name in cpus:
        if "intra_op_pool" in described[name]:
            message = "intra_op_parallelism_threads is the size of this pool, too; give one of them"
            raise document.error(("machine", "devices", name, "intra_op_pool"), message)
        pool = {"intra_op_pool": threads or described[name].get("cores", 1)}
        devices[name] = {**devices.get(name, {}), **pool}
    return {**spec, "devices": devices}
