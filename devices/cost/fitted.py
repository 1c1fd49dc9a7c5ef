"""Cost models with the parameters of a device, read from a file of fitted values.

``<device>_fit.json`` lies beside this module, is written by ``python -m studies.h200.fit``, and has the
schema ``sim.fitted_costs/1``: for each model its parameters (value, unit, meaning), where the measurements
came from and what they contain (`devices.cost.measured`), the cross-validated errors, the worst shapes, and
the regions where the model is known to be off by more than a factor of 2. Asked for a shape in such a
region, it answers and says so (:class:`devices.cost.unreliable.UnreliableCostWarning`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from devices.cost.attention import AttentionParameters, attention_axes, attention_ns
from devices.cost.collective_fit import NcclParameters, collective_ns
from devices.cost.gemm import GemmParameters, gemm_ns
from devices.cost.measured import Measured, read_record, well_formed
from devices.cost.parameters import from_mapping
from devices.cost.roofline import KindEfficiency
from devices.cost.unreliable import UnreliableCostWarning
from sim.base.errors import UnknownNameError

IntArray = NDArray[np.int64]
SCHEMA = "sim.fitted_costs/1"
_FOLDER = Path(__file__).parent
_SUFFIX = "_fit.json"


@dataclass(frozen=True)
class Region:
    """Shapes for which a model is not to be trusted.

    Attributes
    ----------
    model : {"gemm", "attention"}
    where : mapping of str to (int, int)
        Inclusive ranges per size; a size that is not named may be anything.
    because : str
        What goes on there, and how far off the model is.
    """

    model: str
    where: Mapping[str, tuple[int, int]]
    because: str

    def contains(self, sizes: Mapping[str, ArrayLike]) -> NDArray[np.bool_]:
        """Return which shapes lie inside; `sizes` has an array for each name in `where`.

        Examples
        --------
        >>> Region("gemm", {"m": (1, 7)}, "why").contains({"m": [1, 8], "n": [64, 64]}).tolist()
        [True, False]
        """
        inside: NDArray[np.bool_] = np.ones(np.broadcast_shapes(*map(np.shape, sizes.values())), np.bool_)
        for name, (low, high) in self.where.items():
            size = np.asarray(sizes[name])
            inside = inside & (low <= size) & (size <= high)
        return inside


@dataclass(frozen=True)
class FittedCosts:
    """The models of one device.

    Attributes
    ----------
    device : str
        ``"NVIDIA H200"``.
    gemm, attention, collective : GemmParameters, AttentionParameters, NcclParameters
        The fitted values.
    roofline : mapping of str to KindEfficiency
        Kind of op, ``matmul`` or ``attention`` → its fitted losses against the roofline of the data sheet.
    unreliable : tuple of Region
        Where the models are known to be wrong by more than a factor of 2.
    measured : Measured
        In which data types, and what a duration contains besides the kernel.
    record : mapping
        The whole file: provenance, protocol, errors of every fold, worst shapes.

    Examples
    --------
    One token through a layer of 4096 inputs and 6144 outputs was measured to take 16.1 µs.

    >>> h200 = load_fit("h200")
    >>> abs(int(h200.gemm_ns(1, 6144, 4096)) / 16_100 - 1) < 0.1
    True
    """

    device: str
    gemm: GemmParameters
    attention: AttentionParameters
    collective: NcclParameters
    roofline: Mapping[str, KindEfficiency]
    unreliable: tuple[Region, ...]
    measured: Measured
    record: Mapping[str, Any]

    def gemm_ns(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, *, sm_count: int = 132) -> IntArray:
        """Return :func:`devices.cost.gemm.gemm_ns` with this device's parameters.

        Warns
        -----
        UnreliableCostWarning
            A shape lies in a region where the model is known to be off by more than a factor of 2.
        """
        self._say_so("gemm", {"m": m, "n": n, "k": k})
        return gemm_ns(m, n, k, self.gemm, sm_count=sm_count)

    def attention_ns(
        self,
        batch: ArrayLike,
        seq_len: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: ArrayLike,
        *,
        window: ArrayLike = 0,
        sm_count: int = 132,
    ) -> IntArray:
        """Return :func:`devices.cost.attention.attention_ns` with this device's parameters.

        Warns
        -----
        UnreliableCostWarning
            A shape lies in a region where the model is known to be off by more than a factor of 2.
        """
        sizes = (batch, seq_len, heads, kv_heads, head_dim)
        duration = attention_ns(*sizes, self.attention, window=window, sm_count=sm_count)
        self._say_so("attention", attention_axes(*sizes, window))
        return duration

    def collective_ns(self, collective: str, ranks: ArrayLike, nbytes: ArrayLike) -> IntArray:
        """Return :func:`devices.cost.collective_fit.collective_ns` with this device's parameters."""
        return collective_ns(collective, ranks, nbytes, self.collective)

    def with_bandwidth(self, bytes_per_s: int) -> FittedCosts:
        """Return the models of the same chip with another memory: what is bound by it takes in proportion.

        Kernels reach the same share of either bandwidth; what is bound by the SMs, the L2 cache or latencies
        stays as it was fitted.

        Parameters
        ----------
        bytes_per_s : int
            The data sheet's, beside which that of the fitted device stands in ``peaks`` of its file.

        Examples
        --------
        One token through a layer is bound by memory, 4,096 tokens are not: an H100 has 0.7 of the bandwidth.

        >>> h200, h100 = load_fit("h200"), load_fit("h200").with_bandwidth(3_350_000_000_000)
        >>> [round(int(h200.gemm_ns(m, 8192, 8192)) / int(h100.gemm_ns(m, 8192, 8192)), 2) for m in (1, 4096)]
        [0.73, 1.0]
        """
        share = bytes_per_s / self.record["peaks"]["bandwidth_bytes_per_s"]

        def scaled(model: Any) -> Any:
            return replace(model, bandwidth_bytes_per_s=model.bandwidth_bytes_per_s * share)

        return self if share == 1 else replace(self, gemm=scaled(self.gemm), attention=scaled(self.attention))

    def _say_so(self, model: str, sizes: Mapping[str, ArrayLike]) -> None:
        for region in self.unreliable:
            if region.model == model and region.contains(sizes).any():
                ranges = ", ".join(
                    f"{name} {low}" if low == high else f"{name} {low} to {high}"
                    for name, (low, high) in region.where.items()
                )
                warnings.warn(
                    f"the {model} model of {self.device} is unreliable at {ranges}: {region.because}. "
                    "Use a measured table there",
                    UnreliableCostWarning,
                    stacklevel=3,
                )


