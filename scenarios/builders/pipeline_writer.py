"""Writes the ops of a pipeline, in the order of a walk over the programs of all ranks.

A rank writes slots until one lacks an input; then it sleeps on that input, and the rank that writes it wakes
the first one. Ops are therefore written after their inputs, and a walk that ends early is a deadlock.

`scenarios.builders.pipeline_stage` defines what ops send, keep and read. All slots are columns, one row per
action, in the order of the programs; ops between and behind the slots have rows of their own, each
with its place::

    place     0    1    2  2    3                    of the walk
    slots    0F0  0F1  1F0     0B0                   0F0 0F1 0B0 | 1F0, as columns
    rows               collective of 1F0             at the place of 1F0, behind it

With copies on the compute streams (``overlap: false``) slots and copies are written cycle by cycle. Both
ends of a copy meet: each posts that it is ready, and begins its half when the other has posted too::

    source        ... F0  post ┌copy┐ F1              neither does anything else meanwhile
    destination   ...     post └copy┘ F0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

import numpy as np

from policies.pipeline.evaluate import StageTimes
from policies.pipeline.pipeline_schedule import PHASES, Actions, Slot
from policies.pipeline.validate import explain_deadlock
from scenarios.builders.pipeline_stage import BESIDE, End, PlacedPipeline, output_sizes, reads_of_stages
from sim import Graph, GraphBuilder
from sim.base.arrays import UNSET, BoolArray, Codes, Csr, IntArray, distinct_rows
from sim.base.compiled import load
from sim.base.errors import StuckError
from sim.base.units import round_half_up
from sim.explain.communication import INSIDE

NOTHING = -(1 << 62)  # neither the number of an action nor a time


class PipelineWriter:
    """Writer of one graph; see `scenarios.builders.pipeline_graph`."""

    def __init__(
        self, plan: PlacedPipeline, copy_ns: Callable[[int, int, int], int], shares: Sequence[tuple[int, int]]
    ) -> None:
        schedule, stages, around = plan.schedule, plan.stages, plan.around
        self.schedule, self.stages, self.devices = schedule, stages, plan.devices
        self.around, self.copy_ns = around, copy_ns
        self.shares = {k: Fraction(*share) for k, share in enumerate(shares) if share[0] != share[1]}
        self.builder = GraphBuilder(schedule.name)
        self.end = End(self.builder, plan)
        self.actions = actions = Actions(schedule)
        self.rank, self.stage = actions.rank, actions.stage
        self.k, self.slot = actions.micro_batch, actions.slot
        self.bounds = np.searchsorted(self.slot, np.arange(actions.first[-1] + 1))  # slot → its first row
        self.home = self.rank * schedule.stages + self.stage
        self.mask = {letter: actions.phase == letter for letter in PHASES}
        self.code = np.argmax([*self.mask.values()], axis=0)
        self.gradient = self.mask["B"] | self.mask["I"]
        self.weights = np.flatnonzero(self.mask["B"] | self.mask["W"])
        # Numbers of actions that others wait for: ``(plane · stages + stage) · micro-batches + micro-batch``;
        # the plane is 0 for F, 1 for the gradient (of B or I), 2 for R; nobody waits for a W.
        m = schedule.micro_batches
        self.plane, self.cell = schedule.stages * m, self.stage * m + self.k
        self.recomputed = np.isin(self.cell, self.cell[self.mask["R"]])
        planes = [self.cell, self.plane + self.cell, 2 * self.plane + self.cell]
        self.key = np.select([self.mask["F"], self.gradient, self.mask["R"]], planes, NOTHING)
        # Reads from other stages: the reading action, and the input (a column for each field of `Read`).
        self.sizes = [output_sizes(stages, around, s) for s in range(len(stages))]
        reads = [read for pair in reads_of_stages(self.sizes, around, m) for read in pair]
        sort = np.select([self.mask["F"], self.gradient], [2 * self.stage, 2 * self.stage + 1], len(reads))
        table = Csr.of_counts(np.array([*map(len, reads), 0]), np.arange(sum(map(len, reads)))).take(sort)
        fields = np.array([field for read in reads for field in read], np.int64).reshape(-1, 4)
        self.reader, (base, *self.read) = table.rows(), fields[table.indices].T
        self.source = base + self.k[self.reader]

    def build(self) -> Graph:
        """Write all ops and return the graph.

        Raises
        ------
        StuckError
            The ranks wait for each other.
        """
        first, n_keys = self.actions.first, 3 * self.plane
        self.admitted = self.mask["F"] & (self.stage == 0) & (self.k >= self.schedule.in_flight)
        self.admits = self.plane - self.schedule.micro_batches + self.k - self.schedule.in_flight
        needs = self._by_slot(
            _select(~self.mask["F"], self.cell),
            _select(self.recomputed & (self.gradient | self.mask["W"]), 2 * self.plane + self.cell),
            _select(self.mask["W"], self.plane + self.cell),
            _select(self.admitted, self.admits),
            (self.reader, self.source),
        )
        makes = self._by_slot(_select(self.key != NOTHING, self.key))
        order, done = walk(needs, makes, first, n_keys)
        if done != first[1:]:
            stopped = [position - start for position, start in zip(done, first, strict=False)]
            raise StuckError(explain_deadlock(self.schedule, stopped))
        cycle = None
        if not self.around.copy_streams:
            cycle = cycles(self.schedule.programs, needs, makes, n_keys)
            order = np.argsort(cycle, kind="stable")
        self._write(np.argsort(order), cycle)
        return self.builder.build()

    def _by_slot(self, *columns: tuple[IntArray, IntArray]) -> Csr:
        """Return slot → the numbers given for its actions, in the order of actions and columns."""
        rows, numbers = map(np.concatenate, zip(*columns, strict=True))
        table = Csr.group(rows, numbers, len(self.cell))
        return Csr(table.indptr[self.bounds], table.indices)

    def _action(self, j: int) -> tuple[int, int, str, int]:
        """Return rank, stage, phase and micro-batch of an action."""
        return int(self.rank[j]), int(self.stage[j]), str(self.actions.phase[j]), int(self.k[j])

    # -- ops -----------------------------------------------------------------------------------

    def _write(self, order: IntArray, cycle: IntArray | None) -> None:
        """Write the slots, each at its place, and the ops between and behind them."""
        end, slot, n = self.end, self.slot, len(order)
        # The last backward of a stage on a rank is split into one op per bucket; so is its first forward
        # if parameters are gathered beside it.
        at_home = np.full(self.schedule.ranks * self.schedule.stages, UNSET)
        at_home[self.home[self.weights]] = self.weights
        complete, forwards = at_home[at_home >= 0], np.flatnonzero(self.mask["F"])
        heads = forwards[np.unique(self.home[forwards], return_index=True)[1]]
        split = heads if end.gathers and self.around.overlap else heads[:0]
        pieces = np.ones(n, np.int64)
        pieces[slot[np.append(complete, split)]] = end.pieces
        slot_of, last = np.repeat(np.arange(n), pieces), np.cumsum(pieces) - 1
        count = pieces[slot_of]
        piece = np.arange(len(slot_of)) - last[slot_of] + count

        sizes = self._output_sizes()
        of_slots = np.append(sizes.indptr[self.bounds], sizes.indptr[-1] + 1)
        row = np.where(piece == count, slot_of, n)  # only the last piece has outputs
        outputs = Csr(of_slots, np.append(sizes.indices, 0)).take(row)
        first = sizes.indptr[:-1] + (outputs.indptr[last] - of_slots[:n])[slot]
        self.tensor, self.op = np.full((2, 3 * self.plane), UNSET)
        keyed = self.key != NOTHING
        self.tensor[self.key[keyed]], self.op[self.key[keyed]] = first[keyed], last[slot[keyed]]

        end.ops, end.tensors, stride = len(slot_of), len(outputs.indices), end.pieces + 1
        waits_ahead = self._write_gathers(order * stride, last, split)
        sent = self._write_followers((order + 1) * stride - 1, last, complete.tolist(), first, sizes)
        output = self.read[1]
        read = np.where(output == 0, sent[self.source], self.tensor[self.source] + output)
        if cycle is not None:
            self._write_copies(read, cycle[slot], stride * np.searchsorted(np.sort(cycle), cycle)[slot])
        end.place = n * stride
        end.write()
        if not len(split):  # the optimizer step of the iteration before
            updates = [(j, op) for j in heads.tolist() for op in end.updates.get(self._action(j)[:2], ())]
            j, op = np.array(updates, np.int64).reshape(-1, 2).T
            waits_ahead = np.stack([last[slot[j]] + 1 - pieces[slot[j]], op])

        # Slots as columns in the order of `End.rows`.
        letters, head = self.actions.phase.tolist(), self.bounds[slot_of]
        texts = zip(self.stage.tolist(), letters, self.k.tolist(), strict=True)
        names = self._join_names([f"{stage}{phase}{k}" for stage, phase, k in texts])
        if len(slot_of) > n:
            parts = zip(slot_of.tolist(), piece.tolist(), count.tolist(), strict=True)
            names = [names[s] if count == 1 else f"{names[s]}/{p}" for s, p, count in parts]
        code = Codes[str]({"": UNSET})
        kind = code.of(self._join_names(letters))[slot_of]
        ns, comm_ns = (_piece(spent[slot_of], piece, count) for spent in self._slot_times(order))
        places = order[slot_of] * stride + piece
        numbers = np.stack([places, self.rank[head], ns, self.stage[head], self.k[head], comm_ns, kind, kind])
        after = self._by_slot(
            _select(self.mask["W"], self.op[self.plane + self.cell]),
            _select(self.admitted, self.op[self.admits]),
        )
        after = after.take(slot_of)
        rows, ops = np.append(np.stack([after.rows(), after.indices]), waits_ahead, axis=1)
        waits = Csr.group(rows, ops, len(slot_of))
        tables = (self._inputs(read).take(slot_of), outputs, waits)
        self._extend(names, code, numbers, tables)

    def _write_gathers(self, place: IntArray, last: IntArray, heads: IntArray) -> IntArray:
        """Gather parameters right before first forwards; return pairs (op of a slot, gather it waits for)."""
        edges = list[tuple[int, int]]()
        for j in heads[np.argsort(place[self.slot[heads]], kind="stable")].tolist():
            self.end.place = int(place[self.slot[j]])
            first = int(last[self.slot[j]]) + 1 - self.end.pieces
            edges += enumerate(self.end.gather(*self._action(j)[:2]), first)
        return np.array(edges, np.int64).reshape(-1, 2).T

    def _write_followers(
        self, place: IntArray, last: IntArray, complete: Sequence[int], first: IntArray, sizes: Csr
    ) -> IntArray:
        """Write the ops that follow single slots, each at its place; return what actions send on."""
        end, slot, behind = self.end, self.slot, place[self.slot].tolist()
        for j in sorted(complete, key=lambda j: (behind[j], j)):
            for before in reversed(range(end.pieces)):
                end.place = behind[j] - before
                end.on_gradients(*self._action(j)[:2], int(last[slot[j]]) - before)
        sent, last_op = self.tensor.copy(), last.copy()
        sums = np.array([stage.collectives_ns for stage in self.stages])[self.stage]
        for j in np.flatnonzero(sums * (self.mask["F"] | self.gradient)).tolist():
            end.place, (rank, stage, phase, k) = behind[j], self._action(j)
            name, ns = f"collective of {stage}{phase}{k}", self.stages[stage].collectives_ns
            passed: dict[str, Any] = {"inputs": (first[j],), "nbytes": sizes.row(j)[0]}
            op = end.append(rank, name, "collective", ns, stage=stage, micro_batch=k, **passed)
            last_op[slot[j]], sent[self.key[j]] = op, end.tensor(op)
        for rank, (begin, stop) in enumerate(pairwise(self.actions.first)):
            if stop > begin:
                end.last[rank] = int(last_op[stop - 1])
        if end.after_each_backward:
            for j in self.weights.tolist():
                end.place, (rank, stage, _, k) = behind[j], self._action(j)
                end.step(rank, stage, k)
        return sent

    def _join_names(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the names of slots, joined from those of their actions."""
        plain = len(self.bounds) > len(texts)
        return texts if plain else ["+".join(texts[a:b]) for a, b in pairwise(self.bounds.tolist())]

    def _output_sizes(self) -> Csr:
        """Return the output sizes of actions; the F of a recomputed micro-batch has its own."""
        words, masks, odd = [*PHASES, "C"], [*self.mask.values()], sorted(self.shares)
        sizes = [self._share(table[word], k) for k in (UNSET, *odd) for table in self.sizes for word in words]
        word = np.select([masks[0] & self.recomputed, *masks], [len(masks), *range(len(masks))])
        return Csr.of_rows(sizes).take(word + len(words) * (self.stage + len(self.sizes) * self._share_row()))

    def _share_row(self) -> IntArray:
        """Return, for each action, the number of its micro-batch's entry in `shares`, from 1; 0 for none."""
        odd = sorted(self.shares)
        return np.where(np.isin(self.k, odd), 1 + np.searchsorted(odd, self.k), 0) if odd else 0 * self.k

    def _share(self, sizes: tuple[int, ...], k: int) -> tuple[int, ...]:
        """Return output sizes scaled to a micro-batch, which may have fewer samples than others."""
        share = self.shares.get(k)
        return sizes if share is None else tuple(ceil(share * nbytes) for nbytes in sizes)

    def _inputs(self, read: IntArray) -> Csr:
        """Return the inputs of slots; the first slot of a stage on a rank also reads what is resident."""
        own_tensor, backward = self.tensor[self.cell], self.gradient | self.mask["W"]
        kept_tensor = np.where(self.recomputed, self.tensor[2 * self.plane + self.cell], own_tensor)
        passing = np.array([stage_sizes["R"][1] > 0 for stage_sizes in self.sizes])[self.stage]
        homes = np.sort(np.unique(self.home, return_index=True)[1]).tolist()
        resident = [(j, tensor) for j in homes for tensor in self.end.resident[self._action(j)[:2]]]
        home, tensor = np.array(resident, np.int64).reshape(-1, 2).T
        return self._by_slot(
            _select(self.mask["R"], own_tensor + 1),
            _select(backward, kept_tensor + 2),
            _select(backward & self.recomputed, own_tensor + 1),
            _select(self.gradient & passing, kept_tensor + 1),
            (self.reader, read),
            (self.bounds[self.slot[home] + 1] - 1, tensor),
        )

    def _slot_times(self, place: IntArray) -> tuple[IntArray, IntArray]:
        """Return the duration of each slot, and how much of it is exposed communication."""
        overlapped = [stage.times.overlapped for stage in self.stages]
        forward_ns = np.array([NOTHING if ns is None else ns for ns in overlapped])[self.stage]
        joined = self.mask["F"] & (np.diff(self.bounds)[self.slot] > 1) & (forward_ns != NOTHING)
        first = np.flatnonzero(joined)[::-1]
        joined_ns = np.full(len(place), NOTHING)
        joined_ns[self.slot[first]] = forward_ns[first]  # the time of the slot's first forward counts
        single = joined_ns == NOTHING
        for slot in {*self.slot[self._share_row() > 0].tolist()} - {*np.flatnonzero(single).tolist()}:
            parts = [self._action(j) for j in range(self.bounds[slot], self.bounds[slot + 1])]
            timed = [(self.stages[s].times.of(phase), self.shares.get(k, 1)) for _, s, phase, k in parts]
            if total := sum(ns for ns, _ in timed):  # reduced in proportion to the sum of the two
                part = sum(ns * share for ns, share in timed)
                joined_ns[slot] = round_half_up(Fraction(int(joined_ns[slot])) * part / total)
        ns = self._add_up({s: stage.times for s, stage in enumerate(self.stages)}, single[self.slot], place)
        exposed = {s: stage.exposed for s, stage in enumerate(self.stages) if stage.exposed is not None}
        return np.where(single, ns, joined_ns), self._add_up(exposed, np.isin(self.stage, [*exposed]), place)

    def _add_up(self, times: Mapping[int, StageTimes], chosen: BoolArray, place: IntArray) -> IntArray:
        """Return the summed times of each slot's chosen actions, looked up per stage, phase and share."""
        rows, times_ns = np.flatnonzero(chosen), np.zeros(len(self.cell), np.int64)
        if not len(rows):
            return 0 * place
        sort = (self._share_row()[rows] * len(self.stages) + self.stage[rows]) * len(PHASES) + self.code[rows]
        _, first, inverse = np.unique(sort, return_index=True, return_inverse=True)
        distinct = np.zeros(len(first), np.int64)
        begin = place[self.slot[rows[first]]]
        for j in np.argsort(begin).tolist():  # in order, so that the first phase without a time is reported
            _, stage, phase, k = self._action(rows[first[j]])
            distinct[j] = round_half_up(self.shares.get(k, 1) * times[stage].of(phase))
        times_ns[rows] = distinct[inverse]
        return Csr(self.bounds, np.arange(len(times_ns))).sums(times_ns)

    def _extend(
        self, names: Sequence[str], code: Codes[str], numbers: IntArray, tables: Sequence[Csr]
    ) -> None:
        """Add the ops of slots and those of `End.rows` to the builder, in the order of their places."""
        columns: list[Any] = [*zip(*self.end.rows, strict=True)] or [()] * 12
        more, rows = columns[0], columns[1:]
        rows[6:8] = [code.of(words) for words in rows[6:8]]
        numbers = np.append(numbers, np.array(rows[:8], np.int64), axis=1)
        order = np.argsort(numbers[0], kind="stable")
        _, rank, ns, stage, k, comm_ns, kind, phase = numbers[:, order]
        inputs, outputs, after = map(_append_rows, tables, rows[8:])
        sorted_outputs = Csr(outputs.indptr, np.arange(len(outputs.indices))).take(order)
        op, tensor = np.argsort(order), np.argsort(sorted_outputs.indices)  # new number of each op and tensor
        sorts, sort = distinct_rows(comm_ns, (phase == code[BESIDE]).astype(np.int64))
        shared = [self._attributes(*values) for values in sorts]
        attributes = {n: shared[i] for n, i in enumerate(sort.tolist() if any(shared) else ()) if shared[i]}
        names, waits = [*names, *more], _renumber(after.take(order), op)
        self.builder.extend(
            [names[n] for n in order.tolist()],
            kind=([*code], kind),
            inputs=_renumber(inputs.take(order), tensor),
            outputs=outputs.take(order),
            duration_ns=ns,
            device=(self.devices, rank),
            after=waits,
            # An op that is written later belongs to the previous iteration.
            after_distance=(waits.indices > waits.rows()).astype(np.int64),
            stage=stage,
            micro_batch=k,
            phase=([*code], phase),
            attributes=attributes,
        )

    def _attributes(self, inside_ns: int, beside: int) -> dict[str, float]:
        """Return an op's communication time inside, and its share of SMs when others run beside it.

        The op of a phase stands for hundreds of kernels, between which a collective gets its SMs; a single
        kernel as large as the GPU would make it wait for all of them. NCCL runs a block per channel, each on
        an SM (NCCL documentation, NCCL_MAX_NCHANNELS); that these are an eighth of the SMs, say 16 of 132, is
        assumed.
        """
        values: dict[str, float] = {INSIDE: inside_ns} if inside_ns else {}
        if self.around.own_stream:
            values["sm_fraction"] = 0.125 if beside else 0.875
        return values

    # -- copies on compute streams ---------------------------------------------------------------

    def _write_copies(self, read: IntArray, cycle: IntArray, fence: IntArray) -> None:
        """Write the copies that slots read at the fence of their cycle, and redirect the slots to the copies.

        Stages come in ascending order, skips before boundaries.
        """
        source, output, nbytes = self.read
        reader, k = self.reader, self.k[self.reader]
        placed = np.array(self.schedule.placements)[np.array(self.schedule.replica_of)[k], source]
        order = np.lexsort((output, source, self.source, output == 0, k, self.stage[reader], cycle[reader]))
        for j in order[(placed != self.rank[reader])[order]].tolist():
            rank, stage, phase, micro_batch = self._action(reader[j])
            text = f"copy for {stage}{phase}{micro_batch}"
            text += f" ({output[j]} of stage {source[j]})" if output[j] else ""
            self.end.place = int(fence[reader[j]])
            (size,) = self._share((int(nbytes[j]),), micro_batch)
            read[j] = self._write_copy(text, int(read[j]), size, int(placed[j]), rank)

    def _write_copy(self, text: str, tensor: int, nbytes: int, source: int, destination: int) -> int:
        """Write both ends of a copy: each posts that it is ready, and copies when the other has posted."""
        sides = (("from", source), ("to", destination))
        ends = [(f"{text} {side} {self.devices[rank]}", rank) for side, rank in sides]
        posts = [self.end.append(rank, f"post {name}", "post", 0) for name, rank in ends]
        ns = self.copy_ns(source, destination, nbytes)
        for (name, rank), other in zip(ends, reversed(posts), strict=True):
            moves: dict[str, Any] = {"inputs": (tensor,)} if rank == source else {"nbytes": nbytes}
            op = self.end.append(rank, name, "copy", ns, (other,), **moves)
        return self.end.tensor(op)


