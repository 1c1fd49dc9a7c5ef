"""Kernels of a training step, timed by the cost model of a device: what `workload: {build: ...}` asks, too.

::

    Product     a matmul with its shape          Attention   attention, or attention_grad, with its shape
    Pass        an op that reads and writes      Collective  a ring at one bandwidth, which nothing hides

Each takes the device's gap besides. The facts of an op are those of `scenarios.build.gpt`, so that a layer
costs the same whether its ops run one by one or stand behind the time of a stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import inf

from scenarios.build.train.calibration import Calibration, Reach
from scenarios.build.train.kernels import Attention, Pass, Product
from scenarios.ops.dtypes import check_dtype, nbytes
from scenarios.ops.op_costs import OpFacts, TensorFacts, op_arguments
from sim import Device, Graph, GraphBuilder
from sim.job.costs import costs_ns
from sim.words.errors import InputError

__all__ = ["at_rate", "kernels_graph", "on_device"]


def at_rate(rate: int, bandwidth: int | None = None) -> Calibration:
    """Return what a device reaches that does the model's own flop at `rate`, and all else in no time.

    Attention's backward counts twice its forward, as in MFU (`scenarios.build.train.architecture`): what a
    kernel computes again is in the rate.

    Parameters
    ----------
    rate : int
        In flop/s.
    bandwidth : int, optional
        Between the devices that share a layer, in bytes/s; None: messages take no time.
    """
    reach = Reach(float(bandwidth or inf))
    return Calibration(
        name="rate",
        peak=float(rate),
        memory_bandwidth=inf,
        node=reach,
        between=reach,
        attention_backward=5 / 4,  # its five products (kernels.Attention.flops) as four
        hiding=0.0,
        roofline=False,
    )


def on_device(device: Device, dtype: str, bandwidth: int | None = None) -> Calibration:
    """Return what the cost model of a device says of kernels.

    Parameters
    ----------
    device : Device
    dtype : str
        Of weights and activations.
    bandwidth : int, optional
        As in `at_rate`.

    Raises
    ------
    InputError
        The device has no cost model, or (when a kernel is timed) one that does not know it.
    """
    if device.cost is None:
        raise InputError(
            "nothing tells how long its products take: give the model a rate (150TFLOP/s) or a calibration, "
            "or the scenario a machine whose devices have a cost model"
        )
    check_dtype(dtype)

    @cache
    def time(kernel: Product | Attention | Pass) -> float:
        graph = kernels_graph([kernel], dtype)
        ns = int(costs_ns(graph, device)[0])
        if ns < 0:
            raise InputError(
                f"the cost model of {device.name} does not know {graph.kinds[0]}; give the model a rate"
            )
        return float(ns + device.gap_ns)

    reach = Reach(float(bandwidth or inf))
    return Calibration(device.name, inf, inf, node=reach, between=reach, hiding=0.0, kernel=time)


def kernels_graph(kernels: Iterable[Product | Attention | Pass], dtype: str) -> Graph:
    """Return a graph with an op for each kernel, which a cost model can be asked about."""
    builder = GraphBuilder("kernels")
    for number, kernel in enumerate(kernels):
        name = f"{type(kernel).__name__.lower()} {number}"
        if isinstance(kernel, Pass):
            read = kernel.nbytes // 2
            builder.op(name, kind="add", bytes_read=read, bytes_written=kernel.nbytes - read, dtype=dtype)
        else:
            facts = _facts(kernel, dtype)
            builder.op(name, **op_arguments(facts, name, facts.attributes), dtype=dtype)
    return builder.build()


def _facts(kernel: Product | Attention, dtype: str) -> OpFacts:
    def tensor(*shape: int) -> TensorFacts:
        return TensorFacts(shape, nbytes(shape, dtype))

    if isinstance(kernel, Product):
        return OpFacts(
            "matmul",
            (tensor(kernel.m, kernel.k), tensor(kernel.k, kernel.n)),
            (tensor(kernel.m, kernel.n),),
            {},
        )
    q = tensor(kernel.batch, kernel.heads, kernel.sequence, kernel.query_head)
    k = tensor(kernel.batch, kernel.kv_heads, kernel.sequence, kernel.query_head)
    v = tensor(kernel.batch, kernel.kv_heads, kernel.sequence, kernel.value_head)
    o = tensor(kernel.batch, kernel.heads, kernel.sequence, kernel.value_head)
    if not kernel.backward:
        return OpFacts("attention", (q, k, v), (o,), {"is_causal": True})
    # of queries, keys, values, the output's gradient and the output; it writes three gradients
    made = tensor(kernel.batch, kernel.sequence, 3 * kernel.heads * kernel.query_head)
    return OpFacts("attention_grad", (q, k, v, o, o), (made,), {})
