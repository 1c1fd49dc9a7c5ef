"""Conditions of the keys of a machine: copies and launches, sharing, cost of ops, links, and memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from devices.cores import CorePoolIfShort
from devices.describe.field_types import HALF
from devices.describe.fields import value_at
from policies.streams import PerBranch, RoundRobinStreams, SingleStream
from scenarios.fields.policy_fields import MemoryFields
from scenarios.file.document import Loc
from sim.base.arrays import UNSET

if TYPE_CHECKING:
    from scenarios.run.scenario import Case
    from sim.machine.device import Device


# ----------------------------------------------------------------------------------------------------------
# A rule: some keys of a scenario, and the condition under which they have an effect.


class Rule(NamedTuple):
    """Some keys, and the condition under which they have an effect.

    Attributes
    ----------
    keys : tuple of str
        Dotted paths; ``*`` is any key of a mapping or item of a list.
    holds : callable
        ``holds(case, loc)`` returns whether the key at `loc` has an effect in a run.
    reason : str
        End of the message: why the key has no effect, and what to do.
    """

    keys: tuple[str, ...]
    holds: Callable[[Case, Loc], bool]
    reason: str


# ----------------------------------------------------------------------------------------------------------


class _DeviceEntry(NamedTuple):
    """A device in a run, and the values of its description, including those of presets."""

    case: Case
    device: Device
    values: Mapping[str, Any]

    def waits_for_events(self) -> bool:
        return self.case.decisions.policy.synchronisation == "issue"

    def may_compete(self) -> bool:
        """Whether its tasks together may want more than it has."""
        device = self.device
        if device.workers:
            return device.workers * device.cores_per_op > device.cores
        return device.lanes > 1

    def shares(self, *kinds: str) -> bool:
        """Whether its tasks share a resource, in one of the ways `kinds` if any are given."""
        processor: object = self.device.processor
        if isinstance(processor, CorePoolIfShort) and not self.case.work.graph.attribute("cores"):
            return False
        return processor is not None and (not kinds or self.values.get("sharing") in kinds)

    def is_timed(self) -> bool:
        """Whether its cost model is used: some op that may run there has no duration of its own."""
        if self.case.scenario.content.workload.asks_cost_models() or self.case.decisions.compile:
            return True  # a rewrite may create ops without a duration
        graph, device = self.case.work.graph, self.device
        untimed = graph.given_ns(device.kind, device.name) == UNSET
        if not untimed.any():
            return False
        pins = {graph.pins[code] if code >= 0 else None for code in set(graph.pin_code[untimed].tolist())}
        return not pins.isdisjoint({None, device.name, device.kind})

    def costs(self) -> set[object]:
        """Return the names of its cost models."""
        cost = self.values.get("cost", self.case.scenario.content.cost)
        models = cost if isinstance(cost, list | tuple) else [cost]
        return {next(iter(one), None) if isinstance(one, Mapping) else one for one in models}

    def is_fitted(self) -> bool:
        """Whether some op is timed as a kernel of a fitted GPU."""
        return "fitted" in self.costs() and self.is_timed()

    def by_roofline(self, *needs: str) -> bool:
        """Whether a roofline or tile model times some op with one of the rates `needs`."""
        has_rate = not needs or any(value_at(self.values, key) is not None for key in needs)
        rated = not self.costs() <= {"fixed", "table"}
        return has_rate and rated and self.is_timed()


_ANY_STREAMS: Final = (PerBranch, RoundRobinStreams, SingleStream, type(None))
"""Stream assignments that use the streams a device has, however many."""


def _entry_devices(case: Case, loc: Loc) -> list[_DeviceEntry]:
    """Return the devices of an entry of ``devices``, in all nodes; an entry with a count is several."""
    entry, devices = rf"(node\d+/)?{re.escape(str(loc[2]))}", _devices(case)
    one = [described for described in devices if re.fullmatch(entry, described.device.name)]
    return one or [described for described in devices if re.fullmatch(rf"{entry}\d+", described.device.name)]


def _devices(case: Case) -> list[_DeviceEntry]:
    described = case.scenario.described_devices
    devices = case.work.machine.devices
    if not isinstance(case.decisions.streams, _ANY_STREAMS):  # if the number is open, it may use several
        devices = tuple(device.for_streams(device, 2) if device.for_streams else device for device in devices)
    return [
        _DeviceEntry(case, device, described[device.name]) for device in devices if device.name in described
    ]


def _joins_links(case: Case, loc: Loc) -> bool:
    """Whether a link shares what it has with others, as its ``duplex: half`` or ``bus`` says."""
    machine = case.scenario.machine_spec
    entry = machine["links"][loc[2]]
    sharing = machine.get("sharing", entry.get("sharing"))
    word = sharing.get("name") if isinstance(sharing, Mapping) else sharing
    return word not in ("independent", "instant") or (loc[3] == "duplex" and entry["duplex"] != HALF)


def _device_rule(names: tuple[str, ...], holds: Callable[[_DeviceEntry], bool], reason: str) -> Rule:
    """Return a rule for keys of a device, which holds if it holds for some device of the entry."""
    keys = tuple(f"machine.devices.*.{name}" for name in names)
    return Rule(keys, lambda case, loc: any(map(holds, _entry_devices(case, loc))), reason)


def _memory(case: Case) -> MemoryFields:
    return case.scenario.content.memory or MemoryFields.model_validate({})


def _limit_counts(case: Case, loc: Loc) -> bool:
    """Whether an op of the model at `loc` may run on a device that this allocator manages."""
    from devices.memory.device_memory import Groups

    graph, entries = case.work.graph, _memory(case).devices
    managed = [
        device
        for device in case.work.machine.devices
        if (device.name == loc[2] if loc[1] == "devices" else device.name not in entries)
    ]
    places = {name for device in managed for name in (device.name, device.kind)}
    group_of = Groups([str(loc[-1])])
    return any(
        group_of(name) == loc[-1] and (pin < 0 or graph.pins[pin] in places)
        for name, pin in zip(graph.op_names, graph.pin_code.tolist(), strict=True)
    )


def _may_be_full(case: Case, loc: Loc) -> bool:
    chosen = [_memory(case).allocator, *_memory(case).devices.values()]
    of_runtime = [choice["name"] for choice in case.decisions.allocators.values()]
    plans = ("planned", "runtime") if "planned" in of_runtime else ("planned",)
    return (
        any(device.memory_bytes is not None for device in case.work.machine.devices)
        or any("virtual_devices" in values for values in case.scenario.described_devices.values())
        # Options may be limits, and the place that a plan gives a tensor may be in use.
        or any(choice.options or choice.name in plans for choice in chosen if choice)
    )


_TILE_KEYS: Final = ("scratchpad", "vector.scratchpad", "double_buffered", "granule", "latency")

OF_MACHINES: Final[tuple[Rule, ...]] = (
    # -- devices: copies and launches
    _device_rule(
        ("copy_engines", "pin_memory", "staging_bandwidth"),
        lambda dev: any(
            dev.device.name in (link.source, link.destination) for link in dev.case.work.machine.links
        ),
        "no link leads to the device, so nothing is copied there; give the machine links, or leave it out",
    ),
    Rule(
        ("machine.devices.*.cuda_graph",),
        lambda case, loc: case.decisions.cuda_graph,
        "nothing is launched as a CUDA graph; say cuda_graph: true in the policy, or leave it out",
    ),
    _device_rule(
        ("event_record", "event_wait"),
        lambda dev: dev.waits_for_events() and dev.device.lanes > 1 and not dev.case.decisions.cuda_graph,
        "events are recorded and waited for between streams, op by op, with synchronisation: issue; "
        "say so in the policy and give the device streams: 2 or more, or leave it out",
    ),
    _device_rule(
        ("event_hop",),
        _DeviceEntry.waits_for_events,
        "the host waits for completion, and the device for no events; say synchronisation: issue in the "
        "policy, or leave it out",
    ),
    _device_rule(
        ("legacy_stream",),
        lambda dev: dev.device.lanes > 1,
        "the device has one stream, which waits for no other; give it streams: 2 or more, or leave it out",
    ),
    # -- devices: what tasks share
    _device_rule(
        ("sharing",),
        _DeviceEntry.may_compete,
        "tasks of the device never compete: a GPU needs streams: 2 or more, a CPU more threads (workers x "
        "cores_per_op) than cores; or leave it out",
    ),
    _device_rule(
        ("max_resident", "blocks_per_sm"),
        _DeviceEntry.shares,
        "kernels of the device share no SMs; say sharing: sm or sm+dram, and streams: 2 or more, or "
        "leave it out",
    ),
    _device_rule(
        ("oversubscription_cost",),
        lambda dev: dev.shares("time") or (dev.shares() and "sharing" not in dev.values),
        "the device's threads do not exceed its cores, or share no time slices; raise workers or "
        "cores_per_op, or leave it out",
    ),
    _device_rule(
        ("sms",),
        lambda dev: dev.shares() or (dev.is_timed() and ("use_sms" in dev.values or dev.is_fitted())),
        "every op has a duration of its own and kernels share no SMs; let a cost model time ops, say "
        "sharing: sm, or leave it out",
    ),
    _device_rule(
        ("use_sms",),
        _DeviceEntry.is_timed,
        "it cuts the rates of a cost model, and every op has a duration of its own, which stays as it is; "
        "leave out the durations, give partitions (which do stretch durations), or leave it out",
    ),
    # -- devices: what ops cost
    _device_rule(
        (
            *("peak", "matrix.peak", "vector.peak", "matrix.block_size", "dtype", "op_overhead"),
            *("kernel_floor", *_TILE_KEYS),
        ),
        _DeviceEntry.by_roofline,
        "the device's roofline times no op: each has a duration of its own, or another cost model knows it; "
        "leave out the durations, or the key",
    ),
    _device_rule(
        ("clock", "l2", "generation", "sustained"),
        _DeviceEntry.is_fitted,
        "it is for ops that fitted costs time, and there are none; say cost: [fitted, roofline] and leave "
        "out the durations, or leave out the key",
    ),
    _device_rule(
        ("matrix.kinds",),
        lambda dev: (
            dev.by_roofline("matrix.peak", "vector.peak", "core_bandwidth", *_TILE_KEYS)
            or dev.values.get("queues_per_core", 1) > 1
        ),
        "it says which ops run on the matrix unit, and the units are alike, or time no op and run no "
        "two at once; give matrix: {peak: ...} and leave out the durations, say queues_per_core: 2, or leave "
        "it out",
    ),
    _device_rule(
        ("bandwidth",),
        lambda dev: dev.shares("sm+dram") or dev.by_roofline(),
        "the device's roofline times no op, and kernels share no DRAM (sharing: sm+dram); leave out the "
        "durations, or the key",
    ),
    _device_rule(
        ("efficiency",),
        lambda dev: dev.by_roofline("peak", "matrix.peak", "vector.peak"),
        "it lowers the peak rate of ops that the device's roofline times, and there is no peak or no such "
        "op; give peak and leave out the durations, or leave out the key",
    ),
    _device_rule(
        ("memory_efficiency",),
        lambda dev: dev.by_roofline("bandwidth"),
        "it is about the bandwidth of ops that the device's roofline times, and there is no bandwidth, or no "
        "such op; give bandwidth and leave out the durations, or leave out the key",
    ),
    _device_rule(
        ("core_bandwidth",),
        lambda dev: dev.by_roofline(*(["bandwidth"] if dev.device.kind == "cpu" else [])),
        "the device's roofline times no op, or a CPU has no bandwidth of which it is a part; leave out the "
        "durations, or the key",
    ),
    _device_rule(
        ("intra_op_parallelism_threads",),
        lambda dev: dev.is_timed() or dev.shares(),
        "the device runs one op at a time, and every op has a duration of its own; leave it out",
    ),
    _device_rule(
        ("cores_per_op",),
        lambda dev: dev.is_timed() or dev.shares() or dev.may_compete() or "workers" not in dev.values,
        "it speeds up ops that a cost model times, and every op has a duration of its own; the device has "
        "cores for all its workers. Leave out the durations, or the key",
    ),
    _device_rule(
        ("serial_fraction", "speedup"),
        lambda dev: (
            (dev.is_timed() and (dev.device.cores_per_op > 1 or 1 in dev.values.get("speedup", ())))
            or dev.device.details.intra_op_pool is not None
        ),
        "it is for ops that a cost model times and that use several cores, or share a pool of threads; say "
        "cores_per_op: 2 or more and leave out the durations, or leave out the key",
    ),
    _device_rule(
        ("cost",),
        _DeviceEntry.is_timed,
        "every op that may run on the device has a duration of its own; leave out the durations, or the key",
    ),
    Rule(
        ("cost",),
        lambda case, loc: any(dev.is_timed() for dev in _devices(case) if "cost" not in dev.values),
        "every op has a duration of its own, or every device its own cost model; leave out one of them",
    ),
    _device_rule(
        ("ideal",),
        lambda dev: "preset" in dev.values,
        "it drops the overheads of a preset, and the device names none; leave out the overheads themselves",
    ),
    # -- the machine: presets that become ideal, links, the network
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
        ("machine.links.*.duplex", "machine.links.*.bus"),
        _joins_links,
        "a link that is independent, or instant, gives each message all of its bandwidth, whatever else is "
        "under way; choose another sharing, or leave it out",
    ),
    Rule(
        ("machine.links.*.rendezvous",),
        lambda case, loc: bool(set(case.work.graph.kinds) & {"recv", "Recv", "_Recv"}),
        "no op of the workload receives by key (kind recv), so nothing is requested; leave it out",
    ),
    Rule(
        ("machine.sharing", "machine.routing", "machine.routes"),
        lambda case, loc: bool(case.work.machine.links),
        "the machine has no links; give it links or a topology, or leave it out",
    ),
    Rule(
        ("machine.collectives",),
        lambda case, loc: bool(case.work.graph.in_communicators or case.decisions.compile),
        "no op is a collective of several ranks; give ops attributes: {communicator: NAME}, or leave it out",
    ),
    Rule(
        ("machine.hosts.*.threads",),
        lambda case, loc: any(
            host.name.rpartition("/")[2] == loc[2]
            and not any(cpu.workers for cpu in case.work.machine.devices if cpu.name in host.serves)
            for host in case.work.machine.hosts
        ),
        "the workers of the host's CPU are its threads; change those, or leave it out",
    ),
    # -- ``memory:``: allocators, their limits, and what happens when memory is full
    Rule(
        ("memory.allocator",),
        lambda case, loc: not set(case.scenario.described_devices) <= set(_memory(case).devices),
        "every device has an allocator of its own under devices; leave one of them out",
    ),
    Rule(
        ("memory.allocator.limits.*", "memory.devices.*.limits.*"),
        _limit_counts,
        "this allocator manages no device on which an op of the model runs; leave it out",
    ),
    Rule(
        ("memory.when_full",),
        _may_be_full,
        "no device's memory is limited; give a device memory: 80GB, or leave it out",
    ),
)
