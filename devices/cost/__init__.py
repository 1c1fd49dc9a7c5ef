"""What an op costs on a device: rooflines, measured tables, and models fitted to them.

::

    formulas/roofline    peaks, efficiencies, saturation      when nothing was measured
    tables/cost_table    measured shapes, and between them    when the shapes were measured
    formulas/gemm        tiles and waves of a product         where no table is at hand
    formulas/attention   prefill attention                    likewise
    formulas/nccl        collectives within a node            likewise
    fitted               their parameters for a device
    unreliable           where any of them may be off by more than a factor of 2

``docs/costs.md`` tells how far each is off. Importing this package imports numpy and nothing heavier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.words.lazy import lazy

if TYPE_CHECKING:
    from devices.cost.fitted import FittedCosts, load_fit
    from devices.cost.formulas.attention import AttentionParameters, attention_ns
    from devices.cost.formulas.gemm import GemmParameters, gemm_ns
    from devices.cost.formulas.roofline import KindEfficiency, roofline_ns
    from devices.cost.tables.cost_table import Axis, CostTable, ExtrapolationWarning
    from devices.cost.tables.table_file import load_table, save_table
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
    "UnreliableCostWarning",
    "attention_ns",
    "gemm_ns",
    "load_fit",
    "load_table",
    "roofline_ns",
    "save_table",
]

_WHERE: Final = {
    "AttentionParameters": "devices.cost.formulas.attention",
    "Axis": "devices.cost.tables.cost_table",
    "CostTable": "devices.cost.tables.cost_table",
    "ExtrapolationWarning": "devices.cost.tables.cost_table",
    "FittedCosts": "devices.cost.fitted",
    "GemmParameters": "devices.cost.formulas.gemm",
    "KindEfficiency": "devices.cost.formulas.roofline",
    "PlainRooflineWarning": "devices.cost.unreliable",
    "UnreliableCostWarning": "devices.cost.unreliable",
    "attention_ns": "devices.cost.formulas.attention",
    "gemm_ns": "devices.cost.formulas.gemm",
    "load_fit": "devices.cost.fitted",
    "load_table": "devices.cost.tables.table_file",
    "roofline_ns": "devices.cost.formulas.roofline",
    "save_table": "devices.cost.tables.table_file",
}

__getattr__ = lazy(__name__, _WHERE)
