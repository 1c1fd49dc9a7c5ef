"""Writes the ops of a pipeline, in the order of a walk over the programs of all ranks.

A rank writes slots until one lacks an input; then it sleeps on that input, and who writes it wakes the
rank. Ops are therefore written after what they read, and a walk that ends early is a deadlock.

What ops send, keep and read is in `scenarios.builders.pipeline_stage`.

With copies on the compute streams (``overlap: false``) slots and copies are written cycle by cycle
(`scenarios.builders.pipeline_writer`). Both ends of a copy meet: each posts that it is there, and
begins its half of the copy when the other one has posted too::

    source        ... F0  post ┌copy┐ F1              neither does anything else meanwhile
    destination   ...     post └copy┘ F0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import ceil
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from policies.pipeline.pipeline_schedule import PHASES, Action, Actions, Schedule, Slot
from policies.pipeline.validate import explain_deadlock
from scenarios.builders.pipeline_stage import Around, End, PipelineStage, Read, output_sizes, reads_of_stages
from sim import Graph, GraphBuilder
from sim.base.arrays import UNSET, Csr, IntArray
from sim.base.compiled import load
from sim.base.errors import StuckError
from sim.base.units import round_half_up
from sim.explain.communication import INSIDE


class PipelineWriter:
    """Writes one graph; see `scenarios.builders.pipeline_graph`."""

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
        # By number of an action: number of its first output, and its op.
        self.made, self.op_at = [-1] * (3 * plane), [-1] * (3 * plane)
        self.gathered: dict[int, int] = {}  # what leaves a stage after its collective, in place of `made`
        self.arrived: dict[tuple[int, int, int], int] = {}  # copies on compute streams: their tensor
        self.actions = Actions(schedule)
        self.admits = admits(plane, m, schedule.in_flight)
        self.recomputed = np.zeros(plane, dtype=np.bool_)
        again = self.actions.phase == "R"
        self.recomputed[self.actions.stage[again] * m + self.actions.micro_batch[again]] = True
        self.sizes = output_sizes(stages, around)
        self.reads = reads_of_stages(self.sizes, around, m)
        self.durations: dict[tuple[int, str], int] = {}
        self.communicate = any(stage.exposed is not None for stage in stages)

    @cached_property
    def left(self) -> list[Counter[int]]:
        """Rank → how many backwards of each stage are still to be written."""
        schedule = self.schedule
        return [
            Counter(a.stage for a in schedule.actions(r) if a.phase in "BW") for r in range(schedule.ranks)
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
        actions, programs = self.actions, self.schedule.programs
        needs = needs_of(actions, self.recomputed, self.reads, self.admits)
        made = key_of(actions.phase, actions.stage, actions.micro_batch, self.schedule.stages, self.m)
        makes = Csr.group(actions.slot[made >= 0], made[made >= 0], actions.first[-1])
        first, n_keys = actions.first, 3 * self.plane
        order, done = walk(needs, makes, first, n_keys)
        if done != first[1:]:
            stopped = [at - start for at, start in zip(done, first, strict=False)]
            raise StuckError(explain_deadlock(self.schedule, stopped))
        if not self.around.copy_streams:
            for cycle in cycles(programs, needs, makes, n_keys):
                self._fence(cycle)
                for rank, slot in cycle:
                    self._slot(rank, slot)
        elif self._is_plain():
            self._write_at_once(order)
        else:
            slots = [(rank, slot) for rank, program in enumerate(programs) for slot in program]
            for at in order.tolist():
                self._slot(*slots[at])
        self.end.write()
        return self.builder.build()

    # -- all slots at once ---------------------------------------------------------------------

    def _is_plain(self) -> bool:
        """Whether every slot is one action and one op, with nothing written between the slots."""
        around = self.around
        between = (around.overlap and around.all_reduce_ns) or self.end.after_each_backward
        collectives = any(stage.collective_ns for stage in self.stages)
        one_each = len(self.actions.stage) == self.actions.first[-1]
        return one_each and not between and not collectives

    def _write_at_once(self, order: IntArray) -> None:
        """Write all slots as columns, in the order of the walk: what `_slot` does one by one."""
        actions, m, plane = self.actions, self.m, self.plane
        phase, stage, k = actions.phase[order], actions.stage[order], actions.micro_batch[order]
        rank, at, n = actions.rank[order], stage * m + k, len(order)
        letters = {letter: phase == letter for letter in PHASES}
        code = np.zeros(n, dtype=np.int64)
        for number, chosen in enumerate(letters.values()):
            code[chosen] = number
        again = self.recomputed[at]

        # The sizes of outputs, by stage and phase; the F of a micro-batch that is recomputed has its own.
        words, odd = [*PHASES, "C"], sorted(self.shares)
        sizes = [self._share(of[word], j) for j in (UNSET, *odd) for of in self.sizes for word in words]
        row = stage * len(words) + np.where(letters["F"] & again, len(PHASES), code)
        row += len(self.sizes) * len(words) * np.where(np.isin(k, odd), 1 + np.searchsorted(odd, k), 0)
        table = Csr.of_rows(sizes)
        outputs = table.take(row)
        made = np.full(3 * plane, UNSET)
        op_at = np.full(3 * plane, UNSET)
        key = key_of(phase, stage, k, self.schedule.stages, m)
        made[key[key >= 0]] = outputs.indptr[:-1][key >= 0]
        op_at[key[key >= 0]] = np.flatnonzero(key >= 0)

        # What is read, a column for each, where it is read at all.
        forward, gradient = made[at], letters["B"] | letters["I"]
        of_backward = gradient | letters["W"]
        source = np.where(again, made[2 * plane + at], forward)
        passing = np.array([of["R"][1] > 0 for of in self.sizes])[stage]
        read = [
            np.where(letters["R"], forward + 1, np.where(of_backward, source + 2, NOTHING)),
            np.where(of_backward & again, forward + 1, NOTHING),
            np.where(gradient & passing, source + 1, NOTHING),
        ]
        for of, mine in enumerate((letters["F"], gradient)):
            for j in range(max(len(reads[of]) for reads in self.reads)):
                base, output = np.array(
                    [(r[of][j].base, r[of][j].output) if j < len(r[of]) else (NOTHING, 0) for r in self.reads]
                ).T
                there = mine & (base[stage] != NOTHING)
                read.append(
                    np.where(there, made[np.where(there, base[stage] + k, 0)] + output[stage], NOTHING)
                )
        homes, firsts = np.unique(rank * self.schedule.stages + stage, return_index=True)
        resident = [self.end.first_reads(*divmod(home, self.schedule.stages)) for home in homes.tolist()]
        for j in range(max(map(len, resident))):
            column = np.full(n, NOTHING)
            column[firsts] = [of[j] if j < len(of) else NOTHING for of in resident]
            read.append(column)
        left = np.where(letters["F"] & (stage == 0), self.admits[k], NOTHING)
        behind = np.where(letters["W"], plane + at, left)
        after = np.where(behind != NOTHING, op_at[np.maximum(behind, 0)], NOTHING)

        names = [f"{s}{p}{k}" for s, p, k in zip(stage.tolist(), phase.tolist(), k.tolist(), strict=True)]
        phases = (list(PHASES), code)
        self.builder.extend(
            names,
            kind=phases,
            inputs=_present(np.stack(read, axis=1)),
            outputs=outputs,
            duration_ns=self._durations(stage, phase, code, k),
            device=(self.devices, rank),
            after=_present(after[:, None]),
            stage=stage,
            micro_batch=k,
            phase=phases,
            attributes=self._attributes(stage, phase, k) if self.communicate else {},
        )
        last = dict(zip(rank.tolist(), range(n), strict=True))
        for where, op in last.items():
            self.end.last[where] = op
        weights = np.flatnonzero(letters["B"] | letters["W"])
        complete = dict(
            zip((rank * self.schedule.stages + stage)[weights].tolist(), weights.tolist(), strict=True)
        )
        for home, op in sorted(complete.items(), key=itemgetter(1)):
            self.end.reduced[divmod(home, self.schedule.stages)] = [op]

    def _durations(
        self, stage: IntArray, phase: npt.NDArray[np.str_], code: IntArray, k: IntArray
    ) -> IntArray:
        """Return the durations of actions: one look at each stage, phase and share."""
        odd = np.where(np.isin(k, list(self.shares)), k + 1, 0)
        sort = (odd * self.schedule.stages + stage) * len(PHASES) + code
        _, first, which = np.unique(sort, return_index=True, return_inverse=True)
        found = np.zeros(len(first), dtype=np.int64)
        for j in np.argsort(first).tolist():  # so that a phase without a time is refused where it comes first
            at = first[j]
            found[j] = self._duration(Action(int(stage[at]), str(phase[at]), int(k[at])))  # type: ignore[arg-type]
        return found[which]

    def _attributes(
        self, stage: IntArray, phase: npt.NDArray[np.str_], k: IntArray
    ) -> dict[int, dict[str, int]]:
        """Return of actions that communicate inside how long they do; equal ones share a mapping."""
        shared: dict[tuple[int, str, int], dict[str, int]] = {}
        found = {}
        for op, (s, p, j) in enumerate(zip(stage.tolist(), phase.tolist(), k.tolist(), strict=True)):
            sort = s, p, j if j in self.shares else UNSET
            if sort not in shared:
                shared[sort] = {INSIDE: self._inside(Action(s, p, j))}
            if shared[sort][INSIDE]:
                found[op] = shared[sort]
        return found

    # -- slots ---------------------------------------------------------------------------------

    def _slot(self, rank: int, slot: Slot) -> None:
        """Write a slot."""
        inputs: list[int] = []
        after: list[int] = []
        parts = slot.parts
        for stage, phase, k in parts:
            self._inputs(rank, stage, phase, k, inputs, after)
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
        duration, inside = self._duration(slot), self._inside(slot)
        for piece in range(1, pieces + 1):
            op = self.builder.append(
                name if pieces == 1 else f"{name}/{piece}",
                kind=phases,
                inputs=inputs,
                outputs=outputs if piece == pieces else (0,),
                after=after,
                duration_ns=_piece(duration, piece, pieces),
                device=self.devices[rank],
                stage=stage,
                micro_batch=k,
                phase=phases,
                attributes={INSIDE: _piece(inside, piece, pieces)} if inside else None,
            )
            self.end.computed(rank, op, complete)
        first = self.builder.tensor(op)
        for stage, phase, k in parts:
            if phase != "W":
                key = self._key(stage, phase, k)
                self.made[key], self.op_at[key] = first, op
                if self.stages[stage].collective_ns and phase != "R":
                    self._collective(rank, key, self._outputs(stage, phase, k)[0], f"{stage}{phase}{k}")
            first += len(self._outputs(stage, phase, k))
        if self.end.after_each_backward:
            self.end.step(rank, parts)

    def _key(self, stage: int, phase: str, k: int) -> int:
        return PLANE[phase] * self.plane + stage * self.m + k

    def _inputs(self, rank: int, stage: int, phase: str, k: int, inputs: list[int], after: list[int]) -> None:
        """Add what an action reads."""
        made, plane, at = self.made, self.plane, stage * self.m + k
        if phase == "R":
            inputs.append(made[at] + 1)
            return
        if phase != "F":
            again = self.recomputed[at]
            source = made[2 * plane + at] if again else made[at]
            inputs.append(source + 2)
            if again:
                inputs.append(made[at] + 1)
            if phase == "W":
                after.append(self.op_at[plane + at])
                return
            if self.sizes[stage]["R"][1]:
                inputs.append(source + 1)
        elif not stage and (left := int(self.admits[k])) != NOTHING:
            after.append(self.op_at[left])
        for read in self._reads_of(stage, phase):
            key = read.base + k
            tensor = self._tensor(key, read.output)
            if self.arrived:
                tensor = self.arrived.get((key, read.output, rank), tensor)
            inputs.append(tensor)

    def _tensor(self, key: int, output: int) -> int:
        """Return the number of an output of an action, as others read it."""
        return self.gathered.get(key, self.made[key]) if output == 0 else self.made[key] + output

    def _collective(self, rank: int, key: int, nbytes: int, of: str) -> None:
        """Write the messages inside a stage that end an action."""
        stage = key % self.plane // self.m
        name, ns = f"collective of {of}", self.stages[stage].collective_ns
        facts = {"inputs": (self.made[key],), "outputs": (nbytes,)}
        k = key % self.m
        op = self.end.append(rank, name, "collective", ns, stage=stage, micro_batch=k, **facts)
        self.gathered[key] = self.builder.tensor(op)
        self.end.last[rank] = op

    def _outputs(self, stage: int, phase: str, k: int) -> tuple[int, ...]:
        recomputed = phase == "F" and self.recomputed[stage * self.m + k]
        return self._share(self.sizes[stage]["C" if recomputed else phase], k)

    def _share(self, sizes: tuple[int, ...], k: int) -> tuple[int, ...]:
        """Return the sizes of outputs of a micro-batch, which may have fewer samples than others."""
        share = self.shares.get(k)
        return sizes if share is None else tuple(ceil(share * nbytes) for nbytes in sizes)

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

    def _inside(self, slot: Slot) -> int:
        """Return for how long a slot communicates, and nothing hides it."""
        if not self.communicate:
            return 0
        return sum(
            round_half_up(self.shares.get(action.micro_batch, 1) * exposed.of(action.phase))
            for action in slot.parts
            if (exposed := self.stages[action.stage].exposed) is not None
        )

    # -- copies on compute streams ---------------------------------------------------------------

    def _fence(self, slots: Sequence[tuple[int, Slot]]) -> None:
        """Write the copies that a cycle's slots read: stages in rising order, skips before boundaries."""
        copies = [
            (stage, k, read.output == 0, read, phase, rank)
            for rank, slot in slots
            for stage, phase, k in slot.parts
            for read in self._reads_of(stage, phase)
            if self.schedule.rank_of(read.stage, k) != rank
        ]
        for stage, k, _, read, phase, rank in sorted(copies, key=itemgetter(slice(4))):
            what = f"copy for {stage}{phase}{k}" + (f" ({read.output})" if read.output else "")
            self._copy(what, read, k, self.schedule.rank_of(read.stage, k), rank)

    def _copy(self, what: str, read: Read, k: int, source: int, destination: int) -> None:
        """Write what both ends do: each posts that it is there, and copies when the other has posted, too."""
        key, (nbytes,) = read.base + k, self._share((read.nbytes,), k)
        ends = [
            (f"{what} {way} {self.devices[rank]}", rank)
            for way, rank in (("from", source), ("to", destination))
        ]
        posts = [self.end.append(rank, f"post {name}", "post", 0) for name, rank in ends]
        for (name, rank), other in zip(ends, reversed(posts), strict=True):
            sends = rank == source
            moves = {"inputs": (self._tensor(key, read.output),)} if sends else {"outputs": (nbytes,)}
            ns = self.copy_ns(source, destination, nbytes)
            op = self.end.append(rank, name, "copy", ns, (other,), **moves)
        self.arrived[key, read.output, destination] = self.builder.tensor(op)


