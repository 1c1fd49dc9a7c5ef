"""Disjoint groups of SMs of one GPU, by a single call that splits all of them.

Partitions that are made one by one may overlap, because each call starts from the whole device. So the driver
is asked once for all groups (``cuDevSmResourceSplitByCount``, CUDA driver API, "Green Contexts"), and each
group gets a context and a stream of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sim.words.errors import InfeasibleError

__all__ = ["partition_streams"]


def partition_streams(count: int, driver: Any = None) -> tuple[list[int], int]:
    """Return the handles of one stream a partition, and how many SMs each partition has.

    Parameters
    ----------
    count : int
        Number of partitions.
    driver : module, optional
        ``cuda.bindings.driver``; imported when it is not given.

    Raises
    ------
    InfeasibleError
        The bindings are not installed, the driver refuses, or the GPU has too few SMs for so many groups.
    """
    if driver is None:
        try:
            driver = import_module("cuda.bindings.driver")
        except ImportError as error:
            raise InfeasibleError(
                "partitions of SMs need the package cuda-bindings, which is not installed here; skipped"
            ) from error

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
    sms = everything.sm.smCount // count
    groups, made, _ = call("cuDevSmResourceSplitByCount", count, everything, 0, max(1, sms // 8 * 8))
    if int(made) < count:
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
