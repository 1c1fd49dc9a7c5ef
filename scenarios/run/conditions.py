"""Keys that have an effect only under a condition, in one table; where it does not hold, the key is refused.

A key that is read and then ignored is a result that the reader of a scenario takes for another one::

    machine: {devices: {gpu0: {kind: gpu, copy_engines: 1}}}       no links: nothing is ever copied
                                          └──► machine.devices.gpu0.copy_engines: has no effect: ...

Where a key stands decides in which runs it has to count. One in the file counts in the scenario's own run or
in an entry of ``compare``; one in the ``set:`` of an entry counts in that entry; one given with ``--set``
counts in that run. Once ``--set`` has changed a scenario, the keys of its file are not checked, and what
``--vary`` tries never is: a sweep may pass points at which a key means nothing. Neither are presets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from policies.streams.per_branch import PerBranch
from policies.streams.round_robin import RoundRobin
from policies.streams.single import Single
from scenarios.fields.memory_fields import MemoryFields
from scenarios.file.document import Loc
from scenarios.file.faults import in_order
from scenarios.file.yaml_read import Place
from sim.words.arrays import UNSET
from sim.words.errors import ScenarioError
from sim.words.units import parse_duration

if TYPE_CHECKING:
    from policies.issue.executors.tensorflow_executor import TensorFlowExecutor
    from scenarios.build.loading.input_pipeline import InputPipeline
    from scenarios.run.load import Case
    from sim.machine.device import Device

__all__ = ["RULES", "Rule", "refuse_without_effect"]


class Rule(NamedTuple):
    """Some keys, and the condition under which they have an effect.

    Attributes
    ----------
    keys : tuple of str
        Dotted paths; ``*`` is any key of a mapping or item of a list.
    holds : callable
        ``holds(case, loc)``: whether the key at `loc` has an effect in a run.
    why : str
        The end of the message: why it has none, and what to do.
    """

    keys: tuple[str, ...]
    holds: Callable[[Case, Loc], bool]
    why: str


def refuse_without_effect(case: Case) -> None:
    """Refuse the keys of a scenario that have no effect.

    Parameters
    ----------
    case : Case
        What is about to run.

    Raises
    ------
    ScenarioError
        A line for each, with its place, why it has no effect, and what to do.
    """
    document, base = case.scenario.document, case.base.document
    lines: dict[str, Place] = {}
    for rule in RULES:
        for loc in (loc for pattern in rule.keys for loc in document.matching(pattern)):
            if loc[0] == "compare" and loc[:2] != case.decisions.loc:
                continue  # another entry's
            place = document.place(loc)
            in_file = not place.source.startswith("--")
            if (document.changed and in_file) or place.source.startswith("--vary"):
                continue
            everybodys = in_file and loc[0] != "compare" and place == base.place(loc)
            asked = chain([case], _others(case) if everybodys else ())
            if not any(rule.holds(each, loc) for each in asked):
                lines[str(document.error(loc, f"has no effect: {rule.why}"))] = place
    if lines:
        raise in_order(lines)


def _others(case: Case) -> Iterator[Case]:
    """Yield the runs that the file describes besides; one that is wrong will say so when it is run."""
    base = case.base
    for i in (None, *range(len(base.variants))):
        with suppress(ScenarioError):
            other = base.case() if i is None else base.entry(i)
            if other.decisions.loc != case.decisions.loc:
                yield other


# -- what the conditions ask -----------------------------------------------------------------------


class _Described(NamedTuple):
    """A device in a run, and what is said of it, presets included, read."""

    case: Case
    device: Device
    values: Mapping[str, Any]

    def linked(self) -> bool:
        """Whether a link leads to it."""
        links = self.case.work.machine.links
        return any(self.device.name in (link.source, link.destination) for link in links)

    def waits_for_events(self) -> bool:
        return self.case.decisions.policy.synchronisation == "issue"

    def may_compete(self) -> bool:
        """Whether its tasks may want more than it has."""
        device = self.device
        if device.workers:
            return device.workers * device.cores_per_op > device.cores
        return device.lanes > 1

    def shares(self, *kinds: str) -> bool:
        """Whether its tasks share something, in one of these ways."""
        return self.device.processor is not None and (not kinds or self.values.get("sharing") in kinds)

    def timed(self) -> bool:
        """Whether its cost model is asked: some op that may run there has no duration of its own."""
        if self.case.scenario.content.workload.asks_cost_models() or self.case.decisions.compile:
            return True  # a rewrite may make ops that have none
        graph, device = self.case.work.graph, self.device
        asked = graph.duration_ns == UNSET
        if device.kind in graph.duration_by_kind:
            asked = asked & (graph.duration_by_kind[device.kind] == UNSET)
        if not asked.any():
            return False
        pins = {graph.pins[code] if code >= 0 else None for code in set(graph.pin_code[asked].tolist())}
        return not pins.isdisjoint({None, device.name, device.kind})

    def rated(self) -> bool:
        """Whether its cost is reckoned from its rates."""
        cost = self.values.get("cost", self.case.scenario.content.cost)
        each = cost if isinstance(cost, list | tuple) else [cost]
        names = {next(iter(one), None) if isinstance(one, Mapping) else one for one in each}
        return not names <= {"fixed", "table", "fitted"}

    def by_roofline(self, *needs: str) -> bool:
        """Whether a roofline or tiles time some op with one of the rates `needs`."""
        given = not needs or any(self.values.get(key) is not None for key in needs)
        return given and self.rated() and self.timed()


def _entry(case: Case, loc: Loc) -> list[_Described]:
    """Return the devices of an entry of ``devices``, in all nodes: that one, or those of a count."""
    entry, devices = rf"(node\d+/)?{re.escape(str(loc[2]))}", _devices(case)
    one = [each for each in devices if re.fullmatch(entry, each.device.name)]
    return one or [each for each in devices if re.fullmatch(rf"{entry}\d+", each.device.name)]


def _devices(case: Case) -> list[_Described]:
    described = case.scenario.described_devices
    devices = case.work.machine.devices
    if not isinstance(case.decisions.streams, _AS_THERE_ARE):  # it may name several where the number is open
        devices = tuple(d.for_streams(d, 2) if d.for_streams is not None else d for d in devices)
    return [
        _Described(case, device, described[device.name]) for device in devices if device.name in described
    ]


_AS_THERE_ARE: Final = (PerBranch, RoundRobin, Single, type(None))
"""Stream assignments that use the streams that there are."""


def _of_devices(names: tuple[str, ...], holds: Callable[[_Described], bool], why: str) -> Rule:
    """Return the rule of keys of a device: that it holds for some device that an entry stands for."""
    keys = tuple(f"machine.devices.*.{name}" for name in names)
    return Rule(keys, lambda case, loc: any(map(holds, _entry(case, loc))), why)


def _of_pipeline(names: tuple[str, ...], holds: Callable[[InputPipeline, Case], bool], why: str) -> Rule:
    """Return the rule of keys of a builder, which holds for all but those with an input pipeline."""

    def holds_for(case: Case, loc: Loc) -> bool:
        from scenarios.build.loading.input_pipeline import InputPipeline

        of = getattr(case.scenario.content.workload, "build_", None)
        return not isinstance(of, InputPipeline) or holds(of, case)

    return Rule(tuple(f"workload.build.{name}" for name in names), holds_for, why)


def _memory(case: Case) -> MemoryFields:
    return case.scenario.content.memory or MemoryFields.model_validate({})


def _limit_counts(case: Case, loc: Loc) -> bool:
    """Whether an op of a model may run where the allocator with its limit manages memory."""
    from devices.memory.groups import Groups

    graph, own = case.work.graph, _memory(case).devices
    managed = [
        d
        for d in case.work.machine.devices
        if (d.name == loc[2] if loc[1] == "devices" else d.name not in own)
    ]
    places = {name for device in managed for name in (device.name, device.kind)}
    group_of = Groups([str(loc[-1])])
    return any(
        group_of(name) == loc[-1] and (pin < 0 or graph.pins[pin] in places)
        for name, pin in zip(graph.op_names, graph.pin_code.tolist(), strict=True)
    )


def _may_be_full(case: Case, loc: Loc) -> bool:
    chosen = [_memory(case).allocator, *_memory(case).devices.values()]
    return (
        any(device.memory_bytes is not None for device in case.work.machine.devices)
        or any("virtual_devices" in values for values in case.scenario.described_devices.values())
        or any(choice.options for choice in chosen if choice is not None)  # which may be limits
    )


def _pipeline(case: Case) -> Any:
    """Return the ``pipeline:`` of the workload."""
    return case.scenario.content.workload.pipeline  # type: ignore[attr-defined]


def _phase(*letters: str) -> Callable[[Case, Loc], bool]:
    """Return a condition that holds where the schedule has such an action, alone or beside another."""
    return lambda case, loc: any(set(letters) <= set(phase.split("+")) for phase in case.work.graph.phases)


def _tensorflow(case: Case) -> TensorFlowExecutor | None:
    from policies.issue.executors.tensorflow_executor import TensorFlowExecutor

    policy = case.decisions.policy
    return policy if isinstance(policy, TensorFlowExecutor) else None


def _pools(case: Case, loc: Loc) -> bool:
    policy = _tensorflow(case)
    return policy is not None and bool(policy.sizes)


def _makes_intra_op_pool(case: Case, loc: Loc) -> bool:
    """Whether the pool has the size that the session at `loc` asks for."""
    asked = case.scenario.document.at(loc)
    return asked is not None and asked.value == case.intra_op_threads


def _stage_key(name: str) -> tuple[str, ...]:
    return tuple(f"workload.pipeline.{at}{name}" for at in ("", "stages.*.", "layers.*."))


def _has_recorded_gap(case: Case, loc: Loc) -> bool:
    """Whether the gap of some GPU is the recording's."""
    known = case.work.graph.device_facts
    return any(
        parse_duration(facts["gap"]) == device.gap_ns
        for device in case.work.machine.devices
        if "gap" in (facts := known.get(device.name, known.get(device.kind, {})))
    )


