"""What may go wrong with a machine: parts fail, slow down and come back; who notices, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, NamedTuple

from sim.faults.sources import Source
from sim.words.units import NS_PER_S

__all__ = ["NCCL_TIMEOUT_NS", "Cause", "Detection", "Failed", "Faults", "HealthCheck", "PartKind"]

NCCL_TIMEOUT_NS: Final = 600 * NS_PER_S
"""How long PyTorch lets a collective over NCCL take by default: 10 minutes, counted from the host's call
(pytorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp: ``kProcessGroupNCCLDefaultTimeout``;
ProcessGroupNCCL.cpp: ``workStartTime_``, set when a ``WorkNCCL`` is made, and ``checkTimeout``). Its
watchdog looks every 100 ms; here it looks at once."""

PartKind = Literal["device", "worker", "link"]


@dataclass(frozen=True)
class Cause(Source):
    """Why parts of a machine fail or become slow. The numbers in `at` are places in `parts`.

    Attributes
    ----------
    kind : str
        What the parts are.
    parts : tuple of int
        Positions of devices or links in the machine, or of workers in `Machine.hosts_in_order`.
    factor : Fraction or None
        So many times longer does all take; None: the part fails.
    lasts_ns : int or None
        So long after, the part is repaired, or as fast as before; None: never.
    silent : bool
        Of a failure: whether connections stay open, as when a machine loses power. Who sends to it, or waits
        for what it sends, notices only after the connection's timeout. Links fail silently, always.
    """

    kind: PartKind = "device"
    parts: tuple[int, ...] = ()
    factor: Fraction | None = None
    lasts_ns: int | None = None
    silent: bool = False


class HealthCheck(NamedTuple):
    """The master asks all workers every `interval_ns`, from time 0, and waits `timeout_ns` for an answer."""

    interval_ns: int
    timeout_ns: int = 0


@dataclass(frozen=True)
class Faults:
    """Everything that may go wrong in a run.

    Attributes
    ----------
    causes : tuple of Cause
    connection_timeout_ns : int or None
        After it a Send or Recv fails that cannot go on; None: it waits for ever.
    collective_timeout_ns : int or None
        The same of a collective, from its launch on a rank.
    health_check : HealthCheck or None
    restart_ns : int or None
        What starting all processes anew takes; None: the run ends where a step is aborted.
    every_steps : int or None
        A checkpoint is written after so many steps; None: never, a restart begins with the first step.
    restore_ns : int
        What loading one takes.
    """

    causes: tuple[Cause, ...] = ()
    connection_timeout_ns: int | None = None
    collective_timeout_ns: int | None = NCCL_TIMEOUT_NS
    health_check: HealthCheck | None = None
    restart_ns: int | None = None
    every_steps: int | None = None
    restore_ns: int = 0


class Failed(NamedTuple):
    """A part that failed.

    Attributes
    ----------
    time_ns : int
    back_ns : int or None
        When it is repaired; None: never.
    cause, kind, name : str
        Of the failure; what the part is; its name.
    part : int
        Its number, as in `Cause.parts`.
    silent : bool
    """

    time_ns: int
    back_ns: int | None
    cause: str
    kind: PartKind
    name: str
    part: int
    silent: bool


class Detection(NamedTuple):
    """Who noticed that a step cannot go on.

    Attributes
    ----------
    how : str
        ``send-recv``, ``health-check`` or ``timeout`` (of a collective).
    by : str
        Device that noticed, or ``master``.
    time_ns : int
    what : str
        The transfer, collective or worker that told it.
    """

    how: str
    by: str
    time_ns: int
    what: str
