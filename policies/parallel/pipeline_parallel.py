"""Pipeline parallelism: each rank has some stages of a training step, and runs micro-batches by a schedule.

::

    1f1b   rank 0   F0 F1 .  .  B0 F2 .  B1 ...    a rank receives before a slot and sends after it, on
           rank 1   .  F0 B0 F1 B1 ...             streams that wait for everything issued before

The order of a rank is that of any schedule of `policies.pipeline` with each stage on one rank. Gradients are
added up over micro-batches. A parameter that several stages read (embedding and head) is on each of them, and
its gradients are summed at the end, after those of replicas, as in Megatron-LM.

Ops carry their stage (attribute ``stage``, or the rewrite ``stages`` before ``training``). Sums of gradients
belong to the stage whose gradients they add, so that one tensor is sent back for each one sent.

Sources: Narayanan et al., arXiv 2104.04473; megatron/core/pipeline_parallel/schedules.py;
megatron/core/distributed/finalize_model_grads.py (``_allreduce_word_embedding_grads``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from policies.option_checks import pattern_of, whole
from policies.parallel.accumulation import add_up, refuse_micro_batches, rename_for
from policies.parallel.rank_grid import Grid, OnRanks, Ranked, Ranks
from policies.parallel.training_step import (
    COMPUTE,
    TrainingStep,
    exchange,
    on_compute,
    parts_of_gradients,
)
from policies.pipeline.pipeline_schedule import Action, Schedule
from policies.pipeline.registry import generate
from policies.rewrite.records import OpEntry, Records, write
from sim import Graph
from sim.base.arrays import group_pairs
from sim.base.errors import GraphError, InputError


class PipelineParallel(OnRanks):
    """Run a training step on ranks that each have some of its stages.

    Parameters
    ----------
    ranks : int or list of str
        Number of ranks, or their devices; a number means accelerators of the machine, in machine order.
    micro_batches : int
        Number of micro-batches per step; each is a batch of the graph.
    policy : str
        ``1f1b``, ``gpipe``, ``interleaved-1f1b``, ``zb-h1``, ...
    chunks : int, optional
        Stages per rank, for schedules that have several.

    Raises
    ------
    InputError
        If the schedule is unknown, or has overlapping slots or a stage on several ranks.
    GraphError
        If ops have no stage, or their stages are not those of the schedule (when applied).
    """

    def __init__(
        self, ranks: int | list[str], micro_batches: int, policy: str = "1f1b", chunks: int | None = None
    ) -> None:
        self.ranks = Ranks.of("pipeline-parallel", ranks)
        n = whole("pipeline-parallel", "micro_batches", micro_batches)
        assert self.ranks.n is not None
        self.schedule: Schedule = generate(policy, ranks=self.ranks.n, micro_batches=n, chunks=chunks)
        slots = [slot for program in self.schedule.programs for slot in program]
        plain = all(isinstance(slot, Action) and slot.phase in "FBIW" for slot in slots)
        if len(self.schedule.placements) > 1 or not plain:
            message = f"{policy} has slots that overlap, recompute, or stages on several ranks"
            raise InputError(f"pipeline-parallel: {message}", path=("policy",))

    def rewrite_ranks(self, ranked: Ranked) -> Ranked:
        """Return the ranks that each have some stages."""
        ranked.refuse(["dp"], "pipeline-parallel comes before the rewrite for replicas")
        added = {"pp": ranked.room("pipeline-parallel", self.ranks)}
        return ranked.multiply(added, self._program, names=self.ranks.names, varies=added)

    def _program(self, graph: Graph, grid: Grid, coords: Mapping[str, int]) -> Graph:
        """Return the program of one rank."""
        return write(_Rank(TrainingStep(graph), self.schedule, coords["pp"]).records)


class _Rank:
    """Writes the program of a rank, slot by slot."""

    def __init__(self, step: TrainingStep, schedule: Schedule, rank: int) -> None:
        refuse_micro_batches(step, "pipeline-parallel")
        self.step, self.place, self.rank = step, schedule.stage_to_rank, rank
        self.old = step.records
        self.records = Records(f"{self.old.name} (pipeline parallel)", {}, {})
        self.parts = parts_of_gradients(self.old, {param.gradient: param.name for param in step.parameters})
        self.stage = self._stages(schedule.stages)
        self.local = self._gradients()
        self.cells = group_pairs(
            ((self.stage[op.name], op.phase == "F"), op) for op in step.work if op.name in self.stage
        )
        self.crossing = self._crossing()
        self.total: dict[tuple[str, int], str] = {}
        """Gradient, stage → sum so far."""
        self.finished: dict[str, str] = {}
        """Sum over tensor-parallel ranks in the graph → its name here."""
        self.last = ""
        for slot in schedule.programs[rank]:
            assert isinstance(slot, Action)
            self.run(slot)
        self._update()
        read_ = {tensor for record in self.records.ops.values() for tensor in record.reads}
        self.records.externals = {n: e for n, e in self.records.externals.items() if n in read_}

    # -- stages ---------------------------------------------------------------------------------

    def _stages(self, n: int) -> dict[str, int]:
        """Return the stage of each op; a sum of gradients has that of its terms, None if they differ."""
        stage_of: dict[str, int] = {}
        for record in self.step.work:
            if record.stage is None or not 0 <= record.stage < n:
                says = "says no stage" if record.stage is None else f"is of stage {record.stage}"
                message = f"op {record.name!r} {says}, and the schedule has stages 0 to {n - 1}"
                raise GraphError(f"{message}; let the rewrite stages cut the forward").about(record.name)
            makers = [p for p in self.old.makers(record.inputs) if p.name in stage_of]
            sources = {stage_of[p.name] for p in makers if p.phase != "F"}
            adds = record.kind in ("add_n", "add", "all_reduce", "reduce_scatter")
            if record.phase != "F" and adds and len(sources) == 1:
                stage_of[record.name] = max(sources)
            elif record.name in self.parts and len(sources) > 1:
                continue  # a sum for a parameter on several stages
            else:
                stage_of[record.name] = record.stage
        if (count := len({*stage_of.values()})) < n:
            raise GraphError(f"graph {self.old.name!r} has {count} stages, the schedule has {n}")
        return stage_of

    def _gradients(self) -> dict[str, dict[int, str]]:
        """Return gradient → stage → the tensor that the stage has of it."""
        gradients: dict[str, dict[int, str]] = {}
        for parameter in self.step.parameters:
            maker = self.old.maker(parameter.gradient)
            by_stage = gradients.setdefault(parameter.gradient, {})
            for tensor in [parameter.gradient] if maker.name in self.stage else maker.reads:
                stage = self._stage_of(tensor)
                if stage is None or stage in by_stage:
                    message = (
                        f"parameter {parameter.name!r} has several gradients in a stage that others have, too"
                    )
                    raise GraphError(f"{message}; pipeline-parallel takes one a stage")
                by_stage[stage] = tensor
        return gradients

    def _stage_of(self, tensor: str) -> int | None:
        """Return the stage that computes a tensor."""
        producer = self.old.producer(tensor)
        return None if producer is None else self.stage.get(producer.name)

    def _crossing(self) -> dict[tuple[int, int, bool], list[str]]:
        """Return (from stage, to stage, forward) → tensors sent, in the order computed."""
        crossing: dict[tuple[int, int, bool], dict[str, None]] = {}
        order = {tensor: (k, r.phase == "F") for k, r in enumerate(self.step.work) for tensor in r.tensors}
        for record in self.step.work:
            sink = self.stage.get(record.name)
            for tensor in record.reads:
                source = self._stage_of(tensor)
                if sink is None or source is None or self.place[sink] == self.place[source]:
                    continue
                crossing.setdefault((source, sink, order[tensor][1]), {})[tensor] = None
        return {key: sorted(row, key=order.__getitem__) for key, row in crossing.items()}

    # -- slots ----------------------------------------------------------------------------------

    def run(self, slot: Action) -> None:
        """Issue a slot: receive from other stages, compute, and send to other stages."""
        k, forward = slot.micro_batch, slot.phase == "F"
        for (source, sink, of_forward), tensors in self.crossing.items():
            if sink == slot.stage and of_forward == forward and slot.phase != "W":
                for tensor in tensors:
                    self._message("recv", tensor, source, sink, k)
        computed: list[str] = []
        gradients = {tensor: g for g, row in self.local.items() for tensor in row.values()}
        parameters = {parameter.gradient: parameter for parameter in self.step.parameters}
        for record in self.cells.get((slot.stage, forward), []):
            if slot.phase in "IW" and (record.phase == "W") != (slot.phase == "W"):
                continue
            copied = self.records.make(rename_for(record, self._names(record, slot.stage, k), k))
            copied.attributes = on_compute(copied)
            if copied.attributes["stream"] == COMPUTE:
                self.last = copied.name
            computed += record.tensors
            for output, tensor in enumerate(record.tensors):
                if tensor in gradients:
                    key = gradients[tensor], slot.stage
                    before = self.total.get(key)
                    self.total[key] = add_up(self.records, copied, output, before, parameters[key[0]])
                    if before is not None:
                        self.records.ops[self.total[key]].attributes = {"stream": COMPUTE}
        for tensor in computed:
            for (source, sink, _), tensors in self.crossing.items():
                if source == slot.stage and tensor in tensors:
                    self._message("send", tensor, source, sink, k)

    def _names(self, record: OpEntry, stage: int, k: int) -> dict[str, str]:
        """Return the names here of an op and of everything that it reads and follows."""
        names = {record.name: f"micro{k}/{record.name}"}
        for tensor in record.reads:
            names[tensor] = tensor if self.old.is_parameter(tensor) else f"micro{k}/{tensor}"
            source = self._stage_of(tensor)
            if source is None:
                self.records.externals[names[tensor]] = self.old.externals[tensor]
            elif self.place[source] != self.rank:
                names[tensor] += f"/recv{stage}"
        for name, _ in record.after:
            names.setdefault(name, f"micro{k}/{name}" if name in self.stage else name)
        return names

    def _message(self, kind: str, tensor: str, source: int, sink: int, k: int) -> None:
        """Send or receive a tensor, on a communicator and a stream of the two stages."""
        producer, nbytes = self.old.maker(tensor), self.old.nbytes(tensor)
        name, word = f"micro{k}/{tensor}", f"pipeline {source} to {sink}"
        if kind == "send":
            stage, other, reads, outputs = source, sink, [name], list[int]()
        else:
            stage, other, reads, outputs = sink, source, [], [nbytes]
        where = {"communicator": word, "dimension": "pp", "stream": word, "peer": str(self.place[other])}
        after = [self.last] if self.last and self.last != name else []
        op = exchange(producer, f"{name}/{kind}{sink}", kind, reads, nbytes, outputs, after=after, **where)
        op.stage, op.micro_batch = stage, k
        self.records.make(op)

    # -- updates --------------------------------------------------------------------------------

    def _update(self) -> None:
        """Sum gradients over the stages that share a parameter, and update this rank's parameters."""
        sums = {
            gradient: self.total.get((gradient, stage), f"micro0/{tensor}")
            for gradient, params in self.local.items()
            for stage, tensor in params.items()
            if self.place[stage] == self.rank
        }
        for record in self.step.updates:
            if record.name in self.step.finishing:
                self._sum_of_tensor_ranks(record, sums)
        for param in self.step.parameters:
            ranks = {self.place[stage] for stage in self.local[param.gradient]}
            if param.gradient in sums and len(ranks) > 1:
                name = f"{param.name}/all_reduce"
                self._collective(name, [sums[param.gradient]], [param.nbytes], f"shared {param.name}", "pp")
                sums[param.gradient] = name
        for update in self.step.updates:
            params = [param for param in self.step.parameters if param.update == update.name]
            trained = [param for param in params if param.gradient in sums]
            if update.name in self.step.finishing or not trained:
                continue
            part = Fraction(sum(p.nbytes for p in trained), max(1, sum(p.nbytes for p in params)))
            gone = {n for param in params if param not in trained for n in (param.name, param.gradient)}
            moved = {**self.finished, **sums}
            inputs = [(moved.get(t, t), d) for t, d in update.inputs if self._resolve(t) not in gone]
            self.records.externals |= {t: self.old.externals[t] for t, _ in inputs if t in self.old.externals}
            copied = update.scale(part)
            copied.inputs, copied.after = inputs, [(name, d) for name, d in update.after if d]
            copied.attributes = {**update.attributes, "stream": COMPUTE}
            self.records.make(copied)
        ops = self.records.ops
        for record in ops.values():
            record.after = [(name, d) for name, d in record.after if name in ops]

    def _resolve(self, tensor: str) -> str:
        """Return the gradient whose sum over tensor-parallel ranks a tensor is."""
        maker = self.old.producer(tensor)
        if maker is None or maker.name not in self.step.finishing:
            return tensor
        return maker.reads[maker.tensors.index(tensor)]

    def _sum_of_tensor_ranks(self, record: OpEntry, sums: dict[str, str]) -> None:
        """Sum this rank's gradients among those of which tensor-parallel ranks have parts."""
        pairs = [(k, tensor) for k, (tensor, _) in enumerate(record.inputs) if tensor in sums]
        if not pairs:
            return
        sizes, reads = [record.outputs[k] for k, _ in pairs], [sums[t] for _, t in pairs]
        self._collective(
            record.name, reads, sizes, record.attributes["communicator"], record.attributes["dimension"]
        )
        for new, (old, tensor) in enumerate(pairs):
            total = record.tensor(new)
            sums[tensor] = self.finished[record.tensor(old)] = total

    def _collective(self, name: str, reads: list[str], sizes: list[int], word: str, dimension: str) -> None:
        where = {"communicator": word, "dimension": dimension, "stream": COMPUTE, "nbytes": sum(sizes)}
        record = OpEntry(name, "all_reduce", [(tensor, 0) for tensor in reads], [], tuple(sizes))
        record.bytes_read = record.bytes_written = sum(sizes)
        record.attributes = where
        self.records.make(record)


