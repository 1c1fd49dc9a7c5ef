"""An ONNX model at another batch size than its own.

The batch is the first axis of the inputs, and a model is often exported with it baked in: a Reshape to
the constant (1, 1024). At another batch size the constant is wrong. While the batch is the outermost
axis, n samples are n pieces of memory one after the other, and a reshape leaves memory as it is: so the
right target is the old result with its first axis n times as long::

    own batch 1:    (1, 1024, 1, 1) ──Reshape to (1, 1024)──►  (1, 1024)
    batch 32:      (32, 1024, 1, 1) ──Reshape to (32, 1024)──► (32, 1024)

`check_scaled` then looks at every value: it must have grown along exactly one axis, or not at all. What
these two rules do not cover is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from scenarios.importers.onnx.onnx_nodes import Scope, Value, Values, node_name, shape_text
from sim.base.errors import InputError, UnknownNameError


class Rebatch(NamedTuple):
    """A model at another batch size than its own.

    Attributes
    ----------
    base : dict
        Its values at its own batch size.
    own, wanted : int
        The two batch sizes.
    inside : mapping
        Those of its subgraphs, as in a `Scope`.
    """

    base: Values
    own: int
    wanted: int
    inside: Mapping[tuple[str, str], Scope] = {}

    @classmethod
    def between(cls, base: Scope, own: Values, wanted: Values) -> Rebatch:
        """Return the change from inputs to others that differ in nothing but the batch."""
        changed = next(name for name, value in own.items() if wanted[name].shape != value.shape)
        return cls(base.values, own[changed].shape[0], wanted[changed].shape[0], base.inside)

    def of(self, subgraph: tuple[str, str]) -> Rebatch:
        """Return the same for a subgraph."""
        scope = self.inside[subgraph]
        return self._replace(base=scope.values, inside=scope.inside)

    @property
    def factor(self) -> Fraction:
        """How many times as long the batch is."""
        return Fraction(self.wanted, self.own)


def inputs_of(model: Any) -> list[Any]:
    """Return the inputs of a model that are no weights."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [given for given in model.graph.input if given.name not in weights]


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
    shapes: dict[str, list[int | str]] = {}
    elems: dict[str, int] = {}
    symbols: set[str] = set()
    for given in inputs_of(model):
        if not given.type.HasField("tensor_type") or not given.type.tensor_type.HasField("shape"):
            raise InputError(f"input {given.name!r} is no tensor of a known rank")
        elems[given.name] = given.type.tensor_type.elem_type
        sizes = given.type.tensor_type.shape.dim
        symbols |= {dim.dim_param for dim in sizes if not dim.HasField("dim_value")}
        shapes[given.name] = [
            dim.dim_value if dim.HasField("dim_value") else dims.get(dim.dim_param, dim.dim_param)
            for dim in sizes
        ]
    for symbol in dims:
        if symbol not in symbols:
            raise UnknownNameError("dimension", symbol, symbols)
    own = next((shape[0] for shape in shapes.values() if shape), None)
    wanted = shapes
    if batch is not None:
        if own is None:
            raise InputError(f"the model has no input, so its batch cannot be set to {batch}")
        if own == 0:
            raise InputError(f"the model's own batch is 0, and cannot be scaled to {batch}")
        wanted = {n: [batch, *s[1:]] if s and s[0] == own else s for n, s in shapes.items()}
    _check_closed(wanted)
    scaled = batch is not None and own != batch and not isinstance(own, str)
    return _values(shapes, elems) if scaled else None, _values(wanted, elems)


def _check_closed(shapes: Mapping[str, list[int | str]]) -> None:
    """Refuse dimensions that are still open."""
    sizes = [(f"{name}[{i}]", dim) for name, shape in shapes.items() for i, dim in enumerate(shape)]
    left = ", ".join(where + (f" = {dim!r}" if dim else "") for where, dim in sizes if isinstance(dim, str))
    if left:
        raise InputError(f"dimensions without a size: {left}; give the first axis as batch=, others as dims=")


def _values(shapes: Mapping[str, list[Any]], elems: Mapping[str, int]) -> Values:
    return {name: Value(elems[name], tuple(shape)) for name, shape in shapes.items()}


def check_scaled(scope: Scope, rebatch: Rebatch) -> None:
    """Check that every value, of subgraphs too, is as at the model's own batch, or grown along one axis only.

    Raises
    ------
    InputError
        Some value is neither; it is named.
    """
    for key, inner in scope.inside.items():
        check_scaled(inner, rebatch.of(key))
    for name, value in scope.values.items():
        before, after = rebatch.base[name].shape, value.shape
        grown = [axis for axis, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
        straight = len(before) == len(after) and all(after[i] == before[i] * rebatch.factor for i in grown)
        if len(grown) > 1 or not straight:
            raise InputError(
                f"the batch cannot be changed: {name!r} is {shape_text(before)} at the model's own batch, "
                f"{rebatch.own}, and {shape_text(after)} at {rebatch.wanted}: not so many samples more"
            )


def retarget(node: Any, given: Values, rebatch: Rebatch) -> Values:
    """Return the target of a Reshape to constant numbers, for the batch wanted."""
    source, target = given[node.input[0]], given[node.input[1]]
    before, after = rebatch.base[node.input[0]].shape, rebatch.base[node.output[0]].shape
    kept = target.data is None or target.from_shape or source.shape == before or not source.batch_first
    if kept or not after:
        return {}  # the target holds if it says -1 or 0 in the right place
    fits = [math.prod(after[: i + 1]) % rebatch.own == 0 for i in range(len(after))]
    axis = fits.index(True)
    shape = [math.ceil(n * rebatch.factor) if i == axis else n for i, n in enumerate(after)]
    data = np.array(shape, dtype=np.int64)
    return {node.input[1]: Value(target.elem, data.shape, data, constant=True)}


def batch_first(name: str, shape: tuple[int, ...], given: Values, rebatch: Rebatch) -> bool:
    """Whether the samples still lie one after the other in memory: nothing but ones before their axis."""
    if not all(value.batch_first for value in given.values()):
        return False
    pairs = zip(rebatch.base[name].shape, shape, strict=False)
    axis = next((i for i, (own, wanted) in enumerate(pairs) if own != wanted), 0)
    return math.prod(shape[:axis]) == 1


def check_elements(node: Any, source: Value, result: Value) -> None:
    """Refuse a Reshape that does not keep the number of elements."""
    if math.prod(source.shape) != math.prod(result.shape):
        raise InputError(
            f"node {node_name(node)!r} (Reshape) makes {shape_text(result.shape)} of "
            f"{shape_text(source.shape)}: its target is for another batch size; import at the batch of the "
            "export, or export again with a dynamic one"
        )
