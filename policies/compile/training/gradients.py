"""What the backward of each kind of op is made of, as multiples of what the forward does.

A rule says what an op costs that makes the gradient of some of the inputs from the gradient ``dy`` of the
output. With x and w the inputs, y the output::

    contraction   x·w        input gradient dy·w, weight gradient x·dy: an op each, each the forward's work
    sum           x + b      dy itself; what was broadcast is summed up again (bias_add_grad, reduce_sum)
    product       x * b      dy * b and dy * x, each the forward's work, then as above
    mean, (x-b)^2            as TensorFlow: tile and divide; 2 dy times the difference, made again
    function      f(x)       one op that reads dy and what the forward kept
    movement      reshape    the same movement back: no flop, and no byte where it is a view
    anything else            one op that reads dy and all inputs, the forward's work for each gradient

Work is counted from the operators' derivatives in the conventions of the importers (a multiply-add is 2 flop,
a comparison or an elementary function 1): sigmoid 4 forward, its gradient dy * y * (1 - y) 3, and so on.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

__all__ = ["CONTRACTIONS", "CUT", "FUNCTIONS", "KEPT_OUTPUT", "MOVEMENTS", "OPTIMISERS", "PASSES", "SEVERAL"]


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
    **_functions("x", square="2", layer_norm="13/7", rms_norm="2", instance_norm="13/7", lrn="2", erf="4"),
    **_functions("xy", max_pool="1", global_max_pool="1", reduce_max="1"),
    **_functions("", average_pool="1", global_average_pool="1", neg="1"),
}
"""Kind → flop of what makes the gradient of its first input (and, of a norm, of its scale and offset), as a
multiple of the forward's, and what that reads besides ``dy``: ``"x"``, ``"y"``, ``"xy"`` or nothing."""

SEVERAL: Final = {"attention": Fraction(5, 2)}
"""Kind → work of an op that makes the gradients of all inputs from them, ``dy`` and the output.

Attention: five products instead of two, as FlashAttention does it (arXiv 2205.14135, algorithm 4).
"""

KEPT_OUTPUT: Final = frozenset({"softmax_cross_entropy", "sparse_softmax_cross_entropy"})
"""Kinds whose second output is the gradient already, up to a product with ``dy``."""

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
"""Kind → kind of what moves the gradient back."""

PASSES: Final = frozenset({"identity", "read_variable"})
"""Kinds whose gradient is that of their output, unchanged."""

_NO_NUMBERS = "shape size rank const no_op constant_of_shape range zeros_like ones_like one_hot argmax argmin"
_STEPS = "sign floor ceil round and or not is_nan is_inf equal not_equal greater less"
_NO_RESULT = "greater_or_equal less_or_equal stop_gradient assign assign_add assign_sub"

CUT: Final = frozenset(f"{_NO_NUMBERS} {_STEPS} {_NO_RESULT}".split())
"""Kinds that no gradient passes."""


OPTIMISERS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "sgd": ((), 2),
    "momentum": (("velocity",), 4),
    "adam": (("first_moment", "second_moment"), 14),
}
"""What updating a parameter takes: states, each of the parameter's size, and flop for each of its elements.

Scale and subtract; velocity on top (Polyak 1964); Kingma and Ba, arXiv 1412.6980, algorithm 1.
"""
