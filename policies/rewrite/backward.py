"""The backward of a graph, op by op: the gradients of an op's inputs from those of its outputs.

::

    y = op(x, w)        dy ──► [rule of the op's kind] ──► a part of dx, a part of dw
                        dx = the sum of its parts, once every reader of x has given its own

The rules and their costs stand below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from policies.option_checks import name_list, one_of
from policies.rewrite.records import Edge, ExternalTensor, OpEntry, Records, read, write
from sim import Graph
from sim.base.errors import GraphError, UnknownNameError
from sim.graph.attributes import SIZES
from sim.graph.frames import has_control_flow
from sim.graph.graph import Role

# ----------------------------------------------------------------------------------------------------------
# The backward of each kind of op, with costs as multiples of the forward's.
#
# A rule gives the cost of an op that computes gradients of some inputs from the gradient ``dy`` of the
# output. With inputs x and w and output y:
#
#     contraction   x·w        input gradient dy·w, weight gradient x·dy: one op each, with the forward's work
#     sum           x + b      dy itself; what was broadcast is summed up again (bias_add_grad, reduce_sum)
#     product       x * b      dy * b and dy * x, each the forward's work, then as above
#     mean, (x-b)^2            as TensorFlow: tile and divide; 2 dy times the difference, recomputed
#     function      f(x)       one op that reads dy and what the forward kept
#     movement      reshape    the same movement back: no flop, and no bytes if it is a view
#     placement    where       dy moved back by the condition or the indices
#     anything else            one op that reads dy and all inputs, the forward's work for each gradient
#
# Work is counted from the operators' derivatives in the importers' conventions (a multiply-add is 2 flop, a
# comparison or an elementary function 1): sigmoid 4 forward, its gradient dy * y * (1 - y) 3, and so on.


def _functions(reads: str, **work: str) -> dict[str, tuple[Fraction, str]]:
    return {kind: (Fraction(text), reads) for kind, text in work.items()}


CONTRACTIONS: Final = {
    "conv": ("conv_input_grad", "conv_weight_grad"),
    "depthwise_conv": ("conv_input_grad", "conv_weight_grad"),
    "conv_transpose": ("conv", "conv_weight_grad"),
    "matmul": ("matmul", "matmul"),
    "gemm": ("matmul", "matmul"),
}
"""Kind → kinds of the gradients of its first and second input; a third input is a bias."""

FUNCTIONS: Final = {
    **_functions("y", relu="1", relu6="1/2", sigmoid="3/4", tanh="3", softmax="3/5", log_softmax="3/5"),
    **_functions("y", exp="1", sqrt="2", rsqrt="4", reciprocal="2"),
    **_functions("x", gelu="11/5", silu="6/5", elu="1", leaky_relu="1", softplus="5/3", log="1", abs="1"),
    **_functions("x", square="2", layer_norm="13/7", rms_norm="2", lrn="2", erf="4"),
    **_functions("x", instance_norm="13/7", group_norm="13/7"),
    **_functions("xy", max_pool="1", global_max_pool="1", reduce_max="1"),
    **_functions("", average_pool="1", global_average_pool="1", neg="1"),
}
"""Kind → flop of the gradient of its first input (for a norm, also of its scale and offset), as a multiple
of the forward's, and what it reads besides ``dy``: ``"x"``, ``"y"``, ``"xy"`` or nothing."""

SEVERAL: Final = {"attention": Fraction(5, 2), **dict.fromkeys(("lstm", "gru", "rnn"), Fraction(2))}
"""Kind → work of one op that computes all input gradients from the inputs, ``dy`` and the output.

Attention: five products instead of two, as in FlashAttention (arXiv 2205.14135, algorithm 4). Recurrent
cells: each product by its input and by its weights.
"""

KEPT_OUTPUT: Final = frozenset({"softmax_cross_entropy", "sparse_softmax_cross_entropy"})
"""Kinds whose second output is already the gradient, up to a product with ``dy``."""

