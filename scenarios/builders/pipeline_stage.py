"""Parts of a pipeline other than its schedule: stages with times and sizes, and what surrounds them.

::

    stage 0 ──boundary──► stage 1 ──boundary──► stage 2      sent on by F, and back by B (or I)
       │                     │                     │
     keeps                 keeps                 keeps       activations, from F (or R) to B (or W)
       └────────────────skip──────────────────────►┘         a skip connection over several stages
    parameters, gradients, optimizer state: resident         all-reduce, optimizer step: when B's are over
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pydantic import Field

from devices.describe.field_types import Bytes
from devices.describe.quantities import Strict, Whole
from policies.pipeline.evaluate import StageTimes
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.registry import check_options
from sim import GraphBuilder
from sim.base.arrays import UNSET
from sim.base.errors import InputError
from sim.base.units import format_bytes, parse_bytes


@dataclass(frozen=True)
class PipelineStage:
    """A stage: durations of its phases, and bytes that it sends and keeps, per micro-batch.

    Attributes
    ----------
    times : StageTimes
        Durations in ns.
    boundary_nbytes : int
        Size of the activation sent to the next stage, and of the gradient sent back for it.
    activation_nbytes : int
        Bytes that F (or R) leaves for the backward.
    weight_grad_nbytes : int, optional
        The part of them that I leaves for W; by default all.
    parameter_nbytes, gradient_nbytes, optimizer_nbytes : int
        Resident parameters, their gradients, and the optimizer state.
    forward_working_nbytes, working_nbytes : int
        Additional bytes that F, and B (or I), need while they run: intermediates that are not kept, gradients
        of activations, and what B recomputes.
    forward_nbytes : int
        Bytes that F needs besides its input and output, if nothing is kept for a backward.
    checkpoint_nbytes : int, optional
        What a recomputed micro-batch keeps from F to R; by default the boundary activation.
    collectives_ns : int
        Messages inside a stage (sums of tensor parallelism, all-to-all of experts) after F and after B or
        I, on the compute stream, before anything is sent on.
    exposed : StageTimes, optional
        Exposed communication inside the stage, as part of `times`; by default none.
    """

    times: StageTimes
    boundary_nbytes: int = 0
    activation_nbytes: int = 0
    weight_grad_nbytes: int | None = None
    forward_working_nbytes: int = 0
    working_nbytes: int = 0
    forward_nbytes: int = 0
    parameter_nbytes: int = 0
    gradient_nbytes: int = 0
    optimizer_nbytes: int = 0
    checkpoint_nbytes: int | None = None
    collectives_ns: int = 0
    exposed: StageTimes | None = None

    @property
    def kept_nbytes(self) -> int:
        """Bytes of activations that remain after I."""
        return self.activation_nbytes if self.weight_grad_nbytes is None else self.weight_grad_nbytes

    def for_inference(self) -> PipelineStage:
        """Return the stage without the parts that only a backward or an optimizer needs."""
        return replace(
            self,
            activation_nbytes=0,
            weight_grad_nbytes=None,
            forward_working_nbytes=max(self.forward_working_nbytes, self.forward_nbytes),
            gradient_nbytes=0,
            optimizer_nbytes=0,
            checkpoint_nbytes=0,
        )

    @property
    def input_nbytes(self) -> int:
        """Bytes that a recomputed micro-batch keeps."""
        return self.boundary_nbytes if self.checkpoint_nbytes is None else self.checkpoint_nbytes


def check_schedule(name: str, options: Mapping[str, Any], *others: str) -> None:
    """Raise if an option is unknown to a schedule, or wrong; `others` are further names that are accepted."""
    if name == "zb-auto" and options.get("limit") is not None:
        _activation_limit(options["limit"], 0)
        others = (*others, "limit")
    check_options(name, options, others=others)


def search_options(
    options: Mapping[str, Any], stages: Sequence[PipelineStage], transfer: int, chunks: int
) -> dict[str, Any]:
    """Return the options of ``zb-auto``, with the stages' own times and sizes.

    Parameters
    ----------
    options : mapping
        Options of the scenario. A ``limit`` is for all that a rank holds.
    stages : sequence of PipelineStage
    transfer : int
        Time between two ranks.
    chunks : int
        Stages of a rank.
    """
    phases = {"forward": "F", "input_grad": "I", "weight_grad": "W"}
    search: dict[str, Any] = {
        name: [stage.times.of(phase) for stage in stages] for name, phase in phases.items()
    }
    search |= {"transfer": transfer, "kept": 1, **options}
    if "kept" not in options and all(stage.activation_nbytes for stage in stages):
        full, after_i = ([getattr(s, n) for s in stages] for n in ("activation_nbytes", "kept_nbytes"))
        search["kept"] = {"backward": full, "weight_grad": after_i}
    if search.get("limit") is not None:
        sizes = [s.parameter_nbytes + s.gradient_nbytes + s.optimizer_nbytes for s in stages]
        resident = max(size + (sizes[-1 - s] if chunks == 2 else 0) for s, size in enumerate(sizes))
        search["limit"] = _activation_limit(search["limit"], resident)
    return search


def _activation_limit(limit: Any, resident: int) -> int:
    """Return the bytes of activations that a rank may hold, given a limit on its total memory."""
    if isinstance(limit, (int, float)) and not isinstance(limit, bool):
        raise InputError(f"limit should be a size, not {limit!r}; a number of micro-batches is in_flight")
    total = parse_bytes(limit, what="limit")
    if total <= resident:
        usage = f"parameters, gradients and optimizer state of a rank take {format_bytes(resident)}"
        raise InputError(f"limit {format_bytes(total)} leaves nothing for activations: {usage}")
    return total - resident


class SkipFields(Strict):
    """A skip connection to a later stage.

    Attributes
    ----------
    source
        stage that makes the tensor
    to
        stage that reads it
    """

    source: Whole = Field(alias="from")
    to: Whole
    size: Bytes


@dataclass(frozen=True)
class Around:
    """Surroundings of a schedule; none by default.

    Attributes
    ----------
    skips : tuple of SkipFields
    portals : bool
        Skips go straight from source to destination. Off: they are carried through every boundary
        in between, and kept there, as needed by an autograd that knows only neighbours.
    copy_streams : bool
        Copies overlap with computation. Off: a copy runs on the compute streams of both ends, which
        meet for it.
    optimizer_ns : tuple of int
        Optimizer step of each stage; empty: none.
    synchronisation_ns : int or None
        Time of the synchronisation of all ranks before the optimizer step (the norm of all
        gradients, a check for overflow); None: there is none.
    all_reduce_ns : tuple of int
        Time to sum the gradients of each stage over the replicas; empty: no replicas.
    all_gather_ns : tuple of int
        If the optimizer state is sharded over the replicas: time to gather the parameters of each stage after
        the step, before which `all_reduce_ns` is that of a reduce-scatter; with `overlap` the gather is
        before the next step's first forward, part i before that part of it. Empty: it is not sharded.
    overlap : bool
        Both run on a stream of their own, gradients as soon as those of a stage are ready; otherwise when
        the rank has nothing else to do.
    buckets : int
        Number of parts: part i starts when that part of the last backward is over.
    buffer_nbytes : tuple of int
        Further bytes that each rank holds all the time, such as workspaces; empty: none.
    """

    skips: tuple[SkipFields, ...] = ()
    portals: bool = True
    copy_streams: bool = True
    optimizer_ns: tuple[int, ...] = ()
    synchronisation_ns: int | None = None
    all_reduce_ns: tuple[int, ...] = ()
    all_gather_ns: tuple[int, ...] = ()
    overlap: bool = True
    buckets: int = 1
    buffer_nbytes: tuple[int, ...] = ()
    portal_skips: tuple[SkipFields, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Raise if a skip does not lead to a later stage."""
        for skip in self.skips:
            if skip.to <= skip.source:
                leads = f"from {skip.source} to {skip.to}"
                raise InputError(f"a skip connection leads to a later stage, not {leads}")
        object.__setattr__(self, "portal_skips", self.skips if self.portals else ())

    @property
    def own_stream(self) -> bool:
        """Whether anything runs on a second stream of a device."""
        return bool(self.all_reduce_ns) and self.overlap

    def carried_nbytes(self, stage: int) -> int:
        """Return the bytes that cross the boundary behind `stage` besides its activation."""
        if self.portals:
            return 0
        return sum(skip.size for skip in self.skips if skip.source <= stage < skip.to)

    def kept_nbytes(self, stage: int) -> int:
        """Return the bytes of skips that `stage` keeps for the backward of a micro-batch.

        The destination keeps what it has read; without portals so does every stage in between.
        """
        return sum(
            skip.size
            for skip in self.skips
            if stage == skip.to or (not self.portals and skip.source < stage < skip.to)
        )


