"""Training: a forward graph becomes one step of training, with backward and optimizer.

::

    x ─► a ─► b ─► loss                     forward, phase F
         ▲    ▲      │
         w    v      ▼
             ┌── loss/loss_grad             backward, phases I (input gradients) and W (weight gradients),
             ▼                              last op first
    a/.. ◄─ b/input_grad   b/weight_grad ─► v/update         one update a parameter; the next iteration's
      └──► a/weight_grad ─────────────────► w/update ╌╌►     forward follows it

Gradients are made for what leads from a parameter to the loss, and for nothing else: the input of the first
layer gets none. Where a tensor is read several times its gradients are summed (``add_n``). What each kind of
op costs backwards is in `policies.rewrite.backward`. A gradient is where its forward op is pinned.

What a recorded step has besides (moving averages that are computed op by op, learning rates, counters) is not
made. A ``batch_norm`` of inference computes its statistics in training: 7 flop an element instead of 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.option_checks import one_of
from policies.rewrite.backward import CUT, OPTIMIZERS, Backward, differentiable, elements
from policies.rewrite.records import ExternalTensor, OpEntry, Records, by_name, read, write
from sim import Graph
from sim.base.errors import GraphError, UnknownNameError
from sim.graph.frames import has_control_flow
from sim.graph.graph import Role


class TrainingRewrite:
    """Add backward and optimizer to a forward graph.

    Parameters
    ----------
    loss : str, optional
        The op or tensor to start from; by default the only op that depends on a parameter and that nobody
        reads.
    optimizer : str
        ``"sgd"``, ``"momentum"`` or ``"adam"``: one op a parameter, and the states that it keeps.
    frozen : sequence of str
        Parameters that are not trained.

    Raises
    ------
    InputError
        Another optimizer.
    UnknownNameError
        A loss or a frozen parameter that the graph does not have (when applied).
    GraphError
        Control flow, several ops that could be the loss, or no parameter that leads to it (when applied).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two layers")
    >>> _ = b.input("x", 400), b.parameter("w", 800), b.parameter("v", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> _ = b.op("b", kind="matmul", inputs=["a", "v"], outputs=400, flops=1000)
    >>> step = TrainingRewrite().apply(b.build())
    >>> step.op_names[2:]
    ['b/loss_grad', 'b/input_grad', 'b/weight_grad', 'a/weight_grad', 'w/update', 'v/update']
    >>> int(step.flops.sum())  # 5 products, the loss's gradient, 2 updates
    5900
    """

    def __init__(self, loss: str | None = None, optimizer: str = "sgd", frozen: Sequence[str] = ()) -> None:
        self.optimizer = one_of("training", "optimizer", optimizer, tuple(OPTIMIZERS))
        self.loss, self.frozen = loss, tuple(frozen)

    def apply(self, graph: Graph) -> Graph:
        """Return the graph of a training step."""
        if has_control_flow(graph):
            raise GraphError(f"graph {graph.name!r} has control flow, of which no backward can be made")
        records = read(graph)
        trained = {name for name, given in records.externals.items() if given.role == Role.PARAMETER}
        for name in self.frozen:
            if name not in trained:
                raise UnknownNameError("parameter", name, trained)
        trained.difference_update(self.frozen)
        order = [graph.op_names[op] for op in graph.topological_order.tolist()]
        active = _active(records, order, trained)
        loss = self._loss(records, active)
        backward = Backward(records, active, loss)
        for name in reversed(order):
            backward.through(records.ops[name])
        forward = list(records.ops.values())
        updates = self._updates(records, backward)
        if not updates:
            raise GraphError(f"graph {graph.name!r}: no parameter that could be trained leads to {loss!r}")
        for record in forward:
            record.phase = record.phase or "F"
            read_ = [updates[tensor] for tensor, _ in record.inputs if tensor in updates]
            record.after = [*record.after, *dict.fromkeys((update.name, 1) for update in read_)]
        records.name += " (training)"
        records.ops = by_name((*forward, *backward.made, *updates.values()))
        return write(records)

    def _loss(self, records: Records, active: set[str]) -> str:
        if self.loss is not None:
            producer = records.producer(self.loss)
            if producer is None:
                raise UnknownNameError("op or tensor", self.loss, records.ops)
            return self.loss
        readers = records.readers()
        last = [name for name in records.ops if name in active and not readers[name]]
        if len(last) != 1:
            found = ", ".join(repr(name) for name in last[:5]) or "none"
            raise GraphError(
                "the loss is the op that depends on a parameter and that nobody reads, and there must be "
                f"one; found {found}; name it with loss:"
            )
        return last[0]

    def _updates(self, records: Records, backward: Backward) -> dict[str, OpEntry]:
        """Return parameter → the op that updates it, and add the optimizer's states to the graph."""
        states, per_element = OPTIMIZERS[self.optimizer]
        updates = {}
        readers: dict[str, OpEntry] = {}
        for record in records.ops.values():
            for tensor, _ in record.inputs:
                readers.setdefault(tensor, record)
        for name, given in list(records.externals.items()):
            gradient = backward.gradient(name)
            if given.role != Role.PARAMETER or gradient is None:
                continue
            kept = [records.free(f"{name}/{state}") for state in states]
            for state in kept:
                records.externals[state] = ExternalTensor(given.nbytes, Role.PARAMETER, given.device)
            reader = readers[name]
            updates[name] = OpEntry(
                records.free(f"{name}/update"),
                self.optimizer,
                [(tensor, 0) for tensor in (gradient, *kept, name)],
                [],
                (0,),
                flops=per_element * elements(given.nbytes, reader.dtype),
                bytes_read=given.nbytes * (2 + len(kept)),
                bytes_written=given.nbytes * (1 + len(kept)),
                device=reader.device,
                dtype=reader.dtype,
                stage=reader.stage,
                attributes={"stateful": True},
            )
        return updates


def _active(records: Records, order: Sequence[str], trained: set[str]) -> set[str]:
    """Return the tensors through which a parameter reaches something: those that have a gradient."""
    active = set(trained)
    for name in order:
        record = records.ops[name]
        reached = any(tensor in active and not distance for tensor, distance in record.inputs)
        if reached and record.kind not in CUT and any(t in active for t, _ in differentiable(record)):
            active.update(record.tensors)
    return active
