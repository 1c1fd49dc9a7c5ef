"""The colour of each kind of op: a function of its name alone, so that a kind looks alike in every plot.

Phases of pipelines have Okabe and Ito's colours. Kinds that fill most charts have one colour a family, such
as norms or optimizers, most of them of Paul Tol's muted scheme (SRON/EPS/TN/09-002, 2021). Both remain apart
for colour-blind readers. What computes the gradient of a kind is a shade of it (``conv``,
``conv_weight_grad``). Hue and lightness of any other kind follow from the checksum of its name; they are none
that could be mistaken for a colour of those.
"""

from __future__ import annotations

from collections.abc import Iterable
from colorsys import hls_to_rgb
from functools import cache
from math import dist
from typing import Final
from zlib import crc32

from sim.analysis.memory_bands import OTHER, RESIDENT

__all__ = ["FAMILIES", "LAUNCH", "OKABE_ITO", "OTHER", "TRANSFER", "WAITING", "colour_of", "kind_colours"]

OKABE_ITO: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Colours that remain apart for colour-blind readers (Okabe and Ito, 2008), without the black."""

LAUNCH: Final = "launch"
TRANSFER: Final = "transfer"
WAITING: Final = "waits for ranks"
"""What charts show beside kinds of op: launches, transfers, and collectives before their ranks have met."""

FAMILIES: Final = {
    "#332288": "matmul gemm batch_matmul linear einsum",
    "#88CCEE": "conv depthwise_conv conv_transpose",
    "#AA4499": "attention",
    "#F0E442": "relu relu6 leaky_relu prelu elu gelu silu tanh sigmoid",
    "#999933": "elementwise add add_n bias_add sub mul div dropout",
    "#CC6677": "softmax log_softmax softmax_cross_entropy sparse_softmax_cross_entropy loss",
    "#117733": "layer_norm rms_norm batch_norm group_norm instance_norm lrn",
    "#AB7DD9": "max_pool average_pool global_max_pool global_average_pool",
    "#50A555": "copy copy_in copy_out fill concat split slice pad transpose gather embedding",
    "#6A5BE0": "optimizer sgd momentum adam",
    "#882255": "all_reduce all_gather reduce_scatter all_to_all alltoall broadcast collective",
    "#4A331C": "send recv",
    "#DDCC77": "load read",
}
"""Kinds of op that have one colour, because they do the like; a legend names them side by side."""

_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _RED, _YELLOW = OKABE_ITO
_KNOWN: Final = {
    **dict.fromkeys(("F", "forward"), _BLUE),
    **dict.fromkeys(("B", "backward"), _ORANGE),
    "I": _RED,
    "W": _GREEN,
    "R": _PINK,
    **dict.fromkeys(("op", "train", "step"), _SKY),
    **{kind: colour for colour, kinds in FAMILIES.items() for kind in kinds.split()},
    LAUNCH: "#BBBBBB",
    TRANSFER: "#222222",
    WAITING: "#E5CCD8",
    RESIDENT: "#C9B79C",  # memory of parameters and inputs
    OTHER: "#999999",  # memory of small kinds
}
_LIGHTNESS: Final = (0.35, 0.5, 0.65)
_SATURATION: Final = (0.55, 0.4, 0.65)
_ATTEMPTS: Final = 40
_APART: Final = 0.2
"""Least distance, in the cube of red, green and blue, of a colour by checksum from those that are known."""
_OF_GRADIENTS: Final = {"_input_grad": 0.3, "_weight_grad": 0.5, "_grad": 0.5, "_backward": 0.5}
"""Endings of what computes gradients, and how much darker than its op it is (lighter, where that is dark)."""
_DARK: Final = 1.1


def colour_of(kind: str) -> str:
    """Return the colour of a kind of op, as ``#RRGGBB``.

    Examples
    --------
    >>> colour_of("F"), colour_of("matmul"), colour_of("my_kernel") == colour_of("my_kernel")
    ('#0072B2', '#332288', True)
    >>> colour_of("conv"), colour_of("conv_input_grad"), colour_of("conv_weight_grad")
    ('#88CCEE', '#5F8FA7', '#446677')
    """
    if kind in _KNOWN:
        return _KNOWN[kind]
    for suffix, share in _OF_GRADIENTS.items():
        if kind.endswith(suffix) and kind != suffix:
            return _mixed(colour_of(kind.removesuffix(suffix)), share)
    return _by_checksum(kind)


@cache
def _by_checksum(kind: str) -> str:
    """Return the first colour of some that follow from the name which is not mistaken for a known one."""
    for attempt in range(_ATTEMPTS):
        turns, hue = divmod(crc32(f"{kind}{attempt or ''}".encode()), 360)
        rest, lightness = divmod(turns, len(_LIGHTNESS))
        rgb = hls_to_rgb(hue / 360, _LIGHTNESS[lightness], _SATURATION[rest % len(_SATURATION)])
        if min(dist(rgb, _rgb(known)) for known in _KNOWN.values()) > _APART:
            break
    return _hex(rgb)


def _mixed(colour: str, share: float) -> str:
    """Return a colour with so much black in it, or white where it is dark already."""
    rgb = _rgb(colour)
    other = 1.0 if sum(rgb) < _DARK else 0.0
    return _hex([part + share * (other - part) for part in rgb])


def _rgb(colour: str) -> list[float]:
    return [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]


def _hex(rgb: Iterable[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02X}" for part in rgb)


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """Return kind → colour, in the order of `kinds`."""
    return {kind: colour_of(kind) for kind in kinds}