def _piece(whole: int, piece: int, pieces: int) -> int:
    """Return a part of a whole number, such that all parts add up to it."""
    return whole * piece // pieces - whole * (piece - 1) // pieces


def _present(table: IntArray) -> Csr:
    """Return the rows of a table without `NOTHING`."""
    there = table != NOTHING
    return Csr.of_counts(there.sum(axis=1), table[there])


# ----------------------------------------------------------------------------------------------------------
# The order in which the slots of a pipeline are written: a walk over all programs, inputs first.
#
# ::
#
#     rank 0   0F0 0F1 | ...          a rank goes on until it lacks something,
#     rank 1           1F0 1F1 | ...  and sleeps until that has been made
#
# What may be waited for has a number: ``(plane · stages + stage) · micro-batches + micro-batch``; the plane
# is 0 for F, 1 for the gradient (of B or I), 2 for R; nobody waits for a W.

NOTHING = -(1 << 62)  # no number of an action, a tensor or a parameter

PLANE = {"F": 0, "B": 1, "I": 1, "R": 2, "W": NOTHING}
"""Kinds of what may be waited for."""


def key_of(
    phase: IntArray, stage: IntArray, micro_batch: IntArray, stages: int, micro_batches: int
) -> IntArray:
    """Return the number of what actions make, or `NOTHING`."""
    plane = np.full(len(stage), NOTHING, dtype=np.int64)
    for letter, number in PLANE.items():
        plane[phase == letter] = number
    made: IntArray = np.where(plane < 0, NOTHING, (plane * stages + stage) * micro_batches + micro_batch)
    return made


