"""A CPU: worker threads that issue ops and execute them, each op on some of the cores.

::

    inter_op workers   w0 ──op──► intra_op cores      TensorFlow's inter_op_parallelism_threads and
                       w1 ──op──► intra_op cores      intra_op_parallelism_threads, PyTorch's interop
                       ...                            and intraop threads

What is left out is the ideal: ``{kind: cpu, cores: 4}`` has four workers, one core an op, no overhead.

More cores for one op help less and less. `speedup` is Amdahl's law (*Validity of the single processor
approach to achieving large scale computing capabilities*, AFIPS 1967) for a `serial_fraction`, or a
measured curve. It scales what the cost model says; a duration that the graph gives is taken as it is.

With ``intra_op_pool`` ops have no cores of their own: all that run at once share the threads of one pool
(`devices.processor.cpu_cores`).

Two pools whose product exceeds the cores are oversubscribed. By default the operating system then slices
time (``sharing: time``, see `devices.processor.cpu_cores`); with ``sharing: cores`` an op waits until
its cores are free (`devices.processor.cpu_cores`).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from devices.cost.cost_description import make_cost
from devices.describe.field_reading import common_arguments
from devices.processor.cpu_cores import CorePool, IntraOpPool, TimeShare, least_ns
from sim.base.errors import InputError
from sim.base.plugins import NOWHERE, Origin
from sim.machine.device import Device


def speedup(
    cores: int | Fraction,
    serial_fraction: Fraction = Fraction(0),
    curve: Mapping[int, Fraction] | None = None,
) -> Fraction:
    """Return how much faster an op runs on `cores` cores than on one.

    Parameters
    ----------
    cores : int or Fraction
        At least 1.
    serial_fraction : Fraction
        Part of an op that only one core works on.
    curve : mapping of int to Fraction, optional
        Measured speed-up by number of cores: linear in between, constant beyond the largest number, and 1
        for one core unless it says otherwise.

    Examples
    --------
    >>> speedup(4), speedup(4, Fraction(1, 5)), speedup(3, curve={2: Fraction(2), 4: Fraction(3)})
    (Fraction(4, 1), Fraction(5, 2), Fraction(5, 2))
    """
    if curve is None:
        return 1 / (serial_fraction + (1 - serial_fraction) / cores)
    points = {1: Fraction(1), **curve}
    below = max(n for n in points if n <= cores)
    above = min((n for n in points if n >= cores), default=below)
    if above == below:
        return points[below]
    return points[below] + (points[above] - points[below]) * Fraction(cores - below, above - below)


def build(name: str, values: Mapping[str, Any], origin: Origin = NOWHERE) -> Device:
    """Return the device of a CPU's description.

    Parameters
    ----------
    name : str
    values : mapping
        The description as `devices.describe.field_reading.read_fields` returns it.
    origin : Origin
        Where relative paths in it begin, and what code it may name.

    Raises
    ------
    InputError
        More cores an op than there are, two ways to say how cores speed up an op, or a staging bandwidth
        of memory that is not pageable.

    Examples
    --------
    >>> device = build("cpu0", {"kind": "cpu", "cores": 4, "intra_op": 2})
    >>> device.workers, device.cores_per_op
    (2, 2)
    """
    cores, pool = values.get("cores", 1), values.get("intra_op_pool")
    intra_op = values.get("intra_op", 1 if pool is None else min(pool, cores))
    if intra_op > cores:
        raise InputError(f"an op cannot use {intra_op} of {cores} cores", path=("intra_op",))
    if "speedup" in values and "serial_fraction" in values:
        raise InputError("give speedup or serial_fraction, not both")
    if pool is not None:
        intra_op = min(intra_op, pool)
    workers = values.get("inter_op", cores // intra_op if pool is None else cores)
    oversubscribed = workers * intra_op > cores
    sharing = values.get("sharing", "time" if oversubscribed else "none")
    if sharing not in ("none", "cores", "time"):
        raise InputError(f"a CPU shares none, cores or time, not {sharing!r}", path=("sharing",))
    pageable = values.get("host_memory") == "pageable"
    if "staging_bandwidth" in values and not pageable:
        raise InputError("it takes effect only with host_memory: pageable", path=("staging_bandwidth",))
    serial, curve = values.get("serial_fraction", Fraction(0)), values.get("speedup")
    faster = speedup(intra_op, serial, curve)
    cost = make_cost(
        values,
        peak_share=faster / cores,
        bandwidth_share=_bandwidth_share(values, cores, faster),
        slowdown=1 / faster,
        origin=origin,
    )
    processor: Any = {"none": None, "cores": CorePool, "time": TimeShare}[sharing] if oversubscribed else None
    if pool is not None and sharing != "time" and "sharing" in values:
        raise InputError(
            "ops share the threads of the intra_op_pool; say time, or leave it out", path=("sharing",)
        )
    shared: dict[str, int | None] = {"intra_op_pool": None}
    least = None
    if pool is not None and min(intra_op, workers) > 1:  # an op of one thread is run by its worker
        of_threads = partial(speedup, serial_fraction=serial, curve=curve)
        processor, least = partial(IntraOpPool, of_threads), partial(least_ns, of_threads)
        shared = {"intra_op_pool": pool}
    return Device(
        **common_arguments(name, {**values, **shared}),
        workers=workers,
        cores=cores,
        cores_per_op=intra_op,
        pageable=pageable,
        staging_bytes_per_s=values.get("staging_bandwidth"),
        cost=cost,
        processor=processor,
        least_ns=least,
    )


def _bandwidth_share(values: Mapping[str, Any], cores: int, faster: Fraction) -> Fraction:
    """Return the part of the memory bandwidth that one op can draw."""
    bandwidth, of_core = values.get("bandwidth"), values.get("core_bandwidth")
    if bandwidth is None or of_core is None:
        return min(Fraction(1), faster / cores)
    return min(Fraction(1), faster * Fraction(of_core, bandwidth))
