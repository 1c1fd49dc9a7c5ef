"""The look of plots on different paper: light, dark, or printed without colour.

::

    with theme("dark"):
        save(compare_gantt(trace), "slide.png")

On the command line that is ``--theme dark``. Outside such a block, plots take the colours of lines and
paper from matplotlib's settings, so a style sheet of your own works too. Colours of kinds stay the same
(`sim.plot.theme`), except that the darkest ones become lighter on dark paper. In print every colour also has
a hatch, so that it can be recognised in grey. A page (`sim.plot.html`) starts with the theme or, without one,
with the setting of the reader's system.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from colorsys import hls_to_rgb
from contextvars import ContextVar
from functools import cache
from math import dist
from typing import TYPE_CHECKING, Any, Final, Literal
from zlib import crc32

from sim.base.errors import UnknownNameError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_INK: Final = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_PAPER: Final = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
_LIGHT: Final[dict[Any, Any]] = dict.fromkeys(_INK, "black") | dict.fromkeys(_PAPER, "white")
_DARK: Final[dict[Any, Any]] = dict.fromkeys(_INK, "#E6E6E6") | dict.fromkeys(_PAPER, "#1C1E22")
THEMES: Final[dict[str, dict[Any, Any]]] = {
    "light": _LIGHT,
    "dark": _DARK | {"grid.color": "#5A5E66"},
    "print": _LIGHT | {"hatch.linewidth": 0.6},
}
"""Names of themes, and their matplotlib settings."""
_VISIBLE_LUMA: Final = 0.42
"""Luma visible on dark paper: three times its luminance, as graphics need (WCAG 2.2, 1.4.11)."""
_ON_DARK: Final = {
    "#332288": "#6162c0",  # products, beside attention
    "#117733": "#6fc284",  # norms
    "#4A331C": "#7f674c",  # messages
    "#222222": "#f4f4f4",  # transfers, beside launches
    "#0072B2": "#2e88bf",  # F
    "#4C4C1A": "#828359",  # gradients: of elementwise ops, attention, pooling
    "#55224C": "#c499b9",
    "#563E6C": "#bfa4d2",
    "#8C510A": "#9b662a",  # a part of the time of devices
}
"""Dark colours that would become confusable if each were only made as light as necessary (`on_dark`).

Found by a search for the least change that keeps all colours of `sim.plot.theme` apart."""
_GREY: Final = 0.15
"""In a grey, red, green and blue differ by less than this."""
_HATCHES: Final = ("", "////", "\\\\\\\\", "----", "||||", "xxxx", "....", "++++", "oo")
_chosen: ContextVar[str | None] = ContextVar("theme", default=None)


@contextlib.contextmanager
def theme(name: str) -> Iterator[None]:
    """Draw and save everything in the block for light or dark paper, or for print.

    Parameters
    ----------
    name : str
        ``light``, ``dark`` or ``print``.

    Raises
    ------
    UnknownNameError
        There is no such theme.
    """
    import matplotlib

    if name not in THEMES:
        raise UnknownNameError("theme", name, THEMES)
    token = _chosen.set(name)
    try:
        with matplotlib.rc_context(THEMES[name]):
            yield
    finally:
        _chosen.reset(token)


def chosen() -> str | None:
    """Return the theme of the enclosing block; None: there is none."""
    return _chosen.get()


def ink() -> Any:
    """Return the colour of lines and letters."""
    import matplotlib

    return matplotlib.rcParams["text.color"]


def paper() -> Any:
    """Return the colour behind a plot."""
    import matplotlib

    return matplotlib.rcParams["axes.facecolor"]


def is_dark() -> bool:
    """Whether plots are on dark paper."""
    from matplotlib.colors import to_rgb

    return sum(to_rgb(paper())) < 1.5


def shade(colour: str) -> str:
    """Return a colour as drawn on the current paper: black becomes the ink; on dark paper dark ones lighten.

    Examples
    --------
    >>> shade("#332288"), shade("#eeeeee")
    ('#332288', '#eeeeee')
    >>> with theme("dark"):
    ...     shade("#332288"), shade("#eeeeee"), shade("#E69F00")
    ('#6162c0', '#3a3d44', '#E69F00')
    """
    from matplotlib.colors import to_hex

    if colour == "black":
        return to_hex(ink())
    if not is_dark():
        return colour
    return on_dark(colour if colour.startswith("#") else to_hex(colour))


def on_dark(colour: str) -> str:
    """Return a colour, as ``#RRGGBB``, as drawn on dark paper.

    Dark colours become just light enough to be visible, except for those that would become confusable. Among
    greys, near-black becomes near-white; a pale grey, meant to be hardly visible, stays hardly
    visible there.

    Examples
    --------
    >>> on_dark("#882255"), on_dark("#332288"), on_dark("#56B4E9")
    ('#a04e77', '#6162c0', '#56B4E9')
    """
    if (picked := _ON_DARK.get(colour.upper())) is not None:
        return picked
    red, green, blue = rgb = _rgb(colour)
    luma = 0.3 * red + 0.59 * green + 0.11 * blue
    if max(rgb) - min(rgb) < _GREY:
        if luma > 0.8:
            return "#3a3d44"
        if luma < 0.2:  # as good as ink
            return _hex([1 - part for part in rgb])
    white = (_VISIBLE_LUMA - luma) / (1 - luma)
    return _hex([part + white * (1 - part) for part in rgb]) if white > 0 else colour


def _hex(rgb: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def is_print() -> bool:
    """Whether plots have to work without colour."""
    return chosen() == "print"


def hatches(colours: Mapping[str, str]) -> dict[str, str]:
    """Return label → hatch: in print one for each colour, otherwise none.

    Parameters
    ----------
    colours : mapping of str to str
        Label → colour for everything that is shown together.
    """
    number = {colour: k for k, colour in enumerate(dict.fromkeys(colours.values()))}
    return {
        label: _HATCHES[number[colour] % len(_HATCHES)] if is_print() else ""
        for label, colour in colours.items()
    }


def plain(ax: Axes, title: str | None = None, grid: Literal["x", "both"] | None = None) -> None:
    """Remove the frame's right and upper sides, set the title on the left, and draw a grid behind all."""
    ax.spines[["top", "right"]].set_visible(False)
    if title:
        ax.set_title(title, loc="left", fontsize=10, parse_math=False)
    if grid:
        ax.grid(axis=grid, linewidth=0.4, alpha=0.5)
        ax.set_axisbelow(True)


