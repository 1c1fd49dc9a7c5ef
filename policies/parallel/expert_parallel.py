r"""Expert parallelism: each rank has some of a layer's experts, and tokens travel to their experts.

::

    gpu0   norm  router │ dispatch │ experts 0, 1 ███████ │ combine │ add       dispatch, combine: all_to_all
    gpu1   norm  router │ dispatch │ experts 2, 3 ███     │ combine │ add       all wait for the fullest rank
                        └ meet ────┘                waits └ meet ───┘

    backward            combine/grad │ gradients of the experts │ dispatch/grad    the same two the other way

The graph is the step of one rank, with its own tokens. `wrap` finds the ops of its experts: either separate
ops per expert, with the expert's number as a group of the expression, or a feed-forward layer that stands for
all experts. Router, permutation and shared experts are other ops and stay where they are. Experts 0 to
E/e - 1 are on the first rank, and so on.

A rank's experts compute for the tokens that they receive: work, bytes, times and sizes of their ops are
scaled by tokens / tokens of the graph. A rank holds the parameters of its own experts. In training, gradients
of all other parameters are summed over all ranks, in Megatron-LM's buckets, and those of experts over the
ranks with the same experts, if there are several groups.

Sources: Lepikhin et al., "GShard", arXiv 2006.16668; Fedus et al., "Switch Transformers", JMLR 23 (2022);
Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py (``MoEAlltoAllTokenDispatcher``) and
megatron/core/distributed/distributed_data_parallel.py (buffers of expert parameters apart).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any, Final

from policies.option_checks import pattern_of, whole
from policies.parallel.ddp import fill_buckets, reduce_in_buckets
from policies.parallel.expert_layers import Layer, Layers
from policies.parallel.expert_routing import route_tokens
from policies.parallel.rank_grid import DATA, Grid, OnRanks, Ranked, Ranks
from policies.parallel.training_step import COMPUTE, HostProgram, TrainingStep
from policies.rewrite.records import OpEntry, Records, write
from sim import Graph
from sim.base.arrays import MOST_BUILT, IntArray, at_most
from sim.base.errors import GraphError, InputError
from sim.base.plugins import NOWHERE, Origin
from sim.base.units import round_half_up
from sim.explain.training import DROPPED, LAYER, TOKENS
from sim.graph.walks import Dag, least_first

# ----------------------------------------------------------------------------------------------------------
# The experts of one rank: their ops for the tokens that they receive, and the exchanges that bring these.
#
#     12 tokens arrive for two of four experts, where the graph has 8:
#
#     ffn.up    reads 8 x 10 B and w, 100 B       gpu0/ffn/dispatch   60 B to gpu0, 20 B to gpu1
#               makes 8 x 40 B, 80 ns             gpu0/ffn.up         reads 12 x 10 B and 2 w, 120 ns

EXPERTS: Final = "experts"
"""The communicator of all ranks of a group."""


class OneRank:
    """The program of one rank of a group: its experts, for the tokens they receive, and the exchanges.

    Parameters
    ----------
    rewrite : ExpertParallel
    layers : Layers
        Expert layers of a step.
    place : int
        Place of the rank in its group.
    """

    def __init__(self, rewrite: ExpertParallel, layers: Layers, place: int) -> None:
        self.step, self.layers, self.routing, self.place = layers.step, layers, rewrite.routing, place
        self._tensor_nbytes = layers.step.records.nbytes
        self.choices = rewrite.routing.choices
        self.tokens, self.token_bytes = self.choices // rewrite.top_k, rewrite.token_bytes
        self.stream = "all_to_all" if rewrite.overlap else COMPUTE
        self.held = rewrite.experts // rewrite.shard
        experts = range(place * self.held, (place + 1) * self.held)
        arriving = self.routing.sent.sum(axis=0).tolist()
        self.tokens_of: dict[int, int] = {x: arriving[x] for x in experts}
        """Expert → its tokens."""
        self.moved: dict[str, dict[str, str]] = {}
        """Layer → tensor → tensor that its experts read instead."""
        self.back: dict[str, str] = {}
        """Tensor of experts → tensor that other ops read instead."""
        self.made: dict[str, OpEntry] = {}
        self.copies: dict[str, Fraction] = {}

    def records(self) -> Records:
        """Return the graph of the rank, its ops in host order."""
        records, all_ops = self.step.records, (*self.step.work, *self.step.updates)
        turns = {record.name: float(turn) for turn, record in enumerate(all_ops)}
        for layer in self.layers.all:
            self._add_exchanges(layer, turns)
        for record in self.step.work:
            self._add_op(record)
        for record in self.step.updates:
            self._add_update(record)
        ops = _in_order(self.made, turns, self.layers)
        read = {tensor for record in ops.values() for tensor in record.reads}
        was_read = {tensor for record in records.ops.values() for tensor in record.reads}
        externals = {
            name: replace(external, nbytes=round_half_up(external.nbytes * self._n_copies(name)))
            for name, external in records.externals.items()
            if name in read or name not in was_read
        }
        return Records(records.name, ops, externals)

    # -- exchanges ----------------------------------------------------------------------------------------

    def _add_exchanges(self, layer: Layer, turns: dict[str, float]) -> None:
        """Add dispatch and combine, forward and backward."""
        sent, returned = self.routing.between[self.place], self.routing.between[:, self.place]
        records = self.step.records
        ops, name = records.ops, layer.name
        moved = self.moved[name] = {}
        ends = (
            ("dispatch", layer.forward, layer.enters, sent, True),
            ("combine", layer.forward, layer.leaves, returned, False),
            ("combine/grad", layer.backward, layer.grads_enter, sent, True),
            ("dispatch/grad", layer.backward, layer.grads_leave, returned, False),
        )
        for action, where, tensors, counts, inwards in ends:
            if not tensors:
                continue
            op = records.free(f"{name}/{action}")
            turns[op] = turns[where[0]] - 0.5 if inwards else turns[where[-1]] + 0.5
            token_nbytes = self._token_nbytes(layer, tensors)
            local = [t for t in tensors if self._is_local(layer, t)]
            reads, gives = (tensors, local) if inwards else (local, tensors)
            sizes = [self._arriving_bytes(layer, t) if inwards else self._tensor_nbytes(t) for t in gives]
            sends = {str(k): nbytes for k, nbytes in enumerate(_bytes_of_tokens(counts, token_nbytes))}
            record = OpEntry(op, "all_to_all", [(t, 0) for t in reads], [], tuple(sizes))
            record.phase, record.dtype = ops[where[0]].phase, ops[where[0]].dtype
            record.bytes_read = sum(sends.values())
            record.bytes_written = sum(_bytes_of_tokens(returned if inwards else sent, token_nbytes))
            record.attributes = {"communicator": EXPERTS, "dimension": "ep", "sends": sends}
            record.attributes["stream"] = self.stream
            if action == "dispatch":
                load = int(self.routing.arrived[self.place])
                record.attributes |= {LAYER: name, TOKENS: load, DROPPED: self.routing.dropped[self.place]}
            self.made[op] = record
            instead = {t: record.tensor(k) for k, t in enumerate(gives)}
            (moved if inwards else self.back).update(instead)

    def _token_nbytes(self, layer: Layer, tensors: Sequence[str]) -> Fraction:
        """Return the bytes per token of tensors that travel together."""
        if layer.expert and self.token_bytes is not None:
            return Fraction(self.token_bytes)
        return sum(map(self._tensor_nbytes, tensors)) / self._all_rows(layer)

    def _all_rows(self, layer: Layer) -> Fraction:
        """Return the number of tokens for which the graph has the experts compute."""
        if layer.expert:
            several = [t for t in layer.enters if len(layer.readers[t]) > 1]
            if several and self.token_bytes is None:
                message = f"{several[0]!r} is read by several experts of {layer.name!r}"
                raise GraphError(f"{message}; give token, the bytes of a token that travel")
            return Fraction(self.choices)
        if self.token_bytes is None:
            return Fraction(self.tokens)
        return Fraction(sum(self._tensor_nbytes(tensor) for tensor in layer.enters), self.token_bytes)

    def _is_local(self, layer: Layer, tensor: str) -> bool:
        """Return whether experts of this rank produce or read a tensor."""
        if not layer.expert:
            return True
        producer = self.step.records.producer(tensor)
        made_by = None if producer is None else layer.expert.get(producer.name)
        experts = layer.readers[tensor] if made_by is None else {made_by}
        return any(x in self.tokens_of for x in experts)

    # -- ops ------------------------------------------------------------------------------------------------

    def _add_op(self, record: OpEntry) -> None:
        """Add an op of the graph in this rank's form."""
        layer = self.layers.layer_of.get(record.name)
        if layer is None:
            self._add_other_op(record)
            return
        expert = layer.expert.get(record.name)
        if expert is not None and expert not in self.tokens_of:
            return
        moved, tokens = self.moved[layer.name], self._tokens(layer, expert)
        count = self.held if expert is None else 1
        used = sum(n > 0 for n in (self.tokens_of.values() if expert is None else [self.tokens_of[expert]]))
        read = sum(map(self._tensor_nbytes, self.layers.weights.intersection(record.reads)))
        outputs = record.tensors
        fixed = [t in self.layers.weights or t in self.layers.gradients for t in outputs]
        written = sum(n for n, weight in zip(record.outputs, fixed, strict=True) if weight)
        share = Fraction(count) if fixed and all(t in self.layers.weights for t in outputs) else tokens
        result = record.scale(share)
        result.inputs = [(moved.get(tensor, tensor), distance) for tensor, distance in record.inputs]
        result.outputs = tuple(
            n * count if weight else ceil(n * share) for n, weight in zip(record.outputs, fixed, strict=True)
        )
        result.bytes_read = self._bytes(record.bytes_read, read, used, share)
        result.bytes_written = self._bytes(record.bytes_written, written, used, share)
        if not share:
            result.duration_ns, result.duration_by_kind = 0, {}
        result.attributes = self._shape(record, layer, expert, gradient=bool(written))
        self.made[record.name] = result

    def _add_other_op(self, record: OpEntry) -> None:
        """Add an op that belongs to no expert, though it may sum their gradients."""
        parameter = self.layers.gradients.get(record.name)
        copies = Fraction(1) if parameter is None else self._n_copies(parameter)
        if copies:
            inputs = [(self.back.get(tensor, tensor), distance) for tensor, distance in record.inputs]
            outputs = tuple(round_half_up(n * copies) for n in record.outputs)
            self.made[record.name] = replace(record.scale(copies), inputs=inputs, outputs=outputs)

    def _add_update(self, record: OpEntry) -> None:
        """Add an update of the parameters on this rank."""
        externals = self.step.records.externals
        expert_names = self.layers.own.keys() & record.reads
        if not expert_names:
            self.made[record.name] = record
            return
        names = [parameter.name for parameter in self.step.parameters if parameter.update == record.name]
        total = sum(externals[name].nbytes for name in names)
        share = sum((externals[name].nbytes * self._n_copies(name) for name in names), Fraction(0)) / total
        gone = {t for t in expert_names if not self._n_copies(t)}
        gone |= {parameter.gradient for parameter in self.step.parameters if parameter.name in gone}
        for tensor in externals.keys() & record.reads:
            if tensor not in names:
                self.copies.setdefault(tensor, share)
        if share:
            inputs = [edge for edge in record.inputs if edge[0] not in gone]
            self.made[record.name] = replace(record.scale(share), inputs=inputs)

    def _n_copies(self, name: str) -> Fraction:
        """Return how many copies a rank has of one parameter, or state, of the graph."""
        if name not in self.copies and name in self.layers.own:
            expert = self.layers.own[name]
            experts = self.tokens_of if expert is None else self.tokens_of.keys() & {expert}
            self.copies[name] = Fraction(len(experts))
        return self.copies.setdefault(name, Fraction(1))

    def _tokens(self, layer: Layer, expert: int | None) -> Fraction:
        """Return the tokens of experts here / the tokens for which the graph has them compute."""
        if expert is None:
            return sum(self.tokens_of.values()) / self._all_rows(layer)
        return self.tokens_of[expert] * self.layers.experts / self._all_rows(layer)

    def _arriving_bytes(self, layer: Layer, tensor: str) -> int:
        """Return the bytes of a tensor that arrive at the experts of this rank."""
        nbytes = self._tensor_nbytes(tensor)
        if not layer.expert:
            return ceil(nbytes * self._tokens(layer, None))
        experts = sorted(x for x in layer.readers[tensor] if x in self.tokens_of)
        if len(layer.readers[tensor]) == 1:
            return ceil(nbytes * self._tokens(layer, experts[0]))
        return sum(self.tokens_of[x] for x in experts) * (self.token_bytes or 0)

    @staticmethod
    def _bytes(whole_: int, weights: int, used: int, share: Fraction) -> int:
        """Return the bytes of an op: weights of the experts that have tokens, and the rest by tokens."""
        return round_half_up(max(0, whole_ - weights) * share) + min(weights, whole_) * used

    def _shape(self, record: OpEntry, layer: Layer, expert: int | None, *, gradient: bool) -> dict[str, Any]:
        """Return the attributes of an op, with its token dimension (of m, n, k) scaled to this rank."""
        sizes = {key: record.attributes[key] for key in "mnk" if key in record.attributes}
        if "rows" in record.attributes:
            part = record.attributes["rows"] * self._tokens(layer, expert)
            return {**record.attributes, "rows": ceil(part)}
        if len(sizes) < 3 or "batch" in record.attributes:
            return record.attributes
        rows = self._all_rows(layer) / (1 if expert is None else self.layers.experts)
        usual = "k" if gradient else "m"
        fitting = [usual, *"mnk"]
        dimension = next((key for key in fitting if sizes[key] == rows), None)
        if dimension is None:
            message = f"op {record.name!r} has sizes {sizes}, and none of them is the {float(rows):g} tokens"
            raise GraphError(f"{message} that it is of").about(record.name)
        if not (tokens := self._tokens(layer, expert)):
            return {key: value for key, value in record.attributes.items() if key not in sizes}
        return {**record.attributes, dimension: ceil(sizes[dimension] * tokens)}


