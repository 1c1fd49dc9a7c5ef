"""What makes a graph from a few sizes: a class whose fields are the keys of ``workload: {build: ...}``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from devices.collectives.groups import Fabric, NodeFabrics
from devices.describe.quantities import Strict
from scenarios.builders.train.calibration import TrainingCalibration
from scenarios.builders.train.kernels import Attention, Pass, Product
from scenarios.file.faults import input_error
from scenarios.ops.attributes import check_dtype, nbytes
from scenarios.ops.op_costs import op_arguments
from scenarios.ops.op_formulas import OpFacts, TensorFacts
from sim import Device, GraphBuilder
from sim.base.errors import InputError
from sim.graph.graph import Graph
from sim.job.costs import costs_ns

if TYPE_CHECKING:
    from sim.trace import Trace


class Keys(Strict):
    """Keys of a builder.

    Raises
    ------
    InputError
        From Python: a wrong value, a key that is missing, or one that there is not.
    """

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise input_error(error, type(self), given) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # a file's values go past it


class Builder(Keys):
    """What a builder accepts; override `graph`, and `default_machine` where one machine suggests itself."""

    def graph(self) -> Graph:
        """Return the graph."""
        raise InputError(f"{type(self).__name__} must define graph()")

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return what it runs on in a scenario without a machine; None: there must be one."""
        return None

    def default_policy(self) -> Mapping[str, Any] | None:
        """Return what decides where a scenario does not say; None: what does so everywhere."""
        return None

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return what the summary of a run has besides, by key."""
        return {}


# ----------------------------------------------------------------------------------------------------------
# Kernels of a training step, timed by the cost model of a device: what `workload: {build: ...}` asks, too.
#
#     Product     a matmul with its shape          Attention   attention, or attention_grad, with its shape
#     Pass        an op that reads and writes      Collective  a ring at one bandwidth, which nothing hides
#
# Each takes the device's gap besides. The facts of an op are those of `scenarios.builders.gpt`, so that a
# layer costs the same whether its ops run one by one or stand behind the time of a stage.


def at_rate(rate: int, bandwidth: int | None = None) -> TrainingCalibration:
    """Return what a device reaches that does the model's own flop at `rate`, and all else in no time.

    Attention's backward counts twice its forward, as in MFU (`scenarios.builders.train.architecture`): what a
    kernel computes again is in the rate.

    Parameters
    ----------
    rate : int
        In flop/s.
    bandwidth : int, optional
        Between the devices that share a layer, in bytes/s; None: messages take no time.
    """
    return TrainingCalibration(
        name="rate",
        peak=float(rate),
        memory_bandwidth=inf,
        collectives=_one_fabric(bandwidth),
        attention_backward=5 / 4,  # its five products (kernels.Attention.flops) as four
        hiding=0.0,
        roofline=False,
    )


def on_device(device: Device, dtype: str, bandwidth: int | None = None) -> TrainingCalibration:
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

    return TrainingCalibration(device.name, inf, inf, _one_fabric(bandwidth), hiding=0.0, kernel=time)


def _one_fabric(bandwidth: int | None) -> NodeFabrics:
    fabric = Fabric(bandwidth or inf)
    return NodeFabrics(fabric, fabric)


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
    return OpFacts("attention_grad", (q, k, v, o, o), (made,), {"is_causal": True})