@dataclass(frozen=True)
class PlacedPipeline:
    """A pipeline and where it runs.

    Attributes
    ----------
    schedule : Schedule
    stages : sequence of PipelineStage
    devices : sequence of str
        Name of each rank's device.
    around : Around
    """

    schedule: Schedule
    stages: Sequence[PipelineStage]
    devices: Sequence[str]
    around: Around = Around()

    def __post_init__(self) -> None:
        """Raise if the schedule never sums all gradients."""
        schedule = self.schedule
        if schedule.meta.get("asynchronous") and self.around.all_reduce_ns:
            raise InputError(
                f"{schedule.name} updates after each backward, and dp sums gradients after the last one"
            )


# ----------------------------------------------------------------------------------------------------------
# The tensors that the stages of a pipeline send, keep and read, as outputs and inputs of their ops.
#
# Outputs of an op, by the phase of its action (0 bytes if nothing is kept):
#
#     F     0 boundary           1 what I frees (recomputed: the stage input)   2 what W frees    3.. skips,
#           and working memory, which nobody reads
#     R     0 nothing            1 what I frees                                 2 what W frees
#     B, I  0 boundary gradient  1.. gradients of skips, and working memory, which nobody reads
#     W     0 nothing
#
# Actions are numbered ``(plane · stages + stage) · micro-batches + micro-batch``, where the plane is 0 for F,
# 1 for the gradient (of B or I), 2 for R: the kinds of action that others wait for.

