"""Which fitted model prices a kernel on a GPU: its own, its chip's, its generation's, or that of unmeasured
GPUs.

::

    fits/h100-sxm.json ─┐                       own rows
    fits/a100-pcie-40   ├─► (table, dtype) ─► Model         another card of the chip        a little less sure
    fits/hopper.json    │                       GPUs of the generation, together
    fits/unmeasured     ┘                       all that were measured; then the nearest generation's

A file is written by ``python -m studies.kernels fit`` and has one line for each table and data type. A data
type without its own takes the most alike one's: bytes and peak stay its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from devices.cost.calibration import read_record
from devices.cost.general_kernels import GENERAL_DEMANDS
from devices.cost.kernel_model import ELEMENT_BYTES, Family, Model, Sheet, shift_model
from devices.cost.language_kernels import LANGUAGE_DEMANDS, beyond_l2_ns
from devices.describe.dtypes import DTYPES
from devices.presets import device_preset, yaml_beside
from sim.base.arrays import FloatArray
from sim.base.errors import InputError

SCHEMA: Final = "sim.kernel_fits/1"
FOLDER: Final = Path(__file__).parent / "fits"
_DESCRIBED: Final = yaml_beside(__file__, "families.yaml")
FAMILIES: Final[Mapping[str, Family]] = {
    name: Family.read(name, demand, _DESCRIBED[name])
    for name, demand in {**LANGUAGE_DEMANDS, **GENERAL_DEMANDS}.items()
}

LAYERS: Final = yaml_beside(__file__, "layers.yaml") or {}
LENDERS: Final = yaml_beside(__file__, "lenders.yaml")
GENERATIONS: Final[Mapping[str, str]] = LENDERS["generations"]
"""Generation -> the fit of its only measured GPU, or of several together."""
_LEAST_HBM: Final = 500e9
_FEW_COLUMNS: Final = 128.0
CHIP_WIDTH, HOST_WIDTH, DTYPE_WIDTH = 0.06, 0.1, 0.15
GENERATION_WIDTH, NEAREST_WIDTH = 0.13, 0.55
"""What a borrowed fit adds to the half width (log): another card of the chip or host, assumed; another data
type; another chip of the generation (of fp32 and rows: any), and one of another generation. With these two
80 % of kernels of GPUs left out are inside, on average over 115 tables (``studies/kernels/errors.md``)."""


@cache
def read_fits(name: str) -> Mapping[str, Any]:
    """Return the records of a file by "table dtype"; none where there is no such file.

    Raises
    ------
    InputError
        The file is of another schema.
    """
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        return {}
    found: Mapping[str, Any] = read_record(path, "a file of kernel fits", SCHEMA)["families"]
    return found


def fits() -> list[str]:
    """Return the names of the GPUs and generations that have a file."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def models_of(table: str, dtype: str, but: str = "") -> list[Model]:
    """Return the models of a table on each measured GPU (but one), in any data type, for this one."""
    gpus = [n for n in fits() if n not in (but, *GENERATIONS) and not n.startswith("unmeasured")]
    records = [r for n in gpus for key, r in read_fits(n).items() if key.split()[0] == table]
    return [replace(Model.from_json(FAMILIES[r["family"]], r), dtype=dtype) for r in records]


_ROWS_SUPPLY, _MOST_OF_DRAM = 13.9, 0.88
"""What DRAM of A100 and H100 has for an SM and cycle, in bytes. Norms, rope and activations were measured on
these in 16 bits: they take a third to half of DRAM's rate there, 6 to 8 bytes from L2: their SMs bound them,
and take more of a DRAM that has less for each. Of one that has more, nothing is known."""


class MeasuredKernel(NamedTuple):
    """A kernel that was measured on the GPU itself: sizes by name, and ns as its table has them."""

    table: str
    dtype: str
    sizes: tuple[tuple[str, Any], ...]
    ns: float


