"""A training step as seen by parallel training: its ops in host order, and the program of a rank.

::

    F F F F │ B B B B B │ U U U U        the ops that the host of one rank issues, in order
                 │             └ updates: they read parameters, and the gradient of each
                 └ a gradient is ready when the op that computes it is issued
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

from policies.option_checks import pattern_of
from policies.rewrite.backward import OPTIMIZERS, elements
from policies.rewrite.records import Edge, OpEntry, Records, free_name, read, write
from sim import Graph
from sim.base.arrays import UNSET, group_pairs
from sim.base.errors import GraphError, InputError
from sim.graph.frames import has_control_flow
from sim.graph.graph import output_name


@dataclass(frozen=True)
class Parameter:
    """A trained parameter.

    Attributes
    ----------
    name, gradient, update : str
        Tensor of the parameter, tensor of its gradient, and op that updates it.
    nbytes : int
        Size of its gradient.
    elements : int
    dtype : str or None
    """

    name: str
    gradient: str
    update: str
    nbytes: int
    elements: int
    dtype: str | None


class TrainingStep:
    """The ops of a step in host order.

    Parameters
    ----------
    graph : Graph
        Graph with backward and updates (from `policies.rewrite` or an importer).
    forward : bool
        Whether a forward alone, without updates, is accepted.

    Attributes
    ----------
    records : Records
    work : list of Record
        Forward and backward, in order.
    updates : list of Record
        Updates, preceded by the collectives whose results they alone read: sums of partial gradients of
        tensor-parallel ranks. Replicas sum theirs before, as in Megatron-LM's ``finalize_model_grads``.
    parameters : list of Parameter
        Parameters in graph order (the order of registration).

    Raises
    ------
    GraphError
        If no op updates a parameter, or the graph has control flow, communicators or several devices.
    """

    def __init__(self, graph: Graph, *, forward: bool = False) -> None:
        refuse_several_devices(graph, of_rank=True)
        self.records = read(graph)
        order = self.records.in_order(graph)
        collectives = [record.name for record in order if "communicator" in record.attributes]
        readers = self.records.readers() if collectives else {}
        self.finishing = {n for n in collectives if readers[n] and all(map(_may_update, readers[n]))}
        """The collectives that compute gradients read only by updates."""
        trained = self._trained_parameters()
        self.updates = [op for last in (self.finishing, trained) for op in order if op.name in last]
        at_the_end = {update.name for update in self.updates}
        self.work = [op for op in order if op.name not in at_the_end]
        parameters = {parameter.name: parameter for name in trained for parameter in trained[name]}
        self.parameters = [parameters[name] for name in self.records.externals if name in parameters]
        if not parameters and not forward:
            message = "updates no parameter; let the rewrite training come first"
            raise GraphError(f"graph {graph.name!r} {message}")

    @cached_property
    def ready_at(self) -> dict[str, int]:
        """Gradient of a parameter → place in `work` of the op after which it is ready.

        Consecutive ops that compute only such gradients from a shared one (those of a product's
        weight and bias) are one autograd node: hooks run when the node ends.
        """
        gradients = frozenset(parameter.gradient for parameter in self.parameters)
        ready: dict[str, int] = {}
        index, node = 0, frozenset[str]()
        for k in reversed(range(len(self.work))):
            writes, read = self.work[k].tensors, frozenset(self.work[k].reads) - self.records.externals.keys()
            only_gradients = gradients.issuperset(writes)
            if not (only_gradients and node & read):
                index = k
            node = read if only_gradients else frozenset()
            ready.update((tensor, index) for tensor in writes if tensor in gradients)
        return ready

    def in_ready_order(self) -> list[Parameter]:
        """Return the parameters in the order in which gradients become ready, those of a node reversed."""
        last_first = self.parameters[::-1]
        return sorted(last_first, key=lambda parameter: self.ready_at[parameter.gradient])

    def own_gradient(self, parameter: Parameter) -> str:
        """Return the micro-batch's own gradient of a parameter, before it is added up."""
        producer = self.records.producer(parameter.gradient)
        if producer is None or not producer.name.endswith(f"/{parameter.name}/accumulate"):
            return parameter.gradient
        return producer.inputs[1][0]

    def _trained_parameters(self) -> dict[str, list[Parameter]]:
        """Return op → parameters that it updates.

        Such an op reads as many gradients as parameters, in the same order; what only it reads is its state.
        """
        records, trained = self.records, dict[str, list[Parameter]]()
        elsewhere = {t for record in records.ops.values() if not _may_update(record) for t in record.reads}
        for record in filter(_may_update, records.ops.values()):
            tensors = list(dict.fromkeys(tensor for tensor, distance in record.inputs if not distance))
            gradients = [tensor for tensor in tensors if records.producer(tensor) is not None]
            weights = [tensor for tensor in tensors if tensor in elsewhere and records.is_parameter(tensor)]
            if len(weights) != len(gradients):
                continue
            for name, gradient in zip(weights, gradients, strict=True):
                n, maker = elements(records.externals[name].nbytes, record.dtype), records.maker(gradient)
                if maker.name in self.finishing:
                    gradient = maker.reads[maker.tensors.index(gradient)]
                parameter = Parameter(name, gradient, record.name, records.nbytes(gradient), n, record.dtype)
                trained.setdefault(record.name, []).append(parameter)
        return trained


