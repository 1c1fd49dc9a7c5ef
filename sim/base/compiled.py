"""Choose the form of a compiled module that runs: compiled, or the Python source it was compiled from.

``sim/kernel/NAME.py`` can always be imported as plain Python. If ``setup.py`` could compile it, there is also
``sim.kernel._NAME``, which carries the digest of its source (likewise for each folder in `FOLDERS`)::

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

FOLDERS = ("base", "kernel")
"""Folders of ``sim`` with compiled modules: those that have a file of types."""

_SIM = Path(__file__).parent.parent
_CHANGED = "its source has changed since it was compiled; install again, or run `make venv`"


def load(name: str, folder: str = "kernel") -> ModuleType:
    """Return a module, compiled if possible, otherwise the source.

    Parameters
    ----------
    name, folder
        As in ``sim/FOLDER/NAME.py``.

    Warns
    -----
    RuntimeWarning
        There is a compiled module, but it was compiled from a different source.
    """
    loaded = _load_compiled(f"sim.{folder}._{name}")
    if isinstance(loaded, ModuleType):
        return loaded
    if loaded == _CHANGED:
        warnings.warn(f"the kernel runs as pure Python: {_CHANGED}", RuntimeWarning, stacklevel=2)
    return import_module(f"sim.{folder}.{name}")


def state() -> str:
    """Return ``compiled``, or ``pure Python`` with the reason, as ``sim --version`` shows it."""
    for source in sources():
        loaded = _load_compiled(f"sim.{source.parent.name}._{source.stem}")
        if isinstance(loaded, str):
            return f"pure Python ({loaded})"
    return "compiled" if sources() else "pure Python"


def source_is_wanted() -> bool:
    """Whether the source should run even if there is a compiled module."""
    return os.environ.get("SIM_PURE", "0") not in ("", "0")


def sources(sim: Path = _SIM) -> list[Path]:
    """Return the sources of the compiled modules below the folder ``sim``."""
    types = (path for folder in FOLDERS for path in sim.joinpath(folder).glob("*.pxd"))
    return sorted(path.with_suffix(".py") for path in types if path.with_suffix(".py").exists())


def digest(sim: Path = _SIM) -> str:
    """Return a digest of all compiled sources together, because one module may contain parts of another.

    A CRC is enough to notice an edit, and importing `hashlib` would take longer than reading the sources.
    """
    checksum = 0
    for source in sources(sim):
        for path in (source, source.with_suffix(".pxd")):
            text = path.read_bytes()
            checksum = crc32(text, crc32(f"{path.name} {len(text)}\n".encode(), checksum))
    return f"{checksum:08x}"


def _load_compiled(name: str) -> ModuleType | str:
    """Return the compiled module, or why it is not used."""
    if source_is_wanted():
        return "SIM_PURE is set"
    try:
        module = import_module(name)
    except ModuleNotFoundError:
        return "not compiled where it was built"
    except ImportError as error:
        return str(error)
    return module if _own_digest() == module.SOURCE_DIGEST else _CHANGED


@cache
def _own_digest() -> str:
    """Return the digest of our own sources, cached because every run needs it."""
    return digest()
