"""The ``faults:`` of a scenario: parts of the machine that fail, slow down and recover.

::

    faults:
      failures:                                        at given times, by MTBF, or by a count of past failures
        crash: {worker: worker1, at: [30us], repair: 1ms}
        cable: {link: "leaf0->*", mtbf: 200000h, repair: 1h}
        counted: {device: "gpu*", file: counted.csv, over: 1296h, devices: 16384}
      slow_downs:
        heat: {device: gpu0, at: [5us], duration: 20us, factor: 2}
      timeout: {transfer: 1s, collectives: 10min}      how failures are noticed
      health_check: {every: 10s, timeout: 1s}
      restart: 10min                                   what happens then
      checkpoint: {every: 2, restore: 1min}

These faults meet the tasks and transfers of a few steps. `scenarios.training_run.fields` describes failures
in a run of many steps of equal length, with the same fields (`EventFields`, `CountedFields`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from devices.describe.field_types import Duration, fault
from devices.describe.quantities import Count, File, Name, Shorthand, Strict
from scenarios.fields.policy_fields import Slowness
from scenarios.file.document import Document
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.base.files import read_table
from sim.faults import NCCL_TIMEOUT_NS, Cause, Faults, HealthCheck, PartKind
from sim.machine.links import Link
from sim.machine.machine import Machine

# ----------------------------------------------------------------------------------------------------------
# Counted causes of failures: a CSV file with the columns ``component`` and ``count``.


def read_causes(path: Path) -> dict[str, int]:
    """Return component → count of a file; other columns are ignored, and causes with count 0 left out.

    Raises
    ------
    InputError
        A column is missing, a row is malformed, a component is counted twice, or all counts are 0.
    """
    header, rows = read_table(path)
    missing = [name for name in ("component", "count") if name not in header]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}; found {', '.join(header) or 'none'}")
    counts: dict[str, int] = {}
    for where, row in rows:
        component, count = row["component"], row["count"]
        if not component or not count.isdecimal():
            raise InputError(
                f"{where}: should have a component and a whole count, not {component!r}, {count!r}"
            )
        if component in counts:
            raise InputError(f"{where}: {component!r} is counted twice")
        counts[component] = int(count)
    if not any(counts.values()):
        raise InputError(f"{path}: counts no failure")
    return {component: count for component, count in counts.items() if count}


# ----------------------------------------------------------------------------------------------------------


Positive = Annotated[Duration, Field(gt=0)]


class EventFields(Strict):
    """When something happens: by chance, or at given times.

    Attributes
    ----------
    at
        times of the run
    mtbf
        mean time between two events of each part
    """

    at: list[Duration] | None = Field(None, min_length=1)
    mtbf: Positive | None = None

    WAYS: ClassVar[tuple[str, ...]] = ("at", "mtbf")
    """Alternative keys that say when."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        need_one(self, self.WAYS)
        return self


def need_one(fields: Strict, keys: Sequence[str]) -> None:
    """Raise unless exactly one of the keys is given."""
    present = [key for key in keys if getattr(fields, key) is not None]
    if len(present) != 1:
        raise fault(f"needs one of {', '.join(keys)}; found {' and '.join(present) or 'none'}")


def need_own_names(failures: Collection[str], slow_downs: Collection[str]) -> None:
    """Raise if a failure and a slow-down have one name, by which both would come at the same times."""
    if shared := sorted({*failures} & {*slow_downs}):
        raise fault(f"{shared[0]!r} is the name of two causes", ("slow_downs", shared[0]))


class CountedFields(EventFields):
    """... or at the rate of past events that were counted.

    Attributes
    ----------
    count
        failures of this cause in `over`, on `devices`
    file
        CSV with the columns component and count: a cause each row
    over
        time in which they were counted
    devices
        parts on which they were counted
    """

    count: Count | None = None
    file: File | None = None
    over: Positive | None = None
    devices: Count | None = None

    WAYS: ClassVar[tuple[str, ...]] = ("at", "mtbf", "count", "file")

    @model_validator(mode="after")
    def _check_count(self) -> Self:
        counted = self.count is not None or self.file is not None
        if any((value is not None) != counted for value in (self.over, self.devices)):
            raise fault("over and devices go with count or file: when, and on how many, they were counted")
        return self

    def counted_mtbf_ns(self, name: str, document: Document) -> dict[str, Fraction]:
        """Return the mean time between two events of a part, by cause; empty if none were counted."""
        if self.over is None or self.devices is None:
            return {}
        counts = {name: self.count or 0}
        if self.file is not None:
            rows = read_causes(document.file(self.file))
            counts = {f"{name}: {component}": count for component, count in rows.items()}
        return {cause: Fraction(self.over * self.devices, count) for cause, count in counts.items()}


class CauseFields(EventFields):
    """Which parts something happens to, and when: each by chance, or all of them at given times.

    Attributes
    ----------
    device
        name or pattern, such as gpu*
    worker
        ... of a process with all its devices: a host of the machine
    link
        ... of a link
    """

    device: Name | None = None
    worker: Name | None = None
    link: Name | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        need_one(self, get_args(PartKind))
        return self

    def parts(self, machine: Machine) -> dict[str, Any]:
        """Return the arguments of a `Cause` for its parts and times.

        Raises
        ------
        UnknownNameError
            No part has this name.
        """
        names: dict[PartKind, Sequence[str]] = {
            "device": [device.name for device in machine.devices],
            "worker": [host.name for host in machine.hosts_in_order],
            "link": [link.name for link in machine.links],
        }
        kind, pattern = next((kind, getattr(self, kind)) for kind in names if getattr(self, kind) is not None)
        indices = tuple(
            k for k, name in enumerate(names[kind]) if pattern == name or fnmatchcase(name, pattern)
        )
        if not indices:
            with error_path(kind):
                raise UnknownNameError(kind, pattern, names[kind])
        if kind == "link":
            for k in indices:
                _refuse_steady(machine.links[k])
        times = tuple((time_ns, index) for time_ns in self.at or () for index in range(len(indices)))
        mtbf_ns = None if self.mtbf is None else Fraction(self.mtbf)
        return {"kind": kind, "parts": indices, "at": times, "mtbf_ns": mtbf_ns}


