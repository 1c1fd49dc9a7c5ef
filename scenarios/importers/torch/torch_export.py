"""PyTorch modules, by `torch.export`: what each operator of the forward computes, reads and writes.

::

    nn.Module + example inputs ──torch.export──► ATen operators with shapes ──cost table──► Graph

Nothing is computed: the exporter follows the module with tensors that have a shape and no content. The
batch is that of the example inputs.

* Parameters, buffers and constants are parameters of the graph under their own names.
* Operators are those that the module calls (``linear``, ``scaled_dot_product_attention``), not what they
  decompose into; each has a kind of `scenarios.ops.op_costs` and the attribute ``aten``.
* An operator without a formula is refused, by name: it never costs nothing in silence.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from scenarios.importers.files import choice, in_file
from scenarios.importers.torch.torch_ops import (
    LISTS,
    attributes_of,
    kind_of,
    operator_name,
    ordered,
    plain_arguments,
)
from scenarios.ops import dtypes
from scenarios.ops.op_costs import COSTS, OpFacts, TensorFacts, op_arguments, without_formula
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph, output_name
from sim.words.errors import InputError, extra

__all__ = ["import_torch"]


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
        In the mode (training or evaluation) that it is to run in.
    inputs : sequence
        Example inputs: shapes and types matter, content does not.
    keywords : mapping, optional
        Example inputs by name.
    dtype : str, optional
        Floating-point type to compute and store in instead of the module's.
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
    choice("unknown", unknown, ("error", "bytes"))
    if dtype is not None:
        dtypes.check_dtype(dtype)
    with extra("torch", "reading PyTorch modules"):
        import torch
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"should be a torch.nn.Module, not {type(module).__name__}")
    name = type(module).__name__
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch about its own inside
            program = torch.export.export(module, tuple(inputs), dict(keywords or {}))
    except Exception as error:  # other people's code, traced by other people's code: whatever it raises
        first = str(error).strip().partition("\n")[0]
        raise InputError(f"{name} cannot be exported: {type(error).__name__}: {first}") from error
    _check([node for node in _calls(program) if not _is_getitem(node)], name, unknown)
    with in_file(name):
        return _build(program, name, dtype)


def _calls(program: Any) -> Iterator[Any]:
    """Yield the nodes that run; an assertion about shapes and types is over when the graph is made."""
    for node in program.graph.nodes:
        if node.op == "call_function" and not operator_name(node.target).startswith(("_assert", "sym_")):
            yield node


def _is_getitem(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _check(called: Sequence[Any], name: str, unknown: str) -> None:
    """Refuse, or warn of, operators that have no cost formula."""
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
            tensors = ordered(operator, list(_tensors(node.args, node.kwargs)))
            kind = kind_of(operator, node) or operator
            attributes = attributes_of(operator, node)
            facts = OpFacts(kind, _facts(tensors, dtype), _facts([node], dtype), attributes)
        attributes = {"aten": str(node.target), "arguments": plain_arguments(said), **facts.attributes}
        where = f"{node.name} ({node.target})"
        refs[node] = builder.op(
            node.name,
            inputs=[refs[tensor] for tensor in tensors],
            **op_arguments(facts, where, attributes, known=facts.kind in COSTS),
            dtype=_computed_in(node, dtype),
        )
    return builder.build()


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
    """Yield the nodes among arguments that are tensors, those in lists included."""
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


def _computed_in(node: Any, dtype: str | None) -> str | None:
    """Return the type of the tensors read, which is that of the arithmetic; else of what is written."""
    read = [value for tensor in _tensors(node.args, node.kwargs) for value in _values(tensor)]
    found = [_dtype(value, dtype) for value in [*read, *_values(node)]]
    return next((name for name in found if name in dtypes.FLOATING), found[0] if found else None)
