"""A transformer as pipeline stages: arithmetic, memory and messages of its layers from its sizes.

Per layer, for b samples of s tokens, hidden size h, a heads, t devices that share the layer::

    parameters     12h² + 13h
    forward        24·b·s·h² + 4·b·s²·h flop            products of weights, and of attention
    activations    s·b·h·(10 + 24/t + 5·a·s/(h·t))      bytes at 16 bit
      selective    s·b·h·(10 + 24/t)                    attention's inside is computed again
      full         2·s·b·h                              only the layer's input is kept
    sent on        2·s·b·h bytes
    left for W     s·b·h·(8 + 24/t)                     of what is kept: inputs of products with weights

The backward of a product of weights is two products of the same size: one for the input (I), one for the
weight (W); attention has no weights, so both of its halves belong to I. The last stage has the output layer
too: 2·b·s·h·V flop for V words, and 4·s·b·(h + V) bytes of activations; the first one the embedding.

Mixed precision with Adam: 2 bytes of weights, 2 of gradients and 12 of optimizer state a parameter.

Sources: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
arXiv 2205.05198, sections 4 and 5, appendix A; what is left for W: Qi et al., arXiv 2401.10241, table 1;
bytes a parameter: Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from policies.pipeline.timing.evaluate import StageTimes
from scenarios.build.data_parallel import ring_all_reduce_ns
from scenarios.build.pipeline.pipeline_stage import PipelineStage
from sim import Device, GraphBuilder
from sim.job.costs import costs_ns
from sim.words.errors import InputError
from sim.words.units import NS_PER_S, round_half_up

__all__ = ["Recompute", "Transformer", "transformer_stages"]

Recompute = Literal["none", "selective", "full"]

_BYTES = 2
"""A number of 16 bit."""


@dataclass(frozen=True)
class Transformer:
    """Sizes of a decoder.

    Attributes
    ----------
    layers, hidden, heads, sequence, vocabulary : int
    micro_batch : int
        Samples in a micro-batch.
    recompute : {"none", "selective", "full"}
        Which activations a layer computes again in its backward.
    tensor_parallel : int
        Devices that share each layer.
    dtype : str
        In which its products are computed.

    Examples
    --------
    GPT-3 has 175 billion parameters:

    >>> gpt3 = Transformer(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    >>> round(gpt3.parameters / 1e9, 1), gpt3.activation_nbytes // 2**20
    (174.6, 2736)
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int = 0
    micro_batch: int = 1
    recompute: Recompute = "none"
    tensor_parallel: int = 1
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit each other."""
        if self.hidden % self.heads:
            raise InputError(f"hidden size {self.hidden} is no multiple of {self.heads} heads")
        if self.heads % self.tensor_parallel:
            raise InputError(f"{self.heads} heads cannot be shared by {self.tensor_parallel} devices")

    @property
    def _tokens(self) -> int:
        return self.micro_batch * self.sequence

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer, on all devices that share it."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding of words and positions."""
        return (self.vocabulary + self.sequence) * self.hidden if self.vocabulary else 0

    @property
    def parameters(self) -> int:
        """All parameters; the output layer's are the embedding's."""
        return self.layers * self.layer_parameters + self.embedding_parameters

    @property
    def attention_flops(self) -> int:
        """Flop of a layer's attention, forward."""
        return 4 * self._tokens * self.sequence * self.hidden

    @property
    def boundary_nbytes(self) -> int:
        """What a stage sends on."""
        return _BYTES * self._tokens * self.hidden

    def _per_token(self, recompute: Recompute) -> Fraction:
        t = self.tensor_parallel
        if recompute == "full":
            return Fraction(2 * self.hidden)
        attention = Fraction(5 * self.heads * self.sequence, t) if recompute == "none" else Fraction(0)
        return self.hidden * (10 + Fraction(24, t)) + attention

    @property
    def activation_nbytes(self) -> int:
        """What a layer keeps of a micro-batch for its backward."""
        return round_half_up(self._tokens * self._per_token(self.recompute))

    @property
    def weight_grad_nbytes(self) -> int:
        """The part of it that the gradients of the weights still need."""
        left = self.hidden * (8 + Fraction(24, self.tensor_parallel))
        return min(self.activation_nbytes, round_half_up(self._tokens * left))


def transformer_stages(
    model: Transformer,
    stages: int,
    *,
    rate: int | None = None,
    device: Device | None = None,
    tensor_bandwidth: int | None = None,
) -> list[PipelineStage]:
    """Cut a transformer into equal stages; the output layer is on the last, the embedding on the first.

    Parameters
    ----------
    model : Transformer
    stages : int
        A divisor of its layers.
    rate : int, optional
        What a device achieves, in flop/s.
    device : Device, optional
        Instead: whose cost model times the products.
    tensor_bandwidth : int, optional
        Between the devices that share a layer, in bytes/s. A layer sums its output over them twice in
        its forward and twice in its backward: behind attention, and behind the products that follow it.

    Raises
    ------
    InputError
        The layers cannot be shared evenly, or there is nothing to time them with.

    Examples
    --------
    >>> model = Transformer(layers=8, hidden=1024, heads=16, sequence=1024, vocabulary=50304)
    >>> first, *_, last = transformer_stages(model, 4, rate=100 * 10**12)
    >>> first.times.forward < last.times.forward, first.boundary_nbytes
    (True, 2097152)
    """
    if model.layers % stages:
        raise InputError(f"{model.layers} layers cannot be shared evenly by {stages} stages")
    weight, attention, output = _layer_ns(model, rate, device)
    tokens, t = model.micro_batch * model.sequence, model.tensor_parallel
    # the two sums of a layer's forward, in a ring of the devices that share it
    message = ring_all_reduce_ns(2 * model.boundary_nbytes, t, tensor_bandwidth, 0)
    again = {"none": 0, "selective": attention, "full": weight + attention + message}[model.recompute]
    layers = model.layers // stages

    def stage(s: int) -> PipelineStage:
        is_last = s == stages - 1
        out = output if is_last else 0
        parameters = layers * model.layer_parameters
        if is_last or s == 0:
            parameters += model.embedding_parameters
        parameters = -(-parameters // t)
        kept = layers * model.activation_nbytes
        if is_last and model.vocabulary:
            kept += 4 * tokens * (model.hidden + model.vocabulary) // t
        if (
            model.recompute == "full"
        ):  # while a layer's backward runs, what it has computed again is there too
            kept += round_half_up(tokens * model._per_token("none"))
        return PipelineStage(
            StageTimes(
                forward=layers * (weight + attention + message) + out,
                input_grad=layers * (weight + 2 * attention + again + message) + out,
                weight_grad=layers * weight + out,
            ),
            exposed=StageTimes(
                forward=layers * message,
                input_grad=layers * message * (2 if model.recompute == "full" else 1),
                weight_grad=0,
            )
            if message
            else None,
            boundary_nbytes=model.boundary_nbytes,
            activation_nbytes=kept,
            weight_grad_nbytes=layers * model.weight_grad_nbytes,
            parameter_nbytes=2 * parameters,
            gradient_nbytes=2 * parameters,
            optimizer_nbytes=12 * parameters,
        )

    return [stage(s) for s in range(stages)]


def _layer_ns(model: Transformer, rate: int | None, device: Device | None) -> tuple[int, int, int]:
    """Time a layer's products with weights, its attention, and the output layer, forward."""
    if rate is None and (device is None or device.cost is None):
        raise InputError(
            "nothing tells how long its products take: give the model a rate (150TFLOP/s), or the "
            "scenario a machine whose devices have a cost model"
        )

    def time(kind: str, flops: int, read: int, written: int) -> int:
        if rate is not None:
            return round_half_up(Fraction(flops * NS_PER_S, rate))
        assert device is not None
        builder = GraphBuilder("op")
        builder.op(kind, kind=kind, flops=flops, bytes_read=read, bytes_written=written, dtype=model.dtype)
        found = int(costs_ns(builder.build(), device)[0])
        if found < 0:
            raise InputError(f"the cost model of {device.name} does not know {kind}; give the model a rate")
        return found

    def product(m: int, k: int, n: int) -> int:
        return time("matmul", 2 * m * k * n, _BYTES * (m * k + k * n), _BYTES * m * n)

    tokens, h, t = model.micro_batch * model.sequence, model.hidden, model.tensor_parallel
    # inner × columns of the four products with weights: qkv, projection, up, down
    weights = [(h, 3 * h // t), (h // t, h), (h, 4 * h // t), (4 * h // t, h)]
    heads = model.micro_batch * model.heads // t
    attention = (model.attention_flops // t, 8 * tokens * h // t, 2 * heads * model.sequence)
    return (
        sum(product(tokens, k, n) for k, n in weights),
        time("attention", *attention),
        product(tokens, h, model.vocabulary // t) if model.vocabulary else 0,
    )