MOVEMENTS: Final = {
    **dict.fromkeys(("reshape", "flatten", "squeeze", "unsqueeze"), "reshape"),
    **{kind: kind for kind in ("transpose", "cast", "copy", "dropout")},
    **dict.fromkeys(("slice", "strided_slice"), "pad"),
    "pad": "slice",
    **dict.fromkeys(("expand", "tile"), "reduce_sum"),
    "concat": "split",
    "split": "concat",
    "pack": "unpack",
    "unpack": "pack",
    "reduce_sum": "expand",
    "resize": "resize_grad",
}
"""Kind → kind of the op that moves the gradient back."""

PLACED: Final = {"where": 0, "scatter_elements": 1, "scatter_nd": 1}
"""Kind → its input that says where elements come from or go: with it alone, ``dy`` is moved back."""

PASSES: Final = frozenset({"identity", "read_variable"})
"""Kinds that pass the gradient of their output on: padded, if of a part; summed up, if of copies."""

_NO_NUMBERS = "shape size rank const no_op constant_of_shape range zeros_like ones_like one_hot argmax argmin"
_STEPS = "sign floor ceil round and or not is_nan is_inf equal not_equal greater less"
_NO_RESULT = (
    "greater_or_equal less_or_equal multinomial search_sorted stop_gradient assign assign_add assign_sub"
)

CUT: Final = frozenset(f"{_NO_NUMBERS} {_STEPS} {_NO_RESULT}".split())
"""Kinds that pass no gradient."""


OPTIMIZERS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "sgd": ((), 2),
    "momentum": (("velocity",), 4),
    "adam": (("first_moment", "second_moment"), 14),
}
"""Cost of updating a parameter: number of states, and flop per element.

Scale and subtract; velocity on top (Polyak 1964); Kingma and Ba, arXiv 1412.6980, algorithm 1. States are as
large as the parameter; those of a 16-bit parameter are in fp32, beside an fp32 copy of it (mixed precision:
arXiv 1910.02054, 3.1).
"""


# ----------------------------------------------------------------------------------------------------------

_ITEM: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_ONE: Final = Fraction(1)
_INDEXED_KINDS: Final = ("gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd")


def elements(nbytes: int, dtype: str | None) -> int:
    """Return how many elements of a data type (by default fp32) `nbytes` hold."""
    return nbytes // _ITEM.get(dtype or "fp32", 4)


def differentiable(record: OpEntry) -> list[tuple[int, Edge]]:
    """Return place and edge of the inputs that may have gradients.

    Not the running statistics, last two of a batch_norm, nor the indices, second of what gathers or scatters,
    nor what the attribute ``no_gradient`` names by place: `GraphError` if such an input is not there.
    """
    without = {*record.attributes.get("no_gradient", ())}
    if without and max(without) >= len(record.inputs):
        accepted = f"numbers of its {len(record.inputs)} inputs, counted from 0"
        message = f"op {record.name!r} has no_gradient {max(without)}, which should be {accepted}"
        raise GraphError(message).about(record.name, "no_gradient")
    if record.kind == "batch_norm" and len(record.inputs) >= 4:
        without |= {len(record.inputs) - 2, len(record.inputs) - 1}
    if record.kind in _INDEXED_KINDS:
        without.add(1)
    return [(k, edge) for k, edge in enumerate(record.inputs) if k not in without]