Sizes = Mapping[str, tuple[int, ...]]
"""Sizes of the outputs of a stage's ops by phase; ``"C"`` is the F of a recomputed micro-batch."""


class Read(NamedTuple):
    """Input of an action from another stage: an output of the action numbered ``base + micro-batch``."""

    base: int
    stage: int
    output: int
    nbytes: int


def output_sizes(stages: Sequence[PipelineStage], around: Around, s: int) -> Sizes:
    """Return the sizes of the outputs of a stage."""
    stage = stages[s]
    boundary = stage.boundary_nbytes + around.carried_nbytes(s)
    copies = around.kept_nbytes(s)
    kept = stage.kept_nbytes + copies
    passing = stage.activation_nbytes - stage.kept_nbytes
    checkpoint = stage.input_nbytes + copies
    skips = tuple(skip.size for skip in around.portal_skips if skip.source == s)
    back = tuple(skip.size for skip in around.portal_skips if skip.to == s)
    ahead = (stage.forward_working_nbytes,) if stage.forward_working_nbytes else ()
    working = (stage.working_nbytes,) if stage.working_nbytes else ()
    gradient = stages[s - 1].boundary_nbytes + around.carried_nbytes(s - 1) if s else 0
    return {
        "F": (boundary, passing, kept, *skips, *ahead),
        "C": (boundary, checkpoint, 0, *skips, *ahead),
        # The stage input, which is kept to the end, is part of the activations.
        "R": (0, passing, max(0, kept - checkpoint)),
        "B": (gradient, *back, *working),
        "I": (gradient, *back, *working),
        "W": (0,),
    }


def reads_of_stages(
    sizes: Sequence[Sizes], around: Around, micro_batches: int
) -> list[tuple[list[Read], list[Read]]]:
    """Return, for each stage, what its F and its B (or I) read from other stages."""
    n = len(sizes)
    gradients = n * micro_batches
    leaving = [[skip for skip in around.portal_skips if skip.source == s] for s in range(n)]
    entering = [[skip for skip in around.portal_skips if skip.to == s] for s in range(n)]
    reads = []
    for s in range(n):
        before, after = s - 1, s + 1
        forward = [Read(before * micro_batches, before, 0, sizes[before]["F"][0])] if s else []
        backward = [Read(gradients + after * micro_batches, after, 0, sizes[s]["F"][0])] if after < n else []
        for skip in entering[s]:
            output = 3 + leaving[skip.source].index(skip)
            forward.append(Read(skip.source * micro_batches, skip.source, output, skip.size))
        for skip in leaving[s]:
            output = 1 + entering[skip.to].index(skip)
            base = gradients + skip.to * micro_batches
            backward.append(Read(base, skip.to, output, skip.size))
        reads.append((forward, backward))
    return reads


