"""The kernel's network with Python's numbers, as long as they need to be: the same source with other limits.

Where many links are full at once, the exact share of one depends on those of many others, and its denominator
is a product of as many numbers of flows: more than 64 bits can hold.
"""

from __future__ import annotations

from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = ["wide_network"]

_BITS: Final = 1 << 10
"""Of one of the two parts after the point of virtual time."""

_UNLIMITED: Final = 1 << (1 << 20)


@cache
def wide_network() -> ModuleType:
    """Return the module `sim.kernel.network`, as Python and without limits of its numbers.

    Examples
    --------
    >>> wide_network().BITS
    1024
    """
    rates, network = _source("maxmin"), _source("network")
    for name, value in {
        "LIMIT": 1 << _BITS,
        "MASK": (1 << _BITS) - 1,
        "BITS": _BITS,
        "WIDE": 1 << 2 * _BITS,
        "LARGEST": _UNLIMITED,
        "MaxMin": rates.MaxMin,
    }.items():
        setattr(network, name, value)
    rates.LIMIT = _UNLIMITED  # type: ignore[attr-defined]
    return network


def _source(name: str) -> ModuleType:
    """Return a module of the kernel of our own, from its source."""
    spec = spec_from_file_location(f"sim.kernel.wide_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
