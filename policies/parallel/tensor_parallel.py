"""Megatron-LM's tensor parallelism: every rank has a part of each weight, and ranks sum the outputs of rows.

::

    forward    x ─► column ─► local ─► row ─► all_reduce ─► + x ─►      two pairs per layer: two sums
    backward       all_reduce ◄─ column ◄─ local ◄─ row ◄─                                 and two

    with sequence parallelism tensors between pairs are split along the sequence: a sum becomes two halves

    forward    x ─► all_gather ─► column ─► local ─► row ─► reduce_scatter ─► + x ─►
    backward       reduce_scatter ◄─ column ◄─ local ◄─ row ◄─ all_gather ◄─
                   all_gather of x again, for the gradient of the column's weight

A tensor on a rank is *whole*; *split* by columns or heads; a *part* of a sum; or a *sequence*, some of its
tokens. Each op has required input states and an output state, and communication is inserted where they
differ. In the forward it blocks the rank; in the backward of a column it runs beside the gradient of its
weight.

An embedding's table is split by words, and ranks sum their results. So is the head, whose loss needs three
sums of one number per token (``vocab_parallel_cross_entropy``). Gradients of whole parameters that come from
only some tokens or heads are summed at the end, in one all_reduce (``finalize_model_grads``).

Sources: Shoeybi et al., arXiv 1909.08053; Korthikanti et al., arXiv 2205.05198;
megatron/core/tensor_parallel: layers.py (``LinearWithGradAccumulationAndAsyncCommunication``,
``VocabParallelEmbedding``), mappings.py, cross_entropy.py; megatron/core/distributed/finalize_model_grads.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import Final

from policies.option_checks import one_of, pattern_of
from policies.parallel.rank_grid import Grid, OnRanks, Ranked, Ranks
from policies.parallel.tensor_plan import LOSSES, PRODUCTS, TensorPlan, data_and_weight
from policies.parallel.training_step import COMPUTE, LINEAR, TrainingStep, exchange, parts_of_gradients
from policies.rewrite.backward import OPTIMIZERS, elements
from policies.rewrite.records import OpEntry, Records, free_name, proportion, read, write
from sim import Graph
from sim.base.errors import GraphError

# ----------------------------------------------------------------------------------------------------------
# States of a tensor on a tensor-parallel rank, and the exchanges that change one into another.
#
#     part      ──all_reduce──► whole          part ──reduce_scatter──► sequence       (sequence parallelism)
#     sequence  ──all_gather──► whole          split ──all_gather──► whole
#
# A *whole* tensor is the same on all ranks; of a *split* one each rank has some columns or heads; *parts* add
# up to the tensor; of a *sequence* each rank has some tokens.

WHOLE, SPLIT, PART, SEQUENCE = "whole", "split", "part", "sequence"

STREAM: Final = "tensor parallel"
"""The communicator, and the stream of communication beside the gradient of a weight."""


# ----------------------------------------------------------------------------------------------------------
# The program of a tensor-parallel rank, op by op: the required state of inputs, and the state of outputs.

_SUMS: Final = frozenset({"add_n", "add"})


_ON_TOKENS = """
    relu relu6 sigmoid tanh gelu silu elu leaky_relu softplus exp log sqrt rsqrt reciprocal square neg
    abs erf mish hard_swish sub mul div bias_add dropout copy layer_norm rms_norm flatten squeeze
    unsqueeze slice strided_slice split concat pack unpack pad expand relu_grad gelu_grad silu_grad
    sigmoid_grad tanh_grad layer_norm_grad rms_norm_grad bias_add_grad reduce_sum rotary_embedding
    loss_grad sparse_softmax_cross_entropy softmax_cross_entropy read_variable