def _select(mask: BoolArray, column: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows where the mask holds, and the column's values there."""
    return np.flatnonzero(mask), column[mask]


def _piece(total: IntArray, piece: IntArray, pieces: IntArray) -> IntArray:
    """Return part `piece` of a whole number, such that all parts add up to it."""
    return total * piece // pieces - total * (piece - 1) // pieces


def _append_rows(first: Csr, further: Sequence[Sequence[int]]) -> Csr:
    """Return the table with further rows appended."""
    table = Csr.of_rows(further)
    indptr = np.append(first.indptr, first.indptr[-1] + table.indptr[1:])
    return Csr(indptr, np.append(first.indices, table.indices))


def _renumber(table: Csr, number: IntArray) -> Csr:
    """Return the table with its entries renumbered; negative entries stay."""
    return Csr(table.indptr, np.where(table.indices < 0, table.indices, number[np.maximum(table.indices, 0)]))


# ----------------------------------------------------------------------------------------------------------
# The order in which the slots of a pipeline are written: a walk over all programs, inputs first.
#
# ::
#
#     rank 0   0F0 0F1 | ...          a rank goes on until it lacks an input,
#     rank 1           1F0 1F1 | ...  and sleeps until that has been made


def walk(needs: Csr, makes: Csr, first: Sequence[int], n_keys: int) -> tuple[IntArray, list[int]]:
    """Walk over programs; each stops where it lacks an input and resumes when that has been made.

    Parameters
    ----------
    needs, makes : Csr
        Step → numbers below `n_keys`; the steps of the ranks one after another.
    first : sequence of int
        Number of each rank's first step, and the number of all steps.

    Returns
    -------
    array of steps, list of int
        The order, and the step at which each rank stops: its end, unless ranks wait for each other.

    Examples
    --------
    >>> needs, makes = Csr.of_rows([[], [], [0], [1]]), Csr.of_rows([[0], [1], [], []])
    >>> order, done = walk(needs, makes, [0, 2, 4], 2)
    >>> order.tolist(), done
    ([0, 1, 2, 3], [2, 4])
    """
    steps_in_order = load("edge_passes", "base").steps_in_order
    order, done = steps_in_order(np.array(first), n_keys, [*needs, *makes])
    return order, done.tolist()


# ----------------------------------------------------------------------------------------------------------
# When the host launches copies that run on the compute streams (``overlap: false``): in clock cycles.
#
#  cycle    1          2                    3
#  fence               copy for 1F0         copy for 1F1, copy for 2F0      (reading stages ascending)
#  slots    0F0        0F1  1F0             0F2  1F1  2F0
#
# In each cycle the host first launches the copies that the cycle's slots read (the fence), then the slots. A
# copy between two compute streams takes its place on both, so that stage 1 runs ``1F0, receive for 1F1, send
# for 2F0, 1F1``. The cycle of a slot is one after the latest of the slot before it on its rank and of all
# that make its inputs. All copies thus have one order, the same on every stream, and no schedule deadlocks.
#
# A recomputation right before its backward shares the backward's cycle: it is launched after the copy
# of the gradient, and on a compute stream it queues behind that copy.
#
# Source: kakaobrain/torchgpipe, ``fence`` and ``compute`` in ``torchgpipe/pipeline.py`` for the forward;
# ``Recompute`` in ``torchgpipe/checkpoint.py``, which autograd reaches through the copy of the gradient.
# There each device's backward has a host thread, and the order of their copies is a race: that a thread
# launches R, B and the copy of B's output in one go is our choice, and so are the copies of schedules other
# than GPipe's.


def cycles(programs: Sequence[Sequence[Slot]], needs: Csr, makes: Csr, n_keys: int) -> IntArray:
    """Return the clock cycle of each slot.

    Parameters
    ----------
    programs : sequence of sequence of Slot
        Programs of a schedule that can run to its end.
    needs, makes : Csr
        Slot (counted over all ranks) → numbers below `n_keys` of its inputs and outputs.
    """
    begins = np.array([begin for program in programs for begin in _starts_cycle(program)], dtype=bool)
    group, n = np.cumsum(begins) - 1, int(begins.sum())
    made_by = np.full(n_keys, UNSET)
    made_by[makes.indices] = group[makes.rows()]
    reader, source = group[needs.rows()], made_by[needs.indices]
    other = reader != source
    sources = Csr.group(reader[other], source[other], n)
    bounds = [0, *accumulate(sum(_starts_cycle(program)) for program in programs)]
    order, _ = walk(sources, Csr.of_rows([[g] for g in range(n)]), bounds, n)
    cycle, reads = np.zeros(n, np.int64), sources.lists()
    for g in order.tolist():
        before = [] if g in bounds else [g - 1]
        cycle[g] = 1 + max((cycle[source] for source in [*before, *reads[g]]), default=0)
    slot_cycle: IntArray = cycle[group]
    return slot_cycle


def _starts_cycle(program: Sequence[Slot]) -> list[bool]:
    """Return, for each slot, whether it starts a cycle or shares that of the recomputation before it."""
    begins: list[bool] = []
    backwards = set[tuple[int, int]]()  # of the slot at the end of the cycle
    for slot in reversed(program):
        joins = all(part.phase == "R" and (part.stage, part.micro_batch) in backwards for part in slot.parts)
        if begins:
            begins[-1] = not joins
        begins.append(True)
        if not joins:
            backwards = {(part.stage, part.micro_batch) for part in slot.parts if part.phase in "BI"}
    return begins[::-1]
