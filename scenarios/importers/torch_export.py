"""PyTorch modules, by `torch.export`: what each operator of the forward computes, reads and writes.

::

    nn.Module + example inputs ──torch.export──► ATen operators with shapes ──cost table──► Graph

Nothing is computed: the exporter traces the module with tensors that have a shape but no content. The
batch size is that of the example inputs.

* Parameters, buffers and constants are parameters of the graph. Buffers, constants, parameters that do not
  require a gradient, and whole numbers are not trained: ops that read them say so (``no_gradient``).
* Operators are those that the module calls (``linear``, ``scaled_dot_product_attention``), not their
  decompositions; each has a kind of `scenarios.ops.op_costs` and the attribute ``aten``.
* An operator without a formula is refused by name; it never silently costs nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from devices.describe.field_types import sized_dtype
from scenarios.importers.torch_program import export_program
from scenarios.ops import attributes as dtypes
from scenarios.ops.op_costs import COSTS, op_arguments, without_formula
from scenarios.ops.op_formulas import OpFacts, TensorFacts
from sim.base.errors import InputError, extra, in_file
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph, output_name

# ----------------------------------------------------------------------------------------------------------
# Operators of PyTorch's ATen, in the terms of the cost table: kind, inputs in its order, attributes.
#
# Most have the same name there and here (``aten.relu`` is ``relu``); the tables hold the others.
# Operators that only change strides, such as ``permute`` or ``expand``, are views and move nothing.
# Operators that then need contiguous elements, ``contiguous``, some ``reshape`` and ``matmul`` of heads, copy
# them: a transpose.

LISTS = frozenset(
    {"split", "split_with_sizes", "chunk", "unbind", "tensor_split", "broadcast_tensors", "meshgrid"}
)
"""Operators whose outputs are views: parts of their input, or each of one of their inputs."""

_VIEWS = """view reshape _unsafe_view flatten unflatten squeeze unsqueeze permute transpose t mT movedim
    swapaxes expand expand_as view_as slice select narrow detach alias identity lift_fresh_copy lift_fresh
    diagonal unfold real imag ravel positive as_strided view_as_complex view_as_real
    numpy_T matrix_H mH adjoint"""

_NAMES: Final = """
    atan: atan2 |
    attention: scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu
      _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention |
    average_pool: avg_pool adaptive_avg_pool |
    batch_norm: _native_batch_norm_legit_functional _native_batch_norm_legit_no_training |
    bit_shift: lshift rshift bitwise_left_shift bitwise_right_shift | cast: to _to_copy type_as float |
    clip: clamp hardtanh nan_to_num | concat: cat stack complex block_diag select_scatter slice_scatter |
    conv: convolution | copy: clone roll im2col | cum_sum: cumsum cumprod cummax cummin |
    depth_to_space: pixel_shuffle | dft: fft_rfft fft_irfft | equal: eq | erf: erfc erfinv | exp: expm1 exp2 |
    fill: full zeros ones empty full_like zeros_like ones_like scalar_tensor arange new_zeros new_ones
      new_full zero empty_like new_empty eye linspace rand rand_like randn randn_like randint randperm
      bernoulli exponential normal uniform tril_indices triu_indices hann_window | floor: trunc |
    floor_div: floor_divide | gather: embedding index index_select take | gather_elements: take_along_dim |
    gemm: addmm baddbmm addmv | greater: gt | greater_or_equal: ge | grid_sample: grid_sampler |
    gru: gru_cell | hard_sigmoid: hardsigmoid | hard_swish: hardswish | is_inf: isinf isfinite |
    is_nan: isnan | layer_norm: native_layer_norm | leaky_relu: rrelu | less: lt | less_or_equal: le |
    log: log1p log2 log10 | log_softmax: _log_softmax | lstm: lstm_cell |
    matmul: mm bmm _int_mm dot mv cdist | max_pool: adaptive_max_pool max_pool_with_indices |
    mod: remainder fmod | mul: outer deg2rad rad2deg | negative_log_likelihood_loss: nll_loss nll_loss_nd |
    not_equal: ne | pad: constant_pad_nd diag_embed reflection_pad replication_pad | reduce_all: all |
    reduce_any: any | reduce_l1: l1_loss | reduce_l2: linalg_vector_norm norm std var std_mean var_mean |
    reduce_log_sum_exp: logsumexp | reduce_max: amax max | reduce_mean: mean nanmean | reduce_min: amin min |
    reduce_prod: prod | reduce_sum: sum nansum count_nonzero | reduce_sum_square: mse_loss |
    relu: clamp_min clamp_max | reverse: flip fliplr flipud rot90 |
    rnn: rnn_tanh rnn_relu rnn_tanh_cell rnn_relu_cell |
    scatter_elements: scatter scatter_add index_add index_copy index_fill index_put masked_scatter
      scatter_reduce col2im | search_sorted: searchsorted bucketize | shrink: hardshrink softshrink |
    sign: sgn | silu: glu | softmax: _softmax | softplus: log_sigmoid | space_to_depth: pixel_unshuffle |
    sparse_softmax_cross_entropy: cross_entropy_loss | sub: rsub | thresholded_relu: threshold |
    tile: repeat repeat_interleave | top_k: topk sort argsort | transpose: channel_shuffle |
    trilu: tril triu | where: masked_fill