# ----------------------------------------------------------------------------------------------------------
# The colour of each kind of op: a function of its name alone, so that a kind looks the same in every plot.
#
# Phases of pipelines have Okabe and Ito's colours. The most common kinds have one colour per family, such
# as norms or optimizers, mostly from Paul Tol's muted scheme (SRON/EPS/TN/09-002, 2021). Both sets are
# distinguishable for colour-blind readers. The op for the gradient of a kind has a shade of its colour
# (``conv``, ``conv_weight_grad``). Hue and lightness of any other kind follow from the checksum of its name,
# and differ clearly from these colours.

OKABE_ITO: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Colours that colour-blind readers can distinguish (Okabe and Ito, 2008), without the black."""

LAUNCH: Final = "launch"
TRANSFER: Final = "transfer"
WAITING: Final = "waits for ranks"
"""Entries of charts besides kinds of op: launches, transfers, and collectives before their ranks have met."""
RESIDENT: Final = "resident"
OTHER: Final = "other"
"""Bands of memory besides kinds of op: parameters and inputs, which stay, and what small kinds hold."""

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
"""Kinds of op that share a colour because they do similar work; a legend names them side by side."""

_BLUE, _ORANGE, _GREEN, _PINK, _, _RED, _YELLOW = OKABE_ITO
_KNOWN: Final = {
    **dict.fromkeys(("F", "forward"), _BLUE),
    **dict.fromkeys(("B", "backward"), _ORANGE),
    "I": _RED,
    "W": _GREEN,
    "R": _PINK,
    **dict.fromkeys(("op", "train", "step"), "#3A93D0"),  # Okabe and Ito's sky blue is too near to conv's
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
_MIN_DISTANCE: Final = 0.2
"""Least distance, in the cube of red, green and blue, of a colour by checksum from the known ones."""
_GRADIENT_SHADES: Final = {"_input_grad": 0.3, "_weight_grad": 0.5, "_grad": 0.5, "_backward": 0.5}
"""Endings of gradient ops, and how much darker than their op they are (lighter if it is dark)."""
_DARK_SUM: Final = 1.1


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
    for suffix, share in _GRADIENT_SHADES.items():
        if kind.endswith(suffix) and kind != suffix:
            return _mix(colour_of(kind.removesuffix(suffix)), share)
    return _by_checksum(kind)


@cache
def _by_checksum(kind: str) -> str:
    """Return the first colour derived from a name that is not too close to a known one."""
    for attempt in range(_ATTEMPTS):
        turns, hue = divmod(crc32(f"{kind}{attempt or ''}".encode()), 360)
        remainder, lightness = divmod(turns, len(_LIGHTNESS))
        rgb = hls_to_rgb(hue / 360, _LIGHTNESS[lightness], _SATURATION[remainder % len(_SATURATION)])
        if min(dist(rgb, _rgb(known)) for known in _KNOWN.values()) > _MIN_DISTANCE:
            break
    return _hex(rgb).upper()


def _mix(colour: str, share: float) -> str:
    """Return a colour mixed with a share of black, or of white if it is already dark."""
    rgb = _rgb(colour)
    other = 1.0 if sum(rgb) < _DARK_SUM else 0.0
    return _hex([part + share * (other - part) for part in rgb]).upper()


def _rgb(colour: str) -> list[float]:
    return [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
