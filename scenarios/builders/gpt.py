"""A decoder as ops: what one device runs for a batch, forward only or a whole training step.

::

    tokens ─► embed ─► layer 0 ─► ... ─► layer n-1 ─► norm ─► head ─► loss

    layer   ┌─────────────────────────────────┐  ┌──────────────────────────────┐
         x ─┴─ norm1 ─ qkv ─ attention ─ proj ─ add1 ─ norm2 ─ up ─ gelu ─ down ─ add2

    backward and Adam      as the rewrite `training` makes them for any graph (`policies.rewrite.backward`)

Attention is one kernel that keeps no scores (FlashAttention); the output layer shares the embedding's
weights. Costs come from the table of the importers (`scenarios.ops.op_costs`), products have
their shape as attributes for measured cost tables. A layer has 12h² + 13h parameters: an MLP is 4h wide, and
positions are learned. What a layer costs and keeps in training is `scenarios.builders.train.layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import model_validator

from devices.describe.field_types import fault
from devices.describe.quantities import Count, Name, Size
from policies.rewrite.backward import TrainingRewrite
from scenarios.builders.builder import Builder
from scenarios.ops.attributes import check_dtype, nbytes
from scenarios.ops.op_costs import op_arguments
from scenarios.ops.op_formulas import OpFacts, TensorFacts
from sim.base.arrays import MOST_BUILT, at_most
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph, output_name

Shape = tuple[int, ...]


class Gpt(Builder):
    """A decoder (GPT): the forward of a batch, or a training step with Adam.

    Attributes
    ----------
    model
        which builder
    layers
        decoder layers
    hidden
        width of the model
    heads
        heads of attention
    sequence
        tokens per sample
    vocabulary
        words that it knows
    batch
        samples
    dtype
        data type of weights, activations and gradients
    optimizer
        train with it: backward and updates, too; default: the forward alone
    """

    model: Literal["gpt", "transformer"]
    layers: Size
    hidden: Count
    heads: Count
    sequence: Count
    vocabulary: Count = 50304
    batch: Count = 1
    dtype: Name = "bf16"
    optimizer: Literal["adam"] | None = None

    @model_validator(mode="after")
    def _even(self) -> Gpt:
        if self.hidden % self.heads:
            raise fault(f"hidden size {self.hidden} is no multiple of {self.heads} heads")
        return self

    def graph(self) -> Graph:
        """Return the graph: the forward up to the logits, or a training step.

        Raises
        ------
        InputError
            The data type is unknown, or there are too many ops.

        Examples
        --------
        >>> small = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 16, "vocabulary": 100, "batch": 2}
        >>> len(Gpt(model="gpt", **small).graph()), len(Gpt(model="gpt", optimizer="adam", **small).graph())
        (23, 91)
        """
        check_dtype(self.dtype)
        writer = _Writer(self)
        logits = writer.forward()
        if self.optimizer is None:
            return writer.builder.build()
        shape = writer.facts[logits].shape
        writer.op("loss", "sparse_softmax_cross_entropy", [logits, "tokens"], (1,), shape)
        return TrainingRewrite(loss="loss", optimizer=self.optimizer).apply(writer.builder.build())


class _Writer:
    """Adds ops with their costs, and keeps shape and size of every tensor."""

    def __init__(self, model: Gpt) -> None:
        at_most(MOST_BUILT, 40 * model.layers, "ops")  # a layer has about forty, including its backward
        self.model = model
        self.builder = GraphBuilder(model.model)
        self.facts: dict[str, TensorFacts] = {}
        self.wide: Shape = (model.batch, model.sequence, model.hidden)
        self.words: Shape = (model.vocabulary, model.hidden)
        self.heads: Shape = (model.batch, model.heads, model.sequence, model.hidden // model.heads)

    # -- tensors and ops ------------------------------------------------------------------------

    def tensor(self, shape: Shape) -> TensorFacts:
        return TensorFacts(shape, nbytes(shape, self.model.dtype))

    def weight(self, part: str, name: str, shape: Shape) -> str:
        full = f"{part}.{name}"
        self.facts[full] = self.tensor(shape)
        self.builder.parameter(full, self.facts[full].nbytes)
        return full

    def op(
        self, name: str, kind: str, inputs: Sequence[str], *shapes: Shape, facts: OpFacts | None = None
    ) -> str:
        """Add an op with outputs of these shapes; its cost formula uses `facts`, or its tensors."""
        outputs = tuple(self.tensor(shape) for shape in shapes)
        for k, output in enumerate(outputs):
            self.facts[output_name(name, k)] = output
        facts = facts or OpFacts(kind, tuple(self.facts[i] for i in inputs), outputs, {})
        arguments = op_arguments(facts, name, facts.attributes)
        return self.builder.op(name, inputs=inputs, **arguments, dtype=self.model.dtype, phase="F")

    # -- forward --------------------------------------------------------------------------------

    def forward(self) -> str:
        """Add the forward; return the logits."""
        m = self.model
        self.facts["tokens"] = TensorFacts(self.wide[:2], nbytes(self.wide[:2], "int64"))
        self.builder.input("tokens", self.facts["tokens"].nbytes)
        words = self.weight("embed", "words", self.words)
        positions = self.weight("embed", "positions", self.wide[1:])
        x = self.op("embed", "gather", [words, "tokens", positions], self.wide)
        for i in range(m.layers):
            x = self.layer(f"layer{i}", x)
        scale = self.weight("norm", "scale", (2, m.hidden))
        x = self.op("norm", "layer_norm", [x, scale], self.wide)
        return self.op("head", "matmul", [x, words], (*self.wide[:2], m.vocabulary))

    def layer(self, part: str, x: str) -> str:
        h = self.model.hidden
        four: Shape = (*self.wide[:2], 4 * h)
        y = self.norm(part, "norm1", x)
        y = self.product(part, "qkv", y, h, 3 * h)
        q = self.tensor(self.heads)
        scores = OpFacts("attention", (q, q, q), (q,), {"is_causal": True})
        y = self.op(f"{part}.attention", "attention", [y], self.wide, facts=scores)
        y = self.product(part, "proj", y, h, h)
        x = self.op(f"{part}.add1", "add", [x, y], self.wide)
        y = self.norm(part, "norm2", x)
        y = self.product(part, "up", y, h, 4 * h)
        y = self.op(f"{part}.gelu", "gelu", [y], four)
        y = self.product(part, "down", y, 4 * h, h)
        return self.op(f"{part}.add2", "add", [x, y], self.wide)

    def norm(self, part: str, name: str, x: str) -> str:
        scale = self.weight(part, f"{name}.scale", (2, self.model.hidden))
        return self.op(f"{part}.{name}", "layer_norm", [x, scale], self.wide)

    def product(self, part: str, name: str, x: str, k: int, n: int) -> str:
        weight = self.weight(part, f"{name}.weight", (k, n))
        bias = self.weight(part, f"{name}.bias", (n,))
        return self.op(f"{part}.{name}", "gemm", [x, weight, bias], (*self.wide[:2], n))
