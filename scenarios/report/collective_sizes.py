"""Collectives by size: NCCL's choice, and estimated and measured times, as rows and as a picture.

If NCCL's choice is not known (other chips, GPUs without NVSwitches), the time is that of the fastest
algorithm over the links of the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from devices.collectives.formulas import Formula, node_of
from devices.collectives.measured import MeasuredTable
from devices.collectives.nccl_model import fitted_us, over_a_host
from devices.collectives.nccl_tuner import GENERATIONS, NcclChoice, tuner_of
from devices.collectives.schedules import RING_ROUNDS
from devices.machine import make_machine
from devices.presets import machine_preset
from sim.base.arrays import group_pairs
from sim.base.errors import InputError, in_file
from sim.base.units import format_bytes, round_half_up
from sim.machine.communicators import Call
from sim.machine.machine import Machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLLECTIVES_SCHEMA: Final = "sim.collectives/1"

KINDS: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "send")

_SIZE_POWERS: Final = range(10, 31)
"""Exponents of the sizes, as powers of two, if none were measured."""
_BUS_ROUNDS: Final = {**RING_ROUNDS, "all_to_all": 1}


class CollectiveRanks(NamedTuple):
    """The ranks that take part in a collective.

    Attributes
    ----------
    gpu : str or None
        GPU's name in NCCL's constants; None: NCCL's choice is not known for it.
    per_node : tuple of int
        Number of ranks on each node.
    machine : Machine or None
    devices : tuple of int
        Machine and indices of its devices, if NCCL's choice is not known.
    group : int or None
        ... and the number of ranks that are close together: in a node, or in a row of a torus.
    """

    gpu: str | None
    per_node: tuple[int, ...]
    machine: Machine | None = None
    devices: tuple[int, ...] = ()
    group: int | None = None

    @property
    def word(self) -> str:
        """Word for the ranks: GPUs or NPUs."""
        is_gpu = self.machine is None or self.machine.devices[self.devices[0]].kind == "gpu"
        return "GPUs" if is_gpu else "NPUs"


class Row(NamedTuple):
    """The known times of a collective of one size.

    Attributes
    ----------
    nbytes : int
    algorithm : str
    choice : NcclChoice or None
        NCCL's choice, with its own estimate.
    fitted_us, links_us, measured_us : float or None
        Time from rates fitted to measurements; from the links, if NCCL's choice is not known; from a table.
        None: unknown.
    """

    kind: str
    ranks: int
    nbytes: int
    algorithm: str
    choice: NcclChoice | None
    fitted_us: float | None
    links_us: float | None
    measured_us: float | None

    @property
    def tuner_us(self) -> float | None:
        """NCCL's own estimate."""
        return None if self.choice is None else self.choice.estimate_us

    @property
    def best_us(self) -> float:
        """Best estimate without a measurement."""
        estimates = (self.fitted_us, self.tuner_us, self.links_us)
        return next((us for us in estimates if us is not None), 0.0)

    def bus_gb_per_s(self, us: float | None) -> float | None:
        """Return nccl-tests' bus bandwidth, carried by each rank's links, from a time."""
        rounds = _BUS_ROUNDS.get(self.kind)
        share = 1.0 if rounds is None else rounds * (self.ranks - 1) / self.ranks
        return None if not us else share * self.nbytes / us / 1000

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data: times in ns, bus bandwidths in bytes/s."""
        values: dict[str, Any] = {
            "bytes": self.nbytes,
            "algorithm": self.algorithm,
            **{key: getattr(self.choice, key, None) for key in ("protocol", "channels", "threads")},
        }
        for name in ("tuner", "fitted", "links", "measured"):
            us = getattr(self, f"{name}_us")
            bus = self.bus_gb_per_s(us)
            values[f"{name}_ns"] = None if us is None else round_half_up(us * 1000)
            values[f"{name}_bus_bytes_per_s"] = None if bus is None else round_half_up(bus * 1e9)
        return values


def ranks_of_nodes(preset: str, nodes: int, ranks: int | None) -> CollectiveRanks:
    """Return the ranks of a collective: the first GPUs or NPUs of each node, equally many on each.

    Raises
    ------
    InputError
        The machine has no such devices, or the nodes do not have that many ranks in equal numbers.
    """
    machine = make_machine({"preset": preset})
    accelerators = [machine.positions[name] for name in machine.accelerators]
    if not accelerators:
        raise InputError(f"--machine {preset}: has no GPU and no NPU that could take part")
    count = len(accelerators) * nodes if ranks is None else ranks
    if count < 2:
        raise InputError(f"--ranks {count}: a collective needs two ranks")
    if count % nodes or count // nodes > len(accelerators):
        nodes_text = "1 node has" if nodes == 1 else f"{nodes} nodes have"
        word = f"1 to {len(accelerators)} {machine.devices[accelerators[0]].kind.upper()}s"
        raise InputError(f"--ranks {count}: {nodes_text} {word} each, the same number on every node")
    per_node = count // nodes
    described = [str(spec.get("preset", "")) for spec in machine_preset(preset).get("devices", {}).values()]
    chips = (name.split("-")[0] for name in described)
    nccl_name = next((chip for chip in chips if chip in GENERATIONS), None)
    if nccl_name is not None and over_a_host(machine, accelerators) is None:
        return CollectiveRanks(nccl_name, (per_node,) * nodes)
    if nodes > 1:
        with in_file(f"--machine {preset} --nodes {nodes}"):
            machine = make_machine({"preset": preset, "nodes": nodes})
    of_node = group_pairs((node_of(name), machine.positions[name]) for name in machine.accelerators)
    devices = tuple(k for some in of_node.values() for k in some[:per_node])
    row = machine_preset(preset).get("topology", {}).get("shape", [1])[-1]
    group = per_node if nodes > 1 else row
    return CollectiveRanks(None, (per_node,) * nodes, machine, devices, group if group > 1 else None)


def sizes_around(nbytes: int | None, measured: Iterable[int]) -> list[int]:
    """Return the sizes of a table: the measured ones, or powers of two; and the requested one."""
    sizes = set(measured) or {1 << k for k in _SIZE_POWERS}
    return sorted(sizes | ({nbytes} if nbytes is not None else set()))


def row_of(
    kind: str, ranks: CollectiveRanks, nbytes: int, table: MeasuredTable | None, links: Formula
) -> Row:
    """Return the row of a collective of one size; `links` times it if NCCL's choice is not known."""
    n = sum(ranks.per_node)
    choice = fitted = by_links = measured = None
    if ranks.machine is None:
        assert ranks.gpu is not None
        choice = tuner_of(ranks.gpu, ranks.per_node).choose(kind, nbytes)
        fitted = fitted_us(ranks.gpu, kind, ranks.per_node, nbytes, choice)
        algorithm = choice.algorithm
    else:
        call = Call(kind, nbytes, ranks.devices, ranks.devices[0])
        algorithm = links.best(call, ranks.machine).algorithm
        by_links = links.time_ns(call, ranks.machine) / 1000
    if table is not None and table.spans(kind, n, nbytes):
        measured = table.time_us(kind, n, nbytes)
    return Row(kind, n, nbytes, algorithm, choice, fitted, by_links, measured)