"""

_TOKENWISE: Final = LINEAR | frozenset(_ON_TOKENS.split())
"""Kinds that treat each token separately, or sum over tokens for the gradient of a parameter."""


class RankWriter:
    """Writes the program of a rank, op by op: tracks the state of each tensor, and adds the exchanges.

    Parameters
    ----------
    plan : TensorPlan
        What is split, of the program of one device.
    step : TrainingStep or None
        That program, if it trains.
    sequence : bool
        Whether sums leave each rank only some tokens.

    Attributes
    ----------
    records : Records
        The program of a rank so far.
    state : dict of str to str
        Tensor of the one device → its state on the rank.
    moved : dict of str to str
        Tensor → its name after its parts were summed.
    last : str
        The last op issued on the compute stream.
    """

    def __init__(self, plan: TensorPlan, step: TrainingStep | None, sequence: bool) -> None:
        self.plan, self.old, self.t, self.sequence = plan, plan.records, plan.t, sequence
        suffix = "tensor parallel" + (", sequence parallel" if sequence else "")
        self.records = Records(f"{self.old.name} ({suffix})", {}, {})
        self.state: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.gathered: dict[tuple[str, bool], str] = {}
        self.last = ""
        for name, external in self.old.externals.items():
            self.state[name] = SPLIT if name in plan.split else WHOLE
            nbytes = self.share(external.nbytes) if name in plan.split else external.nbytes
            self.records.externals[name] = replace(external, nbytes=nbytes)
        ops = plan.order
        self.parameters = [] if step is None else step.parameters
        parameter_of = {parameter.gradient: parameter.name for parameter in self.parameters}
        self.gradient_of = parts_of_gradients(self.old, parameter_of)
        """Gradient, or part of its sum → parameter."""
        names = {parameter.update for parameter in self.parameters}
        columns = [plan.product[name] for name, role in plan.role.items() if role != "row"]
        self.input_of = {weight: data for data, weight in columns}
        lookups = [record for record in ops if record.kind == "gather" and record.reads[0] in plan.split]
        self.looked_up = {tensor for record in lookups for tensor in record.reads}
        for record in ops:
            if record.name not in names:
                self.issue(record)
        self._finish([record for record in ops if record.name in names])

    # -- exchanges --------------------------------------------------------------------------------

    def share(self, nbytes: int) -> int:
        """Return the bytes of a rank's part."""
        return -(-nbytes // self.t)

    def state_of(self, tensor: str) -> str:
        """Return the state of a tensor on this rank; whole unless an op here has set it."""
        return self.state.get(tensor, WHOLE)

    def free(self, name: str) -> str:
        """Return a free name for an op that the one device does not have; see `free_name`."""
        return free_name(name, self.records.ops, self.old.ops, self.old.externals)

    def reduce(self, tensor: str) -> str:
        """Sum the parts of a tensor, completely or, with sequence parallelism, for some tokens."""
        producer, nbytes = self.old.maker(tensor), self.old.nbytes(tensor)
        positions = producer.kind == "gather" and len(producer.inputs) > 2  # positions are added to the whole
        scatter = self.sequence and not positions
        kind = "reduce_scatter" if scatter else "all_reduce"
        size = self.share(nbytes) if scatter else nbytes
        beside = producer.phase not in (None, "F")
        name = f"{tensor}/{kind}"
        self.moved[tensor] = self.collective(name, kind, tensor, nbytes, size, producer, beside=beside)
        self.state[tensor] = SEQUENCE if self.sequence else WHOLE
        if self.sequence and positions:  # copy some tokens (``scatter_to_sequence_parallel_region``)
            name, size = self.free(f"{tensor}/scatter"), self.share(nbytes)
            record = producer.like(name, "slice", [self.moved[tensor]], [size], bytes_read=size)
            record.attributes = {"stream": COMPUTE}
            self.records.ops[name] = record
            self.moved[tensor] = name
        return self.moved[tensor]

    def whole(self, tensor: str, *, backward: bool, beside: bool = False) -> str:
        """Return the whole tensor, gathered if necessary."""
        if self.state_of(tensor) == PART:
            self.reduce(tensor)
        source = self.moved.get(tensor, tensor)
        if self.state_of(tensor) == WHOLE:
            return source
        if (tensor, backward) not in self.gathered:
            producer = self.old.maker(tensor)
            again = backward and producer.phase in (None, "F")
            name = f"{tensor}/all_gather{'_again' if again else ''}"
            nbytes = self.old.nbytes(tensor)
            op = replace(producer, phase="I") if again else producer
            self.gathered[tensor, backward] = self.collective(
                name, "all_gather", source, nbytes, nbytes, op, beside=beside
            )
        return self.gathered[tensor, backward]

    def collective(
        self, name: str, kind: str, source: str, nbytes: int, size: int, op: OpEntry, *, beside: bool = False
    ) -> str:
        """Write a collective; `beside`: on a stream that waits only for ops issued before."""
        name = self.free(name)
        after = [self.last] if beside and self.last != source else []
        where = {"communicator": STREAM, "dimension": "tp", "stream": STREAM if beside else COMPUTE}
        record = exchange(op, name, kind, [source], nbytes, [size], after=after, **where)
        record.bytes_read = min(nbytes, self.records.nbytes(source))
        self.records.ops[name] = record
        return name

    # -- ops ------------------------------------------------------------------------------------

    def issue(self, record: OpEntry) -> None:
        """Write an op of forward or backward, with the communication before and after it."""
        tensors, pair = record.reads, data_and_weight(self.old, record)
        states, all_whole = {self.state_of(tensor) for tensor in tensors}, dict.fromkeys(tensors, WHOLE)
        if record.kind in PRODUCTS and pair is not None and pair[1] in self.plan.split:
            self._with_weight(record, *pair)
        elif record.kind in PRODUCTS and pair is None and SPLIT not in states:
            # the gradient of a whole weight, or a product of two whole tensors
            tokens = states == {SEQUENCE} and record.name in self.gradient_of
            self.write(record, {} if tokens else all_whole, PART if tokens else WHOLE)
        elif record.kind == "gather" and self.state_of(tensors[0]) == SPLIT:
            self.write(record, {}, PART, share=False)
        elif self.gradient_of.get(record.name) in self.looked_up and record.kind not in (*PRODUCTS, *LINEAR):
            is_split = self.gradient_of[record.name] in self.plan.split
            self.write(record, all_whole, SPLIT if is_split else WHOLE)
        elif SPLIT in states:
            if record.kind in LOSSES:
                self._loss(record, tensors[0])
            self.write(record, {tensor: WHOLE for tensor in tensors if self.state_of(tensor) != SPLIT}, SPLIT)
        elif states == {PART} and record.kind in LINEAR:
            self.write(record, {}, PART, share=False)
        elif SEQUENCE in states or (PART in states and self.sequence):
            fits = record.kind in _TOKENWISE or (record.kind in PRODUCTS and pair is not None)
            if fits or record.kind == "embedding_grad":
                self._sum_parts(record)
                parts = [tensor for tensor in tensors if self.state_of(tensor) == PART]
                self.write(record, dict.fromkeys(parts, SEQUENCE), SEQUENCE)
            else:
                self.write(record, all_whole, WHOLE)
        else:
            self._sum_parts(record)
            self.write(record, all_whole, WHOLE)

    def _with_weight(self, record: OpEntry, data: str, weight: str) -> None:
        """Write a product with a weight that is split over ranks."""
        role = self.plan.role.get(record.name)
        if role is not None:
            needs = SPLIT if role == "row" else WHOLE
            self.write(record, {data: needs}, PART if role == "row" else SPLIT)
            return
        x = self.input_of.get(weight)
        if self.state_of(data) == SPLIT:  # the gradient of a column's input
            if x is not None and self.state_of(x) == SEQUENCE:
                self.whole(x, backward=True, beside=True)
            self.write(record, {}, PART)
        else:
            self.write(record, {data: WHOLE}, SPLIT)

    def _sum_parts(self, record: OpEntry) -> None:
        """Add up parts before summing over ranks, if an op adds them to tensors that are not parts."""
        parts = [tensor for tensor in record.reads if self.state_of(tensor) == PART]
        if record.kind in _SUMS and 1 < len(parts) < len(record.inputs):
            nbytes = self.old.nbytes(parts[0])
            name = self.free(f"{record.name}/parts")
            sum_ = OpEntry(name, "add_n", [(part, 0) for part in parts], [], (nbytes,), phase=record.phase)
            sum_.flops = (len(parts) - 1) * elements(nbytes, record.dtype)
            sum_.bytes_read, sum_.bytes_written, sum_.dtype = len(parts) * nbytes, nbytes, record.dtype
            sum_.attributes = {"stream": COMPUTE}
            self.records.ops[name] = sum_
            self.old.ops[name] = replace(sum_)
            self.state[name] = PART
            self.reduce(name)
            record.inputs = [
                (name if tensor == parts[0] else tensor, d)
                for tensor, d in record.inputs
                if tensor not in parts[1:]
            ]

    def _loss(self, record: OpEntry, logits: str) -> None:
        """Sum the maximum, the predicted logit and the softmax denominator of each token."""
        maker = self.old.producer(logits)
        m = maker.attributes.get("m") if maker is not None else None
        if m is None:
            m = max(1, elements(self.old.nbytes(record.inputs[1][0]), "fp64"))  # labels are int64
        for quantity in ("maximum", "predicted", "denominator"):
            self.collective(f"{record.name}/{quantity}", "all_reduce", logits, 4 * m, 4 * m, record)

    def write(self, record: OpEntry, needs: Mapping[str, str], makes: str, *, share: bool = True) -> None:
        """Write an op with required input states and an output state; `share`: does a share of the work."""
        inputs = []
        for tensor, distance in record.inputs:
            source = self.moved.get(tensor, tensor)
            if needs.get(tensor) == WHOLE:
                source = self.whole(tensor, backward=record.phase not in (None, "F"))
            elif tensor in needs and self.state_of(tensor) == PART:
                source = self.reduce(tensor)
            inputs.append((source, distance))
        share = share and makes != WHOLE
        outputs, states = [], []
        for k, nbytes in enumerate(record.outputs):
            state = makes
            parameter = self.gradient_of.get(record.tensor(k))
            if parameter is not None and makes in (SPLIT, SEQUENCE):
                state = SPLIT if parameter in self.plan.split else PART
            if record.kind in LOSSES and k == 0:
                state = WHOLE if makes == SPLIT else makes
            states.append(state)
            outputs.append(self.share(nbytes) if state in (SPLIT, SEQUENCE) else nbytes)
        read_ = {t: self._size(s, makes, t) for (s, _), (t, _) in zip(inputs, record.inputs, strict=True)}
        now, before = sum(read_.values()), sum(map(self.old.nbytes, read_))
        n = self.t if share else 1
        attributes = self._attributes(record, makes) if share else {**record.attributes}
        if makes == WHOLE:
            attributes["repeated"] = self.t
        self.records.ops[record.name] = replace(
            record.part(Fraction(1, n)),
            inputs=inputs,
            after=[*record.after],
            outputs=tuple(outputs),
            flops=-(-record.flops // n),
            bytes_read=proportion(record.bytes_read, now, before) if share else record.bytes_read,
            bytes_written=proportion(record.bytes_written, sum(outputs), sum(record.outputs)),
            attributes=attributes | {"stream": COMPUTE},
        )
        self.last = record.name
        for k, state in enumerate(states):
            tensor = record.tensor(k)
            self.state[tensor] = state
            if state == PART and tensor not in self.gradient_of and not self._added_up(tensor):
                self.reduce(tensor)

    def _size(self, source: str, makes: str, tensor: str) -> int:
        """Return the bytes that an op reads of a tensor; if it outputs some tokens, only theirs."""
        nbytes = self.records.nbytes(source)
        is_data = tensor not in self.old.externals or tensor not in self.plan.trained
        sliced = makes == SEQUENCE and self.state_of(tensor) == WHOLE and is_data
        return self.share(nbytes) if sliced else nbytes

    def _added_up(self, tensor: str) -> bool:
        """Return whether only an op that adds them to others reads the parts of a sum."""
        readers = self.plan.readers.get(tensor, [])
        return bool(readers) and all(reader.kind in _SUMS and reader.phase == "B" for reader in readers)

    def _attributes(self, record: OpEntry, makes: str) -> dict[str, object]:
        """Return the shape of a rank's part, by which a table of measurements is searched."""
        shape = dict(record.attributes)
        usual = {SPLIT: ("heads", "kv_heads", "columns"), SEQUENCE: ("rows",)}
        names: tuple[str, ...] = usual.get(makes, ())
        by_batch = "batch" in shape if record.kind in PRODUCTS else record.kind in ("softmax", "softmax_grad")
        if makes == SPLIT and by_batch:  # for scores, which are separate for each head
            names = ("batch", "rows")
        elif record.kind in PRODUCTS and "batch" not in shape:
            split = self.old.makers((tensor, 0) for tensor in record.reads if self.state_of(tensor) == SPLIT)
            of_x = record.name in self.gradient_of and any(p.phase in (None, "F") for p in split)
            names = {SEQUENCE: ("m",), PART: ("k",)}.get(makes, ("m",) if of_x else ("n",))
        for name in names:
            if name in shape:
                shape[name] = -(-shape[name] // self.t)
        return shape

    def _finish(self, updates: Sequence[OpEntry]) -> None:
        """Sum all partial gradients in one all_reduce, then write the updates."""
        read_ = dict.fromkeys(chain.from_iterable(update.reads for update in updates))
        for tensor in read_:
            if self.state_of(tensor) == SEQUENCE:  # the gradient of a parameter with a row per token
                self.moved[tensor] = self.whole(tensor, backward=True)
        parts = [tensor for tensor in read_ if self.state_of(tensor) == PART]
        if parts:
            sizes = [self.old.nbytes(tensor) for tensor in parts]
            total = sum(sizes)
            name = self.collective("gradients/all_reduce", "all_reduce", parts[0], total, total, updates[0])
            record = self.records.ops[name]
            record.inputs, record.outputs = [(part, 0) for part in parts], tuple(sizes)
            record.bytes_read = total
            self.moved |= {part: record.tensor(k) for k, part in enumerate(parts)}
        for update in updates:
            weights = [parameter.name for parameter in self.parameters if parameter.update == update.name]
            old = sum(self.old.externals[t].nbytes for t in weights)
            new = sum(self.records.externals[t].nbytes for t in weights)
            for tensor in update.reads:
                if tensor in self.old.externals and tensor not in weights:
                    state = self.old.externals[tensor]
                    self.records.externals[tensor] = replace(state, nbytes=proportion(state.nbytes, new, old))
            self.records.ops[update.name] = replace(
                update.scale(Fraction(new, old) if old else Fraction(1)),
                inputs=[(self.moved.get(tensor, tensor), d) for tensor, d in update.inputs],
                outputs=tuple(proportion(nbytes, new, old) for nbytes in update.outputs),
                attributes={**update.attributes, "stream": COMPUTE},
            )


class WholeWarning(UserWarning):
    """Something stays whole on every tensor-parallel rank."""


class TensorParallel(OnRanks):
    """Split the layers of a forward or a training step over ranks.

    Parameters
    ----------
    ranks : int or list of str
        Number of ranks, or their devices; a number means accelerators of the machine, in machine order.
    sequence_parallel : bool
        Whether tensors not split by columns are split along the sequence.
    split : mapping of str to str
        Regular expression for names of products with a weight → "column" or "row"; by default inferred.
    vocabulary : bool
        Whether embeddings and head are split by words.

    Raises
    ------
    InputError
        If patterns match nothing, or a product cannot be split as they say (when applied).
    GraphError
        If nothing can be split, or the graph already has several ranks (when applied).

    Warns
    -----
    WholeWarning
        If a product with a weight, or an embedding, stays whole.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two layers")
    >>> _ = b.input("x", 400), b.parameter("w", 800), b.parameter("v", 800)
    >>> _ = b.op("up", kind="matmul", inputs=["x", "w"], outputs=800, flops=1000)
    >>> _ = b.op("down", kind="matmul", inputs=["up", "v"], outputs=400, flops=1000)
    >>> split = TensorParallel(2).apply(b.build())
    >>> split.op_names[:3], split.flops[:3].tolist()
    (('gpu0/up', 'gpu0/down', 'gpu0/down/all_reduce'), [500, 500, 0])
    """

    def __init__(
        self,
        ranks: int | list[str],
        sequence_parallel: bool = False,
        split: Mapping[str, str] | None = None,
        vocabulary: bool = True,
    ) -> None:
        self.ranks = Ranks.of("tensor-parallel", ranks)
        self.sequence, self.vocabulary = sequence_parallel, vocabulary
        self.split = split or {}
        for pattern, role in self.split.items():
            pattern_of(pattern, "split")
            one_of("tensor-parallel", f"split.{pattern}", role, ("column", "row"))

    def rewrite_ranks(self, ranked: Ranked) -> Ranked:
        """Return the ranks that split the layers."""
        ranked.refuse(ranked.grid.sizes, "tensor-parallel comes before the other rewrites for ranks")
        t = ranked.room("tensor-parallel", self.ranks)
        return ranked.multiply({"tp": t}, self._program, names=self.ranks.names)

    def _program(self, graph: Graph, grid: Grid, coords: Mapping[str, int]) -> Graph:
        """Return the program of one rank."""
        records, t = read(graph), grid.sizes["tp"]
        step = None if OPTIMIZERS.keys().isdisjoint(graph.kinds) else TrainingStep(graph)
        plan = TensorPlan(records, records.in_order(graph), t, self.split, self.vocabulary)
        if not plan.role and not plan.split:
            raise GraphError(f"graph {graph.name!r} has nothing that could be split{_list_whole(plan.whole)}")
        if plan.whole:
            message = f"tensor-parallel: {len(plan.whole)} of {len(plan.product)} products stay whole"
            warnings.warn(WholeWarning(message + _list_whole(plan.whole)), stacklevel=2)
        return write(RankWriter(plan, step, self.sequence and t > 1).records)


def _list_whole(reasons: Mapping[str, str]) -> str:
    examples = [f"{name!r}: {reason}" for name, reason in list(reasons.items())[:3]]
    return f" ({'; '.join(examples)}{'; ...' if len(reasons) > 3 else ''})" if examples else ""
