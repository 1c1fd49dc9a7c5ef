"""The batch of an ONNX model: the first axis of its inputs, whatever size the file gives it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from scenarios.importers.onnx_shapes import Value, Values
from sim.errors import InputError, UnknownNameError

__all__ = ["factor_between", "inputs_at"]


def inputs_at(model: Any, batch: int | None, dims: Mapping[str, int]) -> tuple[Values | None, Values]:
    """Return the inputs of `model` at its own batch and at the one wanted.

    Parameters
    ----------
    model : onnx.ModelProto
    batch : int, optional
    dims : mapping of str to int
        Sizes of the symbolic dimensions.

    Returns
    -------
    own : dict or None
        None unless the file fixes a batch and another one is wanted.
    wanted : dict

    Raises
    ------
    InputError
        A batch below 1, a dimension without a size, or an input that is no tensor.
    UnknownNameError
        A name in `dims` that the model does not have.
    """
    if batch is not None and batch < 1:
        raise InputError(f"a batch has at least 1 sample, not {batch}")
    weights = {tensor.name for tensor in model.graph.initializer}
    shapes: dict[str, list[int | str]] = {}
    elems: dict[str, int] = {}
    for given in model.graph.input:
        if given.name in weights:
            continue
        if not given.type.HasField("tensor_type") or not given.type.tensor_type.HasField("shape"):
            raise InputError(f"input {given.name!r} is no tensor of a known rank")
        elems[given.name] = given.type.tensor_type.elem_type
        shapes[given.name] = [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param
            for dim in given.type.tensor_type.shape.dim
        ]
    symbols = {dim for shape in shapes.values() for dim in shape if isinstance(dim, str)}
    for symbol in dims:
        if symbol not in symbols:
            raise UnknownNameError("dimension", symbol, symbols)
    shapes = {
        name: [dims.get(d, d) if isinstance(d, str) else d for d in shape] for name, shape in shapes.items()
    }
    own = next((shape[0] for shape in shapes.values() if shape), None)
    if batch is not None and own is None:
        raise InputError(f"the model has no input, so its batch cannot be set to {batch}")
    wanted = shapes
    if batch is not None:
        wanted = {n: [batch, *s[1:]] if s and s[0] == own else s for n, s in shapes.items()}
    _check_closed(wanted)
    if own == batch or batch is None or isinstance(own, str):
        return None, _values(wanted, elems)
    return _values(shapes, elems), _values(wanted, elems)


def _check_closed(shapes: Mapping[str, list[int | str]]) -> None:
    """Refuse dimensions that are still open."""
    still = [
        f"{n}[{i}]" + (f" = {d!r}" if d else "")
        for n, s in shapes.items()
        for i, d in enumerate(s)
        if isinstance(d, str)
    ]
    if still:
        raise InputError(
            f"dimensions without a size: {', '.join(still)}; give the first axis as batch=, others as dims="
        )


def _values(shapes: Mapping[str, list[Any]], elems: Mapping[str, int]) -> Values:
    return {name: Value(elems[name], tuple(shape)) for name, shape in shapes.items()}


def factor_between(own: Values, wanted: Values) -> Fraction:
    """Return batch wanted / own batch."""
    return next(
        Fraction(wanted[name].shape[0], value.shape[0])
        for name, value in own.items()
        if wanted[name].shape != value.shape
    )
