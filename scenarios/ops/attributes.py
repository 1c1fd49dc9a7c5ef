"""Attributes of ops: which there are, and what each may be, read once, where they come in.

::

    attributes: {strict: false}   ──► ATTRIBUTES["strict"].read ──► False
    attributes: {strct: false}    ──► unknown attribute 'strct'; did you mean 'strict'?

Whoever uses one may rely on its type. The sizes of ops (``m``, ``seq_len``; `scenarios.ops.op_formulas`) are
attributes too, and so is each axis of a cost table of a device's own.
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
from sim.base.errors import InputError, UnknownNameError, nearest
from sim.graph.attributes import READERS, flag, whole
from sim.graph.graph import Graph
from sim.machine.device import CostModel
from sim.machine.machine import Machine


def _axes_of_image(value: Any) -> Any:
    """Read one whole number, or one for each axis."""
    return [whole(one) for one in value] if isinstance(value, list | tuple) else whole(value)


_WHOLE: Final = """m n k batch rows columns seq_len kv_len heads kv_heads head_dim window in_channels
    out_channels operands repeat size sleep_ns ranks"""
_IMAGE: Final = "input_shape kernel_shape strides pads dilations"
ATTRIBUTES: Final[Mapping[str, Any]] = {
    **READERS,
    **dict.fromkeys(_WHOLE.split(), whole),
    **dict.fromkeys(_IMAGE.split(), _axes_of_image),
    "group": lambda value: value if isinstance(value, str) else whole(value),  # of a send, its group call
    **dict.fromkeys(("causal", "transposed"), flag),
}
"""Name -> what reads it, or raises `InputError`."""

_ALIKE: Final = (
    *("ends", "kv_num_heads", "repeats", "scores", "sizes", "is_causal", "weights", "K", "M"),
    *("dilation", "groups", "ksize", "stride", "input_shapes", "output_shapes"),
)
"""Attributes and operands of operators that are nearly called as ours: of ONNX (of 371 names, all that it
has, with those that importers made of every other file at hand, there are no others), PyTorch, TensorFlow."""


def read_attribute(name: str, value: Any, machine: Machine) -> None:
    """Refuse an attribute that nobody reads, or whose value is of another type.

    Parameters
    ----------
    name : str
    value : JSON value
    machine : Machine
        Its cost models may read more: the axes of tables, and whatever those of other packages ask for.

    Raises
    ------
    UnknownNameError
        Nobody reads it; the message has the nearest name.
    InputError
        A value of another type.
    """
    if name in ("release", "due") and value and not isinstance(value, str):
        raise InputError(f"{value!r} has no unit: write a time as in '4us'")  # in graphs it is ns
    if name in ATTRIBUTES:
        ATTRIBUTES[name](value)
        return
    from devices.cost.cost_models import FixedCost, RooflineCost, TableCost
    from devices.cost.kernel_costs import FittedCost
    from devices.cost.npu_tiles import TiledCost

    models = _cost_models(machine)
    axes = _axes(models)
    if name in axes:
        return
    known = [*ATTRIBUTES, *sorted(axes)]
    ours = (FixedCost, FittedCost, RooflineCost, TableCost, TiledCost)  # that ask for nothing else
    if nearest(name, known) is not None or all(isinstance(one, ours) for one in models):
        raise UnknownNameError("attribute", name, known)


def _cost_models(machine: Machine) -> list[CostModel]:
    from devices.cost.cost_models import models_of

    return [one for device in machine.devices for one in models_of(device.cost)]


def _axes(models: Sequence[CostModel]) -> set[str]:
    """Return the axes of cost tables, which are attributes, too."""
    from devices.cost.cost_models import TableCost

    return {axis.name for one in models if isinstance(one, TableCost) for t in one.tables for axis in t.axes}


@cache
def _meant(name: str) -> str | None:
    """Return the attribute that is nearly called so; asked of the same few names in every run of a search."""
    return nearest(name, ATTRIBUTES, likeness=0.8)


def check_attributes(graph: Graph, machine: Machine) -> None:
    """Warn of slips of the pen in a graph from a file.

    What nobody reads may be there, as importers bring operators' own attributes along. But a slip is likelier
    than an operator's attribute that is called nearly as one of ours.

    Warns
    -----
    UserWarning
        An attribute that nobody reads, and is nearly called as one of ours.
    """
    unread = set().union(*graph.attributes.values()).difference(ATTRIBUTES, _ALIKE)
    near = {name: meant for name in unread if (meant := _meant(name))}
    axes = _axes(_cost_models(machine)) if near else set()
    for name in sorted(set(near) - axes):
        where = graph.op_names[next(iter(graph.attribute(name)))]
        warnings.warn(
            f"op {where!r} has an attribute {name!r}, which nobody reads; did you mean {near[name]!r}?",
            stacklevel=2,
        )


# ----------------------------------------------------------------------------------------------------------
# Names and sizes of data types: ours, and what ONNX and TensorFlow call them.

FLOATING = frozenset(name for name in BITS if name.startswith(("fp", "bf")))
"""The types that `dtype=` of an importer replaces."""

_INTEGERS = [name for name in BITS if "int" in name]

ONNX = {name.upper(): name for name in [*_INTEGERS, "bool", "complex64", "complex128"]} | {
    "DOUBLE": "fp64",
    "FLOAT": "fp32",
    "FLOAT16": "fp16",
    "BFLOAT16": "bf16",
    "FLOAT8E4M3FN": "fp8",
    "FLOAT8E4M3FNUZ": "fp8",
    "FLOAT8E5M2": "fp8",
    "FLOAT8E5M2FNUZ": "fp8",
    "FLOAT4E2M1": "fp4",
}
"""``TensorProto.DataType`` -> our name."""

TENSORFLOW = {name: name for name in [*_INTEGERS, "bool", "complex64", "complex128"]} | {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "qint8": "int8",
    "quint8": "uint8",
    "qint32": "int32",
}
"""``tf.DType.name`` -> our name."""


def snake_case(operator: str) -> str:
    """Return the name of an operator of ONNX or TensorFlow as kinds of op are written.

    Examples
    --------
    >>> snake_case("MaxPool"), snake_case("LRN"), snake_case("ReduceL1")
    ('max_pool', 'lrn', 'reduce_l1')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", operator).lower()


