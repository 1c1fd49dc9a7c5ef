"""A figure that a notebook shows as the picture that it is.

Notebooks learn to draw matplotlib's figures when ``matplotlib.pyplot`` is imported. Nothing here imports it,
for it keeps every figure alive, so our figures say themselves what they look like.
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