def refuse_several_devices(graph: Graph, *, of_rank: bool = False) -> None:
    """Raise if a graph is not that of one device, or if `of_rank` the program of one rank.

    Raises
    ------
    GraphError
        If it has control flow or several devices, or communicators other than a rank's dimensions.
    """
    title = f"graph {graph.name!r}"
    if has_control_flow(graph):
        raise GraphError(f"{title} has control flow; what ranks exchange must be known before time 0")
    for op in graph.in_communicators:
        attributes = graph.attributes[op]
        if not of_rank or "rank" in attributes or "dimension" not in attributes:
            message = f"{title} has communicators already; ranks are made once, by rewrites in a row"
            raise GraphError(message).about(graph.op_names[op])
    pins = sorted({graph.pins[code] for code in set(graph.pin_code.tolist()) - {UNSET}})
    if len(pins) > 1:
        raise GraphError(f"{title} is on several devices ({', '.join(pins[:5])}); every rank runs all of it")


LINEAR: Final = frozenset({"add_n", "add", "identity", "reshape", "cast", "transpose"})
"""Kinds whose output is a part of a sum if their inputs are parts."""


def parts_of_gradients(records: Records, gradients: Mapping[str, str]) -> dict[str, str]:
    """Return gradients and the terms of their sums, read only by these sums and updates → parameter.

    Parameters
    ----------
    records : Records
    gradients : mapping of str to str
        Gradient → parameter.
    """
    parameter_of: dict[str, str] = {}
    readers = group_pairs((tensor, record) for record in records.ops.values() for tensor in record.reads)
    stack = list(gradients.items())
    while stack:
        tensor, parameter = stack.pop()
        users = [record for record in readers[tensor] if not _may_update(record)]
        collectives = [record for record in users if "communicator" in record.attributes]
        if all(record.name in parameter_of for record in users if record not in collectives):
            parameter_of[tensor] = parameter
            producer = records.producer(tensor)
            if producer is not None and producer.kind in LINEAR:
                stack += [(source, parameter) for source in producer.reads]
    return parameter_of


def _may_update(record: OpEntry) -> bool:
    return (record.kind in OPTIMIZERS or record.stateful) and "communicator" not in record.attributes


# ----------------------------------------------------------------------------------------------------------
# Modules: groups of ops, and the places in host order where each begins and ends.
#
#     wrap: layer\d+        layer0.norm  layer0.up  layer1.norm  layer1.up  head         ops
#                           └───── layer0 ──────┘  └────── layer1 ────┘  └ root ┘
#     no wrap               every op that reads a parameter is a module; ops that compute the gradients of
#                           its parameters, or read them, are its backward

ROOT = "root"


@dataclass
class Module:
    """A group of ops, and the parameters that they read.

    Attributes
    ----------
    name : str
    parameters : list of Parameter
    forward, backward : list of int
        Places of its ops in `TrainingStep.work`.
    gives_on : bool
        Whether its backward computes gradients that other modules need.
    """

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    gives_on: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [parameter.name for parameter in self.parameters]


