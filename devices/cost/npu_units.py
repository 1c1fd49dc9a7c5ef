"""Which unit of an NPU's core an op runs on: products of matrices on one, everything else on the other.

::

    core   scratchpad ──► matrix unit   (cube, systolic array)   matmul, conv, attention, ...
                      ──► vector unit                            what is elementwise, reductions, moves

A core of such a chip (DaVinci: Liao et al., HPCA 2021; TPU: Jouppi et al., *In-Datacenter Performance
Analysis of a Tensor Processing Unit*, ISCA 2017) has both, with peak rates an order of magnitude apart.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from devices.describe.field_types import dtype_name
from sim.base.arrays import IntArray
from sim.graph.graph import Graph

MATRIX_KINDS: Final = frozenset(
    {
        *("matmul", "gemm", "linear", "einsum", "attention", "attention_grad", "lstm", "gru", "rnn"),
        *("conv", "conv1d", "conv2d", "conv3d", "conv_transpose", "conv_input_grad", "conv_weight_grad"),
    }
)
"""Kinds of op that are products of matrices at heart. A depthwise convolution is not: it sums within
channels, and runs on vector units."""

MATRIX, VECTOR = 0, 1


class Units(NamedTuple):
    """Which ops run on the matrix unit.

    Attributes
    ----------
    kinds : frozenset of str
        Of ops that are products of matrices.
    dtypes : frozenset of str or None
        That the matrix unit has; others are computed on the vector unit. None: all.
    vector : frozenset of str or None
        That the vector unit has; None: all. What neither has is computed in fp32, if possible on the matrix
        unit.
    """

    kinds: frozenset[str] = MATRIX_KINDS
    dtypes: frozenset[str] | None = None
    vector: frozenset[str] | None = None

    def multiplies(self, dtype: str) -> bool:
        """Return whether products in a data type run on the matrix unit."""
        if self.dtypes is None or dtype in self.dtypes:
            return True
        return "fp32" in self.dtypes and self.vector is not None and dtype not in self.vector


def units_of(graph: Graph, units: Units, default_dtype: str = "fp32") -> IntArray:
    """Return 0 for each op of the matrix unit and 1 for each of the vector unit.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("three")
    >>> for name, kind, dtype in [("a", "matmul", "fp16"), ("b", "matmul", "fp32"), ("c", "relu", "fp16")]:
    ...     _ = b.op(name, kind=kind, dtype=dtype)
    >>> units_of(b.build(), Units(dtypes=frozenset({"fp16"}))).tolist()
    [0, 1, 1]
    """
    names = [dtype_name(name) for name in (*graph.dtypes, default_dtype)]  # the code of none is -1: the last
    kinds = np.array([kind in units.kinds for kind in graph.kinds], dtype=bool)
    dtypes = np.array([units.multiplies(name) for name in names], dtype=bool)
    matrix = kinds[graph.kind_code] & dtypes[graph.dtype_code]
    return np.where(matrix, MATRIX, VECTOR)
