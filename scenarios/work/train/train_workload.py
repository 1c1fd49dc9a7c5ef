"""``workload: {train: {model: llama3-70b, parallel: {tp: 8, pp: 4}, ...}}``: a training step, predicted.

::

    fields ──► model, layout, calibration ──► Training ──► graph of a schedule ──► run ──► report, and fit?

The policy is the pipeline's schedule: ``1f1b``, or ``interleaved-1f1b`` with ``vpp``, where the scenario
names none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from policies.compile.parallel.experts.routing import Routes
from scenarios.build.train.architecture import Architecture
from scenarios.build.train.calibration import Calibration
from scenarios.build.train.layout import Layout
from scenarios.build.train.models import MODELS
from scenarios.build.train.step import is_layered, step_graph
from scenarios.build.train.training import Training
from scenarios.file.document import Document, Loc
from scenarios.work.pipeline.pipeline_report import pipeline_report
from scenarios.work.train.calibrations import named_calibration, read_calibration, to_calibration
from scenarios.work.train.fits import check_fits
from scenarios.work.train.report import peaks_of, train_report
from scenarios.work.train.train_fields import ModelFields, TrainFields
from scenarios.work.workload import Work, Workload
from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.trace import Trace
from sim.words import plugins
from sim.words.errors import InputError, ScenarioError, UnknownNameError
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

    def default_schedule(self) -> str:
        """Return the schedule that is meant where a scenario names none."""
        return "interleaved-1f1b" if self.train.parallel.vpp > 1 else "1f1b"

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
        training = training_of(self.train, document)
        options = dict(policy.options)
        assert policy.name is not None
        try:
            schedule = training.schedule_of(policy.name, **options)
            if schedule.stages != training.stages:
                raise InputError(
                    f"{policy.name} has {schedule.stages} stages, and pp·vpp = {training.stages}"
                )
            graph, devices = step_graph(training, schedule)
        except InputError as error:
            if error.path or isinstance(error, UnknownNameError):
                raise document.wrong(error, loc) from error
            raise document.error(_HERE, str(error)) from error

        def report(trace: Trace) -> dict[str, Any]:
            told = {"train": train_report(trace, training, schedule)}
            if is_layered(training):
                return told
            names = [device.name for device in devices.devices]
            stages = training.pipeline_stages
            return {**pipeline_report(trace, schedule=schedule, stages=stages, devices=names), **told}

        return Work(
            graph, devices, report, partial(_check, training=training, peaks=peaks_of(training, schedule))
        )


def _check(trace: Trace, training: Training, peaks: list[Any]) -> None:
    check_fits(training, peaks, trace.makespan_ns)


def training_of(fields: TrainFields, document: Document) -> Training:
    """Return the training that the fields of a scenario describe.

    Raises
    ------
    ScenarioError
        With the place: an unknown model or calibration, sizes that do not fit each other.
    """
    part: Loc = _HERE
    try:
        part = (*_HERE, "model")
        model = _architecture(fields.model)
        part = (*_HERE, "calibration")
        calibration = _calibration(fields, document)
        part = (*_HERE, "parallel")
        parallel = fields.parallel
        layout = Layout(
            tp=parallel.tp,
            cp=parallel.cp,
            pp=parallel.pp,
            dp=parallel.dp,
            ep=parallel.ep,
            chunks=parallel.vpp,
            sequence_parallel=parallel.sequence_parallel,
            sharding=parallel.sharding,
            shard=parallel.shard,
            order=tuple(parallel.order),
            node=fields.node,
        )
        part = _HERE
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
        if training.model.experts:
            training.work.load  # noqa: B018 - sizes that no rank can have are refused here
        training.work  # noqa: B018
        return training
    except ScenarioError:
        raise
    except InputError as error:
        if error.path:
            raise document.wrong(error, part) from error
        raise document.error(part, str(error)) from error


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


def _calibration(fields: TrainFields, document: Document) -> Calibration:
    given = fields.calibration
    if not isinstance(given, str):
        return to_calibration(given, "calibration", fields.precision)
    if given.removesuffix(".gz").endswith((".yaml", ".yml", ".json")):
        return read_calibration(document.file(given), fields.precision, fields.gradients)
    return named_calibration(given, fields.precision)