"""
"""Kind of op → names of ATen's operators, without decoration: ``conv`` is also ``conv2d``."""
_RENAMED: Final = {
    name: kind
    for kind, _, names in (line.strip().partition(":") for line in _NAMES.split("|"))
    for name in names.split()
}

_IN_PLACE: Final = re.compile(r".*[^_]_|.*::__i(and|or|xor|lshift|rshift)__")
_DECORATION: Final = re.compile(r"_?[123]d(?=_|$)|^logical_|^__i?(?=(and|or|xor|lshift|rshift)__$)|__$")
_RESIZE: Final = re.compile("_?upsample_.*(nearest|cubic|linear)")
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_CELLS: Final = frozenset({"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"})


def operator_name(target: Any) -> str:
    """Return the plain name of a node's target, without namespace, overload and in-place mark.

    Examples
    --------
    >>> import types
    >>> operator_name(types.SimpleNamespace(_schema=types.SimpleNamespace(name="aten::relu_")))
    'relu'
    """
    schema = getattr(target, "_schema", None)
    return plain_name(str(getattr(target, "__name__", target) if schema is None else schema.name))


def plain_name(name: str) -> str:
    """Return the plain name for an operator's full name, such as ``aten::relu_``."""
    namespace, colons, plain = name.partition("::")
    if not colons or namespace != "aten":
        return name
    return plain if plain.startswith("_") or not plain.endswith("_") else plain[:-1]


def kind_of(name: str, node: Any) -> str | None:
    """Return the op kind of an operator, or None if the cost table has none for it.

    Parameters
    ----------
    name : str
        As returned by `operator_name`.
    node : torch.fx.Node
        Its arguments, and the tensors in its ``meta``, decide if the name does not.
    """
    source = node.args[0].meta.get("val") if node.args and hasattr(node.args[0], "meta") else None
    strided = source is not None and hasattr(source, "shape") and not source.is_contiguous()
    if name in ("reshape", "flatten", "contiguous", "clone") and _joins_heads(node.args[0]):
        return "identity"
    if name in ("reshape", "flatten") and strided and not _is_view(source, node.meta["val"].shape):
        return "transpose"
    if name in _VIEWS.split():
        return "identity"
    if name == "contiguous":
        return "copy" if source is None else "transpose" if strided else "identity"
    if name == "clone" and strided and node.meta["val"].is_contiguous():
        return "transpose"
    if name.endswith("dropout"):  # in training a mask is drawn and multiplied
        return "mul" if all(node.args[1:3]) else "identity"
    if name == "pow" and node.args[1:2] in ((2,), (3,)):  # multiplies (ATen/native/cuda/PowKernel.cu)
        return "square"
    if name == "linear":
        return "gemm" if len(node.args) > 2 and node.args[2] is not None else "matmul"
    plain = _DECORATION.sub("", name)
    kind = "resize" if _RESIZE.match(name) else _RENAMED.get(plain, plain)
    if name in ("max", "min") and len([*_tensors(node.args)]) > 1:
        return f"{name}imum"
    if kind == "cast" and source is not None and source.dtype == node.meta["val"].dtype:
        return "identity"
    return kind if kind in COSTS else None


