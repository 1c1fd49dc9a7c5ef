"""Ring attention: keys and values go round, a block of attention beside each exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from policies.compile.parallel.context.tokens import GROUP, Parts, Tokens, part_of
from policies.compile.parallel.program import COMPUTE
from policies.compile.records import Record
from policies.compile.training.backward import elements

__all__ = ["Ring"]


class Ring(Tokens):
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

    def backward(self, g: Record) -> None:
        """Write blocks from the one that came last in the forward; gradients of keys and values go home."""
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
                dkv = [self._sum(g, f"{g.name}/sum{k}", dkv, n)]
        self.joined(g, [*dq, *dkv])

    def _sum(self, g: Record, name: str, reads: Sequence[str], nbytes: int) -> str:
        """Add what is received to what was computed; without a cost where the op has a duration."""
        timed = g.duration_ns is not None or g.duration_by_kind
        self.last = name
        self.records.make(
            replace(
                part_of(g, Fraction(0)),
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
        )
        return name
