"""PyTorch's DistributedDataParallel: replicas that sum their gradients in buckets during the backward.

::

    compute       F F F F │ B3  B2  B1  B0          │ U U U U
    all_reduce            │         [ b0 ] [ b1 ]   │            b0: of 3 and 2, b1: of 1 and 0

A bucket is summed once its gradients are ready *and* the previous bucket has been launched: all sums run in
bucket order on the one stream of the communicator. The updates wait for all of them.

In the first step there is one bucket per data type, since the order in which gradients become ready is not
known yet. After it the buckets are rebuilt in the order seen: the first closes at 1 MiB, the others at 25
MiB. If ``bucket_size`` is given, it is the limit of all. With ``find_unused_parameters`` buckets are filled
once, in order of registration, and launched from the last to the first.

Sources: torch/csrc/distributed/c10d/reducer.cpp (``mark_bucket_ready``, ``rebuild_buckets``,
``finalize_backward``) and torch/nn/parallel/distributed.py (``_ddp_init_helper``); Li et al., "PyTorch
Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, arXiv 2006.15704.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from policies.option_checks import name_list, one_of
from policies.parallel.rank_grid import DataParallel
from policies.parallel.training_step import COMPUTE, HostProgram, Parameter, TrainingStep, shard_nbytes
from policies.rewrite.records import OpEntry
from sim import Graph
from sim.base.errors import InputError
from sim.graph.graph import output_name

# ----------------------------------------------------------------------------------------------------------
# Gradients in buckets: small messages are summed together, and summing begins before all gradients are ready.
#
#     sizes, in the order in which gradients become ready     6  5  4  9  2
#     [10]     closed once it holds 10 or more                6  5 | 4  9 | 2          PyTorch, Megatron-LM
#     [3, 10]  the first at 3                                 6 | 5  4  9 | 2
#     closed before it would hold more than 10                6 | 5  4 | 9 | 2         DeepSpeed
#
# Sources: ``compute_bucket_assignment_by_size`` in torch/csrc/distributed/c10d/reducer.cpp (a tensor is
# added, then the bucket is closed if it has reached its limit);
# megatron/core/distributed/param_and_grad_buffer.py; DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py
# (``reduce_independent_p_g_buckets_and_remove_grads``).


def never_overflowing(parameters: Sequence[Parameter], elements: int) -> list[list[Parameter]]:
    """Return parameters in buckets of at most `elements`; a larger one has a bucket to itself.

    Examples
    --------
    >>> given = [Parameter(f"w{n}", "", "", 4 * n, n, None) for n in (6, 5, 4, 9, 2)]
    >>> [[each.name for each in bucket] for bucket in never_overflowing(given, 10)]
    [['w6'], ['w5', 'w4'], ['w9'], ['w2']]
    """
    buckets: list[list[Parameter]] = []
    filled = 0
    for parameter in parameters:
        if not buckets or filled + parameter.elements > elements:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.elements
    return buckets


def fill_buckets(parameters: Sequence[Parameter], key: str, limits: Sequence[int]) -> list[list[Parameter]]:
    """Return parameters in buckets, in the order in which they close; each data type has its own.

    Parameters
    ----------
    parameters : sequence of Parameter
    key : {"nbytes", "elements"}
    limits : sequence of int
        Sizes at which the first bucket of a data type closes, the second, ...; the last holds for all others.

    Examples
    --------
    >>> given = [Parameter(f"w{n}", "", "", 4 * n, n, None) for n in (6, 5, 4, 9, 2)]
    >>> [[each.name for each in bucket] for bucket in fill_buckets(given, "elements", [3, 10])]
    [['w6'], ['w5', 'w4', 'w9'], ['w2']]
    """
    buckets: list[list[Parameter]] = []
    open_: dict[str | None, list[Parameter]] = {}
    filled, closed = Counter[str | None](), Counter[str | None]()
    for parameter in parameters:
        open_.setdefault(parameter.dtype, []).append(parameter)
        filled[parameter.dtype] += getattr(parameter, key)
        if filled[parameter.dtype] >= limits[min(closed[parameter.dtype], len(limits) - 1)]:
            buckets.append(open_.pop(parameter.dtype))
            filled[parameter.dtype] = 0
            closed[parameter.dtype] += 1
    return [*buckets, *open_.values()]


_FIRST_BYTES: Final = 2**20
_CAP_BYTES: Final = 25 * 2**20
_REPLICAS: Final[Mapping[str, str]] = {"communicator": "data parallel"}


class DistributedDataParallel(DataParallel):
    """Run a training step on replicas that sum their gradients.

    Parameters
    ----------
    ranks : int or list of str, optional
        Number of ranks, or their devices; by default all accelerators of the machine.
    bucket_size_bytes : int, optional
        Size at which every bucket closes; by default the first at 1 MiB and the others at 25 MiB.
    first_step : bool
        Whether this is the first step, which has one bucket per data type.
    find_unused_parameters : bool
        Whether buckets are in order of registration and never rebuilt.
    overlap : bool
        Whether a bucket is summed as early as possible; otherwise all are summed in turn after the backward.

    Examples
    --------
    >>> from policies.rewrite.backward import TrainingRewrite
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two layers")
    >>> _ = b.input("x", 400), b.parameter("w", 800), b.parameter("v", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> _ = b.op("b", kind="matmul", inputs=["a", "v"], outputs=400, flops=1000)
    >>> step = DistributedDataParallel(2, bucket_size_bytes=800).apply(TrainingRewrite().apply(b.build()))
    >>> [name for name in step.op_names if name.startswith("gpu0/")][4:]
    ['gpu0/b/weight_grad', 'gpu0/all_reduce0', 'gpu0/a/weight_grad', 'gpu0/all_reduce1', 'gpu0/w/update', \
'gpu0/v/update']
    """

    name = "ddp"

    def __init__(
        self,
        ranks: int | list[str] | None = None,
        bucket_size_bytes: int | None = None,
        first_step: bool = False,
        find_unused_parameters: bool = False,
        overlap: bool = True,
    ) -> None:
        super().__init__(ranks)
        self.cap = None if bucket_size_bytes is None else self.whole("bucket_size_bytes", bucket_size_bytes)
        self.first_step, self.find_unused, self.overlap = first_step, find_unused_parameters, overlap

    def buckets(self, step: TrainingStep) -> list[list[Parameter]]:
        """Return the parameters of each bucket, in the order of launch."""
        if self.find_unused:
            return fill_buckets(step.parameters, "nbytes", [_FIRST_BYTES, self.cap or _CAP_BYTES])[::-1]
        if self.first_step:
            total = max(1, sum(parameter.nbytes for parameter in step.parameters))
            return fill_buckets(step.parameters, "nbytes", [total])[::-1]
        limits = [self.cap] if self.cap else [_FIRST_BYTES, _CAP_BYTES]
        return fill_buckets(step.in_ready_order(), "nbytes", limits)

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        program = HostProgram(TrainingStep(graph), "ddp")
        reduce_in_buckets(program, self.buckets(program.step), overlap=self.overlap)
        return program.graph()


def reduce_in_buckets(
    program: HostProgram,
    buckets: Sequence[Sequence[Parameter]],
    *,
    overlap: bool = True,
    strict: bool = True,
    parts: int = 1,
    waits: Callable[[OpEntry], str | None] = lambda record: None,
    meets: Sequence[Mapping[str, str]] = (),
) -> None:
    """Issue forward and backward, a sum of each bucket, and after the last the updates, which read the sums.

    Parameters
    ----------
    program, buckets
    overlap : bool
        Whether a bucket is launched when it is ready, rather than after the backward.
    strict : bool
        Whether a bucket waits until all earlier ones have been launched.
    parts : int
        Number of parts of which a rank keeps one (reduce_scatter); 1: all_reduce.
    waits : callable
        Additional dependency of an op.
    meets : sequence of mapping
        Attributes that identify the ranks over which each bucket is summed; by default all replicas.
    """
    step, kind = program.step, "all_reduce" if parts == 1 else "reduce_scatter"
    last = None
    ready_at = [max(step.ready_at[param.gradient] for param in bucket) for bucket in buckets]
    summed: dict[str, str] = {}
    pending = list(range(len(buckets)))
    for k, record in enumerate(step.work):
        program.compute(record, after=[waits(record)])
        is_last = k == len(step.work) - 1
        ready = [bucket for bucket in pending if is_last or (overlap and ready_at[bucket] <= k)]
        if strict:  # up to the first that is left and not ready
            ready = [bucket for bucket, turn in zip(ready, pending, strict=False) if bucket == turn]
        for bucket in ready:
            gradients = [param.gradient for param in buckets[bucket]]
            sizes = [param.nbytes if parts == 1 else shard_nbytes(param, parts) for param in buckets[bucket]]
            after = [] if overlap else [record.name]
            where: dict[str, Any] = {"stream": kind, **(meets[bucket] if meets else _REPLICAS)}
            if parts > 1:
                where["nbytes"] = parts * sum(sizes)
            last = program.add(f"{kind}{bucket}", kind, gradients, sizes, after=after, **where)
            summed |= {gradient: output_name(last, i) for i, gradient in enumerate(gradients)}
        pending = [bucket for bucket in pending if bucket not in ready]
    program.update(last, summed)


class MegatronDDP(DataParallel):
    """Run a training step on replicas as Megatron-LM does.

    Megatron-LM's DistributedDataParallel: buckets of parameters in reverse order, summed as they become
    ready.

    ::

      compute           F F F F │ B3  B2  B1  B0        │ U U U U
      reduce_scatter            │         [ b0 ] [ b1 ] │
      param_gather              [ g1 ] F0 F1 [ g0 ] F2 F3      the first reader of a bucket waits for it,
                                                               and then the next one is gathered

    A bucket closes once it has ``bucket_size`` elements: 40 million, or one million per rank if that is more.
    Without ``overlap``, and on pipeline ranks after the first, there is only one. Buckets do not wait for
    one another. With the distributed optimizer a rank updates a part of each bucket, and updated parameters
    are gathered bucket by bucket, after the step or during the next forward.

    Sources: megatron/core/distributed/distributed_data_parallel.py, param_and_grad_buffer.py
    (``_compute_default_per_buffer_param_layout``, ``register_grad_ready``, ``finish_param_sync``).

    Parameters
    ----------
    ranks : int or list of str, optional
        Number of ranks, or their devices; by default all accelerators of the machine.
    bucket_size : int, optional
        Elements; by default 40 million, or a million per rank if that is more.
    overlap : bool or list of {"grad_reduce", "param_gather"}
        Communication to overlap: reducing buckets during the backward (true), gathering updated parameters
        during the forward.
    sharding : str
        ``zero-1``: each rank updates a part (the distributed optimizer); or ``none``.

    Examples
    --------
    >>> MegatronDDP(64).bucket_size, MegatronDDP(64, bucket_size=5).bucket_size
    (64000000, 5)
    """

    name = "megatron-ddp"

    def __init__(
        self,
        ranks: int | list[str] | None = None,
        bucket_size: int | None = None,
        overlap: bool | Sequence[Literal["grad_reduce", "param_gather"]] = True,
        sharding: str = "none",
    ) -> None:
        super().__init__(ranks)
        self._bucket_size = None if bucket_size is None else self.whole("bucket_size", bucket_size)
        if isinstance(overlap, bool):
            overlap = ["grad_reduce"] if overlap else []
        names = name_list(self.name, "overlap", overlap)
        for name in names:
            one_of(self.name, "overlap", name, ("grad_reduce", "param_gather"))
        self.overlap, self.gather_ahead = "grad_reduce" in names, "param_gather" in names
        self.distributed = one_of(self.name, "sharding", sharding, ("none", "zero-1")) != "none"
        if self.gather_ahead and not self.distributed:
            message = "param_gather has no effect without sharding: zero-1: nothing is gathered"
            raise InputError(f"megatron-ddp: overlap: {message}", path=("overlap",))

    @property
    def bucket_size(self) -> int:
        """Elements at which a bucket closes."""
        return self._bucket_size or max(40_000_000, 1_000_000 * (self.ranks.n or 1))

    def buckets(self, step: TrainingStep) -> list[list[Parameter]]:
        """Return the parameters of each bucket, from the last parameter to the first."""
        order, several = step.parameters[::-1], self.overlap and not self.pipeline_rank
        limit = self.bucket_size if several else sum(parameter.elements for parameter in order) + 1
        return fill_buckets(order, "elements", [limit])

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        program = HostProgram(TrainingStep(graph), "Megatron DDP")
        parts = n if self.distributed else 1
        buckets = self.buckets(program.step)
        program.shard(parts, parameters=False)
        gather = _Gather(program, buckets, parts)
        reduce_in_buckets(
            program,
            buckets,
            overlap=self.overlap,
            strict=False,
            parts=parts,
            waits=gather.before if self.gather_ahead else lambda record: None,
        )
        if self.distributed and not self.gather_ahead:
            for k in reversed(range(len(buckets))):
                gather.launch(k, [(update.name, 0) for update in program.updates], COMPUTE)
        return program.graph()


class _Gather:
    """Gathers updated parameters bucket by bucket, beginning with the first parameters."""

    def __init__(self, program: HostProgram, buckets: list[list[Parameter]], parts: int) -> None:
        self.program, self.buckets, self.parts = program, buckets, parts
        self.bucket_of = {parameter.name: k for k, bucket in enumerate(buckets) for parameter in bucket}
        self.launched: dict[int, str] = {}
        self.waited: set[int] = set()

    def launch(self, k: int, after: list[tuple[str, int]], stream: str = "all_gather") -> None:
        """Gather a bucket unless it has been gathered."""
        if k in self.launched:
            return
        nbytes = self.parts * sum(shard_nbytes(parameter, self.parts) for parameter in self.buckets[k])
        where: dict[str, Any] = {"stream": stream, **_REPLICAS, "nbytes": nbytes}
        self.launched[k] = self.program.add(f"all_gather{k}", "all_gather", [], [], after=after, **where)

    def before(self, record: OpEntry) -> str | None:
        """Return the gather of the bucket that an op reads, and launch the next gather after it."""
        if record.phase != "F":
            return None
        read = dict.fromkeys(self.bucket_of[tensor] for tensor in record.reads if tensor in self.bucket_of)
        first = [k for k in read if k not in self.waited]
        self.waited.update(first)
        for k in first:
            for bucket in (k, k - 1) if k else (k,):
                self.launch(bucket, [(self.program.updates[-1].name, 1)])
        return next((name for k, name in reversed(self.launched.items()) if k in first), None)
