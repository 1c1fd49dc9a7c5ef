"""Ops of every kind that the fitted costs tell apart, with sizes and without."""

from __future__ import annotations

from typing import Any

from sim import GraphBuilder
from sim.graph.graph import Graph

HEADS = {"batch": 4, "seq_len": 1024, "heads": 16, "kv_heads": 4, "head_dim": 128}
IMAGE = {"batch": 8, "in_channels": 64, "out_channels": 64, "input_shape": [56, 56], "kernel_shape": [3, 3]}
PLAIN = {**IMAGE, "pads": [1, 1, 1, 1]}
ROWS = {"rows": 1024, "columns": 4096}
EXPERTS = {"tokens": 1024, "hidden": 4096, "intermediate": 14336, "topk": 2, "experts": 8}

CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(
        ("matmul", dtype, {"m": 512, "n": 512, "k": 512})
        for dtype in ["bf16", "fp32", "fp8", "int8", "nvfp4", "fp64", "tf32"]
    ),
    ("linear", "fp32", {"m": 512, "n": 512, "k": 512}),
    ("bmm", "fp16", {"batch": 16, "m": 512, "n": 512, "k": 64}),
    ("gemm", "bf16", {}),
    ("matmul_grad", "bf16", {"m": 512, "n": 512, "k": 512}),
    ("attention", "bf16", HEADS),
    ("attention", "bf16", {**HEADS, "seq_len": 1, "kv_len": 2048}),
    ("attention", "bf16", {**HEADS, "seq_len": 64, "kv_len": 2048, "window": 512}),
    ("attention", "fp32", {**HEADS, "causal": False}),
    ("attention", "fp16", {}),
    ("attention_grad", "fp16", HEADS),
    ("conv", "fp32", PLAIN),
    ("conv", "fp16", {**IMAGE, "kernel_shape": [1, 1]}),
    ("conv", "fp16", {**PLAIN, "group": 64}),
    ("conv3d", "fp32", {**IMAGE, "input_shape": [8, 56, 56], "kernel_shape": [3, 3, 3], "pads": [1] * 6}),
    ("conv1d", "fp16", {**IMAGE, "input_shape": [512], "kernel_shape": [5], "pads": [2, 2]}),
    ("conv_grad", "fp16", PLAIN),
    ("conv_input_grad", "fp32", PLAIN),
    ("conv_weight_grad", "bf16", PLAIN),
    ("conv_transpose", "fp32", {**IMAGE, "kernel_shape": [2, 2], "strides": [2, 2]}),
    ("conv", "fp16", {}),
    ("softmax", "fp32", ROWS),
    ("softmax", "bf16", {}),
    ("softmax_grad", "fp32", ROWS),
    ("layer_norm", "fp16", ROWS),
    ("layer_norm_grad", "fp32", ROWS),
    ("rms_norm", "bf16", ROWS),
    ("embedding", "fp16", ROWS),
    ("rope", "bf16", ROWS),
    ("gated_activation", "bf16", {}),
    ("moe", "bf16", EXPERTS),
    ("moe", "fp8", {}),
    ("moe_dispatch", "bf16", {"tokens": 128, "hidden": 4096, "topk": 8, "experts": 64, "sms": 24}),
    ("causal_conv1d", "bf16", {"batch": 1, "seq_len": 1024, "channels": 4096}),
    ("gated_delta_rule", "bf16", {"batch": 64, "heads": 32}),
    ("quantize", "fp8", {"m": 1024, "k": 4096}),
    *(
        (kind, "fp32", {})
        for kind in [
            "relu",
            "add",
            "transpose",
            "reduce_sum",
            "adam",
            "max_pool",
            "dropout_grad",
            "batch_norm",
        ]
    ),
]


def every_kind() -> Graph:
    """Return a graph of one op a case: 2 MB read, 1 MB written; 1 GFLOP, of what goes by bytes 1 MFLOP."""
    b = GraphBuilder("every kind")
    computing = ("matmul", "linear", "bmm", "gemm", "attention", "conv", "moe")
    for i, (kind, dtype, sizes) in enumerate(CASES):
        b.op(
            f"{i}-{kind}",
            kind=kind,
            dtype=dtype,
            attributes=sizes,
            flops=10**9 if kind.startswith(computing) else 10**6,
            bytes_read=2 * 10**6,
            bytes_written=10**6,
        )
    return b.build()
