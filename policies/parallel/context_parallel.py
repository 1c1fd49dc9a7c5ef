"""Context parallelism: each rank has some tokens of every sequence; only attention needs other ranks' tokens.

::

    ring         compute   [ block 0 ][ block 1 ][ block 2 ]   block k: own queries, keys and values of rank
                 send/recv [ kv ]     [ kv ]                   i-k; c-1 exchanges, each beside a block

    backward     compute   [ block 0 ][ block 1 ][ block 2 ]   the other way round, own keys and values last
                 send/recv [ kv ]     [ kv, dkv ]    [ dkv ]   dkv: gradients so far, on their way home

    all-gather   [ gather k ][ gather v ][ attention ]         backward: gather both again, scatter both sums

    all-to-all   [ q ][ k ][ v ][ attention of some heads, all tokens ][ out ]    (Ulysses) four each way

All other ops treat each token separately, so that a rank has a share of their work and bytes. Parameters
are whole, and their gradients are sums over a rank's tokens: a rewrite for replicas, such as ddp
(``ranks: 1`` if there are no other replicas), sums them over the ranks of both.

A send and a recv are one group call. It waits for everything issued before it on the compute stream, in the
forward except for the last block (there the blocks of the forward are on two streams). Received gradients are
added to computed ones; merging two blocks' outputs with a softmax correction takes no time here. Attention
has to be one op; the rewrite ``attention`` makes it from products and a softmax.

Sources: TransformerEngine, attention/dot_product_attention/context_parallel.py (``AttnFuncWithCPAndKVP2P``,
``AttnFuncWithCPAndKVAllGather``, ``AttnFuncWithCPAndQKVOA2A``); Liu et al., "Ring Attention", arXiv
2310.01889; "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.2; Jacobs et al., "DeepSpeed Ulysses",
arXiv 2309.14509.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from policies.option_checks import one_of
from policies.parallel.accumulation import make_sum
from policies.parallel.rank_grid import Grid, OnRanks, Ranked, Ranks
from policies.parallel.training_step import COMPUTE, TrainingStep, exchange, on_compute, parts_of_gradients
from policies.rewrite.backward import OPTIMIZERS, elements
from policies.rewrite.records import Edge, OpEntry, Records, proportion, read, write
from sim import Graph
from sim.base.errors import GraphError
from sim.graph.graph import output_name

# ----------------------------------------------------------------------------------------------------------
# The part of a sequence on each rank, and its share of the attention.
#
#  4 ranks, 8 chunks, causal             rank 0 has 0 and 7, rank 1 has 1 and 6, ...: all have the same work
#
#  queries  0  #                         contiguous: rank 0 has 0 and 1, rank 3 has 6 and 7: seven times the
#           work 1  ##
#           ...
#           7  ########                  a chunk with itself counts half: s²/2 of s² pairs are not masked
#
# Sources: TransformerEngine, attention/dot_product_attention/context_parallel.py
# (``get_batch_on_this_cp_rank`` of Megatron-LM gives the chunks); "The Llama 3 Herd of Models", arXiv
# 2407.21783, section 3.3.2.


def attention_shares(ranks: int, rank: int, *, causal: bool, balanced: bool = True) -> list[Fraction]:
    """Return the share of all attention that `rank` computes with the keys and values of each rank.

    Parameters
    ----------
    ranks, rank : int
    causal : bool
        Whether a token sees only earlier tokens.
    balanced : bool
        Whether rank i has chunks i and 2 ranks - 1 - i of 2 ranks chunks, rather than neighbouring ones.

    Examples
    --------
    >>> [str(part) for part in attention_shares(2, 0, causal=True)]
    ['1/4', '1/4']
    >>> [str(part) for part in attention_shares(2, 0, causal=True, balanced=False)]
    ['1/4', '0']
    """
    n = 2 * ranks

    def chunks(index: int) -> tuple[int, int]:
        return (index, n - 1 - index) if balanced else (2 * index, 2 * index + 1)

    def pairs(query: int, key: int) -> Fraction:
        if not causal or key < query:
            return Fraction(1)
        return Fraction(1, 2) if key == query else Fraction(0)

    total = Fraction(n * n, 2 if causal else 1)
    return [
        sum((pairs(query, key) for query in chunks(rank) for key in chunks(other)), Fraction(0)) / total
        for other in range(ranks)
    ]


# ----------------------------------------------------------------------------------------------------------

GROUP: Final = "context parallel"
"""Name of the communicator, and prefix of the streams of sends and recvs."""

SHAPE: Final = ("batch", "seq_len", "kv_len", "heads", "kv_heads", "head_dim")


class Tokens(ABC):
    """Writes the program of a rank; override `forward` and `backward`, which write the attention."""

    def __init__(self, graph: Graph, c: int, rank: int, *, balanced: bool) -> None:
        self.old, self.c, self.rank, self.balanced = read(graph), c, rank, balanced
        self.records = Records(f"{graph.name} (context parallel)", {}, {})
        step = None if OPTIMIZERS.keys().isdisjoint(graph.kinds) else TrainingStep(graph)
        gradients = {} if step is None else {param.gradient: param.name for param in step.parameters}
        updates = set() if step is None else {update.name for update in step.updates}
        self.of_gradient = set(parts_of_gradients(self.old, gradients))
        """Gradients of parameters, and the parts that they are sums of."""
        self.last = ""
        """The last op issued on the compute stream."""
        self.on_tokens: set[str] = set()
        """Tensors of which the rank has only its tokens."""
        for name, external in self.old.externals.items():
            if not self.old.is_parameter(name) and external.nbytes >= c:
                self.on_tokens.add(name)
            self.records.externals[name] = replace(external, nbytes=self.nbytes(name))
        has_attention = False
        for record in self.old.in_order(graph):
            if record.name in updates:
                self.records.make(replace(record, inputs=self._update_inputs(record)))
            elif record.kind in ("attention", "attention_grad"):
                has_attention = True
                for k, nbytes in enumerate(record.outputs):
                    self._note(record.tensor(k), nbytes, record)
                write_op = self.forward if record.kind == "attention" else self.backward
                write_op(record)
            else:
                self._work(record)
        if not has_attention:
            message = "has no op of kind attention: nothing to exchange, so use data parallelism"
            raise GraphError(f"graph {graph.name!r} {message}")

    def _update_inputs(self, update: OpEntry) -> list[Edge]:
        """Return the inputs of an update; a gradient with a row per token is padded with zero rows."""
        inputs = list(update.inputs)
        for k, (tensor, distance) in enumerate(inputs):
            if tensor in self.on_tokens:
                name, outputs = self.records.free(f"{update.name}/pad"), [self.old.nbytes(tensor)]
                pad = update.like(name, "pad", [tensor], outputs, bytes_read=self.nbytes(tensor))
                pad.attributes = {"stream": COMPUTE}
                inputs[k] = (self.records.make(pad).name, distance)
        return inputs

    def _note(self, tensor: str, nbytes: int, record: OpEntry) -> None:
        if tensor not in self.of_gradient and elements(nbytes, record.dtype) >= self.c:
            self.on_tokens.add(tensor)

    def nbytes(self, tensor: str) -> int:
        """Return the bytes of a rank's part of a tensor of the graph."""
        nbytes = self.old.nbytes(tensor)
        return -(-nbytes // self.c) if tensor in self.on_tokens else nbytes

    def _work(self, record: OpEntry) -> None:
        """Write an op that treats each token separately."""
        tensors = list(dict.fromkeys(record.reads))
        if record.attributes.get("stream", COMPUTE) == COMPUTE:
            self.last = record.name
        if self.on_tokens.isdisjoint(tensors):
            self.records.make(replace(record, attributes=on_compute(record)))
            return
        produced = record.tensors
        if record.kind in ("matmul", "gemm") and record.phase in (None, "F"):
            (a, _), (b, _) = record.inputs[:2]
            if a in self.on_tokens and b in self.on_tokens:
                message = f"{record.kind} {record.name!r} multiplies two tensors that are no parameters"
                advice = "let the rewrite attention, which makes one op of it, come before training"
                raise GraphError(f"{message}; context-parallel needs attention as one op: {advice}")
        for tensor, nbytes in zip(produced, record.outputs, strict=True):
            self._note(tensor, nbytes, record)
        outputs = tuple(self.nbytes(tensor) for tensor in produced)
        read_ = sum(map(self.nbytes, tensors)), sum(map(self.old.nbytes, tensors))
        attributes = on_compute(record)
        for key in ("k" if record.name in self.of_gradient else "m", "rows"):
            if key in attributes:
                attributes[key] = -(-attributes[key] // self.c)
        if "nbytes" in attributes:
            attributes["nbytes"] = proportion(attributes["nbytes"], *read_)
        part = record.part(Fraction(1, self.c))
        part.outputs, part.attributes = outputs, attributes
        part.bytes_read = proportion(record.bytes_read, *read_)
        part.bytes_written = proportion(record.bytes_written, sum(outputs), sum(record.outputs))
        self.records.make(part)

    # -- attention ------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, a: OpEntry) -> None:
        """Write an attention."""

    @abstractmethod
    def backward(self, g: OpEntry) -> None:
        """Write the gradients of an attention."""

    def attention_of(self, g: OpEntry) -> tuple[OpEntry, str]:
        """Return the attention whose gradients an op computes, and the gradient of its output."""
        for maker in self.old.makers(g.inputs):
            if maker.kind == "attention":
                for name in g.reads:
                    if name not in (*maker.tensors, *maker.reads):
                        return maker, name
        raise GraphError(f"{g.name!r} does not read the attention whose gradients it makes").about(g.name)

    def shares(self, a: OpEntry) -> list[Fraction]:
        """Return this rank's shares of an attention, by the rank whose keys and values are used."""
        causal = bool(a.attributes.get("causal", a.attributes.get("is_causal")))
        return attention_shares(self.c, self.rank, causal=causal, balanced=self.balanced)

    def compute(
        self,
        op: OpEntry,
        name: str,
        reads: Sequence[str],
        outputs: Sequence[int],
        part: Fraction,
        **shape: int,
    ) -> str:
        """Write a part of an attention; only with a shape can a table of measurements find it."""
        self.last, inputs = name, list(dict.fromkeys(reads))
        others = {key: value for key, value in op.attributes.items() if key not in SHAPE}
        record = op.part(part)
        record.name, record.inputs, record.outputs = name, [(tensor, 0) for tensor in inputs], tuple(outputs)
        record.bytes_read, record.bytes_written = sum(map(self.records.nbytes, inputs)), sum(outputs)
        record.attributes = {**others, **shape, "stream": COMPUTE}
        return self.records.make(record).name

    def join(self, op: OpEntry, reads: Sequence[str]) -> None:
        """Write an op under the name of `op` whose outputs are adjacent parts."""
        self.last = op.name
        record = op.like(op.name, "concat", reads, [*map(self.nbytes, op.tensors)], after=op.after)
        record.bytes_written = record.duration_ns = 0
        record.attributes = {"stream": COMPUTE}
        self.records.make(record)

    def collective(
        self,
        op: OpEntry,
        name: str,
        kind: str,
        reads: Sequence[str],
        nbytes: int,
        outputs: Sequence[int],
        **more: Any,
    ) -> str:
        """Write a collective."""
        where = {"communicator": GROUP, "dimension": "cp", **more}
        self.records.make(exchange(op, name, kind, reads, nbytes, outputs, **where))
        return name


class Parts:
    """Queries, keys and values of an attention on a rank: separate tensors, or one for all."""

    def __init__(self, writer: Tokens, a: OpEntry) -> None:
        tensors = a.reads
        heads = a.attributes.get("heads", 1)
        kv_heads = a.attributes.get("kv_heads", heads)
        if len(tensors) >= 3:
            self.q, self.k, self.v = tensors[:3]
            self.sizes = tuple(writer.nbytes(tensor) for tensor in tensors[:3])
        else:
            self.q = self.k = self.v = tensors[0]
            nbytes = writer.nbytes(tensors[0])
            kv = nbytes * kv_heads // (heads + 2 * kv_heads)
            self.sizes = (nbytes - 2 * kv, kv, kv)
        self.kv_nbytes = self.sizes[1] + self.sizes[2]


# ----------------------------------------------------------------------------------------------------------
# Attention after a single exchange: gathering all keys and values, or trading heads for tokens (Ulysses).


class AllGather(Tokens):
    """Every rank gathers all keys and values and waits for them."""

    def gather(self, op: OpEntry, parts: Parts) -> list[str]:
        """Gather keys, then values."""
        sizes = [self.c * nbytes for nbytes in parts.sizes[1:]]
        return [
            self.collective(op, f"{op.name}/all_gather_{letter}", "all_gather", [tensor], size, [size])
            for letter, tensor, size in zip("kv", (parts.k, parts.v), sizes, strict=True)
        ]

    def forward(self, a: OpEntry) -> None:
        """Gather, then compute attention of the rank's queries."""
        parts = Parts(self, a)
        outputs = [self.nbytes(a.tensor(k)) for k in range(len(a.outputs))]
        self.compute(a, a.name, [parts.q, *self.gather(a, parts)], outputs, sum(self.shares(a), Fraction(0)))

    def backward(self, g: OpEntry) -> None:
        """Gather again, compute, and sum the gradients of keys and values over ranks."""
        a, dy = self.attention_of(g)
        parts = Parts(self, a)
        dq, *dkv = parts.sizes[0], *(self.c * nbytes for nbytes in parts.sizes[1:])
        reads = [dy, parts.q, *self.gather(g, parts), a.name]
        block = self.compute(g, f"{g.name}/block", reads, (dq, *dkv), sum(self.shares(a), Fraction(0)))
        outputs = [block]
        for k, (letter, nbytes) in enumerate(zip("kv", dkv, strict=True), start=1):
            name = f"{g.name}/reduce_scatter_{letter}"
            outputs.append(
                self.collective(g, name, "reduce_scatter", [f"{block}:{k}"], nbytes, [nbytes // self.c])
            )
        self.join(g, outputs)


class AllToAll(Tokens):
    """Ranks exchange tokens of all heads for all tokens of some heads, and back."""

    def heads(self, a: OpEntry) -> dict[str, int]:
        """Return the shape of a rank's attention over its heads."""
        shape: dict[str, int] = {key: a.attributes[key] for key in SHAPE if key in a.attributes}
        for key in ("heads", "kv_heads"):
            if shape.get(key, self.c) % self.c:
                message = f"{a.name!r} has {shape[key]} {key}, which {self.c} ranks cannot share"
                raise GraphError(message).about(a.name)
            if key in shape:
                shape[key] //= self.c
        return shape

    def exchange_tensor(self, op: OpEntry, label: str, tensor: str, nbytes: int, name: str = "") -> str:
        """Exchange one tensor."""
        name = name or f"{op.name}/all_to_all_{label}"
        return self.collective(op, name, "all_to_all", [tensor], nbytes, [nbytes])

    def exchange_all(self, op: OpEntry, tensors: Sequence[str], sizes: Sequence[int]) -> list[str]:
        """Exchange queries, keys and values, or their gradients."""
        return [self.exchange_tensor(op, *entry) for entry in zip("qkv", tensors, sizes, strict=True)]

    def forward(self, a: OpEntry) -> None:
        """Exchange queries, keys and values, compute some heads, and exchange the output."""
        qkv, shape = Parts(self, a), self.heads(a)
        reads = self.exchange_all(a, (qkv.q, qkv.k, qkv.v), qkv.sizes)
        nbytes = self.nbytes(a.name)
        output = self.compute(a, f"{a.name}/heads", reads, [nbytes], Fraction(1, self.c), **shape)
        self.exchange_tensor(a, "out", output, nbytes, a.name)

    def backward(self, g: OpEntry) -> None:
        """Do the same from the output's gradient to those of queries, keys and values."""
        a, dy = self.attention_of(g)
        qkv = Parts(self, a)
        reads = [self.exchange_tensor(g, "out", dy, self.nbytes(a.name))]
        reads += [f"{a.name}/all_to_all_{letter}" for letter in "qkv"]
        output = self.compute(
            g, f"{g.name}/heads", [*reads, f"{a.name}/heads"], qkv.sizes, Fraction(1, self.c), **self.heads(a)
        )
        self.join(g, self.exchange_all(g, [output_name(output, k) for k in range(3)], qkv.sizes))


# ----------------------------------------------------------------------------------------------------------
# Ring attention: keys and values go round, with a block of attention beside each exchange.


class Ring(Tokens):
    """Keys and values go round; in the backward their gradients follow them in the other direction."""

    def exchange(
        self, op: OpEntry, k: int, way: int, reads: Sequence[str], outputs: Sequence[int], after: str
    ) -> str:
        """Send to one neighbour and receive from the other after an op; return the received tensor."""
        sent, nbytes, group = list(dict.fromkeys(reads)), sum(outputs), f"{op.name}/{k}"
        producers = list(dict.fromkeys(maker.name for maker in self.records.makers((t, 0) for t in sent)))
        waits = [after] if after and after not in producers else []
        for kind, peer, read_, sizes, first in (
            ("send", way, sent, (), waits),
            ("recv", -way, [], outputs, [*producers, *waits]),
        ):
            where: dict[str, Any] = {"group": group, "peer": str((self.rank + peer) % self.c), "after": first}
            where["stream"] = f"{GROUP} {kind}"
            received = self.collective(op, f"{op.name}/{kind}{k}", kind, read_, nbytes, sizes, **where)
        return received

    def forward(self, a: OpEntry) -> None:
        """Write each block after the exchange for the next one, which waits for the block before last."""
        parts, shares = Parts(self, a), self.shares(a)
        outputs = [self.nbytes(a.tensor(k)) for k in range(len(a.outputs))]
        owners = [(self.rank - k) % self.c for k in range(self.c)]
        last = max(k for k, owner in enumerate(owners) if shares[owner])
        kv, before, issued = [parts.k, parts.v], list[str](), [self.last, self.last]
        for k, owner in enumerate(owners):
            received = self.exchange(a, k, 1, kv, [parts.kv_nbytes], issued[-2]) if k < self.c - 1 else ""
            if shares[owner]:
                name = a.name if k == last else f"{a.name}/block{k}"
                before = [self.compute(a, name, [parts.q, *kv, *before], outputs, shares[owner])]
            issued.append(self.last)
            kv = [received]

    def backward(self, g: OpEntry) -> None:
        """Write the blocks from the forward's last one on; gradients of keys and values return home."""
        a, dy = self.attention_of(g)
        parts, shares = Parts(self, a), self.shares(a)
        kv, dq, dkv = f"{a.name}/recv{self.c - 2}", list[str](), list[str]()
        for k in range(self.c):
            owner, n, keys_go_on = (self.rank + 1 + k) % self.c, parts.kv_nbytes, k < self.c - 1
            sent = [kv, *dkv] if keys_go_on else dkv
            sizes = [n, n] if keys_go_on and k else [n]
            received = self.exchange(g, k, -1, sent, sizes, self.last)
            local: list[str] = []
            if shares[owner]:
                reads = [dy, parts.q, kv, a.name, *dq]
                block = self.compute(g, f"{g.name}/block{k}", reads, (parts.sizes[0], n), shares[owner])
                dq, local = [block], [f"{block}:1"]
            kv = received
            dkv = [*local, f"{received}:1" if keys_go_on else received] if k else local
            if len(dkv) > 1:
                self.last, where = f"{g.name}/sum{k}", {"stream": COMPUTE}
                sum_ = make_sum(g, self.last, dkv, n, elements(n, g.dtype), after=g.after, attributes=where)
                dkv = [self.records.make(sum_).name]
        self.join(g, [*dq, *dkv])


_METHODS: Final[Mapping[str, type[Tokens]]] = {"ring": Ring, "all-gather": AllGather, "all-to-all": AllToAll}
_PARTITIONS: Final = ("balanced", "contiguous")


class ContextParallel(OnRanks):
    """Split the tokens of every sequence over ranks.

    Parameters
    ----------
    ranks : int or list of str
        Number of ranks, or their devices; a number means accelerators of the machine, in machine order.
    context : {"ring", "all-gather", "all-to-all"}
        Method by which attention gets other ranks' tokens.
    partition : {"balanced", "contiguous"}
        Tokens of a rank: one early and one late chunk, or neighbouring tokens.

    Raises
    ------
    InputError
        If `context` or `partition` is any other word.
    GraphError
        If there is no op of kind attention, a product of two tensors that are not parameters, heads that the
        ranks cannot divide evenly, or there are already stages or replicas (when applied).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("attention")
    >>> names = [b.input(name, 800) for name in "qkv"]
    >>> _ = b.op("a", kind="attention", inputs=names, outputs=800, flops=8000)
    >>> ring = ContextParallel(2).apply(b.build())
    >>> ring.op_names[:4], ring.flops[:4].tolist()
    (('gpu0/a/send0', 'gpu0/a/recv0', 'gpu0/a/block0', 'gpu0/a'), [0, 0, 2000, 2000])
    """

    def __init__(self, ranks: int | list[str], context: str = "ring", partition: str = "balanced") -> None:
        self.ranks = Ranks.of("context-parallel", ranks)
        self.context = one_of("context-parallel", "context", context, tuple(_METHODS))
        self.balanced = one_of("context-parallel", "partition", partition, _PARTITIONS) == "balanced"

    def rewrite_ranks(self, ranked: Ranked) -> Ranked:
        """Return the ranks that split sequences."""
        ranked.refuse(["dp", "pp"], "context-parallel comes before the rewrites for stages and replicas")
        c = ranked.room("context-parallel", self.ranks)
        return ranked.multiply({"cp": c}, self._program, names=self.ranks.names, varies=["cp"])

    def _program(self, graph: Graph, grid: Grid, coords: Mapping[str, int]) -> Graph:
        """Return the program of one rank."""
        c = grid.sizes["cp"]
        if c == 1:
            return graph
        return write(_METHODS[self.context](graph, c, coords["cp"], balanced=self.balanced).records)
