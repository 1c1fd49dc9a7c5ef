"""The six calls of the driver that split SMs, by ctypes: for machines without the package cuda-bindings.

`LibCuda` answers as ``cuda.bindings.driver`` does, with a code first and then what the call gives. A resource
has the layout of ``cuda.h`` (CUDA driver API, "Data Structures", ``CUdevResource_st``): 144 bytes since CUDA
12.4, of which the number of SMs comes after the first 96.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_int, c_uint, c_void_p
from types import SimpleNamespace
from typing import Any, Final

from sim.base.errors import InfeasibleError


class _Sms(ctypes.Structure):
    _fields_ = (("smCount", c_uint), ("more", c_uint * 11))


class Resource(ctypes.Structure):
    """``CUdevResource``."""

    _fields_ = (("type", c_int), ("padding", ctypes.c_ubyte * 92), ("sm", _Sms))


_SIGNATURES: Final[Mapping[str, Sequence[Any]]] = {
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetDevResource": (c_int, POINTER(Resource), c_int),
    "cuDevSmResourceSplitByCount": (
        POINTER(Resource), POINTER(c_uint), POINTER(Resource), POINTER(Resource), c_uint, c_uint,
    ),
    "cuDevResourceGenerateDesc": (POINTER(c_void_p), POINTER(Resource), c_uint),
    "cuGreenCtxCreate": (POINTER(c_void_p), c_void_p, c_int, c_uint),
    "cuGreenCtxStreamCreate": (POINTER(c_void_p), c_void_p, c_uint, c_int),
}  # fmt: skip


class LibCuda:
    """The driver's own library.

    Parameters
    ----------
    library : ctypes.CDLL, optional
        By default libcuda.so.1, which is wherever the driver is.

    Raises
    ------
    InfeasibleError
        There is no such library, or it is too old for the calls.
    """

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1") if library is None else library
        except OSError as error:
            raise InfeasibleError(
                "partitions of SMs need the package cuda-bindings or libcuda.so.1; neither is here; skipped"
            ) from error

    def _call(self, name: str, *arguments: Any) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise InfeasibleError(f"libcuda has no {name}: it is older than CUDA 12.4; skipped") from None
        function.argtypes, function.restype = _SIGNATURES[name], c_int
        return int(function(*arguments))

    def cuDeviceGet(self, index: int) -> tuple[int, int]:
        """Return the device of a number."""
        device = c_int()
        return self._call("cuDeviceGet", byref(device), index), device.value

    def cuDeviceGetDevResource(self, device: int, kind: int) -> tuple[int, Resource]:
        """Return what a device has of a kind of resource."""
        resource = Resource()
        return self._call("cuDeviceGetDevResource", device, byref(resource), kind), resource

    def cuDevSmResourceSplitByCount(
        self, count: int, whole: Resource, flags: int, least: int
    ) -> tuple[int, list[Resource], int, Resource]:
        """Split SMs; return the groups, how many were made, and what remains."""
        groups, made, remaining = (Resource * count)(), c_uint(count), Resource()
        code = self._call(
            "cuDevSmResourceSplitByCount", groups, byref(made), byref(whole), byref(remaining), flags, least
        )
        return code, list(groups), made.value, remaining

    def cuDevResourceGenerateDesc(self, resources: Sequence[Resource], n: int) -> tuple[int, c_void_p]:
        """Return the description of some resources."""
        described = c_void_p()
        code = self._call("cuDevResourceGenerateDesc", byref(described), (Resource * n)(*resources), n)
        return code, described

    def cuGreenCtxCreate(self, described: c_void_p, device: int, flags: int) -> tuple[int, c_void_p]:
        """Return a context that has these resources alone."""
        context = c_void_p()
        return self._call("cuGreenCtxCreate", byref(context), described, device, flags), context

    def cuGreenCtxStreamCreate(self, context: c_void_p, flags: int, priority: int) -> tuple[int, int]:
        """Return the handle of a stream of such a context."""
        stream = c_void_p()
        code = self._call("cuGreenCtxStreamCreate", byref(stream), context, flags, priority)
        return code, stream.value or 0
