"""No op starts before its inputs are there.

The rules are stated on the graph: a tensor that is read on another device must have been sent there
once (per iteration), after it was made, and must have arrived before any reader there starts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, IntArray, least_by
from sim.graph.graph import Role
from sim.invariants.checked_columns import Columns, refuse
from sim.job.transfers import travel_ns
from sim.record.dependencies import unroll


class _Reads(NamedTuple):
    """Every input of every op: its tensor, its reader, the distance in iterations, and whether over links."""

    tensor: IntArray
    reader: IntArray
    distance: IntArray
    crosses: BoolArray

    def where(self, chosen: BoolArray | IntArray) -> _Reads:
        """Return the chosen ones."""
        return _Reads(self.tensor[chosen], self.reader[chosen], self.distance[chosen], self.crosses[chosen])


def _home_devices(c: Columns) -> IntArray:
    """Return the device on which each tensor appears; -1: wherever it is read."""
    graph = c.graph
    home = np.where(graph.tensor_producer == UNSET, UNSET, c.job.device_of[graph.tensor_producer])
    for code, pin in enumerate(graph.pins):
        pinned = (graph.tensor_pin == code) & (graph.tensor_role == Role.INPUT)
        if pinned.any():
            home[pinned] = c.machine.device_index(pin)
    return home


def reads_of(c: Columns) -> _Reads:
    tensor = c.graph.inputs.indices
    reader = c.graph.inputs.rows()
    home = _home_devices(c)[tensor]
    crosses = (home != UNSET) & (home != c.job.device_of[reader]) & bool(c.machine.links)
    return _Reads(tensor, reader, c.graph.input_distance, crosses)


# -- transfers ----------------------------------------------------------------------------------


def transfer_key(c: Columns, tensor: IntArray, destination: IntArray, iteration: IntArray | int) -> IntArray:
    return (iteration * c.graph.n_tensors + tensor) * len(c.machine.devices) + destination


def moved_keys(c: Columns) -> IntArray:
    """Return the keys of the transfers that happened."""
    return transfer_key(c, c.moved["tensor"], c.moved["destination"], c.moved["iteration"])


def _transfer_of(c: Columns, tensor: IntArray, reader: IntArray, iteration: IntArray) -> IntArray:
    """Return the row of the transfer of each tensor, made in an iteration, to its reader; or -1."""
    moved = moved_keys(c)
    key = transfer_key(c, tensor, c.job.device_of[reader], iteration)
    if not len(moved):
        return np.full(len(key), UNSET)
    by_key = np.argsort(moved, kind="stable")
    row = by_key[np.minimum(np.searchsorted(moved[by_key], key), len(moved) - 1)]
    return np.where(moved[row] == key, row, UNSET)


def needed_transfers(c: Columns) -> IntArray:
    """Return the keys of all transfers that a run needs; `transfer_of_key` decodes them."""
    reads = reads_of(c)
    needed = np.unique(transfer_key(c, reads.tensor, c.job.device_of[reads.reader], 0)[reads.crosses])
    step = c.graph.n_tensors * len(c.machine.devices)
    return (np.arange(c.iterations)[:, None] * step + needed[None, :]).ravel()


def transfer_of_key(c: Columns, key: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the iteration, tensor and destination of keys."""
    iteration, remainder = np.divmod(key, c.graph.n_tensors * len(c.machine.devices))
    tensor, device = np.divmod(remainder, len(c.machine.devices))
    return iteration, tensor, device


def transfers_once(c: Columns) -> None:
    """Every tensor is sent to every device that reads it once per iteration, and nowhere else.

    With control flow it is sent as often as its loop runs.
    """
    moved = moved_keys(c)
    expected = needed_transfers(c)
    useful = np.isin(moved, expected) | np.isin(c.moved["tensor"], list(c.sent))  # see `pairs_have_one_key`
    refuse(~useful, lambda r: f"{c.transfer(r)} happened and nobody needs it")
    if not c.static:
        return
    sent, count = np.unique(moved, return_counts=True)
    refuse(np.isin(moved, sent[count > 1]), lambda r: f"{c.transfer(r)} happened more than once")

    if not c.trace.failed:
        refuse(~np.isin(expected, sent), lambda k: never_sent(c, int(expected[k])))


