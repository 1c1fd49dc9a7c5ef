"""``workload: {train: {model: llama3-70b, parallel: {tp: 8, pp: 4}, ...}}``: a training step, predicted.

::

    fields ──► model, layout, calibration ──► Training ──► graph of a schedule ──► run ──► report, and fit?

The policy is the pipeline's schedule: ``1f1b``, or ``interleaved-1f1b`` with ``vpp``, where the scenario
names none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from policies.compile.parallel.experts.routing import Routes
from policies.pipeline.registry import check_options
from scenarios.build.train.architecture import Architecture
from scenarios.build.train.layout import Layout
from scenarios.build.train.models import MODELS
from scenarios.build.train.step import is_layered, peaks_of, step_graph
from scenarios.build.train.training import Training, default_schedule
from scenarios.file.document import Document, Loc
from scenarios.work.calibrations.calibrations import calibration_of
from scenarios.work.pipeline.pipeline_report import pipeline_report
from scenarios.work.train.fits import check_fits
from scenarios.work.train.report import train_report
from scenarios.work.train.train_fields import ModelFields, TrainFields
from scenarios.work.workload import Work, Workload
from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.trace import Trace
from sim.words import plugins
from sim.words.errors import InputError, MisfitError, UnknownNameError, located
from sim.words.plugins import Origin

if TYPE_CHECKING:
    from scenarios.fields.policy_fields import Policy

__all__ = ["Train", "training_of"]

_HERE: Loc = ("workload", "train")


class Train(Workload):
    """A training step; its policy is the schedule of its pipeline."""

    train: TrainFields

    def schedules(self) -> Collection[str]:
        """Return the names of all schedules."""
        return plugins.names("sim.pipelines")

    def check_schedule(self, policy: Policy) -> None:
        """Refuse options that the schedule has not; its sizes are those of the layout."""
        assert policy.name is not None
        check_options(policy.name, policy.options)

    def default_policy(self) -> Mapping[str, Any]:
        """Return the schedule that is meant where a scenario names none."""
        return {"name": default_schedule(self.train.parallel.vpp)}

    def misfit(self, document: Document, policy: Policy) -> str | None:
        """Return why sizes do not fit one another; what else is wrong is said by a run."""
        try:
            _under(_training(self.train, document), policy).schedule  # noqa: B018
        except MisfitError as error:
            return error.reason
        except InputError:
            pass
        return None

    def build(self, document: Document, machine: Machine) -> Graph:
        """Refuse: without a schedule there is no graph."""
        raise document.error(_HERE, "has a graph only under a schedule; run one of its cases")

    def default_machine(self) -> Mapping[str, Any]:
        """Return a plain device for each pipeline rank."""
        return {"devices": {"rank": {"kind": "gpu", "count": self.train.parallel.pp}}}

    def work(
        self, document: Document, machine: Machine | None, policy: Policy, loc: Loc, *, seed: int = 0
    ) -> Work:
        """Return graph and devices under a schedule.

        Raises
        ------
        InputError
            Sizes that do not fit each other, an unknown name, a machine beside the calibration.
        """
        if machine is not None:
            raise document.error(
                ("machine",), "a training runs on what its calibration describes, and takes no machine"
            )
        training = _under(training_of(self.train, document), policy)
        try:
            schedule = training.schedule
            graph, devices = step_graph(training, schedule)
        except InputError as error:
            if error.path or isinstance(error, UnknownNameError):
                raise document.wrong(error, loc) from error
            raise document.error(_HERE, str(error)) from error

        peaks = peaks_of(training, schedule)
        names = [device.name for device in devices.devices]

        def report(trace: Trace) -> dict[str, Any]:
            held = {name: {"peak_memory_bytes": at.nbytes} for name, at in zip(names, peaks, strict=True)}
            told = {"train": train_report(trace, training, schedule, peaks), "devices": held}
            if is_layered(training):
                return told
            of = pipeline_report(trace, schedule=schedule, stages=training.pipeline_stages, devices=names)
            of["pipeline"]["memory_bytes"] = [  # buffers included, which are no tensors of the graph
                {part: nbytes for part, nbytes in peak.parts.items() if nbytes} for peak in peaks
            ]
            return {**of, **told}

        def fits(trace: Trace, advise: bool) -> None:
            check_fits(training, peaks, trace.makespan_ns if advise else None)

        return Work(graph, devices, report, fits)


def _under(training: Training, policy: Policy) -> Training:
    return replace(training, policy=policy.name, options=policy.options)


def training_of(fields: TrainFields, document: Document) -> Training:
    """Return the training that the fields of a scenario describe.

    Raises
    ------
    ScenarioError
        With the place: an unknown model or calibration, sizes that do not fit each other.
    """
    with document.placing(*_HERE):
        return _training(fields, document)


def _training(fields: TrainFields, document: Document) -> Training:
    with located("model"):
        model = _architecture(fields.model)
    with located("calibration"):
        calibration = calibration_of(fields.calibration, document, fields.precision, fields.gradients)
    parallel = fields.parallel
    with located("parallel"):
        layout = Layout(
            tp=parallel.tp,
            cp=parallel.cp,
            pp=parallel.pp,
            dp=_replicas(fields),
            ep=parallel.ep,
            chunks=parallel.vpp,
            sequence_parallel=parallel.sequence_parallel,
            sharding=parallel.sharding,
            shard=parallel.shard,
            order=tuple(parallel.order),
            node=fields.node,
        )
    training = Training(
        model=model,
        layout=layout,
        calibration=calibration,
        sequence=fields.sequence,
        micro_batch=fields.micro_batch,
        global_batch=fields.global_batch,
        recompute=fields.recompute,
        gradient_bytes=4 if fields.gradients == "fp32" else 2,
        optimizer_bytes=fields.optimizer_bytes,
        overlap=fields.overlap,
        stage_layers=tuple(fields.stage_layers or ()),
        context=parallel.context,
        flash=fields.flash,
        dropout=fields.dropout,
        imbalance=fields.imbalance,
        routes=_routes(fields, document),
        memory=fields.memory if fields.memory is not None else calibration.memory,
    )
    work = training.work  # sizes that no rank can have are refused here
    if model.experts:
        work.load  # noqa: B018 - and routings
    return training


def _replicas(fields: TrainFields) -> int:
    """Return dp: as it is given, or what is left of the GPUs."""
    of = fields.parallel
    if fields.gpus is None:
        return of.dp
    given, sizes = of.tp * of.cp * of.pp, "tp·cp·pp"
    if "dp" in of.model_fields_set:
        given, sizes = given * of.dp, f"{sizes}·dp"
    if fields.gpus % given or ("dp" in of.model_fields_set and fields.gpus != given):
        raise MisfitError(
            f"{sizes} = {given} ranks do not fill {fields.gpus} GPUs",
            reason=f"{sizes} does not fill the GPUs",
        )
    return of.dp if "dp" in of.model_fields_set else fields.gpus // given


def _routes(fields: TrainFields, document: Document) -> Routes | None:
    """Return the routing that the fields ask for."""
    if fields.routing is None:
        for key in ("capacity_factor", "pad_to_capacity"):
            if getattr(fields, key):
                raise InputError("has no effect without routing", path=(key,))
        return None
    origin = Origin(document.directory, allow_outside=document.allow_outside)
    return Routes(fields.routing, fields.capacity_factor, fields.pad_to_capacity, origin)


def _architecture(fields: ModelFields) -> Architecture:
    given = {key: value for key, value in fields.model_dump().items() if value is not None and key != "name"}
    base: Mapping[str, Any] = {}
    if fields.name is not None:
        if fields.name not in MODELS:
            raise UnknownNameError("model", fields.name, sorted(MODELS))
        base = MODELS[fields.name]
    sizes = {**base, **given}
    for key in ("layers", "hidden", "heads", "vocabulary"):
        if key not in sizes:
            raise InputError(f"has no {key}; give it, or the name of a model that has it")
    if sizes.get("dense_layers", 0) > sizes["layers"]:
        sizes["dense_layers"] = sizes["layers"]
    return Architecture(**sizes)
