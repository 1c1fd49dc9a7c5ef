"""How plots look on the paper that they are on: light, dark, or printed without colour.

::

    with theme("dark"):
        save(compare_gantt(trace), "slide.png")

On the command line that is ``--theme dark``. Outside such a block plots take the colour of their lines and
of their paper from matplotlib's settings, so that a style sheet of your own works, too. Colours of kinds stay
what they are (`sim.plot.colours`), but for the darkest ones on dark paper, which become lighter. In print
every colour has a hatch besides, by which one tells them apart in grey. A page (`sim.plot.html`) begins as
the theme says, and without one as the reader's system does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from sim.words.errors import UnknownNameError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    *("THEMES", "chosen", "hatches", "ink", "is_dark", "on_dark"),
    *("paper", "plain", "printed", "shade", "theme"),
]

_INK: Final = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_PAPER: Final = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
_LIGHT: Final[dict[Any, Any]] = dict.fromkeys(_INK, "black") | dict.fromkeys(_PAPER, "white")
_DARK: Final[dict[Any, Any]] = dict.fromkeys(_INK, "#E6E6E6") | dict.fromkeys(_PAPER, "#1C1E22")
THEMES: Final[dict[str, dict[Any, Any]]] = {
    "light": _LIGHT,
    "dark": _DARK | {"grid.color": "#5A5E66"},
    "print": _LIGHT | {"hatch.linewidth": 0.6},
}
"""Names of themes, and what they set in matplotlib."""
_SEEN: Final = 0.42
"""Luma of what is seen on dark paper: three times its luminance, which graphics need (WCAG 2.2, 1.4.11)."""
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
"""Dark colours that would be taken for one another if each became just as light as it takes (`on_dark`).

Chosen by a search for the least change after which all colours of `sim.plot.colours` remain apart."""
_GREY: Final = 0.15
"""Red, green and blue of a grey differ by less."""
_HATCHES: Final = ("", "////", "\\\\\\\\", "----", "||||", "xxxx", "....", "++++", "oo")
_chosen: ContextVar[str | None] = ContextVar("theme", default=None)


@contextlib.contextmanager
def theme(name: str) -> Iterator[None]:
    """Draw and save what stands in the block for light or dark paper, or for print.

    Parameters
    ----------
    name : str
        ``light``, ``dark`` or ``print``.

    Raises
    ------
    UnknownNameError
        Another name.
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
    """Return the theme of the block that this is called in; None: it is in none."""
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
    """Return a colour as it is drawn on the paper: black is the ink; on dark paper dark ones are lighter.

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
    """Return a colour, as ``#RRGGBB``, as it is drawn on dark paper.

    Dark ones become as light as it takes to be seen, and no lighter, but for those that would no longer be
    told apart. Of greys, what is nearly black becomes nearly white; what is pale, and meant to be hardly
    seen, is hardly seen there, too.

    Examples
    --------
    >>> on_dark("#882255"), on_dark("#332288"), on_dark("#56B4E9")
    ('#a04e77', '#6162c0', '#56B4E9')
    """
    if (picked := _ON_DARK.get(colour.upper())) is not None:
        return picked
    red, green, blue = rgb = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    luma = 0.3 * red + 0.59 * green + 0.11 * blue
    if max(rgb) - min(rgb) < _GREY:
        if luma > 0.8:
            return "#3a3d44"
        if luma < 0.2:  # as good as ink
            return _hex([1 - part for part in rgb])
    white = (_SEEN - luma) / (1 - luma)
    return _hex([part + white * (1 - part) for part in rgb]) if white > 0 else colour


def _hex(rgb: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def printed() -> bool:
    """Whether plots have to do without colour."""
    return chosen() == "print"


def hatches(colours: Mapping[str, str]) -> dict[str, str]:
    """Return label → hatch, in print: one for each colour; else no hatch.

    Parameters
    ----------
    colours : mapping of str to str
        Label → colour of all that is seen together.
    """
    apart = {colour: k for k, colour in enumerate(dict.fromkeys(colours.values()))}
    return {
        label: _HATCHES[apart[colour] % len(_HATCHES)] if printed() else ""
        for label, colour in colours.items()
    }


def plain(ax: Axes, title: str | None = None) -> None:
    """Take the frame's right and upper side away, and write the title on the left."""
    ax.spines[["top", "right"]].set_visible(False)
    if title:
        ax.set_title(title, loc="left", fontsize=10)
