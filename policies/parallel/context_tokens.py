"""The program of a context-parallel rank: every op on its tokens, with attention left to the method.

All ops but attention treat each token separately, so that a rank has a share of their work and bytes.
Parameters are whole, and their gradients are sums over a rank's tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from policies.parallel.program import COMPUTE, exchange
from policies.parallel.training_step import TrainingStep, parts_of_gradients
from policies.rewrite.backward import OPTIMIZERS, elements
from policies.rewrite.records import Edge, OpEntry, Records, proportion, read
from sim import Graph
from sim.base.errors import GraphError

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

    def chunks(of: int) -> tuple[int, int]:
        return (of, n - 1 - of) if balanced else (2 * of, 2 * of + 1)

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
        gradients = {} if step is None else {each.gradient: each.name for each in step.parameters}
        updates = set() if step is None else {update.name for update in step.updates}
        self.of_gradient = set(parts_of_gradients(self.old, gradients))
        """Gradients of parameters, and the parts that they are sums of."""
        self.last = ""
        """The last op issued on the compute stream."""
        self.on_tokens: set[str] = set()
        """Tensors of which the rank has only its tokens."""
        for name, given in self.old.externals.items():
            if not self.old.is_parameter(name) and given.nbytes >= c:
                self.on_tokens.add(name)
            self.records.externals[name] = replace(given, nbytes=self.nbytes(name))
        found = False
        for op in graph.topological_order.tolist():
            record = self.old.ops[graph.op_names[op]]
            if record.name in updates:
                self.records.make(replace(record, inputs=self._of_all_tokens(record)))
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

    def _of_all_tokens(self, update: OpEntry) -> list[Edge]:
        """Return the inputs of an update; a gradient with a row per token is padded with zero rows."""
        inputs = list(update.inputs)
        for k, (tensor, distance) in enumerate(inputs):
            if tensor in self.on_tokens:
                name, nbytes = self.records.free(f"{update.name}/pad"), self.old.nbytes(tensor)
                padded = replace(
                    update, name=name, kind="pad", inputs=[(tensor, 0)], outputs=(nbytes,), flops=0
                )
                padded.bytes_read, padded.bytes_written = self.nbytes(tensor), nbytes
                padded.attributes = {"stream": COMPUTE}
                self.records.make(padded)
                inputs[k] = (name, distance)
        return inputs

    def _note(self, tensor: str, nbytes: int, record: OpEntry) -> None:
        if tensor not in self.of_gradient and elements(nbytes, record.dtype) >= self.c:
            self.on_tokens.add(tensor)

    def nbytes(self, tensor: str) -> int:
        """Return the bytes of a rank's part of a tensor of the graph."""
        whole = self.old.nbytes(tensor)
        return -(-whole // self.c) if tensor in self.on_tokens else whole

    def _work(self, record: OpEntry) -> None:
        """Write an op that treats each token separately."""
        tensors = list(dict.fromkeys(record.reads))
        if record.attributes.get("stream", COMPUTE) == COMPUTE:
            self.last = record.name
        if self.on_tokens.isdisjoint(tensors):
            self.records.make(replace(record, attributes=_on_compute(record.attributes)))
            return
        made = record.tensors
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
        for key in ("k" if record.name in self.of_gradient else "m", "rows"):
            if key in attributes:
                attributes[key] = -(-attributes[key] // self.c)
        if "nbytes" in attributes:
            attributes["nbytes"] = proportion(attributes["nbytes"], *read_)
        self.records.make(
            replace(
                record.part(Fraction(1, self.c)),
                outputs=outputs,
                bytes_read=proportion(record.bytes_read, *read_),
                bytes_written=proportion(record.bytes_written, sum(outputs), sum(record.outputs)),
                attributes=attributes,
            )
        )

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
        of: OpEntry,
        name: str,
        reads: Sequence[str],
        outputs: Sequence[int],
        part: Fraction,
        **shape: int,
    ) -> str:
        """Write a part of an attention; only with a shape can a table of measurements find it."""
        self.last, inputs = name, list(dict.fromkeys(reads))
        kept = {key: value for key, value in of.attributes.items() if key not in SHAPE}
        self.records.make(
            replace(
                of.part(part),
                name=name,
                inputs=[(tensor, 0) for tensor in inputs],
                outputs=tuple(outputs),
                bytes_read=sum(map(self.records.nbytes, inputs)),
                bytes_written=sum(outputs),
                attributes={**kept, **shape, "stream": COMPUTE},
            )
        )
        return name

    def joined(self, of: OpEntry, reads: Sequence[str]) -> None:
        """Write an op under the name of `of` whose outputs are adjacent parts."""
        self.last = of.name
        made = of.like(of.name, "concat", reads, [*map(self.nbytes, of.tensors)], after=of.after)
        made.bytes_written = made.duration_ns = 0
        made.attributes = {"stream": COMPUTE}
        self.records.make(made)

    def collective(
        self,
        of: OpEntry,
        name: str,
        kind: str,
        reads: Sequence[str],
        nbytes: int,
        outputs: Sequence[int],
        **more: Any,
    ) -> str:
        """Write a collective."""
        where = {"communicator": GROUP, "dimension": "cp", **more}
        self.records.make(exchange(of, name, kind, reads, nbytes, outputs, **where))
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
            whole = writer.nbytes(tensors[0])
            own = whole * kv_heads // (heads + 2 * kv_heads)
            self.sizes = (whole - 2 * own, own, own)
        self.kv_nbytes = self.sizes[1] + self.sizes[2]


def _on_compute(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes with the compute stream added, if there is no stream yet."""
    own = attributes.get("stream", COMPUTE) if "communicator" in attributes else COMPUTE
    return {**attributes, "stream": own}
