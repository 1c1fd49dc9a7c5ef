"""The formulas behind `scenarios.ops.op_costs`: the work of an op, counted from its shapes.

The conventions are stated there (2 flop per multiply-add, each byte once, views free). A formula is a
function `OpFacts` -> `Cost`, or returns one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sim.base.errors import GraphError


class TensorFacts(NamedTuple):
    """Shape and size of one tensor."""

    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class OpFacts(NamedTuple):
    """The input of a formula.

    Attributes
    ----------
    kind : str
        Key of `scenarios.ops.op_costs.COSTS`.
    inputs : tuple of TensorFacts or None
        In the operator's order; None for an omitted optional input.
    outputs : tuple of TensorFacts
    attributes : mapping
        ``weight_output_axis`` (conv; default 0), ``kernel_shape`` (pools), ``size`` (lrn), ``mode``
        (resize), ``equation`` (einsum), ``q_num_heads`` (attention), ``training_mode`` (batch_norm); and
        those that `scenarios.ops.op_formulas` reads.
    """

    kind: str
    inputs: tuple[TensorFacts | None, ...]
    outputs: tuple[TensorFacts, ...]
    attributes: Mapping[str, Any] = {}

    def input(self, i: int) -> TensorFacts:
        """Return input `i`, which the formula needs; raise GraphError if it is absent."""
        tensor = self.inputs[i] if i < len(self.inputs) else None
        if tensor is None:
            raise GraphError(f"the cost of {self.kind!r} needs its input {i}, which is absent")
        return tensor

    def has_input(self, i: int) -> bool:
        """Whether input `i` is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    @property
    def output(self) -> TensorFacts:
        """The first output; raises GraphError if there is none."""
        if not self.outputs:
            raise GraphError(f"the cost of {self.kind!r} needs its output, which is absent")
        return self.outputs[0]

    @property
    def read(self) -> int:
        """Bytes of all inputs."""
        return sum(t.nbytes for t in self.inputs if t is not None)

    @property
    def written(self) -> int:
        """Bytes of all outputs."""
        return sum(t.nbytes for t in self.outputs)


class Cost(NamedTuple):
    """Work of one execution of an op."""

    flops: int
    bytes_read: int
    bytes_written: int


Formula = Callable[[OpFacts], Cost]


# -- families: many kinds, one formula --------------------------------------------------------------


def streaming(flops: Callable[[OpFacts], int]) -> Formula:
    """Read every input once, write every output once, and do `flops` of arithmetic."""
    return lambda op: Cost(flops(op), op.read, op.written)


def free(op: OpFacts) -> Cost:
    return Cost(0, 0, 0)


def pick(op: OpFacts) -> Cost:
    """Copy a part: of the first input read only what is written; read the other inputs (indices) in full."""
    return Cost(0, op.written + op.read - op.input(0).nbytes, op.written)


def picked_loss(op: OpFacts) -> Cost:
    """Negate, weigh and add one of each row's scores (batch, classes, ...): of these read only that one."""
    scores, targets = op.input(0), op.input(1)
    unread = scores.nbytes - scores.nbytes // max(1, scores.shape[1])
    return Cost(3 * targets.elements, op.read - unread, op.written)


def embedding_bag(op: OpFacts) -> Cost:
    """Sum rows of a table (table, indices, ...) in bags: of the table read one row for each index."""
    table, summed = op.input(0), op.input(1).elements * op.input(0).shape[-1]
    rows = summed * table.nbytes // max(1, table.elements)
    return Cost(summed, op.read - table.nbytes + rows, op.written)


def per_output(count: int) -> Formula:
    return streaming(lambda op: count * op.output.elements)


def per_input(count: int) -> Formula:
    return streaming(lambda op: count * op.input(0).elements)


# -- contractions ---------------------------------------------------------------------------------


def macs_per_output(weight: TensorFacts, axis: int) -> int:
    """Multiply-adds per output element of a convolution: channels in a group x window."""
    return weight.elements // max(1, weight.shape[axis])


def bias(op: OpFacts) -> int:
    return op.output.elements if op.has_input(2) else 0


def conv(op: OpFacts) -> int:
    axis = int(op.attributes.get("weight_output_axis", 0))
    return 2 * op.output.elements * macs_per_output(op.input(1), axis) + bias(op)


def conv_transpose(op: OpFacts) -> int:  # every input element is multiplied by each output channel's window
    return 2 * op.input(0).elements * macs_per_output(op.input(1), 0) + bias(op)


