"""Division of the ranks of a training into groups, and where in the cluster each group is.

::

    order [tp, cp, pp, dp]: the first changes fastest from rank to rank

    node 0  rank  0  1  2  3  4  5  6  7        tp 2: {0 1}    on one node
            tp    0  1  0  1  0  1  0  1        cp 2: {0 2}    on one node
            cp    0  0  1  1  0  0  1  1        pp 2: {0 4}    on one node
            pp    0  0  0  0  1  1  1  1        dp 2: {0 8}    one rank a node
    node 1  rank  8 ...

The default order is that of Llama 3 (arXiv 2407.21783, section 3.3.2). Experts (ep) lie within the product of
tp, cp and dp, each whole on a rank, as in Megatron-LM: ranks that hold the same experts form their own,
smaller, data-parallel group (edp). Sharding of the optimizer is over data and context parallelism together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from devices.collectives.groups import RankGroup
from policies.parallel.expert_routing import UnplacedRouting
from policies.parallel.rank_grid import Grid
from sim.base.errors import InputError, MisfitError

ORDER: Final = ("tp", "cp", "pp", "dp")

Sharding = Literal["none", "zero-1", "zero-2", "fsdp", "zero-3"]
SHARDINGS: Final[tuple[Sharding, ...]] = ("none", "zero-1", "zero-2", "fsdp", "zero-3")
"""What data-parallel ranks shard: nothing; optimizer state; gradients too; parameters too (two ways)."""


def refuse_misfit(misfit: object, reason: str, message: str) -> None:
    """Raise if sizes, each valid alone, do not fit one another; a sweep counts such points by `reason`.

    Raises
    ------
    MisfitError
        With the message.
    """
    if misfit:
        raise MisfitError(message, reason=reason)


@dataclass(frozen=True)
class ParallelLayout:
    """Sizes of the groups of ranks.

    Attributes
    ----------
    tp, cp, pp, dp, ep : int
        Tensor, context, pipeline, data and expert parallelism.
    chunks : int
        Stages per pipeline rank (interleaving, virtual pipeline).
    sequence_parallel : bool
        Whether parts that tensor parallelism leaves whole are split along the sequence (with tp > 1).
    sharding : str
        One of `SHARDINGS`.
    shard : int
        Ranks that share one copy (HSDP); 0: all.
    order : tuple of str
        Dimensions, from the fastest changing to the slowest.
    node : int
        Ranks per node.

    Examples
    --------
    >>> layout = ParallelLayout(tp=2, cp=2, pp=2, dp=2)
    >>> layout.ranks, layout.group("tp"), layout.group("pp"), layout.group("dp")
    (16, RankGroup(size=2, nodes=1), RankGroup(size=2, nodes=1), RankGroup(size=2, nodes=2))
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    chunks: int = 1
    sequence_parallel: bool = True
    sharding: Sharding = "none"
    shard: int = 0
    order: tuple[str, ...] = ORDER
    node: int = 8

    def __post_init__(self) -> None:
        """Raise if sizes do not fit each other."""
        if sorted(self.order) != sorted(ORDER):
            names = ", ".join(ORDER)
            raise InputError(f"order has to name each of {names} once, not {list(self.order)}")
        beside = self.tp * self.cp * self.dp
        reason = f"experts over {self.ep} ranks need tp·cp·dp = {beside} to be a multiple of it"
        refuse_misfit(beside % self.ep, "ep does not divide tp·cp·dp", reason)
        reason = f"shard: {self.shard} ranks are no divisor of dp·cp = {self.dp * self.cp}"
        refuse_misfit(self.dp * self.cp % self.sharded_by, "shard does not divide dp·cp", reason)
        # DeepSpeed, deepspeed/runtime/pipe/engine.py: PipelineEngine asserts a stage below 2. Other systems
        # keep sharded gradients (zero-2) in pipelines, but none gathers parameters by module there.
        reason = f"zero-3 takes no pipeline (DeepSpeed refuses both), and pp is {self.pp}"
        refuse_misfit(self.sharding == "zero-3" and self.pp > 1, "zero-3 with a pipeline", reason)
        reason = f"chunks: {self.chunks} stages a rank need a pipeline, and pp is 1"
        refuse_misfit(self.chunks > 1 and self.pp == 1, "chunks without a pipeline", reason)

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def splits_sequence(self) -> bool:
        """Whether parts that tensor parallelism leaves whole are split along the sequence."""
        return self.sequence_parallel and self.tp > 1

    @property
    def sharded_by(self) -> int:
        """Number of ranks that share one copy of the parameters, if they are sharded."""
        return self.shard or self.dp * self.cp

    def buckets(self, parameters: int, limit: int) -> int:
        """Return the number of buckets, at most `limit`, in which the gradients of parameters are reduced.

        Source: Megatron-LM, core/distributed/distributed_data_parallel.py (``bucket_size``).
        """
        return max(1, min(limit, parameters // max(40_000_000, 1_000_000 * self.dp)))

    def group(self, name: str) -> RankGroup:
        """Return the size of a group and the nodes that it spans.

        Parameters
        ----------
        name : {"tp", "cp", "pp", "dp", "dp_cp", "ep", "edp", "shard", "replicas", "eshard", "ereplicas"}
            For gathered parameters: the ranks of one copy (shard), and those with the same part of other
            copies (replicas); "e" for those of experts, if a copy's ranks share fewer experts.
        """
        if name in ORDER:
            return self._place({name: getattr(self, name)})
        data_dims = [dim for dim in self.order if dim in ("cp", "dp")]
        sizes = {"cp": self.cp, "dp": self.dp}
        if name == "dp_cp":
            return self._place({dim: sizes[dim] for dim in data_dims})
        of_experts = name[0] == "e"
        if of_experts:
            sizes["tp"] = self.tp
        inner, outer = self._split(sizes, self.ep if of_experts else self.sharded_by)
        if name in ("ep", "shard"):
            return self._place(inner)
        if name in ("edp", "replicas"):
            return self._place(outer, inner)
        copy, others = self._split(outer, max(1, self.sharded_by * self.tp // self.ep))
        if name == "eshard":
            return self._place(copy, inner)
        return self._place(others, {dim: inner[dim] * copy[dim] for dim in inner})

    def _split(self, sizes: Mapping[str, int], ranks: int) -> tuple[dict[str, int], dict[str, int]]:
        """Split dimensions into the nearest `ranks` ranks and their multiples; return both."""
        inner, outer = dict[str, int](), dict[str, int]()
        for dim in (d for d in self.order if d in sizes):  # the fastest-changing dimension first
            inner[dim] = math.gcd(ranks, sizes[dim])
            ranks //= inner[dim]
            outer[dim] = sizes[dim] // inner[dim]
        return inner, outer

    def _place(self, members: Mapping[str, int], below: Mapping[str, int] | None = None) -> RankGroup:
        """Place a group that has the first ranks of some dimensions (beyond those of `below`, if given)."""
        grid: dict[str, int] = {}
        for dim in self.order:  # split into the ranks below the group, the group, and the ranks above it
            inner, size = (below or {}).get(dim, 1), members.get(dim, 1)
            grid |= {f"{dim} below": inner, dim: size, f"{dim} above": getattr(self, dim) // (inner * size)}
        first, others = Grid(grid).members(members), Grid(grid).members(grid.keys() - members)
        starts = {rank % self.node for rank in others}  # all groups wait for the one on most nodes
        return RankGroup(len(first), max(len({(r + s) // self.node for r in first}) for s in starts))


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Options for how ranks run layers.

    Attributes
    ----------
    context : {"all-to-all", "ring", "all-gather"}
        How context parallelism communicates.
    attention : {"flash", "eager"}
        flash keeps no scores; eager writes, masks and drops them out (arXiv 2205.05198).
    dropout : bool
        Dropout with its masks, of one byte.
    loss : {"fused", "fp32", "eager", "compiled"}
        fused keeps logits of 2 bytes, which its gradient replaces; fp32 casts them and keeps a softmax of 4
        bytes, as Megatron-LM does; eager is PyTorch's `cross_entropy` of logits in fp32, op by op; compiled
        is that as one kernel each way.
    imbalance : float
        Tokens of the fullest expert rank / of the mean one.
    routes : UnplacedRouting or None
        Assignment of tokens to experts, in place of `imbalance`.
    dispatcher : {"all-to-all", "deepep", "hybridep"}
        How tokens are sent to experts: one copy per expert, or one per rank (per node, across nodes) that
        has some of them.
    expert_overlap : bool
        Whether the exchange runs beside the computation of another micro-batch.
    tensor_overlap : bool
        Whether tensor parallelism sends beside products, block by block.
    packed : tuple of int
        Tokens of each sequence packed into a sample; empty: one sequence.
    lora : mapping
        Module → rank of its adapters; all other weights are frozen. Empty: all are trained.
    """

    context: str = "all-to-all"
    attention: str = "flash"
    dropout: bool = False
    loss: str = "fused"
    imbalance: float = 1.0
    routes: UnplacedRouting | None = None
    dispatcher: str = "all-to-all"
    expert_overlap: bool = False
    tensor_overlap: bool = False
    packed: tuple[int, ...] = ()
    lora: Mapping[str, int] = field(default_factory=dict)

    def sequences(self, samples: int, tokens: int) -> dict[int, int]:
        """Return tokens of a sequence → number of such sequences in `samples` samples of `tokens` tokens."""
        return {length: count * samples for length, count in Counter(self.packed or (tokens,)).items()}


@dataclass(frozen=True)
class ReplicaBatch(RankOptions):
    """The micro-batch of a rank's replica, and how it runs.

    Attributes
    ----------
    samples, sequence : int
        Size of a micro-batch.
    width : int
        Bytes per activation.
    kept : float or None
        Bytes per number of products' inputs that are kept quantized; None: as wide as the others.
    """

    samples: int
    sequence: int
    width: int = 2
    kept: float | None = None
