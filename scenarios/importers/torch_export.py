"""PyTorch modules, by `torch.export`: what each operator of the forward computes, reads and writes.

::

    nn.Module + example inputs ──torch.export──► ATen operators with shapes ──cost table──► Graph

Nothing is computed: the exporter traces the module with tensors that have a shape but no content. The
batch size is that of the example inputs.

* Parameters, buffers and constants are parameters of the graph under their own names.
* Operators are those that the module calls (``linear``, ``scaled_dot_product_attention``), not their
  decompositions; each has a kind of `scenarios.ops.op_costs` and the attribute ``aten``.
* An operator without a formula is refused by name; it never silently costs nothing.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal
from unittest import mock

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

LISTS = frozenset({"split", "split_with_sizes", "chunk", "unbind", "tensor_split"})
"""Operators whose outputs are consecutive views of their input."""

_VIEWS = """view reshape _unsafe_view flatten unflatten squeeze unsqueeze permute transpose t mT movedim
    swapaxes expand expand_as view_as slice select narrow detach alias identity lift_fresh_copy lift_fresh
    diagonal unfold real"""

_RENAMED = {
    "mm": "matmul", "bmm": "matmul", "addmm": "gemm", "baddbmm": "gemm",
    "conv1d": "conv", "conv2d": "conv", "conv3d": "conv", "convolution": "conv",
    "conv_transpose1d": "conv_transpose", "conv_transpose2d": "conv_transpose",
    "conv_transpose3d": "conv_transpose",
    "scaled_dot_product_attention": "attention",
    "max_pool1d": "max_pool", "max_pool2d": "max_pool", "max_pool3d": "max_pool",
    "avg_pool1d": "average_pool", "avg_pool2d": "average_pool", "avg_pool3d": "average_pool",
    "adaptive_avg_pool1d": "average_pool", "adaptive_avg_pool2d": "average_pool",
    "adaptive_max_pool2d": "max_pool",
    "rnn_tanh": "rnn", "rnn_relu": "rnn", "_int_mm": "matmul", "topk": "top_k",
    "scatter": "scatter_elements", "scatter_add": "scatter_elements",
    "embedding": "gather", "index": "gather", "index_select": "gather", "cat": "concat", "stack": "concat",
    "clone": "copy", "repeat": "tile", "roll": "copy", "flip": "reverse", "constant_pad_nd": "pad",
    "to": "cast", "_to_copy": "cast", "type_as": "cast", "float": "cast",
    "sum": "reduce_sum", "mean": "reduce_mean", "amax": "reduce_max", "amin": "reduce_min",
    "prod": "reduce_prod", "all": "reduce_all", "any": "reduce_any",
    "cumsum": "cum_sum", "clamp": "clip", "clamp_min": "relu", "clamp_max": "relu", "hardtanh": "clip",
    "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "_softmax": "softmax",
    "_log_softmax": "log_softmax", "native_layer_norm": "layer_norm", "rsub": "sub", "remainder": "mod",
    "_native_batch_norm_legit_functional": "batch_norm", "_native_batch_norm_legit_no_training": "batch_norm",
    "eq": "equal", "ne": "not_equal", "gt": "greater", "lt": "less", "ge": "greater_or_equal",
    "le": "less_or_equal", "logical_and": "and", "logical_or": "or", "logical_not": "not",
    "logical_xor": "xor", "masked_fill": "where", "tril": "trilu", "triu": "trilu", "sgn": "sign",
    "upsample_nearest2d": "resize", "upsample_bilinear2d": "resize", "upsample_bicubic2d": "resize",
    "full": "fill", "zeros": "fill", "ones": "fill", "empty": "fill", "full_like": "fill",
    "zeros_like": "fill", "ones_like": "fill", "scalar_tensor": "fill", "arange": "fill",
    "new_zeros": "fill", "new_ones": "fill",
    "new_full": "fill", "cross_entropy_loss": "sparse_softmax_cross_entropy",
}  # fmt: skip

_RESIZE = {"nearest2d": "nearest", "bilinear2d": "linear", "bicubic2d": "cubic"}

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


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
    """Return the same for the full name of an operator."""
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
    strided = source is not None and not source.is_contiguous()
    if name in ("reshape", "contiguous", "clone") and _joins_heads(node.args[0]):
        return "identity"
    if name in ("reshape", "flatten") and strided and not _is_view(source, node.meta["val"].shape):
        return "transpose"
    if name in _VIEWS.split():
        return "identity"
    if name == "contiguous":
        return "copy" if source is None else "transpose" if strided else "identity"
    if name == "clone" and strided and node.meta["val"].is_contiguous():
        return "transpose"
    if name in ("dropout", "native_dropout"):  # in training a mask is drawn and multiplied
        return "mul" if all(node.args[1:3]) else "identity"
    if name == "linear":
        return "gemm" if len(node.args) > 2 and node.args[2] is not None else "matmul"
    kind = _RENAMED.get(name, name)
    if kind == "cast" and source is not None and source.dtype == node.meta["val"].dtype:
        return "identity"
    return kind if kind in COSTS else None


def _joins_heads(node: Any) -> bool:
    """Whether a node is attention's result by tokens, where its kernels on a GPU write heads side by side."""
    by_token = node.op == "call_function" and operator_name(node.target) == "transpose"
    return by_token and operator_name(node.args[0].target) == "scaled_dot_product_attention"


