"""Context parallelism: each rank has some tokens of every sequence; only attention needs other ranks' tokens.

::

    ring         compute   [ block 0 ][ block 1 ][ block 2 ]      block k: own queries, keys and values of
                 rank i-k send/recv [ kv ]     [ kv ]                      c-1 exchanges, each beside a block

    backward     compute   [ block 0 ][ block 1 ][ block 2 ]      the other way round, own keys and values
                 last send/recv [ kv ]   [ kv, dkv ] [ dkv ]           dkv: gradients so far, on their way
                 home

    all-gather   [ gather k ][ gather v ][ attention ]            backward: gather both again, then scatter
    both sums all-to-all   [ q ][ k ][ v ][ attention of some heads, all tokens ][ out ]       four each way
    (Ulysses)

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

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from policies.option_checks import one_of
from policies.parallel.accumulation import added
from policies.parallel.context_tokens import GROUP, SHAPE, Parts, Tokens
from policies.parallel.program import COMPUTE
from policies.parallel.rank_grid import Grid, OnRanks, Ranked
from policies.parallel.ranks import Ranks
from policies.rewrite.backward import elements
from policies.rewrite.records import OpEntry, write
from sim import Graph
from sim.base.errors import GraphError
from sim.graph.graph import output_name

# ----------------------------------------------------------------------------------------------------------
# Attention after a single exchange: gathering all keys and values, or trading heads for tokens (Ulysses).


class AllGather(Tokens):
    """Every rank gathers all keys and values and waits for them."""

    def gathered(self, of: OpEntry, parts: Parts) -> list[str]:
        """Gather keys, then values."""
        sizes = [self.c * nbytes for nbytes in parts.sizes[1:]]
        return [
            self.collective(of, f"{of.name}/all_gather_{what}", "all_gather", [tensor], size, [size])
            for what, tensor, size in zip("kv", (parts.k, parts.v), sizes, strict=True)
        ]

    def forward(self, a: OpEntry) -> None:
        """Gather, then compute attention of the rank's queries."""
        of = Parts(self, a)
        outputs = [self.nbytes(a.tensor(k)) for k in range(len(a.outputs))]
        self.compute(a, a.name, [of.q, *self.gathered(a, of)], outputs, sum(self.shares(a), Fraction(0)))

    def backward(self, g: OpEntry) -> None:
        """Gather again, compute, and sum the gradients of keys and values over ranks."""
        a, dy = self.attention_of(g)
        of = Parts(self, a)
        dq, *whole = of.sizes[0], *(self.c * nbytes for nbytes in of.sizes[1:])
        reads = [dy, of.q, *self.gathered(g, of), a.name]
        made = self.compute(g, f"{g.name}/block", reads, (dq, *whole), sum(self.shares(a), Fraction(0)))
        kept = [made]
        for k, (what, nbytes) in enumerate(zip("kv", whole, strict=True), start=1):
            name = f"{g.name}/reduce_scatter_{what}"
            kept.append(
                self.collective(g, name, "reduce_scatter", [f"{made}:{k}"], nbytes, [nbytes // self.c])
            )
        self.joined(g, kept)


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

    def moved(self, of: OpEntry, what: str, tensor: str, nbytes: int, name: str = "") -> str:
        """Exchange one tensor."""
        name = name or f"{of.name}/all_to_all_{what}"
        return self.collective(of, name, "all_to_all", [tensor], nbytes, [nbytes])

    def moved_all(self, of: OpEntry, tensors: Sequence[str], sizes: Sequence[int]) -> list[str]:
        """Exchange queries, keys and values, or their gradients."""
        return [self.moved(of, *each) for each in zip("qkv", tensors, sizes, strict=True)]

    def forward(self, a: OpEntry) -> None:
        """Exchange queries, keys and values, compute some heads, and exchange the output."""
        of, shape = Parts(self, a), self.heads(a)
        reads = self.moved_all(a, (of.q, of.k, of.v), of.sizes)
        out = self.nbytes(a.name)
        made = self.compute(a, f"{a.name}/heads", reads, [out], Fraction(1, self.c), **shape)
        self.moved(a, "out", made, out, a.name)

    def backward(self, g: OpEntry) -> None:
        """Do the same from the output's gradient to those of queries, keys and values."""
        a, dy = self.attention_of(g)
        of = Parts(self, a)
        reads = [self.moved(g, "out", dy, self.nbytes(a.name))]
        reads += [f"{a.name}/all_to_all_{what}" for what in "qkv"]
        made = self.compute(
            g, f"{g.name}/heads", [*reads, f"{a.name}/heads"], of.sizes, Fraction(1, self.c), **self.heads(a)
        )
        self.joined(g, self.moved_all(g, [output_name(made, k) for k in range(3)], of.sizes))


# ----------------------------------------------------------------------------------------------------------
# Ring attention: keys and values go round, with a block of attention beside each exchange.


class Ring(Tokens):
    """Keys and values go round; in the backward their gradients follow them in the other direction."""

    def exchange(
        self, of: OpEntry, k: int, way: int, reads: Sequence[str], outputs: Sequence[int], after: str
    ) -> str:
        """Send to one neighbour and receive from the other after an op; return the received tensor."""
        sent = list(dict.fromkeys(reads))
        own = [maker.name for maker in self.records.makers((tensor, 0) for tensor in sent)]
        waits = list(dict.fromkeys(own + [after] * bool(after)))
        nbytes, names = sum(outputs), (f"{of.name}/send{k}", f"{of.name}/recv{k}")
        facts: dict[str, Any] = {"group": f"{of.name}/{k}"}
        for name, peer, read_, made in zip(names, (way, -way), (sent, []), ((), outputs), strict=True):
            kind = "recv" if peer == -way else "send"
            facts |= {"peer": str((self.rank + peer) % self.c), "stream": f"{GROUP} {kind}"}
            facts["after"] = [one for one in waits if kind == "recv" or one not in own]
            self.collective(of, name, kind, read_, nbytes, made, **facts)
        return names[1]

    def forward(self, a: OpEntry) -> None:
        """Write each block after the exchange for the next one, which waits for the block before last."""
        of, shares = Parts(self, a), self.shares(a)
        outputs = [self.nbytes(a.tensor(k)) for k in range(len(a.outputs))]
        owners = [(self.rank - k) % self.c for k in range(self.c)]
        last = max(k for k, owner in enumerate(owners) if shares[owner])
        kv, before, issued = [of.k, of.v], list[str](), [self.last, self.last]
        for k, owner in enumerate(owners):
            received = self.exchange(a, k, 1, kv, [of.kv_nbytes], issued[-2]) if k < self.c - 1 else ""
            if shares[owner]:
                name = a.name if k == last else f"{a.name}/block{k}"
                before = [self.compute(a, name, [of.q, *kv, *before], outputs, shares[owner])]
            issued.append(self.last)
            kv = [received]

    def backward(self, g: OpEntry) -> None:
        """Write the blocks from the forward's last one on; gradients of keys and values return home."""
        a, dy = self.attention_of(g)
        of, shares = Parts(self, a), self.shares(a)
        kv, dq, dkv = f"{a.name}/recv{self.c - 2}", list[str](), list[str]()
        for k in range(self.c):
            owner, n = (self.rank + 1 + k) % self.c, of.kv_nbytes
            sent, sizes = [*([kv] if k < self.c - 1 else []), *dkv], [n] * ((k < self.c - 1) + (k > 0))
            received = self.exchange(g, k, -1, sent, sizes, self.last)
            own: list[str] = []
            if shares[owner]:
                reads = [dy, of.q, kv, a.name, *dq]
                made = self.compute(g, f"{g.name}/block{k}", reads, (of.sizes[0], n), shares[owner])
                dq, own = [made], [f"{made}:1"]
            kv = received
            dkv = [*own, *([f"{received}:1" if k < self.c - 1 else received] if k else [])]
            if len(dkv) > 1:
                self.last, where = f"{g.name}/sum{k}", {"stream": COMPUTE}
                sum_ = added(g, self.last, dkv, n, elements(n, g.dtype), after=g.after, attributes=where)
                dkv = [self.records.make(sum_).name]
        self.joined(g, [*dq, *dkv])


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
    (['gpu0/a/send0', 'gpu0/a/recv0', 'gpu0/a/block0', 'gpu0/a'], [0, 0, 2000, 2000])
    """

    def __init__(self, ranks: int | list[str], context: str = "ring", partition: str = "balanced") -> None:
        self.ranks = Ranks.of("context-parallel", ranks)
        self.context = one_of("context-parallel", "context", context, tuple(_METHODS))
        self.balanced = one_of("context-parallel", "partition", partition, _PARTITIONS) == "balanced"

    def ranked(self, there: Ranked) -> Ranked:
        """Return the ranks that split sequences."""
        there.refuse(["dp", "pp"], "context-parallel comes before the rewrites for stages and replicas")
        c = there.room("context-parallel", self.ranks)
        return there.multiplied({"cp": c}, self._program, names=self.ranks.names, varies=["cp"])

    def _program(self, graph: Graph, grid: Grid, at: Mapping[str, int]) -> Graph:
        """Return the program of one rank."""
        c = grid.sizes["cp"]
        if c == 1:
            return graph
        return write(_METHODS[self.context](graph, c, at["cp"], balanced=self.balanced).records)
