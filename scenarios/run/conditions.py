"""Keys that have an effect only under a condition; without it they are refused, and its docstring says why.

A key that is read and then ignored would mislead the reader of the scenario about its result::

    machine: {devices: {gpu0: {kind: gpu, copy_engines: 1}}}       no links: nothing is ever copied
                                         └──► machine.devices.gpu0.copy_engines: has no effect: ...

Where a key is written decides in which runs it must have an effect. A key of the file: in the scenario's own
run or in an entry of ``compare``; one in the ``set:`` of an entry: in that entry; one of ``--set``: in that
run. Once ``--set`` has changed a scenario, the keys of its file are not checked. Values tried by
``--vary`` are never checked, because a sweep may pass points at which a key means nothing. Nor are presets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from scenarios.file.document import Loc
from scenarios.file.faults import in_order
from scenarios.file.yaml_read import Place
from scenarios.run.machine_conditions import RULES, rule
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


def _pipeline(case: Case) -> Any:
    """Return the ``pipeline:`` of the workload."""
    return case.scenario.content.workload.pipeline  # type: ignore[attr-defined]


def _has_phase(case: Case, letter: str) -> bool:
    """Whether the schedule has an action of this phase, alone or beside another one in its slot."""
    return any(letter in phase.split("+") for phase in case.work.graph.phases)


def _stage_key(name: str) -> tuple[str, ...]:
    return tuple(f"workload.pipeline.{at}{name}" for at in ("", "stages.*.", "layers.*."))


def _of_pipeline(*names: str) -> Callable[[Callable[[InputPipeline, Case], bool]], object]:
    """Return a decorator like `rule` for keys of a builder, which only an input pipeline can break."""

    def add(holds: Callable[[InputPipeline, Case], bool]) -> None:
        def holds_for(case: Case, loc: Loc) -> bool:
            from scenarios.builders.input_pipeline import InputPipeline

            of = getattr(case.scenario.content.workload, "build_", None)
            return not isinstance(of, InputPipeline) or holds(of, case)

        holds_for.__doc__ = holds.__doc__
        rule(*(f"workload.build.{name}" for name in names))(holds_for)

    return add


def _training(case: Case) -> TrainingRun:
    """Return the ``training_run:`` of the scenario."""
    return case.scenario.content.training_run  # type: ignore[no-any-return]


def _recoveries(case: Case) -> set[str]:
    return {choice.name for choice in _training(case).recovery}


# -- decisions: what policies know, how durations vary, threads, sessions


@rule("knowledge", "policy.knowledge", "compare.*.knowledge")
def _knowledge(case: Case, loc: Loc) -> bool:
    """what a schedule or a batcher decides is fixed before the run and asks for no duration; leave it
    out
    """
    return not case.scenario.content.workload.deciders


@rule("noise.stragglers")
def _lengthens(case: Case, loc: Loc) -> bool:
    """no task takes longer: give a probability above 0 and another factor than 1, or leave it out"""
    stragglers: Any = case.scenario.content.noise.stragglers  # type: ignore[union-attr]
    return bool(stragglers.probability > 0 and stragglers.factor != 1)


@rule("policy.cuda_graph", "compare.*.cuda_graph")
def _cuda_graph(case: Case, loc: Loc) -> bool:
    """the machine has no device that ops are launched on; leave it out"""
    return any(not device.workers for device in case.work.machine.devices)


@rule(
    *(
        f"workload.{at}ops.*.attributes.async"
        for at in ("", "functions.*.", "sessions.*.workload.", "sessions.*.workload.functions.*.")
    )
)
def _is_asynchronous(case: Case, loc: Loc) -> bool:
    """only TensorFlow's executor runs ops asynchronously; say runtime: tensorflow, or leave it out"""
    return _tensorflow(case) is not None


@rule("policy.runs")
def _runs(case: Case, loc: Loc) -> bool:
    """there is one run; say iterations: 2 or more, or leave it out"""
    return case.scenario.content.iterations > 1


