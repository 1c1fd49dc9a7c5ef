"""What a pipeline is made of besides its schedule: stages with times and sizes, and what is around them.

::

    stage 0 ──boundary──► stage 1 ──boundary──► stage 2      sent on by F, and back by B (or I)
       │                     │                     │
     keeps                 keeps                 keeps       activations, from F (or R) to B (or W)
       └────────────────skip──────────────────────►┘         a skip connection over several stages
    weights, gradients, optimizer state: resident            all-reduce, optimizer step: when B's are over
"""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.pipeline.timing.evaluate import StageTimes
from sim.words.errors import InputError

__all__ = ["Around", "PipelineStage", "Skip"]


@dataclass(frozen=True)
class PipelineStage:
    """One stage: how long its phases take, and what it sends and keeps, per micro-batch.

    Attributes
    ----------
    times : StageTimes
        Durations in ns.
    boundary_nbytes : int
        Size of the activation sent to the next stage, and of the gradient sent back for it.
    activation_nbytes : int
        What F (or R) leaves for the backward.
    weight_grad_nbytes : int, optional
        The part of it that I leaves for W; by default all of it.
    parameter_nbytes, gradient_nbytes, optimizer_nbytes : int
        Resident weights, their gradients, and what the optimizer keeps.
    working_nbytes : int
        What B (or I) needs besides while it runs: gradients of activations, and what it computes again.
    checkpoint_nbytes : int, optional
        What a recomputed micro-batch keeps from F to R; by default the boundary activation.
    collective_ns : int
        Messages inside a stage (sums of tensor parallelism, all-to-all of experts) after F and after B or
        I, on the compute stream, before anything is sent on.
    exposed : StageTimes, optional
        How much of `times` is communication inside the stage that nothing hides; by default nothing.
    """

    times: StageTimes
    boundary_nbytes: int = 0
    activation_nbytes: int = 0
    weight_grad_nbytes: int | None = None
    working_nbytes: int = 0
    parameter_nbytes: int = 0
    gradient_nbytes: int = 0
    optimizer_nbytes: int = 0
    checkpoint_nbytes: int | None = None
    collective_ns: int = 0
    exposed: StageTimes | None = None

    @property
    def kept_nbytes(self) -> int:
        """What is left of the activations after I."""
        return self.activation_nbytes if self.weight_grad_nbytes is None else self.weight_grad_nbytes

    @property
    def input_nbytes(self) -> int:
        """What a recomputed micro-batch keeps."""
        return self.boundary_nbytes if self.checkpoint_nbytes is None else self.checkpoint_nbytes


@dataclass(frozen=True)
class Skip:
    """A skip connection: what one stage makes, and a later one reads, besides the activation sent on."""

    source: int
    destination: int
    nbytes: int


@dataclass(frozen=True)
class Around:
    """What surrounds a schedule; the default is nothing.

    Attributes
    ----------
    skips : tuple of Skip
    portals : bool
        Skips go straight from source to destination. Off: they are carried through every boundary
        between, and kept there, as an autograd that knows only neighbours must.
    copy_streams : bool
        Copies overlap with computation. Off: a copy runs on the compute streams of both ends, which
        meet for it.
    optimizer_ns : tuple of int
        Optimizer step of each stage; empty: none.
    synchronisation_ns : int or None
        Before the optimizer step all ranks wait for each other and spend so long (the norm of all
        gradients, a check for overflow); None: they do not.
    all_reduce_ns : tuple of int
        What summing the gradients of each stage over the replicas takes; empty: no replicas.
    all_gather_ns : tuple of int
        With `sharded`: what gathering the parameters of each stage takes after the step, and all of
        `all_reduce_ns` is before it; empty: half of `all_reduce_ns` is after it.
    overlap : bool
        It runs on a stream of its own as soon as a stage's gradients are there; else when the rank
        has nothing else to do.
    buckets : int
        In how many parts: part i goes when that part of the last backward is over.
    sharded : bool
        The optimizer state is sharded over the replicas: a reduce-scatter before the step, an
        all-gather after it.
    """

    skips: tuple[Skip, ...] = ()
    portals: bool = True
    copy_streams: bool = True
    optimizer_ns: tuple[int, ...] = ()
    synchronisation_ns: int | None = None
    all_reduce_ns: tuple[int, ...] = ()
    all_gather_ns: tuple[int, ...] = ()
    overlap: bool = True
    buckets: int = 1
    sharded: bool = False
    portal_skips: tuple[Skip, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Refuse skips that are none."""
        for skip in self.skips:
            if skip.destination <= skip.source:
                raise InputError(
                    f"a skip connection leads to a later stage, not from {skip.source} to {skip.destination}"
                )
        object.__setattr__(self, "portal_skips", self.skips if self.portals else ())

    @property
    def halved(self) -> bool:
        """Whether an all-reduce time stands for a reduce-scatter and an all-gather of half of it each."""
        return self.sharded and not self.all_gather_ns

    @property
    def own_stream(self) -> bool:
        """Whether anything runs on a second stream of a device."""
        return bool(self.all_reduce_ns) and self.overlap

    def carried_nbytes(self, stage: int) -> int:
        """Return what crosses the boundary behind `stage` besides its activation."""
        if self.portals:
            return 0
        return sum(skip.nbytes for skip in self.skips if skip.source <= stage < skip.destination)

    def kept_nbytes(self, stage: int) -> int:
        """Return the copies of skips that `stage` keeps for the backward of a micro-batch.

        The destination keeps what it has read; without portals so does every stage between.
        """
        return sum(
            skip.nbytes
            for skip in self.skips
            if stage == skip.destination or (not self.portals and skip.source < stage < skip.destination)
        )