class Modules:
    """The modules of a step; those without a parameter to train are left out.

    Parameters
    ----------
    step : TrainingStep
    wrap : str, optional
        Regular expression: ops with the same match in their names form a module, all others the root.
    number : int
        Number of the step's micro-batch; modules have the same names in each.

    Attributes
    ----------
    all : list of Module
        Modules in forward order, the root first.
    named : dict of str to Module
    root : Module or None
    turn : int
        Place of the first op after the forward.
    enter, leave, back, over : dict of int to Module
        Places where the forward and backward of each module but the root begin and end, and hooks run; `over`
        has only modules whose inputs need gradients.

    Raises
    ------
    InputError
        If `wrap` is not a regular expression, or nothing matches it.
    GraphError
        If ops have no phase, or a parameter is read in two modules.
    """

    def __init__(self, step: TrainingStep, wrap: str | None, number: int = 0) -> None:
        self.step, self.number = step, number
        self.pattern = None if wrap is None else pattern_of(wrap)
        phases = [record.phase for record in step.work]
        if "F" not in phases:
            raise GraphError(f"graph {step.records.name!r} does not say which ops are its forward (phase: F)")
        self.turn = len(phases) - phases[::-1].index("F")
        self.of_parameter: dict[str, str] = {}
        trained = {parameter.name for parameter in step.parameters}
        for record in step.work[: self.turn]:
            for tensor in (tensor for tensor in record.reads if tensor in trained):
                owner = self._match(record) if self.pattern else self.of_parameter.get(tensor, record.name)
                if self.of_parameter.setdefault(tensor, owner) != owner:
                    owners = f"{self.of_parameter[tensor]} and {owner}"
                    raise GraphError(f"parameter {tensor!r} is read in {owners}; wrap them together")
        self.of_gradient = {
            gradient: self.of_parameter.get(parameter.name, ROOT)
            for parameter in step.parameters
            for gradient in (parameter.gradient, step.own_gradient(parameter))
        }
        modules = {ROOT: Module(ROOT)}
        for index, record in enumerate(step.work):
            name = self._module_of(record)
            if name is not None:
                module = modules.setdefault(name, Module(name))
                (module.forward if index < self.turn else module.backward).append(index)
        for parameter in step.parameters:
            modules[self.of_parameter.get(parameter.name, ROOT)].parameters.append(parameter)
        self.all = [module for module in modules.values() if module.parameters]
        if wrap is not None and {module.name for module in self.all} <= {ROOT}:
            raise InputError(f"no op that reads a parameter has a name that matches {wrap}", path=("wrap",))
        for index, record in enumerate(step.work[self.turn :], start=self.turn):
            for producer in step.records.makers(record.inputs):
                name = self._module_of(producer) if producer.phase != "F" else None
                if name is not None and name in modules and index not in modules[name].backward:
                    modules[name].gives_on = True
        for module in self.all:
            module.name = module.name.removeprefix(f"micro{number}/")
        self.named = {module.name: module for module in self.all}
        self.root = self.named.get(ROOT)
        within = [module for module in self.all if module is not self.root]
        self.enter = {module.forward[0]: module for module in within}
        self.leave = {module.forward[-1]: module for module in within}
        self.back = {module.backward[0]: module for module in within if module.backward}
        self.over = {module.backward[-1]: module for module in within if module.backward and module.gives_on}

    def _match(self, record: OpEntry) -> str:
        match = self.pattern.search(record.name) if self.pattern else None
        return match.group() if match else ROOT

    def _module_of(self, record: OpEntry) -> str | None:
        """Return the module of an op; None: it has none."""
        by_gradient = (self.of_gradient[tensor] for tensor in record.tensors if tensor in self.of_gradient)
        read = (self.of_parameter[tensor] for tensor in record.reads if tensor in self.of_parameter)
        return next(by_gradient, None) or (self._match(record) if self.pattern else next(read, None))


# ----------------------------------------------------------------------------------------------------------
# The program of a rank: the ops that its host issues, in order, with their streams.
#
#     compute       F0  F1  F2  B2  B1  B0            U0 U1 U2
#     all_reduce                [ b0 ]  [ b1 ]
#
# Each method of parallel training is such a list: the ops of the step, with others among them that gather,
# reduce or copy. Edges are dependencies, the attribute ``stream`` selects an op's stream
# (`policies.streams`), and ``communicator`` the ranks that take part.

COMPUTE: Final = "compute"
"""Stream of all ops for which no other is named."""


def on_compute(record: OpEntry) -> dict[str, Any]:
    """Return the attributes of an op, with the compute stream unless it is a collective on another one."""
    stream = record.attributes.get("stream") if "communicator" in record.attributes else None
    return {**record.attributes, "stream": stream or COMPUTE}


