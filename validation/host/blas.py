"""One thread for BLAS: a kernel that spreads over all cores is not a kernel on one stream.

numpy's wheels bring an OpenBLAS that reads its environment when it is loaded, which has usually happened by
the time anybody cares; its own function changes the number later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["single_threaded_blas"]

_PREFIXES: Final = ("scipy_openblas_", "openblas_")
_SUFFIXES: Final = ("64_", "_64_", "")
_MAPS: Final = "/proc/self/maps"


def _function(name: str) -> Callable[..., Any] | None:
    """Return a function of the OpenBLAS that this process has loaded."""
    try:
        with open(_MAPS) as file:
            paths = {line.split()[-1] for line in file if "openblas" in line}
    except OSError:
        return None
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                function = getattr(library, f"{prefix}{name}{suffix}", None)
                if function is not None:
                    found: Callable[..., Any] = function
                    return found
    return None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Make numpy's products use one thread, where they use OpenBLAS."""
    threads, limit = _function("get_num_threads"), _function("set_num_threads")
    if threads is None or limit is None:
        yield
        return
    before = threads()
    limit(1)
    try:
        yield
    finally:
        limit(before)
