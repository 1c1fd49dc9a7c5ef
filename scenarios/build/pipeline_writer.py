"""Writes the ops of a pipeline, in the order of a walk over the programs of all ranks.

A rank writes slots until one lacks an input; then it sleeps on that input, and who writes it wakes the
rank. Ops are therefore written after what they read, and a walk that ends early is a deadlock.

What ops send, keep and read is in `scenarios.build.pipeline_flow`.

With copies on the compute streams (``copy_streams: false``) both ends of a copy meet: each posts that it
is there, and begins its half of the copy when the other one has posted too::

    source        ... F0  post ┌copy┐ F1              neither does anything else meanwhile
    destination   ...     post └copy┘ F0
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from policies.pipeline import Schedule
from policies.pipeline.action import Action, Slot
from policies.pipeline.validate import explain_deadlock
from scenarios.build.pipeline_end import End
from scenarios.build.pipeline_flow import Read, output_sizes, reads_of_stages
from scenarios.build.pipeline_stage import Around, PipelineStage
from sim import Graph, GraphBuilder
from sim.errors import StuckError
from sim.units import round_half_up

__all__ = ["Writer"]

_PLANE: Final = {"F": 0, "B": 1, "I": 1, "R": 2}
"""Kinds of what may be waited for; the gradient is made by B or by I, and nobody waits for a W."""


class _Meeting(NamedTuple):
    """One end's part in a copy between two compute streams: it posts (0), then copies (1)."""

    key: int
    output: int
    source: int
    destination: int
    nbytes: int
    name: str
    copies: int
    sends: bool

    @property
    def copy(self) -> tuple[int, int, int]:
        """What is copied, and to which rank."""
        return self.key, self.output, self.destination


_Step = Slot | _Meeting


