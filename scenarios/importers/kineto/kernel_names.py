"""Properties of a kernel from its name: its kind, its data type, and a short form."""

from __future__ import annotations

import re
from functools import lru_cache

_KINDS = {
    r"^nccl send$": "send",
    r"^nccl recv$": "recv",
    r"nccl.*all_?reduce": "all_reduce",
    r"nccl.*all_?gather": "all_gather",
    r"nccl.*reduce_?scatter": "reduce_scatter",
    r"nccl.*(all_?to_?all|send_?recv)": "all_to_all",
    r"nccl.*broadcast": "broadcast",
    r"nccl": "collective",
    r"^memcpy": "copy",
    r"^memset": "fill",
    r"^triton_(poi|for)": "elementwise",
    r"^triton_(red|per|coo|spl)": "reduce",
    r"(?<!cache_)flash(?!infer)|kvcachekernel|fmha|attention|attn_|sage_fwd": "attention",
    r"wgrad|dgrad|fprop|conv(?!ert)|winograd|scudnn": "conv",
    r"(?<!fb)gemm|gemv|cublas|cutlass|splitk|nvjet|^cijk_|matmul|^bmm_|^triton_(tem|b?mm)": "matmul",
    r"batch_?norm|bn_[fb]w": "batch_norm",
    r"(layer|rms|group)_?norm": "layer_norm",
    r"softmax": "softmax",
    r"(?<!rotary_)embedding|index|gather|scatter": "gather",
    r"reduce": "reduce",
    r"cat|copy|transpose|nchwtonhwc|nhwctonchw|and_cache|store_?kvcache": "copy",
    r"elementwise|vectorized|multi_?tensor|foreach|rotary|act_and_mul|quant": "elementwise",
}
"""Kind of a kernel by its name; the first matching pattern counts.

Inductor names a kernel after all operators that it fuses, with three letters for its type: pointwise, for
each, reductions (persistent, cooperative, split scans), or a template, which is a matrix product unless its
name says attention or convolution (torch/_inductor/codegen/triton.py). rocBLAS names matrix products after
their indices, ``Cijk_Ailk_Bljk``.
"""


@lru_cache(maxsize=4096)
def kind_of(name: str, collective: str = "") -> str:
    """Return the op kind of a kernel, from its name.

    Parameters
    ----------
    name : str
    collective : str
        PyTorch's name of it, if recorded: ``_reduce_scatter_base``. It takes precedence over the name
        of NCCL's kernel, which may send and receive for any collective; RCCL has one kernel for all.

    Examples
    --------
    >>> [kind_of(name) for name in ("ncclKernel_AllReduce_RING_LL_Sum_float", "Memset (Device)")]
    ['all_reduce', 'fill']
    >>> kind_of("ncclKernel_SendRecv"), kind_of("ncclKernel_SendRecv", "_reduce_scatter_base")
    ('all_to_all', 'reduce_scatter')
    >>> kind_of("ncclDevKernel_SendRecv", "send")
    'send'
    """
    lower = name.lower()
    if collective and lower.startswith("nccl") and (refined := kind_of(f"nccl {collective}")) != "collective":
        return refined
    return next((kind for pattern, kind in _KINDS.items() if re.search(pattern, lower)), "kernel")


_DTYPES = {
    r"e4m3|e5m2|float8|fp8|nvjet_(sm\d+_)?q": "fp8",
    r"bf16|bfloat16|nvjet_(sm\d+_)?t": "bf16",
    r"half|f16|fp16|hgemm|hmma|h(1688|884|16816)|nvjet_(sm\d+_)?h": "fp16",
    r"tf32|s1688": "tf32",
    r"double|dgemm": "fp64",
    r"sgemm|scudnn|float": "fp32",
}
"""Data type in which a kernel computes, by its name; the first matching pattern counts:
an argument of its template, or cuBLAS's word for instruction and operands (``s1688gemm`` without another type
has tf32's)."""


@lru_cache(maxsize=4096)
def dtype_of(name: str) -> str | None:
    """Return the data type in the name of a kernel, or None if there is none.

    Examples
    --------
    >>> [dtype_of(name) for name in ("ampere_sgemm_128x64_tn", "nvjet_tst_192x192", "cub::DeviceScanKernel")]
    ['fp32', 'bf16', None]
    """
    lower = name.lower()
    return next((dtype for pattern, dtype in _DTYPES.items() if re.search(pattern, lower)), None)


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """Return the name of a kernel without return type, namespaces, template and call arguments.

    Examples
    --------
    >>> short_name("void at::native::(anonymous namespace)::cat<float, 4>(float*)")
    'cat'
    """
    plain = re.split(r"[<(]", name.replace("(anonymous namespace)::", ""), maxsplit=1)[0].strip()
    return re.split(r"::| ", plain)[-1] or name.split("(")[0].strip() or "kernel"
