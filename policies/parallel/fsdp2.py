"""PyTorch's ``fully_shard`` (FSDP2): a rank keeps a shard of each parameter and gathers a module to use it.

::

    copy in      c0   c1     c2                    the host issues: c0 a0 o0 F0 | c1 a1 o1 F1 | ...
    all_gather     a0   a1     a2                  so a1 runs beside F0 only if the host is ahead
    compute           o0 F0 o1 F1 o2 F2            o: copy out, into the parameters that F reads
                                └ a(i+1) and c(i+1) wait for o(i-1): at most two outputs are alive

    all_gather        a1            a0             in the backward a(i-1) is issued before B(i)
    compute      B2 d2 | o1 B1 d1 | o0 B0 d0       d: copy in of gradients; d(i) waits for r(i+1)
    reduce_scatter     r2         r1        r0     the updates wait for all

The root (all ops outside modules) is gathered once and keeps its parameters until the end of its backward.
A module whose input needs no gradient is reduced after all others, with the root. If parameters are sharded
over fewer than all ranks (HSDP), gradients are then summed over the groups on a separate stream.

With several micro-batches (``gradient-accumulation``) each one is such a step. Its gradient shards are added
to the earlier ones on the stream that reduced them, and compute waits for that at the end of each. After
``pipeline-parallel`` nothing is reduced before the last backward, when all modules are, root first;
parameters stay after a backward.

Both kinds of collective use one communicator, which is a queue: an all_gather issued after a reduce_scatter
runs after it.

Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (``unshard``, ``wait_for_unshard``,
``pre_backward``, ``post_backward``, ``finalize_backward``), _fsdp_state.py (``_root_pre_forward``,
``_post_forward``, ``_root_post_backward_final_callback``), _fsdp_collectives.py (``foreach_reduce``) and
torch/distributed/pipelining/stage.py (``backward_maybe_with_nosync``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar

from policies.option_checks import pattern_of
from policies.parallel.accumulation import are_in_turn, micro_batches
from policies.parallel.rank_grid import REPLICAS, REPLICATE, DataParallel
from policies.parallel.training_step import ROOT, HostProgram, Module, Modules, TrainingStep, shard_nbytes
from policies.rewrite.records import Edge, OpEntry
from sim import Graph
from sim.base.errors import InputError, UnknownNameError
from sim.graph.graph import output_name

_Pass = Literal["forward", "backward"]
_Prefetch = int | dict[str, list[str]]

_COPY_IN: Final = "all_gather_copy_in"


class FullyShard(DataParallel):
    r"""Run a training step on ranks that shard all parameters.

    Parameters
    ----------
    ranks : int or list of str, optional
        Number of ranks, or their devices; by default all accelerators of the machine.
    wrap : str, optional
        Regular expression for modules: ops with the same match in their names are one module, such as
        ``layer\d+``, and all others the root. By default every op that reads a parameter is a module.
    shard : int, optional
        Number of neighbouring ranks over which parameters are sharded, by default all; fewer is HSDP.
    reshard_after_forward : bool
        Whether modules free their parameters between forward and backward.
    prefetch : mapping, optional
        ``{forward: 2, backward: {l3: [l1]}}``: for each module, how many or which later modules are gathered
        before it computes (``set_modules_to_forward_prefetch``, ``..._backward_prefetch``). By default none
        in the forward and the next one in the backward.
    separate_all_gather : bool
        Whether all_gather has its own communicator.
    requires_gradient_sync : bool
        Whether gradients of every micro-batch are reduced (PyTorch's default); otherwise they are added up
        unsharded and reduced in the last (``set_requires_gradient_sync(False)`` in the others).
    reshard_after_backward : bool
        Whether modules free their parameters between the backward of a micro-batch and the next forward.

    Examples
    --------
    >>> from policies.rewrite.backward import TrainingRewrite
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two layers")
    >>> _ = b.input("x", 400), b.parameter("w", 800), b.parameter("v", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> _ = b.op("b", kind="matmul", inputs=["a", "v"], outputs=400, flops=1000)
    >>> step = FullyShard(2).apply(TrainingRewrite().apply(b.build()))
    >>> [name[5:] for name in step.op_names if name.startswith("gpu0/")][:4]
    ['a/copy_in', 'a/all_gather', 'a/copy_out', 'a']
    """

    name = "fsdp2"

    def __init__(
        self,
        ranks: int | list[str] | None = None,
        wrap: str | None = None,
        shard: int | None = None,
        reshard_after_forward: bool = True,
        prefetch: Mapping[_Pass, _Prefetch] | None = None,
        separate_all_gather: bool = False,
        requires_gradient_sync: bool = True,
        reshard_after_backward: bool = True,
    ) -> None:
        super().__init__(ranks)
        self.wrap = None if wrap is None else pattern_of(wrap).pattern
        self.shard = None if shard is None else self.whole("shard", shard)
        if self.ranks.n is not None:
            self.sizes(self.ranks.n)
        self.reshard, self.separate = reshard_after_forward, separate_all_gather
        self.requires_gradient_sync = requires_gradient_sync
        self.reshard_after_backward = reshard_after_backward
        self.prefetch: dict[_Pass, _Prefetch] = {"forward": 0, "backward": 1, **(prefetch or {})}
        for modules in self.prefetch.values():
            if not isinstance(modules, dict):
                self.whole("prefetch", modules, least=0)

    def sizes(self, n: int) -> dict[str, int]:
        """Return the dimensions: neighbours shard parameters, and every n-th rank sums what they reduced."""
        shard = self.shard or n
        if n % shard:
            message = f"{n} ranks cannot be divided into groups of {shard}"
            raise InputError(f"fsdp2: shard: {message}", path=("shard",))
        return {"dp": n} if shard == n else {"dp": shard, REPLICAS: n // shard}

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        return _Host(self, TrainingStep(graph), n).run()


# ----------------------------------------------------------------------------------------------------------
# The hooks at entry and exit of modules: a state machine without a clock or ops. `_Host` writes its actions
# op by op, and `workload: {train: ...}` (`scenarios.builders.train.step`) block by block.


H = TypeVar("H")


class FullyShardHooks(ABC, Generic[H]):
    """Gathers modules as they are entered; override the writers `all_gather`, `copy_out` and `reduce`.

    Attributes
    ----------
    names : list of str
        All modules, in forward order.
    keep : bool
        Whether modules keep their parameters after their backward.
    may_gather : list
        Dependencies of the all_gather streams.
    """

    def __init__(self, policy: FullyShard) -> None:
        self.policy, self.keep = policy, not policy.reshard_after_backward
        self.names: list[str] = []
        self.gathered: dict[str, H] = {}
        """Module → its all_gather, not waited for yet."""
        self.unsharded: set[str] = set()
        self.may_gather: list[H] = []
        self.copied_out: H | None = None
        """The copy out that they will wait for, in the forward, after the wait for the next module."""
        self.post_forward: list[str] = []

    @abstractmethod
    def all_gather(self, module: str, after: Sequence[H], *, backward: bool) -> H:
        """Write the gather of a module for a forward or backward, after `after`, on separate streams."""

    @abstractmethod
    def copy_out(self, module: str, gathered: H) -> H | None:
        """Write the copy of gathered data into parameters; return it (None: it depends on nothing)."""

    @abstractmethod
    def reduce(self, module: str) -> None:
        """Write the reduction of a module's gradients, after its backward."""

    def begin(self, after: Sequence[H]) -> None:
        """Begin a micro-batch whose first gathers wait for `after`."""
        self.may_gather, self.copied_out, self.post_forward = list(after), None, []

    def pre_forward(self, module: str) -> None:
        """Gather a module and wait for it; gather the listed ones before it computes."""
        self._enter(module, self.names, "forward")

    def leave_forward(self, module: str) -> None:
        """Note that a module has computed."""
        self.post_forward.append(module)
        if self.policy.reshard:
            self.unsharded.discard(module)

    def turn(self, root: str | None) -> None:
        """End the forward and begin the backward with the root, which keeps its parameters in between."""
        if self.copied_out is not None:
            self.may_gather = [self.copied_out]
        self.copied_out = None
        if root is not None:
            self.post_forward.append(root)
            self.pre_backward(root)

    def pre_backward(self, module: str) -> None:
        """Gather a module unless it has been, wait for it, and gather the next."""
        self._enter(module, self.post_forward[::-1], "backward")

    def leave_backward(self, module: str, *, reduces: bool = True) -> None:
        """End the backward of a module; reduce its gradients, or keep them for another micro-batch."""
        if not self.keep:
            self.unsharded.discard(module)
        if reduces:
            self.reduce(module)

    def modules_ahead(self, setting: _Prefetch, module: str, order: list[str]) -> list[str]:
        """Return the modules to gather ahead of a module."""
        if isinstance(setting, dict):
            for name in [*setting, *setting.get(module, [])]:
                if name not in self.names:
                    raise UnknownNameError("module", name, self.names)
            return setting.get(module, [])
        start = order.index(module) + 1
        return order[start : start + setting]

    def _enter(self, module: str, order: list[str], way: _Pass) -> None:
        """Gather a module, wait for it, and gather those that are due before it computes."""
        ahead, backward = self.modules_ahead(self.policy.prefetch[way], module, order), way == "backward"
        self._unshard(module, backward=backward)
        if module in self.gathered:
            waited = self.copy_out(module, self.gathered.pop(module))
            self.unsharded.add(module)
            if not backward:  # the next gathers wait for the copy of the module before, not for this one
                waited, self.copied_out = self.copied_out, waited
            if waited is not None:
                self.may_gather = [waited]
        for other in ahead:
            self._unshard(other, backward=backward)

    def _unshard(self, module: str, *, backward: bool) -> None:
        """Gather a module unless it is there or being gathered."""
        if module not in self.gathered and module not in self.unsharded:
            self.gathered[module] = self.all_gather(module, self.may_gather, backward=backward)


class _Host(FullyShardHooks[str]):
    """The host of a rank, hook by hook."""

    def __init__(self, policy: FullyShard, step: TrainingStep, n: int) -> None:
        super().__init__(policy)
        self.step, self.n = step, n
        self.in_turn = are_in_turn(step)
        self.keep = self.keep or not self.in_turn
        self.program = HostProgram(step, "fsdp2")
        self.synchronised = policy.requires_gradient_sync and self.in_turn
        self.batches = micro_batches(step, added_up=not self.synchronised)
        self.modules: dict[str, Module] = {}
        self.program.shard(n)
        self.prefix = ""
        """Prefix of names in this micro-batch, if there are several."""
        self.scattered: str | None = None
        self.reduced: str | None = None
        self.last = ""
        """The last op issued on the compute stream."""
        self.waits: str | None = None
        """Dependencies of compute before the next micro-batch."""

    def run(self) -> Graph:
        """Issue the whole step."""
        turns = [Modules(batch, self.policy.wrap, k) for k, batch in enumerate(self.batches)]
        self.names = [*turns[0].named]
        done = [0] * len(turns)
        for record in self.step.work:
            k = (record.micro_batch or 0) if len(turns) > 1 else 0
            index, work = done[k], self.batches[k].work
            if index == len(work) or work[index] is not record:
                continue  # a gradient that is added up after its reduction
            done[k] += 1
            self._op(turns[k], index, record)
            if done[k] == len(work) and self.in_turn:
                self._end(turns[k])
        if not self.in_turn:
            self.modules = turns[-1].named
            for name in self.names:
                self.reduce(name)
        self.program.update(self.reduced)
        return self.program.graph()

    def _op(self, modules: Modules, index: int, record: OpEntry) -> None:
        """Issue an op of forward or backward, with the hooks' actions before and after it."""
        several = len(self.batches) > 1
        self.prefix, self.modules = f"micro{modules.number}/" if several else "", modules.named
        if index == 0 and modules.number and self.in_turn:
            self.begin([last for last in (self.last, self.waits) if last])
        if index == 0 and modules.root:
            self.pre_forward(ROOT)
        if index == modules.turn:
            self.turn(ROOT if modules.root else None)
        if index in modules.enter:
            self.pre_forward(modules.enter[index].name)
        if index in modules.back:
            self.pre_backward(modules.back[index].name)
        self.program.compute(record, after=[self.waits])
        self.last, self.waits = record.name, None
        if index in modules.leave:
            self.leave_forward(modules.leave[index].name)
        if index in modules.over and self.in_turn:
            self._leave(modules, modules.over[index])

    def _leave(self, modules: Modules, module: Module) -> None:
        """End the backward of a module."""
        last = modules.number + 1 == len(self.batches)
        self.leave_backward(module.name, reduces=self.synchronised or last)

    def _end(self, modules: Modules) -> None:
        """End a micro-batch: compute waits for the reductions."""
        for module in modules.all:
            if module is modules.root or module not in modules.over.values():
                self._leave(modules, module)
        self.waits = self.reduced

    def all_gather(self, module: str, after: Sequence[str], *, backward: bool) -> str:
        """Write copy in and all_gather on separate streams, the first ones after the previous step."""
        waits: list[str | Edge] = [*after] or [(self.step.updates[-1].name, 1)]
        entry, name = self.modules[module], f"{self.prefix}{module}/{'backward_' if backward else ''}"
        shard = sum(shard_nbytes(param, self.n) for param in entry.parameters)
        copied = self.program.add(
            f"{name}copy_in", "copy_in", entry.names, [shard], after=waits, stream=_COPY_IN
        )
        where = {"stream": "all_gather", "communicator": "all_gather" if self.policy.separate else "shard"}
        return self.program.add(
            f"{name}all_gather", "all_gather", [copied], [self.n * shard], after=waits, **where
        )

    def copy_out(self, module: str, gathered: str) -> str:
        """Copy gathered data into the parameters that the module reads."""
        name, parameters = f"{gathered.rpartition('all_gather')[0]}copy_out", self.modules[module].parameters
        copied = self.program.add(name, "copy_out", [gathered], [param.nbytes for param in parameters])
        for k, param in enumerate(parameters):
            self.program.instead[param.name] = output_name(copied, k)
        return copied

    def reduce(self, module: str) -> None:
        """Copy gradients together once the previous reduce_scatter is over, and reduce them."""
        name, parameters = f"{self.prefix}{module}", self.modules[module].parameters
        shards = [shard_nbytes(param, self.n) for param in parameters]
        gradients = [param.gradient for param in parameters]
        add, all_ = self.program.add, [self.n * sum(shards)]
        copied = add(f"{name}/reduce_copy_in", "copy_in", gradients, all_, after=[self.scattered])
        stream, where = "reduce_scatter", {"communicator": "shard"}
        last = self.scattered = add(f"{name}/{stream}", stream, [copied], shards, stream=stream, **where)
        if self.policy.shard not in (None, self.policy.ranks.n):
            stream, where = "all_reduce", {"communicator": REPLICATE, "dimension": REPLICAS}
            tensors = [output_name(last, k) for k in range(len(shards))]
            last = add(f"{name}/{stream}", stream, tensors, shards, stream=stream, **where)
        self.reduced = self.program.add_parts(self.prefix, parameters, last, self.n, stream)