def never_sent(c: Columns, key: int) -> str:
    """Return a message that a transfer did not happen."""
    iteration, tensor, device = (int(part) for part in transfer_of_key(c, np.array(key)))
    name = c.graph.tensor_name(tensor)
    return f"{name!r} of iteration {iteration} was never sent to {c.device_name(device)}, where it is read"


def transfers_as_long_as_links_allow(c: Columns) -> None:
    """A transfer moves the tensor's bytes from its device, no faster than latency and bandwidth allow."""
    m = c.moved
    wrong = _home_devices(c)[m["tensor"]] != m["source"]
    size = c.graph.tensor_nbytes.copy()
    size[list(c.sent)] = [*c.sent.values()]
    wrong |= size[m["tensor"]] != m["nbytes"]
    refuse(wrong, lambda r: f"{c.transfer(r)} comes from the wrong device or has the wrong size")
    late = (m["ready_ns"] < 0) | (m["start_ns"] < m["ready_ns"])
    refuse(late, lambda r: f"{c.transfer(r)} started at {m['start_ns'][r]} ns, before it was ready")
    bound = travel_ns(c.machine, m["source"], m["destination"], m["tensor"], m["nbytes"])
    ns = m["end_ns"] - m["start_ns"]
    dead = (ns == 0) & (not c.static)  # a branch not taken sends tensors without weight
    refuse(
        (ns < bound) & ~dead,
        lambda r: f"{c.transfer(r)} took {ns[r]} ns; latency and bandwidth allow no less than {bound[r]}",
    )


def transfers_have_data(c: Columns) -> None:
    """No transfer starts before its tensor is made."""
    if not c.static:
        return
    producer = c.graph.tensor_producer[c.moved["tensor"]]
    produced = np.flatnonzero(producer != UNSET)
    row = c.done_row_of[c.moved["iteration"][produced] * c.n + producer[produced]]
    refuse(row == UNSET, lambda k: f"{c.transfer(produced[k])} happened, and its tensor was never made")
    start = c.moved["start_ns"][produced]
    refuse(
        start < c.end[row],
        lambda k: f"{c.transfer(produced[k])} started at {start[k]} ns, before {c.tell_end(row[k])}",
    )


# -- ops ----------------------------------------------------------------------------------------


NEVER: Final = -2
"""Stands for a row: the supplier of an input failed, or never ran."""


def suppliers(c: Columns, reads: _Reads) -> tuple[IntArray, IntArray]:
    """Return, for each read in each iteration, the reading task and the row that supplies its input.

    That row is a task or, after the tasks, a transfer; -1: the input is there from the start; or `NEVER`.
    """
    edge = np.tile(np.arange(len(reads.tensor)), c.iterations)
    tensor, reader, distance, crosses = reads.where(edge)
    iteration = np.repeat(np.arange(c.iterations), len(reads.tensor))
    made_at, producer = iteration - distance, c.graph.tensor_producer[tensor]
    supplier = np.full(len(edge), UNSET)
    local = (made_at >= 0) & ~crosses & (producer != UNSET)
    producer_row = c.done_row_of[made_at[local] * c.n + producer[local]]
    supplier[local] = np.where(producer_row == UNSET, NEVER, producer_row)
    sent = (made_at >= 0) & crosses
    transfer = _transfer_of(c, tensor[sent], reader[sent], made_at[sent])
    supplier[sent] = np.where(transfer == UNSET, NEVER, len(c.op) + transfer)
    return iteration * c.n + reader, supplier


def _reads_that_ran(c: Columns, reads: _Reads) -> tuple[IntArray, IntArray]:
    """Return the same for the readers that ran, as rows."""
    reader, supplier = suppliers(c, reads)
    row = c.row_of[reader]
    return row[row != UNSET], supplier[row != UNSET]


