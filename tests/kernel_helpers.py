"""What the tests of the kernel share."""

from __future__ import annotations

from typing import Any

from sim.kernel.run import is_compiled

KERNELS = [True, False] if is_compiled() else [True]
"""The kernel as it is written, and compiled where it is."""


def same(expected: Any, found: Any) -> None:
    """Assert that two tables are equal, byte for byte."""
    assert set(expected) == set(found)
    for name, column in expected.items():
        assert found[name].dtype == column.dtype, name
        assert found[name].tolist() == column.tolist(), name