def admits(plane: int, micro_batches: int, in_flight: int) -> IntArray:
    """Return micro-batch → number of what admits it to the first stage: what an earlier one makes last."""
    k = np.arange(micro_batches)
    return np.where(k >= in_flight, plane - micro_batches + k - in_flight, NOTHING)


def needs_of(
    actions: Actions,
    recomputed: npt.NDArray[np.bool_],
    reads: Sequence[tuple[list[Read], list[Read]]],
    admits: IntArray,
) -> Csr:
    """Return slot → numbers of what it needs, in the order in which it asks."""
    phase, at = actions.phase, actions.stage * len(admits) + actions.micro_batch
    plane, forward, gradient = len(recomputed), phase == "F", (phase == "B") | (phase == "I")
    again = ~forward & (phase != "R") & recomputed[at]
    asked = [
        np.where(~forward, at, NOTHING),
        np.where(again, 2 * plane + at, NOTHING),
        np.where(phase == "W", plane + at, NOTHING),
        np.where(forward & (actions.stage == 0), admits[actions.micro_batch], NOTHING),
    ]
    for of, mine in enumerate((forward, gradient)):
        for j in range(max(len(read[of]) for read in reads)):
            base = np.array([read[of][j].base if j < len(read[of]) else NOTHING for read in reads])
            here = base[actions.stage]
            asked.append(np.where(mine & (here != NOTHING), here + actions.micro_batch, NOTHING))
    table = np.stack(asked, axis=1)
    rows, _ = np.nonzero(table != NOTHING)
    slots = int(actions.slot[-1]) + 1 if len(actions.slot) else 0
    counts = np.bincount(actions.slot[rows], minlength=slots)
    return Csr.of_counts(counts, table[table != NOTHING])