def _is_view(source: Any, shape: Sequence[int]) -> bool:
    """Whether a tensor can take another shape without a copy, by its strides."""
    try:
        source.view(shape)
    except (RuntimeError, ValueError):
        return False
    return True


def order_tensors(name: str, tensors: list[Any]) -> list[Any]:
    """Return the tensors that an operator reads, in the order that its formula expects."""
    if name in ("addmm", "baddbmm"):  # (bias, a, b)
        return [*tensors[1:], tensors[0]]
    if name in RECURRENT:  # (x, states, weights and biases of each layer)
        x, states = tensors[0], 2 if name == "lstm" else 1
        matrices_first = sorted(tensors[1 + states :], key=lambda node: -node.meta["val"].dim())
        return [x, *matrices_first, *tensors[1 : 1 + states]]
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


def attributes_of(name: str, node: Any) -> dict[str, Any]:
    """Return what a formula needs besides the shapes."""
    args = node.args

    def argument_at(position: int, key: str, default: Any = None) -> Any:
        return args[position] if len(args) > position else node.kwargs.get(key, default)

    if name.startswith(("max_pool", "avg_pool")):
        padding, dilation = _numbers(argument_at(3, "padding")), _numbers(argument_at(4, "dilation"))
        found = {
            "kernel_shape": _numbers(args[1]),
            "strides": _numbers(argument_at(2, "stride"))
            or _numbers(args[1]),  # none: windows do not overlap
            "pads": padding * (2 if len(padding) == len(_numbers(args[1])) else 1),
            "dilations": dilation if name.startswith("max_pool") else [],
        }
        return {key: numbers for key, numbers in found.items() if numbers}
    if (order := WINDOWS.get(name)) is not None:
        stride, padding, dilation = (
            _numbers(argument_at(at, key)) for at, key in zip(order, _CONV, strict=True)
        )
        axes = len(node.meta["val"].shape) - 2
        pads = padding * 2 if len(padding) == axes else padding * 2 * axes if len(padding) == 1 else []
        found = {"strides": stride, "pads": pads, "dilations": dilation}
        return {key: numbers for key, numbers in found.items() if numbers}
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
    if name == "topk":
        return {"axis": int(argument_at(2, "dim", -1))}
    if name == "index_select":
        return {"axis": int(argument_at(1, "dim") or 0)}
    if name == "cross_entropy_loss":
        return {"axis": min(1, len(args[0].meta["val"].shape) - 1)}
    if name == "group_norm":
        return {"num_groups": int(args[1])}
    if name == "einsum":
        return {"equation": str(args[0])}
    if name.startswith("upsample_"):
        return {"mode": _RESIZE[name.removeprefix("upsample_")]}
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
    given = module, tuple(inputs), dict(keywords or {})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's warnings about its own internals,
            warnings.filterwarnings("error", ".*Disabling autocast")  # but not that forward runs otherwise
            try:
                program = _program(*given)
            except UserWarning:
                program = _program_on_a_gpu(*given)
    except Exception as error:  # other people's code, traced by other people's code: whatever it raises
        first = str(error).strip().partition("\n")[0]
        raise InputError(f"{name} cannot be exported: {type(error).__name__}: {first}") from error
    _check([node for node in _calls(program) if not _is_getitem(node)], name, unknown)
    with in_file(name):
        graph = _build(program, name, stored)
    return dtypes.computed_in(dtype, graph)


