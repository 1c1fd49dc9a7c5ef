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

from sim.base.startup import lazy

if TYPE_CHECKING:
    from devices.cost.attention import AttentionParameters, attention_ns
    from devices.cost.cost_table import Axis, CostTable, ExtrapolationWarning, load_table, save_table
    from devices.cost.fitted import FittedCosts, load_fit
    from devices.cost.gemm import GemmParameters, gemm_ns
    from devices.cost.roofline import KindEfficiency, roofline_ns
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

_NAMES: Final = {
    "fitted": ("FittedCosts", "load_fit"),
    "attention": ("AttentionParameters", "attention_ns"),
    "gemm": ("GemmParameters", "gemm_ns"),
    "roofline": ("KindEfficiency", "roofline_ns"),
    "cost_table": ("Axis", "CostTable", "ExtrapolationWarning", "load_table", "save_table"),
    "unreliable": ("PlainRooflineWarning", "UnreliableCostWarning"),
}

__getattr__ = lazy(__name__, {n: f"{__name__}.{module}" for module, names in _NAMES.items() for n in names})