class Writer:
    """Writes one graph; see `scenarios.build.pipeline.pipeline_graph`."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Sequence[PipelineStage],
        devices: Sequence[str],
        around: Around,
        copy_ns: Callable[[int, int, int], int],
        shares: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.schedule, self.stages, self.devices = schedule, stages, devices
        self.around, self.copy_ns = around, copy_ns
        self.shares = {k: Fraction(*share) for k, share in enumerate(shares) if share[0] != share[1]}
        self.builder = GraphBuilder(schedule.name)
        self.end = End(self.builder, schedule, stages, devices, around)
        self.m = m = schedule.micro_batches
        self.plane = plane = schedule.stages * m
        # By number of an action: number of its first output, and its op; -1 until it is written.
        self.made, self.op_at = [-1] * (3 * plane), [-1] * (3 * plane)
        self.gathered: dict[int, int] = {}  # what leaves a stage after its collective, in place of `made`
        self.arrived: dict[tuple[int, int, int], int] = {}  # copies on compute streams: their tensor
        self.met: dict[object, int] = {}  # posts and copies: their op
        self.recomputed = bytearray(plane)
        for rank in range(schedule.ranks):
            for stage, phase, k in schedule.actions(rank):
                if phase == "R":
                    self.recomputed[stage * m + k] = 1
        self.sizes = output_sizes(stages, around)
        self.reads = reads_of_stages(self.sizes, around, m)
        self.durations: dict[tuple[int, str], int] = {}
        self.left = [
            Counter(a.stage for a in schedule.actions(rank) if a.phase in "BW")
            for rank in range(schedule.ranks)
        ]

    def _reads_of(self, stage: int, phase: str) -> list[Read]:
        return self.reads[stage][0] if phase == "F" else self.reads[stage][1] if phase in "BI" else []

    # -- the walk ------------------------------------------------------------------------------

    def build(self) -> Graph:
        """Write everything and return the graph.

        Raises
        ------
        StuckError
            The ranks wait for each other.
        """
        schedule = self.schedule
        programs: list[Sequence[_Step]] = list(schedule.programs)
        if not self.around.copy_streams:
            programs = self._with_meetings()
        done = [0] * schedule.ranks
        sleepers: dict[object, list[int]] = {}
        awake = deque(range(schedule.ranks))
        while awake:
            rank = awake.popleft()
            program = programs[rank]
            at = done[rank]
            while at < len(program):
                step = program[at]
                missing = self._meet(step) if isinstance(step, _Meeting) else self._slot(rank, step)
                if missing is not None:
                    sleepers.setdefault(missing, []).append(rank)
                    break
                at += 1
                if sleepers:
                    for key in self._keys(step):
                        awake.extend(sleepers.pop(key, ()))
            done[rank] = at
        if any(at < len(program) for at, program in zip(done, programs, strict=True)):
            raise StuckError(self._why(programs, done))
        self.end.write()
        return self.builder.build()

    def _keys(self, step: _Step) -> list[object]:
        """Return what is there now and may have been waited for."""
        if isinstance(step, _Meeting):
            return [(step.copy, step.sends, step.copies)]
        return [
            _PLANE[phase] * self.plane + stage * self.m + k for stage, phase, k in step.parts if phase != "W"
        ]

    def _why(self, programs: Sequence[Sequence[_Step]], done: Sequence[int]) -> str:
        """Say who waits for whom."""
        if self.around.copy_streams:
            return explain_deadlock(self.schedule, done)
        lines = [
            f"  rank {rank} stands before {step.name if isinstance(step, _Meeting) else step}"
            for rank, (program, at) in enumerate(zip(programs, done, strict=True))
            for step in program[at : at + 1]
        ]
        head = (
            f"{self.schedule.name} cannot run with copies on the compute streams, where both ends of a copy "
            "must meet: each rank waits for another one"
        )
        return "\n".join([head, *lines, "  copy_streams: true lets copies wait beside the computation"])

    # -- slots ---------------------------------------------------------------------------------

    def _slot(self, rank: int, slot: Slot) -> object:
        """Write a slot; return what it lacks instead, if it lacks anything."""
        inputs: list[int] = []
        after: list[int] = []
        parts = slot.parts
        for stage, phase, k in parts:
            missing = self._inputs(rank, stage, phase, k, inputs, after)
            if missing is not None:
                return missing
        outputs: tuple[int, ...] = ()
        for stage, phase, k in parts:
            inputs += self.end.first_reads(rank, stage)
            outputs += self._outputs(stage, phase, k)
        stage, phase, k = parts[0]
        name, phases = f"{stage}{phase}{k}", str(phase)
        if len(parts) > 1:
            name, phases = "+".join(map(str, parts)), "+".join(action.phase for action in parts)
        complete = self._last_of_stage(rank, parts)
        pieces = self.end.pieces if complete else 1
        duration = self._duration(slot)
        for piece in range(1, pieces + 1):
            op = self.builder.append(
                name if pieces == 1 else f"{name}/{piece}",
                kind=phases,
                inputs=inputs,
                outputs=outputs if piece == pieces else (0,),
                after=after,
                duration_ns=duration * piece // pieces - duration * (piece - 1) // pieces,
                device=self.devices[rank],
                stage=stage,
                micro_batch=k,
                phase=phases,
            )
            self.end.computed(rank, op, complete)
        first = self.builder.tensor(op)
        for stage, phase, k in parts:
            if phase != "W":
                key = _PLANE[phase] * self.plane + stage * self.m + k
                self.made[key], self.op_at[key] = first, op
                if self.stages[stage].collective_ns and phase != "R":
                    self._collective(rank, key, self._outputs(stage, phase, k)[0], f"{stage}{phase}{k}")
            first += len(self._outputs(stage, phase, k))
        if self.end.after_each_backward:
            self.end.step(rank, parts)
        return None

    def _inputs(
        self, rank: int, stage: int, phase: str, k: int, inputs: list[int], after: list[int]
    ) -> object:
        """Add what an action reads; return what is missing of it, if anything."""
        made, plane, at = self.made, self.plane, stage * self.m + k
        if phase != "F":
            forward = made[at]
            again = self.recomputed[at]
            source = made[2 * plane + at] if again and phase != "R" else forward
            if forward < 0 or source < 0:
                return at if forward < 0 else 2 * plane + at
            if phase == "R":
                inputs.append(forward + 1)
                return None
            inputs.append(source + 2)
            if again:
                inputs.append(forward + 1)
            if phase == "W":
                if self.op_at[plane + at] < 0:
                    return plane + at
                after.append(self.op_at[plane + at])
                return None
            if self.sizes[stage]["R"][1]:
                inputs.append(source + 1)
        for read in self._reads_of(stage, phase):
            key = read.base + k
            if made[key] < 0:
                return key
            tensor = self._tensor(key, read.output)
            if self.arrived:
                tensor = self.arrived.get((key, read.output, rank), tensor)
            inputs.append(tensor)
        return None

    def _tensor(self, key: int, output: int) -> int:
        """Return the number of an output of an action, as others read it."""
        return self.gathered.get(key, self.made[key]) if output == 0 else self.made[key] + output

    def _collective(self, rank: int, key: int, nbytes: int, of: str) -> None:
        """Write the messages inside a stage that end an action."""
        stage = key % self.plane // self.m
        op = self.builder.append(
            f"collective of {of}",
            kind="collective",
            inputs=(self.made[key],),
            outputs=(nbytes,),
            duration_ns=self.stages[stage].collective_ns,
            device=self.devices[rank],
            stage=stage,
            micro_batch=key % self.m,
        )
        self.gathered[key] = self.builder.tensor(op)
        self.end.last[rank] = op

    def _outputs(self, stage: int, phase: str, k: int) -> tuple[int, ...]:
        recomputed = phase == "F" and self.recomputed[stage * self.m + k]
        return self.sizes[stage]["C" if recomputed else phase]

    def _last_of_stage(self, rank: int, parts: Sequence[Action]) -> list[int]:
        """Return the stages whose last backward on the rank this is."""
        left, found = self.left[rank], []
        for stage, phase, _ in parts:
            if phase in "BW":
                left[stage] -= 1
                if not left[stage]:
                    found.append(stage)
        return found

    def _duration(self, slot: Slot) -> int:
        if self.shares:  # micro-batches of unequal size
            return sum(
                round_half_up(self.shares.get(a.micro_batch, 1) * self.stages[a.stage].times.of(a.phase))
                for a in slot.parts
            )
        if isinstance(slot, Action):
            found = self.durations.get(slot[:2])
            if found is None:
                found = self.durations[slot[:2]] = self.stages[slot.stage].times.of(slot.phase)
            return found
        for action in slot.parts:
            together = self.stages[action.stage].times.overlapped
            if action.phase == "F" and together is not None:
                return together
        return sum(self._duration(action) for action in slot.parts)

    # -- copies on compute streams ---------------------------------------------------------------

    def _with_meetings(self) -> list[Sequence[_Step]]:
        """Return the programs with the copies: before the slot that reads, behind the slot that sends."""
        rank_of = self.schedule.rank_of
        sends: dict[int, list[_Meeting]] = {}
        before: list[list[list[_Meeting]]] = []
        for rank, program in enumerate(self.schedule.programs):
            before.append([])
            for slot in program:
                meetings = []
                for stage, phase, k in slot.parts:
                    for read in self._reads_of(stage, phase):
                        source = rank_of(read.stage, k)
                        if source == rank:
                            continue
                        what = f"copy for {stage}{phase}{k}" + (f" ({read.output})" if read.output else "")
                        one = _Meeting(read.base + k, read.output, source, rank, read.nbytes, what, 0, False)
                        meetings += [one, one._replace(copies=1)]
                        other = one._replace(sends=True)
                        sends.setdefault(one.key, []).extend([other, other._replace(copies=1)])
                before[rank].append(meetings)
        programs: list[Sequence[_Step]] = []
        for rank, program in enumerate(self.schedule.programs):
            steps: list[_Step] = []
            for slot, meetings in zip(program, before[rank], strict=True):
                steps += [*meetings, slot]
                for key in self._keys(slot):
                    assert isinstance(key, int)
                    steps += sends.get(key, ())
            programs.append(steps)
        return programs

    def _meet(self, step: _Meeting) -> object:
        """Write a post or half a copy; return what it lacks instead."""
        rank = step.source if step.sends else step.destination
        word = "from" if step.sends else "to"
        tensor = (self._tensor(step.key, step.output),) if step.sends else ()
        after: tuple[int, ...] = ()
        if step.copies:
            other = (step.copy, not step.sends, 0)
            if other not in self.met:
                return other
            after = (self.met[other],)
        op = self.builder.append(
            f"{'' if step.copies else 'post '}{step.name} {word} {self.devices[rank]}",
            kind="copy" if step.copies else "post",
            inputs=tensor,
            outputs=(step.nbytes if step.copies and not step.sends else 0,),
            after=after,
            duration_ns=self.copy_ns(step.source, step.destination, step.nbytes) if step.copies else 0,
            device=self.devices[rank],
        )
        self.met[step.copy, step.sends, step.copies] = op
        if step.copies and not step.sends:
            self.arrived[step.copy] = self.builder.tensor(op)
        return None