@dataclass(frozen=True)
class KernelFits:
    """The models of one GPU.

    Attributes
    ----------
    sheet : Sheet
        Its data sheet.
    like : str
        Preset whose fits it takes; empty: those of unmeasured GPUs.
    measured : tuple of MeasuredKernel
        Towards which the models of their tables move.
    models : dict
        By table and data type, those that were asked for.

    Examples
    --------
    >>> from devices.cost.kernel_costs import load_fits
    >>> h200 = load_fits("h200-sxm")
    >>> ns, half_width = h200.predict("products", "bf16", m=4096, n=4096, k=4096)
    >>> bool(150_000 < ns[0] < 250_000 and 0.02 < half_width[0] < 0.3)
    True
    """

    sheet: Sheet = field(hash=False)  # its peaks are a mapping
    like: str = ""
    measured: tuple[MeasuredKernel, ...] = ()
    models: dict[tuple[str, str], Model] = field(default_factory=dict, compare=False, repr=False)

    def model(self, table: str, dtype: str) -> Model:
        """Return the model of a table, such as ``products``, in a data type."""
        if (table, dtype) not in self.models:
            self.models[table, dtype] = self._move(table, dtype, self._find(table, dtype))
        return self.models[table, dtype]

    def predict(self, table: str, dtype: str, **sizes: Any) -> tuple[FloatArray, FloatArray]:
        """Return nanoseconds, as measured back to back, and the log half width of the 10-90 % interval.

        Parameters
        ----------
        table : str
            ``products``, ``prefill``, ``decode``, ``bmm``, ``elementwise`` ...
        dtype : str
        **sizes : array_like
            What the table's family asks for; plain numbers are one row.
        """
        words = {name: size for name, size in sizes.items() if isinstance(size, str)}
        numbers = {name: np.asarray(size, float) for name, size in sizes.items() if name not in words}
        wide = np.broadcast_arrays(np.zeros(1), *numbers.values())[1:]
        columns = dict(zip(numbers, wide, strict=True)) | words
        ns, half_width = self.model(table, dtype).predict(columns, self.sheet)
        least = beyond_l2_ns(columns, self.sheet, dtype) if table == "products" else 0
        return np.maximum(ns, least), half_width

    def quantizing_ns(self, dtype: str, **sizes: Any) -> FloatArray:
        """Return how long a measured product of 8 or 4 bits quantizes its left matrix, as vLLM's layers do.

        With few columns it does little else: what is left is half of what 16 bits take. A product without it
        is 6 % off the best in fp8 that five GPUs reach (six rows of github.com/stas00/ml-engineering,
        compute/accelerator, on which nothing was chosen), with it 39 %.
        """
        if ELEMENT_BYTES[dtype] >= ELEMENT_BYTES["bf16"]:
            return np.zeros(1)
        few = {**sizes, "n": np.minimum(sizes["n"], _FEW_COLUMNS)}
        total, product_alone = (self.predict("products", name, **few)[0] for name in (dtype, "bf16"))
        return np.maximum(0.0, total - product_alone / 2)

    def _move(self, table: str, dtype: str, model: Model) -> Model:
        """Return a model moved towards the measured kernels of its table; 16 bits count for both formats."""
        formats = {"bf16", "fp16"} if dtype in ("bf16", "fp16") else {dtype}
        kernels = [kernel for kernel in self.measured if kernel.table == table and kernel.dtype in formats]
        if not kernels:
            return model
        rows = [dict(kernel.sizes) for kernel in kernels]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        sizes = {n: x[0] if isinstance(x[0], str) else np.array(x) for n, x in columns.items()}
        ns = np.array([kernel.ns for kernel in kernels])
        return shift_model(model, sizes, self.sheet, ns, models_of(table, dtype))

    def lender(self, table: str, dtype: str) -> tuple[str, str]:
        """Return on which GPU (or generation), and in which data type, a table was measured that stands here.

        Examples
        --------
        >>> from devices.cost.kernel_costs import load_fits
        >>> load_fits("gb200").lender("products", "mxfp8"), load_fits("gb300").lender("products", "bf16")
        (('gb200', 'fp8'), ('blackwell', 'bf16'))
        >>> load_fits("mi250").lender("products", "fp8")  # which it computes in fp16
        ('mi300x', 'bf16')
        >>> load_fits("mi250").lender("elementwise", "fp32")  # before those of NVIDIA's GPUs
        ('mi300x', 'fp32')
        """
        return self._record(table, dtype)[:2]

    def _find(self, table: str, dtype: str) -> Model:
        name, other, record, width = self._record(table, dtype)
        like = other == dtype or {other, dtype} == {"bf16", "fp16"}
        model = Model.from_json(FAMILIES[record["family"]], record)
        if record["family"] == "llm_rows" and name.startswith("unmeasured"):
            supply = self.sheet.dram_bytes_per_s / (self.sheet.sms * self.sheet.clock_hz)
            share = model.parameters.dram_share * max(1.0, _ROWS_SUPPLY / supply)
            parameters = replace(model.parameters, dram_share=min(_MOST_OF_DRAM, share))
            model = replace(model, parameters=parameters)
        model = replace(model, dtype=dtype, layers=LAYERS.get(f"{table} {other}", {}))
        return model.wider(width).wider(0.0 if like else DTYPE_WIDTH)

    def _record(self, table: str, dtype: str) -> tuple[str, str, Mapping[str, Any], float]:
        """Return GPU and data type of a table's model, its record, and what it adds to the half width."""
        near, far = self._sources()
        measured = (key.split() for name, _ in (*near, *far) for key in read_fits(name))
        others = [other for fitted_table, other in measured if fitted_table == table]  # better than nothing
        rated = self.sheet.rate_dtype(dtype)
        wider = table == "products" and ELEMENT_BYTES.get(rated, 0) > ELEMENT_BYTES[dtype]
        computed = (rated, *DTYPES[rated].get("fits", ())) if wider else ()  # it has no such arithmetic
        like = DTYPES.get(dtype, {}).get("fits", ("fp32", "bf16", "fp16"))
        alike = dict.fromkeys((*computed, dtype, *like, *others))
        for other, (name, width) in (*product(alike, near), *product(alike, far)):
            record = read_fits(name).get(f"{table} {other}")
            if record is not None and (width != HOST_WIDTH or (table, other) == ("products", "fp8_block")):
                return name, other, record, width
        raise InputError(f"no GPU was measured with {table} in {dtype}")

    def _sources(self) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """Return files that may have a table, near and far, and what each adds to the half width."""
        halved = self.sheet.is_half_rate("fp16")
        generation = LENDERS["half_rate"] if halved else str(self.sheet.generation)
        small = self.like in LENDERS["small_memory"]
        small |= not self.like and self.sheet.dram_bytes_per_s < _LEAST_HBM
        lent = _lent_width(self.like, self.sheet.name, generation)
        chip = float(np.hypot(lent, CHIP_WIDTH))
        near = [(self.like, lent)]
        near += [(other, chip) for other in LENDERS["same_chip"].get(self.like, ())]
        if self.like in LENDERS["same_host"]:
            near.append((LENDERS["same_host"][self.like], HOST_WIDTH))
        general = ("unmeasured_gddr" if small else "unmeasured_hbm", "unmeasured")
        nearest = LENDERS["nearest"].get(generation, ("hopper", "ampere"))
        others = [GENERATIONS[name] for name in nearest]
        if generation.startswith("cdna"):  # of another maker than the general ones, which are NVIDIA's
            others += general
        else:
            near += [(name, 0.0) for name in general]
        if generation in GENERATIONS:
            pooled = GENERATIONS[generation] in GENERATIONS
            near.append((GENERATIONS[generation], 0.0 if pooled else GENERATION_WIDTH))
        return near, [(name, NEAREST_WIDTH) for name in others]


def _lent_width(like: str, gpu: str, generation: str) -> float:
    """Return what the fits of another GPU, named in place of a GPU's own, add to the half width."""
    if like in ("", gpu) or like.startswith("unmeasured"):
        return 0.0
    if like in LENDERS["same_chip"].get(gpu, ()):
        return CHIP_WIDTH
    lender = like if like in GENERATIONS else device_preset(like)["generation"]
    if GENERATIONS.get(lender, lender) != GENERATIONS.get(generation, generation):
        return NEAREST_WIDTH
    return 0.0 if like == lender else GENERATION_WIDTH