def _joins_heads(node: Any) -> bool:
    """Whether a node is attention's result by tokens, where its kernels on a GPU write heads side by side."""
    view = node.op == "call_function" and operator_name(node.target) in _VIEWS.split()
    if not view or operator_name((source := node.args[0]).target) != "scaled_dot_product_attention":
        return False
    strides = source.meta["val"].stride()
    return bool(node.meta["val"].stride() == (*strides[:-3], *strides[-3:-1][::-1], strides[-1]))


def _is_view(source: Any, shape: Sequence[int]) -> bool:
    """Whether a tensor can take another shape without a copy, by its strides."""
    try:
        source.view(shape)
    except (RuntimeError, ValueError):
        return False
    return True


def order_tensors(name: str, tensors: list[Any]) -> list[Any]:
    """Return the tensors that an operator reads, in the order that its formula expects."""
    if name in ("addmm", "baddbmm", "addmv"):  # (bias, a, b)
        return [*tensors[1:], tensors[0]]
    if name in RECURRENT | _CELLS:  # (x, states, weights and biases of each layer)
        x, states = tensors[0], 2 if name.startswith("lstm") else 1
        matrices_first = sorted(tensors[1 + states :], key=lambda node: -node.meta["val"].dim())
        return [x, *matrices_first, *tensors[1 : 1 + states]]
    if name in ("masked_fill", "bucketize"):  # (numbers, mask), (values, boundaries)
        return [*tensors[1:2], *tensors[:1], *tensors[2:]]
    if name.startswith("new_") or name.endswith("_like"):  # which take a shape
        return []
    return tensors


def plain_arguments(argument: Any) -> Any:
    """Return arguments as JSON, without the tensors: they distinguish ``x * 2`` from ``x * 3``.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> x = SimpleNamespace(meta={})
    >>> plain_arguments((x, 2, [x, None], ("dim", 1)))
    ['tensor', 2, ['tensor', None], ['dim', 1]]
    """
    if isinstance(argument, list | tuple):
        return [plain_arguments(item) for item in argument]
    if hasattr(argument, "meta"):
        return "tensor"
    plain = argument is None or isinstance(argument, bool | int | str)
    return argument if plain or (isinstance(argument, float) and math.isfinite(argument)) else str(argument)


_CONV: Final = ("stride", "padding", "dilation")
WINDOWS: Final = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), (3, 4, 5)),
    **dict.fromkeys(("_convolution", "convolution_overrideable"), (3, 4, 5)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), (3, 4, 7)),
    "cudnn_convolution": (3, 2, 4),
}
"""Convolution -> positions of its arguments of `_CONV` (ATen/native/native_functions.yaml)."""

_POOLS: Final = {
    **{f"max_pool{n}d{more}": (2, 3, 4) for n in (1, 2, 3) for more in ("", "_with_indices")},
    **{f"avg_pool{n}d": (2, 3, 99) for n in (1, 2, 3)},  # without dilation
}
"""The same for pools, whose windows are their first argument."""

CAUSAL: Final = {
    "scaled_dot_product_attention": 5,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_efficient_attention": 6,
}
"""Attention -> position of the argument that says whether it is causal."""


def _numbers(argument: Any) -> list[int]:
    """Return the whole numbers of an argument; empty for None or a word."""
    listed = argument if isinstance(argument, list | tuple) else [argument]
    return [int(n) for n in listed] if all(isinstance(n, int) for n in listed) else []


def _has_channels_last(node: Any) -> bool:
    value = node.meta["val"]
    return bool(value.dim() == 4 and value.stride(1) == 1 and not value.is_contiguous())


