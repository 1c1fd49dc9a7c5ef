"""Cut a chain of layers into the stages of a pipeline.

::

    layers   a ─► b ─► c ─► d ─► e       balance (2, 3)     stage 0: a b     stage 1: c d e
             └─────────────►┘                                    └─ sent on: what c.. read from a, b

A profile or a graph is cut along one topological order of it, so that every tensor made before a cut and
read after it crosses the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from policies.pipeline.evaluate import StageTimes
from policies.pipeline.planners import LayerCost, block_partition, by_size, check_balance, min_max
from scenarios.builders.pipeline_stage import PipelineStage
from scenarios.importers.pipedream_profile import LayerProfile
from sim import Device, Graph
from sim.base.arrays import UNSET
from sim.base.errors import InputError
from sim.base.units import round_half_up
from sim.graph.graph import Role
from sim.job.costs import costs_ns


def profile_layers(profile: Sequence[LayerProfile]) -> list[PipelineStage]:
    """Return the layers of a PipeDream profile except input layers, each as a stage of its own.

    A layer keeps its output for its backward; weights have gradients of the same size.
    """
    index = {layer.name: i for i, layer in enumerate(profile)}
    last_use = list(range(len(profile)))
    for i, layer in enumerate(profile):
        for name in layer.predecessors:
            last_use[index[name]] = max(last_use[index[name]], i)
    outputs = [0 if layer.is_input else sum(layer.activation_bytes) for layer in profile]
    boundaries = [
        sum(n for n, last in zip(outputs[: k + 1], last_use, strict=False) if last > k)
        for k in range(len(profile))
    ]
    return [
        _layer(layer.forward_ns, layer.backward_ns, boundaries[k], outputs[k], layer.parameter_bytes)
        for k, layer in enumerate(profile)
        if not layer.is_input
    ]


def _layer(forward_ns: int, backward_ns: int, boundary: int, outputs: int, parameters: int) -> PipelineStage:
    """Return a layer as a stage: it keeps its outputs for its backward; gradients are as large as weights."""
    return PipelineStage(
        StageTimes(forward=forward_ns, backward=backward_ns),
        boundary_nbytes=boundary,
        activation_nbytes=outputs,
        parameter_nbytes=parameters,
        gradient_nbytes=parameters,
    )


def graph_layers(
    graph: Graph, device: Device, *, backward_ratio: Fraction = Fraction(2)
) -> list[PipelineStage]:
    """Return the ops of a forward graph, in topological order, each as a stage of its own.

    An op's backward takes `backward_ratio` times its forward: two products for one if there are
    weights. It keeps its outputs for its backward; weights have gradients of the same size, and
    belong to the first op that reads them.

    Parameters
    ----------
    graph : Graph
    device : Device
        Its cost model times the ops that have no duration of their own.
    backward_ratio : Fraction

    Raises
    ------
    InputError
        The device cannot time an op.
    """
    ns = costs_ns(graph, device)
    if (ns == UNSET).any():
        op = graph.op_names[int((ns == UNSET).argmax())]
        raise InputError(f"nothing tells how long {op!r} takes: give a machine with a cost model")
    order = graph.topological_order.tolist()
    position = {op: k for k, op in enumerate(order)}
    crossing = [0] * (len(order) + 1)  # change of the boundary's bytes at each position
    nbytes, produced = graph.tensor_nbytes.tolist(), graph.tensor_producer.tolist()
    consumers = graph.consumers.lists()
    parameters = [0] * len(order)
    for tensor, readers in enumerate(consumers):
        if not readers:
            continue
        positions = [position[op] for op in readers]
        if produced[tensor] != UNSET:
            crossing[position[produced[tensor]]] += nbytes[tensor]
            crossing[max(positions)] -= nbytes[tensor]
        elif graph.tensor_role[tensor] == Role.PARAMETER:
            parameters[min(positions)] += nbytes[tensor]
    boundaries = list(accumulate(crossing))
    outputs = [sum(nbytes[t] for t in graph.outputs.row(op).tolist()) for op in order]
    forward = ns[order].tolist()
    backward = [round_half_up(backward_ratio * forward_ns) for forward_ns in forward]
    return [*map(_layer, forward, backward, boundaries, outputs, parameters)]


def layer_costs(layers: Sequence[PipelineStage]) -> list[LayerCost]:
    """Return the costs of layers that planners use."""
    return [
        LayerCost(layer.times.total, layer.boundary_nbytes, layer.parameter_nbytes, layer.activation_nbytes)
        for layer in layers
    ]


def balance_of(layers: Sequence[PipelineStage], stages: int, plan: str | Sequence[int]) -> tuple[int, ...]:
    """Return the number of layers of each stage, from a planner or as given.

    Raises
    ------
    InputError
        The balance does not fit, or there are more stages than layers.
    """
    if not isinstance(plan, str):
        return check_balance(plan, len(layers))
    costs = layer_costs(layers)
    if plan == "size":
        return by_size(costs, stages)
    planners = {"time": block_partition, "block": block_partition, "min-max": min_max}
    return planners[plan]([cost.time_ns for cost in costs], stages)


def cut_stages(layers: Sequence[PipelineStage], balance: Sequence[int]) -> list[PipelineStage]:
    """Return the stages: each the sum of its layers, with the boundary of its last one."""
    stages, start = [], 0
    for count in balance:
        before = [layers[start - 1].boundary_nbytes if start else 0]
        before += [layer.boundary_nbytes for layer in layers[start : start + count]]
        stages.append(_join_layers(layers[start : start + count], before))
        start += count
    return stages


def _join_layers(layers: Sequence[PipelineStage], boundaries: Sequence[int]) -> PipelineStage:
    peak = max(before + layer.activation_nbytes for before, layer in zip(boundaries, layers, strict=False))
    phases = {"forward": "F", "recompute": "R"}
    if all(layer.times.backward is not None or layer.times.input_grad is not None for layer in layers):
        phases["backward"] = "B"
    if all(layer.times.input_grad is not None for layer in layers):
        phases |= {"input_grad": "I", "weight_grad": "W"}
    sizes = ("activation_nbytes", "parameter_nbytes", "gradient_nbytes", "optimizer_nbytes")
    return PipelineStage(
        StageTimes(**{k: sum(layer.times.of(phase) for layer in layers) for k, phase in phases.items()}),
        boundary_nbytes=layers[-1].boundary_nbytes,
        weight_grad_nbytes=sum(layer.kept_nbytes for layer in layers),
        **{name: sum(getattr(layer, name) for layer in layers) for name in sizes},
        checkpoint_nbytes=boundaries[0],
        forward_nbytes=max(0, peak - boundaries[0] - boundaries[-1]),
    )