@rule("workload.processes")
def _processes(case: Case, loc: Loc) -> bool:
    """the sessions of this runtime are always of one process; leave it out"""
    return not case.decisions.policy.one_process


@rule("policy.intra_op_parallelism_threads", "compare.*.intra_op_parallelism_threads")
def _intra_op_parallelism_threads(case: Case, loc: Loc) -> bool:
    """it is the size of TensorFlow's intra-op pool, on a CPU; say runtime: tensorflow, give a CPU
    intra_op_parallelism_threads, or leave it out
    """
    return _tensorflow(case) is not None and any(d.workers for d in case.work.machine.devices)


@rule("workload.sessions.*.intra_op_parallelism_threads")
def _sessions_intra_op_parallelism_threads(case: Case, loc: Loc) -> bool:
    """TensorFlow has one intra-op pool a process, of the size that its first session says, and other
    runtimes have none of that name; give it to the first session alone (a pool for each session,
    TF_OVERRIDE_GLOBAL_THREADPOOL, is not modelled)
    """
    asked = case.scenario.document.at(loc)
    makes_the_pool = asked is not None and asked.value == case.intra_op_threads
    return _tensorflow(case) is not None and makes_the_pool


@rule("workload.sessions.*.inter_op_thread_pool")
def _sessions_inter_op_thread_pool(case: Case, loc: Loc) -> bool:
    """the policy has one pool; give tensorflow-executor its session_inter_op_thread_pool, or leave it
    out
    """
    policy = _tensorflow(case)
    return policy is not None and bool(policy.sizes)


# -- a pipeline: its stages, layers and cuts


@rule(*_stage_key("recompute") + _stage_key("kept.recompute") + ("workload.pipeline.backward_dependency",))
def _recompute(case: Case, loc: Loc) -> bool:
    """the schedule recomputes nothing; say checkpoint: always (or except_last), or leave it out"""
    return _has_phase(case, "R")


@rule(*_stage_key("kept.weight_grad"))
def _weight_grad(case: Case, loc: Loc) -> bool:
    """the schedule computes both gradients in one backward, B; choose one that splits it, or leave it
    out
    """
    return _has_phase(case, "W")


@rule(*_stage_key("overlapped"))
def _overlapped(case: Case, loc: Loc) -> bool:
    """no slot of the schedule has a forward and a backward; choose one with such slots, as dualpipe,
    or leave it out
    """
    return any("+" in phase for phase in case.work.graph.phases)


@rule("workload.pipeline.partition")
def _pipeline_partition(case: Case, loc: Loc) -> bool:
    """there are no layers to cut into stages; give layers or graph, or leave it out"""
    return _pipeline(case).layers is not None or _pipeline(case).graph is not None


@rule("workload.pipeline.bandwidth")
def _pipeline_bandwidth(case: Case, loc: Loc) -> bool:
    """only PipeDream's planners read it; say partition: pipedream, or leave it out"""
    return str(_pipeline(case).partition).startswith("pipedream")


@rule("workload.pipeline.portals")
def _pipeline_portals(case: Case, loc: Loc) -> bool:
    """there are no skip connections; give skips, or leave it out"""
    return bool(_pipeline(case).skips)


@rule("workload.pipeline.devices")
def _pipeline_devices(case: Case, loc: Loc) -> bool:
    """there is no machine; give one, or leave it out"""
    return case.scenario.content.machine is not None


@rule("workload.pipeline.model.bandwidth")
def _pipeline_model_bandwidth(case: Case, loc: Loc) -> bool:
    """a layer is on one device; say tp: 2 or more, or leave it out"""
    return bool(_pipeline(case).model.tp > 1)


# -- a workload: data loading, and what-ifs of recordings


@_of_pipeline("jitter.size")
def _jitter_size(of: InputPipeline, case: Case) -> bool:
    """nothing is read from storage; give the items a size, or leave it out"""
    return bool(of.size)


