"""Figures without global state, and files whose bytes depend only on the picture."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sim.base.errors import InputError
from sim.base.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_SECOND: Final = 1_000_000_000
_UNITS: Final = (
    *((86_400 * _SECOND, "d"), (3_600 * _SECOND, "h"), (60 * _SECOND, "min"), (_SECOND, "s")),
    *((1_000_000, "ms"), (1_000, "us"), (1, "ns")),
)
_LONGEST_NAME: Final = 30
"""Maximum letters of a name beside a plot; longer ones would leave the plot no room."""


def new_figure(rows: int = 1, *, width: float = 12.0, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """Return a figure with `rows` axes one above the other, sharing their x axis.

    Parameters
    ----------
    rows : int
    width, height : float
        Size of the whole figure, in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from sim.plot.shown import ShownFigure

    figure = ShownFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [ax for (ax,) in figure.subplots(rows, 1, sharex=True, squeeze=False)]


def axes_or_new(ax: Axes | None, *, width: float = 12.0, height: float = 4.0) -> Axes:
    """Return the given axes, or those of a new figure of this size."""
    return new_figure(width=width, height=height)[1][0] if ax is None else ax


def save(figure: Figure | Axes, path: str | os.PathLike[str]) -> None:
    """Write a figure, or that of some axes, to a ``.png``, ``.svg`` or ``.pdf`` file, whole or not at all.

    Parameters
    ----------
    figure : Figure or Axes
    path : path

    Raises
    ------
    InputError
        The path has another ending, or its directory does not exist.
    """
    import matplotlib

    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    varies = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}
    if kind not in varies:
        raise InputError(f"{target}: a picture's name ends in .png, .svg or .pdf")
    root = figure.get_figure(root=True)
    assert root is not None
    # 42: fonts as TrueType; publishers (IEEE, ACM) refuse matplotlib's default, Type 3
    settings = matplotlib.rc_context({"svg.hashsalt": "sim", "pdf.fonttype": 42})
    with atomic_path(target) as temporary, settings, _one_warning_of_glyphs(target):
        root.savefig(temporary, format=kind, dpi=150, metadata={varies[kind]: None})


@contextlib.contextmanager
def _one_warning_of_glyphs(target: Path) -> Iterator[None]:
    """Warn once about characters that the font lacks; matplotlib warns each time that one is drawn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message="Glyph ", category=UserWarning)
        yield
    missing: dict[str, None] = {}
    for warning in caught:
        match = re.match(r"Glyph (\d+) ", str(warning.message))
        if match:
            missing[chr(int(match[1]))] = None
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        listed = " ".join(list(missing)[:12]) + (" ..." if len(missing) > 12 else "")
        warnings.warn(f"{target}: the font has no glyph for {listed}; boxes are drawn instead", stacklevel=3)


def time_unit(longest_ns: int) -> tuple[int, str]:
    """Return (ns in the unit, its name) of the best unit for a time axis up to `longest_ns`.

    Examples
    --------
    >>> time_unit(25_000), time_unit(999)
    ((1000, 'us'), (1, 'ns'))
    """
    return next((unit for unit in _UNITS if longest_ns >= 2 * unit[0]), _UNITS[-1])


def time_text(ns: int, longest_ns: int) -> str:
    """Return a time for a title, in the unit of an axis up to `longest_ns`, or in its own if far shorter.

    Examples
    --------
    >>> time_text(1_576_200, 1_576_200), time_text(500, 10_000), time_text(3, 3), time_text(7, 10**9)
    ('1,576 us', '0.5 us', '3 ns', '7 ns')
    """
    scale, unit = time_unit(longest_ns)
    if 100 * ns < scale:
        scale, unit = time_unit(ns)
    value = ns / scale
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}"


def scale_time(ax: Axes, longest_ns: int) -> int:
    """Let the x axis show a time in the best unit, with round steps; return the ns in that unit."""
    from matplotlib.ticker import MaxNLocator

    ns, name = time_unit(longest_ns)
    show_x(ax, f"time ({name})", longest_ns / ns)
    root = ax.get_figure(root=True)
    assert root is not None
    nbins = min(10, max(2, int(1.25 * root.get_figwidth())))  # numbers must not touch in a narrow column
    ax.xaxis.set_major_locator(MaxNLocator(nbins=nbins, steps=[1, 2, 5, 10], integer=ns == 1))
    return ns


def show_x(ax: Axes, label: str, right: float) -> None:
    """Let the x axis show a quantity from 0 to `right`; if others share it, up to the largest of theirs.

    Raises
    ------
    InputError
        They show another quantity or unit, so that one of them would be wrong.
    """
    siblings = ax.get_shared_x_axes().get_siblings(ax)
    labelled = [other for other in siblings if other is not ax and other.get_xlabel()]
    if wrong := [other.get_xlabel() for other in labelled if other.get_xlabel() != label]:
        raise InputError(
            f"these axes share their x axis with others, which show {wrong[0]!r} and not {label!r}: draw "
            "each in a figure of its own, or several traces with compare_gantt"
        )
    ax.set_xlabel(label)
    ax.set_xlim(0, max([right, *(other.get_xlim()[1] for other in labelled)]))


def elide(name: str, limit: int = _LONGEST_NAME) -> str:
    """Return a name on one line, shortened in the middle if it is long.

    Examples
    --------
    >>> elide("conv1"), elide("a_kernel_with_a_long_name", 12)
    ('conv1', 'a_kernel…ame')
    """
    line = " ".join(name.split())
    end = (limit - 1) // 3
    return line if len(line) <= limit else f"{line[: limit - 1 - end]}…{line[-end:]}"
