"""A figure that notebooks display as a picture.

Notebooks learn to draw matplotlib's figures when ``matplotlib.pyplot`` is imported. Nothing here imports it,
because it keeps every figure alive, so our figures provide their own representation.
"""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure with IPython's protocol for pictures (``_repr_png_``)."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=100, metadata={"Software": None})
        return picture.getvalue()
