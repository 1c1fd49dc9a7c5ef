"""Context parallelism: each rank has some tokens of every sequence; only attention needs those of others.

::

    ring         compute   [ block 0 ][ block 1 ][ block 2 ]      block k: own queries, keys and values of
                 rank i-k send/recv [ kv ]     [ kv ]                      c-1 exchanges, each beside a block

    backward     compute   [ block 0 ][ block 1 ][ block 2 ]      the other way round, own keys and values
                 last send/recv [ kv ]   [ kv, dkv ] [ dkv ]           dkv: gradients so far, on their way
                 home

    all-gather   [ gather k ][ gather v ][ attention ]            backward: gather both again, then scatter
    both sums all-to-all   [ q ][ k ][ v ][ attention of some heads, all tokens ][ out ]       four each way
    (Ulysses)

All other ops work on each token by itself, so that a rank has a part of their work and bytes. Parameters are
whole, and their gradients sums over a rank's tokens: a rewrite for replicas, such as ddp (``ranks: 1`` if
there are no others), sums them over the ranks of both.

A send and a recv are one group call. It waits for what was issued before it on the stream of all, in the
forward but for the last block (blocks of the forward are on two streams there). What is received is added to
what was computed; that two blocks' outputs are one, corrected by their softmax, takes no time here. Attention
has to be one op; the rewrite ``attention`` makes it of products and a softmax.

Sources: TransformerEngine, attention/dot_product_attention/context_parallel.py (``AttnFuncWithCPAndKVP2P``,
``AttnFuncWithCPAndKVAllGather``, ``AttnFuncWithCPAndQKVOA2A``); Liu et al., "Ring Attention", arXiv
2310.01889; "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.2; Jacobs et al., "DeepSpeed Ulysses",
arXiv 2309.14509.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from policies.compile.parallel.context.chunks import attention_shares
from policies.compile.parallel.grid.rank_grid import Grid
from policies.compile.parallel.grid.ranked import OnRanks, Ranked
from policies.compile.parallel.program import COMPUTE
from policies.compile.parallel.ranks import Ranks
from policies.compile.parallel.training_step import TrainingStep, parts_of_gradients
from policies.compile.records import Edge, Record, Records, read, write
from policies.compile.training.backward import elements
from policies.compile.training.gradients import OPTIMISERS
from policies.option_checks import one_of
from sim import Graph
from sim.graph.frames import has_control_flow
from sim.graph.graph import Role
from sim.words.errors import GraphError
from sim.words.units import round_half_up

__all__ = ["ContextParallel"]

METHODS: Final = ("ring", "all-gather", "all-to-all")
CHUNKS: Final = ("balanced", "contiguous")

GROUP: Final = "context parallel"
"""The communicator; of sends and recvs the beginning of the streams, too."""

_SHAPE: Final = ("batch", "seq_len", "heads", "kv_heads", "head_dim")


class ContextParallel(OnRanks):
    """Share the tokens of every sequence out over ranks.

    Parameters
    ----------
    ranks : int or list of str
        How many, or which devices; a number means accelerators of the machine, in machine order.
    method : {"ring", "all-gather", "all-to-all"}
        How attention gets what others have.
    chunks : {"balanced", "contiguous"}
        Which tokens a rank has: one early and one late chunk, or neighbours.

    Raises
    ------
    InputError
        Another method or other chunks.
    GraphError
        There is no op of kind attention, a product of two tensors that are no parameters, or heads that ranks
        cannot share (when applied).

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

    def __init__(self, ranks: int | list[str], method: str = "ring", chunks: str = "balanced") -> None:
        self.ranks = Ranks.of("context-parallel", ranks)
        self.method = one_of("context-parallel", "method", method, METHODS)
        self.balanced = one_of("context-parallel", "chunks", chunks, CHUNKS) == "balanced"

    def ranked(self, there: Ranked) -> Ranked:
        """Return the ranks that share sequences."""
        name = there.programs[0].name
        if has_control_flow(there.programs[0]):
            raise GraphError(f"graph {name!r} has control flow; what ranks exchange must be known before")
        c = there.room("context-parallel", self.ranks)
        return there.multiplied({"cp": c}, self._program, names=self.ranks.names, varies=True)

    def _program(self, graph: Graph, grid: Grid, at: Mapping[str, int]) -> Graph:
        """Return what one rank runs."""
        c = grid.sizes["cp"]
        if c == 1:
            return graph
        writer = {"ring": _Ring, "all-gather": _AllGather, "all-to-all": _AllToAll}[self.method]
        return write(writer(graph, c, at["cp"], balanced=self.balanced).records)


