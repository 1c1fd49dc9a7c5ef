"""Table of the keys that have an effect only under a condition; without it, the key is refused.

A key that is read and then ignored would mislead the reader of the scenario about its result::

    machine: {devices: {gpu0: {kind: gpu, copy_engines: 1}}}       no links: nothing is ever copied
                                         └──► machine.devices.gpu0.copy_engines: has no effect: ...

Where a key is written decides in which runs it must have an effect. A key of the file: in the scenario's own
run or in an entry of ``compare``; one in the ``set:`` of an entry: in that entry; one of ``--set``: in that
run. Once ``--set`` has changed a scenario, the keys of its file are not checked. Values tried by
``--vary`` are never checked, because a sweep may pass points at which a key means nothing. Nor are presets,
nor the keys of a file that the scenario extends: other scenarios may need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from scenarios.file.document import Loc
from scenarios.file.faults import in_order
from scenarios.run.machine_conditions import OF_MACHINES, Rule
from sim.base.errors import ScenarioError
from sim.base.units import parse_duration

if TYPE_CHECKING:
    from policies.issue.tensorflow_executor import TensorFlowExecutor
    from scenarios.builders.input_pipeline import InputPipeline
    from scenarios.run.scenario import Case
    from scenarios.training_run.fields import TrainingRun


def _tensorflow(case: Case) -> TensorFlowExecutor | None:
    from policies.issue.tensorflow_executor import TensorFlowExecutor

    policy = case.decisions.policy
    return policy if isinstance(policy, TensorFlowExecutor) else None


def _makes_intra_op_pool(case: Case, loc: Loc) -> bool:
    """Whether the intra-op pool has the size that the session at `loc` asks for."""
    threads = case.scenario.document.at(loc)
    return threads is not None and threads.value == case.intra_op_threads


def _pipeline(case: Case) -> Any:
    """Return the ``pipeline:`` of the workload."""
    return case.scenario.content.workload.pipeline  # type: ignore[attr-defined]


def _train(case: Case) -> Any:
    """Return the ``train:`` of the workload."""
    return case.scenario.content.workload.train  # type: ignore[attr-defined]


def _has_experts(case: Case) -> bool:
    from scenarios.workloads.train_workload import architecture_of

    return bool(architecture_of(_train(case).model, case.scenario.document).experts)


def _stragglers(case: Case) -> Any:
    """Return the ``stragglers:`` of the noise."""
    return case.scenario.content.noise.stragglers  # type: ignore[union-attr]


def _has_phase(*letters: str) -> Callable[[Case, Loc], bool]:
    """Return a condition that holds if the schedule has an action of these phases, alone or in one slot."""
    return lambda case, loc: any(set(letters) <= set(phase.split("+")) for phase in case.work.graph.phases)


def _stage_key(name: str) -> tuple[str, ...]:
    return tuple(f"workload.pipeline.{prefix}{name}" for prefix in ("", "stages.*.", "layers.*."))


def _pipeline_rule(names: tuple[str, ...], holds: Callable[[InputPipeline, Case], bool], reason: str) -> Rule:
    """Return a rule for keys of a builder; it can be broken only if the builder is an input pipeline."""

    def holds_for(case: Case, loc: Loc) -> bool:
        from scenarios.builders.input_pipeline import InputPipeline

        builder = getattr(case.scenario.content.workload, "build_", None)
        return not isinstance(builder, InputPipeline) or holds(builder, case)

    return Rule(tuple(f"workload.build.{name}" for name in names), holds_for, reason)


def _has_recorded_gap(case: Case, loc: Loc) -> bool:
    """Whether some GPU of the machine has the gap of the recording."""
    recorded = case.work.graph.device_facts
    return any(
        parse_duration(facts["gap"]) == device.gap_ns
        for device in case.work.machine.devices
        if "gap" in (facts := recorded.get(device.name, recorded.get(device.kind, {})))
    )


def _training(case: Case) -> TrainingRun:
    """Return the ``training_run:`` of the scenario."""
    return case.scenario.content.training_run  # type: ignore[no-any-return]


def _recoveries(case: Case) -> set[str]:
    return {choice.name for choice in _training(case).recovery}


def _before_the_end(case: Case, loc: Loc) -> bool:
    """Whether the time at `loc` is before the end of the training run."""
    end_ns, time = _training(case).duration, case.scenario.document.at(loc)
    return end_ns is None or time is None or parse_duration(time.value) < end_ns


RULES: Final[tuple[Rule, ...]] = (
    *OF_MACHINES,
    # -- decisions: what policies know, how durations vary, threads, sessions
    Rule(
        ("knowledge", "policy.knowledge", "compare.*.knowledge"),
        lambda case, loc: not case.scenario.content.workload.deciders,
        "what a schedule or a batcher decides is fixed before the run and asks for no duration; leave it out",
    ),
    Rule(
        ("iterations", "noise", "memory", "training_run"),
        lambda case, loc: case.scenario.content.workload.deciders != "sim.batchers",
        "a serving engine answers its requests once, in steps of the times and memory that its batcher saw; "
        "leave it out",
    ),
    Rule(
        ("noise.stragglers",),
        lambda case, loc: _stragglers(case).probability > 0 and _stragglers(case).factor != 1,
        "no task takes longer: give a probability above 0 and another factor than 1, or leave it out",
    ),
    Rule(
        ("policy.cuda_graph", "compare.*.cuda_graph"),
        lambda case, loc: any(not device.workers for device in case.work.machine.devices),
        "the machine has no device that ops are launched on; leave it out",
    ),
    Rule(
        tuple(
            f"workload.{prefix}ops.*.attributes.async"
            for prefix in ("", "functions.*.", "sessions.*.workload.", "sessions.*.workload.functions.*.")
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
        lambda case, loc: (
            _tensorflow(case) is not None and any(cpu.workers for cpu in case.work.machine.devices)
        ),
        "it is the size of TensorFlow's intra-op pool, on a CPU; say runtime: tensorflow, give a CPU "
        "intra_op_parallelism_threads, or leave it out",
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
        lambda case, loc: bool(getattr(_tensorflow(case), "sizes", ())),
        "the policy has one pool; give tensorflow-executor its session_inter_op_thread_pool, or leave it out",
    ),
    # -- a pipeline: its stages, layers and cuts
    Rule(
        _stage_key("recompute") + _stage_key("kept.recompute") + ("workload.pipeline.backward_dependency",),
        _has_phase("R"),
        "the schedule recomputes nothing; say checkpoint: always (or except_last), or leave it out",
    ),
    Rule(
        ("workload.pipeline.checkpoint",),
        lambda case, loc: case.decisions.schedule.name != "custom",  # type: ignore[union-attr]
        "a custom order has its own recompute actions (0R3); leave it out",
    ),
    Rule(
        _stage_key("kept.weight_grad"),
        _has_phase("W"),
        "the schedule computes both gradients in one backward, B; choose one that splits it, or leave it out",
    ),
    Rule(
        _stage_key("overlapped"),
        lambda case, loc: any("+" in phase for phase in case.work.graph.phases),
        "no slot of the schedule has a forward and a backward; choose one with such slots, as dualpipe, or "
        "leave it out",
    ),
    Rule(
        ("workload.pipeline.partition",),
        lambda case, loc: _pipeline(case).layers is not None or _pipeline(case).graph is not None,
        "there are no layers to cut into stages; give layers or graph, or leave it out",
    ),
    Rule(
        ("workload.pipeline.bandwidth",),
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
        ("workload.pipeline.model.bandwidth",),
        lambda case, loc: _pipeline(case).model.tp > 1,
        "a layer is on one device; say tp: 2 or more, or leave it out",
    ),
    # -- a training step: groups of ranks that there are not
    Rule(
        ("workload.train.parallel.context",),
        lambda case, loc: _train(case).parallel.cp > 1,
        "each sequence is on one rank; say cp: 2 or more, or leave it out",
    ),
    Rule(
        ("workload.train.parallel.sequence_parallel",),
        lambda case, loc: _train(case).parallel.tp > 1,
        "each layer is on one rank; say tp: 2 or more, or leave it out",
    ),
    Rule(
        ("workload.train.parallel.shard",),
        lambda case, loc: _train(case).parallel.sharding != "none",
        "each replica keeps all; choose a sharding, or leave it out",
    ),
    Rule(
        ("workload.train.parallel.ep",),
        lambda case, loc: _train(case).parallel.ep == 1 or _has_experts(case),
        "the model has no experts; leave it out",
    ),
    # -- a workload: data loading, and what-ifs of recordings
    _pipeline_rule(
        ("jitter.size",),
        lambda builder, case: bool(builder.size),
        "nothing is read from storage; give the items a size, or leave it out",
    ),
    _pipeline_rule(
        ("bandwidth",),
        lambda builder, case: bool(builder.size) and case.scenario.content.machine is None,
        "items have no size, or the scenario's machine has links that say how fast the storage is; give a "
        "size and no machine, or leave it out",
    ),
    _pipeline_rule(
        ("seed",),
        lambda builder, case: bool(builder.jitter),
        "nothing is drawn; give jitter, or leave it out",
    ),
    _pipeline_rule(
        ("all_reduce",),
        lambda builder, case: builder.replicas > 1,
        "one replica has nobody to meet; give replicas: 2 or more, or leave it out",
    ),
    _pipeline_rule(
        ("prefetch_factor", "in_order"),
        lambda builder, case: getattr(builder, "workers", 1) != 0,
        "the script loads by itself; give workers: 1 or more, or leave it out",
    ),
    Rule(
        tuple(f"workload.what_if.{step}{key}" for step in ("", "*.") for key in ("gap", "cuda_graph.gap")),
        _has_recorded_gap,
        "the machine's GPUs have gaps of their own, and not the recording's; leave out one of the two",
    ),
    # -- a training run: what none of its recovery policies uses, and what happens after its end
    Rule(
        ("training_run.failures.*.at.*", "training_run.slow_downs.*.at.*"),
        _before_the_end,
        "the run is over by then; give an earlier time or a longer duration, or leave it out",
    ),
    Rule(
        ("training_run.devices",),
        lambda case, loc: any(
            cause.kind == "device" or (cause.mtbf is None and cause.at is None)
            for cause in (*_training(case).failures.values(), *_training(case).slow_downs.values())
        ),
        "no cause meets single devices; say kind: device, or leave it out",
    ),
    Rule(
        ("training_run.replicas", "training_run.at_least"),
        lambda case, loc: not _recoveries(case) <= {"restart-job", "replace-worker", "wait-for-repair"},
        "these recovery policies keep the run at its full size; name one that shrinks it, or leave it out",
    ),
    Rule(
        ("training_run.restart.worker",),
        lambda case, loc: _recoveries(case) != {"restart-job"},
        "restart-job starts all processes anew; name another recovery policy, or leave it out",
    ),
)
"""All keys that have an effect only under a condition that depends on the scenario."""


def refuse_without_effect(case: Case) -> None:
    """Refuse the keys of a scenario that have no effect.

    Parameters
    ----------
    case : Case
        The run that is about to start.

    Raises
    ------
    ScenarioError
        One line per key, with its place, why it has no effect, and what to do.
    """
    document = case.scenario.document
    lines = {
        str(document.error(loc, f"has no effect: {rule.reason}")): document.place(loc)
        for loc, rule in keys_without_effect(case)
    }
    if lines:
        raise in_order(lines)


def keys_without_effect(case: Case) -> Iterator[tuple[Loc, Rule]]:
    """Yield the paths of the keys that have no effect in a run, each with its rule."""
    document, base = case.scenario.document, case.base.document
    if document.changed == {"--vary"}:  # only a sweep set the values of this point
        return
    for rule in RULES:
        for loc in document.matching(*rule.keys):
            if loc[0] == "compare" and loc[:2] != case.decisions.loc:
                continue  # another entry's
            place = document.place(loc)
            in_file = not place.source.startswith("--")
            other_file = place.source != document.root.place.source
            if (in_file and (document.changed or other_file)) or place.source.startswith("--vary"):
                continue
            everybodys = in_file and loc[0] != "compare" and place == base.place(loc)
            runs = chain([case], _others(case) if everybodys else ())
            if not any(rule.holds(run, loc) for run in runs):
                yield loc, rule


def _others(case: Case) -> Iterator[Case]:
    """Yield the other runs that the file describes; a wrong one is skipped, and reported when it is run."""
    base = case.base
    for i in (None, *range(len(base.variants))):
        with suppress(ScenarioError):
            other = base.case() if i is None else base.entry(i)
            if other.decisions.loc != case.decisions.loc:
                yield other
