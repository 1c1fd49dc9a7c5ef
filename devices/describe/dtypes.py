"""Data types: a closed list of names, the spellings of frameworks, and bits an element.

::

    dtype: torch.bfloat16  ──dtype_name──►  bf16      peak: {bf16: 989TFLOP/s}
    dtype: bf61            ──dtype_name──►  unknown dtype 'bf61'; did you mean 'bf16'?

A package that has more offers their bits an element under the entry-point group ``sim.dtypes``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from sim.words import plugins
from sim.words.errors import UnknownNameError

__all__ = ["BITS", "INDICES", "dtype_bits", "dtype_name", "no_peak"]

_INTEGERS: Final = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)}

BITS: Final = _INTEGERS | {
    "fp64": 64,
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8": 8,
    "fp4": 4,
    "bool": 8,
    "complex64": 64,
    "complex128": 128,
}
"""Bits an element takes; types under a byte are packed."""

INDICES: Final = frozenset(("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (16, 32, 64))))
"""Types of masks and indices: but for products, what little is computed in them is not what a rate is for."""

_WITHOUT_SIZE: Final = frozenset(("tf32", "string", "resource", "variant"))
"""How fp32 is computed on tensor cores, and types of TensorFlow that nothing computes with."""

_SYNONYMS: Final = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "float16": "fp16", "half":
    "fp16", "bfloat16": "bf16", "tensorfloat32": "tf32", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "float8_e4m3": "fp8", "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8", "float8_e8m0fnu": "fp8",
    "float4_e2m1fn_x2": "fp4", "f64": "fp64", "f32": "fp32", "f16": "fp16", "qint8": "int8", "quint8":
    "uint8", "qint32": "int32", "short": "int16", "int": "int32", "long": "int64",
}  # fmt: skip


@cache
def _known(name: str) -> str | None:
    name = name.lower().rpartition(".")[2]
    name = _SYNONYMS.get(name, name)
    return name if name in BITS or name in _WITHOUT_SIZE else None


def dtype_name(dtype: str) -> str:
    """Return the short name of a data type: ``"fp32"`` for ``"torch.float32"``, ``"FLOAT"`` and ``"f32"``.

    Raises
    ------
    UnknownNameError
        Nobody knows it; the message has the nearest name.

    Examples
    --------
    >>> [dtype_name(name) for name in ("torch.bfloat16", "FLOAT16", "fp32", "int8")]
    ['bf16', 'fp16', 'fp32', 'int8']
    """
    found = _known(dtype)
    if found is not None:
        return found
    registered = plugins.names("sim.dtypes")
    if dtype in registered:
        return dtype
    raise UnknownNameError("dtype", dtype, [*BITS, *sorted(_WITHOUT_SIZE), *registered])


def no_peak(dtype: str, known: Iterable[str]) -> str:
    """Return why an op in a data type cannot be timed, where there is no rate for it, nor one of fp32."""
    stead = "" if dtype == "fp32" else ", nor for fp32, at which others compute"
    return f"no peak is given for {dtype}{stead}; known: {', '.join(known)}"


def dtype_bits(dtype: str) -> int:
    """Return the bits an element takes.

    Raises
    ------
    UnknownNameError
        A data type that nobody knows.
    """
    return BITS[dtype] if dtype in BITS else int(plugins.lookup("sim.dtypes", dtype))
