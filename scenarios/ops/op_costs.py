"""The cost of an op from the shapes that it reads and writes: one table, kind -> formula.

Every importer that knows shapes (ONNX, TensorFlow) names its ops in the vocabulary of this table and
asks `cost_of`; importers refuse a kind that is not in the table, and never count it as nothing.

::

    OpFacts(kind, inputs, outputs, attributes)  --COSTS[kind]-->  Cost(flops, bytes_read, bytes_written)

Conventions
-----------
* A multiply-add is **2 flop**. A comparison and an elementary function (exp, log, sqrt, tanh, erf, ...)
  are 1 flop per element each; composite functions count their steps (sigmoid: negate, exp, add,
  divide = 4). The literature's GMAC figures are half of ours.
* Direct algorithms: no Winograd, FFT or Strassen, and no skipping of masked parts.
* A kernel reads each input once and writes each output once (as with a perfect cache).
  Ops that touch only a part (gather, slice, split) read as much as they write.
* **Views are free**: reshape, flatten, squeeze, identity, dropout at inference, ... change the description
  of a tensor and move no byte: 0 flop, 0 bytes. The same holds for ops that only query a shape.
* A result whose size depends on the data (non_zero, unique) has the shape that the model declares.
* Data movers (transpose, concat, pad, cast, ...) are 0 flop and all bytes.

The counts follow from the definitions of the operators (https://onnx.ai/onnx/operators/ and
https://www.tensorflow.org/api_docs/python/tf/raw_ops); the convention of two flop per multiply-add is that
of LAPACK Working Note 41, appendix C.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final

from scenarios.ops import op_formulas as f
from scenarios.ops.op_formulas import Cost, Formula, OpFacts, measured_shape
from sim.base.arrays import UNSET
from sim.base.errors import GraphError, InputError, UnknownNameError, in_file
from sim.graph.views import FREE, VIEWS, WITHOUT_DATA
from sim.job.job import Job
from sim.machine.device import Device

UNKNOWN_BYTES: Final = (
    "unknown: bytes in the scenario's workload, --set unknown=bytes of sim import, "
    "or unknown='bytes' in Python"
)
"""How to accept ops without a formula, for messages."""


def cost_of(op: OpFacts) -> Cost:
    """Return the cost of `op`.

    Raises
    ------
    UnknownNameError
        There is no formula for ``op.kind``.
    GraphError
        An input that the formula needs is absent.

    Examples
    --------
    >>> from scenarios.ops.op_formulas import TensorFacts
    >>> x, w = TensorFacts((1, 64, 56, 56), 802816), TensorFacts((128, 64, 1, 1), 32768)
    >>> y = TensorFacts((1, 128, 56, 56), 1605632)
    >>> cost_of(OpFacts("conv", (x, w), (y,)))
    Cost(flops=51380224, bytes_read=835584, bytes_written=1605632)
    """
    if op.kind not in COSTS:
        raise UnknownNameError("op kind", op.kind, COSTS)
    return COSTS[op.kind](op)


def op_arguments(
    op: OpFacts, where: str, attributes: Mapping[str, Any], *, known: bool = True
) -> dict[str, Any]:
    """Return the arguments of `GraphBuilder.op` for an op with shapes: kind, outputs, cost, attributes.

    Parameters
    ----------
    op : OpFacts
    where : str
        The op, in messages.
    attributes : mapping
        Extended by the sizes that cost models use and, for a view, by its source.
    known : bool
        Whether there is a formula; if not, the op has no flop, and the bytes of its tensors.

    Raises
    ------
    GraphError
        An input that the formula needs is absent.
    """
    with in_file(where):
        cost = cost_of(op) if known else Cost(0, op.read, op.written)
    more = {**attributes, **(measured_shape(op) if known else {})}
    if op.kind in VIEWS and op.inputs:
        more["view_of"] = 0
    sizes = [output.nbytes for output in op.outputs]
    return {"kind": op.kind, "outputs": sizes, **cost._asdict(), "attributes": more}


def without_formula(operators: Mapping[str, int], unknown: str, way_out: str, where: str = "") -> None:
    """Raise or warn if there are operators without a formula.

    Parameters
    ----------
    operators : mapping of str to int
        Name and number of each.
    unknown : {"error", "bytes"}
        Refuse, or warn.
    way_out : str
        How to accept them.
    where : str
        Beginning of the message.
    """
    if unknown not in ("error", "bytes"):
        raise UnknownNameError("value of unknown", unknown, ("error", "bytes"))
    if not operators:
        return
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(operators.items()))
    if unknown == "error":
        raise InputError(
            f"{where}operators without a cost formula: {listed}; count them by their bytes with {way_out}"
        )
    warnings.warn(f"{where}counted by their bytes, with no flop: {listed}", stacklevel=4)


_FILLS = "constant_of_shape fill range eye_like zeros_like ones_like one_hot"
_MOVES = """concat transpose pad cast tile expand pack where compress depth_to_space space_to_depth
    reverse reverse_sequence scatter_elements scatter_nd trilu copy"""
_PICKS = "gather gather_elements gather_nd slice strided_slice split unpack"

_FLOPS_PER_OUTPUT = {
    1: """add sub mul div floor_div mod pow relu abs neg sign ceil floor round sqrt rsqrt exp log sin cos tan
        asin acos atan sinh cosh tanh asinh acosh atanh erf reciprocal square not and or xor is_nan is_inf
        equal not_equal greater less greater_or_equal less_or_equal bitwise_and bitwise_or bitwise_xor
        bitwise_not bit_shift bias_add relu_grad cum_sum""",
    2: "clip relu6 leaky_relu prelu thresholded_relu squared_difference dequantize_linear",
    3: "elu celu softplus softsign hard_sigmoid shrink sigmoid_grad tanh_grad rotary_embedding",
    4: "sigmoid selu rsqrt_grad rms_norm",
    5: "softmax log_softmax gelu silu hard_swish quantize_linear",
    6: "mish",
    11: "gelu_grad",  # 0.5 (1 + erf) 4, x times the density 5, their sum 1, times the gradient 1
    13: "layer_norm_grad",  # normalise 2, scale 1, two sums 3, input's gradient 4, scale's and shift's 3
    7: "layer_norm instance_norm group_norm mean_variance_norm",
}
"""Flop per element of the first output, counted from the operators' definitions."""