def walk(needs: Csr, makes: Csr, first: Sequence[int], n_keys: int) -> tuple[IntArray, list[int]]:
    """Walk over programs, each of which stops where it lacks something and goes on when that is made.

    Parameters
    ----------
    needs, makes : Csr
        Step → numbers below `n_keys`; the steps of one rank after those of another.
    first : sequence of int
        Number of each rank's first step, and of all steps.

    Returns
    -------
    array of steps, list of int
        The order; and the step at which each rank stops: the end, unless they wait for each other.

    Examples
    --------
    >>> needs, makes = Csr.of_rows([[], [], [0], [1]]), Csr.of_rows([[0], [1], [], []])
    >>> order, done = walk(needs, makes, [0, 2, 4], 2)
    >>> order.tolist(), done
    ([0, 1, 2, 3], [2, 4])
    """
    steps_in_order = load("edge_passes", "base").steps_in_order
    order, done = steps_in_order(np.array(first), n_keys, *needs, *makes)
    return order, done.tolist()


# ----------------------------------------------------------------------------------------------------------
# When the host launches copies that run on the compute streams (``overlap: false``): by clock cycles.
#
#  cycle    1          2                    3
#  fence               copy for 1F0         copy for 1F1, copy for 2F0      (reading stages in rising order)
#  slots    0F0        0F1  1F0             0F2  1F1  2F0
#
# In each cycle the host first launches the copies that the cycle's slots read (the fence), then the slots. A
# copy between two compute streams takes its place on both, so that stage 1 runs ``1F0, receive for 1F1, send
# for 2F0, 1F1``. A slot's cycle is the one after those of the slot before it on its rank and of all that make
# what it reads. All copies thus stand in one order, the same on every stream, and no schedule deadlocks.
#
# A recomputation right before its backward shares the backward's cycle: its launch follows that of the copy
# of the gradient, and on a compute stream it queues behind that copy.
#
# Source: kakaobrain/torchgpipe, ``fence`` and ``compute`` in ``torchgpipe/pipeline.py`` for the forward;
# ``Recompute`` in ``torchgpipe/checkpoint.py``, which autograd reaches through the copy of the gradient.
# There each device's backward has a host thread, and the order of their copies is a race: that a thread
# launches R, B and the copy of what B makes in one go is our choice, and so are the copies of schedules other
# than GPipe's.


