"""A step under DeepSpeed's ZeRO-3, as ops on two streams of one rank.

::

    communication   g0 c0    g1 c1   g2 c2           one communicator: one after the other
    compute              F0      F1      F2          the host waits before each, then gathers ahead

Every product with weights is a module of its own, and so are embedding and head; what follows it up to the
next one runs with it. What is gathered as a module is entered, and what ahead, a coordinator decides
(`policies.compile.parallel.zero.coordinator`): by its defaults one product ahead, and none while more than
10⁹ elements are there. Layers that are recomputed enter their modules once more. c: the parts of ranks are
copied together. The host waits for an idle device before it gathers, so that a gather hides behind one module
and no more. Gradients fill buckets of 5·10⁸ elements; one is scattered when the next gradient would not fit.
Parameters of at most 10⁵ elements stay, and are gathered behind the updates.

Sources: DeepSpeed 0.3.16, deepspeed/runtime/zero/stage3.py (``fetch_sub_module``,
``prefetch_next_sub_modules``, ``reduce_independent_p_g_buckets_and_remove_grads``) and
partition_parameters.py (``_allgather_param``: the host waits); the later partitioned_param_coordinator.py
keeps these rules, but waits for what is gathered alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from policies.compile.parallel.zero.coordinator import Coordinator, Limits
from scenarios.build.pipeline.pipeline_end import BESIDE
from scenarios.build.train.layered.step_writer import StepWriter
from scenarios.build.train.memory import PARTS, Peak, Unit
from scenarios.build.train.training import Spent, Training
from sim import Graph

__all__ = ["zero_three_graph", "zero_three_peak"]

_REDUCE_BUCKET: Final = 500_000_000
"""Elements (``reduce_bucket_size``)."""


class _Weight(NamedTuple):
    name: str
    elements: int


class _Run(NamedTuple):
    """What runs from one module to the next: its parameters (none: no module), forward and backward times."""

    name: str
    weights: tuple[_Weight, ...]
    forward: Spent
    backward: Spent


def _runs(of: Training, unit: Unit) -> list[_Run]:
    """Return the modules of a unit: each piece with weights."""
    model, found = of.model, list[_Run]()
    words = _Weight("words", -(-model.vocabulary // of.layout.tp) * model.hidden)
    for k, piece in enumerate(unit.pieces):
        timed = of.timed(Unit(piece.name, (piece,)))
        weights = [_Weight(f"{unit.name}/{k}", timed.parameters)] if timed.parameters else []
        if piece.name == "embedding":
            positions = _Weight("positions", model.positions * model.hidden)
            weights = [words, positions] if model.positions else [words]
        if piece.name == "head" and model.tied:
            weights = [words]
        found.append(_Run(f"{unit.name} {piece.name}", tuple(weights), timed.forward, timed.backward))
    return found


class _Visit(NamedTuple):
    """A run in one direction: as a module is entered, until the next one is."""

    name: str
    weights: tuple[_Weight, ...]
    spent: Spent
    phase: str


def _joined(visits: Iterator[_Visit]) -> list[_Visit]:
    """Return visits of modules alone; what is none runs with the one before."""
    found: list[_Visit] = []
    for visit in visits:
        if found and not visit.weights and visit.phase == found[-1].phase:
            found[-1] = found[-1]._replace(spent=found[-1].spent.plus(visit.spent))
        else:
            found.append(visit)
    return found


def _visits(of: Training) -> list[_Visit]:
    """Return what a micro-batch visits, in order."""

    def walk() -> Iterator[_Visit]:
        units = [(unit, _runs(of, unit)) for unit in of.each_stage[0].units]
        for _, runs in units:
            for run in runs:
                yield _Visit(run.name, run.weights, run.forward, "F")
        for unit, runs in reversed(units):
            if unit.checkpointed:
                for run in runs:
                    yield _Visit(f"{run.name} again", run.weights, run.forward, "R")
            for run in reversed(runs):
                yield _Visit(f"{run.name} back", run.weights, run.backward, "B")

    return _joined(walk())


class _Writer(StepWriter):
    def __init__(self, of: Training) -> None:
        super().__init__(of, "zero-3")
        self.visits = _visits(of)
        modules = [visit.weights for visit in self.visits if visit.weights]
        limits = Limits()
        self.coordinator = Coordinator(modules, limits)
        weights = {each: each.elements for row in modules for each in row}
        self.rest = self.stage.parameters - sum(weights.values())
        self.stays = self.rest + sum(size for size in weights.values() if size <= limits.persistence)
        self.last = {each: at for at, visit in enumerate(self.visits) for each in visit.weights}
        """The visit behind which the gradient of a weight is there."""
        self.handle: dict[str, int] = {}
        self.computed: tuple[int, ...] = ()
        self.reducing = 0.0
        self.most_live = 0

    def write(self) -> Graph:
        for k in range(self.of.micro_batches):
            self.micro_batch(k)
        ns = self.of.gather_ns(self.stays)
        self.op("gather what stays", "all_gather", ns, (self.optimizer(),), -1, BESIDE)
        return self.builder.build()

    def micro_batch(self, k: int) -> None:
        self.coordinator.reset()
        held = self.rest
        for at, visit in enumerate(self.visits):
            arrived, ahead_ns = self.enter(visit, k) if visit.weights else ((), 0.0)
            messages = (ahead_ns, self.reducing)
            self.reducing = 0.0
            self.computed = (self.slot(visit.name, "layer", visit.spent, messages, arrived, k, visit.phase),)
            if not visit.weights:
                continue
            for each in visit.weights if visit.phase == "B" else ():
                if self.last[each] != at:
                    continue
                if held + each.elements > _REDUCE_BUCKET and held:
                    self.reduce(held, k)
                    held = 0
                held += each.elements
            self.coordinator.release(visit.weights)
        self.reduce(held, k)

    def enter(self, visit: _Visit, k: int) -> tuple[tuple[int, ...], float]:
        """Gather and wait; return what the module waits for, and how long a gather ahead passes beside it."""
        found = self.coordinator.fetch()
        self.most_live = max(self.most_live, self.coordinator.live)
        self.gather(found.missing, visit, self.computed, k)
        arrived = []
        for together in found.arrived:
            elements = sum(each.elements for each in together)
            ns = self.of.calibration.pass_ns(2 * self.of.parameter_bytes * elements)
            after = (self.handle[together[0].name],)
            name = f"parts of {together[0].name} for {visit.name}"
            arrived.append(self.op(name, "concat", ns, after, k, BESIDE, ns))  # a part of the gather
        return tuple(arrived), self.gather(found.ahead, visit, (*self.computed, *arrived), k)

    def gather(self, weights: Sequence[_Weight], visit: _Visit, idle: Sequence[int], k: int) -> float:
        """Launch one gather, as the device is idle behind these ops; return how long it takes."""
        if not weights:
            return 0.0
        ns = self.of.gather_ns(sum(each.elements for each in weights))
        name = f"gather {weights[0].name} at {visit.name}"
        launched = self.op(name, "all_gather", ns, idle, k, BESIDE)
        self.handle.update((each.name, launched) for each in weights)
        return ns

    def reduce(self, elements: int, k: int) -> None:
        """Scatter a bucket."""
        scatter, replicas = self.of.scatter_ns(elements)
        last = self.op(f"scatter {len(self.after)}", "reduce_scatter", scatter, self.computed, k, BESIDE)
        if replicas:
            last = self.op(f"sum {len(self.after)}", "all_reduce", replicas, (last,), k, BESIDE)
        self.reducing += scatter + replicas
        self.after.append(last)


def zero_three_graph(training: Training) -> Graph:
    """Return the ops of a step on one rank, in the order in which its host issues them."""
    return _Writer(training).write()


def zero_three_peak(training: Training) -> Peak:
    """Return the most that a rank holds: as without sharding, with what is gathered and two buckets."""
    writer = _Writer(training)
    writer.write()
    peak = training.peaks(training.schedule)[0]
    live = training.parameter_bytes * (writer.most_live + writer.stays)
    more = live + 2 * training.gradient_bytes * max(_REDUCE_BUCKET, *(each.elements for each in writer.last))
    return Peak({name: peak.parts[name] + (more if name == "buffers" else 0) for name in PARTS}, peak.when)