def computed(names: Sequence[str]) -> str | None:
    """Return in what type arithmetic on tensors of some types is: the first floating one, else the first."""
    return next((name for name in names if name in FLOATING), names[0] if names else None)


def check_dtype(name: str) -> str:
    """Return `name` when it is one of ours.

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
    """Return in what type a model that computes in `dtype` keeps its tensors: fp32 for tf32.

    Raises
    ------
    UnknownNameError
        Nobody knows it; the message has the nearest name.
    """
    if dtype is None or dtype == "tf32":
        return dtype and "fp32"
    return check_dtype(dtype)


def computed_in(dtype: str | None, graph: Graph) -> Graph:
    """Return a graph whose products of fp32 compute in tf32, if that is asked for; other ops never do.

    So PyTorch has it (``torch.backends.cuda.matmul.allow_tf32``, ``torch.backends.cudnn.allow_tf32``).

    Warns
    -----
    UserWarning
        A quantized type: its scales and conversions are not in the graph.
    """
    if dtype not in (None, "tf32") and nbytes((2,), dtype) <= 2:
        told = f"{graph.name}: in {dtype} as asked for; what scales and conversions cost is not added"
        warnings.warn(told, stacklevel=3)
    from devices.cost.npu_units import MATRIX_KINDS

    if dtype != "tf32" or "fp32" not in graph.dtypes:
        return graph
    products = graph.is_kind(*MATRIX_KINDS) & (graph.dtype_code == graph.dtypes.index("fp32"))
    codes = np.where(products, len(graph.dtypes), graph.dtype_code)
    return replace(graph, dtypes=(*graph.dtypes, "tf32"), dtype_code=codes)


def nbytes(shape: Sequence[int], dtype: str) -> int:
    """Return the bytes of a tensor.

    Examples
    --------
    >>> nbytes((2, 3), "fp32"), nbytes((3,), "int4")
    (24, 2)
    """
    return (math.prod(shape) * dtype_bits(dtype) + 7) // 8