class _Tokens:
    """Writes the program of a rank: its tokens of everything; attention is a matter of the method."""

    def __init__(self, graph: Graph, c: int, rank: int, *, balanced: bool) -> None:
        self.old, self.c, self.rank, self.balanced = read(graph), c, rank, balanced
        self.records = Records(f"{graph.name} (context parallel)", {}, {})
        self.of_gradient, updates = self._gradients(graph)
        self.last = ""
        """What was issued last on the stream of all."""
        self.on_tokens: set[str] = set()
        """Tensors of which the rank has its tokens only."""
        for name, given in self.old.externals.items():
            if given.role != Role.PARAMETER and given.nbytes >= c:
                self.on_tokens.add(name)
            self.records.externals[name] = replace(given, nbytes=self.nbytes(name))
        found = False
        for op in graph.topological_order.tolist():
            record = self.old.ops[graph.op_names[op]]
            if record.name in updates:
                self.records.ops[record.name] = replace(record, inputs=self._of_all_tokens(record))
            elif record.kind in ("attention", "attention_grad"):
                found = True
                for k, nbytes in enumerate(record.outputs):
                    self._note(record.tensor(k), nbytes, record)
                self.forward(record) if record.kind == "attention" else self.backward(record)
            else:
                self._work(record)
        if not found:
            message = "has no op of kind attention: nothing to exchange, so use data parallelism"
            raise GraphError(f"graph {graph.name!r} {message}")

    def _gradients(self, graph: Graph) -> tuple[set[str], set[str]]:
        """Return the gradients of parameters and what they are sums of, and the names of the updates."""
        if not any(record.kind in OPTIMISERS for record in self.old.ops.values()):
            return set(), set()
        step = TrainingStep(graph)
        found = parts_of_gradients(self.old, {each.gradient: each.name for each in step.parameters})
        return set(found), {update.name for update in step.updates}

    def _of_all_tokens(self, update: Record) -> list[Edge]:
        """Return what an update reads; a gradient that has a row for each token gets rows of zeros."""
        inputs = list(update.inputs)
        for k, (tensor, distance) in enumerate(inputs):
            if tensor in self.on_tokens:
                name, nbytes = f"{update.name}/pad", self.old.nbytes(tensor)
                padded = replace(
                    update, name=name, kind="pad", inputs=[(tensor, 0)], outputs=(nbytes,), flops=0
                )
                read_ = self.nbytes(tensor)
                self.records.ops[name] = replace(
                    padded, bytes_read=read_, bytes_written=nbytes, attributes={"stream": COMPUTE}
                )
                inputs[k] = (name, distance)
        return inputs

    def _note(self, tensor: str, nbytes: int, record: Record) -> None:
        if tensor not in self.of_gradient and elements(nbytes, record.dtype) >= self.c:
            self.on_tokens.add(tensor)

    def nbytes(self, tensor: str) -> int:
        """Return the bytes that a rank has of a tensor of the graph."""
        whole = self.old.nbytes(tensor)
        return -(-whole // self.c) if tensor in self.on_tokens else whole

    def _work(self, record: Record) -> None:
        """Write an op that works on each token by itself."""
        tensors = list(dict.fromkeys(tensor for tensor, _ in record.inputs))
        if record.attributes.get("stream", COMPUTE) == COMPUTE:
            self.last = record.name
        if not any(tensor in self.on_tokens for tensor in tensors):
            self.records.ops[record.name] = replace(record, attributes=_on_compute(record.attributes))
            return
        made = [record.tensor(k) for k in range(len(record.outputs))]
        if record.kind in ("matmul", "gemm") and record.phase in (None, "F"):
            (a, _), (b, _) = record.inputs[:2]
            if a in self.on_tokens and b in self.on_tokens:
                message = f"{record.kind} {record.name!r} multiplies two tensors that are no parameters"
                advice = "let the rewrite attention, which makes one op of it, come before training"
                raise GraphError(f"{message}; context-parallel needs attention as one op: {advice}")
        for tensor, nbytes in zip(made, record.outputs, strict=True):
            self._note(tensor, nbytes, record)
        outputs = tuple(self.nbytes(tensor) for tensor in made)
        read_ = sum(map(self.nbytes, tensors)), sum(map(self.old.nbytes, tensors))
        attributes = _on_compute(record.attributes)
        for key in ("k",) if record.name in self.of_gradient else ("m",):
            if key in attributes:
                attributes[key] = -(-attributes[key] // self.c)
        if "nbytes" in attributes:
            attributes["nbytes"] = _scaled(attributes["nbytes"], *read_)
        self.records.ops[record.name] = replace(
            _part(record, Fraction(1, self.c)),
            outputs=outputs,
            bytes_read=_scaled(record.bytes_read, *read_),
            bytes_written=_scaled(record.bytes_written, sum(outputs), sum(record.outputs)),
            attributes=attributes,
        )

    # -- attention ------------------------------------------------------------------------------

    def forward(self, a: Record) -> None:
        """Write an attention."""
        raise NotImplementedError

    def backward(self, g: Record) -> None:
        """Write the gradients of an attention."""
        raise NotImplementedError

    def attention_of(self, g: Record) -> tuple[Record, str]:
        """Return the attention whose gradients an op makes, and the gradient of its output."""
        for tensor, _ in g.inputs:
            producer = self.old.producer(tensor)
            if producer is not None and producer.kind == "attention":
                known = {tensor, *(name for name, _ in producer.inputs)}
                for name, _ in g.inputs:
                    if name not in known:
                        return producer, name
        raise GraphError(f"{g.name!r} does not read the attention whose gradients it makes").about(g.name)

    def shares(self, a: Record) -> list[Fraction]:
        """Return which part of an attention this rank has, by whose keys and values."""
        causal = bool(a.attributes.get("is_causal"))
        return attention_shares(self.c, self.rank, causal=causal, balanced=self.balanced)

    def compute(
        self,
        of: Record,
        name: str,
        reads: Sequence[str],
        outputs: Sequence[int],
        part: Fraction,
        **shape: int,
    ) -> str:
        """Write a part of an attention; a table of measurements knows it only if it has a shape."""
        self.last, inputs = name, list(dict.fromkeys(reads))
        kept = {key: value for key, value in of.attributes.items() if key not in _SHAPE}
        self.records.ops[name] = replace(
            _part(of, part),
            name=name,
            inputs=[(tensor, 0) for tensor in inputs],
            outputs=tuple(outputs),
            bytes_read=sum(map(self.records.nbytes, inputs)),
            bytes_written=sum(outputs),
            attributes={**kept, **shape, "stream": COMPUTE},
        )
        return name

    def joined(self, of: Record, reads: Sequence[str]) -> None:
        """Write, under the name of an op, that its outputs are there: parts that lie side by side."""
        outputs = tuple(self.nbytes(of.tensor(k)) for k in range(len(of.outputs)))
        self.last = of.name
        self.records.ops[of.name] = replace(
            _part(of, Fraction(0)),
            kind="concat",
            inputs=[(tensor, 0) for tensor in reads],
            outputs=outputs,
            bytes_read=0,
            bytes_written=0,
            duration_ns=0,
            duration_by_kind={},
            attributes={"stream": COMPUTE},
        )

    def collective(
        self,
        of: Record,
        name: str,
        kind: str,
        reads: Sequence[str],
        nbytes: int,
        outputs: Sequence[int],
        **more: Any,
    ) -> str:
        """Write what ranks exchange."""
        self.records.ops[name] = Record(
            name,
            kind,
            [(tensor, 0) for tensor in dict.fromkeys(reads)],
            [(each, 0) for each in more.pop("after", ())],
            tuple(outputs),
            bytes_read=nbytes,
            bytes_written=sum(outputs),
            dtype=of.dtype,
            stage=of.stage,
            micro_batch=of.micro_batch,
            phase=of.phase,
            attributes={
                "communicator": GROUP,
                "dimension": "cp",
                "stream": COMPUTE,
                "nbytes": nbytes,
                **more,
            },
        )
        return name


class _Parts:
    """Queries, keys and values of an attention on a rank: tensors of their own, or one for all."""

    def __init__(self, writer: _Tokens, a: Record) -> None:
        tensors = [tensor for tensor, _ in a.inputs]
        heads = a.attributes.get("heads", 1)
        kv_heads = a.attributes.get("kv_heads", heads)
        if len(tensors) >= 3:
            self.q, self.k, self.v = tensors[:3]
            self.sizes = tuple(writer.nbytes(tensor) for tensor in tensors[:3])
        else:
            self.q = self.k = self.v = tensors[0]
            whole = writer.nbytes(tensors[0])
            own = whole * kv_heads // (heads + 2 * kv_heads)
            self.sizes = (whole - 2 * own, own, own)
        self.kv_nbytes = self.sizes[1] + self.sizes[2]


class _Ring(_Tokens):
    """Keys and values go round; in the backward their gradients follow them, the other way."""

    def exchange(
        self, of: Record, k: int, way: int, reads: Sequence[str], outputs: Sequence[int], after: str
    ) -> str:
        """Send to one neighbour and receive from the other, after an op; return what is received."""
        sent = list(dict.fromkeys(reads))
        makers = [self.records.producer(tensor) for tensor in sent]
        waits = list(
            dict.fromkeys([maker.name for maker in makers if maker is not None] + [after] * bool(after))
        )
        own = {maker.name for maker in makers if maker is not None}
        nbytes, names = sum(outputs), (f"{of.name}/send{k}", f"{of.name}/recv{k}")
        facts: dict[str, Any] = {"group": f"{of.name}/{k}"}
        for name, peer, read_, made in zip(names, (way, -way), (sent, []), ((), outputs), strict=True):
            kind = "recv" if peer == -way else "send"
            facts |= {"peer": str((self.rank + peer) % self.c), "stream": f"{GROUP} {kind}"}
            facts["after"] = [one for one in waits if kind == "recv" or one not in own]
            self.collective(of, name, kind, read_, nbytes, made, **facts)
        return names[1]

    def forward(self, a: Record) -> None:
        """Write blocks, the exchange for the next one before each; it waits for the block before the last."""
        of, shares = _Parts(self, a), self.shares(a)
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

    def backward(self, g: Record) -> None:
        """Write blocks from the one that came last in the forward; gradients of keys and values go home."""
        a, dy = self.attention_of(g)
        of, shares = _Parts(self, a), self.shares(a)
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
                dkv = [self._sum(g, f"{g.name}/sum{k}", dkv, n)]
        self.joined(g, [*dq, *dkv])

    def _sum(self, g: Record, name: str, reads: Sequence[str], nbytes: int) -> str:
        """Add what is received to what was computed; without a cost where the op has a duration."""
        timed = g.duration_ns is not None or g.duration_by_kind
        self.last = name
        self.records.ops[name] = replace(
            _part(g, Fraction(0)),
            name=name,
            kind="add",
            inputs=[(tensor, 0) for tensor in reads],
            outputs=(nbytes,),
            flops=elements(nbytes, g.dtype),
            bytes_read=2 * nbytes,
            bytes_written=nbytes,
            duration_ns=0 if timed else None,
            duration_by_kind={},
            attributes={"stream": COMPUTE},
        )
        return name


class _AllGather(_Tokens):
    """Every rank gathers all keys and values, and waits for them."""

    def gathered(self, of: Record, parts: _Parts) -> list[str]:
        """Gather keys, then values."""
        found = []
        for what, tensor, nbytes in zip("kv", (parts.k, parts.v), parts.sizes[1:], strict=True):
            size = self.c * nbytes
            found.append(
                self.collective(of, f"{of.name}/all_gather_{what}", "all_gather", [tensor], size, [size])
            )
        return found

    def forward(self, a: Record) -> None:
        """Gather, then compute all that the rank's queries see."""
        of = _Parts(self, a)
        outputs = [self.nbytes(a.tensor(k)) for k in range(len(a.outputs))]
        self.compute(a, a.name, [of.q, *self.gathered(a, of)], outputs, sum(self.shares(a), Fraction(0)))

    def backward(self, g: Record) -> None:
        """Gather again, compute, and sum the gradients of keys and values over ranks."""
        a, dy = self.attention_of(g)
        of = _Parts(self, a)
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


class _AllToAll(_Tokens):
    """Ranks exchange tokens of all heads for all tokens of some heads, and back."""

    def heads(self, a: Record) -> dict[str, int]:
        """Return the shape of a rank's attention."""
        shape: dict[str, int] = {key: a.attributes[key] for key in _SHAPE if key in a.attributes}
        for key in ("heads", "kv_heads"):
            if shape.get(key, self.c) % self.c:
                raise GraphError(
                    f"{a.name!r} has {shape[key]} {key}, which {self.c} ranks cannot share"
                ).about(a.name)
            if key in shape:
                shape[key] //= self.c
        return shape

    def moved(self, of: Record, what: str, tensor: str, nbytes: int, name: str = "") -> str:
        """Exchange one tensor."""
        return self.collective(
            of, name or f"{of.name}/all_to_all_{what}", "all_to_all", [tensor], nbytes, [nbytes]
        )

    def forward(self, a: Record) -> None:
        """Exchange queries, keys and values, compute some heads, and exchange what comes out."""
        of, shape = _Parts(self, a), self.heads(a)
        reads = [
            self.moved(a, what, tensor, nbytes)
            for what, tensor, nbytes in zip("qkv", (of.q, of.k, of.v), of.sizes, strict=True)
        ]
        out = self.nbytes(a.name)
        made = self.compute(a, f"{a.name}/heads", reads, [out], Fraction(1, self.c), **shape)
        self.moved(a, "out", made, out, a.name)

    def backward(self, g: Record) -> None:
        """The same from the gradient of the output to those of queries, keys and values."""
        a, dy = self.attention_of(g)
        of = _Parts(self, a)
        reads = [self.moved(g, "out", dy, self.nbytes(a.name))]
        reads += [f"{a.name}/all_to_all_{what}" for what in "qkv"]
        made = self.compute(
            g, f"{g.name}/heads", [*reads, f"{a.name}/heads"], of.sizes, Fraction(1, self.c), **self.heads(a)
        )
        tensors = [f"{made}:{k}" if k else made for k in range(3)]
        self.joined(
            g,
            [
                self.moved(g, what, tensor, nbytes)
                for what, tensor, nbytes in zip("qkv", tensors, of.sizes, strict=True)
            ],
        )


def _part(record: Record, part: Fraction) -> Record:
    """Return a part of the work of an op."""
    ns = record.duration_ns
    return replace(
        record,
        flops=round_half_up(record.flops * part),
        duration_ns=None if ns is None else round_half_up(ns * part),
        duration_by_kind={kind: round_half_up(each * part) for kind, each in record.duration_by_kind.items()},
    )


def _on_compute(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with the stream on which an op runs, if it has none yet."""
    return (
        {"stream": COMPUTE, **attributes}
        if "communicator" in attributes
        else {**attributes, "stream": COMPUTE}
    )


def _scaled(value: int, new: int, old: int) -> int:
    return round_half_up(Fraction(value * new, old)) if old else value
