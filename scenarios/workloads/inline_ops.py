"""Ops written out in the scenario: ``workload: {ops: {a: {duration: 10us}, b: {inputs: [a], ...}}}``.

An op is a name and its properties. Simultaneous ops are ordered as in the file. Instead of
one long op, ``split: k`` makes k parts that may run side by side::

    a: {duration: 80us, split: 4}       a/0  20us ─┐
    b: {inputs: [a]}                    a/1  20us ─┤
                                        a/2  20us ─┼─► b     a reader of a reads all its parts
                                        a/3  20us ─┘

An op of kind ``call``, ``if`` or ``while`` stands for the ops of the ``functions:`` named by its attributes
(`scenarios.ops.inlining`)::

    ops:        {x: {...}, f: {kind: while, inputs: [x], attributes: {body: step, trips: 8}}}
    functions:  {step: {inputs: [i], ops: {add: {inputs: [i], duration: 1ms}}, outputs: [add]}}
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, JsonValue, PrivateAttr, WithJsonSchema, model_validator

from devices.describe.field_types import Bytes, Duration, Flops, fault, reader
from devices.describe.quantities import Count, Name, Shorthand, Strict, Whole
from scenarios.file.document import Document, Loc
from scenarios.ops.inlining import FUNCTIONAL_KINDS, Function, add_ops
from scenarios.workloads.workload import Workload, op_message, op_place
from sim.base.errors import GraphError, UnknownNameError, clip_repr
from sim.graph.builder import GraphBuilder
from sim.graph.failures import read_fails
from sim.graph.graph import Graph, output_name, split_output
from sim.machine.machine import Machine


class Reference(Strict):
    """What an op reads or waits for.

    Attributes
    ----------
    source
        op, or op:1 for its second output
    distance
        how many iterations earlier the input was made
    """

    source: Name = Field(alias="from")
    distance: Whole = 0


AnyReference = Annotated[
    Reference,
    Shorthand("from", {"type": ["string", "integer"]}),
    Field(description="an op (its first output), 'op:1' (its second), or {from: op, distance: 1}"),
]
References = Annotated[list[AnyReference], Field(default_factory=list)]


EVERYWHERE: Final = "default"
"""The device kind that stands for all kinds not named."""


Durations = Annotated[
    dict[Name, Duration],
    Shorthand(EVERYWHERE, "duration"),
    Field(
        default_factory=dict,
        description="duration on any device, or {cpu: 900us, gpu1: 30us} by kind or name; default: from "
        "the cost model",
    ),
]


_STEPS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_CHANCE: Final = {"type": "number", "minimum": 0, "maximum": 1}
_ONE_KEY: Final = {"minProperties": 1, "maxProperties": 1, "additionalProperties": False}
_FAILING: Final = {"type": "object", "properties": {"at": _STEPS, "probability": _CHANCE}, **_ONE_KEY}
Fails = Annotated[
    bool | dict[str, Any],
    BeforeValidator(reader(read_fails)),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, _FAILING]}),
]


class Op(Strict):
    """One op.

    Attributes
    ----------
    kind
        matmul, conv, copy, all_reduce, ...
    inputs
        tensors that it reads: an op, op:1 for its second output, or a mapping
    after
        ops that it waits for without reading anything of them
    output
        size of its only output
    outputs
        sizes of its outputs
    device
        device, or kind of device, that it must run on
    bytes_read
        default: size of its inputs
    bytes_written
        default: size of its outputs
    dtype
        data type in which it computes; default: that of the device
    stage
        stage of a pipeline, for reports and pictures
    micro_batch
        its micro-batch, likewise
    phase
        F, B, I, W or R, likewise
    split
        run as this many equal parts
    fails
        true, {at: [steps, from 0]} or {probability: 0.1}: its consumers then never run
    attributes
        what policies and cost models read: shapes, priority, stream, communicator, ...
    """

    kind: Name = "op"
    duration: Durations
    inputs: References
    after: References
    output: Bytes | None = None
    outputs: list[Bytes] | None = None
    device: Name | None = None
    flops: Flops = 0
    bytes_read: Bytes | None = None
    bytes_written: Bytes | None = None
    dtype: Name | None = None
    stage: Whole | None = None
    micro_batch: Whole | None = None
    phase: Name | None = None
    split: Annotated[Count, Field(le=100_000)] = 1
    fails: Fails = False
    attributes: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, value: Any) -> Any:
        if isinstance(value, str | int | float):
            raise fault(f"should be a mapping, as in {{duration: 10us}}, not {clip_repr(value)}")
        return value

    @model_validator(mode="after")
    def _one_of_two(self) -> Op:
        if self.output is not None and self.outputs is not None:
            raise fault("has both output and outputs; give one of them")
        if self.fails and "fails" in self.attributes:
            raise fault("has fails twice, as a key and among its attributes; give one of them")
        keys = FUNCTIONAL_KINDS.get(self.kind, ())
        if any(key not in self.attributes for key in keys):
            examples = [f"{key}: FUNCTION" for key in keys] + (["trips: N"] if self.kind == "while" else [])
            message = f"an op of kind {self.kind} stands for the ops of {' and '.join(keys)}"
            raise fault(f"{message}; give attributes: {{{', '.join(examples)}}}")
        return self

    def sizes(self) -> list[int]:
        """Return the sizes of its outputs in bytes."""
        return (self.outputs or [0]) if self.output is None else [self.output]


class External(Strict):
    """A tensor that no op produces.

    Attributes
    ----------
    device
        device that holds it; default: all that read it
    """

    size: Bytes = 0
    device: Name | None = None


AnyExternal = Annotated[External, Shorthand("size", "size")]


class FunctionOps(Strict):
    """A function: the ops that an op of kind call, if or while stands for.

    Attributes
    ----------
    inputs
        names that its ops use for the inputs
    ops
        its ops, by name
    outputs
        of its ops, or inputs: what it returns
    """

    inputs: list[Name] = Field(default_factory=list)
    ops: dict[Name, Op] = Field(min_length=1)
    outputs: list[Name] = Field(min_length=1)

    @model_validator(mode="after")
    def _not_split(self) -> FunctionOps:
        for name, op in self.ops.items():
            if op.split > 1:
                raise fault("an op of a function cannot be split", ("ops", name, "split"))
        return self


class InlineOps(Workload):
    """Ops written out in the scenario.

    Attributes
    ----------
    ops
        ops by name
    inputs
        tensors there before each iteration: size, or {size, device}
    parameters
        tensors that stay, such as weights: size, or {size, device}
    kinds
        kinds of op of your own, beside those known
    functions
        functions whose ops the kinds call, if and while stand for
    """

    ops: dict[Name, Op] = Field(min_length=1)
    inputs: dict[Name, AnyExternal] = Field(default_factory=dict)
    parameters: dict[Name, AnyExternal] = Field(default_factory=dict)

    kinds: list[Name] = Field(default_factory=list)
    functions: dict[Name, FunctionOps] = Field(default_factory=dict)

    _graph: Graph | None = PrivateAttr(None)

    def own_kinds(self) -> Collection[str]:
        """Return the op kinds that the scenario declares as its own."""
        return self.kinds

    def build(self, document: Document, machine: Machine) -> Graph:
        """Return the graph of the ops, built once."""
        if self._graph is None or self._graph.name != document.title:
            self._graph = self._make(document)
        device_words = [word for device in machine.devices for word in (device.name, device.kind)]
        placed: dict[Loc, Mapping[str, External | Op]] = {  # other ops are checked when they are placed
            ("inputs",): self.inputs,
            ("parameters",): self.parameters,
            **{("functions", name, "ops"): function.ops for name, function in self.functions.items()},
        }
        for section, things in placed.items():
            for name, thing in things.items():
                if thing.device is not None and thing.device not in device_words:
                    error = UnknownNameError("device", thing.device, device_words)
                    raise document.wrong(error, ("workload", *section, name, "device"))
        return self._graph

    def _make(self, document: Document) -> Graph:
        self._warn_of_unused_functions(document)
        builder = GraphBuilder(document.title)
        records = [
            _record(name, op, part, self.ops) for name, op in self.ops.items() for part in range(op.split)
        ]
        functions = {
            name: Function(
                name,
                tuple(function.inputs),
                tuple(_record(inner, op, 0, function.ops) for inner, op in function.ops.items()),
                tuple(function.outputs),
            )
            for name, function in self.functions.items()
        }
        try:
            for name, tensor in self.inputs.items():
                builder.input(name, tensor.size, device=tensor.device)
            for name, tensor in self.parameters.items():
                builder.parameter(name, tensor.size, device=tensor.device)
            add_ops(builder, records, functions)
            return builder.build()
        except GraphError as error:
            loc = op_place(error, document)
            raise document.error(loc, op_message(error, document), key=loc[-1] == "ops") from None

    def _warn_of_unused_functions(self, document: Document) -> None:
        """Warn of functions that no op names."""
        used = set[str]()
        for op in (*self.ops.values(), *(op for f in self.functions.values() for op in f.ops.values())):
            keys = (*FUNCTIONAL_KINDS.get(op.kind, ()), "cond")
            used |= {str(op.attributes[key]) for key in keys if key in op.attributes}
        for name in self.functions:
            if name not in used:
                place = document.place(("workload", "functions", name), key=True)
                warnings.warn(f"{place}: no op uses the function {name!r}", stacklevel=2)


_COPIED: Final = ("kind", "device", "dtype", "stage", "micro_batch", "phase")


def _record(name: str, op: Op, part: int, ops: Mapping[str, Op]) -> dict[str, Any]:
    """Return one part of an op as arguments of `GraphBuilder.op`; an unsplit op has one part."""

    def share(amount: int) -> int:
        return amount * (part + 1) // op.split - amount * part // op.split

    duration_ns = {kind: share(ns) for kind, ns in op.duration.items()}
    return {
        "name": f"{name}/{part}" if op.split > 1 else name,
        **{key: getattr(op, key) for key in _COPIED},
        "attributes": {**op.attributes, "fails": op.fails} if op.fails else op.attributes,
        "inputs": _expand(op.inputs, ops),
        "after": _expand(op.after, ops),
        "outputs": [share(size) for size in op.sizes()],
        "duration_ns": duration_ns.pop(EVERYWHERE, None),
        "duration_by_kind": duration_ns,
        "flops": share(op.flops),
        "bytes_read": None if op.bytes_read is None else share(op.bytes_read),
        "bytes_written": None if op.bytes_written is None else share(op.bytes_written),
    }


def _expand(references: Sequence[Reference], ops: Mapping[str, Op]) -> list[tuple[str, int]]:
    """Return the references, with a split op replaced by all its parts."""
    expanded = []
    for ref in references:
        op, k = (ref.source, 0) if ref.source in ops else split_output(ref.source) or (ref.source, 0)
        parts = ops[op].split if op in ops else 1
        names = [output_name(f"{op}/{i}", k) for i in range(parts)] if parts > 1 else [ref.source]
        expanded += [(name, ref.distance) for name in names]
    return expanded