# ----------------------------------------------------------------------------------------------------------
# Ops around the slots of a pipeline: weights, gradient all-reduce, optimizer step.
#
#     compute stream     ... 0B6 0B7 ┐                             ┌ synchronise ┐ optimizer
#     second stream                  └ all-reduce of stage 0 ──────┘ (with all ranks, or not at all)
#
#     sharded, and beside the computation: gathers of the parameters that the previous step has updated
#
#     compute stream                  0F0/1       0F0/2 0F1 ...
#     second stream      all-gather/1 ┘ all-gather/2 ┘
#
# An all-reduce is a task of the rank that waits for its gradients; the replicas beside it do the same at the
# same time, so simulating one replica is enough. PipeDream, which has no flush, updates the weights
# after each backward.
#
# Source of the synchronisation: the norm of all gradients, for clipping, and the check for overflow, need a
# number from every rank before any may step (Qi et al., arXiv 2401.10241, section 4, which also avoids it).

BESIDE: Final = "C"
"""Phase of the collectives that run beside the computation, on the second stream of the device."""

HOST: Final = "H"
"""Phase of copies between a rank and its host, on the third stream of the device."""

RESIDENT: Final = ("parameters", "gradients", "optimizer state", "stashed weights", "buffers")
"""Kinds of data resident on a rank; the beginning of a parameter's name."""


def resident_tensors(builder: GraphBuilder, sizes: Sequence[int], stage: int, device: str) -> list[int]:
    """Declare and return the resident tensors of a stage on a rank. `sizes` are bytes by `RESIDENT`."""
    return [
        builder.external(builder.parameter(f"{data} of stage {stage} on {device}", nbytes))
        for data, nbytes in zip(RESIDENT, sizes, strict=True)
        if nbytes
    ]