def _program(module: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    import torch

    program = torch.export.export(module, inputs, keywords)
    parts = any(node.op == "get_attr" for node in program.graph.nodes)  # under autocast or no_grad
    if parts or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        program = program.run_decompositions({})  # inlines them, and writes casts as operators
    return program


def _program_on_a_gpu(*given: Any) -> Any:
    """Export a copy whose tensors, without content, are on a GPU that is not here: autocast is by device."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_leaves

    module, *inputs = given
    moved: dict[int, Any] = {}
    with FakeTensorMode():
        for tensor in (*module.parameters(), *module.buffers(), *tree_leaves(inputs)):
            if isinstance(tensor, torch.Tensor):
                there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
                moved[id(tensor)] = type(tensor)(there) if isinstance(tensor, torch.nn.Parameter) else there
    no_gpu = mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=False)
    with no_gpu, mock.patch.object(torch.cuda, "is_bf16_supported", return_value=True):
        return _program(*copy.deepcopy(given, moved))


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


def _build(program: Any, name: str, dtype: str | None) -> Graph:
    builder = GraphBuilder(name)
    refs: dict[Any, str] = {}  # node -> how an op refers to its (first) tensor
    _externals(builder, program, refs, dtype)
    for node in _calls(program):
        if operator_name(node.target) in LISTS:
            continue
        if _is_getitem(node):
            source, k = node.args
            if operator_name(source.target) not in LISTS:
                refs[node] = output_name(refs[source], k)
                continue
            tensors, said = [source.args[0]], [*source.args, *source.kwargs.items(), k]
            facts = OpFacts("identity", _facts(tensors, dtype), _facts([node], dtype), {})
        else:
            operator, said = operator_name(node.target), [*node.args, *node.kwargs.items()]
            tensors = order_tensors(operator, list(_tensors(node.args, node.kwargs)))
            kind = kind_of(operator, node) or operator
            attributes = attributes_of(operator, node)
            facts = OpFacts(kind, _facts(tensors, dtype), _facts([node], dtype), attributes)
        attributes = {"aten": str(node.target), "arguments": plain_arguments(said), **facts.attributes}
        where = f"{node.name} ({node.target})"
        inputs = [refs[tensor] for tensor in tensors]
        for place in _operands_to_copy(operator_name(node.target), tensors):
            moved, value = _facts([tensors[place]], dtype), tensors[place].meta["val"]
            says = {"aten": "aten.clone.default", "columnwise": value.stride(-1) > 1}
            inputs[place] = builder.op(
                f"operand {place} of {node.name}",
                inputs=[inputs[place]],
                **op_arguments(OpFacts("transpose", moved, moved, {}), where, says),
                dtype=_dtype(value, dtype),
            )
        read = [value for tensor in _tensors(node.args, node.kwargs) for value in _values(tensor)]
        computing = [*_values(node), *read]  # operands of several types are brought to that of the result
        refs[node] = builder.op(
            node.name,
            inputs=inputs,
            **op_arguments(facts, where, attributes, known=facts.kind in COSTS),
            dtype=dtypes.math_dtype([_dtype(value, dtype) for value in computing]),
        )
    return builder.build()


def _operands_to_copy(operator: str, tensors: Sequence[Any]) -> list[int]:
    """Return which operands a product of batches copies: their axes of batches are not one by strides."""
    batches = operator == "matmul" and min(tensor.meta["val"].dim() for tensor in tensors) > 2
    values = [tensor.meta["val"] for tensor in tensors if batches]
    return [k for k, value in enumerate(values) if not _is_view(value, (-1, *value.shape[-2:]))]


def _externals(builder: GraphBuilder, program: Any, refs: dict[Any, str], dtype: str | None) -> None:
    """Declare inputs, and the parameters that are read."""
    kept = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.users and _values(node):
            (facts,) = _facts([node], dtype)
            if node.name in kept:
                refs[node] = builder.parameter(kept[node.name], facts.nbytes)
            else:
                refs[node] = builder.input(node.name, facts.nbytes)


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
    found = node.meta.get("val")
    several = found if isinstance(found, list | tuple) else [found]
    return [value for value in several if hasattr(value, "shape") and hasattr(value, "dtype")]


def _facts(nodes: Sequence[Any], dtype: str | None) -> tuple[TensorFacts, ...]:
    out = []
    for node in nodes:
        for value in _values(node):
            shape = tuple(value.shape)
            if not all(isinstance(n, int) for n in shape):
                raise InputError(
                    f"{node.name} has the open shape {shape}; give inputs without open dimensions"
                )
            out.append(TensorFacts(shape, dtypes.nbytes(shape, _dtype(value, dtype))))
    return tuple(out)


def _dtype(value: Any, dtype: str | None) -> str:
    own = str(value.dtype).removeprefix("torch.")
    name = dtypes.TENSORFLOW.get(own, own)
    return dtype if dtype is not None and name in dtypes.FLOATING else dtypes.check_dtype(name)
