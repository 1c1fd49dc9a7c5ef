"""What a calibration has measured so far, in a file: one that is interrupted goes on where it was.

::

    calibration.part   {"backend": ..., "sentinel": 231000, "blocks": {"launch 0": {...samples}}, ...}

A block is in it when the machine left it in peace. The file is taken up again only while the sentinel is what
it was then: in another state it is another machine. It goes when the calibration is written.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from sim.base.files import write_text
from validation.real.gate import MAX_DRIFT

_SCHEMA: Final = "sim.calibration-part/1"


class Journal:
    """Blocks that are done.

    Parameters
    ----------
    backend : str
    path : Path, optional
        Where they are kept; None: nowhere.
    sentinel_ns : int, optional
        What the sentinel takes now.

    Attributes
    ----------
    taken_up : bool
        Whether blocks of an earlier session are in it.
    """

    def __init__(self, backend: str, path: Path | None = None, sentinel_ns: int | None = None) -> None:
        self.backend, self.path, self.sentinel_ns = backend, path, sentinel_ns
        self.sentinels: list[dict[str, Any]] = []
        self.taken_up = False
        self._blocks: dict[str, dict[str, list[float]]] = {}
        self._asked: Counter[str] = Counter()
        if path is not None and path.exists():
            self._take_up(json.loads(path.read_text()))

    def _take_up(self, content: dict[str, Any]) -> None:
        if (content.get("schema"), content.get("backend")) != (_SCHEMA, self.backend):
            return
        was, now = content["sentinel"], self.sentinel_ns
        if was and now and abs(now - was) > MAX_DRIFT[self.backend] * was:
            return
        self._blocks, self.sentinels = content["blocks"], content["sentinels"]
        self.taken_up = True

    def found(self, name: str) -> tuple[str, dict[str, list[float]] | None]:
        """Return the key of a block, which may come several times, and what it measured, if it is done."""
        key = f"{name} {self._asked[name]}"
        self._asked[name] += 1
        return key, self._blocks.get(key)

    def add(self, key: str, samples: dict[str, list[float]], sentinels: list[dict[str, Any]]) -> None:
        """Keep a block that is done, and all sentinels so far."""
        self._blocks[key], self.sentinels = samples, sentinels
        if self.path is not None:
            content = {
                "schema": _SCHEMA, "backend": self.backend, "sentinel": self.sentinel_ns,
                "blocks": self._blocks, "sentinels": sentinels,
            }  # fmt: skip
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(content))