class End:
    """Writes the ops that are not slots: they are numbered after the slots, and have places between them.

    Attributes
    ----------
    rows : list of tuple
        For each op: name; place, rank, duration, stage, micro-batch, time of communication inside it; kind
        and phase; tensors that it reads, size of its output, and ops that it follows.
    place : int
        Place of the next op.
    ops, tensors : int
        Numbers of ops and tensors of the slots; further numbers start there, with one tensor per op.
    """

    def __init__(self, builder: GraphBuilder, pipeline: PlacedPipeline) -> None:
        schedule, around = pipeline.schedule, pipeline.around
        self.schedule, self.around = schedule, around
        self.stages, self.devices = pipeline.stages, pipeline.devices
        self.rows: list[tuple[Any, ...]] = []
        self.place = self.ops = self.tensors = 0
        self.last = [-1] * schedule.ranks
        self.reduced: dict[tuple[int, int], list[int]] = {}
        """(rank, stage) → ops after which its gradients are complete."""
        self.updates = dict[tuple[int, int], list[int]]()
        """(rank, stage) → its optimizer step, which the next iteration's gathers or first forward follow."""
        self.resident = {
            (rank, stage): self._resident(builder, rank, stage)
            for rank in range(schedule.ranks)
            for stage in schedule.stages_of(rank)
        }
        self.beside = BESIDE if around.overlap else ""
        self.pieces = around.buckets if around.own_stream else 1
        self.after_each_backward = bool(schedule.meta.get("asynchronous") and around.optimizer_ns)
        steps = around.optimizer_ns and not self.after_each_backward
        self.gathers = bool(steps and around.all_gather_ns)

    def append(
        self,
        rank: int,
        name: str,
        kind: str,
        ns: int,
        after: Sequence[int] = (),
        *,
        inputs: Sequence[int] = (),
        nbytes: int = 0,
        stage: int = UNSET,
        micro_batch: int = UNSET,
        phase: str = "",
    ) -> int:
        """Add an op on a rank's device and return its number."""
        numbers = (self.place, rank, ns, stage, micro_batch, 0)
        self.rows.append((name, *numbers, kind, phase, inputs, (nbytes,), after))
        return self.ops + len(self.rows) - 1

    def tensor(self, op: int) -> int:
        """Return the number of an op's output."""
        return self.tensors + op - self.ops

    def _resident(self, builder: GraphBuilder, rank: int, stage: int) -> list[int]:
        """Declare the resident tensors of a stage on a rank."""
        spec, versions = self.stages[stage], self.schedule.meta.get("weight_versions")
        stashed = (versions[rank] - 1) * spec.parameter_nbytes if versions else 0
        has_buffers = self.around.buffer_nbytes and stage == self.schedule.stages_of(rank)[0]
        buffers = self.around.buffer_nbytes[rank] if has_buffers else 0
        sizes = (spec.parameter_nbytes, spec.gradient_nbytes, spec.optimizer_nbytes, stashed, buffers)
        return resident_tensors(builder, sizes, stage, self.devices[rank])

    def on_gradients(self, rank: int, stage: int, op: int) -> None:
        """Note an op after which the gradients of a stage, or a part of them, are ready."""
        ops = self.reduced.setdefault((rank, stage), [])
        ops.append(self._add_collective(rank, stage, (op,), len(ops)) if self.around.own_stream else op)

    def _collective_ns(self, stage: int, piece: int, *, gather: bool = False) -> int:
        """Return the time to reduce a bucket of a stage's gradients, or to gather one of its parameters."""
        around = self.around
        total_ns = (around.all_gather_ns if gather else around.all_reduce_ns)[stage]
        return total_ns * (piece + 1) // self.pieces - total_ns * piece // self.pieces

    def _add_collective(
        self, rank: int, stage: int, after: Sequence[int], piece: int = 0, *, gather: bool = False
    ) -> int:
        kind = "all_gather" if gather else "reduce_scatter" if self.around.all_gather_ns else "all_reduce"
        name = f"{kind.replace('_', '-')} of stage {stage} on {self.devices[rank]}"
        name = name if self.pieces == 1 else f"{name}/{piece + 1}"
        ns = self._collective_ns(stage, piece, gather=gather)
        return self.append(rank, name, kind, ns, after, stage=stage, phase=self.beside)

    def gather(self, rank: int, stage: int) -> list[int]:
        """Gather the parameters of a stage, bucket by bucket."""
        after = self.updates[rank, stage] = []
        return [self._add_collective(rank, stage, after, piece, gather=True) for piece in range(self.pieces)]

    def step(self, rank: int, stage: int, k: int) -> None:
        """Update the weights of a stage after its backward (PipeDream)."""
        self._add_step(rank, stage, (), f"update {k} of stage {stage} on {self.devices[rank]}", k)

    def write(self) -> None:
        """Write the ops that follow the programs of all ranks."""
        around = self.around
        if around.all_reduce_ns and not around.overlap:
            for (rank, stage), ops in self.reduced.items():
                ops.append(self._add_collective(rank, stage, tuple(ops)))
        complete = [*self.last, *(ops[-1] for ops in self.reduced.values())]
        synchronised: dict[int, int] = {}
        if around.synchronisation_ns is not None:
            everywhere = tuple(dict.fromkeys(complete))
            for rank in range(self.schedule.ranks):
                name, ns = f"synchronise on {self.devices[rank]}", around.synchronisation_ns
                synchronised[rank] = self.append(rank, name, "synchronise", ns, everywhere)
        if not around.optimizer_ns or self.after_each_backward:
            return
        for (rank, stage), ops in self.reduced.items():
            after = (*ops, synchronised[rank]) if synchronised else tuple(ops)
            op = self._add_step(rank, stage, after, f"optimizer of stage {stage} on {self.devices[rank]}")
            if self.gathers and not around.overlap:
                op = self._add_collective(rank, stage, (op,), gather=True)
            self.updates.setdefault((rank, stage), []).append(op)

    def _add_step(self, rank: int, stage: int, after: Sequence[int], name: str, k: int = UNSET) -> int:
        ns = self.around.optimizer_ns[stage]
        return self.append(rank, name, "optimizer", ns, after, stage=stage, micro_batch=k, phase="O")