class HostProgram:
    """Collects the ops that the host of a rank issues.

    Parameters
    ----------
    step : TrainingStep
    name : str
        Method of training, for the name of the graph.

    Attributes
    ----------
    step : TrainingStep
    updates : list of OpEntry
        The updates of the step, as a rank runs them.
    records : Records
        Ops issued so far.
    instead : dict of str to str
        Tensor → tensor that ops of the step read in its place from here on.
    parts : dict of str to str
        Parameter → the rank's part of its gradient so far.
    """

    def __init__(self, step: TrainingStep, name: str) -> None:
        self.records = Records(f"{step.records.name} ({name})", {}, dict(step.records.externals))
        self.step, self.updates = step, step.updates
        self.instead: dict[str, str] = {}
        self.parts: dict[str, str] = {}

    def compute(self, record: OpEntry, after: Iterable[str | Edge | None] = ()) -> None:
        """Issue an op of the step."""
        inputs = [(self.instead.get(tensor, tensor), distance) for tensor, distance in record.inputs]
        edges, attributes = [*record.after, *_edges(after)], on_compute(record)
        self.records.ops[record.name] = replace(record, inputs=inputs, after=edges, attributes=attributes)

    def add(
        self,
        name: str,
        kind: str,
        reads: Sequence[str],
        outputs: Sequence[int],
        *,
        after: Iterable[str | Edge | None] = (),
        stream: str = COMPUTE,
        **attributes: Any,
    ) -> str:
        """Issue an op that moves bytes; return its name, which differs from `name` if that is in use.

        Earlier rewrites may have used it: with sequence parallelism a tensor-parallel rank has an op
        ``layer0.norm1/all_gather``, so the gather of fsdp2's module is ``layer0.norm1/all_gather.2``.
        """
        name = free_name(name, self.records.ops, self.step.records.ops, self.step.records.externals)
        self._write(OpEntry(name, kind, _edges(reads), _edges(after), tuple(outputs)), stream, attributes)
        return name

    def _write(self, record: OpEntry, stream: str, attributes: Mapping[str, Any]) -> None:
        record.bytes_read = sum(map(self.records.nbytes, record.reads))
        record.bytes_written = sum(record.outputs)
        record.attributes = {"stream": stream, **attributes}
        self.records.ops[record.name] = record

    def add_parts(self, prefix: str, gradients: Sequence[Parameter], source: str, n: int, stream: str) -> str:
        """Add the outputs of op `source`, a rank's parts of gradients, to those of earlier micro-batches.

        Return the last op: `source` in the first micro-batch. An adding op has the name of the one that it
        replaces, which adds whole gradients.
        """
        last = source
        for k, parameter in enumerate(gradients):
            part, before = output_name(source, k), self.parts.get(parameter.name)
            if before is not None:
                last = f"{prefix}{parameter.name}/accumulate"
                sizes = (shard_nbytes(parameter, n),)
                record = OpEntry(last, "add", _edges([before, part]), [], sizes, dtype=parameter.dtype)
                record.flops = -(-parameter.elements // n)
                self._write(record, stream, {})
            self.parts[parameter.name] = part if before is None else last
        return last

    def shard(self, n: int, *, parameters: bool = True) -> None:
        """Reduce states, and `parameters`, to 1/`n` per rank; scale the updates likewise."""
        unsharded = set() if parameters else {parameter.name for parameter in self.step.parameters}
        for name in dict.fromkeys(tensor for update in self.updates for tensor in update.reads):
            if name in self.records.externals and name not in unsharded:
                external = self.records.externals[name]
                self.records.externals[name] = replace(external, nbytes=-(-external.nbytes // n))
        self.updates = [
            replace(
                update.part(Fraction(1, n)),
                flops=-(-update.flops // n),
                bytes_read=-(-update.bytes_read // n),
                bytes_written=-(-update.bytes_written // n),
            )
            if "communicator" not in update.attributes
            else _sum_of_parts(update, n if parameters else 1)
            for update in self.updates
        ]

    def update(self, after: str | None, gradients: dict[str, str] | None = None) -> None:
        """Issue the updates after an op; they read `gradients` in place of the step's, by default `parts`."""
        if gradients is None:
            gradients = {parameter.gradient: self.parts[parameter.name] for parameter in self.step.parameters}
        self.instead = gradients
        for update in self.updates:
            self.compute(update, after=[after])

    def graph(self) -> Graph:
        """Return the graph of one rank."""
        return write(self.records)


def exchange(
    op: OpEntry,
    name: str,
    kind: str,
    reads: Iterable[str],
    nbytes: int,
    outputs: Sequence[int],
    *,
    after: Iterable[str | Edge | None] = (),
    **attributes: Any,
) -> OpEntry:
    """Return a collective related to `op`, with `nbytes` as the collective counts them."""
    record = op.like(name, kind, dict.fromkeys(reads), outputs, after=_edges(after), bytes_read=nbytes)
    record.attributes = {"stream": COMPUTE, "nbytes": nbytes, **attributes}
    return record


def _edges(edges: Iterable[str | Edge | None]) -> list[Edge]:
    return [edge if isinstance(edge, tuple) else (edge, 0) for edge in edges if edge is not None]


def _sum_of_parts(sum_: OpEntry, n: int) -> OpEntry:
    """Return a sum over other ranks for sharded gradients."""
    sizes = tuple(-(-nbytes // n) for nbytes in sum_.outputs)
    attributes = {**sum_.attributes, "nbytes": sum(sizes)} if n > 1 else sum_.attributes
    return replace(
        sum_, outputs=sizes, bytes_read=sum(sizes), bytes_written=sum(sizes), attributes=attributes
    )


def shard_nbytes(parameter: Parameter, n: int) -> int:
    """Return the bytes of a rank's part of a gradient: whole elements, the last part padded.

    Examples
    --------
    >>> shard_nbytes(Parameter("w", "dw", "u", nbytes=40, elements=10, dtype="fp32"), 4)
    12
    """
    return -(-parameter.elements // n) * (parameter.nbytes // max(1, parameter.elements))