def _refuse_steady(link: Link) -> None:
    if link.bandwidth_bytes_per_s is None:
        message = f"{link.name} has no bandwidth that it could lose; give it one"
        raise InputError(message, path=("link",))
    if link.sharing == "fifo":
        message = f"{link.name} carries messages in chunks (sharing: fifo), which cannot change their pace"
        raise InputError(f"{message}; accepted: serial, shared, independent", path=("link",))


class FailureFields(CauseFields, CountedFields):
    """A cause of failures.

    Attributes
    ----------
    repair
        back so long after; default: a device or worker at once, a link never
    detect
        what tells others: a Send or Recv that fails, at once (default); or, where connections stay open, as
        when a machine loses power, timeout: {transfer: ...}
    """

    repair: Duration | None = None
    detect: Literal["send-recv", "timeout"] = "send-recv"

    @model_validator(mode="after")
    def _of_links(self) -> Self:
        if self.link is not None and self.repair == 0:
            raise fault("should be more than 0: how long the link is down", ("repair",))
        if self.link is not None and "detect" in self.model_fields_set:
            raise fault("has no effect: only timeouts tell that a link is down", ("detect",))
        return self


class SlowDownFields(CauseFields):
    """A cause of slowness.

    Attributes
    ----------
    duration
        how long it lasts; default: for ever
    factor
        how many times longer all takes; of a link: 2 is half its bandwidth
    """

    duration: Positive | None = None
    factor: Slowness


class HealthCheckFields(Strict):
    """The master asks all workers.

    Attributes
    ----------
    every
        time between two checks, the first at 0
    timeout
        how long it waits for an answer
    """

    every: Positive
    timeout: Duration = 0


class RestoreFields(Strict):
    """Where a restart begins.

    Attributes
    ----------
    every
        a checkpoint after so many steps
    restore
        time to load one
    """

    every: Count
    restore: Duration = 0


class TimeoutFields(Strict):
    """How long others wait for a part that does not respond.

    Attributes
    ----------
    transfer
        a Send or Recv that stands still; default: it waits for ever
    collectives
        of each, from the call of a rank's host; default: 10min, as NCCL in PyTorch
    """

    transfer: Duration | None = None
    collectives: Duration | None = None


class FaultFields(Strict):
    """Parts of the machine that fail, slow down and recover; how that is noticed, and what follows.

    Attributes
    ----------
    failures
        causes
    slow_downs
        causes
    timeout
        what takes so long fails
    health_check
        how failures are noticed: an interval, or a mapping
    restart
        time to start all processes anew after a failure; default: the run ends
    checkpoint
        default: a restart begins with the first step
    """

    failures: dict[Name, FailureFields] = Field(default_factory=dict)
    slow_downs: dict[Name, SlowDownFields] = Field(default_factory=dict)
    timeout: Annotated[TimeoutFields, Field(default_factory=TimeoutFields)]
    health_check: Annotated[HealthCheckFields, Shorthand("every", "duration")] | None = None
    restart: Duration | None = None
    checkpoint: RestoreFields | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.failures and not self.slow_downs:
            raise fault("needs failures or slow_downs")
        need_own_names(self.failures, self.slow_downs)
        if self.checkpoint is not None and self.restart is None:
            raise fault("has no effect: nothing restarts; give restart", ("checkpoint",))
        return self

    def faults(self, machine: Machine, document: Document) -> Faults:
        """Return the faults for `sim.job.build_job.make_job`.

        Raises
        ------
        ScenarioError
            The machine does not have a part, or a file of causes cannot be read.
        """
        with document.placing("faults", "failures"):
            causes = list(self._failures(machine, document))
        with document.placing("faults", "slow_downs"):
            for name, slow in self.slow_downs.items():
                with error_path(name):
                    met = slow.parts(machine)
                causes.append(Cause(name, **met, factor=Fraction(str(slow.factor)), lasts_ns=slow.duration))
        check = self.health_check
        return Faults(
            tuple(causes),
            self.timeout.transfer,
            NCCL_TIMEOUT_NS if self.timeout.collectives is None else self.timeout.collectives,
            None if check is None else HealthCheck(check.every, check.timeout),
            self.restart,
            None if self.checkpoint is None else self.checkpoint.every,
            0 if self.checkpoint is None else self.checkpoint.restore,
        )

    def _failures(self, machine: Machine, document: Document) -> Iterator[Cause]:
        for name, cause in self.failures.items():
            with error_path(name):
                met = cause.parts(machine)
                counted = cause.counted_mtbf_ns(name, document)
            lasts_ns = 0 if cause.repair is None and cause.link is None else cause.repair
            for component, mtbf_ns in (counted or {name: met["mtbf_ns"]}).items():
                yield Cause(
                    component,
                    **met | {"mtbf_ns": mtbf_ns},
                    lasts_ns=lasts_ns,
                    silent=cause.detect == "timeout",
                )
