r"""Expert parallelism: each rank has some of a layer's experts, and tokens travel to their experts.

::

    gpu0   norm  router │ dispatch │ experts 0, 1 ███████ │ combine │ add       dispatch, combine: all_to_all
    gpu1   norm  router │ dispatch │ experts 2, 3 ███     │ combine │ add       all wait for the fullest rank
                        └ meet ────┘                waits └ meet ───┘

    backward            combine/grad │ gradients of the experts │ dispatch/grad    the same two the other way

The graph is the step of one rank, with its own tokens. Its experts are ops that `wrap` finds: those of one
expert each, where a group of the expression is its number, or of a feed-forward layer that stands for all of
them. Router, permutation and shared experts are other ops, and stay where they are. Experts 0 to E/e - 1 are
on the first rank, and so on.

A rank's experts compute for the tokens that they get: work, bytes, times and sizes of their ops are scaled by
tokens / those of the graph. Of parameters a rank has those of its experts. Where the graph trains, gradients
of all other parameters are summed over all ranks, in Megatron-LM's buckets, those of experts over the ranks
with the same ones, if there are several groups.

Sources: Lepikhin et al., "GShard", arXiv 2006.16668; Fedus et al., "Switch Transformers", JMLR 23 (2022);
Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py (``MoEAlltoAllTokenDispatcher``) and
megatron/core/distributed/distributed_data_parallel.py (buffers of expert parameters apart).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from policies.compile.parallel.buckets import closed_when_full
from policies.compile.parallel.ddp import reduce_in_buckets
from policies.compile.parallel.experts.layers import Layers
from policies.compile.parallel.experts.one_rank import OneRank
from policies.compile.parallel.experts.routing import routed
from policies.compile.parallel.grid.rank_grid import DATA, Grid
from policies.compile.parallel.grid.ranked import OnRanks, Ranked
from policies.compile.parallel.program import COMPUTE, Program
from policies.compile.parallel.ranks import Ranks
from policies.compile.parallel.training_step import Parameter, TrainingStep
from policies.compile.records import write
from policies.option_checks import whole
from sim import Graph
from sim.words.errors import InputError
from sim.words.limits import MOST_BUILT, at_most
from sim.words.plugins import NOWHERE, Origin

__all__ = ["ExpertParallel"]

_DENSE: Final = {"communicator": "data parallel", "dimension": f"ep-{DATA}"}
_COPIES: Final = {"communicator": "expert data parallel", "dimension": DATA}
"""On which gradients meet: those of all parameters but the experts', and theirs."""
_MOST_EXPERTS: Final = 100_000


