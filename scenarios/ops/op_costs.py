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
* Direct algorithms: no Winograd or Strassen, no convolution by FFT, and no skipping of masked parts.
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

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from devices.describe.field_types import BITS, dtype_name
from scenarios.ops import op_formulas as f
from scenarios.ops.op_formulas import Cost, Formula, OpFacts, convolution_sizes, measured_shape
from sim.base.arrays import UNSET
from sim.base.errors import GraphError, InputError, UnknownNameError, in_file
from sim.base.units import format_bytes, format_count, format_flops
from sim.graph.graph import Graph
from sim.graph.views import FREE, VIEWS, WITHOUT_DATA
from sim.job.job import Job
from sim.job.places import crossing_reads

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
    op: OpFacts, where: str, attributes: Mapping[str, Any], *, has_formula: bool = True
) -> dict[str, Any]:
    """Return the arguments of `GraphBuilder.op` for an op with shapes: kind, outputs, cost, attributes.

    Parameters
    ----------
    op : OpFacts
    where : str
        The op, in messages.
    attributes : mapping
        Extended by the sizes that cost models use and, for a view, by its source.
    has_formula : bool
        Whether there is a formula; if not, the op has no flop, and the bytes of its tensors.

    Raises
    ------
    GraphError
        An input that the formula needs is absent.
    """
    with in_file(where):
        cost = cost_of(op) if has_formula else Cost(0, op.read, op.written)
    more = {**attributes, **(measured_shape(op) if has_formula else {})}
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
    3: "elu celu softplus softsign hard_sigmoid shrink sigmoid_grad tanh_grad",
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
    2: "reduce_l1 reduce_l2 reduce_sum_square reduce_log_sum global_lp_pool",
    3: "reduce_log_sum_exp softmax_grad multinomial",  # the largest of p / exponential draws (a logarithm)
    7: "softmax_cross_entropy sparse_softmax_cross_entropy binary_cross_entropy_with_logits",
    8: "binary_cross_entropy",  # two logarithms, of x and 1 - x, times t and 1 - t, and two sums
    9: "batch_norm_grad",
}
"""Flop per element of the first input."""

_OWN_FLOPS = (
    *(f.conv, f.conv_transpose, f.depthwise_conv, f.conv_input_grad, f.conv_weight_grad),
    *(f.matmul, f.einsum, f.attention, f.attention_grad),
    *(f.lrn, f.batch_norm, f.resize, f.grid_sample, f.dft, f.top_k, f.unique, f.non_max_suppression),
)
"""Flop formulas with the names of their kinds."""

