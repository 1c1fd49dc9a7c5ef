"""Read a system file of SimuMax (MooreThreads/SimuMax, configs/system/*.json) as a calibration.

::

    accelerator.op.matmul      tflops, efficient_factor, accurate_efficient_factor {"b=1, m=.., ..": 0.5}
    accelerator.op.sdp_fwd     the same, by "batch=1, seq_len=.., .."; sdp_bwd; group_matmul by "ng=.., .."
    accelerator.bandwidth      gbps (2**30 bytes/s), efficient_factor; permute_fwd, ce_fusion apart
    networks.high_intra_node   bandwidth.gbps (2**30 bytes/s), op.all_gather.efficient_factor,
                               latency_us a message, fixed_latency_us a call, _by_comm_num
    networks.inter_node        gbps of a whole node

Their products are measured as flop / (peak · factor) with the clock of a short run. Sources: docs/system.md
and simumax/core/config.py of that repository (Apache-2.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from scenarios.build.train.calibration import Calibration, Reach
from scenarios.build.train.kernels import Attention, Product
from sim.words.errors import InputError

__all__ = ["from_simumax", "is_simumax"]

_GIB: Final = 2**30
_KINDS: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all2all": "all_to_all",
    "p2p": "send",
}
_LAYOUTS: Final = {"TN": "F", "NN": "I", "NT": "W"}
_STAGES: Final = {"fwd": "F", "bwd_grad_act": "I", "bwd_grad_w": "W"}


def is_simumax(content: Any) -> bool:
    """Whether a document is a system file of SimuMax."""
    return isinstance(content, Mapping) and {"accelerator", "networks"} <= set(content)


def from_simumax(content: Mapping[str, Any], *, gradients: str = "fp32") -> Calibration:
    """Return the calibration that a system file describes.

    Parameters
    ----------
    content : mapping
        The parsed file.
    gradients : {"fp32", "bf16"}
        Data type in which gradients of weights are summed: which of their measurements are meant.

    Raises
    ------
    InputError
        A part is missing, or a shape cannot be read.
    """
    try:
        accelerator, networks = content["accelerator"], content["networks"]
        ops, rates = accelerator["op"], accelerator["bandwidth"]
        peak = float(ops["matmul"]["tflops"]) * 1e12
        measured: dict[Product | Attention, float] = {}
        for shape, factor in ops["matmul"].get("accurate_efficient_factor", {}).items():
            _product(measured, shape, factor, gradients)
        for shape, factor in ops.get("group_matmul", {}).get("accurate_efficient_factor", {}).items():
            _grouped(measured, shape, factor, gradients)
        for name, backward in (("sdp_fwd", False), ("sdp_bwd", True)):
            for shape, factor in ops.get(name, {}).get("accurate_efficient_factor", {}).items():
                _attention(measured, shape, factor, backward)
        default = rates["default"]
        whole = float(default["gbps"]) * _GIB
        passes = {
            "elementwise": rates["default"],
            "permute": rates.get("permute_fwd", rates["default"]),
            "cross-entropy": rates.get("ce_fusion", rates["default"]),
        }
        inside = next(
            networks[name] for name in ("high_intra_node", "intra_node_pcie_8x") if name in networks
        )
        outside, node = networks["inter_node"], int(content.get("num_per_node", 8))
        return Calibration(
            name=str(content.get("sys_name", "simumax")),
            peak=peak,
            memory_bandwidth=whole,
            product=float(ops["matmul"]["efficient_factor"]),
            attention_forward=float(ops["sdp_fwd"]["efficient_factor"]),
            attention_backward=float(ops["sdp_bwd"]["efficient_factor"]),
            pass_efficiency={
                name: float(of["efficient_factor"]) * float(of["gbps"]) * _GIB / whole
                for name, of in passes.items()
            },
            measured=measured,
            roofline=False,
            node=_reach(inside, 1),
            between=_reach(outside, node),
        )
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise InputError(f"is no system file of SimuMax: {type(error).__name__} at {error}") from error


def _reach(of: Mapping[str, Any], ranks: int) -> Reach:
    """Return the reach of a network whose bandwidth so many ranks share."""
    bandwidth = of["bandwidth"]
    efficiency = {"default": float(bandwidth.get("efficient_factor", 1.0))}
    latency = {"default": 1e3 * float(bandwidth["latency_us"])}
    fixed: dict[str, float] = {}
    for theirs, ours in _KINDS.items():
        op = of["op"].get(theirs, {})
        if op.get("efficient_factor") is not None:
            efficiency[ours] = float(op["efficient_factor"])
        if op.get("latency_us") is not None:
            latency[ours] = 1e3 * float(op["latency_us"])
        if op.get("fixed_latency_us") is not None:
            fixed[ours] = 1e3 * float(op["fixed_latency_us"])
        for ranks_of, value in op.get("fixed_latency_us_by_comm_num", {}).items():
            fixed[f"{ours}/{ranks_of}"] = 1e3 * float(value)
    return Reach(float(bandwidth["gbps"]) * _GIB / ranks, efficiency, latency, fixed)


def _values(shape: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=([^,]+)", shape))


def _product(into: dict[Product | Attention, float], shape: str, factor: Any, gradients: str) -> None:
    of = _values(shape)
    part = _LAYOUTS[of["layout"]]
    if int(of["b"]) == 1 and (part != "W" or of["out_dtype"] == gradients):
        into[Product(int(of["m"]), int(of["k"]), int(of["n"]), part)] = float(factor)  # type: ignore[arg-type]


def _grouped(into: dict[Product | Attention, float], shape: str, factor: Any, gradients: str) -> None:
    """Their M, N and K are those of the forward, whatever the part."""
    of = _values(shape)
    if of["main_grad_dtype"] != gradients or of["dtype"] != "bf16":
        return
    groups, m, n, k = (int(of[key]) for key in ("ng", "M", "N", "K"))
    part = _STAGES[of["stage"]]
    sizes = {"F": (m, k, n), "I": (m, n, k), "W": (n, m, k)}[part]
    into[Product(*sizes, part, groups)] = float(factor)  # type: ignore[arg-type]


def _attention(into: dict[Product | Attention, float], shape: str, factor: Any, backward: bool) -> None:
    """They count all scores, of the backward five products half as wide as queries and values together.

    Inputs that are no single tensor, as those with rotary positions, go before such that are.
    """
    of = _values(shape)
    sizes = [
        int(of[key]) for key in ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
    ]
    kernel = Attention(*sizes, backward)  # type: ignore[call-arg,arg-type]
    if of.get("qkv_contiguous", "True") == "False" or kernel not in into:
        theirs = (5 if backward else 2) * kernel.batch * kernel.heads * kernel.sequence**2
        into[kernel] = float(factor) * kernel.flops / (theirs * (kernel.query_head + kernel.value_head))
