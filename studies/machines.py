"""The machines of the studies by name, from ``machines.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

MACHINES: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("machines.toml").read_text(encoding="utf-8")
)
