"""How many bytes a collective takes and gives, by what the profiler noted of it.

Newer recordings have it with the kernel (``In msg nelems``, ``Out msg nelems``, ``dtype``). Older ones have
the shapes that went in, with the range in which the process group launched the kernel::

    thread    [c10d::allreduce_ ... [nccl:all_reduce, Input Dims [[394241]], Input type ["float"]     ] ]
                                             [cudaLaunchKernel]

Sources: PyTorch, torch/csrc/distributed/c10d/ParamCommsUtils.hpp and ProcessGroupNCCL.cpp (``initWork``);
names of types: c10/core/ScalarType.h, and as C++ spells them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from scenarios.importers.traces.trace_events.event_fields import size
from scenarios.importers.traces.trace_events.wanted import parsed

__all__ = ["given", "message", "taken"]

_ELEMENT = {
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Half": 2, "BFloat16": 2,
    "Short": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "unsigned char": 1, "signed char": 1, "char": 1, "bool": 1, "c10::Half": 2, "c10::BFloat16": 2,
    "short": 2, "short int": 2, "int": 4, "float": 4, "long": 8, "long int": 8, "double": 8,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
"""Bytes of an element, by its type."""


def message(args: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many bytes a kernel takes and gives, if it is noted with it."""
    if "dtype" not in args:
        return 0, 0
    each = _ELEMENT.get(str(args["dtype"]), 0)
    return size(args, "In msg nelems", each), size(args, "Out msg nelems", each)


def taken(args: Mapping[str, Any]) -> int:
    """Return how many bytes went into the range of a collective, by what is noted with it; 0: unknown.

    Examples
    --------
    >>> taken({"Input Dims": [[3, 4], [2]], "Input type": ["c10::Half", "int"]})
    32
    """
    shapes, types = (parsed(args.get(key)) for key in ("Input Dims", "Input type"))
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
        return 0
    sizes = [
        _ELEMENT.get(str(type_), 0) * _elements(shape) for shape, type_ in zip(shapes, types, strict=True)
    ]
    return sum(sizes) if all(sizes) else 0


def _elements(shape: Any) -> int:
    plain = isinstance(shape, list) and all(type(length) is int and length > 0 for length in shape)
    return min(math.prod(shape), 2**53) if plain else 0


def given(name: str, into: int, ranks: int) -> tuple[int, int]:
    """Return how many bytes a collective takes and gives, by its name and what went in; 0: unknown.

    Examples
    --------
    >>> given("nccl:all_reduce", 8, 0), given("nccl:_all_gather_base", 8, 4), given("nccl:all_to_all", 8, 4)
    ((8, 8), (8, 32), (8, 0))
    """
    if "gather" in name:
        return (
            (into, min(into * ranks, 2**53)) if ranks else (0, 0)
        )  # the size of one that gathers is what comes out
    return into, into if re.search(r"all_?reduce|broadcast", name) else 0
