"""The work of an instruction of an XLA program, from the shapes in its text.

::

    dot_general  (32, 20) x (20, 64), contracting 1 x 0   ──►  matmul, m 32, n 64, k 20, 81,920 flop
    reduce       (32, 10) over 1 by add                   ──►  reduce_sum, 32 rows of 10, 288 flop

The flop are those that XLA itself counts, so that they equal ``lowered.cost_analysis()``:
a convolution multiplies no padding, a reduction takes one operation less than it has elements. Elementary
functions (exp, tanh, ...), which XLA counts separately as ``transcendentals``, are one flop each, too, as in
`scenarios.ops.op_costs`. A collective has none. A slice or an update in place moves only that part.

Source: ``xla/service/hlo_cost_analysis.cc`` (https://github.com/openxla/xla); for the instructions,
https://openxla.org/xla/operation_semantics and https://openxla.org/stablehlo/spec.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from scenarios.ops import attributes as dtypes
from sim.base.arrays import at_most, group_pairs
from sim.base.errors import InputError


class Array(NamedTuple):
    """Type and shape of a tensor."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return dtypes.nbytes(self.dims, self.dtype)


Shape = Array | tuple[Any, ...]
"""A tensor, or a tuple of shapes; the empty tuple for a token."""

Operand = tuple[str, int | None]
"""Name of an instruction, and number of its result if it has several."""


@dataclass
class Instruction:
    """An instruction in HLO's terms, whichever text it comes from.

    Attributes
    ----------
    name : str
        Name by which others of its computation read it.
    label : str
        Name of its op.
    opcode : str
        ``"dot"``, ``"dynamic-slice"``, ...
    shape : Shape
    operands : list of Operand
    attributes : dict
        Relevant to costs: ``window``, ``dim_labels``, ``lhs_contracting_dims``, ``replica_groups``, ...
    called : list of Computation
        For a ``while``: condition, body.
    """

    name: str
    label: str
    opcode: str
    shape: Shape
    operands: list[Operand]
    attributes: dict[str, Any] = field(default_factory=dict)
    called: list[Computation] = field(default_factory=list)

    @property
    def results(self) -> list[Array]:
        """The tensors that it produces."""
        return [*leaves(self.shape)]


@dataclass
class Computation:
    """A sequence of instructions, like a function; each reads those before it.

    Attributes
    ----------
    name : str
    instructions : dict of str to Instruction
        By name, in order.
    root : Operand
        Its result.
    outer : Computation or None
        A computation whose instructions it may also read (for a region of StableHLO).
    flop : int or None
        What `flop_of` has counted.
    """

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: Operand = ("", None)
    outer: Computation | None = None
    flop: int | None = None

    def shape(self, operand: Operand) -> Shape:
        """Return the shape of an operand."""
        name, index = operand
        source = self.instructions.get(name)
        if source is None:
            if self.outer is None:
                raise InputError(f"{self.name} reads {name!r}, which no instruction before it makes")
            return self.outer.shape(operand)
        return source.shape if index is None or isinstance(source.shape, Array) else source.shape[index]

    def shapes(self, instruction: Instruction) -> list[Array]:
        """Return the tensors that an instruction reads, including those in tuples."""
        return [array for operand in instruction.operands for array in leaves(self.shape(operand))]

    def end(self) -> Instruction | None:
        """Return the instruction that produces the result."""
        return self.instructions.get(self.root[0])


def leaves(shape: Shape) -> Iterator[Array]:
    """Yield the tensors of a shape."""
    if isinstance(shape, Array):
        yield shape
    else:
        for part in shape:
            yield from leaves(part)


# -- kinds of instructions ------------------------------------------------------------------------


def words(text: str) -> dict[str, str]:
    """Return a table from text: XLA's name and ours, which is the same with underscores if none is given.

    Examples
    --------
    >>> words("subtract:sub reduce-window")
    {'subtract': 'sub', 'reduce-window': 'reduce_window'}
    """
    pairs = (word.partition(":") for word in text.split())
    return {xla_name: name or xla_name.replace("-", "_") for xla_name, _, name in pairs}