_LOSSES: Final = ("efficiency", "memory_efficiency", "half_flops", "half_bytes", "op_overhead")

RULES: Final[tuple[Rule, ...]] = (
    # -- devices: copies and launches
    _of_devices(
        ("copy_engines", "host_memory", "staging_bandwidth"),
        _Described.linked,
        "no link leads to the device, so nothing is copied there; give the machine links, or leave it out",
    ),
    Rule(
        ("machine.devices.*.graph_launch", "machine.devices.*.graph_gap"),
        lambda case, loc: case.decisions.cuda_graph,
        "nothing is launched as a CUDA graph; say launch: cuda-graph in the policy, or leave it out",
    ),
    _of_devices(
        ("event_record", "event_wait"),
        lambda of: of.waits_for_events() and of.device.lanes > 1 and not of.case.decisions.cuda_graph,
        "events are recorded and waited for between streams, op by op, with synchronisation: issue; "
        "say so in the policy and give the device streams: 2 or more, or leave it out",
    ),
    _of_devices(
        ("event_hop",),
        _Described.waits_for_events,
        "the host waits for completion, and the device for no events; say synchronisation: issue in the "
        "policy, or leave it out",
    ),
    _of_devices(
        ("legacy_stream",),
        lambda of: of.device.lanes > 1,
        "the device has one stream, which waits for no other; give it streams: 2 or more, or leave it out",
    ),
    # -- devices: what tasks share
    _of_devices(
        ("sharing",),
        _Described.may_compete,
        "tasks of the device never compete: a GPU needs streams: 2 or more, a CPU more threads (inter_op x "
        "intra_op) than cores; or leave it out",
    ),
    _of_devices(
        ("max_resident", "blocks_per_sm", "fitted_grids"),
        _Described.shares,
        "kernels of the device share no SMs; say sharing: sm or sm+dram, and streams: 2 or more, or "
        "leave it out",
    ),
    _of_devices(
        ("oversubscription_cost",),
        lambda of: of.shares("time") or (of.shares() and "sharing" not in of.values),
        "the device's threads do not exceed its cores, or share no time slices; raise inter_op or intra_op, "
        "or leave it out",
    ),
    _of_devices(
        ("partition_step",),
        lambda of: bool(of.values.get("partitions")),
        "the SMs are not partitioned; give partitions, or leave it out",
    ),
    _of_devices(
        ("sms",),
        lambda of: of.shares() or (of.timed() and ("use_sms" in of.values or not of.rated())),
        "every op has a duration of its own and kernels share no SMs; let a cost model time ops, say "
        "sharing: sm, or leave it out",
    ),
    _of_devices(
        ("use_sms",),
        _Described.timed,
        "it cuts the rates of a cost model, and every op has a duration of its own, which stays as it is; "
        "leave out the durations, give partitions (which do stretch durations), or leave it out",
    ),
    # -- devices: what ops cost
    _of_devices(
        ("peak", "matrix_peak", "vector_peak", "matrix_block", "default_dtype", "op_overhead"),
        _Described.by_roofline,
        "the device's roofline times no op: each has a duration of its own, or another cost model knows it; "
        "leave out the durations, or the key",
    ),
    _of_devices(
        ("bandwidth",),
        lambda of: of.shares("sm+dram") or of.by_roofline(),
        "the device's roofline times no op, and kernels share no DRAM (sharing: sm+dram); leave out the "
        "durations, or the key",
    ),
    _of_devices(
        ("efficiency", "half_flops"),
        lambda of: of.by_roofline("peak", "matrix_peak", "vector_peak"),
        "it lowers the peak rate of ops that the device's roofline times, and there is no peak or no such "
        "op; give peak and leave out the durations, or leave out the key",
    ),
    _of_devices(
        ("memory_efficiency", "half_bytes", "core_bandwidth"),
        lambda of: of.by_roofline("bandwidth"),
        "it is about the bandwidth of ops that the device's roofline times, and there is no bandwidth, or no "
        "such op; give bandwidth and leave out the durations, or leave out the key",
    ),
    _of_devices(
        ("intra_op_pool",),
        lambda of: of.timed() or of.shares(),
        "the device runs one op at a time, and every op has a duration of its own; leave it out",
    ),
    _of_devices(
        ("intra_op",),
        lambda of: of.timed() or of.shares() or of.may_compete() or "inter_op" not in of.values,
        "it speeds up ops that a cost model times, and every op has a duration of its own; the device has "
        "cores for all its workers. Leave out the durations, or the key",
    ),
    _of_devices(
        ("measured_dtypes",),
        lambda of: of.by_roofline() and any(of.values.get(name) for name in _LOSSES),
        "it says of which data types losses are, and none are given; give efficiency, or leave it out",
    ),
    _of_devices(
        ("serial_fraction", "speedup"),
        lambda of: (
            (of.timed() and (of.device.cores_per_op > 1 or 1 in of.values.get("speedup", ())))
            or of.device.details.intra_op_pool is not None
        ),
        "it is for ops that a cost model times and that use several cores, or share a pool of threads; say "
        "intra_op: 2 or more and leave out the durations, or leave out the key",
    ),
    _of_devices(
        ("cost",),
        _Described.timed,
        "every op that may run on the device has a duration of its own; leave out the durations, or the key",
    ),
    Rule(
        ("cost",),
        lambda case, loc: any(of.timed() for of in _devices(case) if "cost" not in of.values),
        "every op has a duration of its own, or every device its own cost model; leave out one of them",
    ),
    # -- data loading
    _of_pipeline(
        ("size_jitter",),
        lambda of, case: bool(of.size),
        "nothing is read from storage; give the items a size, or leave it out",
    ),
    _of_pipeline(
        ("storage",),
        lambda of, case: bool(of.size) and case.scenario.content.machine is None,
        "items have no size, or the scenario's machine has links that say how fast the storage is; give a "
        "size and no machine, or leave it out",
    ),
    _of_pipeline(
        ("seed",),
        lambda of, case: bool(of.jitter or of.size_jitter),
        "nothing is drawn; give jitter or size_jitter, or leave it out",
    ),
    _of_pipeline(
        ("all_reduce",),
        lambda of, case: of.replicas > 1,
        "one replica has nobody to meet; give replicas: 2 or more, or leave it out",
    ),
    _of_pipeline(
        ("prefetch_factor", "in_order"),
        lambda of, case: bool(of.loaders().get("loader")),
        "the script loads by itself; give num_workers: 1 or more, or leave it out",
    ),
    # -- what-ifs
    Rule(
        tuple(f"workload.what_if.{at}{key}" for at in ("", "*.") for key in ("gap", "cuda_graph.gap")),
        _has_recorded_gap,
        "the machine's GPUs have gaps of their own, and not the recording's; leave out one of the two",
    ),
    # -- the machine
    Rule(
        ("machine.devices.*.ideal",),
        lambda case, loc: any("preset" in of.values for of in _entry(case, loc)),
        "it drops the overheads of a preset, and the device names none; leave out the overheads themselves",
    ),
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
    # -- what policies know, how durations vary
    Rule(
        ("knowledge", "policy.knowledge", "compare.*.knowledge"),
        lambda case, loc: not case.scenario.content.workload.schedules(),
        "a pipeline's schedule is fixed before the run and asks for no duration; leave it out",
    ),
    Rule(
        ("estimate_error",),
        lambda case, loc: case.decisions.knowledge == "estimate",
        "policies know no estimates; say knowledge: estimate, or leave it out",
    ),
    Rule(
        ("noise.straggler_factor",),
        lambda case, loc: case.scenario.content.noise.straggler_probability > 0,  # type: ignore[union-attr]
        "no task is a straggler; give straggler_probability, or leave it out",
    ),
    Rule(
        ("noise.straggler_probability",),
        lambda case, loc: case.scenario.content.noise.straggler_factor != 1,  # type: ignore[union-attr]
        "a straggler takes no longer than others; give straggler_factor, or leave it out",
    ),
    # -- memory
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
    # -- decisions
    Rule(
        ("policy.launch", "compare.*.launch"),
        lambda case, loc: any(not device.workers for device in case.work.machine.devices),
        "the machine has no device that ops are launched on; leave it out",
    ),
    Rule(
        tuple(
            f"workload.{at}ops.*.attributes.async"
            for at in ("", "functions.*.", "sessions.*.workload.", "sessions.*.workload.functions.*.")
        ),
        lambda case, loc: _tensorflow(case) is not None,
        "only TensorFlow's executor runs ops asynchronously; say runtime: tensorflow, or leave it out",
    ),
    Rule(
        ("policy.runs",),
        lambda case, loc: case.scenario.content.iterations > 1,
        "there is one run; say iterations: 2 or more, or leave it out",
    ),
    Rule(
        ("workload.processes",),
        lambda case, loc: not case.decisions.policy.one_process,
        "the sessions of this runtime are always of one process; leave it out",
    ),
    Rule(
        ("policy.intra_op_parallelism_threads", "compare.*.intra_op_parallelism_threads"),
        lambda case, loc: _tensorflow(case) is not None and any(d.workers for d in case.work.machine.devices),
        "it is the size of TensorFlow's intra-op pool, on a CPU; say runtime: tensorflow, give a CPU "
        "intra_op_pool, or leave it out",
    ),
    Rule(
        ("workload.sessions.*.intra_op_parallelism_threads",),
        lambda case, loc: _tensorflow(case) is not None and _makes_intra_op_pool(case, loc),
        "TensorFlow has one intra-op pool a process, of the size that its first session says, and other "
        "runtimes have none of that name; give it to the first session alone (a pool for each session, "
        "TF_OVERRIDE_GLOBAL_THREADPOOL, is not modelled)",
    ),
    Rule(
        ("workload.sessions.*.inter_op_thread_pool",),
        _pools,
        "the policy has one pool; give tensorflow-executor its session_inter_op_thread_pool, or leave it out",
    ),
    # -- pipelines
    Rule(
        _stage_key("recompute") + _stage_key("stage_input") + ("workload.pipeline.backward_dependency",),
        _phase("R"),
        "the schedule recomputes nothing; say checkpoint: always (or except_last), or leave it out",
    ),
    Rule(
        _stage_key("kept_for_weight_grad"),
        _phase("W"),
        "the schedule computes both gradients in one backward, B; choose one that splits it, or leave it out",
    ),
    Rule(
        _stage_key("overlapped"),
        lambda case, loc: any("+" in phase for phase in case.work.graph.phases),
        "no slot of the schedule has a forward and a backward; choose one with such slots, as dualpipe, or "
        "leave it out",
    ),
    Rule(
        ("workload.pipeline.backward_ratio",),
        lambda case, loc: _pipeline(case).graph is not None,
        "it is for layers that are cut from a graph; give graph, or leave it out",
    ),
    Rule(
        ("workload.pipeline.partition",),
        lambda case, loc: any(
            getattr(_pipeline(case), key) is not None for key in ("layers", "profile", "graph")
        ),
        "there are no layers to cut into stages; give layers, profile or graph, or leave it out",
    ),
    Rule(
        ("workload.pipeline.bandwidth", "workload.pipeline.levels"),
        lambda case, loc: str(_pipeline(case).partition).startswith("pipedream"),
        "only PipeDream's planners read it; say partition: pipedream, or leave it out",
    ),
    Rule(
        ("workload.pipeline.portals",),
        lambda case, loc: bool(_pipeline(case).skips),
        "there are no skip connections; give skips, or leave it out",
    ),
    Rule(
        ("workload.pipeline.devices",),
        lambda case, loc: case.scenario.content.machine is not None,
        "there is no machine; give one, or leave it out",
    ),
    Rule(
        ("workload.pipeline.model.tensor_bandwidth",),
        lambda case, loc: _pipeline(case).model.tensor_parallel > 1,
        "a layer is on one device; say tensor_parallel: 2 or more, or leave it out",
    ),
)
"""Every key that has an effect only under a condition that a scenario decides."""
