"""A figure that notebooks display as a picture.

Notebooks learn to draw matplotlib's figures when ``matplotlib.pyplot`` is imported. Nothing here imports it,
because it keeps every figure alive, so our figures provide their own representation.
"""

from __future__ import annotations

import io

from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.text import Text


class ShownFigure(Figure):
    """A figure with IPython's protocol for pictures (``_repr_png_``), in which names are no formulas."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw it, a ``$`` in a name like any letter; only labels of logarithmic axes are formulas."""
        for text in self.findobj(Text):
            assert isinstance(text, Text)
            if not text.get_text().startswith("$\\mathdefault"):
                text.set_parse_math("$" not in text.get_text())
        super().draw(renderer)

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=100, metadata={"Software": None})
        return picture.getvalue()
