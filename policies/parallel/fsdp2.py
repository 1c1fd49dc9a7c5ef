"""PyTorch's ``fully_shard`` (FSDP2): a rank keeps a part of each parameter, and gathers a module to use it.

::

    copy in      c0   c1     c2                    the host issues: c0 a0 o0 F0 | c1 a1 o1 F1 | ...
    all_gather     a0   a1     a2                  so a1 runs beside F0 only if the host is ahead
    compute           o0 F0 o1 F1 o2 F2            o: copy out, into the parameters that F reads
                                └ a(i+1) and c(i+1) wait for o(i-1): two outputs are alive, no more

    all_gather        a1            a0             in the backward a(i-1) is issued before B(i)
    compute      B2 d2 | o1 B1 d1 | o0 B0 d0       d: copy in of gradients; d(i) waits for r(i+1)
    reduce_scatter     r2         r1        r0     the updates wait for all

The root (all that is in no module) is gathered once and keeps its parameters until the end of its backward.
A module whose input needs no gradient is reduced after all others, with the root. With fewer ranks to shard
over than there are, gradients are then summed over the groups (HSDP) on a stream of their own.

Of several micro-batches (``gradient-accumulation``) each is such a step, whose parts of gradients are added
to those before on the stream that reduced them; compute waits for that at the end of each. Behind
``pipeline-parallel`` nothing is reduced before the last backward, and then all modules are, root first;
parameters stay after a backward.

Both kinds of collective go over one communicator, which is a queue: an all_gather that the host issues after
a reduce_scatter runs after it.

Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (``unshard``, ``wait_for_unshard``,
``pre_backward``, ``post_backward``, ``finalize_backward``), _fsdp_state.py (``_root_pre_forward``,
``_post_forward``, ``_root_post_backward_final_callback``), _fsdp_collectives.py (``foreach_reduce``) and
torch/distributed/pipelining/stage.py (``backward_maybe_with_nosync``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar

from policies.parallel.accumulation import are_in_turn, micro_batches
from policies.parallel.modules import ROOT, Module, Modules, pattern_of
from policies.parallel.program import HostProgram, shard_nbytes
from policies.parallel.rank_grid import REPLICAS, REPLICATE, DataParallel
from policies.parallel.training_step import TrainingStep
from policies.rewrite.records import Edge, OpEntry
from sim import Graph
from sim.base.errors import InputError, UnknownNameError
from sim.graph.graph import output_name

_Pass = Literal["forward", "backward"]
_Prefetch = int | dict[str, list[str]]

_COPY_IN: Final = "all_gather_copy_in"


class FullyShard(DataParallel):
    r"""Run a training step on ranks that share all parameters out.

    Parameters
    ----------
    ranks : int or list of str, optional
        How many, or which devices; by default all accelerators of the machine.
    wrap : str, optional
        What is a module: a regular expression; ops with the same match in their names are one, such as
        ``layer\d+``, all others the root. By default every op that reads a parameter.
    shard : int, optional
        Over how many neighbouring ranks parameters are shared out, by default all; fewer is HSDP.
    reshard_after_forward : bool
        Whether modules give their parameters up between forward and backward.
    prefetch : mapping, optional
        ``{forward: 2, backward: {l3: [l1]}}``: of each module how many of those that follow are gathered
        before it computes, or which (``set_modules_to_forward_prefetch``, ``..._backward_prefetch``). By
        default none in the forward, and in the backward the next one.
    separate_all_gather : bool
        Whether all_gather has a communicator of its own.
    requires_gradient_sync : bool
        Whether gradients of every micro-batch are reduced (PyTorch's default), or added up, whole, and
        reduced in the last (``set_requires_gradient_sync(False)`` in the others).
    reshard_after_backward : bool
        Whether modules give their parameters up between the backward of a micro-batch and the next forward.

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
        self.wrap = wrap
        pattern_of(wrap)
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
        """Neighbours share parameters; every n-th sums what they reduced."""
        shard = self.shard or n
        if n % shard:
            message = f"{n} ranks cannot be divided into groups of {shard}"
            raise InputError(f"fsdp2: shard: {message}", path=("shard",))
        return {"dp": n} if shard == n else {"dp": shard, REPLICAS: n // shard}

    def step(self, graph: Graph, n: int) -> Graph:
        """Return the step as each of `n` ranks runs it."""
        return _Host(self, TrainingStep(graph), n).run()


# ----------------------------------------------------------------------------------------------------------
# What hooks do as modules are entered and left: a machine of states that knows no clock and no ops. `_Host`
# writes it down op by op, `workload: {train: ...}` (`scenarios.builders.train.step`) block by block.


H = TypeVar("H")


class FullyShardHooks(ABC, Generic[H]):
    """Gathers modules as they are entered; override `all_gather`, `copy_out` and `reduce`, which write.

    Attributes
    ----------
    names : list of str
        All modules, in the order of their forwards.
    keep : bool
        Whether modules keep their parameters behind their backward.
    may_gather : list
        What the streams of all_gather wait for.
    """

    def __init__(self, of: FullyShard) -> None:
        self.of, self.keep = of, not of.reshard_after_backward
        self.names: list[str] = []
        self.gathered: dict[str, H] = {}
        """Module → its all_gather that nobody has waited for yet."""
        self.unsharded: set[str] = set()
        self.may_gather: list[H] = []
        self.copied_out: H | None = None
        """The copy out for which they will, in the forward, once the next module has been waited for."""
        self.post_forward: list[str] = []

    @abstractmethod
    def all_gather(self, module: str, after: Sequence[H], *, backward: bool) -> H:
        """Write what gathers a module for a forward or a backward, behind `after`, on streams of its own."""

    @abstractmethod
    def copy_out(self, module: str, gathered: H) -> H | None:
        """Write what makes parameters of what was gathered; return it (None: nothing is before it)."""

    @abstractmethod
    def reduce(self, module: str) -> None:
        """Write what reduces the gradients of a module, behind its backward."""

    def begin(self, after: Sequence[H]) -> None:
        """Begin a micro-batch whose first gathers wait for `after`."""
        self.may_gather, self.copied_out, self.post_forward = list(after), None, []

    def pre_forward(self, module: str) -> None:
        """Gather a module and wait for it; what is listed is gathered before it computes."""
        self._enter(module, self.listed(self.of.prefetch["forward"], module, self.names), backward=False)

    def leave_forward(self, module: str) -> None:
        """Note that a module has computed."""
        self.post_forward.append(module)
        if self.of.reshard:
            self.unsharded.discard(module)

    def turn(self, root: str | None) -> None:
        """End the forward, and begin the backward with the root, which keeps its parameters between them."""
        if self.copied_out is not None:
            self.may_gather = [self.copied_out]
        self.copied_out = None
        if root is not None:
            self.post_forward.append(root)
            self.pre_backward(root)

    def pre_backward(self, module: str) -> None:
        """Gather a module unless that was done, wait for it, and gather the next."""
        ahead = self.listed(self.of.prefetch["backward"], module, self.post_forward[::-1])
        self._enter(module, ahead, backward=True)

    def leave_backward(self, module: str, *, reduces: bool = True) -> None:
        """End the backward of a module, whose gradients are reduced, or kept for another micro-batch."""
        if not self.keep:
            self.unsharded.discard(module)
        if reduces:
            self.reduce(module)

    def listed(self, given: _Prefetch, module: str, order: list[str]) -> list[str]:
        """Return what is gathered ahead of a module."""
        if isinstance(given, dict):
            for name in [*given, *given.get(module, [])]:
                if name not in self.names:
                    raise UnknownNameError("module", name, self.names)
            return given.get(module, [])
        at = order.index(module) + 1
        return order[at : at + given]

    def _enter(self, module: str, ahead: Sequence[str], *, backward: bool) -> None:
        self._unshard(module, backward=backward)
        if module in self.gathered:
            if self.copied_out is not None and not backward:
                self.may_gather = [self.copied_out]
            copied = self.copy_out(module, self.gathered.pop(module))
            self.unsharded.add(module)
            if not backward:
                self.copied_out = copied
            elif copied is not None:
                self.may_gather = [copied]
        for other in ahead:
            self._unshard(other, backward=backward)

    def _unshard(self, module: str, *, backward: bool) -> None:
        """Gather a module, unless it is there or on its way."""
        if module not in self.gathered and module not in self.unsharded:
            self.gathered[module] = self.all_gather(module, self.may_gather, backward=backward)


class _Host(FullyShardHooks[str]):
    """The host of a rank, hook after hook."""

    def __init__(self, of: FullyShard, step: TrainingStep, n: int) -> None:
        super().__init__(of)
        self.step, self.n = step, n
        self.in_turn = are_in_turn(step)
        self.keep = self.keep or not self.in_turn
        self.program = HostProgram(step, "fsdp2")
        self.synchronised = of.requires_gradient_sync and self.in_turn
        self.batches = micro_batches(step, added_up=not self.synchronised)
        self.modules: dict[str, Module] = {}
        self.updates = self.program.shard(step, self.n)
        self.prefix = ""
        """What names of this micro-batch begin with, if there are several."""
        self.scattered: str | None = None
        self.reduced: str | None = None
        self.last = ""
        """What was issued last on the stream of all."""
        self.waits: str | None = None
        """What compute waits for before the next micro-batch."""

    def run(self) -> Graph:
        """Issue the whole step."""
        turns = [Modules(batch, self.of.wrap, k) for k, batch in enumerate(self.batches)]
        self.names = [*turns[0].named]
        done = [0] * len(turns)
        for record in self.step.work:
            k = (record.micro_batch or 0) if len(turns) > 1 else 0
            place, work = done[k], self.batches[k].work
            if place == len(work) or work[place] is not record:
                continue  # a gradient that is added up when it was reduced
            done[k] += 1
            self._op(turns[k], place, record)
            if done[k] == len(work) and self.in_turn:
                self._end(turns[k])
        for name in self.names if not self.in_turn else ():
            self.modules = turns[-1].named
            self.reduce(name)
        made = {each.gradient: self.program.parts[each.name] for each in self.step.parameters}
        self.program.update(self.updates, made, self.reduced)
        return self.program.graph()

    def _op(self, at: Modules, place: int, record: OpEntry) -> None:
        """Issue an op of forward or backward, and what hooks do before and behind it."""
        several = len(self.batches) > 1
        self.prefix, self.modules = f"micro{at.number}/" if several else "", at.named
        if place == 0 and at.number and self.in_turn:
            self.begin([last for last in (self.last, self.waits) if last])
        if place == 0 and at.root:
            self.pre_forward(ROOT)
        if place == at.turn:
            self.turn(ROOT if at.root else None)
        if place in at.enter:
            self.pre_forward(at.enter[place].name)
        if place in at.back:
            self.pre_backward(at.back[place].name)
        self.program.compute(record, after=[self.waits])
        self.last, self.waits = record.name, None
        if place in at.leave:
            self.leave_forward(at.leave[place].name)
        if place in at.over and self.in_turn:
            self._leave(at, at.over[place])

    def _leave(self, at: Modules, module: Module) -> None:
        """End the backward of a module."""
        last = at.number + 1 == len(self.batches)
        self.leave_backward(module.name, reduces=self.synchronised or last)

    def _end(self, at: Modules) -> None:
        """End a micro-batch: compute waits for what was reduced."""
        for module in at.all:
            if module is at.root or module not in at.over.values():
                self._leave(at, module)
        self.waits = self.reduced

    def all_gather(self, module: str, after: Sequence[str], *, backward: bool) -> str:
        """Copy in and all_gather, on streams of their own; the first ones behind the step before."""
        waits: list[str | Edge] = [*after] or [(self.step.updates[-1].name, 1)]
        name, parameters = f"{self.prefix}{module}/{'backward_' * backward}", self.modules[module].parameters
        shard, names = (
            sum(shard_nbytes(each, self.n) for each in parameters),
            [each.name for each in parameters],
        )
        copied = self.program.add(f"{name}copy_in", "copy_in", names, [shard], after=waits, stream=_COPY_IN)
        where = {"stream": "all_gather", "communicator": "all_gather" if self.of.separate else "shard"}
        return self.program.add(
            f"{name}all_gather", "all_gather", [copied], [self.n * shard], after=waits, **where
        )

    def copy_out(self, module: str, gathered: str) -> str:
        """Copy what was gathered into the parameters that the module reads."""
        name, parameters = f"{gathered.rpartition('all_gather')[0]}copy_out", self.modules[module].parameters
        copied = self.program.add(name, "copy_out", [gathered], [each.nbytes for each in parameters])
        for k, each in enumerate(parameters):
            self.program.instead[each.name] = output_name(copied, k)
        return copied

    def reduce(self, module: str) -> None:
        """Copy gradients together, once the reduce_scatter before is over, and reduce them."""
        name, parameters = f"{self.prefix}{module}", self.modules[module].parameters
        shards = [shard_nbytes(each, self.n) for each in parameters]
        gradients = [each.gradient for each in parameters]
        add, all_ = self.program.add, [self.n * sum(shards)]
        copied = add(f"{name}/reduce_copy_in", "copy_in", gradients, all_, after=[self.scattered])
        stream, where = "reduce_scatter", {"communicator": "shard"}
        last = self.scattered = add(f"{name}/{stream}", stream, [copied], shards, stream=stream, **where)
        if self.of.shard not in (None, self.of.ranks.n):
            stream, where = "all_reduce", {"communicator": REPLICATE, "dimension": REPLICAS}
            tensors = [output_name(last, k) for k in range(len(shards))]
            last = add(f"{name}/{stream}", stream, tensors, shards, stream=stream, **where)
        for k, each in enumerate(parameters):
            sum_ = self.program.add_part(self.prefix, each, output_name(last, k), self.n, stream)
            self.reduced = sum_ or last