COSTS: Mapping[str, Formula] = {
    **dict.fromkeys([*VIEWS, *WITHOUT_DATA], f.free),
    **dict.fromkeys(_FILLS.split(), lambda op: Cost(0, 0, op.written)),
    **dict.fromkeys(_MOVES.split(), f.streaming(lambda op: 0)),
    **dict.fromkeys(_PICKS.split(), f.pick),
    **{kind: f.per_output(n) for n, kinds in _FLOPS_PER_OUTPUT.items() for kind in kinds.split()},
    **{kind: f.per_input(n) for n, kinds in _FLOPS_PER_INPUT.items() for kind in kinds.split()},
    **{flops.__name__: f.streaming(flops) for flops in _OWN_FLOPS},
    "gemm": f.streaming(f.matmul),
    "embedding_grad": f.streaming(lambda op: op.input(1).elements),  # (indices, gradient): sums of rows
    "embedding_bag": f.embedding_bag,
    # 5 log2 n flop for each complex number that is kept of the frames of n, as for dft.
    "stft": f.streaming(lambda op: 5 * op.output.elements * (op.attributes["frame_length"] - 1).bit_length()),
    # Of n sorted numbers and values: ceil(log2(n + 1)) comparisons of each value.
    "search_sorted": f.streaming(lambda op: op.output.elements * op.input(0).shape[-1].bit_length()),
    "negative_log_likelihood_loss": f.picked_loss,
    "adam": f.adam,
    "rotary_embedding": f.rotary_embedding,
    "lstm": f.streaming(lambda op: f.recurrent(op, 4, 26)),  # 9 sums, 3 sigmoid, 2 tanh, 3 products
    "gru": f.streaming(lambda op: f.recurrent(op, 3, 20)),  # 8 sums, 2 sigmoid, 1 tanh, 3 products
    "rnn": f.streaming(lambda op: f.recurrent(op, 1, 3)),  # 2 sums, 1 tanh
    **dict.fromkeys(("max_pool", "average_pool"), f.streaming(f.pool)),
    "lp_pool": f.streaming(lambda op: 2 * f.pool(op)),
    "average_pool_grad": f.streaming(f.pool_grad),
    **dict.fromkeys(("add_n", "maximum", "minimum"), f.nary(0)),
    "mean_n": f.nary(1),
    "assign": f.assign,
    **dict.fromkeys(("assign_add", "assign_sub"), f.assign_sum),
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
    graph = job.graph
    unspecified = (graph.longest_ns() == UNSET) & (graph.flops == 0)
    unspecified &= (graph.bytes_read == 0) & (graph.bytes_written == 0) & ~graph.is_kind(*FREE)
    if job.machine.collectives is not None:  # its model has timed them
        unspecified &= ~job.meets
    if not unspecified.any():
        return
    from devices.cost.cost_models import RooflineCost, models_of
    from devices.cost.npu_tiles import TiledCost

    costless = unspecified & (job.duration_ns == 0)
    for d, device in enumerate(job.machine.devices):
        on_device, last = job.device_of == d, models_of(device.cost)[-1:]
        if not all(isinstance(model, RooflineCost | TiledCost) for model in last):  # other models may know
            costless &= ~on_device
        elif device.details.preset and device.cost is not None and (unspecified & on_device).any():
            # The overhead of a preset's kind is not a time that somebody gave to the op.
            costless |= unspecified & on_device & (last[0].durations_ns(graph, device) == job.duration_ns)
    if costless.any():
        name, count = graph.op_names[int(costless.argmax())], int(costless.sum()) - 1
        more = f" (and {format_count(count, 'other op')})" if count else ""
        raise GraphError(
            f"op {name!r}{more} has no duration, no flops and no bytes, so it would take no time; "
            "give one of them, or duration: 0ns where that is meant"
        ).about(name)


# ----------------------------------------------------------------------------------------------------------
# Ops whose work is given, but not the size of what they hand on: a transfer of it takes the latency alone.
#
#     a: {kind: matmul, attributes: {m: 4096, n: 4096, k: 4096}}      b: {inputs: [a], device: gpu1}


def warn_of_unsized_tensors(job: Job, *, in_memory: bool) -> None:
    """Warn once of tensors of 0 bytes that are moved or kept in memory, though their ops compute something.

    Ops with a duration may leave out all sizes.

    Parameters
    ----------
    job : Job
        With every op placed.
    in_memory : bool
        Whether an allocator holds the tensors, so that those that stay on their device count, too.

    Warns
    -----
    UserWarning
        Names the first such tensor and the number of others.
    """
    graph = job.graph
    counted = np.full(len(graph.inputs.indices), in_memory)
    if any(link.bandwidth_bytes_per_s is not None for link in job.machine.links):
        counted |= crossing_reads(job)[0]
    read = np.zeros(len(graph.tensor_nbytes), np.bool_)
    read[graph.inputs.indices[counted]] = True
    unsized = np.flatnonzero(read & (graph.tensor_nbytes == 0) & (graph.tensor_producer != UNSET))
    if not len(unsized):
        return
    makers = graph.tensor_producer[unsized]
    computed = (graph.flops[makers] > 0) | (graph.bytes_written[makers] > 0)
    computed |= [bool(graph.attributes.get(op)) and graph.kind(op) in _RULES for op in makers.tolist()]
    unsized = unsized[computed & (graph.longest_ns()[makers] == UNSET)]
    if len(unsized):
        name = repr(graph.tensor_name(int(unsized[0])))
        more = f" and {format_count(len(unsized) - 1, 'other tensor')}" if len(unsized) > 1 else ""
        where = "in memory and transfers" if in_memory else "in transfers"
        warnings.warn(
            f"{name}{more}: 0 bytes count {where}, though computed; give a size, as in output: 32MiB",
            stacklevel=2,
        )


# ----------------------------------------------------------------------------------------------------------
# Ops whose sizes contradict their flop and bytes.
#
#     a: {kind: matmul, flops: 8GFLOP, attributes: {m: 1000, n: 1000, k: 1000}}
#
#     op 'a' (matmul): m, n and k say 2 GFLOP, its flops are 8 GFLOP
#
# A cost model that knows shapes uses sizes, a roofline uses flop and bytes. They may differ by a factor of
# two, to allow for a bias, a result in a wider type, or scores that a mask hides. Quantities with several
# ways of counting, such as what a backward reads again, have a minimum and a maximum. Ops with a duration are
# not checked, nor are the bytes of an op without a data type.

_TOLERANCE: Final = 2
_MAX_ELEMENT_BYTES: Final = 4
"""Most bytes per element of a result; its inputs may have fewer."""
_MIN_READ_RATIO: Final = 0.25
"""A product reads at least this part of the bytes of its result's type: int8 beside fp32, say."""

Sizes = Mapping[str, Any]
Bounds = tuple[tuple[float, float], tuple[float, float]]
"""Minimum and maximum of the flop, and of the elements that are read and written."""


def warn_of_contradictions(graph: Graph) -> None:
    """Warn once of ops whose sizes contradict their flop or bytes.

    Warns
    -----
    UserWarning
        Names the first such op and the number of others.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", kind="matmul", flops=8 * 10**9, attributes={"m": 1000, "n": 1000, "k": 1000})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_contradictions(b.build())
    >>> print(caught[0].message)
    op 'a' (matmul): m, n and k say 2 GFLOP, its flops are 8 GFLOP; it contradicts itself more than ...
    """
    rules = [_RULES.get(kind) for kind in graph.kinds]
    if not any(rules):
        return
    element_bytes = [BITS.get(dtype_name(dtype), 0) / 8 for dtype in graph.dtypes]
    timed = graph.longest_ns() != UNSET
    columns = graph.kind_code, graph.dtype_code, graph.flops, graph.bytes_read + graph.bytes_written, timed
    kinds, dtypes, flops, nbytes, has_time = (column.tolist() for column in columns)
    first, count = "", 0
    for op, sizes in graph.attributes.items():
        rule = rules[kinds[op]]
        if rule is None or has_time[op] or not all(_is_size(sizes.get(name)) for name in rule[0].split()):
            continue
        try:
            (min_flops, max_flops), (low, high) = rule[1](sizes)
        except (TypeError, IndexError, ZeroDivisionError):  # attributes with other meanings of these names
            continue
        problem = _contradiction(flops[op], min_flops, max_flops, "its flops are", format_flops)
        if not problem and dtypes[op] != UNSET and (size := element_bytes[dtypes[op]]):
            problem = _contradiction(
                nbytes[op], low * size, high * max(size, _MAX_ELEMENT_BYTES), "its bytes are", format_bytes
            )
        if problem:
            count += 1
            *names, last = rule[0].split()
            op_text = f"op {graph.op_names[op]!r} ({graph.kind(op)})"
            first = first or f"{op_text}: {', '.join(names)} and {last} say {problem}"
    if count:
        verdict = "it contradicts itself" if count == 1 else f"{count} ops contradict themselves"
        warnings.warn(
            f"{first}; {verdict} more than twofold, and cost models that know shapes go by sizes, others by "
            "flops and bytes",
            stacklevel=2,
        )


def _contradiction(actual: int, low: float, high: float, noun: str, to_text: Callable[..., str]) -> str:
    """Return what the sizes imply and what the op has, if they contradict; "" if not, or if it has 0."""
    if not actual or (low <= _TOLERANCE * actual and actual <= _TOLERANCE * high):
        return ""
    return f"{to_text(round(high if actual > high else low))}, {noun} {to_text(actual)}"


def _is_size(value: Any) -> bool:
    if type(value) is int:
        return value >= 0
    listed = isinstance(value, list | tuple) and len(value) > 0
    return listed and all(type(n) is int and n >= 0 for n in value)


# -- flop and elements implied by sizes -----------------------------------------------------------


def _product(sizes: Sizes) -> Bounds:
    """Each product reads its own three matrices; or one left matrix is shared by all the right ones."""
    m, n, k, batch = sizes["m"], sizes["n"], sizes["k"], sizes.get("batch", 1)
    flops, written, right = 2 * batch * m * n * k, batch * m * n, batch * k * n
    low = written + _MIN_READ_RATIO * (m * k + right)
    return (flops, flops), (low, written + right + batch * m * k)


def _attention(sizes: Sizes, min_flops: int = 4, max_flops: int = 4, times: int = 1) -> Bounds:
    """Two products forward, five backward; the maximum counts all scores even if a mask hides some."""
    keys, width = sizes.get("kv_len", sizes["seq_len"]), sizes["head_dim"]
    rows, visible = sizes["heads"] * sizes["seq_len"], min(keys, sizes.get("window") or keys)
    low = min_flops * sizes["batch"] * rows * visible * width // (2 if sizes.get("causal") else 1)
    high = (max_flops * width + 11) * sizes["batch"] * rows * keys
    elements = 2 * sizes["batch"] * (rows + keys * sizes.get("kv_heads", sizes["heads"])) * width
    return (low, high), (elements, times * elements)


def _conv(sizes: Sizes, times: int = 1) -> Bounds:
    image, kernel, axes = sizes["input_shape"], sizes["kernel_shape"], len(sizes["input_shape"])
    defaults = {"strides": [1] * axes, "pads": [0] * 2 * axes, "dilations": [1] * axes}
    windows = {name: sizes.get(name) or default for name, default in defaults.items()}
    weights = math.prod(kernel) * sizes["in_channels"] // (sizes.get("group") or 1)
    written = sizes["batch"] * sizes["out_channels"] * math.prod(convolution_sizes(image, kernel, **windows))
    read = sizes["batch"] * sizes["in_channels"] * math.prod(image) + weights * sizes["out_channels"]
    flops = 2 * weights * written
    return (flops, times * flops), (written + _MIN_READ_RATIO * read, times * (written + read))


def _rows(sizes: Sizes) -> Bounds:
    """A loss may write little, a backward may read and write four tensors."""
    return (0, math.inf), (sizes["rows"] * sizes["columns"], 4 * sizes["rows"] * sizes["columns"])


_ATTENTION_SIZES: Final = "batch seq_len heads head_dim"
_CONV_SIZES: Final = "batch in_channels out_channels input_shape kernel_shape"
_ROW_KINDS: Final = """softmax log_softmax softmax_grad layer_norm rms_norm layer_norm_grad batch_norm
    batch_norm_grad instance_norm group_norm softmax_cross_entropy sparse_softmax_cross_entropy cum_sum"""

_RULES: Final[Mapping[str, tuple[str, Callable[[Sizes], Bounds]]]] = {
    **dict.fromkeys(("matmul", "gemm", "linear"), ("m n k", _product)),
    "attention": (_ATTENTION_SIZES, _attention),
    "attention_grad": (_ATTENTION_SIZES, partial(_attention, min_flops=8, max_flops=10, times=3)),
    **dict.fromkeys(("conv", "depthwise_conv", "conv_input_grad", "conv_weight_grad"), (_CONV_SIZES, _conv)),
    "conv_grad": (_CONV_SIZES, partial(_conv, times=2)),
    **dict.fromkeys(_ROW_KINDS.split(), ("rows columns", _rows)),
}
"""Op kind -> the sizes that it must have (lists have one number per axis), and what they imply."""