class StageCut:
    r"""Cut a graph into stages.

    Stages: a forward graph is cut where the user says, so that ``pipeline-parallel`` can distribute it.

    ::

        partition: [layer4, layer8]      embed layer0 ... │ layer4 ... │ layer8 ... head      three stages

    Each pattern names the op that begins the next stage: the first in host order with a match in its name.
    The backward of an op, added by ``training``, belongs to the same stage.

    Parameters
    ----------
    partition : list of str
        Regular expressions for the first op of each stage but the first.

    Raises
    ------
    InputError
        If no op after the previous stage's first one matches a pattern (when applied).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", outputs=8), b.op("b", inputs=["a"], outputs=8), b.op("c", inputs=["b"])
    >>> StageCut(["b"]).apply(b.build()).stage.tolist()
    [0, 1, 1]
    """

    def __init__(self, partition: Sequence[str]) -> None:
        self.partition = [partition] if isinstance(partition, str) else list(partition)
        self.patterns = [pattern_of(pattern, "partition") for pattern in self.partition]

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with the stage number of each op."""
        order = graph.topological_order.tolist()
        stage, begin = np.zeros(len(graph), np.int64), 0
        for number, pattern in enumerate(self.patterns, start=1):
            matches = (k for k in range(begin + 1, len(order)) if pattern.search(graph.op_names[order[k]]))
            begin = next(matches, -1)
            if begin < 0:
                message = f"no op that could begin stage {number} has {self.partition[number - 1]!r} in it"
                raise InputError(message, path=("partition",))
            stage[order[begin:]] = number
        return replace(graph, stage=stage)
