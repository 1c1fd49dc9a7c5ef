"""Columns: the one type of array that facts are stored in, and what stands for none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["UNSET", "BoolArray", "IntArray"]


IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


UNSET = -1
"""In a column of sizes, times or codes: nothing was given."""
