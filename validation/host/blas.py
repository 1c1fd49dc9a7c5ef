"""One thread for BLAS: a kernel that spreads over all cores is not a kernel on one stream.

numpy's wheels bring an OpenBLAS that reads its environment when it is loaded, which has usually happened by
the time anybody cares; its own function changes the number later.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_PREFIXES: Final = ("scipy_openblas_", "openblas_")
_SUFFIXES: Final = ("64_", "_64_", "")


def _function(name: str) -> Callable[..., Any] | None:
    """Return a function of the OpenBLAS that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    libraries = map(ctypes.CDLL, sorted({line.split()[-1] for line in lines if "openblas" in line}))
    for library, prefix, suffix in itertools.product(libraries, _PREFIXES, _SUFFIXES):
        if found := getattr(library, f"{prefix}{name}{suffix}", None):
            return found  # type: ignore[no-any-return]
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
