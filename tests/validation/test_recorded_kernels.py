"""What the sizes of recorded kernels cost, beside what the kernels took."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from devices.cost.kernel_costs import load_fits
from devices.cost.kernel_fits import FAMILIES
from scenarios.importers import load_graph
from sim import GraphBuilder
from sim.base.errors import UnknownNameError
from studies.kernels.fitting import fit_moved
from studies.kernels.moved import moved
from studies.kernels.recorded import compare, errors, ran_alone, recorded_ns
from studies.kernels.tables import Rows, Table, tables

PROGRAMS = "h100_bert_small", "h100_vit", "h100_qwen_0_5b"


@pytest.mark.filterwarnings("ignore:.* do not say for which stream or event they wait")
@pytest.mark.filterwarnings("ignore:.* GPU tasks have no launch in the trace")
def test_kernels_of_recorded_programs_cost_what_they_took(data_dir: Path) -> None:
    """Three eager programs on an H100: the total within 5 %, a shape within 10 % on average."""
    fits = load_fits("h100-sxm")
    paths = [str(data_dir / "kineto" / f"{name}.json.gz") for name in PROGRAMS]
    rows = [row for path in paths for row in compare(load_graph(path), "h100-sxm", fits)]
    assert len(rows) > 15
    total, shape, kernel = errors(rows)
    assert abs(total) < 0.05
    assert shape < 0.10
    assert kernel < 0.08


def test_what_a_recorded_kernel_took_is_its_own() -> None:
    """The parts of a product are added up by another kernel; beside a copy nothing is judged."""
    builder = GraphBuilder("recorded")
    for name, device, stream, start, took in (
        ("cutlass", "gpu0", 7, 0, 100),
        ("softmax", "gpu1", 7, 0, 50),
        ("Memcpy HtoD", "gpu0", 9, 150, 100),
        ("splitKreduce_kernel", "gpu0", 7, 110, 30),
        ("relu", "gpu0", 7, 200, 20),
    ):
        row = {"kernel": name, "stream": stream, "recorded_start_ns": start}
        builder.op(name, kind="kernel", duration_ns=took, device=device, attributes=row)
    graph = builder.build()
    assert recorded_ns(graph).tolist() == [130, 50, 100, 30, 20]
    assert ran_alone(graph) == {0, 1, 3}


def test_a_few_kernels_move_the_model_of_another_gpu() -> None:
    """A GPU takes half as long again as another's model says: kernels of a program left out are met, too."""
    lender, sheet = load_fits("h200-sxm").model("elementwise", "fp32"), load_fits("mi300x").sheet
    sizes = {"elements": 2.0 ** np.arange(16, 28), "operands": np.tile([1.0, 2.0], 6)}
    ns = 1.5 * lender.predict(sizes, sheet)[0]
    moved = fit_moved(lender, Rows(sizes, ns, np.arange(12) % 3), sheet)
    assert moved.spread[0] < 0.1
    asked = {"elements": np.array([3e6]), "operands": np.ones(1)}
    ratio = moved.predict(asked, sheet)[0] / lender.predict(asked, sheet)[0]
    assert ratio == pytest.approx(1.5, rel=0.05)


def test_kernels_move_to_another_gpu_as_they_were_measured_there(data_dir: Path) -> None:
    """Attention without a mask on pairs of four GPUs, which rates alone take for twice what it takes."""
    table = next(tables(data_dir, ["encoder"]))
    found = [*moved(table)]
    assert len(found) == 12
    assert np.mean([pair.error for pair in found]) < 0.08
    assert np.mean([pair.by_rates for pair in found]) > 0.50
    assert {pair.same_generation for pair in found} == {False, True}


def test_an_unknown_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [Table("encoder", "bf16", FAMILIES["bmm"], {}, ())]
    monkeypatch.setattr("studies.kernels.tables.language_tables", lambda data: iter(some))
    monkeypatch.setattr("studies.kernels.tables.general_tables", lambda data: iter(()))
    assert [*tables(Path())] == [*tables(Path(), ["encoder"])] == some
    with pytest.raises(UnknownNameError, match="unknown table 'encodr'; did you mean 'encoder'"):
        next(tables(Path(), ["encodr"]))
