"""What was used of a machine, drawn: links, rooflines, the critical path; dark, printed, and colour-blind."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from drawn_runs import draw_run
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from scenario_texts import GOOD, write
from typer import Context
from typer.main import get_group

from devices.cost.cost_models import FirstCost, FixedCost, RooflineCost
from devices.cost.npu_tiles import TiledCost
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from scenarios.cli import app
from sim import Device, GraphBuilder, Link, Machine, Trace, simulate
from sim.base.errors import InputError, UnknownNameError
from sim.explain.communication import link_loads
from sim.metrics import link_use
from sim.plot import compare_gantt, gantt, link_heat_map, roofline, theme, utilisation
from sim.plot.html import gantt_data
from sim.plot.theme import _KNOWN, FAMILIES, LAUNCH, OKABE_ITO, TRANSFER, WAITING, colour_of, shade
from sim.plot.utilisation import USE_COLOURS, op_points


def two_transfers(sharing: str = "shared") -> Trace:
    """Return a run in which a link carries 1,000 bytes for `b` and for `c`, half as fast at once."""
    b = GraphBuilder("moved")
    for name, ns in (("a", 100), ("a2", 100)):
        b.op(name, duration_ns=ns, device=f"x{name[1:]}", outputs=1000)
    b.op("b", duration_ns=100, device="y", inputs=["a", "a2"])
    links = (
        Link("in", "x", "s", 0, 10**9, sharing=sharing),
        Link("in2", "x2", "s", 0, 10**9, sharing=sharing),
        Link("out", "s", "y", 0, 10**9, sharing=sharing),
    )
    machine = Machine(tuple(map(Device, ("x", "x2", "y", "s"))), links, network=make_network)
    return simulate(b.build(), machine, ReadyQueue())


def test_loads_of_links_that_share() -> None:
    loads = {load.link: load for load in link_loads(two_transfers())}
    assert loads["in"].share.tolist() == [0.0, 0.5, 0.0, 0.0], "the way out is shared by two"
    assert loads["out"].share.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert loads["out"].times_ns.tolist() == [0, 100, 2100, 2200]
    assert loads["out"].means(np.array([0, 100, 200, 2200])).tolist() == pytest.approx([0, 1, 0.95])


@pytest.mark.parametrize("seed", range(6))
def test_loads_add_up_to_the_bytes(seed: int) -> None:
    trace = draw_run(seed)
    use, until = link_use(trace), max(trace.makespan_ns, 1)
    for load in link_loads(trace):
        assert load.nbytes == use[load.link].nbytes
        whole = load.means(np.array([0, until]))[0] * until / 1e9 * load.bytes_per_s
        assert whole == pytest.approx(load.nbytes, rel=0.01, abs=1)
        assert (load.share >= 0).all()


def test_a_heat_map_has_a_row_for_each_link() -> None:
    ax = link_heat_map(two_transfers(), title="run")
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "in  45.5 %",
        "in2  45.5 %",
        "out  90.9 %",
    ]
    (mesh,) = ax.collections[:1]
    shares = mesh.get_array()
    assert shares is not None
    assert shares.max() == pytest.approx(100)
    assert ax.get_title(loc="left") == "run"
    with pytest.raises(InputError, match="no link with a bandwidth"):
        link_heat_map(computed())


def computed(cost: Any = None, device: str = "gpu0") -> Trace:
    """Return a run of two ops of 1,000 bytes: 4,000 flop in bf16, and 500 in fp32."""
    b = GraphBuilder("two")
    b.op("a", kind="matmul", dtype="bf16", flops=4000, bytes_read=600, bytes_written=400, duration_ns=2000)
    b.op("b", kind="add", dtype="fp32", flops=500, bytes_read=600, bytes_written=400, duration_ns=1000)
    b.op("c", kind="copy", bytes_read=600, bytes_written=400, duration_ns=1000)
    return simulate(b.build(), Machine((Device(device, cost=cost),)), ReadyQueue())


ROOF = RooflineCost({"bf16": 4 * 10**9, "fp32": 10**9}, bandwidth_bytes_per_s=10**9)


@pytest.mark.parametrize(
    ("cost", "peaks", "bandwidth"),
    [
        (None, [np.nan, np.nan], np.nan),
        (FixedCost(1000), [np.nan, np.nan], np.nan),
        (ROOF, [4e9, 1e9], 1e9),
        (FirstCost((FixedCost(1000), ROOF)), [4e9, 1e9], 1e9),
        (TiledCost(peak_flop_per_s=({"fp32": 3 * 10**9}, {"fp32": 2 * 10**9}), cores=2), [6e9, 4e9], np.nan),
    ],
)
def test_roofs_are_those_of_the_cost_model(cost: Any, peaks: list[float], bandwidth: float) -> None:
    trace = computed(cost)
    (points,) = op_points(trace)
    assert points.op.tolist() == [0, 1], "a copy computes nothing"
    assert points.intensity.tolist() == [4.0, 0.5]
    assert points.flop_per_s.tolist() == [2e9, 5e8]
    np.testing.assert_array_equal(points.roof_flop_per_s, peaks)
    np.testing.assert_equal(points.roof_bytes_per_s, bandwidth)
    texts = {text.get_text() for text in roofline(trace).texts}
    assert {text.get_ha() for text in roofline(trace).texts} <= {"right"}, (
        "above a rising roof: ops are below"
    )
    names = {"bf16: 4 GFLOP/s", "fp32: 1 GFLOP/s", "1 GB/s"} if cost is ROOF else set()
    assert names <= texts
    assert bool(texts) == (not np.isnan(peaks[0]))


def test_the_name_of_a_roof_is_above_the_dots_on_it() -> None:
    ax = roofline(computed(ROOF))
    radius = max((dots.get_sizes().max() / np.pi) ** 0.5 for dots in ax.collections)
    heights = [text.xyann[1] for text in ax.texts if "FLOP/s" in text.get_text()]
    assert len(heights) == 2
    assert min(heights) > radius > 5


def test_the_roofline_says_what_it_leaves_out() -> None:
    assert roofline(computed(), title="two").get_title(loc="left") == (
        "two; not shown: 1 op without flop or bytes"
    )


def test_all_that_is_not_on_the_critical_path_is_pale() -> None:
    b = GraphBuilder("fork")
    b.op("a", kind="long", duration_ns=100, device="x")
    b.op("b", kind="short", duration_ns=10, device="y")
    b.op("c", kind="last", duration_ns=50, device="y", inputs=["a", "b"])
    trace = simulate(b.build(), Machine((Device("x"), Device("y"))), ReadyQueue())
    ax = gantt(trace, critical_path=True)
    bars, framed = ax.collections
    assert [alpha for *_, alpha in bars.get_facecolor()] == [1.0, pytest.approx(0.2), 1.0]
    assert len(framed.get_paths()) == 2, "the long and the last"
    rim, line = ax.lines
    assert list(zip(*line.get_data(), strict=True)) == [(100, 0.4), (100, 0.6)]
    assert rim.get_linewidth() > line.get_linewidth()
    assert len(gantt(trace).collections) == 1


def test_dark_paper_and_print() -> None:
    trace = computed()
    with theme("dark"):
        figure = compare_gantt(trace)
        assert figure.get_facecolor()[:3] != (1, 1, 1)
        assert figure.axes[0].xaxis.label.get_color() == "#E6E6E6"
        assert shade("#332288") != "#332288", "it would not be seen"
    assert compare_gantt(trace).get_facecolor()[:3] == (1, 1, 1)
    with theme("print"):
        hatched = [each.get_hatch() for each in gantt(trace).collections]
        assert len(hatched) == len(set(hatched)) == 3, "each kind has one of its own"
        assert utilisation(trace).patches[0].get_hatch() != utilisation(trace).patches[-1].get_hatch()
    with (
        pytest.raises(UnknownNameError, match="unknown theme 'drak'; did you mean 'dark'"),
        theme("drak"),
    ):
        pass


def test_every_verb_that_draws_takes_a_theme(tmp_path: Path) -> None:
    verbs = get_group(app)
    drawing = {
        name
        for name in verbs.list_commands(Context(verbs))
        for param in verbs.commands[name].params
        if any(word in (getattr(param, "help", "") or "") for word in (".svg", "page (.html)"))
    }
    drawing.add("validate")  # into the folder of its report
    themed = {name for name in drawing if any(param.name == "theme" for param in verbs.commands[name].params)}
    assert themed == drawing >= {"run", "compare", "diff", "whatif", "tune", "sweep", "collectives"}
    scenario = write(tmp_path, GOOD)
    dark, light, page = (tmp_path / name for name in ("dark.png", "light.png", "page.html"))
    assert sim("run", scenario, "--theme", "dark", "--gantt", dark, "--gantt", page).exit_code == 0
    assert sim("run", scenario, "--theme", "light", "--gantt", light).exit_code == 0
    corner = [[round(255 * part) for part in imread(path)[-1, -1, :3].tolist()] for path in (dark, light)]
    assert corner == [[0x1C, 0x1E, 0x22], [255, 255, 255]]
    assert '"theme":"dark"' in page.read_text(encoding="utf-8")
    assert gantt_data({"": computed()})["theme"] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--theme", "drak", "--gantt", "a.png"],
            "--theme: unknown theme 'drak'; did you mean 'dark'? Known",
        ),
        (
            ["--theme", "dark"],
            "--theme dark: is how a picture looks; name the file of one (--gantt, --memory",
        ),
    ],
)
def test_a_theme_in_vain(tmp_path: Path, options: list[str], told: str) -> None:
    result = sim("run", write(tmp_path, GOOD), *options)
    assert (result.exit_code, result.stderr[: len(told)]) == (2, told)


def test_dark_paper_turns_greys_over_and_lifts_what_is_dark() -> None:
    with theme("dark"):
        assert [shade(colour) for colour in (colour_of(TRANSFER), colour_of(WAITING))] == [
            "#f4f4f4",
            "#3a3d44",
        ]
        lifted = to_rgb(shade(colour_of("all_reduce")))
        assert 0.3 * lifted[0] + 0.59 * lifted[1] + 0.11 * lifted[2] == pytest.approx(0.42, abs=0.01)
    assert shade(colour_of(TRANSFER)) == colour_of(TRANSFER)


_EYES = {
    "normal": np.eye(3).tolist(),
    "deuteranopia": [
        *([0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413]),
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        *([0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216]),
        [-0.003882, -0.048116, 1.051998],
    ],
}
"""What eyes make of linear red, green and blue.

Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
IEEE TVCG 15(6), 2009, table 1, severity 1.0.
"""


def _seen(colour: str, eyes: str) -> np.ndarray[Any, Any]:
    """Return a colour in CIE Lab as some eyes see it; sRGB and Lab for the white D65."""
    rgb = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    relative = np.array(xyz) @ np.clip(np.array(_EYES[eyes]) @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


_FIRSTS = [kinds.split()[0] for kinds in FAMILIES.values()]
_WITH_GRADIENTS = [
    kind for kind in _FIRSTS if kind not in ("conv", "copy", "optimizer", "all_reduce", "send", "load")
]


@pytest.mark.parametrize("paper", ["light", "dark", "print"])
@pytest.mark.parametrize("eyes", _EYES)
@pytest.mark.parametrize(
    ("colours", "apart"),
    [
        (OKABE_ITO, 13),
        ([colour_of(kind) for kind in "FBIWR"], 13),
        ([colour_of(kind) for kind in (*_FIRSTS, LAUNCH, TRANSFER)], 13),
        (
            [
                colour_of(kind)
                for kind in ("F", "B", "I", "W", "R", "copy", "all_reduce", "optimizer", "send")
            ],
            13,
        ),
        (
            [
                *map(colour_of, [*_FIRSTS, "conv_input_grad", "conv_weight_grad"]),
                *(colour_of(f"{kind}_grad") for kind in _WITH_GRADIENTS),
            ],
            7.5,
        ),
        (USE_COLOURS.values(), 13),
    ],
    ids=["Okabe and Ito", "phases", "families", "around a pipeline", "gradients", "parts of time"],
)
def test_colours_remain_apart_for_colour_blind_readers(
    colours: Collection[str], apart: float, eyes: str, paper: str
) -> None:
    """A difference of 2.3 is just noticeable side by side; gradients stand beside what they are shades of."""
    with theme(paper):
        drawn = [shade(colour) for colour in colours]
    for one, other in combinations(drawn, 2):
        assert np.linalg.norm(_seen(one, eyes) - _seen(other, eyes)) > apart, (one, other)


def test_no_kind_is_mistaken_for_a_known_one() -> None:
    known = np.array([[int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for c in set(_KNOWN.values())])
    near = 0
    for k in range(200):
        colour = colour_of(f"kernel{k}")
        rgb = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
        near += bool(np.linalg.norm(known - rgb, axis=1).min() < 0.19)
    assert near == 0