def _check_after(c: Columns, first: IntArray, second: IntArray) -> None:
    """Check that no task starts before its inputs have ended and, if needed, their events have travelled.

    A launch that fails only needs its inputs to have been issued.
    """
    fails = ~c.done[second] & c.trace.at_once[second]
    first, second = first[~fails], second[~fails]
    refuse(
        c.start[second] < c.row_end[first],
        lambda k: f"{c.tell_start(second[k])}, before {c.tell_end(first[k])}, which it needs",
    )
    first, second = first[first < len(c.op)], second[first < len(c.op)]
    # A task eligible before its producer had ended was issued behind an event of the other stream.
    hop = np.array([device.event_ns for device in c.machine.devices])[c.device[second]]
    by_event = (c.ready[second] < c.end[first]) & (c.stream[first] != c.stream[second])
    by_event &= ~c.by_worker[first] & ~c.by_worker[second]
    refuse(
        by_event & (c.start[second] < c.end[first] + hop),
        lambda k: (
            f"{c.tell_start(second[k])}; {c.tell_end(first[k])} on another stream, "
            f"and its event takes {hop[k]} ns"
        ),
    )


def inputs_are_there(c: Columns) -> None:
    """No strict op starts before its inputs are made and, if from another device, have arrived."""
    if c.static:
        reads = reads_of(c)
        reader, supplier = _reads_that_ran(c, reads.where(~c.non_strict[reads.reader]))
        refuse(
            supplier == NEVER,
            lambda k: f"{c.tell_start(reader[k])}, and something that it reads was never made, or sent",
        )
        _check_after(c, supplier[supplier != UNSET], reader[supplier != UNSET])


def first_input_is_there(c: Columns) -> None:
    """No non-strict op starts before one of its inputs is made and, if from another device, has arrived."""
    if not c.static or not c.non_strict.any():
        return
    reads = reads_of(c)
    reader, supplier = _reads_that_ran(c, reads.where(c.non_strict[reads.reader]))
    arrival_ns = np.where(supplier == UNSET, 0, c.row_end[supplier])
    arrival_ns[supplier == NEVER] = c.trace.makespan_ns + 1
    first = least_by(reader, arrival_ns, len(c.op), c.trace.makespan_ns + 1)
    refuse(
        c.start[reader] < first[reader],
        lambda k: (
            f"{c.tell_start(reader[k])}, and the first of its inputs was there at {first[reader[k]]} ns; "
            "it needs one"
        ),
    )


def control_rows(c: Columns) -> tuple[IntArray, IntArray]:
    """Return, for each control edge in each iteration, the row of the op followed (or -1) and the task."""
    after, distance = c.graph.after, c.graph.after_distance
    edge, iteration = unroll(distance, c.iterations)
    first = c.done_row_of[(iteration - distance[edge]) * c.n + after.indices[edge]]
    return first, iteration * c.n + after.rows()[edge]


def control_edges(c: Columns) -> None:
    """No op starts before the ops that it follows have ended."""
    if c.static:
        first, task = control_rows(c)
        second = c.row_of[task]
        first, second = first[second != UNSET], second[second != UNSET]
        refuse(
            first == UNSET,
            lambda k: f"{c.tell_start(second[k])}, and an op that it follows failed, or never ran",
        )
        _check_after(c, first, second)


def first_tokens(c: Columns) -> None:
    """With control flow, no op runs before each of its producers has run.

    A merge needs only one of them, and so does a non-strict op for its data inputs.

    A dead op executes nothing: the host may pass over it while its producer is still on a stream.
    """
    if c.static:
        return
    edges = c.graph.edges
    never = c.trace.makespan_ns + 1
    ran = c.live & (c.done | ~c.trace.at_once)  # a failing launch needs only the launches before it
    first_start = least_by(c.op[ran], c.start[ran], c.n, never)
    first_end = least_by(c.op[c.done], c.end[c.done], c.n, never)
    to_non_strict = c.non_strict[edges.consumer] & (edges.tensor != UNSET)
    one_of = c.graph.is_kind("merge")[edges.consumer] | to_non_strict
    refuse(
        (first_start[edges.consumer] < first_end[edges.producer]) & ~one_of,
        lambda k: (
            f"op {c.graph.op_names[edges.consumer[k]]!r} ran at {first_start[edges.consumer[k]]} ns, before "
            f"{c.graph.op_names[edges.producer[k]]!r}, which it needs, had ended once"
        ),
    )