ELEMENTWISE: Final = frozenset(kind for kinds in _FLOPS_PER_OUTPUT.values() for kind in kinds.split())
"""Kinds whose output has the broadcast shape of their inputs."""

_FLOPS_PER_INPUT = {
    1: """reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_all reduce_any argmax argmin
        global_average_pool global_max_pool bias_add_grad max_pool_grad non_zero""",
    2: "reduce_l1 reduce_l2 reduce_sum_square reduce_log_sum",
    3: "reduce_log_sum_exp softmax_grad",
    7: "softmax_cross_entropy sparse_softmax_cross_entropy",
    9: "batch_norm_grad",
}
"""Flop per element of the first input."""

_OWN_FLOPS = (
    *(f.conv, f.conv_transpose, f.depthwise_conv, f.conv_input_grad, f.conv_weight_grad),
    *(f.matmul, f.einsum, f.attention, f.attention_grad),
    *(f.lrn, f.batch_norm, f.resize, f.top_k, f.unique),
)
"""Flop formulas with the names of their kinds."""

COSTS: Mapping[str, Formula] = {
    **dict.fromkeys([*VIEWS, *WITHOUT_DATA], f.free),
    **dict.fromkeys(_FILLS.split(), lambda op: Cost(0, 0, op.written)),
    **dict.fromkeys(_MOVES.split(), f.streamed(lambda op: 0)),
    **dict.fromkeys(_PICKS.split(), f.pick),
    **{kind: f.per_output(n) for n, kinds in _FLOPS_PER_OUTPUT.items() for kind in kinds.split()},
    **{kind: f.per_input(n) for n, kinds in _FLOPS_PER_INPUT.items() for kind in kinds.split()},
    **{flops.__name__: f.streamed(flops) for flops in _OWN_FLOPS},
    "gemm": f.streamed(f.matmul),
    "embedding_grad": f.streamed(lambda op: op.input(1).elements),  # (indices, gradient): one sum per element
    "adam": f.adam,
    "lstm": f.recurrent(gates=4, pointwise=26),  # 8 additions, 3 sigmoid, 2 tanh, 3 products, 1 sum
    "gru": f.recurrent(gates=3, pointwise=20),  # 6 additions, 2 sigmoid, 1 tanh, 3 products, 2 sums
    "rnn": f.recurrent(gates=1, pointwise=3),  # 2 additions, 1 tanh
    "max_pool": f.streamed(f.pool),
    "average_pool": f.streamed(f.pool),
    "average_pool_grad": f.streamed(f.pool_grad),
    "add_n": f.nary(0),
    "maximum": f.nary(0),
    "minimum": f.nary(0),
    "mean_n": f.nary(1),
    "assign": f.assign(0, variables_read=0, variables_written=1),
    "assign_add": f.assign(1, variables_read=1, variables_written=1),
    "assign_sub": f.assign(1, variables_read=1, variables_written=1),
}
"""Op kind -> its cost formula."""


# ----------------------------------------------------------------------------------------------------------
# Ops without any cost: no duration, no flops, no bytes.
#
# A cost model would give them no time, and a forgotten number would look like a fast op. So they are refused,
# except for kinds that do no work by their nature (`FREE`), and for models that time them by something else.


def refuse_costless(job: Job) -> None:
    """Raise if an op takes no time because none of its costs is given.

    Raises
    ------
    GraphError
        For the first such op.
    """
    from devices.cost.cost_models import models_of

    graph = job.graph
    unsaid = (graph.duration_ns == UNSET) & (graph.flops == 0)
    unsaid &= (graph.bytes_read == 0) & (graph.bytes_written == 0) & ~graph.is_kind(*FREE)
    for by_kind in graph.duration_by_kind.values():
        unsaid &= by_kind == UNSET
    if job.machine.collectives is not None:  # its model has timed them
        unsaid &= ~job.meets
    if not unsaid.any():
        return
    nothing = unsaid & (job.duration_ns == 0)
    for d, device in enumerate(job.machine.devices):
        here = job.device_of == d
        if not _by_rates(device):
            nothing &= ~here
        elif device.details.preset and device.cost is not None and (unsaid & here).any():
            # The overhead of a preset's kind is not a time that somebody gave to the op.
            last = models_of(device.cost)[-1]
            nothing |= unsaid & here & (last.durations_ns(graph, device) == job.duration_ns)
    if nothing.any():
        name, count = graph.op_names[int(nothing.argmax())], int(nothing.sum()) - 1
        more = f" (and {count} other op{'s' * (count > 1)})" if count else ""
        raise GraphError(
            f"op {name!r}{more} has no duration, no flops and no bytes, so it would take no time; "
            "give one of them, or duration: 0ns where that is meant"
        ).about(name)


def _by_rates(device: Device) -> bool:
    """Whether the device times ops by flops and bytes, or not at all."""
    from devices.cost.cost_models import RooflineCost, models_of
    from devices.cost.npu_tiles import TiledCost

    return all(isinstance(model, RooflineCost | TiledCost) for model in models_of(device.cost)[-1:])