def depthwise_conv(op: OpFacts) -> int:  # weight: window x channels x multiplier
    channels = math.prod(op.input(1).shape[-2:])
    return 2 * op.output.elements * (op.input(1).elements // max(1, channels))


def conv_input_grad(op: OpFacts) -> int:  # (input sizes, filter, output gradient): as much as the forward
    return 2 * op.input(2).elements * macs_per_output(op.input(1), -1)


def conv_weight_grad(op: OpFacts) -> int:  # (input, filter sizes, output gradient) -> filter gradient
    return 2 * op.input(2).elements * macs_per_output(op.output, -1)


def inner_length(op: OpFacts) -> int:
    """Return K of a product (.., M, K) x (.., K, N), also if one of the two is stored transposed."""
    a, b, out = op.input(0), op.input(1), op.output
    if len(a.shape) < 2 or len(b.shape) < 2:
        return a.shape[-1] if a.shape else 1
    if not out.elements:
        return 0
    k = a.elements // (math.prod(a.shape[:-2]) * out.shape[-2])
    if k * math.prod(b.shape[:-2]) * out.shape[-1] != b.elements:
        raise GraphError(f"{a.shape} times {b.shape} is not {out.shape}: the inner lengths differ")
    return k


def matmul(op: OpFacts) -> int:
    return 2 * op.output.elements * inner_length(op) + bias(op)


def einsum_sizes(op: OpFacts) -> tuple[list[set[str]], dict[str, int]]:
    """Return the labels of each operand of an einsum, and the size of each label (``.0`` under the dots)."""
    terms = str(op.attributes["equation"]).replace(" ", "").split("->")[0].split(",")
    labels: list[set[str]] = []
    size: dict[str, int] = {}
    for i, term in enumerate(terms):
        shape = op.input(i).shape
        before, dots, behind = term.partition("...")
        labels.append({*before, *behind})
        size |= dict(zip(before, shape, strict=False))
        if behind:
            size |= dict(zip(behind, shape[-len(behind) :], strict=False))
        if dots:  # broadcast dimensions, numbered from the last one
            middle = shape[len(before) : len(shape) - len(behind)]
            for k, n in enumerate(reversed(middle)):
                labels[i].add(f".{k}")
                size[f".{k}"] = max(n, size.get(f".{k}", 1))
    return labels, size


def einsum(op: OpFacts) -> int:
    """One multiply-add for each point of the space of all labels, by the operator's definition."""
    labels, size = einsum_sizes(op)
    return 2 * math.prod(size.values()) if len(labels) > 1 else math.prod(size.values())


def attention(op: OpFacts) -> int:
    """Scores, softmax and weighted sum; (B, H, S, D) tensors, or (B, S, H*D) with ``q_num_heads``."""
    q, k, out = op.input(0), op.input(1), op.output
    heads = q.shape[1] if len(q.shape) == 4 else int(op.attributes["q_num_heads"])
    keys = k.shape[-2] + (op.input(4).shape[-2] if op.has_input(4) else 0)
    scores = q.shape[0] * heads * q.shape[-2] * keys
    return 2 * (q.elements + out.elements) * keys + 6 * scores  # scale 1 + softmax 5


def attention_grad(op: OpFacts) -> int:
    """Gradients of queries, keys and values from (q, k, v, gradient, output), as in FlashAttention.

    Five products instead of the forward's two, because the scores are recomputed; an element of the scores
    costs scale 1 + softmax 5 again, and 3 for P * (dP - D) and its scale; D is a product with the output's
    gradient, row by row (Dao et al., arXiv 2205.14135, algorithm 4).
    """
    q, k = op.input(0), op.input(1)
    heads = q.shape[1] if len(q.shape) == 4 else int(op.attributes["q_num_heads"])
    scores = q.shape[0] * heads * q.shape[-2] * k.shape[-2]
    return 10 * q.elements * k.shape[-2] + 9 * scores + 2 * q.elements


def recurrent(op: OpFacts, gates: int, pointwise: int) -> int:
    """Both products of every gate at every step, and the elementwise part of the cell."""
    rows, elements = _recurrent_weights(op)
    return math.prod(op.input(0).shape[:-1]) * (2 * elements + pointwise * (rows // gates))


def _recurrent_weights(op: OpFacts) -> tuple[int, int]:
    """Gates times width of all layers and directions, and elements of their matrices (in ONNX W and R)."""
    weights = [op.input(i) for i in range(1, 1 + int(op.attributes.get("matrices", 2)))]
    return sum(w.elements // w.shape[-1] for w in weights) // 2, sum(w.elements for w in weights)


# -- windows, normalisation, the rest -------------------------------------------------------------


def pool(op: OpFacts) -> int:
    """Window elements per output; if the window is unknown, every input element once (no overlap)."""
    window = op.attributes.get("kernel_shape")
    return op.input(0).elements if window is None else op.output.elements * math.prod(map(int, window))


def pool_grad(op: OpFacts) -> int:
    window, gradient = op.attributes.get("kernel_shape"), op.input(len(op.inputs) - 1).elements
    return gradient * math.prod(int(n) for n in window) if window is not None else op.output.elements


def lrn(op: OpFacts) -> int:  # square, size - 1 additions, scale, add, power, divide
    return (int(op.attributes["size"]) + 4) * op.output.elements


def batch_norm(op: OpFacts) -> int:
    """One multiply-add with the folded scale and shift; in training also mean and variance."""
    return (7 if op.attributes.get("training_mode") else 2) * op.input(0).elements


def resize(op: OpFacts) -> int:
    """A multiply-add per tap: 2 per resized axis if linear, 4 if cubic; none if nearest."""
    taps = {"nearest": 0, "linear": 2, "cubic": 4}.get(str(op.attributes.get("mode", "nearest")), 4)
    resized = sum(a != b for a, b in zip(op.input(0).shape, op.output.shape, strict=False))
    return 2 * taps**resized * op.output.elements if taps and resized else 0


def grid_sample(op: OpFacts) -> int:
    """A multiply-add per tap: along each axis of the image 2, 4 if cubic; none if nearest."""
    taps = {"nearest": 0, "cubic": 4, "bicubic": 4}.get(str(op.attributes.get("mode")), 2)
    return 2 * op.output.elements * math.prod([taps] * (len(op.input(0).shape) - 2))


def dft(op: OpFacts) -> int:  # 5 n log2 n for n complex numbers (https://www.fftw.org/speed/method.html)
    length = op.input(0).shape[int(op.attributes.get("axis", -2))]
    return 5 * max(op.input(0).elements, op.output.elements) // 2 * max(0, length - 1).bit_length()


def nary(extra: int) -> Formula:
    """n - 1 two-operand steps per element, and `extra` steps after them."""
    return streaming(lambda op: (max(0, len(op.inputs) - 1) + extra) * op.output.elements)


def assign(op: OpFacts) -> Cost:
    """Write a variable in place from the last input: (variable, ..., value), no output."""
    value = op.input(len(op.inputs) - 1)
    return Cost(0, value.nbytes, value.nbytes)


def assign_sum(op: OpFacts) -> Cost:
    """Add the last input to a variable in place, or subtract it."""
    value = op.input(len(op.inputs) - 1)
    return Cost(value.elements, 2 * value.nbytes, value.nbytes)


def adam(op: OpFacts) -> Cost:
    """Update (gradient, optimizer state, weight) in place.

    Moments 3 + 4 flop per element, their corrections 2, and square root, add, divide, scale, subtract 5
    (Kingma and Ba, arXiv 1412.6980, algorithm 1). The weight is written from its copy in the state.
    """
    gradient, state, weight = op.input(0), op.input(1), op.input(2)
    return Cost(14 * gradient.elements, gradient.nbytes + state.nbytes, state.nbytes + weight.nbytes)


def rotary_embedding(op: OpFacts) -> Cost:
    """Rotate (input, cos, sin, positions), or ONNX Runtime's (input, positions, cos, sin): 3 flop an element.

    Of both tables one row is read for each token.
    """
    x, table = op.input(0), op.input(2)
    tokens = x.elements // (x.shape[1] * x.shape[3] if len(x.shape) == 4 else x.shape[-1])
    rows = min(table.nbytes, tokens * table.nbytes // max(1, math.prod(table.shape[:-1])))
    return Cost(3 * x.elements, op.read - 2 * (table.nbytes - rows), op.written)


# -- selection and sorting: a comparison is 1 flop, as everywhere -------------------------------------


def top_k(op: OpFacts) -> int:
    """The k largest of each row: every element passes once through a heap of k, one level per comparison.

    n elements take n ceil(log2(k + 1)) comparisons, one each for k = 1, as argmax (Knuth, The Art of Computer
    Programming 3, section 5.2.3). An upper bound: most elements are smaller than the root, and stop there.
    """
    shape = op.output.shape
    k = shape[int(op.attributes.get("axis", -1))] if shape else 1
    return op.input(0).elements * k.bit_length()


def unique(op: OpFacts) -> int:
    """Sort, then compare neighbours: n ceil(log2 n) + n - 1 comparisons of n elements.

    The bound of merge sort (Knuth, The Art of Computer Programming 3, section 5.2.4), needed for numpy's and
    ONNX's sorted result; for rows (``axis``) each comparison is of one of their elements.
    """
    n = op.input(0).elements
    return n * (n - 1).bit_length() + n - 1 if n else 0


def non_max_suppression(op: OpFacts) -> int:
    """Sort the scores of each class; of each box that is kept and each other one, overlap over union: 13."""
    scores = op.input(1)
    boxes = scores.shape[-1]
    return scores.elements * max(0, boxes - 1).bit_length() + 13 * boxes * op.output.shape[0]


# ----------------------------------------------------------------------------------------------------------
# Sizes of an op that cost models use, as attributes with the same names from every source.
#
# ::
#
#     matmul          (2, 3, 5) x (5, 7)               m 6, n 7, k 5           one right matrix: all rows
#                     (2, 3, 5) x (2, 5, 7)   batch 2, m 3, n 7, k 5           a product per right matrix
#     attention       batch, seq_len, kv_len, heads, kv_heads, head_dim, causal, window (if there is one)
#     conv, pools     batch, in_channels, out_channels, group, and per axis of the image input_shape,
#                     kernel_shape, strides, dilations, pads (all begins, then all ends)
#     rows            rows, columns: softmax, norms, losses, top_k, cum_sum work along columns; a reduction
#                     reduces columns to one per row; gather copies rows
#
# A right matrix stored (n, k) has ``transposed`` (a square one only if its operator says so). Gradients
# have the sizes of their forward; products in them are products with their own sizes. Ops that bytes describe
# (elementwise ops, copies) have no sizes. Names and order of axes are ONNX's
# (https://onnx.ai/onnx/operators/onnx__Conv.html), whichever axis the framework stores last.

Sizes = dict[str, Any]
Shape = tuple[int, ...]


def measured_shape(op: OpFacts) -> Sizes:
    """Return the sizes of an op; none if its kind has none, or its operands do not determine them.

    Besides shapes it uses the attributes ``channels_last``, ``axis``, ``num_groups``, ``transposed`` (or
    ``transB``), ``strides``, ``pads``, ``dilations``, ``is_causal``, ``kv_num_heads``, ``window``.

    Examples
    --------
    >>> from scenarios.ops.op_formulas import TensorFacts
    >>> x, w = TensorFacts((2, 3, 5), 60), TensorFacts((5, 7), 70)
    >>> measured_shape(OpFacts("matmul", (x, w), (TensorFacts((2, 3, 7), 84),)))
    {'m': 6, 'n': 7, 'k': 5}
    """
    rule = _RULES.get(op.kind)
    if rule is None:
        return {}
    try:
        return rule(op)
    except (IndexError, ZeroDivisionError):  # too few axes, or an empty one
        return {}


# -- products -------------------------------------------------------------------------------------


def _product(op: OpFacts) -> Sizes:
    right, out = op.input(1).shape, op.output
    n = out.shape[-1] if len(right) > 1 and out.shape else 1
    batch, k = math.prod(right[:-2]), inner_length(op)
    sizes = {"m": out.elements // max(1, n * batch), "n": n, "k": k}
    if len(right) != 2:
        sizes["batch"] = batch
    transposed = op.attributes.get("transposed", op.attributes.get("transB"))
    if len(right) > 1 and (right[-2:] != (k, n) or transposed):
        sizes["transposed"] = True
    return sizes


def _einsum(op: OpFacts) -> Sizes:
    labels, size = einsum_sizes(op)
    if len(labels) != 2:
        return {}
    left, right = labels
    _, arrow, result = str(op.attributes["equation"]).replace(" ", "").partition("->")
    kept = {*result} | {label for label in size if label[0] == "."} if arrow else left ^ right

    def size_of(labels: set[str]) -> int:
        return math.prod(size[label] for label in labels)

    shared = left & right
    sizes = {"m": size_of((left - right) & kept), "n": size_of((right - left) & kept)}
    return {**sizes, "k": size_of(shared - kept), "batch": size_of(shared & kept)}


def _attention(op: OpFacts) -> Sizes:
    q, k = op.input(0).shape, op.input(1).shape
    split, attributes = len(q) == 4, op.attributes
    if not split and "q_num_heads" not in attributes:
        return {}
    heads = q[1] if split else int(attributes["q_num_heads"])
    past = op.input(4).shape[-2] if op.kind == "attention" and op.has_input(4) else 0
    sizes = {"batch": q[0], "seq_len": q[-2], "kv_len": k[-2] + past, "heads": heads}
    sizes["kv_heads"] = k[1] if split else int(attributes.get("kv_num_heads", heads))
    sizes |= {"head_dim": q[-1] if split else q[-1] // heads, "causal": bool(attributes.get("is_causal"))}
    return sizes | ({"window": attributes["window"]} if attributes.get("window") else {})


# -- windows over an image --------------------------------------------------------------------------


def _conv(op: OpFacts) -> Sizes:
    x, w, y = _OPERANDS[op.kind](op)
    last = _channels_last(op)
    if op.kind == "depthwise_conv":  # window x channels x multiplier
        window, group = w[:-2], w[-2]
    elif op.kind == "conv_transpose":
        window, group = w[2:], _channels(y, last) // w[1]
    elif last:
        window, group = w[:-2], _channels(x, last) // w[-2]
    else:
        window, group = w[2:], _channels(x, last) // w[1]
    return _windows(op, x, y, window, group)


def _pool(op: OpFacts) -> Sizes:
    gradient = op.kind.endswith("_grad")
    x = op.output.shape if gradient else op.input(0).shape
    y = op.input(len(op.inputs) - 1).shape if gradient else op.output.shape
    kernel_shape = op.attributes.get("kernel_shape")
    window = None if kernel_shape is None else tuple(map(int, kernel_shape))
    return _windows(op, x, y, window, _channels(x, _channels_last(op)))


def _windows(op: OpFacts, x: Shape, y: Shape, window: Shape | None, group: int) -> Sizes:
    """Return the sizes of the windows that turn `x` into `y`; without a given window, they do not overlap."""
    last = _channels_last(op)
    image, output = (shape[1:-1] if last else shape[2:] for shape in (x, y))
    wide, narrow = (output, image) if op.kind == "conv_transpose" else (image, output)
    strides = _per_axis(op, "strides", len(image))
    dilations = _per_axis(op, "dilations", len(image)) or [1] * len(image)
    if window is None:
        strides = [a // b for a, b in zip(wide, narrow, strict=True)]
        window = tuple(a - (b - 1) * s for a, b, s in zip(wide, narrow, strides, strict=True))
    if not len(wide) == len(narrow) == len(window) == len(dilations):
        return {}
    spans = [1 + d * (n - 1) for n, d in zip(window, dilations, strict=True)]
    if len(strides) != len(image):  # the smallest that make no more than the output
        strides = [max(1, math.ceil((a - n + 1) / b)) for a, b, n in zip(wide, narrow, spans, strict=True)]
    pads = [int(n) for n in op.attributes.get("pads") or ()]
    if len(pads) != 2 * len(image):  # as many as the whole output needs
        sizes = zip(wide, narrow, spans, strides, strict=True)
        totals = [max(0, (b - 1) * s + n - a) for a, b, n, s in sizes]
        pads = [n // 2 for n in totals] + [n - n // 2 for n in totals]
    images = {"batch": x[0], "in_channels": _channels(x, last), "out_channels": _channels(y, last)}
    windows = {"kernel_shape": [*window], "strides": strides, "pads": pads, "dilations": dilations}
    return {**images, "input_shape": [*image], **windows, "group": group}


def convolution_sizes(
    image: Shape, kernel: Shape, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Return the output sizes of a convolution on an image; pads: before all axes, then after them."""
    return [
        (size + pads[i] + pads[len(image) + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(image)
    ]


def _per_axis(op: OpFacts, name: str, axes: int) -> list[int]:
    """Return an attribute's value for each axis; empty if it is absent."""
    values = [int(n) for n in op.attributes.get(name) or ()]
    return values * axes if len(values) == 1 else values


def _channels_last(op: OpFacts) -> bool:
    return bool(op.attributes.get("channels_last"))


def _channels(shape: Shape, last: bool) -> int:
    return shape[-1] if last else shape[1]


_OPERANDS: Final[Mapping[str, Callable[[OpFacts], tuple[Shape, Shape, Shape]]]] = {
    **dict.fromkeys(
        ("conv", "depthwise_conv", "conv_transpose"),
        lambda op: (op.input(0).shape, op.input(1).shape, op.output.shape),
    ),
    "conv_input_grad": lambda op: (op.output.shape, op.input(1).shape, op.input(2).shape),
    "conv_weight_grad": lambda op: (op.input(0).shape, op.output.shape, op.input(2).shape),
    "conv_grad": lambda op: (op.input(1).shape, op.input(2).shape, op.input(0).shape),
}
"""Kind -> positions of input, filter and output of the convolution."""

# -- rows -----------------------------------------------------------------------------------------


def _rows(elements: int, columns: int) -> Sizes:
    return {"rows": elements // columns, "columns": columns} if elements % columns == 0 and elements else {}


def _rows_along(default: int) -> Callable[[OpFacts], Sizes]:
    """Rows lie along one axis of the first input."""
    return lambda op: _rows(op.input(0).elements, op.input(0).shape[_axis(op, default)])


def _axis(op: OpFacts, default: int) -> int:
    axis = op.attributes.get("axis", default)
    return axis if isinstance(axis, int) else default


def _rows_from_axis(op: OpFacts) -> Sizes:
    """All axes from one on form a row."""
    return _rows(op.input(0).elements, math.prod(op.input(0).shape[_axis(op, -1) :]))


def _rows_by_channel(op: OpFacts) -> Sizes:
    x = op.input(0)
    return _rows(x.elements, x.shape[-1] if _channels_last(op) or len(x.shape) == 1 else x.shape[1])


def _rows_by_group(op: OpFacts) -> Sizes:
    x = op.input(0)
    groups = int(op.attributes.get("num_groups", _channels(x.shape, _channels_last(op))))
    return _rows(x.elements, x.elements // (x.shape[0] * groups))


def _reduction(op: OpFacts) -> Sizes:
    return _rows(op.input(0).elements, op.input(0).elements // op.output.elements)


def _gather(op: OpFacts) -> Sizes:
    table = op.input(0).shape
    return _rows(op.output.elements, math.prod(table[_axis(op, 0) % len(table) + 1 :]))


def _recurrent(op: OpFacts) -> Sizes:
    """A step of a layer, for all gates; ``batch`` directions of ``seq_len`` steps of all layers."""
    x = op.input(0).shape
    length, *batch = (x[:-1], x[-2::-1], (1, *x[:-1]))[int(op.attributes.get("layout", 0))]  # 2: one step
    (rows, elements), layers = _recurrent_weights(op), int(op.attributes.get("layers", 1))
    directions = math.prod(op.input(1).shape[:-2]) * int(op.attributes.get("directions", 1))
    step = {"m": math.prod(batch), "n": rows // layers // directions, "k": elements // rows}
    return step | {"seq_len": length * layers} | ({"batch": directions} if directions > 1 else {})


def _kinds(rule: Callable[[OpFacts], Sizes], kinds: str) -> dict[str, Callable[[OpFacts], Sizes]]:
    return dict.fromkeys(kinds.split(), rule)


_RULES: Final[Mapping[str, Callable[[OpFacts], Sizes]]] = {
    **_kinds(_product, "matmul gemm"),
    "einsum": _einsum,
    **_kinds(_attention, "attention attention_grad"),
    **_kinds(_conv, " ".join(_OPERANDS)),
    **_kinds(_pool, "max_pool average_pool lp_pool global_max_pool global_average_pool max_pool_grad"),
    "average_pool_grad": _pool,
    **_kinds(_rows_along(-1), "softmax log_softmax softmax_grad sparse_softmax_cross_entropy top_k cum_sum"),
    "softmax_cross_entropy": _rows_along(1),
    **_kinds(_rows_from_axis, "layer_norm rms_norm layer_norm_grad"),
    **_kinds(_rows_by_channel, "batch_norm batch_norm_grad mean_variance_norm"),
    **_kinds(_rows_by_group, "instance_norm group_norm"),
    **_kinds(_reduction, "reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_all reduce_any"),
    **_kinds(_reduction, "reduce_l1 reduce_l2 reduce_sum_square reduce_log_sum reduce_log_sum_exp"),
    **_kinds(_reduction, "argmax argmin"),
    "gather": _gather,
    **_kinds(_recurrent, "lstm gru rnn"),
    "bias_add_grad": lambda op: _rows(op.input(0).elements, op.output.elements),
    "embedding_grad": lambda op: _rows(op.input(1).elements, op.input(1).shape[-1]),
}