@_of_pipeline("bandwidth")
def _bandwidth(of: InputPipeline, case: Case) -> bool:
    """items have no size, or the scenario's machine has links that say how fast the storage is; give a
    size and no machine, or leave it out
    """
    return bool(of.size) and case.scenario.content.machine is None


@_of_pipeline("seed")
def _seed(of: InputPipeline, case: Case) -> bool:
    """nothing is drawn; give jitter, or leave it out"""
    return bool(of.jitter)


@_of_pipeline("all_reduce")
def _all_reduce(of: InputPipeline, case: Case) -> bool:
    """one replica has nobody to meet; give replicas: 2 or more, or leave it out"""
    return of.replicas > 1


@_of_pipeline("prefetch_factor", "in_order")
def _prefetch_factor(of: InputPipeline, case: Case) -> bool:
    """the script loads by itself; give workers: 1 or more, or leave it out"""
    return getattr(of, "workers", 1) != 0


@rule(*(f"workload.what_if.{at}{key}" for at in ("", "*.") for key in ("gap", "cuda_graph.gap")))
def _recorded_gap(case: Case, loc: Loc) -> bool:
    """the machine's GPUs have gaps of their own, and not the recording's; leave out one of the two"""
    known = case.work.graph.device_facts
    return any(
        parse_duration(facts["gap"]) == device.gap_ns
        for device in case.work.machine.devices
        if "gap" in (facts := known.get(device.name, known.get(device.kind, {})))
    )


# -- a training run: what none of its recovery policies uses, and what happens after its end


@rule("training_run.failures.*.at.*", "training_run.slow_downs.*.at.*")
def _before_the_end(case: Case, loc: Loc) -> bool:
    """the run is over by then; give an earlier time or a longer duration, or leave it out"""
    end_ns, given = _training(case).duration, case.scenario.document.at(loc)
    return end_ns is None or given is None or parse_duration(given.value) < end_ns


@rule("training_run.devices")
def _devices(case: Case, loc: Loc) -> bool:
    """no cause meets single devices; say kind: device, or leave it out"""
    return any(
        each.kind == "device" or (each.mtbf is None and each.at is None)
        for each in (*_training(case).failures.values(), *_training(case).slow_downs.values())
    )


@rule("training_run.replicas", "training_run.at_least")
def _replicas(case: Case, loc: Loc) -> bool:
    """these recovery policies keep the run at its full size; name one that shrinks it, or leave it out"""
    return not _recoveries(case) <= {"restart-job", "replace-worker", "wait-for-repair"}


@rule("training_run.restart.worker")
def _restart_worker(case: Case, loc: Loc) -> bool:
    """restart-job starts all processes anew; name another recovery policy, or leave it out"""
    return _recoveries(case) != {"restart-job"}


# ----------------------------------------------------------------------------------------------------------


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
    document, base = case.scenario.document, case.base.document
    if document.changed == {"--vary"}:  # only a sweep set the values of this point
        return
    lines: dict[str, Place] = {}
    for condition in RULES:
        for loc in document.matching(*condition.keys):
            if loc[0] == "compare" and loc[:2] != case.decisions.loc:
                continue  # another entry's
            place = document.place(loc)
            in_file = not place.source.startswith("--")
            if (document.changed and in_file) or place.source.startswith("--vary"):
                continue
            everybodys = in_file and loc[0] != "compare" and place == base.place(loc)
            asked = chain([case], _others(case) if everybodys else ())
            if not any(condition.holds(each, loc) for each in asked):
                lines[str(document.error(loc, f"has no effect: {condition.why}"))] = place
    if lines:
        raise in_order(lines)


def _others(case: Case) -> Iterator[Case]:
    """Yield the other runs that the file describes; a wrong one is skipped, and reported when it is run."""
    base = case.base
    for i in (None, *range(len(base.variants))):
        with suppress(ScenarioError):
            other = base.case() if i is None else base.entry(i)
            if other.decisions.loc != case.decisions.loc:
                yield other