_ELEMENTWISE: Final = words(
    """add subtract:sub multiply:mul divide:div remainder:mod maximum minimum negate:neg abs sign floor ceil
    round-nearest-afz:round round-nearest-even:round and or xor not shift-left:bit_shift
    shift-right-logical:bit_shift shift-right-arithmetic:bit_shift popcnt count-leading-zeros compare
    select:where clamp:clip convert:cast reduce-precision:cast stochastic-convert:cast is-finite complex real
    imag map bitcast-convert:cast"""
)
TRANSCENDENTAL: Final = words(
    """exponential:exp exponential-minus-one:exp log log-plus-one:log logistic:sigmoid power:pow sqrt cbrt
    rsqrt tanh sine:sin cosine:cos tan atan2 erf rng:random rng-bit-generator:random"""
)
"""Operations that XLA counts as ``transcendentals``."""

_MOVES: Final = words(
    """copy transpose concatenate:concat pad reverse slice dynamic-slice:slice dynamic-update-slice gather
    broadcast:expand iota:range topk:top_k rng-get-and-update-state:random"""
)
_COUNTED: Final = words(
    """reduce reduce-window select-and-scatter:max_pool_grad scatter:scatter_nd sort fft triangular-solve
    cholesky"""
)
COLLECTIVES: Final = words(
    """all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all:all_to_all
    collective-permute:all_to_all collective-broadcast:broadcast"""
)
"""Collectives; a permutation is an exchange in which each rank sends to one."""


_COMPARISONS: Final = words("LT:less LE:less_or_equal GT:greater GE:greater_or_equal NE:not_equal")
_REDUCERS: Final = words("add:sum maximum:max minimum:min multiply:prod and:all or:any")
_EXPANDED: Final = {
    "sinh": 13, "cosh": 5, "asin": 7, "acos": 5, "atan": 1, "asinh": 14, "acosh": 11, "atanh": 8,
    "erf-inv": 39, "erfc": 63, "lgamma": 57, "digamma": 76, "bessel-i1e": 84, "next-after": 24,
}  # fmt: skip
"""Functions that XLA expands in HLO: flop and transcendentals per element, in fp32."""

_KINDS: Final = words(" ".join(_EXPANDED)) | _ELEMENTWISE | TRANSCENDENTAL | _MOVES | _COUNTED | COLLECTIVES
_CUDNN: Final = re.compile(r"__cudnn\$conv(BackwardInput|BackwardFilter|\w*Forward)")


def product_of(instruction: Instruction) -> str:
    """Return ``dot`` or ``convolution``, also for a library call of one; "" for all others."""
    target = str(instruction.attributes.get("target", ""))
    if instruction.opcode == "convolution" or _CUDNN.match(target):
        return "convolution"
    library = (
        target.startswith(("__cublas$", "__onednn$matmul"))
        and "lhs_contracting_dims" in instruction.attributes
    )
    return "dot" if instruction.opcode == "dot" or library else ""


def kind_of(instruction: Instruction, operands: Sequence[Array]) -> str | None:
    """Return the op kind, or None if the instruction is not known.

    Parameters
    ----------
    instruction : Instruction
    operands : sequence of Array
        Its operands.
    """
    opcode = instruction.opcode
    if product := product_of(instruction):
        return "matmul" if product == "dot" else Convolution(instruction, operands).kind
    if opcode in ("reduce", "reduce-window"):
        end = instruction.called[0].end() if instruction.called else None
        reducer = _REDUCERS.get(instruction.attributes.get("by") or (end.opcode if end else ""))
        if opcode == "reduce":
            return f"reduce_{reducer}" if reducer else "argmax" if len(instruction.results) == 2 else "reduce"
        low = [before for before, _ in instruction.attributes["window"].get("pad", ())]
        if reducer == "sum" and max(low, default=0) + 1 in operands[0].dims:
            return "cum_sum"
        return "max_pool" if reducer == "max" else "average_pool"
    if opcode == "compare":
        return _COMPARISONS.get(instruction.attributes.get("direction", ""), "equal")
    if opcode.startswith("batch-norm-"):
        return "batch_norm_grad" if opcode.endswith("grad") else "batch_norm"
    if opcode == "custom-call" and instruction.attributes.get("target") == "TopK":
        return "top_k"
    return _KINDS.get(opcode.removesuffix("-start"))


# -- flop -----------------------------------------------------------------------------------------


def flop_of(computation: Computation) -> int:
    """Return the flop of a computation; loops count as far as their text gives the trips."""
    if computation.flop is None:
        computation.flop = 0  # for recursion, which is refused elsewhere
        works = (work_of(op, computation.shapes(op)) for op in computation.instructions.values())
        computation.flop = sum(works)
    return computation.flop