def attributes_of(name: str, node: Any) -> dict[str, Any]:
    """Return what a formula needs besides the shapes."""
    args = node.args

    def argument_at(position: int, key: str, default: Any = None) -> Any:
        return args[position] if len(args) > position else node.kwargs.get(key, default)

    if (order := WINDOWS.get(name, _POOLS.get(name))) is not None:
        stride, padding, dilation = (
            _numbers(argument_at(place, key)) for place, key in zip(order, _CONV, strict=True)
        )
        kernel = _numbers(args[1]) if name in _POOLS else []
        axes = len(kernel) or len(node.meta["val"].shape) - 2
        pads = padding * 2 if len(padding) == axes else padding * 2 * axes if len(padding) == 1 else []
        # Windows of a pool without a stride do not overlap.
        windows = {"kernel_shape": kernel, "strides": stride or kernel, "pads": pads, "dilations": dilation}
        return {key: numbers for key, numbers in windows.items() if numbers}
    if name in CAUSAL:
        return {"is_causal": bool(argument_at(CAUSAL[name], "is_causal", False))}
    if "batch_norm" in name:
        return {"training_mode": True} if args[5] is True else {}
    if name == "linear":
        return {"transposed": True}
    if name in ("layer_norm", "native_layer_norm", "rms_norm"):
        return {"axis": -len(args[1]) if isinstance(args[1], list | tuple) else -1}
    if name in ("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum"):
        return {"axis": -1 if argument_at(1, "dim") is None else int(argument_at(1, "dim"))}
    if name in RECURRENT:
        matrices = sum(weight.meta["val"].dim() == 2 for weight in args[2])
        return {"matrices": matrices, "layers": args[4], "directions": 1 + args[7], "layout": int(args[8])}
    if name in _CELLS:
        return {"matrices": 2, "layout": 2}
    if name in ("topk", "sort", "argsort", "fft_rfft", "fft_irfft"):
        return {"axis": int(argument_at(1 if "sort" in name else 2, "dim", -1))}
    if name == "stft":
        return {"frame_length": int(args[1])}
    if name == "index_select":
        return {"axis": int(argument_at(1, "dim") or 0)}
    if name == "cross_entropy_loss":
        return {"axis": min(1, len(args[0].meta["val"].shape) - 1)}
    if name == "group_norm":
        return {"num_groups": int(args[1])}
    if name == "einsum":
        return {"equation": str(args[0])}
    if resize := _RESIZE.match(name):
        return {"mode": resize[1]}
    if name.startswith("grid_sampler"):
        return {"mode": ("linear", "nearest", "cubic")[args[2]]}
    return {}


# ----------------------------------------------------------------------------------------------------------


def import_torch(
    module: Any,
    inputs: Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
    *,
    dtype: str | None = None,
    unknown: Literal["error", "bytes"] = "error",
) -> Graph:
    """Return the graph of a module's forward.

    Parameters
    ----------
    module : torch.nn.Module
        In the mode (training or evaluation) in which it is to run.
    inputs : sequence
        Example inputs: shapes and types matter, content does not.
    keywords : mapping, optional
        Example inputs by name.
    dtype : str, optional
        Type to compute and store in instead of the module's floating-point types; ``"tf32"`` as for ONNX.
    unknown : {"error", "bytes"}
        What to do about operators without a cost formula: refuse them, naming all, or count their
        bytes and no flop, with a warning that names them.

    Raises
    ------
    InputError
        The module cannot be exported, or has unknown operators.
    MissingExtraError
        PyTorch is not installed.
    """
    stored = dtypes.stored_in(dtype)
    with extra("torch", "reading PyTorch modules"):
        import torch
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"should be a torch.nn.Module, not {type(module).__name__}")
    name = type(module).__name__
    called: dict[int, str] = {}  # name of a parameter that has several: that of `named_parameters`
    parameters = module.named_parameters(remove_duplicate=False)
    trained = {key: called.setdefault(id(p), key) for key, p in parameters if p.requires_grad}
    arguments = module, tuple(inputs), dict(keywords or {})
    try:
        program = export_program(*arguments)
    except Exception as error:  # the module and PyTorch's tracer may raise anything
        first = str(error).strip().partition("\n")[0]
        raise InputError(f"{name} cannot be exported: {type(error).__name__}: {first}") from error
    _check([node for node in _calls(program) if not _is_getitem(node)], name, unknown)
    with in_file(name):
        graph = _build(program, name, stored, trained)
    return dtypes.computed_in(dtype, graph)


def _calls(program: Any) -> Iterator[Any]:
    """Yield the nodes that run; assertions about shapes and types have been checked by then."""
    for node in program.graph.nodes:
        if node.op == "call_function" and not operator_name(node.target).startswith(("_assert", "sym_")):
            yield node


