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

from collections.abc import Mapping
from typing import Final

from policies.compile.parallel.context.at_once import AllGather, AllToAll
from policies.compile.parallel.context.ring import Ring
from policies.compile.parallel.context.tokens import Tokens
from policies.compile.parallel.grid.rank_grid import Grid
from policies.compile.parallel.grid.ranked import OnRanks, Ranked
from policies.compile.parallel.ranks import Ranks
from policies.compile.records import write
from policies.option_checks import one_of
from sim import Graph
from sim.graph.frames import has_control_flow
from sim.words.errors import GraphError

__all__ = ["ContextParallel"]

_METHODS: Final[Mapping[str, type[Tokens]]] = {"ring": Ring, "all-gather": AllGather, "all-to-all": AllToAll}
_CHUNKS: Final = ("balanced", "contiguous")


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
        There is no op of kind attention, a product of two tensors that are no parameters, heads that ranks
        cannot share, or there are stages or replicas already (when applied).

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
        self.method = one_of("context-parallel", "method", method, tuple(_METHODS))
        self.balanced = one_of("context-parallel", "chunks", chunks, _CHUNKS) == "balanced"

    def ranked(self, there: Ranked) -> Ranked:
        """Return the ranks that share sequences."""
        name = there.programs[0].name
        if has_control_flow(there.programs[0]):
            raise GraphError(f"graph {name!r} has control flow; what ranks exchange must be known before")
        if there.grid.sizes.keys() & {"dp", "pp"}:
            message = "has stages or replicas already; context-parallel comes before what makes them"
            raise GraphError(f"graph {name!r} {message}")
        c = there.room("context-parallel", self.ranks)
        return there.multiplied({"cp": c}, self._program, names=self.ranks.names, varies=True)

    def _program(self, graph: Graph, grid: Grid, at: Mapping[str, int]) -> Graph:
        """Return what one rank runs."""
        c = grid.sizes["cp"]
        if c == 1:
            return graph
        return write(_METHODS[self.method](graph, c, at["cp"], balanced=self.balanced).records)
