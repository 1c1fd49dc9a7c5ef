r"""Layers of experts in a step: their ops, and the tensors that enter and leave.

::

    wrap: layer\d+\.ffn              layer0.norm ─► layer0.ffn.up ─ layer0.ffn.down ─► layer0.add
                                     └ enters       └──────── layer0.ffn ───────┘  └ leaves

    wrap: layer\d+\.experts\.(\d+)   ops per expert: the group is its number, the rest names the layer

Tensors computed from parameters alone do not travel; nor do gradients of parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from policies.option_checks import pattern_of
from policies.parallel.training_step import TrainingStep, parts_of_gradients
from policies.rewrite.records import OpEntry
from sim.base.errors import GraphError, InputError

_SEPARATORS: Final = "./_- "


@dataclass
class Layer:
    """The ops of one layer's experts.

    Attributes
    ----------
    name : str
    module : str
        Name without that of a micro-batch.
    forward, backward : list of str
        Ops, in order.
    expert : dict of str to int
        Op → its expert; empty if ops stand for all experts.
    enters, leaves : list of str
        Tensors that enter and leave in the forward.
    grads_enter, grads_leave : list of str
        Tensors that enter and leave in the backward.
    readers : dict of str to set of int
        Tensor → experts that read it, if each op belongs to one expert.
    """

    name: str
    module: str
    forward: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)
    expert: dict[str, int] = field(default_factory=dict)
    enters: list[str] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    grads_enter: list[str] = field(default_factory=list)
    grads_leave: list[str] = field(default_factory=list)
    readers: dict[str, set[int]] = field(default_factory=dict)

    @property
    def ops(self) -> list[str]:
        """All ops of the layer."""
        return self.forward + self.backward


class Layers:
    """All layers of experts of a step.

    Parameters
    ----------
    step : TrainingStep
    wrap : str
        Regular expression: ops with the same match in their names form a layer; a group in it is the number
        of an expert.
    experts : int
        Number of experts per layer.

    Attributes
    ----------
    all : list of Layer
    weights : set of str
        Tensors computed from parameters alone.
    of : dict of str to Layer
        Op → its layer.
    own : dict of str to int
        Parameter of experts → its expert; None: of all.
    gradients : dict of str to str
        Gradient of a parameter, or a part of its sum → the parameter.

    Raises
    ------
    InputError
        If nothing matches, or `wrap` is not a regular expression.
    GraphError
        If an expert's weight is computed elsewhere, a number is not that of an expert, or ops have no phase.
    """

    def __init__(self, step: TrainingStep, wrap: str, experts: int) -> None:
        self.step, self.experts = step, experts
        pattern = pattern_of(wrap)
        if step.updates and "F" not in {record.phase for record in step.work}:
            raise GraphError(f"graph {step.records.name!r} does not say which ops are its forward (phase: F)")
        self.weights = set(step.records.parameters())
        for record in step.work:
            if record.inputs and self.weights.issuperset(record.reads):
                self.weights.update(record.tensors)
        names = {parameter.gradient: parameter.name for parameter in step.parameters}
        self.gradients = parts_of_gradients(step.records, names)
        several = any(record.micro_batch for record in step.work)
        layers: dict[str, Layer] = {}
        self.layer_of: dict[str, Layer] = {}
        for record in step.work:
            match = pattern.search(record.name)
            adds_up = record.inputs and self.gradients.keys() >= {*record.reads}  # gradients of one parameter
            if match is None or record.kind == "loss_grad" or adds_up:
                continue
            name = f"micro{record.micro_batch}/{_name(match)}" if several else _name(match)
            layer = layers.setdefault(name, Layer(name, _name(match)))
            (layer.forward if self._is_forward(record) else layer.backward).append(record.name)
            self.layer_of[record.name] = layer
            if match.re.groups and match.group(1) is not None:
                layer.expert[record.name] = self._number(record, match.group(1))
        self.all = [layer for layer in layers.values() if layer.forward]
        if not self.all:
            raise InputError(f"no op of the forward has a name that matches {wrap}", path=("wrap",))
        self._leave_out_sums()
        self._read_dispatched()
        self._sum_locally()
        self.own = self._parameters()
        for layer in self.all:
            if layer.expert and len(layer.expert) < len(layer.ops):
                other = next(op for op in layer.ops if op not in layer.expert)
                message = f"layer {layer.name!r} has ops of one expert, and {other!r} of no one"
                raise GraphError(message).about(other)
            self._find_ends(layer)

    def _parameters(self) -> dict[str, int | None]:
        """Return parameter → expert for the parameters that experts read; None: of all experts.

        Raises
        ------
        GraphError
            If another op also reads one.
        """
        owners: dict[str, tuple[str, int] | str | None] = {}
        for record in self.step.work:
            layer = self.layer_of.get(record.name)
            owner: tuple[str, int] | str | None = None if layer is None else layer.module
            if layer is not None and layer.expert:
                owner = layer.module, layer.expert[record.name]
            for tensor in filter(self.step.records.is_parameter, record.reads):
                if owners.setdefault(tensor, owner) != owner:
                    message = f"parameter {tensor!r} is read by experts, and by others with {record.name!r}"
                    raise GraphError(message).about(record.name)
        return {
            tensor: None if isinstance(owner, str) else owner[1]
            for tensor, owner in owners.items()
            if owner is not None
        }

    # -- what is what -----------------------------------------------------------------------------------

    def _is_forward(self, record: OpEntry) -> bool:
        return record.phase == "F" or (record.phase is None and not self.step.updates)

    def _number(self, record: OpEntry, text: str) -> int:
        if not text.isdecimal() or int(text) >= self.experts:
            rule = f"experts are numbered from 0 to {self.experts - 1}"
            raise GraphError(f"op {record.name!r} is of expert {text!r}; {rule}").about(record.name)
        return int(text)

    def _leave_out_sums(self) -> None:
        """Exclude sums of gradients from elsewhere, which are merely named after experts' gradients."""
        records = self.step.records
        for layer in self.all:
            for name in list(layer.backward):
                record = records.ops[name]
                makers = records.makers(record.inputs)
                elsewhere = all(self.layer_of.get(maker.name) is not layer for maker in makers)
                if record.kind == "add_n" and elsewhere and len(makers) == len(record.inputs):
                    layer.backward.remove(name)
                    del self.layer_of[name]

    def _read_dispatched(self) -> None:
        """Let the backward of experts read the input of their forward, which was dispatched to them.

        Tensor-parallel ranks with sequence parallelism gather it again; experts keep it, as in Megatron-LM
        (``explicit_expert_comm`` in megatron/core/tensor_parallel/layers.py).
        """
        gathered: dict[tuple[str, ...], str] = {}
        repeated: dict[str, str] = {}  # a gather in the backward → the same one in the forward
        for record in self.step.work:
            if record.kind == "all_gather" and self._is_forward(record):
                gathered[*record.reads] = record.name
            elif record.kind == "all_gather" and (*record.reads,) in gathered:
                repeated[record.name] = gathered[*record.reads]
        for record in self.step.work:
            if record.name in self.layer_of:
                record.inputs = [(repeated.get(tensor, tensor), lag) for tensor, lag in record.inputs]
        needed = {tensor for record in self.step.work for tensor in record.reads}
        self.step.work = [op for op in self.step.work if op.name not in repeated or op.name in needed]

    def _sum_locally(self) -> None:
        """Sum the gradients of a tensor where they are computed, before they leave.

        For a sum of k parts with j from the same experts, j - 1 additions are made here and k - j there.
        """
        records, work = self.step.records, []
        layers = {layer.name: layer for layer in self.layer_of.values()}
        for record in self.step.work:
            terms: dict[tuple[str, int | None], list[str]] = {}
            if record.kind == "add_n" and record.name not in self.layer_of and not self._is_forward(record):
                for tensor in record.reads:
                    producer = records.producer(tensor)
                    if producer is not None and producer.name in self.layer_of:
                        layer = self.layer_of[producer.name]
                        terms.setdefault((layer.name, layer.expert.get(producer.name)), []).append(tensor)
            for (layer_name, expert), tensors in terms.items():
                layer = layers[layer_name]
                if len(tensors) < 2:
                    continue
                name, parts = record.name, len(record.inputs)
                if len(tensors) < parts:
                    name = records.free(f"{name}/{layer.name}" + ("" if expert is None else f".{expert}"))
                    edges = [(tensor, 0) for tensor in tensors]
                    others = [(name, 0), *(edge for edge in record.inputs if edge[0] not in tensors)]
                    local = record.part(Fraction(len(tensors) - 1, parts - 1))
                    remote = record.part(Fraction(parts - len(tensors), parts - 1))
                    records.ops[name] = replace(local, name=name, inputs=edges, after=[])
                    records.ops[record.name] = record = replace(remote, inputs=others)
                    for op in (records.ops[name], record):
                        op.bytes_read = sum(map(records.nbytes, op.reads))
                        op.bytes_written = sum(op.outputs)
                    work.append(records.ops[name])
                layer.backward.append(name)
                self.layer_of[name] = layer
                if expert is not None:
                    layer.expert[name] = expert
            work.append(record)
        self.step.work = work

    def _find_ends(self, layer: Layer) -> None:
        records, inside, work = self.step.records, set(layer.ops), self.step.work
        read = {t for op in work for t, distance in op.inputs if not distance}
        outside = [op for op in work if op.name not in inside]
        read_outside = {t for op in outside for t, distance in op.inputs if not distance}
        for name in layer.ops:
            for tensor, distance in records.ops[name].inputs:
                if layer.expert:
                    layer.readers.setdefault(tensor, set()).add(layer.expert[name])
                producer = records.producer(tensor)
                if distance or (producer is not None and producer.name in inside):
                    continue
                if tensor in self.weights:
                    if producer is not None:
                        message = f"{producer.name!r} makes a weight for the experts {layer.name!r}"
                        raise GraphError(f"{message}; let wrap match it, too").about(name)
                    continue
                backward = producer is not None and not self._is_forward(producer)
                _add(layer.grads_enter if backward else layer.enters, [tensor])
        for name in layer.forward:
            outputs = records.ops[name].tensors
            _add(layer.leaves, (t for t in outputs if t in read_outside or not read.intersection(outputs)))
        for name in layer.backward:
            outputs = [tensor for tensor in records.ops[name].tensors if tensor not in self.gradients]
            _add(layer.grads_leave, (tensor for tensor in outputs if tensor in read_outside))
        if not layer.enters:
            raise GraphError(f"nothing enters the experts {layer.name!r}; all that they read are parameters")


def _name(match: re.Match[str]) -> str:
    """Return the name of a layer: the match without the number of an expert."""
    name = match.group()
    if match.re.groups and match.group(1) is not None:
        begin, end = (offset - match.start() for offset in match.span(1))
        name = name[:begin] + name[end:]
    return name.strip(_SEPARATORS) or name


def _add(target: list[str], tensors: Iterable[str]) -> None:
    target.extend(tensor for tensor in tensors if tensor not in target)
