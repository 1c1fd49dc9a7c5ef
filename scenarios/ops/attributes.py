"""Attributes of ops: their names and types, checked once, where they are read.

::

    attributes: {strict: false}   ──► ATTRIBUTES["strict"].read ──► False
    attributes: {strct: false}    ──► unknown attribute 'strct'; did you mean 'strict'?

Code that uses an attribute may rely on its type. The sizes of ops (``m``, ``seq_len``;
`scenarios.ops.op_formulas`) are attributes too, and so is each axis of a device's own cost table.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np

from devices.describe.field_types import BITS, dtype_bits
from sim.base import plugins
from sim.base.errors import InputError, UnknownNameError, error_path, nearest
from sim.graph.attributes import READERS, SIZES, convert_attributes, flag, whole
from sim.graph.graph import Graph
from sim.machine.device import CostModel
from sim.machine.machine import Machine


def _read_axes(value: Any) -> Any:
    """Read one whole number, or one per axis."""
    return [whole(item) for item in value] if isinstance(value, list | tuple) else whole(value)


_IMAGE: Final = "input_shape kernel_shape strides pads dilations"
ATTRIBUTES: Final[Mapping[str, Any]] = {
    **READERS,
    **dict.fromkeys((*sorted(SIZES), "repeat", "size", "sleep_ns", "ranks"), whole),
    **dict.fromkeys(_IMAGE.split(), _read_axes),
    "group": lambda value: value if isinstance(value, str) else whole(value),  # the group call of a send
    **dict.fromkeys(("causal", "transposed", "columnwise"), flag),
}
"""Name -> reader of its value, which raises `InputError` if it is wrong."""

_SIMILAR_NAMES: Final = (
    *("ends", "kv_num_heads", "repeats", "scores", "sizes", "is_causal", "weights", "K", "M"),
    *("dilation", "groups", "ksize", "stride", "input_shapes", "output_shapes", "source"),
)
"""Attributes and operands of operators with names similar to ours: of ONNX (of its 371 names, and those that
importers made of every other file at hand, there are no others), PyTorch, TensorFlow, and our own traces."""


def read_attribute(name: str, value: Any, machine: Machine) -> None:
    """Raise if nothing reads an attribute, or if its value has the wrong type.

    Parameters
    ----------
    name : str
    value : JSON value
    machine : Machine
        Its cost models may read more: axes of tables, and attributes that those of other packages ask for.

    Raises
    ------
    UnknownNameError
        Nothing reads it; the message has the nearest name.
    InputError
        The value has the wrong type.
    """
    if name in ("release", "due") and value and not isinstance(value, str):
        raise InputError(f"{value!r} has no unit: write a time as in '4us'")  # graphs have it in ns
    if name in ATTRIBUTES:
        ATTRIBUTES[name](value)
        return
    from devices.cost.cost_models import FixedCost, RooflineCost, TableCost
    from devices.cost.kernel_costs import FittedCost
    from devices.cost.npu_tiles import TiledCost

    models, axes = _models_and_axes(machine)
    if name in axes:
        return
    known = [*ATTRIBUTES, *sorted(axes)]
    builtin = (FixedCost, FittedCost, RooflineCost, TableCost, TiledCost)  # these need no other attributes
    if nearest(name, known) is not None or all(isinstance(model, builtin) for model in models):
        raise UnknownNameError("attribute", name, known)


def _models_and_axes(machine: Machine) -> tuple[list[CostModel], set[str]]:
    """Return the cost models of a machine, and the axes of their tables, which are also attributes."""
    from devices.cost.cost_models import TableCost, models_of

    models = [model for device in machine.devices for model in models_of(device.cost)]
    tables = (table for model in models if isinstance(model, TableCost) for table in model.tables)
    return models, {axis.name for table in tables for axis in table.axes}


@cache
def _similar_attribute(name: str) -> str | None:
    """Return the known attribute with a similar name; cached, because each run of a search looks up a few."""
    return nearest(name, ATTRIBUTES, likeness=0.8)


def add_attributes(graph: Graph, added: Mapping[str, Mapping[str, Any]]) -> Graph:
    """Return the graph with further attributes, by name of op."""
    attributes = dict(graph.attributes)
    for name, more in added.items():
        with error_path(name):
            op = graph.index(name)
        attributes[op] = {**attributes.get(op, {}), **more}
    return convert_attributes(replace(graph, attributes=attributes)) if added else graph


def check_attributes(graph: Graph, machine: Machine) -> None:
    """Warn of probable misspellings among the attributes of a graph from a file.

    Unread attributes are allowed, because importers keep those of the operators. But a name similar to one of
    ours is more likely a misspelling than an operator's own attribute.

    Warns
    -----
    UserWarning
        Nothing reads an attribute, and its name is similar to one of ours.
    """
    unread = set().union(*graph.attributes.values()).difference(ATTRIBUTES, _SIMILAR_NAMES)
    near = {name: similar for name in unread if (similar := _similar_attribute(name))}
    axes = _models_and_axes(machine)[1] if near else set()
    for name in sorted(set(near) - axes):
        where = graph.op_names[next(iter(graph.attribute(name)))]
        warnings.warn(
            f"op {where!r} has an attribute {name!r}, which nobody reads; did you mean {near[name]!r}?",
            stacklevel=2,
        )


# ----------------------------------------------------------------------------------------------------------
# Data types of an imported graph.

FLOATING = frozenset(name for name in BITS if name.startswith(("fp", "bf")))
"""The types that an importer's `dtype=` replaces."""