def _is_getitem(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _check(called: Sequence[Any], name: str, unknown: str) -> None:
    """Raise, or warn, if operators have no cost formula; raise if a part of the module is an argument."""
    for node in called:
        if any(argument.op == "get_attr" for argument in node.all_input_nodes):  # the branches of a cond, say
            way_out = "export the module to ONNX, whose control flow is read (docs/importers.md)"
            raise InputError(f"{name}: {node.target} runs parts of the module, which are not read; {way_out}")
    counts = Counter(
        str(node.target)
        for node in called
        if operator_name(node.target) not in LISTS and kind_of(operator_name(node.target), node) is None
    )
    way_out = "unknown: bytes in the scenario's workload, or unknown='bytes' in Python"
    without_formula(counts, unknown, way_out, f"{name}: ")


# -- the graph ------------------------------------------------------------------------------------


def _build(program: Any, name: str, dtype: str | None, trained: Mapping[str, str]) -> Graph:
    builder = GraphBuilder(name)
    refs: dict[Any, str] = {}  # node -> how an op refers to its (first) tensor
    last: set[Any] = set()  # nodes whose images have channels last on a GPU; on a CPU not all keep them
    fixed = _externals(builder, program, refs, dtype, trained)
    for node in _calls(program):
        if operator_name(node.target) in LISTS:
            continue
        if _is_getitem(node):
            source, k = node.args
            if operator_name(source.target) not in LISTS:
                refs[node] = output_name(refs[source], k)
                if source in last:
                    last.add(node)
                continue
            tensors = [_list_item(node)]
            raw = [*source.args, *source.kwargs.items(), k]
            facts = OpFacts("identity", _facts(tensors, dtype), _facts([node], dtype), {})
        else:
            operator, raw = operator_name(node.target), [*node.args, *node.kwargs.items()]
            tensors = order_tensors(operator, list(_tensors(node.args, node.kwargs)))
            kind = kind_of(operator, node) or operator
            attributes = attributes_of(operator, node)
            moves = kind in ("identity", "transpose") and operator not in ("slice", "narrow", "dropout")
            if not moves and any(tensor in last or _has_channels_last(tensor) for tensor in tensors):
                last.add(node)  # of a convolution image or weights decide (aten/native/ConvUtils.h)
                if operator in WINDOWS or kind == "batch_norm":
                    attributes["data_format"] = "NHWC"
            read_facts = _facts(tensors, dtype)
            if kind == "attention":  # of heads, in any number of axes
                read_facts = tuple(fact._replace(shape=_to_four_axes(fact.shape)) for fact in read_facts)
            facts = OpFacts(kind, read_facts, _facts([node], dtype), attributes)
        attributes = {"aten": str(node.target), "arguments": plain_arguments(raw), **facts.attributes}
        if no_gradient := [k for k, tensor in enumerate(tensors) if tensor in fixed or _is_integral(tensor)]:
            attributes["no_gradient"] = no_gradient
        where = f"{node.name} ({node.target})"
        inputs = [refs[tensor] for tensor in tensors]
        for position in _operands_to_copy(operator_name(node.target), tensors):
            moved, value = _facts([tensors[position]], dtype), tensors[position].meta["val"]
            notes = {"aten": "aten.clone.default", "columnwise": value.stride(-1) > 1}
            clone = op_arguments(OpFacts("transpose", moved, moved, {}), where, notes)
            clone |= {"inputs": [inputs[position]], "dtype": _dtype(value, dtype)}
            inputs[position] = builder.op(f"operand {position} of {node.name}", **clone)
        read = [value for tensor in _tensors(node.args, node.kwargs) for value in _values(tensor)]
        computing = [*_values(node), *read]  # operands of several types are brought to that of the result
        record = op_arguments(facts, where, attributes, has_formula=facts.kind in COSTS)
        if (base := _updated_tensor(node)) is not node:  # later readers read what is written here
            record["outputs"] = [fact.nbytes for fact in _facts([base], dtype)]
            record["attributes"]["view_of"] = tensors.index(node.args[0])
        elif operator_name(node.target) in ("dropout", "native_dropout") and facts.kind == "mul":
            # One kernel, which also writes a mask, a byte an element. Dropout in place and of whole features
            # multiplies with noise (aten/src/ATen/native/Dropout.cpp).
            record |= {"kind": "dropout", "bytes_written": facts.output.nbytes + facts.output.elements}
        record["dtype"] = dtypes.math_dtype([_dtype(value, dtype) for value in computing])
        refs[node] = refs[base] = builder.op(node.name, inputs=inputs, **record)
    return builder.build()


def _updated_tensor(node: Any) -> Any:
    """Return the tensor that a node updates in place, perhaps through views; for others, the node itself."""
    name = getattr(getattr(node.target, "_schema", None), "name", "")
    if not _IN_PLACE.fullmatch(name) or isinstance(node.args[0], list):
        return node
    base = node.args[0]
    while base.op == "call_function":
        part = _is_getitem(base) and operator_name(base.args[0].target) in LISTS
        if not part and kind_of(operator_name(base.target), base) != "identity":
            break
        base = _list_item(base) if part else base.args[0]
    return base


def _list_item(item: Any) -> Any:
    """Return the tensor of which an item of a list (`LISTS`) is a view."""
    source, k = item.args
    return source.args[0][k] if isinstance(source.args[0], list) else source.args[0]


def _operands_to_copy(operator: str, tensors: Sequence[Any]) -> list[int]:
    """Return which operands a batched product copies: those with batch axes that strides cannot join."""
    batches = operator == "matmul" and min(tensor.meta["val"].dim() for tensor in tensors) > 2
    values = [tensor.meta["val"] for tensor in tensors if batches]
    return [k for k, value in enumerate(values) if not _is_view(value, (-1, *value.shape[-2:]))]


def _to_four_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, last = (1, *shape)[:-3], (1, 1, 1, *shape)[-3:]
    return math.prod(batch), *last


def _externals(
    builder: GraphBuilder, program: Any, refs: dict[Any, str], dtype: str | None, trained: Mapping[str, str]
) -> set[Any]:
    """Declare inputs, and the parameters that are read; return the nodes of those that are not trained."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if spec.target}
    fixed = set()
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.users and _values(node):
            (facts,), spec = _facts([node], dtype), specs.get(node.name)
            if spec is None:
                refs[node] = builder.input(node.name, facts.nbytes)
                continue
            constant = spec.kind.name == "CONSTANT_TENSOR"
            full_name = node.name if constant else trained.get(spec.target, spec.target)
            refs[node] = builder.parameter(full_name, facts.nbytes)
            if spec.kind.name != "PARAMETER" or spec.target not in trained:
                fixed.add(node)
    return fixed


def _is_integral(node: Any) -> bool:
    """Whether a tensor that an op computes has whole numbers or truth values, and so no gradient."""
    types = [value.dtype for value in _values(node)]
    return node.op != "placeholder" and not any(t.is_floating_point or t.is_complex for t in types)


def _tensors(*arguments: Any) -> Iterator[Any]:
    """Yield the arguments that are nodes of tensors, including those in lists."""
    for argument in arguments:
        if isinstance(argument, Mapping):
            yield from _tensors(*argument.values())
        elif isinstance(argument, list | tuple):
            yield from _tensors(*argument)
        elif hasattr(argument, "meta") and _values(argument):
            yield argument


def _values(node: Any) -> list[Any]:
    """Return the tensors that a node stands for."""
    content = node.meta.get("val")
    several = content if isinstance(content, list | tuple) else [content]
    return [value for value in several if hasattr(value, "shape") and hasattr(value, "dtype")]


def _facts(nodes: Sequence[Any], dtype: str | None) -> tuple[TensorFacts, ...]:
    facts = []
    for node in nodes:
        for value in _values(node):
            shape = tuple(value.shape)
            if not all(isinstance(n, int) for n in shape):
                raise InputError(
                    f"{node.name} has the open shape {shape}; give inputs without open dimensions"
                )
            facts.append(TensorFacts(shape, dtypes.nbytes(shape, _dtype(value, dtype))))
    return tuple(facts)


def _dtype(value: Any, dtype: str | None) -> str:
    torch_name = str(value.dtype).removeprefix("torch.")
    name = sized_dtype(torch_name) or torch_name
    return dtype if dtype is not None and name in dtypes.FLOATING else dtypes.check_dtype(name)
