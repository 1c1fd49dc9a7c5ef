"""Calibration: run small programs on a backend and record what every step of them costs.

Each *block* measures one thing. A sentinel runs before and after it; a block disturbed by the machine is
rejected (but kept in the record) and measured again, at most `ATTEMPTS` times. Then calibrating cores
fails and writes nothing. On a GPU every size of a kernel is a block, and a block that fails is omitted and
listed. The loss is stated: medians minimise the mean absolute error of one step, not of a makespan.

::

    durations    one op at a time, warm, every (kind, size) of a grid
    busy         the same with a neighbour: the cost of running side by side
    launch       a full queue: host time to issue, and the gap between kernels of one stream
    latency      an empty queue: from issue to start
    events       two streams take turns: from record to the start of the waiting op
    decisions    workers under a policy: from readiness to start
    reads        threads: the cost of reading a result instead of a constant
    company      cuda: streams that share all SMs, parts of the SMs alone and while the others are busy
    models       cuda: the segments of whole training steps, at some batch sizes
    probes       cuda: launch queue, copies, allocator, kernels cold, warm and beside others, event hops

On a GPU durations, hops and latencies are differences of makespans of runs without events around ops, and
a driving policy has costs of its own (`validation.calibrate.gpu_costs`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from devices.cost.calibration import Calibration
from validation.calibrate.calibration_probes import probes
from validation.calibrate.gpu_costs import (
    BATCHES,
    PARTITIONS,
    driven,
    frames,
    gpu_streams,
    model_steps,
    partitions,
    shared_sms,
)  # fmt: skip
from validation.calibrate.grid import durations
from validation.calibrate.host_costs import busy_workers, decisions, reads, streams
from validation.calibrate.machine_state import DisturbedError
from validation.calibrate.session import ATTEMPTS, CrowdedError, Session
from validation.cases.backends import Executor, make_backend, provenance
from validation.real.statistics import summary

__all__ = ["ATTEMPTS", "STARTS", "DisturbedError", "calibrate", "not_calibrated"]

STARTS: Final = 3
"""How often a calibration of cores, whose speed has several states, starts over."""


def calibrate(
    backend: str, executor: Executor | None = None, *, deadline: float | None = None
) -> Calibration:
    """Measure all quantities of a backend.

    Parameters
    ----------
    backend : str
        ``"timer"``, ``"threads"`` or ``"cuda"``.
    executor : Executor, optional
        By default the one of that name.
    deadline : float, optional
        Value of `time.monotonic`, on a GPU: optional parts do not start later, and this is reported.

    Raises
    ------
    DisturbedError
        The machine was not quiet, so there is no calibration. On a GPU: not even for one product.
    """
    executor = executor or make_backend(backend)
    spoilt: list[dict[str, Any]] = []
    for start in range(STARTS, 0, -1):
        session = Session(backend, executor, deadline)
        try:
            _measure(session)
            break
        except DisturbedError as error:
            if backend != "threads" or start == 1 or isinstance(error, CrowdedError):
                raise DisturbedError(
                    f"{error}; nothing is written. Stop what else runs on this machine, or try later"
                ) from None
            # Its first blocks may have been the disturbed ones: all of them start over.
            spoilt += [
                {**one, "accepted": False, "why": one.get("why", "begun anew")} for one in session.sentinels
            ]
    session.keep({"sentinel_ns": session.quiet_ns})
    facts = provenance(executor)
    name = facts.get("gpu") or f"{facts['processor']} ({facts['cores']} cores)"
    return Calibration(
        backend,
        f"{name}, {backend}",
        facts,
        {name: summary(values)._asdict() for name, values in sorted(session.samples.items())},
        session.tables,
        [*spoilt, *session.sentinels],
    )


def not_calibrated(calibration: Calibration) -> dict[str, str]:
    """Return the blocks of a calibration that never succeeded, with the last reason; predictions do without
    them, or are not made.
    """  # fmt: skip
    done = {one["block"] for one in calibration.sentinels if one["accepted"]}
    return {one["block"]: one.get("why", "") for one in calibration.sentinels if one["block"] not in done}


def _measure(session: Session) -> None:
    """Measure all blocks of a session's backend."""
    if session.backend == "cuda":
        _measure_gpu(session)
        return
    durations(session)
    if session.backend == "timer":
        streams(session)
    decisions(session)
    if session.backend == "threads":
        busy_workers(session)
        reads(session)


def _measure_gpu(session: Session) -> None:
    frames(session)  # which durations are free of
    durations(session)
    if not any(table["kind"] == "matmul" for table in session.tables):
        raise next(error for name, error in session.lost.items() if name.startswith("durations of matmul"))
    session.attempt("streams", partial(gpu_streams, session), needed=True)
    session.attempt("driven", partial(driven, session))
    shared_sms(session)
    for p in PARTITIONS:
        partitions(session, p)
    for model in BATCHES:
        model_steps(session, model)
    probes(session, session.executor.torch)  # type: ignore[attr-defined]
