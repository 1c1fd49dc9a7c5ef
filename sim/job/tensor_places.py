"""Where tensors are: graph inputs before time 0, and whatever an op makes once it has run."""

from __future__ import annotations

import numpy as np

from sim.graph.graph import Graph, Role
from sim.job.job import Job
from sim.machine.machine import Machine
from sim.words.arrays import UNSET, BoolArray, IntArray

__all__ = ["crossing_reads", "input_devices", "tensor_devices"]


def input_devices(graph: Graph, machine: Machine) -> IntArray:
    """Return, for each tensor, the device where it lies before time 0, if it is a graph input pinned to one.

    Returns
    -------
    array of int64, one entry per tensor
        -1 for what an op makes, and for what is there wherever it is read: parameters, and free inputs.

    Raises
    ------
    UnknownNameError
        An input pinned to what is no device of the machine.
    """
    home = np.full(graph.n_tensors, UNSET)
    pinned = (graph.tensor_pin != UNSET) & (graph.tensor_role == Role.INPUT)
    for code in sorted(set(graph.tensor_pin[pinned].tolist())):
        home[pinned & (graph.tensor_pin == code)] = machine.device_index(graph.pins[code])
    return home


def tensor_devices(job: Job) -> IntArray:
    """Return, for each tensor, the device where it comes to be; -1: it is there wherever it is read.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two devices")
    >>> _ = b.op("a", outputs=8, duration_ns=1, device="gpu0"), b.op("b", duration_ns=1, device="gpu1")
    >>> tensor_devices(make_job(b.build(), Machine((Device("gpu0"), Device("gpu1"))))).tolist()
    [0, 1]
    """
    home = input_devices(job.graph, job.machine)
    made = job.graph.tensor_producer != UNSET
    home[made] = job.device_of[job.graph.tensor_producer[made]]
    return home


def crossing_reads(job: Job) -> tuple[BoolArray, IntArray]:
    """Return which entries of ``graph.inputs`` cross links, and the device where each tensor comes to be.

    The second array has one entry per tensor, -1 for what is there wherever it is read: parameters,
    and graph inputs that are not pinned. A machine without links crosses none.
    """
    graph, home = job.graph, tensor_devices(job)
    there = np.repeat(job.device_of, graph.inputs.counts())
    tensor = graph.inputs.indices
    away = (home[tensor] != UNSET) & (home[tensor] != there) & bool(job.machine.links)
    return away, home