class ExpertParallel(OnRanks):
    r"""Run a step on ranks that share the experts of its layers.

    Parameters
    ----------
    ranks : int or list of str
        How many, or which devices; a number means accelerators of the machine, in machine order.
    wrap : str
        Which ops are experts: a regular expression; ops with the same match in their names are one layer,
        such as ``layer\d+\.ffn``. A group in it is the number of an expert: ``layer\d+\.experts\.(\d+)``.
    experts : int
        How many a layer has.
    tokens : int, optional
        Of a rank; a table or a trace of the routing says it, too.
    top_k : int
        Experts of a token.
    routing : str or mapping
        ``balanced``, ``one-hot`` or ``{one-hot: expert}``, ``{zipf: exponent}`` (with ``seed``: drawn),
        ``{random: seed}``, ``{tokens: [...]}`` (by expert, or by rank and expert), ``{trace: file}``.
    size : int, optional
        Over how many neighbouring ranks experts are shared out, by default all.
    capacity_factor : float, optional
        What an expert takes of a rank's tokens / its equal part of them; by default all.
    pad_to_capacity : bool
        Whether ranks fill up what they send.
    token_bytes : int, optional
        What a token is when it travels; by default what enters the experts / tokens (with numbered experts
        / (tokens · top_k)).
    overlap : bool
        Whether exchanges run on a stream of their own, beside what does not wait for them (shared experts).
    bucket_size : int
        Elements of a bucket of gradients.
    origin : Origin
        Where a trace is looked for.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("a layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("ffn", kind="matmul", inputs=["x", "w"], outputs=400, duration_ns=100)
    >>> routing = {"tokens": [3, 3, 1, 1]}
    >>> both = ExpertParallel(2, "ffn", experts=4, tokens=4, routing=routing).apply(b.build())
    >>> both.op_names[:3], both.duration_ns.tolist()
    (['gpu0/ffn/dispatch', 'gpu0/ffn', 'gpu0/ffn/combine'], [-1, 150, -1, -1, 50, -1])
    """

    def __init__(
        self,
        ranks: int | list[str],
        wrap: str,
        experts: int,
        tokens: int | None = None,
        top_k: int = 1,
        routing: str | dict[str, Any] = "balanced",
        size: int | None = None,
        capacity_factor: float | None = None,
        pad_to_capacity: bool = False,
        token_bytes: int | None = None,
        overlap: bool = False,
        bucket_size: int = 40_000_000,
        origin: Origin = NOWHERE,
    ) -> None:
        name = "expert-parallel"
        self.ranks, self.wrap, self.overlap = Ranks.of(name, ranks), wrap, overlap
        self.experts = whole(name, "experts", experts, most=_MOST_EXPERTS)
        n = self.ranks.n or 1
        self.size = n if size is None else whole(name, "size", size)
        if n % self.size:
            message = f"{n} ranks cannot be divided into groups of {self.size}"
            raise InputError(f"{name}: size: {message}", path=("size",))
        self.copies = n // self.size
        self.top_k = whole(name, "top_k", top_k)
        self.token_bytes = None if token_bytes is None else whole(name, "token_bytes", token_bytes)
        self.bucket_size = whole(name, "bucket_size", bucket_size)
        self.routing = routed(
            routing,
            ranks=self.size,
            experts=self.experts,
            tokens=None if tokens is None else whole(name, "tokens", tokens),
            top_k=self.top_k,
            capacity_factor=capacity_factor,
            pad=pad_to_capacity,
            origin=origin,
        )

    def ranked(self, there: Ranked) -> Ranked:
        """Return the ranks that share experts."""
        at_most(MOST_BUILT, self.size * len(there.programs[0]), "ops")
        there.room("expert-parallel", self.ranks)
        made: dict[tuple[int, int], Graph] = {}
        layers: dict[int, Layers] = {}

        def program(one: Graph, _: Grid, at: Mapping[str, int]) -> Graph:
            key = id(one), at["ep"]
            if id(one) not in layers:
                layers[id(one)] = Layers(TrainingStep(one, forward=True), self.wrap, self.experts)
            if key not in made:
                made[key] = self._program(layers[id(one)], at["ep"])
            return made[key]

        sizes = {"ep": self.size, "dp": self.copies}
        return there.multiplied(sizes, program, names=self.ranks.names, varies=True)

    def _program(self, layers: Layers, place: int) -> Graph:
        """Return what a rank runs: gradients are summed in buckets, those of experts apart."""
        rank = OneRank(
            layers,
            self.routing,
            place,
            top_k=self.top_k,
            token_bytes=self.token_bytes,
            stream="all_to_all" if self.overlap else COMPUTE,
        )
        own, step = layers.own, TrainingStep(write(rank.records()), forward=True)
        program = Program(step, "expert parallel")
        dense = [each for each in step.parameters[::-1] if each.name not in own]
        apart = [each for each in step.parameters[::-1] if each.name in own and self.copies > 1]
        buckets = [bucket for some in (dense, apart) for bucket in self._buckets(some)]
        last = None
        if buckets:
            last = reduce_in_buckets(
                program,
                step,
                buckets,
                strict=False,
                meets=lambda bucket: _COPIES if bucket[0].name in own else _DENSE,
            )
        else:
            for record in step.work:
                program.compute(record)
        for update in step.updates:
            program.compute(update, after=[last])
        return program.graph()

    def _buckets(self, parameters: Sequence[Parameter]) -> list[list[Parameter]]:
        sizes, dtypes = [each.elements for each in parameters], [each.dtype for each in parameters]
        rows = closed_when_full(sizes, [self.bucket_size], dtypes)
        return [[parameters[k] for k in row] for row in rows]
