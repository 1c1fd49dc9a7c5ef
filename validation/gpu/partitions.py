"""Disjoint groups of SMs of one GPU, by a single driver call that splits all of them.

Partitions made one by one may overlap, because each call starts from the whole device. So the driver
is called once for all groups (``cuDevSmResourceSplitByCount``, CUDA driver API, "Green Contexts"), and each
group gets a context and a stream of its own. Whether a stream really keeps to its SMs is verified:
`refuse_unbound` compares the time of one kernel on each group with that on all SMs.

The library comes with the driver. A resource has the layout of ``cuda.h`` (CUDA driver API, "Data
Structures", ``CUdevResource_st``): 144 bytes since CUDA 12.4, with the number of SMs after the
first 96.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_int, c_uint, c_void_p
from typing import Any, Final

from sim.base.errors import InfeasibleError

_UNIT: Final = 8
"""Groups of SMs are multiples of this (Hopper; CUDA driver API, ``cuDevSmResourceSplitByCount``)."""

_LEAST_SLOWDOWN: Final = 1.4
"""Required slowdown on half of the SMs, where half of the expected one would be no slowdown at all."""

_RESOURCE_TYPE_SM, _DEFAULT_STREAM, _NON_BLOCKING = 1, 1, 1  # constants of cuda.h


class _Sms(ctypes.Structure):
    _fields_ = (("smCount", c_uint), ("more", c_uint * 11))


class Resource(ctypes.Structure):
    """``CUdevResource``."""

    _fields_ = (("type", c_int), ("padding", ctypes.c_ubyte * 92), ("sm", _Sms))


SIGNATURES: Final[Mapping[str, Sequence[Any]]] = {
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetDevResource": (c_int, POINTER(Resource), c_int),
    "cuDevSmResourceSplitByCount": (
        POINTER(Resource), POINTER(c_uint), POINTER(Resource), POINTER(Resource), c_uint, c_uint,
    ),
    "cuDevResourceGenerateDesc": (POINTER(c_void_p), POINTER(Resource), c_uint),
    "cuGreenCtxCreate": (POINTER(c_void_p), c_void_p, c_int, c_uint),
    "cuGreenCtxStreamCreate": (POINTER(c_void_p), c_void_p, c_uint, c_int),
}  # fmt: skip
"""The required calls, with the types of their arguments."""


def library() -> Any:
    """Return the driver's library.

    Raises
    ------
    InfeasibleError
        There is none.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise InfeasibleError("partitions of SMs need libcuda.so.1, which is not here; skipped") from error


def partition_streams(count: int, driver: Any = None) -> tuple[list[int], int]:
    """Return the handles of one stream per partition, and the number of SMs of each partition.

    Parameters
    ----------
    count : int
        Number of partitions.
    driver : ctypes.CDLL, optional
        By default `library`.

    Raises
    ------
    InfeasibleError
        There is no driver, it refuses, or the GPU has too few SMs for so many groups.
    """
    driver = driver or library()

    def call(name: str, *arguments: Any) -> None:
        function = getattr(driver, name, None)
        if function is None:
            raise InfeasibleError(f"libcuda has no {name}: it is older than CUDA 12.4; skipped")
        function.argtypes, function.restype = SIGNATURES[name], c_int
        if code := function(*arguments):
            raise InfeasibleError(f"{name} failed with {code}; skipped")

    gpu, everything, rest = c_int(), Resource(), Resource()
    groups, made = (Resource * count)(), c_uint()
    call("cuDeviceGet", byref(gpu), 0)
    call("cuDeviceGetDevResource", gpu, byref(everything), _RESOURCE_TYPE_SM)
    # A group lies within one cluster of SMs, so the largest equal groups may not all find room.
    equal = everything.sm.smCount // count // _UNIT * _UNIT
    for least in range(equal, 0, -_UNIT) if equal else (1,):
        made.value = count
        call("cuDevSmResourceSplitByCount", groups, byref(made), byref(everything), byref(rest), 0, least)
        if made.value >= count:
            break
    else:
        raise InfeasibleError(
            f"the GPU's {everything.sm.smCount} SMs make {made.value} groups, not the {count} asked for; "
            "skipped"
        )
    handles = []
    for group in groups:
        described, context, stream = c_void_p(), c_void_p(), c_void_p()
        call("cuDevResourceGenerateDesc", byref(described), byref(group), 1)
        call("cuGreenCtxCreate", byref(context), described, gpu, _DEFAULT_STREAM)
        call("cuGreenCtxStreamCreate", byref(stream), context, _NON_BLOCKING, 0)
        handles.append(stream.value or 0)
    return handles, groups[0].sm.smCount


def refuse_unbound(on_all_ns: float, on_each_ns: Sequence[float]) -> None:
    """Raise if a partition's stream runs on more than its own SMs.

    On one of p equal parts a kernel that fills the GPU takes about p times as long. At least half of that is
    required: on an eighth of the SMs, four times as long.

    Parameters
    ----------
    on_all_ns : float
        Its time on all SMs.
    on_each_ns : sequence of float
        Its time on each of the parts.

    Raises
    ------
    InfeasibleError
        It is too fast on some part.

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