class Backward:
    """Walks the ops backwards and builds the gradients of their inputs.

    Parameters
    ----------
    records : Records
        Forward graph.
    active : set of str
        Tensors that have a gradient, because they depend on a parameter.
    loss : str
        Tensor to start from.

    Attributes
    ----------
    made : list of Record
        Ops of the backward, in an order in which they can run.
    """

    def __init__(self, records: Records, active: set[str], loss: str) -> None:
        self.records, self.active = records, active
        self.made: list[OpEntry] = []
        self.parts: dict[str, list[str]] = {}
        self.pieces: dict[str, tuple[OpEntry, list[str]]] = {}
        """Tensor → a view of a part of it, and the gradients of all such views."""
        self.sums: dict[str, str] = {}
        self.size: dict[str, int] = {}
        """Bytes of the tensors created."""
        self.origin: dict[str, OpEntry] = {}
        """Tensor → the op whose backward computes the first part of its gradient."""
        op, nbytes = records.maker(loss), records.nbytes(loss)
        seed = self.add(op, f"{loss}/loss_grad", "loss_grad", [loss], (nbytes,), phase="B")
        seed.flops = elements(nbytes, op.dtype)
        self._give(op, loss, seed.name)

    def gradient(self, tensor: str) -> str | None:
        """Return the gradient of a tensor, the sum of its parts; None: it has none."""
        if tensor in self.pieces:
            self._fit(tensor, *self.pieces.pop(tensor))
        parts = self.parts.get(tensor, [])
        if len(parts) < 2:
            return parts[0] if parts else None
        if tensor not in self.sums:
            op = self.records.producer(tensor) or self.origin[tensor]
            size = (self.records.nbytes(tensor),)
            total = self.add(op, f"{tensor}/grad_sum", "add_n", parts, size, phase="B")
            total.flops = (len(parts) - 1) * elements(size[0], total.dtype)
            self.sums[tensor] = total.name
        return self.sums[tensor]

    def _fit(self, tensor: str, op: OpEntry, pieces: list[str]) -> None:
        """Join the gradients of a tensor's parts, as PyTorch does for those of a split; pad others."""
        size = self.records.nbytes(tensor)
        joined = sum(map(self._nbytes, pieces)) == size
        kind = "concat" if joined else "pad"
        for group in [pieces] if joined else [[piece] for piece in pieces]:
            self._give(op, tensor, self.add(op, f"{tensor}/grad_{kind}", kind, group, (size,)).name)

    def through(self, op: OpEntry) -> None:
        """Build the gradients of the inputs of `op`, if its output has one."""
        dy = [grad for grad in map(self.gradient, op.tensors) if grad is not None]
        inputs = [(k, t) for k, (t, distance) in differentiable(op) if t in self.active and not distance]
        if not dy or not inputs or op.kind in CUT:
            return
        table = op.kind in ("gather", "embedding_bag") and inputs[0][0] == 0 and len(op.inputs) > 1
        if op.kind in _RULES:
            _RULES[op.kind](self, op, dy, inputs)
        elif table or (op.kind in KEPT_OUTPUT and len(op.outputs) > 1):
            (self._embedding if table else self._keep)(op, dy, inputs)
        else:
            output = [op.name] if op.kind in SEVERAL else []
            work = SEVERAL.get(op.kind, Fraction(len(inputs)))
            self._add_joint(op, f"{op.kind}_grad", [*dy, *op.reads, *output], inputs, work)

    # -- rules ------------------------------------------------------------------------------------

    def _contraction(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        named = set[str]()
        for k, tensor in inputs:
            if k > 1:
                self._give(op, tensor, self._sum(op, "bias_grad", "bias_add_grad", dy[:1], tensor, "W"))
                continue
            weight = self.records.producer(tensor) is None or self._is_parameter(tensor)
            suffix = "weight_grad" if weight else "input_grad" if k == 0 else "other_grad"
            if k and weight and suffix in named:  # both are parameters
                suffix = "other_weight_grad"
            named.add(suffix)
            kind, phase = CONTRACTIONS[op.kind][k], "W" if weight else "I"
            size = (self.records.nbytes(tensor),)
            reads = [dy[0], *op.reads[1 - k : 2 - k]]  # only dy, if the graph does not name the weight
            grad = self.add(op, f"{op.name}/{suffix}", kind, reads, size, phase=phase, work=_ONE)
            if len(op.inputs) > 2:
                grad.flops = max(0, op.flops - elements(op.outputs[0], op.dtype))  # without the bias
            m, n, inner = (op.attributes.get(key) for key in "mnk")
            if m is not None and n is not None and inner is not None:
                sizes = (m, inner, n) if k == 0 else (inner, n, m)
                grad.attributes = dict(zip("mnk", sizes, strict=True))
                grad.attributes |= {key: op.attributes[key] for key in ("batch",) if key in op.attributes}
            self._give(op, tensor, grad.name)

    def _pass_on(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        (k, tensor), grad = inputs[0], dy[0]
        if self._nbytes(grad) < self.records.nbytes(tensor):
            self.pieces.setdefault(tensor, (op, []))[1].append(grad)
            return
        if self._nbytes(grad) > self.records.nbytes(tensor):
            grad = self._sum(op, f"grad{k}_sum", "reduce_sum", [grad], tensor, "B")
        self._give(op, tensor, grad)

    def _place(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        index = PLACED[op.kind]
        reads = [dy[0], *op.reads[index : index + 1]]
        self._add_joint(op, f"{op.kind}_grad", reads, inputs, Fraction(0))

    def _embedding(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        """Sum the rows of ``dy`` by index; further tables (positions) get sums over the batch."""
        (_, table), *more = inputs
        more_indices = [t for t in op.reads[2:] if t not in self.active and not self._is_parameter(t)]
        reads = [dy[0], *dict.fromkeys((op.reads[1], *more_indices))]
        self._give(op, table, self._sum(op, "weight_grad", "embedding_grad", reads, table, "W"))
        self.made[-1].flops = max(self.made[-1].flops, op.flops)  # of bags each row, not each sum
        self._broadcast(op, dy[0], more)

    def _mean(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        size = (self.records.nbytes(inputs[0][1]),)
        spread = self.add(op, f"{op.name}/grad_tile", "tile", dy[:1], size)
        grad = self.add(op, f"{op.name}/grad", "div", [spread.name], size, work=_ONE)
        self._give(op, inputs[0][1], grad.name)

    def _squared_difference(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        size, half = (self.records.nbytes(op.name),), Fraction(1, 2)  # the forward subtracts and squares
        twice = self.add(op, f"{op.name}/grad_twice", "mul", dy[:1], size, work=half)
        difference = self.add(op, f"{op.name}/grad_sub", "sub", op.reads, size, work=half)
        grad = self.add(op, f"{op.name}/grad", "mul", [twice.name, difference.name], size, work=half)
        self._broadcast(op, grad.name, inputs, negative=1)

    def _arithmetic(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        """Pass ``dy`` on for sums, times the other factor for products, and sum over broadcast axes."""
        if op.kind not in ("mul", "div"):
            self._broadcast(op, dy[0], inputs, negative=1 if op.kind == "sub" else -1)
            return
        nbytes = (self.records.nbytes(op.name),)
        for k, tensor in inputs:
            factor = op.kind == "mul" or k == 0
            others = [*op.reads[:k], *op.reads[k + 1 :]] if factor else op.reads
            work = _ONE if factor else Fraction(3)  # -dy * y / b
            grad = self.add(op, f"{op.name}/grad{k}", op.kind, [dy[0], *others], nbytes, work=work).name
            self._broadcast(op, grad, [(k, tensor)])

    def _broadcast(self, op: OpEntry, dy: str, inputs: list[tuple[int, str]], negative: int = -1) -> None:
        """Pass ``dy`` to inputs: cast to a narrower type or summed over broadcast axes, one negated."""
        for k, tensor in inputs:
            grad, size = dy, self.records.nbytes(tensor)
            maker, all_bytes = self.records.producer(tensor), self.records.nbytes(op.name)
            if maker and size < all_bytes and elements(size, maker.dtype) == elements(all_bytes, op.dtype):
                grad = self.add(op, f"{op.name}/grad{k}_cast", "cast", [grad], (size,), phase="B").name
            elif size < all_bytes:
                kind = "bias_add_grad" if op.kind == "bias_add" else "reduce_sum"
                grad = self._sum(op, f"grad{k}_sum", kind, [grad], tensor, "B")
            if k == negative:
                minus = self.add(op, f"{op.name}/grad{k}_neg", "neg", [grad], (size,))
                minus.flops = elements(size, op.dtype)
                grad = minus.name
            self._give(op, tensor, grad)

    def _movement(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        if op.kind in ("concat", "pack") and "aten" in op.attributes:
            # PyTorch narrows or unbinds dy (cat_tensors_backward in FunctionsManual.cpp): views, no kernel
            for k, tensor in inputs:
                view = self.add(op, f"{op.name}/grad{k}", "identity", dy, (self.records.nbytes(tensor),))
                view.attributes, view.bytes_read, view.bytes_written = {"view_of": 0}, 0, 0
                self._give(op, tensor, view.name)
            return
        grad = self._add_joint(op, MOVEMENTS[op.kind], dy, inputs, Fraction(0))
        if grad.kind in ("reduce_sum", "resize_grad"):  # each tap of a resize adds, once multiplied
            grad.flops = max(op.flops, elements(self._nbytes(dy[0]), op.dtype))
        elif grad.kind in ("slice", "split", "unpack"):  # a part is a view of the whole
            grad.bytes_read = grad.bytes_written
        elif grad.kind == "dropout":  # and the mask
            grad.bytes_read += max(0, op.bytes_written - op.outputs[0])
        if op.attributes.get("view_of") is not None and len(dy) == len(inputs) == 1:
            grad.attributes = {"view_of": 0}
            grad.bytes_read = grad.bytes_written = 0

    def _function(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        work, kept_of = FUNCTIONS[op.kind]
        saved = {"x": op.reads, "y": [op.name]}
        reads = [*dy, *(tensor for letter in kept_of for tensor in saved[letter])]
        self._add_joint(op, f"{op.kind}_grad", reads, inputs, work)

    def _batch_norm(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        if not op.attributes.get("training_mode"):
            op.attributes["training_mode"] = True
            op.flops = op.flops * 7 // 2
        reads = [dy[0], *(tensor for _, (tensor, _) in differentiable(op))]
        self._add_joint(op, "batch_norm_grad", reads, inputs, Fraction(9, 7))

    def _keep(self, op: OpEntry, dy: list[str], inputs: list[tuple[int, str]]) -> None:
        grad = self.add(op, f"{op.name}/grad", "mul", [dy[0], op.tensor(1)], (op.outputs[1],))
        grad.flops = elements(op.outputs[1], op.dtype)
        self._give(op, inputs[0][1], grad.name)

    def _add_joint(
        self, op: OpEntry, kind: str, reads: Sequence[str], inputs: list[tuple[int, str]], work: Fraction
    ) -> OpEntry:
        """Build all gradients of an op as one op."""
        outputs = tuple(self.records.nbytes(tensor) for _, tensor in inputs)
        grad = self.add(op, f"{op.name}/grad", kind, reads, outputs, work=work)
        for output, (_, tensor) in enumerate(inputs):
            self._give(op, tensor, grad.tensor(output))
        return grad

    # -- pieces -----------------------------------------------------------------------------------

    def _is_parameter(self, tensor: str) -> bool:
        """Return whether a tensor is a parameter, possibly behind a variable's read or a reshape."""
        producer = self.records.producer(tensor)
        while producer is not None and (producer.kind in PASSES or "view_of" in producer.attributes):
            tensor = producer.inputs[0][0]
            producer = self.records.producer(tensor)
        return self.records.is_parameter(tensor)

    def _give(self, op: OpEntry, tensor: str, gradient: str) -> None:
        self.parts.setdefault(tensor, []).append(gradient)
        self.origin.setdefault(tensor, op)

    def _sum(self, op: OpEntry, name: str, kind: str, reads: list[str], tensor: str, phase: str) -> str:
        """Add an op that sums its first input to the size of another tensor."""
        total = self.add(op, f"{op.name}/{name}", kind, reads, (self.records.nbytes(tensor),), phase=phase)
        total.flops = elements(self._nbytes(reads[0]), op.dtype)
        return total.name

    def _nbytes(self, tensor: str) -> int:
        return self.size[tensor] if tensor in self.size else self.records.nbytes(tensor)

    def add(
        self,
        op: OpEntry,
        name: str,
        kind: str,
        reads: Sequence[str],
        outputs: tuple[int, ...],
        *,
        phase: str = "I",
        work: Fraction = Fraction(0),
    ) -> OpEntry:
        """Add an op of the backward of `op`, with `work` times its flop and its duration, if it has one."""
        part = op.part(work or _ONE)
        record = op.like(
            self.records.free(name),
            kind,
            reads,
            outputs,
            flops=int(op.flops * work),
            bytes_read=sum(self._nbytes(tensor) for tensor in dict.fromkeys(reads)),
            duration_ns=part.duration_ns,
            duration_by_kind=part.duration_by_kind,
            phase=phase,
            attributes=_sizes(op, kind),
        )
        self.made.append(record)
        self.size.update({record.tensor(k): nbytes for k, nbytes in enumerate(outputs)})
        return record


_Rule = Callable[[Backward, OpEntry, list[str], list[tuple[int, str]]], None]

_RULES: Final[Mapping[str, _Rule]] = {
    "batch_norm": Backward._batch_norm,
    **dict.fromkeys(CONTRACTIONS, Backward._contraction),
    **dict.fromkeys(("add", "sub", "mul", "div", "bias_add", "add_n"), Backward._arithmetic),
    **dict.fromkeys(PASSES, Backward._pass_on),
    **dict.fromkeys(PLACED, Backward._place),
    **dict.fromkeys(MOVEMENTS, Backward._movement),
    "reduce_mean": Backward._mean,
    "squared_difference": Backward._squared_difference,
    **dict.fromkeys(FUNCTIONS, Backward._function),
}
"""Kind → method that builds the gradients of its inputs from those of its outputs."""


def _sizes(op: OpEntry, kind: str) -> dict[str, Any]:
    """Return the size attributes of a gradient: those of its forward or, for a bias, of the summed matrix."""
    attributes = op.attributes
    if kind == "bias_add_grad" and {"m", "n"} <= attributes.keys():
        return {"rows": attributes["m"] * attributes.get("batch", 1), "columns": attributes["n"]}
    images = kind.startswith(("conv", "batch_norm"))  # of others not all are images
    keys = SIZES | {"data_format"} if images else SIZES
    return {key: attributes[key] for key in attributes if key in keys} if kind.endswith("_grad") else {}


# ----------------------------------------------------------------------------------------------------------
# Training: a forward graph becomes one step of training, with backward and optimizer.
#
# ::
#
#     x ─► a ─► b ─► loss                     forward, phase F
#          ▲    ▲      │
#          w    v      ▼
#              ┌── loss/loss_grad             backward, phases I (input gradients) and W (weight gradients),
#              ▼                              last op first
#     a/.. ◄─ b/input_grad   b/weight_grad ─► v/update         one update per parameter; the next iteration's
#       └──► a/weight_grad ─────────────────► w/update ╌╌►     forward follows it
#
# Only tensors on a path from a parameter to the loss get gradients: the input of the first layer gets none.
# The gradients of a tensor with several readers are summed (``add_n``). A gradient op is pinned to the device
# of its forward op.
#
# Other work of a recorded step (moving averages computed op by op, learning rates, counters) is not added.
# An inference ``batch_norm`` computes its statistics in training: 7 flop per element instead of 2.


class TrainingRewrite:
    """Add backward and optimizer to a forward graph.

    Parameters
    ----------
    loss : str, optional
        Op or tensor to start from; by default the only op that depends on a parameter and has no reader.
    optimizer : str
        ``"sgd"``, ``"momentum"`` or ``"adam"``: one op per parameter, with the states that it keeps.
    frozen : sequence of str
        Parameters that are not trained.

    Raises
    ------
    InputError
        If the optimizer is unknown.
    UnknownNameError
        If the graph lacks the loss or a frozen parameter (when applied).
    GraphError
        If there is control flow, more than one possible loss, or no parameter it depends on (when applied).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two layers")
    >>> _ = b.input("x", 400), b.parameter("w", 800), b.parameter("v", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> _ = b.op("b", kind="matmul", inputs=["a", "v"], outputs=400, flops=1000)
    >>> step = TrainingRewrite().apply(b.build())
    >>> step.op_names[2:]
    ('b/loss_grad', 'b/input_grad', 'b/weight_grad', 'a/weight_grad', 'w/update', 'v/update')
    >>> int(step.flops.sum())  # 5 products, the loss's gradient, 2 updates
    5900
    """

    def __init__(self, loss: str | None = None, optimizer: str = "sgd", frozen: Sequence[str] = ()) -> None:
        self.optimizer = one_of("training", "optimizer", optimizer, tuple(OPTIMIZERS))
        self.loss, self.frozen = loss, tuple(name_list("training", "frozen", frozen))

    def apply(self, graph: Graph) -> Graph:
        """Return the graph of a training step."""
        if has_control_flow(graph):
            raise GraphError(f"graph {graph.name!r} has control flow, of which no backward can be made")
        records = read(graph)
        trained = set(records.parameters())
        for name in self.frozen:
            if name not in trained:
                raise UnknownNameError("parameter", name, trained)
        trained.difference_update(self.frozen)
        order = records.in_order(graph)
        active = _find_active(order, trained)
        loss = self._loss(records, active)
        backward = Backward(records, active, loss)
        for record in reversed(order):
            backward.through(record)
        forward = [*records.ops.values()]
        updates = self._updates(records, backward)
        if not updates:
            raise GraphError(f"graph {graph.name!r}: no parameter that could be trained leads to {loss!r}")
        for record in forward:
            record.phase = record.phase or "F"
            read_ = [updates[tensor] for tensor in record.reads if tensor in updates]
            record.after = [*record.after, *dict.fromkeys((update.name, 1) for update in read_)]
        records.name += " (training)"
        records.make_all((*forward, *backward.made, *updates.values()))
        return write(records)

    def _loss(self, records: Records, active: set[str]) -> str:
        if self.loss is not None:
            if records.producer(self.loss) is None:
                raise UnknownNameError("op or tensor", self.loss, records.ops)
            return self.loss
        readers = records.readers()
        last = [name for name in records.ops if name in active and not readers[name]]
        if len(last) != 1:
            names = ", ".join(repr(name) for name in last[:5]) or "none"
            message = (
                "the loss is the op that depends on a parameter and that nobody reads, and there must be"
            )
            raise GraphError(f"{message} one; found {names}; name it with loss:")
        return last[0]

    def _updates(self, records: Records, backward: Backward) -> dict[str, OpEntry]:
        """Return parameter → op that updates it, after adding the optimizer's states to the graph."""
        states, per_element = OPTIMIZERS[self.optimizer]
        updates = {}
        readers = {tensor: op for op in reversed(records.ops.values()) for tensor in op.reads}  # the first
        for name in records.parameters():
            gradient, external = backward.gradient(name), records.externals[name]
            if gradient is None:
                continue
            n, dtype = elements(external.nbytes, readers[name].dtype), readers[name].dtype
            if readers[name].kind == "cast":  # a cast's data type may be that of either side
                n, dtype = _cast(readers[name], readers, external.nbytes)
            mixed = ("fp32_copy",) if states and 4 * n > external.nbytes else ()
            saved = [records.free(f"{name}/{state}") for state in (*states, *mixed)]
            for state in saved:
                nbytes = max(external.nbytes, 4 * n)
                records.externals[state] = ExternalTensor(nbytes, Role.PARAMETER, external.device)
            kept_nbytes = sum(records.externals[state].nbytes for state in saved)
            updates[name] = readers[name].like(
                records.free(f"{name}/update"),
                self.optimizer,
                (gradient, *saved, name),
                (0,),
                flops=per_element * n,
                bytes_read=2 * external.nbytes + kept_nbytes,
                bytes_written=external.nbytes + kept_nbytes,
                dtype=dtype,
                micro_batch=None,
                phase=None,
                attributes={"stateful": True},
            )
        return updates


def _cast(cast: OpEntry, readers: Mapping[str, OpEntry], nbytes: int) -> tuple[int, str | None]:
    """Return the number of elements and the data type of a parameter that is cast first."""
    first = cast
    while cast.kind == "cast" and (reader := readers.get(cast.tensor())) is not None:
        size, cast = cast.outputs[0], reader
    if cast.kind == "cast" or cast.dtype is None:
        return elements(nbytes, first.dtype), first.dtype
    n = elements(size, cast.dtype)
    exact = cast.dtype if nbytes == size else None
    return n, exact or next((dtype for dtype in ("fp64", "fp32", "bf16") if n * _ITEM[dtype] == nbytes), None)


def _find_active(order: Sequence[OpEntry], trained: set[str]) -> set[str]:
    """Return the tensors that depend on a trained parameter and so have a gradient."""
    active = set(trained)
    for record in order:
        reached = any(tensor in active and not distance for tensor, distance in record.inputs)
        if reached and record.kind not in CUT and any(t in active for _, (t, _) in differentiable(record)):
            active.update(record.tensors)
    return active
