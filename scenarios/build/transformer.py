"""Sizes of a GPT as `scenarios.build.gpt` writes it: learned positions, a middle 4h wide, tied words.

::

    parameters     12h² + 13h a layer, (V + s)·h of the embedding

What a layer costs and keeps in training is `scenarios.build.train.layers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.words.errors import InputError

__all__ = ["Transformer"]


@dataclass(frozen=True)
class Transformer:
    """Sizes of a decoder.

    Attributes
    ----------
    layers, hidden, heads, sequence, vocabulary : int
    micro_batch : int
        Samples in a micro-batch.
    dtype : str
        In which its products are computed.

    Examples
    --------
    GPT-3 has 175 billion parameters:

    >>> gpt3 = Transformer(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    >>> round(gpt3.parameters / 1e9, 1)
    174.6
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int = 0
    micro_batch: int = 1
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit each other."""
        if self.hidden % self.heads:
            raise InputError(f"hidden size {self.hidden} is no multiple of {self.heads} heads")

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding of words and positions."""
        return (self.vocabulary + self.sequence) * self.hidden if self.vocabulary else 0

    @property
    def parameters(self) -> int:
        """All parameters but the last norm's; the output layer's are the embedding's."""
        return self.layers * self.layer_parameters + self.embedding_parameters
