"""Whose mistake an unexpected error is: this program's, or that of a class that the user named.

::

    scenarios/cli/... ─► sim/engine/engine.py ─► shortest.py:19 ─► heapq.py      theirs
    scenarios/cli/... ─► sim/engine/engine.py ─► numpy/...                       ours
"""

from __future__ import annotations

import sysconfig
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from sim.words.plugins import GROUPS

__all__ = ["place_of_other_code"]

_ROOT: Final = Path(__file__).resolve().parents[3]
_OURS: Final = ("sim", "devices", "policies", "scenarios", "validation", "studies")


def place_of_other_code(error: BaseException) -> str | None:
    """Return the file and line at which code of others went wrong; None where the mistake is ours.

    It is theirs if, of the calls that led there, the last of ours was before the last of theirs. Libraries
    are neither, but for packages that register plugins.
    """
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    plugins = {each.module.split(".")[0] for group in GROUPS for each in entry_points(group=group)}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        package = str(frame.f_globals.get("__name__")).split(".")[0]
        if package in _OURS and (not file.is_absolute() or file.is_relative_to(_ROOT)):
            return None
        library = any(file.is_relative_to(folder) for folder in libraries) and package not in plugins
        if file.is_file() and not library:
            return f"{file}:{line}"
    return None