def work_of(instruction: Instruction, operands: Sequence[Array]) -> int:
    """Return the flop of an instruction with these operands."""
    opcode, results = instruction.opcode, instruction.results
    elements = results[0].elements if results else 0
    if product := product_of(instruction):
        if product == "convolution":
            return Convolution(instruction, operands).flops
        sizes = _product_sizes(instruction, operands[0], operands[1])
        if sizes["m"] * sizes["n"] * sizes.get("batch", 1) != elements:
            raise _misfit(instruction, operands)
        return 2 * elements * int(sizes["k"])
    if opcode in _WORK:
        return _WORK[opcode](instruction, operands)
    if opcode in _EXPANDED:
        return _EXPANDED[opcode] * elements
    if opcode.startswith("rng") and opcode in TRANSCENDENTAL:
        return sum(array.elements for array in results)
    if opcode in _ELEMENTWISE or opcode in TRANSCENDENTAL:
        if opcode != "bitcast-convert" and any(array.dims not in ((), results[0].dims) for array in operands):
            raise _misfit(instruction, operands)
        return elements
    return 0


def _body_flop(op: Instruction) -> int:
    """Return the flop of one application of what an instruction applies; without its body, 1."""
    return flop_of(op.called[0]) if op.called else 1


def _extra_positions(op: Instruction) -> int:
    """Return the elements of a window besides the first."""
    window: Sequence[int] = op.attributes.get("window", {}).get("size", ())
    return max(0, math.prod(window) - 1)


def _fft(op: Instruction, operands: Sequence[Array]) -> int:
    lengths: Sequence[int] = op.attributes.get("fft_length", ())
    return 8 * operands[0].elements * math.prod(max(1, n).bit_length() - 1 for n in lengths)


_WORK: Final[Mapping[str, Callable[[Instruction, Sequence[Array]], int]]] = {
    "map": lambda op, args: flop_of(op.called[0]) * op.results[0].elements,
    "reduce": lambda op, args: _body_flop(op) * max(0, args[0].elements - op.results[0].elements),
    "reduce-window": lambda op, args: _body_flop(op) * _extra_positions(op) * op.results[0].elements,
    "scatter": lambda op, args: _body_flop(op) * args[-1].elements,
    "select-and-scatter": lambda op, args: (
        (flop_of(op.called[0]) * _extra_positions(op) + flop_of(op.called[1])) * args[1].elements
    ),
    "sort": lambda op, args: args[0].elements * max(0, args[0].elements - 1).bit_length(),
    "fft": _fft,
    "triangular-solve": lambda op, args: 2 * args[0].dims[-1] * args[1].elements,
    "cholesky": lambda op, args: args[0].dims[-1] * args[0].elements // 3,
    "conditional": lambda op, args: max(map(flop_of, op.called), default=0),
    "while": lambda op, args: sum(map(flop_of, op.called)) * int(op.attributes.get("trips", 1)),
    **dict.fromkeys(("call", "fusion", "async-start"), lambda op, args: flop_of(op.called[0])),
}
"""Flop of an instruction with these operands."""


def _misfit(instruction: Instruction, operands: Sequence[Array]) -> InputError:
    """Return the error for operands that an instruction cannot have."""
    shapes, result = " and ".join(str([*array.dims]) for array in operands), [*instruction.results[0].dims]
    return InputError(f"{instruction.label}: {instruction.opcode} does not make {result} of {shapes}")


