"""Which form of a kernel module runs: the compiled one, or the Python source that it was compiled from.

``sim/kernel/NAME.py`` is always importable as what it is. Where ``setup.py`` could compile it, there is
``sim.kernel._NAME`` as well, which carries the digest of its source::

    source     loop.py + loop.pxd      --- digest --->   the same?    yes: sim.kernel._loop
    compiled   _loop.SOURCE_DIGEST     -------------->                no:  sim.kernel.loop, and a warning

``SIM_PURE=1`` in the environment chooses the source.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from zlib import crc32

__all__ = ["digest", "load", "source_is_wanted", "sources", "state"]

_FOLDER = Path(__file__).parent
_CHANGED = "its source has changed since it was compiled; install again, or run `make venv`"


def load(name: str) -> ModuleType:
    """Return module `name` of the kernel: compiled if it can be, else the source.

    Parameters
    ----------
    name
        As in ``sim/kernel/NAME.py``.

    Warns
    -----
    RuntimeWarning
        There is a compiled module, and it was compiled from another source.
    """
    found = _compiled(name)
    if isinstance(found, ModuleType):
        return found
    if found == _CHANGED:
        warnings.warn(f"the kernel runs as pure Python: {_CHANGED}", RuntimeWarning, stacklevel=2)
    return import_module(f"sim.kernel.{name}")


def state() -> str:
    """Return ``compiled``, or ``pure Python`` and why, as ``sim --version`` shows it."""
    for name in sources():
        found = _compiled(name)
        if isinstance(found, str):
            return f"pure Python ({found})"
    return "compiled" if sources() else "pure Python"


def source_is_wanted() -> bool:
    """Whether the source shall run even where it is compiled."""
    return os.environ.get("SIM_PURE", "0") not in ("", "0")


def sources(folder: Path = _FOLDER) -> list[str]:
    """Return the names of the modules that are compiled: those with a file of types."""
    return sorted(types.stem for types in folder.glob("*.pxd") if types.with_suffix(".py").exists())


def digest(folder: Path = _FOLDER) -> str:
    """Return the digest of all that is compiled: together, because one module may hold parts of another.

    A CRC is enough to notice an edit, and importing `hashlib` would take longer than reading the sources.
    """
    seen = 0
    for name in sources(folder):
        for suffix in (".py", ".pxd"):
            text = folder.joinpath(name).with_suffix(suffix).read_bytes()
            seen = crc32(text, crc32(f"{name}{suffix} {len(text)}\n".encode(), seen))
    return f"{seen:08x}"


def _compiled(name: str) -> ModuleType | str:
    """Return the compiled module, or why it is not used."""
    if source_is_wanted():
        return "SIM_PURE is set"
    try:
        module = import_module(f"sim.kernel._{name}")
    except ModuleNotFoundError:
        return "not compiled where it was built"
    except ImportError as error:
        return str(error)
    return module if _own_digest() == module.SOURCE_DIGEST else _CHANGED


@cache
def _own_digest() -> str:
    """Return the digest of our own sources, read once: every run asks."""
    return digest()