def _bytes_of_tokens(counts: IntArray, per_token: Fraction) -> list[int]:
    """Return the bytes of each count of tokens, rounded half up."""
    n, d = per_token.numerator, per_token.denominator
    return [(2 * n * count + d) // (2 * d) for count in counts.tolist()]


def _in_order(ops: dict[str, OpEntry], turns: dict[str, float], layers: Layers) -> dict[str, OpEntry]:
    """Return the ops in host order: by turn, but each after its inputs.

    Raises
    ------
    GraphError
        If experts depend on their own outputs.
    """
    records, names = Records("", ops, {}), [*ops]
    index = {name: k for k, name in enumerate(names)}
    dag = Dag([[] for _ in names], [[] for _ in names])
    for k, record in enumerate(ops.values()):
        record.after = [edge for edge in record.after if edge[0] in ops]
        for maker in records.makers(edge for edge in (*record.inputs, *record.after) if not edge[1]):
            dag.predecessors[k].append(index[maker.name])
            dag.successors[index[maker.name]].append(k)
    order = [names[k] for k in least_first(dag, [(turns[name], name) for name in names])]
    if len(order) < len(ops):
        stuck = next(name for name in ops if name not in order and name in layers.layer_of)
        layer = layers.layer_of[stuck].name
        message = f"the experts {layer!r} are left and entered again, so they are no layer"
        raise GraphError(f"{message}; let wrap tell layers apart").about(stuck)
    return {name: ops[name] for name in order}


_DENSE: Final = {"communicator": "data parallel", "dimension": f"ep-{DATA}"}
_COPIES: Final = {"communicator": "expert data parallel", "dimension": DATA}
"""Attributes of gradient sums: of all parameters but the experts', and of the experts'."""
_MOST_EXPERTS: Final = 100_000


class ExpertParallel(OnRanks):
    r"""Run a step on ranks that share the experts of its layers.

    Parameters
    ----------
    ranks : int or list of str
        Number of ranks, or their devices; a number means accelerators of the machine, in machine order.
    wrap : str
        Regular expression for the experts' ops: ops with the same match in their names are one layer,
        such as ``layer\d+\.ffn``. A group in it is the number of an expert: ``layer\d+\.experts\.(\d+)``.
    experts : int
        Number of experts per layer.
    tokens : int, optional
        Tokens of a rank; not needed if the routing is a table or a trace.
    top_k : int
        Number of experts per token.
    routing : str or mapping
        ``balanced``, ``one-hot`` or ``{one-hot: expert}``, ``{zipf: exponent}`` (with ``seed``: drawn),
        ``{random: seed}``, ``{tokens: [...]}`` (by expert, or by rank and expert), ``{trace: file}``.
    shard : int, optional
        Number of neighbouring ranks over which experts are divided, by default all.
    capacity_factor : float, optional
        Tokens that an expert accepts from a rank / an equal share of them; by default all.
    pad_to_capacity : bool
        Whether ranks pad what they send to the capacity.
    token_bytes : int, optional
        Bytes of a token in transit; by default the bytes that enter the experts / tokens (with numbered
        experts / (tokens · top_k)).
    overlap : bool
        Whether exchanges run on their own stream, beside ops that do not wait for them (shared experts).
    bucket_size : int
        Elements of a bucket of gradients.
    origin : Origin
        Location against which a trace's path is resolved.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("a layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("ffn", kind="matmul", inputs=["x", "w"], outputs=400, duration_ns=100)
    >>> routing = {"tokens": [3, 3, 1, 1]}
    >>> both = ExpertParallel(2, "ffn", experts=4, tokens=4, routing=routing).apply(b.build())
    >>> both.op_names[:3], both.duration_ns.tolist()
    (('gpu0/ffn/dispatch', 'gpu0/ffn', 'gpu0/ffn/combine'), [-1, 150, -1, -1, 50, -1])
    """

    def __init__(
        self,
        ranks: int | list[str],
        wrap: str,
        experts: int,
        tokens: int | None = None,
        top_k: int = 1,
        routing: str | dict[str, Any] = "balanced",
        shard: int | None = None,
        capacity_factor: float | None = None,
        pad_to_capacity: bool = False,
        token_bytes: int | None = None,
        overlap: bool = False,
        bucket_size: int = 40_000_000,
        origin: Origin = NOWHERE,
    ) -> None:
        name = "expert-parallel"
        self.ranks, self.wrap, self.overlap = Ranks.of(name, ranks), pattern_of(wrap).pattern, overlap
        self.experts = whole(name, "experts", experts, most=_MOST_EXPERTS)
        n = self.ranks.n or 1
        self.shard = n if shard is None else whole(name, "shard", shard)
        if n % self.shard:
            message = f"{n} ranks cannot be divided into groups of {self.shard}"
            raise InputError(f"{name}: shard: {message}", path=("shard",))
        self.copies = n // self.shard
        self.top_k = whole(name, "top_k", top_k)
        self.token_bytes = None if token_bytes is None else whole(name, "token_bytes", token_bytes)
        self.bucket_size = whole(name, "bucket_size", bucket_size)
        self.routing = route_tokens(
            routing,
            ranks=self.shard,
            experts=self.experts,
            tokens=None if tokens is None else whole(name, "tokens", tokens),
            top_k=self.top_k,
            capacity_factor=capacity_factor,
            pad=pad_to_capacity,
            origin=origin,
        )

    def rewrite_ranks(self, ranked: Ranked) -> Ranked:
        """Return the ranks that divide the experts."""
        at_most(MOST_BUILT, self.shard * len(ranked.programs[0]), "ops")
        ranked.room("expert-parallel", self.ranks)
        layers: dict[int, Layers] = {}

        def program(one: Graph, _: Grid, coords: Mapping[str, int]) -> Graph:
            if id(one) not in layers:
                layers[id(one)] = Layers(TrainingStep(one, forward=True), self.wrap, self.experts)
            return self._program(layers[id(one)], coords["ep"])

        sizes = {"ep": self.shard, "dp": self.copies}
        return ranked.multiply(sizes, program, names=self.ranks.names, varies=["ep"])

    def _program(self, layers: Layers, place: int) -> Graph:
        """Return the program of a rank, with gradients summed in buckets, those of experts separately."""
        expert_of, graph = layers.own, write(OneRank(self, layers, place).records())
        program = HostProgram(TrainingStep(graph, forward=True), "expert parallel")
        parameters = program.step.parameters[::-1]
        dense = [parameter for parameter in parameters if parameter.name not in expert_of]
        copied = [parameter for parameter in parameters if parameter.name in expert_of and self.copies > 1]
        buckets = [
            row for some in (dense, copied) for row in fill_buckets(some, "elements", [self.bucket_size])
        ]
        meets = [_COPIES if bucket[0].name in expert_of else _DENSE for bucket in buckets]
        reduce_in_buckets(program, buckets, strict=False, meets=meets)
        return program.graph()