def snake_case(operator: str) -> str:
    """Return the name of an ONNX or TensorFlow operator in the form of op kinds.

    Examples
    --------
    >>> snake_case("MaxPool"), snake_case("LRN"), snake_case("ReduceL1")
    ('max_pool', 'lrn', 'reduce_l1')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", operator).lower()


def math_dtype(names: Sequence[str]) -> str | None:
    """Return the type of arithmetic on tensors of some types: the first floating one, else the first."""
    return next((name for name in names if name in FLOATING), names[0] if names else None)


def check_dtype(name: str) -> str:
    """Return `name` if it is one of our data types.

    Raises
    ------
    UnknownNameError
        It is not; the message has the nearest name.
    """
    if name not in BITS:
        registered = plugins.names("sim.dtypes")
        if name not in registered:
            raise UnknownNameError("dtype", name, [*BITS, *registered])
    return name


def stored_in(dtype: str | None) -> str | None:
    """Return the type in which a model that computes in `dtype` stores its tensors: fp32 for tf32.

    Raises
    ------
    UnknownNameError
        The type is unknown; the message has the nearest name.
    """
    if dtype is None or dtype == "tf32":
        return dtype and "fp32"
    return check_dtype(dtype)


def computed_in(dtype: str | None, graph: Graph) -> Graph:
    """Return the graph with its fp32 products computed in tf32, if requested; other ops never are.

    This is PyTorch's rule (``torch.backends.cuda.matmul.allow_tf32``, ``torch.backends.cudnn.allow_tf32``).

    Warns
    -----
    UserWarning
        The type is quantized: its scales and conversions are not in the graph.
    """
    if dtype not in (None, "tf32") and nbytes((2,), dtype) <= 2:
        message = f"{graph.name}: in {dtype} as asked for; what scales and conversions cost is not added"
        warnings.warn(message, stacklevel=3)
    from devices.cost.cost_models import MATRIX_KINDS

    if dtype != "tf32" or "fp32" not in graph.dtypes:
        return graph
    products = graph.is_kind(*MATRIX_KINDS) & (graph.dtype_code == graph.dtypes.index("fp32"))
    codes = np.where(products, len(graph.dtypes), graph.dtype_code)
    return replace(graph, dtypes=(*graph.dtypes, "tf32"), dtype_code=codes)


def nbytes(shape: Sequence[int], dtype: str) -> int:
    """Return the number of bytes of a tensor.

    Examples
    --------
    >>> nbytes((2, 3), "fp32"), nbytes((3,), "int4")
    (24, 2)
    """
    return (math.prod(shape) * dtype_bits(dtype) + 7) // 8
