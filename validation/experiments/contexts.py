"""Measured contexts and the ops of a plan that run in them: a duration without its context is biased.

====================  ====================================================================================
context               where a prediction uses it
====================  ====================================================================================
warm                  every op by itself: it reads what the op before it has just left, as in a chain
cold - isolated       added if an input has left the L2 cache since it was made: if more bytes were
                      written in between than the cache holds (reuse distance; Mattson et al. 1970,
                      "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2))
results               threads: added for a second result that an op reads, subtracted if it reads none
neighbours            ops beside others on the same SMs (`devices.cores`), 2 and 4 streams
partition p (busy)    parts of the SMs: between alone and busy, by how busy the other parts are predicted
====================  ====================================================================================

Kernels beside foreign products (``neighbours busy``) are kept in the calibration but predict nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from devices.cost.calibration import Calibration
from sim.base.arrays import IntArray
from validation.calibrate.host_costs import READ_SIZE
from validation.cases.calibrated import lookup, quantity
from validation.cases.case import Case
from validation.real.measured_kernels import MATRIX_KINDS

FloatArray = npt.NDArray[np.float64]

_ELEMENT_BYTES: Final = 2  # bfloat16
_READ: Final = 2  # number of matrices that a kernel reads: results of producers, else constants


def durations_ns(case: Case, calibration: Calibration) -> list[int]:
    """Return the duration of each op, with its inputs where the plan leaves them.

    Parameters
    ----------
    case : Case
    calibration : Calibration

    Raises
    ------
    InputError
        The calibration lacks a kernel.
    """
    alone = case.durations_ns(calibration)
    if calibration.backend == "threads":
        return _with_reads(case, alone, calibration)
    cache_bytes = calibration.provenance.get("l2_bytes", 0)
    kinds = {
        context: {table["kind"] for table in calibration.tables if table["context"] == context}
        for context in ("cold", "isolated")
    }
    if calibration.backend != "cuda" or not cache_bytes or len(case.devices) > 1:
        return alone
    far = _far_inputs(case, cache_bytes)
    found = []
    for op, ns, n in zip(case.ops, alone, far, strict=True):
        if n and op.kind in kinds["cold"] & kinds["isolated"]:
            sizes = {"size": op.facts["size"], "repeat": 1}  # the first kernel of an op reads them
            cold, warm = (lookup(calibration, op.kind, context=c, **sizes) for c in ("cold", "isolated"))
            ns += max(0, cold - warm) * n // _READ
        found.append(ns)
    return found


def _with_reads(case: Case, alone_ns: Sequence[int], calibration: Calibration) -> list[int]:
    """Return durations corrected for ops that read no or two results; the calibration's chain reads one."""
    one_ns = quantity(calibration, "read_ns", 0)
    size = {op.name: op.facts.get("size", 0) for op in case.ops}
    found = []
    for op, ns in zip(case.ops, alone_ns, strict=True):
        read = min(_READ, sum(size[name] == size[op.name] for name in op.inputs))
        found.append(ns + (read - 1) * one_ns * size[op.name] ** 2 // READ_SIZE**2)
    return found


def _far_inputs(case: Case, cache_bytes: int) -> list[int]:
    """Return the number of inputs of every op that have left the cache, issued in the order of the case."""
    written = 0
    made: dict[str, int] = {}
    found = []
    for op in case.ops:
        found.append(sum(written - made[name] > cache_bytes for name in op.inputs if name in made))
        matrices = 1 + (op.facts.get("repeat", 1) > 1)  # a result, and a scratch matrix if repeated
        written += matrices * _ELEMENT_BYTES * op.facts.get("size", 0) ** 2 * (op.kind in MATRIX_KINDS)
        made[op.name] = written
    return found


def blended(
    alone_ns: Sequence[int], busy_ns: Sequence[int], device_of: IntArray, busy_share: FloatArray
) -> list[int]:
    """Return durations on partitions, between alone and busy, by how busy the others are.

    Parameters
    ----------
    alone_ns, busy_ns : sequence of int
        By op.
    device_of : array
        The partition of each op.
    busy_share : array of float
        By partition: share of the makespan in which it works.

    Examples
    --------
    >>> blended([100, 100], [120, 120], np.array([0, 1]), np.array([0.25, 0.5]))
    [110, 105]
    """
    others = (busy_share.sum() - busy_share) / max(1, len(busy_share) - 1)
    alone, busy = np.asarray(alone_ns), np.asarray(busy_ns)
    ns = alone + (busy - alone) * others[device_of]
    return np.floor(ns + 0.5).astype(np.int64).tolist()  # type: ignore[no-any-return]
