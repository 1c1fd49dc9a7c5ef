"""Execution graphs of PyTorch (ET JSON, ``ExecutionTraceObserver``): operators with their tensors.

A file has one node for each call of an operator, with the call that encloses it, and what it was given and
returned. A tensor is ``[id, storage, offset, elements, bytes of an element, device]``, with its shape and
type beside it. Two layouts are read::

    1.0.1              {id, name, parent, rf_id, tid, inputs, input_shapes, input_types, outputs, ...}
    1.0.2-chakra ...   {id, name, ctrl_deps, inputs: {values, shapes, types}, outputs, attrs: [{name, value}]}

Source: torch/csrc/profiler/standalone/execution_trace_observer.cpp (``writeJsonNode``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from scenarios.importers.execution_graph.tensor_flow import Tensor, written_arguments
from scenarios.importers.files import StrPath, read_json
from sim.words.errors import InputError

__all__ = ["Argument", "Operator", "TensorValue", "read_operators", "recognises"]

_MOST: Final = 2**48
"""Most elements of a dimension, or bytes of a tensor: more are damage."""

_DTYPES: Final = {
    "float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16", "int": "int32",
    "long int": "int64", "long": "int64", "short int": "int16", "short": "int16", "signed char": "int8",
    "unsigned char": "uint8", "bool": "bool", "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128", "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8",
}  # fmt: skip
"""What PyTorch calls a data type there -> our name."""

_HEAD: Final = re.compile(rb'"schema"\s*:\s*"[0-9.]+(-chakra[0-9.]*)?"')


class TensorValue(NamedTuple):
    """A tensor that an operator was given or returned."""

    tensor: Tensor
    shape: tuple[int, ...]
    dtype: str | None


Argument = Any
"""A `TensorValue`, a list of arguments, None, a number or a text."""


@dataclass(frozen=True)
class Operator:
    """A call of an operator.

    Attributes
    ----------
    id, parent : int
    name, schema : str
    rf_id : int
        Number of the call, as the profiler counts them.
    thread : int
    inputs, outputs : list
        Arguments.
    """

    id: int
    parent: int
    name: str
    schema: str
    rf_id: int
    thread: int
    inputs: list[Argument]
    outputs: list[Argument]

    @cached_property
    def reads(self) -> list[Tensor]:
        """The tensors that it was given."""
        return [value.tensor for value in tensors(self.inputs)]

    @cached_property
    def writes(self) -> list[Tensor]:
        """The tensors that it returned, and those that its schema says it writes in place."""
        placed = [self.inputs[i] for i in written_arguments(self.schema) if i < len(self.inputs)]
        return [value.tensor for value in tensors([*self.outputs, *placed])]


def tensors(arguments: Sequence[Argument]) -> Iterator[TensorValue]:
    """Yield the tensors of arguments, and of lists among them."""
    for argument in arguments:
        if isinstance(argument, TensorValue):
            yield argument
        elif isinstance(argument, list):
            yield from tensors(argument)


def recognises(name: str, head: bytes) -> bool:
    """Whether `head` looks like an execution graph's."""
    return _HEAD.search(head) is not None and b'"nodes"' in head


def read_operators(path: StrPath) -> list[Operator]:
    """Return the operators of an execution graph, in the order in which they began.

    Raises
    ------
    InputError
        No such file, not JSON, no execution graph, or a node without what it must have (with its index).
    """
    data = read_json(path)
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(nodes, list) or not nodes or "schema" not in data:
        raise InputError(f"{path}: not an execution graph of PyTorch (it has no schema, or no list nodes)")
    if any(isinstance(node, dict) and "cat" in node for node in nodes):
        raise InputError(
            f"{path}: is an execution graph that was linked with a trace; give the trace (kineto:) and the "
            "graph as PyTorch wrote it (execution_graph:), or convert it (chakra_converter) to a Chakra trace"
        )
    found = []
    for index, node in enumerate(nodes):
        try:
            found.append(_operator(node))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            name = node.get("name") if isinstance(node, dict) else None
            raise InputError(f"{path}: nodes[{index}] ({str(name)[:60]}): {reason}") from None
    if len({operator.id for operator in found}) < len(found):
        raise InputError(f"{path}: not an execution graph of PyTorch: two nodes have one id")
    return sorted(found, key=lambda operator: operator.id)


def _operator(node: Any) -> Operator:
    if "attrs" in node:
        own = {each["name"]: each.get("value") for each in node["attrs"]}
        parent, sides = node["ctrl_deps"], [
            [node[side][what] for what in ("values", "shapes", "types")] for side in ("inputs", "outputs")
        ]  # fmt: skip
    else:
        own, parent = node, node["parent"]
        sides = [
            [node[f"{side}s"], node[f"{side}_shapes"], node[f"{side}_types"]] for side in ("input", "output")
        ]
    inputs, outputs = ([_argument(*each) for each in zip(*map(_listed, side), strict=True)] for side in sides)
    if _whole(parent) > _whole(node["id"]):
        raise ValueError(f"is called by node {parent}, which began later")
    return Operator(
        node["id"],
        parent,
        str(node["name"]),
        str(own.get("op_schema") or ""),
        _whole(own.get("rf_id", 0)),
        _whole(own.get("tid", 0)),
        inputs,
        outputs,
    )


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]!r} is no list of arguments")
    return value


def _whole(value: Any, most: int = 2**64) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError(f"{str(value)[:40]!r} is no number of this kind")
    return value


def _argument(value: Any, shape: Any, kind: Any) -> Argument:
    if isinstance(kind, str) and kind.startswith("Tensor("):
        _, storage, _, elements, size, device = value
        nbytes = _whole(elements, _MOST) * _whole(size, 1025)
        dimensions = tuple(_whole(n, _MOST) for n in _listed(shape))
        inside = kind.removeprefix("Tensor(").removesuffix(")")
        return TensorValue(Tensor((str(device), _whole(storage)), nbytes), dimensions, _DTYPES.get(inside))
    if isinstance(kind, str) and kind.startswith("GenericList[") and "Tensor(" in kind:
        kinds = _split(kind.removeprefix("GenericList[").removesuffix("]"))
        return [_argument(*each) for each in zip(_listed(value), _listed(shape), kinds, strict=True)]
    return None if value == "<None>" else value


def _split(kinds: str) -> list[str]:
    """Return the types of a list's elements: parts at commas that are in no brackets."""
    found, depth = [""], 0
    for letter in kinds:
        depth += (letter in "[(<") - (letter in "])>")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found
