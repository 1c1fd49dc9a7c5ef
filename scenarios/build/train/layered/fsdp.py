"""A step under fully sharded data parallelism, as ops on two streams of one rank.

::

    compute        E  F0 F1 F2 .. H  BH B2 B1 B0 E'  clip Adam
    communication  AG0 AG1 AG2 .. AG2 AG1 RS2 AG0 RS1 RS0          one communicator: one after the other

Each layer is a unit; embedding and head belong to the root, which is gathered once a micro-batch. The gather
of unit i waits for the forward of unit i−2, so that two gathered units lie in memory at most; in the backward
the gather of unit i−1 is issued before the backward of i, and the scatter of i behind it. Every micro-batch
reduces its gradients. With HSDP the sums go over the replicas behind each scatter.

Sources: PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (``unshard``,
``_backward_prefetch``); Zhao et al., "PyTorch FSDP", arXiv 2304.11277, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from scenarios.build.pipeline.pipeline_end import BESIDE
from scenarios.build.train.layered.step_writer import StepWriter
from scenarios.build.train.memory import PARTS, Peak
from scenarios.build.train.training import Training
from sim import Graph

__all__ = ["fsdp_graph", "fsdp_peak"]


def fsdp_graph(training: Training) -> Graph:
    """Return the ops of a step on one rank, in the order in which its host issues them."""
    writer = _Writer(training)
    for k in range(training.micro_batches):
        writer.micro_batch(k)
    writer.optimizer()
    return writer.builder.build()


class _Writer(StepWriter):
    def __init__(self, training: Training) -> None:
        super().__init__(training, "fsdp")
        layers = [unit for unit in self.stage.units if unit.boundary]
        self.units = [training.timed(unit) for unit in layers]
        ends = [training.timed(unit) for unit in self.stage.units if not unit.boundary]
        self.first, self.last = ends[0], ends[-1]
        self.bytes = [unit.parameters for unit in self.units]
        self.root = self.stage.parameters - sum(self.bytes)
        sizes = {*self.bytes, self.root}
        self.gather_ns = {n: training.gather_ns(n) for n in sizes}
        self.scatter_ns = {n: training.scatter_ns(n) for n in sizes}

    def gather(self, name: str, parameters: int, after: Sequence[int], k: int) -> int:
        return self.op(f"gather {name}", "all_gather", self.gather_ns[parameters], after, k, BESIDE)

    def scatter(self, name: str, parameters: int, after: int, k: int) -> None:
        scatter, replicas = self.scatter_ns[parameters]
        last = self.op(f"scatter {name}", "reduce_scatter", scatter, (after,), k, BESIDE)
        if replicas:
            last = self.op(f"sum {name}", "all_reduce", replicas, (last,), k, BESIDE)
        self.after.append(last)

    def micro_batch(self, k: int) -> None:
        """Write forward and backward of a micro-batch."""
        n = len(self.units)
        root = self.gather("root", self.root, (), k)
        self.slot("embedding", "embedding", self.first.forward, (), (root,), k, "F")
        forwards: list[int] = []
        gathered = self.gather("0", self.bytes[0], (), k)
        for i, unit in enumerate(self.units):
            arrived, messages = gathered, []
            if i + 1 < n:
                gathered = self.gather(str(i + 1), self.bytes[i + 1], forwards[i - 1 : i] if i else (), k)
                messages.append(self.gather_ns[self.bytes[i + 1]])
            forwards.append(self.slot(f"F{i}", "layer", unit.forward, messages, (arrived,), k, "F"))
        head = self.last.forward.plus(self.last.backward)
        backwards = [self.slot("head", "head", head, (), (forwards[-1],), k, "B")]
        gathered = self.gather(f"{n - 1} again", self.bytes[-1], (forwards[-1],), k)
        for i in reversed(range(n)):
            unit, arrived, messages = self.units[i], gathered, []
            if i:
                gathered = self.gather(f"{i - 1} again", self.bytes[i - 1], backwards[-2:-1], k)
                messages.append(self.gather_ns[self.bytes[i - 1]])
            if i + 1 < n:
                messages.append(sum(self.scatter_ns[self.bytes[i + 1]]))
            backwards.append(self.slot(f"B{i}", "layer", unit.backward, messages, (arrived,), k, "B"))
            self.scatter(str(i), self.bytes[i], backwards[-1], k)
        last = self.slot("embedding gradient", "embedding", self.first.backward, (), (), k, "B")
        self.scatter("root", self.root, last, k)


def fsdp_peak(training: Training) -> Peak:
    """Return the most that a rank holds: as without sharding, and what is gathered and scattered meanwhile.

    Two gathered units, the unit that is computed, the root, and the input of one scatter.
    """
    peak = training.peaks(training.schedule)[0]
    stage = training.each_stage[0]
    units = [training.timed(unit).parameters for unit in stage.units if unit.boundary]
    root = stage.parameters - sum(units)
    gathered = training.parameter_bytes * (root + 3 * max(units)) + training.gradient_bytes * max(units)
    return Peak(
        {name: peak.parts[name] + (gathered if name == "buffers" else 0) for name in PARTS}, peak.when
    )