class Convolution:
    """A convolution with its window and the names of its axes, ``bf01_oi01->bf01``.

    A cuDNN call for a gradient writes them as in the forward. In a plain instruction a gradient of the
    input has a dilated image, and a gradient of the weights treats the batch as channels.
    """

    def __init__(self, instruction: Instruction, operands: Sequence[Array]) -> None:
        called = _CUDNN.match(str(instruction.attributes.get("target", "")))
        x, w, y = operands[0], operands[1], instruction.results[0]
        if called and called[1] == "BackwardInput":
            x, y = y, x
        elif called and called[1] == "BackwardFilter":
            w, y = y, w
        lhs, _, out = str(instruction.attributes.get("dim_labels", "")).partition("->")
        lhs, _, kernel = lhs.partition("_")
        self.axes = sorted(axis for axis in lhs if axis.isdigit())
        self.x, self.w, self.y = (
            dict(zip(labels, array.dims, strict=False)) for labels, array in ((lhs, x), (kernel, w), (out, y))
        )
        for labels, required, array in ((lhs, "bf", x), (kernel, "io", w), (out, "bf", y)):
            if len(labels) != len(array.dims) or not {*required, *self.axes} <= {*labels}:
                raise InputError(f"{instruction.label}: its dim_labels do not fit its tensors")
        window = instruction.attributes.get("window", {})
        n = len(self.axes)
        self.stride, self.image_step, self.kernel_step = (
            [*window.get(key, ()), *[1] * n][:n] for key in ("stride", "lhs_dilate", "rhs_dilate")
        )
        if min(*self.stride, *self.image_step, *self.kernel_step, 1) < 1:
            raise InputError(f"{instruction.label}: a window whose stride or dilation is no number from 1 on")
        self.pads = [*window.get("pad", ()), *[(0, 0)] * n][:n]
        self.group = instruction.attributes.get("feature_group_count", 1)
        self.batch_group = instruction.attributes.get("batch_group_count", 1)
        if called:
            gradients = {"BackwardInput": "conv_input_grad", "BackwardFilter": "conv_weight_grad"}
            self.kind, self._forward = gradients.get(called[1], "conv"), True
        else:
            of_weights = lhs.index("f") < lhs.index("b") or self.batch_group > 1
            of_input = max(self.image_step, default=1) > 1
            self.kind = "conv_weight_grad" if of_weights else "conv_input_grad" if of_input else "conv"
            self._forward = self.kind == "conv"

    @property
    def flops(self) -> int:
        """Two for each pair of an element of the image and one of the kernel; none for padding."""
        channels, batch = self.x["f"] // max(1, self.group), self.x["b"] // max(1, self.batch_group)
        pairs = 2 * channels * self.y["f"] * batch
        for n, axis in enumerate(self.axes):
            sizes, steps = (self.y[axis], self.w[axis], self.x[axis]), (self.stride[n], self.kernel_step[n])
            pairs *= _positions(*sizes, steps, self.pads[n][0], self.image_step[n])
        return int(pairs)

    def sizes(self) -> dict[str, Any]:
        """Return the sizes that cost models use: those of the forward convolution."""
        x, w, y = ([array[axis] for axis in self.axes] for array in (self.x, self.w, self.y))
        low, high = ([pad[side] for pad in self.pads] for side in (0, 1))
        counts = {"batch": self.x["b"], "in_channels": self.x["f"], "out_channels": self.y["f"]}
        image, kernel, stride, dilation = x, w, self.stride, self.kernel_step
        if self.kind == "conv_weight_grad" and not self._forward:  # the sum is over the batch
            counts = {"batch": self.x["f"], "in_channels": self.x["b"], "out_channels": self.y["f"]}
            if self.batch_group > 1:
                counts = {"batch": self.w["i"], "in_channels": self.x["b"], "out_channels": self.w["o"]}
            kernel, stride, dilation = y, self.kernel_step, self.stride
        elif self.kind == "conv_input_grad" and not self._forward:
            counts = {"batch": self.x["b"], "in_channels": self.y["f"], "out_channels": self.x["f"]}
            image, stride = y, self.image_step
            spans = [step * (n - 1) for n, step in zip(kernel, dilation, strict=True)]
            low, high = ([span - pad for span, pad in zip(spans, pads, strict=True)] for pads in (low, high))
        pads = [max(0, pad) for pad in (*low, *high)]
        group = max(self.group, self.batch_group)
        windows = {"kernel_shape": kernel, "strides": stride, "pads": pads, "dilations": dilation}
        return {**counts, "group": group, "input_shape": image, **windows}


