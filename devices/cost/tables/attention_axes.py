"""The axes on which attention was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["attention_axes"]


def attention_axes(
    batch: npt.ArrayLike,
    seq_len: npt.ArrayLike,
    heads: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    window: npt.ArrayLike = 0,
) -> dict[str, npt.NDArray[Any]]:
    """Return the sizes for a look-up in :func:`attention_table`: ``table.lookup(**attention_axes(...))``.

    Examples
    --------
    >>> {name: int(size) for name, size in attention_axes(4, 1024, 32, 8, 128).items()}
    {'batch_heads': 128, 'seq_len': 1024, 'group': 4, 'kv_heads': 8, 'head_dim': 128, 'window': 0}
    """
    per_kv = np.asarray(heads) // np.asarray(kv_heads)
    return {
        "batch_heads": np.asarray(batch) * np.asarray(heads),
        "seq_len": np.asarray(seq_len),
        "group": per_kv,
        "kv_heads": np.asarray(kv_heads),
        "head_dim": np.asarray(head_dim),
        "window": np.asarray(window),
    }
