"""The ``training_run:`` of a scenario: the scenario is one step, and this a run of many such steps.

::

    training_run:
      duration: 1296h                                 or steps: 100000
      workers: 2048                                   with devices: 8 each; spares: 16 more
      checkpoint: {every: 10min, save: 10s, restore: 1min}
      restart: {job: 5min, worker: 1min}              of all processes, or of one worker's
      failures:                                       by MTBF, at given times, or by a count of past failures
        gpu: {kind: device, mtbf: 50000h, repair: 24h}
        all: {file: counted.csv, over: 1296h, devices: 16384}
      slow_downs: {heat: {kind: worker, mtbf: 2000h, duration: 1h, factor: 1.3}}
      recovery: [restart-job, replace-worker]         the same run under each of them
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from devices.describe.field_types import Bandwidth, Bytes, Duration, fault, quantity_schema, reader
from devices.describe.quantities import Count, Name, Shorthand, Size, Strict, Whole
from scenarios.fields.fault_fields import CountedFields, EventFields, Positive, need_own_names
from scenarios.fields.policy_fields import AnyChoice, Slowness
from scenarios.file.document import Document
from scenarios.training_run.plan import Checkpoints, Detection, Failure, SlowDown, TrainingPlan
from sim.base.arrays import MOST_BUILT
from sim.base.errors import InputError, error_path
from sim.base.units import DURATION, NS_PER_S, format_count, parse_duration, round_half_up
from sim.faults import PartKind


class SourceFields(EventFields):
    """When something happens to machines: to each component by chance, or to a worker at given times.

    Attributes
    ----------
    kind
        component: each device, worker, or link of a worker
    worker
        whom it meets at these times, counted from 0; spares follow workers
    """

    kind: PartKind | None = None
    worker: Whole | None = None

    @model_validator(mode="after")
    def _whom(self) -> Self:
        if (self.worker is None) != (self.at is None):
            raise fault("worker goes with at: whom it meets at these times")
        if (self.kind is None) != (self.mtbf is None):
            raise fault("kind goes with mtbf: device, worker or link, each of which has that mtbf")
        return self

    def when(self, devices: int) -> dict[str, Any]:
        """Return the arguments of a `Source` for its times."""
        if self.at is not None:
            return {"at": tuple((time_ns, self.worker) for time_ns in self.at)}
        return {"mtbf_ns": Fraction(self.mtbf or 0), "per_machine": devices if self.kind == "device" else 1}


class TrainingFailureFields(SourceFields, CountedFields):
    """A cause of failures.

    Attributes
    ----------
    detect
        what tells the run: a Send or Recv that fails, at once (default); the next health check; or the
        timeout of a collective
    repair
        the machine is back so long after; default: at once
    restart
        time of a restart, in place of the run's
    """

    detect: Detection = "send-recv"
    repair: Duration = 0
    restart: Duration | None = None


class TrainingSlowDownFields(SourceFields):
    """A cause of slowness. All workers wait for the slowest.

    Attributes
    ----------
    duration
        how long it lasts
    factor
        how many times longer a step takes
    """

    duration: Positive
    factor: Slowness


def _interval(value: object) -> tuple[int | None, int | None]:
    """Return the interval between checkpoints, in ns or in steps."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise InputError(f"should be a duration, or a number of steps of at least 1, not {value}")
        return None, value
    every_ns = parse_duration(value, what="")
    if not every_ns:
        raise InputError("should be more than 0: the run would do nothing but save")
    return every_ns, None


class CheckpointFields(Strict):
    """When checkpoints are saved, and what that costs.

    Attributes
    ----------
    every
        a checkpoint after so many steps, or at the end of the step so long after the last
    save
        time to write one
    size
        its size, with bandwidth, in place of times
    bandwidth
        of writing and reading it
    asynchronous
        whether the run goes on meanwhile, or after so long; the next one waits for it
    restore
        time to load one; default: 0, or by size
    """

    every: Annotated[
        Any,
        PlainValidator(reader(_interval)),
        WithJsonSchema({"anyOf": [quantity_schema(DURATION), {"type": "integer", "minimum": 1}]}),
    ]
    save: Duration | None = None
    size: Bytes | None = None
    bandwidth: Bandwidth | None = None
    asynchronous: bool | Duration = False
    restore: Duration | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.save is None) == (self.size is None):
            raise fault("needs one of save and size")
        if (self.size is None) != (self.bandwidth is None):
            raise fault("size goes with bandwidth")
        return self

    def checkpoints(self) -> Checkpoints:
        """Return the checkpoints with times in ns."""
        save, restore = self.save, self.restore
        if self.size is not None:
            nbytes, per_s = self.size, self.bandwidth  # None: at once
            save = 0 if per_s is None else round_half_up(Fraction(nbytes * NS_PER_S, per_s))
            restore = save if restore is None else restore
        every_ns, steps = self.every
        pause = 0 if isinstance(self.asynchronous, bool) else self.asynchronous
        return Checkpoints(every_ns, steps, save or 0, self.asynchronous is not False, pause, restore or 0)


