"""The cost of an op on a device: rooflines, measured tables, and models fitted to them.

::

    kernel_costs     the ops of a graph as kernels of a GPU, with uncertainty
    kernel_fits      the fit that prices a kernel: fits/*.json
    kernel_model     physics of a data sheet, times a fitted correction
    language_kernels, general_kernels                          the demands of each family on a GPU
    cost_table       measured shapes, with interpolation
    cost_models      fixed times, rooflines from peaks and efficiencies, several models in order
    unreliable       cases where one may be off by more than a factor of 2

``docs/costs.md`` has the error of each. Importing this package imports numpy and nothing heavier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.base.startup import lazy

if TYPE_CHECKING:
    from devices.cost.calibration import load_table, save_table
    from devices.cost.cost_table import Axis, CostTable
    from devices.cost.kernel_costs import FittedCost, load_fits
    from devices.cost.kernel_model import shift_model

__all__ = ["Axis", "CostTable", "FittedCost", "load_fits", "load_table", "save_table", "shift_model"]

_NAMES: Final = {
    "kernel_costs": ("FittedCost", "load_fits"),
    "kernel_model": ("shift_model",),
    "calibration": ("load_table", "save_table"),
    "cost_table": ("Axis", "CostTable"),
}

__getattr__ = lazy(__name__, {n: f"{__name__}.{module}" for module, names in _NAMES.items() for n in names})
