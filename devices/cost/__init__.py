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