def fits() -> list[str]:
    """Return the names of the devices that have a file of fitted values.

    Examples
    --------
    >>> fits()
    ['h200']
    """
    return sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}"))


def load_fit(name: str = "h200") -> FittedCosts:
    """Return the fitted costs of a device by name.

    Raises
    ------
    UnknownNameError
        No device of that name has been fitted.
    """
    if name not in fits():
        raise UnknownNameError("fitted device", name, fits())
    return read_fit(_FOLDER / f"{name}{_SUFFIX}")


def read_fit(path: str | Path) -> FittedCosts:
    """Return the fitted costs in a file that ``python -m studies.h200.fit`` wrote.

    Raises
    ------
    InputError
        The file is no such file; the message names it and what is wrong.
    """
    record = read_record(path, "a file of fitted costs", SCHEMA)
    with well_formed(path):
        return FittedCosts(
            device=record["device"],
            gemm=from_mapping(GemmParameters, record["parameters"]["gemm"]),
            attention=from_mapping(AttentionParameters, record["parameters"]["attention"]),
            collective=from_mapping(NcclParameters, record["parameters"]["collective"]),
            roofline={kind: KindEfficiency(**losses) for kind, losses in record["roofline"].items()},
            unreliable=tuple(
                Region(
                    one["model"], {k: (low, high) for k, (low, high) in one["where"].items()}, one["because"]
                )
                for one in record["unreliable"]
            ),
            measured=Measured.read(record["measured"]),
            record=record,
        )
