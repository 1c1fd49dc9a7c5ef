"""Stages: a forward graph is cut where the user says, so that ``pipeline-parallel`` can share it out.

::

    cut: [layer4, layer8]      embed layer0 ... │ layer4 ... │ layer8 ... head      three stages

Each pattern names the op that begins the next stage: the first, in the order of the host, with a match in its
name. The backward of an op, which ``training`` adds, is of the same stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from policies.compile.parallel.modules import pattern_of
from sim import Graph
from sim.words.errors import InputError

__all__ = ["Stages"]


class Stages:
    r"""Cut a graph into stages.

    Parameters
    ----------
    cut : list of str
        Regular expressions: of each stage but the first the beginning.

    Raises
    ------
    InputError
        A pattern that no op after those of the stage before has (when applied).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", outputs=8), b.op("b", inputs=["a"], outputs=8), b.op("c", inputs=["b"])
    >>> Stages(["b"]).apply(b.build()).stage.tolist()
    [0, 1, 1]
    """

    def __init__(self, cut: Sequence[str]) -> None:
        self.cut = [cut] if isinstance(cut, str) else list(cut)
        self.patterns = [pattern_of(each, "cut") for each in self.cut]

    def apply(self, graph: Graph) -> Graph:
        """Return the graph, each op with the number of its stage."""
        order = graph.topological_order.tolist()
        stage, begin = np.zeros(len(graph), np.int64), 0
        for number, pattern in enumerate(self.patterns, start=1):
            assert pattern is not None
            found = (k for k in range(begin + 1, len(order)) if pattern.search(graph.op_names[order[k]]))
            begin = next(found, -1)
            if begin < 0:
                message = (
                    f"stages: cut: no op that could begin stage {number} has {self.cut[number - 1]!r} in it"
                )
                raise InputError(message, path=("cut",))
            stage[order[begin:]] = number
        return replace(graph, stage=stage)