def cycles(
    programs: Sequence[Sequence[Slot]], needs: Csr, makes: Csr, n_keys: int
) -> Iterator[list[tuple[int, Slot]]]:
    """Yield the slots of each clock cycle with their ranks, ranks in rising order.

    Parameters
    ----------
    programs : sequence of sequence of Slot
        Those of a schedule that can run to its end.
    needs, makes : Csr
        Slot (counted over all ranks) → numbers below `n_keys` of what it reads and makes.
    """
    slots = [(rank, slot) for rank, program in enumerate(programs) for slot in program]
    begins = np.array([begin for program in programs for begin in _begins(program)], dtype=bool)
    group = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    n = len(starts)
    made_by = np.full(n_keys, UNSET)
    made_by[makes.indices] = group[makes.rows()]
    reader, source = group[needs.rows()], made_by[needs.indices]
    other = reader != source
    sources = Csr.group(reader[other], source[other], n)
    bounds = [0, *accumulate(sum(_begins(program)) for program in programs)]
    order, _ = walk(sources, Csr.of_rows([[g] for g in range(n)]), bounds, n)
    cycle, busy, reads = [0] * n, [0] * len(programs), sources.lists()
    for g in order.tolist():
        rank = slots[starts[g]][0]
        cycle[g] = busy[rank] = 1 + max([busy[rank], *(cycle[source] for source in reads[g])])
    at = np.argsort(np.array(cycle)[group], kind="stable").tolist()
    of = [cycle[group[i]] for i in at]
    ends = [i for i in range(1, len(at) + 1) if i == len(at) or of[i] != of[i - 1]]
    for begin, end in zip([0, *ends], ends, strict=False):
        yield [slots[i] for i in at[begin:end]]


def _begins(program: Sequence[Slot]) -> list[bool]:
    """Tell for each slot whether it shares no cycle with the recomputation before it."""
    found: list[bool] = []
    backwards = set[tuple[int, int]]()  # of the slot at the end of the cycle
    for slot in reversed(program):
        joins = all(part.phase == "R" and (part.stage, part.micro_batch) in backwards for part in slot.parts)
        if found:
            found[-1] = not joins
        found.append(True)
        if not joins:
            backwards = {(part.stage, part.micro_batch) for part in slot.parts if part.phase in "BI"}
    return found[::-1]
