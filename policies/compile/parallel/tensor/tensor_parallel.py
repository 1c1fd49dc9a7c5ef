"""Tensor parallelism of Megatron-LM: every rank has a part of each weight, and ranks sum what rows make.

::

    forward    x ─► column ─► local ─► row ─► all_reduce ─► + x ─►      two pairs a layer: two sums
    backward       all_reduce ◄─ column ◄─ local ◄─ row ◄─                                 and two

    with sequence parallelism what lies between pairs is split along the sequence: a sum becomes two halves

    forward    x ─► all_gather ─► column ─► local ─► row ─► reduce_scatter ─► + x ─►
    backward       reduce_scatter ◄─ column ◄─ local ◄─ row ◄─ all_gather ◄─
                   all_gather of x again, for the gradient of the column's weight

What a tensor is on a rank: *whole*; *split* by columns or heads; a *part* of a sum; or a *sequence*, some of
its tokens. Each op says what it needs and what it makes of it (`writer`), and what lies between is
communicated. In the forward that holds up the rank; in the backward of a column it runs beside the gradient
of its weight.

An embedding's table is split by words: ranks sum what they found. So is the head; its loss needs three sums
of a number for each token (``vocab_parallel_cross_entropy``). Gradients of parameters that are whole and have
seen some tokens or heads only are summed at the end, in one all_reduce (``finalize_model_grads``).

Sources: Shoeybi et al., arXiv 1909.08053; Korthikanti et al., arXiv 2205.05198;
megatron/core/tensor_parallel: layers.py (``LinearWithGradAccumulationAndAsyncCommunication``,
``VocabParallelEmbedding``), mappings.py, cross_entropy.py; megatron/core/distributed/finalize_model_grads.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from policies.compile.parallel.grid.rank_grid import Grid
from policies.compile.parallel.grid.ranked import OnRanks, Ranked
from policies.compile.parallel.ranks import Ranks
from policies.compile.parallel.tensor.plan import Plan
from policies.compile.parallel.tensor.writer import Writer
from policies.compile.parallel.training_step import TrainingStep
from policies.compile.records import read, write
from policies.compile.training.gradients import OPTIMISERS
from sim import Graph
from sim.graph.frames import has_control_flow
from sim.words.errors import GraphError

__all__ = ["TensorParallel", "WholeWarning"]


class WholeWarning(UserWarning):
    """Something stays whole on every tensor-parallel rank."""


class TensorParallel(OnRanks):
    """Split the layers of a forward or a training step over ranks.

    Parameters
    ----------
    ranks : int or list of str
        How many, or which devices; a number means accelerators of the machine, in machine order.
    sequence_parallel : bool
        Whether what is not split by columns is split along the sequence.
    column, row : list of str
        Regular expressions for names of products with a weight; by default they are found.
    vocabulary : bool
        Whether embeddings and head are split by words.

    Raises
    ------
    InputError
        Patterns that fit nothing, or a product that cannot be split as they say (when applied).
    GraphError
        Nothing can be split, or the graph is of several ranks already (when applied).

    Warns
    -----
    WholeWarning
        A product with a weight, or an embedding, stays whole.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two layers")
    >>> _ = b.input("x", 400), b.parameter("w", 800), b.parameter("v", 800)
    >>> _ = b.op("up", kind="matmul", inputs=["x", "w"], outputs=800, flops=1000)
    >>> _ = b.op("down", kind="matmul", inputs=["up", "v"], outputs=400, flops=1000)
    >>> split = TensorParallel(2).apply(b.build())
    >>> split.op_names[:3], split.flops[:3].tolist()
    (['gpu0/up', 'gpu0/down', 'gpu0/down/all_reduce'], [500, 500, 0])
    """

    def __init__(
        self,
        ranks: int | list[str],
        sequence_parallel: bool = False,
        column: Sequence[str] = (),
        row: Sequence[str] = (),
        vocabulary: bool = True,
    ) -> None:
        self.ranks = Ranks.of("tensor-parallel", ranks)
        self.sequence, self.vocabulary = sequence_parallel, vocabulary
        self.column, self.row = _listed(column), _listed(row)

    def ranked(self, there: Ranked) -> Ranked:
        """Return the ranks that share the layers."""
        name = there.programs[0].name
        if has_control_flow(there.programs[0]):
            raise GraphError(f"graph {name!r} has control flow; what ranks exchange must be known before")
        if there.grid.ranks > 1:
            message = "has ranks already; tensor-parallel comes before the rewrites that make others"
            raise GraphError(f"graph {name!r} {message}")
        t = there.room("tensor-parallel", self.ranks)
        return there.multiplied({"tp": t}, self._program, names=self.ranks.names)

    def _program(self, graph: Graph, grid: Grid, at: Mapping[str, int]) -> Graph:
        """Return what one rank runs."""
        records, t = read(graph), grid.sizes["tp"]
        order = [graph.op_names[op] for op in graph.topological_order.tolist()]
        trains = any(record.kind in OPTIMISERS for record in records.ops.values())
        step = TrainingStep(graph) if trains else None
        plan = Plan(records, order, t, self.column, self.row, self.vocabulary)
        if not plan.role and not plan.split:
            raise GraphError(f"graph {graph.name!r} has nothing that could be split{_told(plan.whole)}")
        if plan.whole:
            rest = f"tensor-parallel: {len(plan.whole)} of {len(plan.product)} products stay whole"
            warnings.warn(WholeWarning(rest + _told(plan.whole)), stacklevel=2)
        return write(Writer(records, order, plan, t, step, self.sequence and t > 1).records)


def _listed(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _told(whole: Mapping[str, str]) -> str:
    shown = [f"{name!r}: {why}" for name, why in list(whole.items())[:3]]
    return f" ({'; '.join(shown)}{'; ...' if len(whole) > 3 else ''})" if shown else ""