_MARKS: Final = {"ll": "o", "ll128": "s", "simple": "^", "none": "o", "": "o"}
_COLOURS: Final = {
    "ring": 0,
    "direct": 0,
    "nvls": 1,
    "tree": 2,
    "nvls-tree": 3,
    "pat": 4,
    "halving-doubling": 5,
    "hierarchical": 6,
}
"""Indices among Okabe and Ito's colours; algorithms without one are grey."""


def draw_sizes(rows: Sequence[Row], title: str, ax: Axes | None = None) -> Axes:
    """Draw bus bandwidth by size: NCCL's estimate, marked by its choice, beside fitted and measured times.

    Parameters
    ----------
    rows : sequence of Row
    title : str
    ax : Axes, optional
    """
    from sim.plot.figure import axes_or_new
    from sim.plot.legend import add_legend
    from sim.plot.theme import OKABE_ITO, ink, plain

    ax = axes_or_new(ax, width=8.0, height=4.5)
    lines = (
        ("NCCL's own estimate", "0.6", "-", [row.tuner_us for row in rows]),
        ("by the links", "0.6", "-", [row.links_us for row in rows]),
        ("fitted", ink(), "-", [row.fitted_us for row in rows]),
        ("measured", OKABE_ITO[5], "x", [row.measured_us for row in rows]),
    )
    for name, colour, style, times in lines:
        curve = [(row.nbytes, row.bus_gb_per_s(us)) for row, us in zip(rows, times, strict=True) if us]
        if curve:
            ax.plot(*zip(*curve, strict=True), style, color=colour, label=name, zorder=3)
    by_choice = group_pairs(((row.algorithm, row.choice.protocol if row.choice else ""), row) for row in rows)
    for (algorithm, protocol), points in by_choice.items():
        colour = OKABE_ITO[_COLOURS[algorithm]] if algorithm in _COLOURS else "0.5"
        rates = [row.bus_gb_per_s(row.tuner_us or row.links_us) or 0.0 for row in points]
        sizes, name = [row.nbytes for row in points], f"{algorithm}, {protocol}" if protocol else algorithm
        ax.scatter(sizes, rates, 22, colour, marker=_MARKS[protocol], label=name, zorder=4)
    ax.set_xscale("log", base=2)
    ax.set_ylim(bottom=0)
    marks = [row.nbytes for row in rows]
    low, high = min(marks).bit_length() - 1, max(marks).bit_length() - 1
    ticks = [1 << k for k in range(low, high + 1, max(1, (high - low) // 9))]
    ax.set_xticks(ticks, [format_bytes(tick, iec=True, digits=3) for tick in ticks], fontsize=8)
    ax.minorticks_off()
    ax.set_xlabel("size")
    ax.set_ylabel("bus bandwidth (GB/s)")
    plain(ax, title)
    add_legend(ax, alone=True)
    return ax