def _positions(outputs: int, kernel: int, size: int, steps: tuple[int, int], low: int, spacing: int) -> int:
    """Return how many pairs of an output element and a kernel element meet an element of the image.

    They are o and k with ``o stride + k dilation - low = i spacing`` for an i below `size`.
    """
    (smaller, step), (larger, stride) = sorted(((outputs, steps[0]), (kernel, steps[1])))
    at_most(_MAX_POSITIONS, smaller * min(larger, spacing), "places of a window")
    count, jump = 0, spacing * stride
    for n in range(smaller):
        for k in range(min(larger, spacing)):  # every `spacing`-th place from here meets an element, or none
            offset = n * step + k * stride - low
            if offset % spacing == 0:
                first = max(0, -(offset // jump))
                last = min((larger - 1 - k) // spacing, (size * spacing - 1 - offset) // jump)
                count += max(0, last - first + 1)
    return count


_MAX_POSITIONS: Final = 2**20


# -- sizes and bytes ------------------------------------------------------------------------------


def sizes_of(instruction: Instruction, operands: Sequence[Array]) -> dict[str, Any]:
    """Return the sizes of an op that cost models use (`scenarios.ops.op_formulas`)."""
    product = product_of(instruction)
    if product == "convolution":
        return Convolution(instruction, operands).sizes()
    if product == "dot":
        return _product_sizes(instruction, operands[0], operands[1])
    columns = 0
    if instruction.opcode == "reduce" and instruction.results[0].elements:
        columns = operands[0].elements // instruction.results[0].elements
        rows = instruction.results[0].elements
    elif instruction.opcode == "gather":
        columns = math.prod(instruction.attributes.get("slice_sizes", ()))
        rows = instruction.results[0].elements // max(1, columns)
    return {"rows": rows, "columns": columns} if columns else {}


def _product_sizes(instruction: Instruction, left: Array, right: Array) -> dict[str, Any]:
    attrs = instruction.attributes
    summed, rhs_summed = attrs.get("lhs_contracting_dims", ()), attrs.get("rhs_contracting_dims", ())
    batch, rhs_batch = attrs.get("lhs_batch_dims", ()), attrs.get("rhs_batch_dims", ())
    lhs_dims = [left.dims[axis] for axis in (*summed, *batch)]
    if lhs_dims != [right.dims[axis] for axis in (*rhs_summed, *rhs_batch)]:
        raise _misfit(instruction, (left, right))
    k, n_batches = (math.prod(left.dims[axis] for axis in axes) for axes in (summed, batch))
    inner = [axis for axis in range(len(right.dims)) if axis not in rhs_batch]
    m, n = (array.elements // max(1, k * n_batches) for array in (left, right))
    sizes: dict[str, Any] = {"m": m, "n": n, "k": k}
    if batch:
        sizes["batch"] = n_batches
    if len(inner) > 1 and inner[-1] in rhs_summed:
        sizes["transposed"] = True
    return sizes


_PICKS: Final = ("slice", "dynamic-slice", "gather")


def bytes_moved(instruction: Instruction, inputs: Sequence[Array]) -> tuple[list[int], list[int], int | None]:
    """Return the bytes of each tensor read and written, and which one is updated in place, if any."""
    read, written = [array.nbytes for array in inputs], [array.nbytes for array in instruction.results]
    if instruction.opcode in _PICKS:
        return [written[0], *read[1:]], written, None
    if instruction.opcode == "dynamic-update-slice":
        return [0, *read[1:]], [read[1]], 0
    if instruction.opcode == "scatter":
        n = len(inputs) // 2
        return [*read[n + 1 :], *read[n:]], read[n + 1 :], 0 if n == 1 else None
    if instruction.opcode == "fusion":
        return _fusion_bytes(instruction.called[0], read, written)
    return read, written, None


def _fusion_bytes(
    body: Computation, read: list[int], written: list[int]
) -> tuple[list[int], list[int], int | None]:
    """Return the bytes that a fusion moves: only slices of sliced inputs, only updates of updated ones."""
    readers = group_pairs(
        (name, (op, position))
        for op in body.instructions.values()
        for position, (name, _) in enumerate(op.operands)
    )
    number = {
        name: op.attributes.get("number", 0)
        for name, op in body.instructions.items()
        if op.opcode == "parameter"
    }
    for name, index in number.items():
        uses = readers.get(name, [])
        parts = [op.results[0].nbytes for op, position in uses if op.opcode in _PICKS and not position]
        updated = [op for op, position in uses if op.opcode == "dynamic-update-slice" and not position]
        if len(parts) + len(updated) == len(uses) and index < len(read):
            read[index] = min(read[index], sum(parts))
    end = body.end()
    roots = end.operands if end is not None and end.opcode == "tuple" else [body.root]
    ends = [body.instructions[name] for name, _ in roots if name in body.instructions]
    in_place = None
    for k, op in enumerate(ends[: len(written)]):
        while op.opcode == "bitcast" and op.operands[0][0] in body.instructions:
            op = body.instructions[op.operands[0][0]]
        if op.opcode == "dynamic-update-slice":
            written[k] = body.shapes(op)[1].nbytes
            in_place = number.get(op.operands[0][0]) if k == 0 else in_place
    return read, written, in_place