class TrainingRun(Strict):
    """The run of many steps, of which the scenario is one: failures, checkpoints, recovery.

    Attributes
    ----------
    steps
        the run ends after so many
    duration
        the run ends then
    workers
        machines that work together
    devices
        devices of each
    spares
        machines that stand by
    replicas
        copies of the model that the workers hold; default: as a step of train lays them out, else one each
    at_least
        fewest workers; default: one replica
    checkpoint
        default: the run is never saved
    restart
        time to start all processes anew; worker: those of one, while the others go on
    health_check
        time between two health checks
    timeout
        how long a collective waits for a worker that does not come
    failures
        causes
    slow_downs
        causes
    recovery
        what the run does after a failure: each is simulated
    """

    steps: Count | None = None
    duration: Positive | None = None
    workers: Size = 1
    devices: Size = 1
    spares: Annotated[Whole, Field(le=1_000_000)] = 0
    replicas: Size | None = None
    at_least: Size | None = None
    checkpoint: CheckpointFields | None = None
    restart: Annotated[dict[Literal["job", "worker"], Duration], Shorthand("job", "duration")] = Field(
        default_factory=dict
    )
    health_check: Duration | None = None
    timeout: Duration | None = None
    failures: dict[Name, TrainingFailureFields] = Field(default_factory=dict)
    slow_downs: dict[Name, TrainingSlowDownFields] = Field(default_factory=dict)
    recovery: list[AnyChoice] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.steps is None) == (self.duration is None):
            raise fault("needs one of steps and duration: where the run ends")
        if self.replicas is not None and self.workers % self.replicas:
            raise fault(f"{format_count(self.workers, 'worker')} cannot form {self.replicas} equal replicas")
        if self.at_least is not None and self.at_least > self.workers:
            raise fault(f"{self.at_least} is more than {format_count(self.workers, 'worker')}", ("at_least",))
        detections = {cause.detect for cause in self.failures.values()}
        for word, interval_ns in (("health-check", self.health_check), ("timeout", self.timeout)):
            key = word.replace("-", "_")
            if word in detections and not interval_ns:
                raise fault(f"{key}: is needed, more than 0: a cause of failure says detect: {word}")
            if word not in detections and interval_ns is not None:
                raise fault(f"has no effect: no cause of failure says detect: {word}", (key,))
        need_own_names(self.failures, self.slow_downs)
        machines = self.workers + self.spares
        if machines * self.devices > MOST_BUILT:
            message = f"{self.devices:,} of each of {machines:,} machines are more than {MOST_BUILT:,} in all"
            raise fault(message, ("devices",))
        for key, causes in (("failures", self.failures), ("slow_downs", self.slow_downs)):
            for name, cause in causes.items():
                if cause.worker is not None and cause.worker >= machines:
                    message = f"{cause.worker} is none of the {machines:,} machines, 0 to {machines - 1}"
                    raise fault(message, (key, name, "worker"))
        if len(names := [choice.name for choice in self.recovery]) > len(set(names)):
            raise fault("names a policy twice", ("recovery",))
        return self

    def plan(self, step_ns: int, document: Document, replica: int | Fraction = 1) -> TrainingPlan:
        """Return the plan in ns: a step takes `step_ns`, a copy of the model by default `replica` workers.

        Raises
        ------
        ScenarioError
            A file of causes cannot be read.
        """
        with document.placing("training_run", "failures"):
            failures = tuple(self._failures(document))
        slow_downs = (
            SlowDown(
                name, **slow.when(self.devices), lasts_ns=slow.duration, factor=Fraction(str(slow.factor))
            )
            for name, slow in self.slow_downs.items()
        )
        replica_size = self.workers // self.replicas if self.replicas else replica
        return TrainingPlan(
            step_ns,
            self.steps,
            self.duration,
            self.workers,
            self.spares,
            replica_size,
            max(self.at_least or 1, ceil(replica_size)),
            Checkpoints() if self.checkpoint is None else self.checkpoint.checkpoints(),
            failures,
            tuple(slow_downs),
            self.restart.get("job", 0),
            self.restart.get("worker", self.restart.get("job", 0)),
            self.health_check or 0,
            self.timeout or 0,
        )

    def _failures(self, document: Document) -> Iterator[Failure]:
        for name, cause in self.failures.items():
            handling: dict[str, Any] = {"detect": cause.detect, "repair_ns": cause.repair}
            handling["restart_ns"] = cause.restart
            with error_path(name):
                counted = cause.counted_mtbf_ns(name, document)
            if not counted:
                yield Failure(name, **cause.when(self.devices), **handling)
            for component, mtbf_ns in counted.items():
                yield Failure(component, mtbf_ns=mtbf_ns, per_machine=self.devices, **handling)
