"""The data types: a closed list. It is needed where kernels are measured, beside numpy alone.

Of each:

bits    an element takes, without the scale of its block (fp8_block, mx..., nv...); under a byte it is packed
also    spellings of frameworks and of C++, in lower case and without their namespace
index   of masks and indices; but for products, what little is computed in them is not what a rate is for
bytes   in kernels, with the share of the scale of a block; left out: kernels are taken for those of fp32
peak    whose peak it runs at where the data sheet does not name it
fits    whose fits it takes where it has none; left out: those of fp32, bf16, fp16
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_OF_8_BITS: Final = ("fp8", "bf16", "fp16", "fp32")
_OF_4_BITS: Final = ("nvfp4", "mxfp4", *_OF_8_BITS)
_INT8: Final = ("qint8", "char", "signed char", "s8", "uint8", "quint8", "byte", "unsigned char", "u8")
"""Matrix units multiply both, and mixed: PTX's mma has .s8 and .u8."""
_FLOAT8: Final = tuple(
    f"float8{joined}{form}"
    for form in ("e4m3", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0", "e8m0fnu")
    for joined in ("_", "")
)

DTYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "int2": {"bits": 2},
    "int4": {"bits": 4, "bytes": 0.5, "peak": "int8", "fits": _OF_4_BITS, "also": ("s4",)},
    "int8": {"bits": 8, "bytes": 1, "peak": "fp8", "fits": _OF_8_BITS, "also": _INT8},
    "int16": {"bits": 16, "bytes": 2, "index": True, "also": ("short", "short int", "s16")},
    "int32": {"bits": 32, "bytes": 4, "index": True, "also": ("qint32", "int", "s32")},
    "int64": {"bits": 64, "bytes": 8, "index": True, "also": ("long", "long int", "s64")},
    "uint2": {"bits": 2},
    "uint4": {"bits": 4, "also": ("u4",)},
    "uint16": {"bits": 16, "bytes": 2, "index": True, "also": ("u16",)},
    "uint32": {"bits": 32, "bytes": 4, "index": True, "also": ("u32",)},
    "uint64": {"bits": 64, "bytes": 8, "index": True, "also": ("u64",)},
    "fp64": {"bits": 64, "bytes": 8, "also": ("float64", "double", "f64")},
    "fp32": {"bits": 32, "bytes": 4, "also": ("float32", "float", "f32")},
    "fp16": {
        "bits": 16,
        "bytes": 2,
        "peak": "bf16",
        "fits": ("bf16", "fp32"),
        "also": ("float16", "half", "f16"),
    },
    "bf16": {"bits": 16, "bytes": 2, "peak": "fp16", "fits": ("fp16", "fp32"), "also": ("bfloat16",)},
    "fp8": {"bits": 8, "bytes": 1, "fits": _OF_8_BITS, "also": _FLOAT8},
    "fp4": {
        "bits": 4,
        "bytes": 0.5,
        "peak": "nvfp4",
        "fits": _OF_4_BITS,
        "also": ("float4_e2m1fn_x2", "float4e2m1"),
    },
    "fp8_block": {"bits": 8, "bytes": 1, "peak": "fp8", "fits": _OF_8_BITS},
    "mxfp8": {"bits": 8, "bytes": 1.03125, "peak": "fp8", "fits": _OF_8_BITS},  # a byte of scale for 32
    "mxfp4": {"bits": 4, "bytes": 0.53125, "peak": "nvfp4", "fits": _OF_4_BITS},  # ... for 32
    "nvfp4": {"bits": 4, "bytes": 0.5625, "fits": _OF_4_BITS},  # ... for 16
    "bool": {"bits": 8, "bytes": 1, "index": True, "also": ("pred",)},
    "complex64": {"bits": 64, "bytes": 8, "also": ("complexfloat", "complex<float>", "c64")},
    "complex128": {"bits": 128, "also": ("complexdouble", "complex<double>", "c128")},
    # How fp32 is computed on tensor cores, and types of TensorFlow that nothing computes with.
    "tf32": {"bytes": 4, "peak": "fp32", "fits": ("bf16", "fp16", "fp32"), "also": ("tensorfloat32",)},
    "resource": {},
    "string": {},
    "variant": {},
}
"""Name -> what is known of it."""
