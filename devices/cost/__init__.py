"""What an op costs on a device: rooflines, measured tables, and models fitted to them.

::

    roofline.py     peaks, efficiencies, saturation      when nothing was measured
    table.py        measured shapes, and between them    when the shapes were measured
    gemm.py         tiles and waves of a product         where no table is at hand
    attention.py    prefill attention                    likewise
    nccl.py         collectives within a node            likewise
    fitted.py       their parameters for a device
    unreliable.py   where any of them may be off by more than a factor of 2

``docs/costs.md`` tells how far each is off. Importing this package imports numpy and nothing heavier.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from devices.cost.attention import AttentionParameters, attention_ns
    from devices.cost.fitted import FittedCosts, load_fit
    from devices.cost.gemm import GemmParameters, gemm_ns
    from devices.cost.roofline import KindEfficiency, Roofline, roofline_ns
    from devices.cost.table import Axis, CostTable, ExtrapolationWarning
    from devices.cost.table_file import load_table, save_table
    from devices.cost.unreliable import PlainRooflineWarning, UnreliableCostWarning

__all__ = [
    "AttentionParameters",
    "Axis",
    "CostTable",
    "ExtrapolationWarning",
    "FittedCosts",
    "GemmParameters",
    "KindEfficiency",
    "PlainRooflineWarning",
    "Roofline",
    "UnreliableCostWarning",
    "attention_ns",
    "gemm_ns",
    "load_fit",
    "load_table",
    "roofline_ns",
    "save_table",
]

_WHERE: Final = {
    "AttentionParameters": "devices.cost.attention",
    "Axis": "devices.cost.table",
    "CostTable": "devices.cost.table",
    "ExtrapolationWarning": "devices.cost.table",
    "FittedCosts": "devices.cost.fitted",
    "GemmParameters": "devices.cost.gemm",
    "KindEfficiency": "devices.cost.roofline",
    "PlainRooflineWarning": "devices.cost.unreliable",
    "Roofline": "devices.cost.roofline",
    "UnreliableCostWarning": "devices.cost.unreliable",
    "attention_ns": "devices.cost.attention",
    "gemm_ns": "devices.cost.gemm",
    "load_fit": "devices.cost.fitted",
    "load_table": "devices.cost.table_file",
    "roofline_ns": "devices.cost.roofline",
    "save_table": "devices.cost.table_file",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
