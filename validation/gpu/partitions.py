"""Disjoint groups of SMs of one GPU, by a single call that splits all of them.

Partitions that are made one by one may overlap, because each call starts from the whole device. So the driver
is asked once for all groups (``cuDevSmResourceSplitByCount``, CUDA driver API, "Green Contexts"), and each
group gets a context and a stream of its own. Whether a stream then keeps to its SMs is not taken on trust:
`refuse_unbound` compares how long one kernel takes on each with how long it takes on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from sim.base.errors import InfeasibleError
from validation.gpu.libcuda import LibCuda

_UNIT: Final = 8
"""Groups of SMs are multiples of this (Hopper; CUDA driver API, ``cuDevSmResourceSplitByCount``)."""

_LEAST_SLOWDOWN: Final = 1.4
"""On half of the SMs, where half of what is expected would be no slowdown at all."""


def partition_streams(count: int, driver: Any = None) -> tuple[list[int], int]:
    """Return the handles of one stream a partition, and how many SMs each partition has.

    Parameters
    ----------
    count : int
        Number of partitions.
    driver : module, optional
        By default ``cuda.bindings.driver``, and where that is not installed, the driver's library itself.

    Raises
    ------
    InfeasibleError
        There is no driver, it refuses, or the GPU has too few SMs for so many groups.
    """
    driver = driver or _driver()

    def call(name: str, *arguments: Any) -> Any:
        function = getattr(driver, name, None)
        if function is None:
            raise InfeasibleError(
                f"the driver bindings have no {name}: they are older than CUDA 12.4; skipped"
            )
        code, *values = function(*arguments)
        if getattr(code, "value", code) != 0:  # an enumeration, of whole numbers in some versions
            raise InfeasibleError(f"{name} failed with {code}; skipped")
        return values[0] if len(values) == 1 else values

    gpu = call("cuDeviceGet", 0)
    everything = call("cuDeviceGetDevResource", gpu, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    # A group lies within one cluster of SMs, so the largest equal groups may not all find room.
    equal = everything.sm.smCount // count // _UNIT * _UNIT
    for least in range(equal, 0, -_UNIT) if equal else (1,):
        groups, made, _ = call("cuDevSmResourceSplitByCount", count, everything, 0, least)
        if int(made) >= count:
            break
    else:
        raise InfeasibleError(
            f"the GPU's {everything.sm.smCount} SMs make {made} groups, not the {count} asked for; skipped"
        )
    handles = []
    for group in groups[:count]:
        described = call("cuDevResourceGenerateDesc", [group], 1)
        context = call(
            "cuGreenCtxCreate", described, gpu, driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        )
        handles.append(
            int(call("cuGreenCtxStreamCreate", context, driver.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
        )
    return handles, int(groups[0].sm.smCount)


def _driver() -> Any:
    """Return the bindings of the driver, and where there are none, its library."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError:
        return LibCuda()


def driver_here() -> bool:
    """Return whether there is a driver that could be asked."""
    try:
        return bool(_driver())
    except InfeasibleError:
        return False


def refuse_unbound(on_all_ns: float, on_each_ns: Sequence[float]) -> None:
    """Refuse partitions whose streams run on more than their own SMs.

    On one of p equal parts a kernel that fills the GPU takes some p times as long. At least half of that is
    demanded: on an eighth of the SMs, four times as long.

    Parameters
    ----------
    on_all_ns : float
        How long it takes on all SMs.
    on_each_ns : sequence of float
        How long it takes on each of the parts.

    Raises
    ------
    InfeasibleError
        On some part it is too fast.

    Examples
    --------
    >>> refuse_unbound(100, [405] * 8)
    >>> refuse_unbound(100, [800] * 7 + [101])
    Traceback (most recent call last):
    sim.base.errors.InfeasibleError: a partition does not bind: on 1/8 of the SMs a product ...
    """
    least = max(_LEAST_SLOWDOWN, len(on_each_ns) / 2)
    slowdown = min(on_each_ns) / on_all_ns
    if slowdown < least:
        raise InfeasibleError(
            f"a partition does not bind: on 1/{len(on_each_ns)} of the SMs a product takes {slowdown:.1f} "
            f"times as long as on all of them, which has to be {least:g} times at least; skipped"
        )
