"""Attention after one exchange: of all keys and values, or of heads for tokens (Ulysses)."""

from __future__ import annotations

from fractions import Fraction

from policies.compile.parallel.context.tokens import SHAPE, Parts, Tokens
from policies.compile.records import Record
from sim.graph.graph import output_name
from sim.words.errors import GraphError

__all__ = ["AllGather", "AllToAll"]


class AllGather(Tokens):
    """Every rank gathers all keys and values, and waits for them."""

    def gathered(self, of: Record, parts: Parts) -> list[str]:
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
        of = Parts(self, a)
        outputs = [self.nbytes(a.tensor(k)) for k in range(len(a.outputs))]
        self.compute(a, a.name, [of.q, *self.gathered(a, of)], outputs, sum(self.shares(a), Fraction(0)))

    def backward(self, g: Record) -> None:
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

    def heads(self, a: Record) -> dict[str, int]:
        """Return the shape of a rank's attention."""
        shape: dict[str, int] = {key: a.attributes[key] for key in SHAPE if key in a.attributes}
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
        of, shape = Parts(self, a), self.heads(a)
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
        of = Parts(self, a)
        reads = [self.moved(g, "out", dy, self.nbytes(a.name))]
        reads += [f"{a.name}/all_to_all_{what}" for what in "qkv"]
        made = self.compute(
            g, f"{g.name}/heads", [*reads, f"{a.name}/heads"], of.sizes, Fraction(1, self.c), **self.heads(a)
        )
        tensors = [output_name(made, k) for k in range(3)]
        self.joined(
            g,
            [
                self.moved(g, what, tensor, nbytes)
                for what, tensor, nbytes in zip("qkv", tensors, of.sizes, strict=True)
            ],
        )
