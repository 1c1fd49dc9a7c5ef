"""Measured tables: exact where measured, a power law between, a warning outside, none between variants."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.cost.calibration import load_table, save_table
from devices.cost.cost_table import Axis, CostTable, ExtrapolationWarning, Kriging, nearest_rows
from devices.cost.unreliable import UnreliableCostWarning
from sim.base.errors import InputError, UnknownNameError

LINE = [(2**i, 1000 * 3**i) for i in range(6)]


def table(rows: list[tuple[int, ...]], *axes: Axis) -> CostTable:
    return CostTable.from_rows("toy", "op", axes, rows, {"source": "made up"})


def test_in_one_dimension_it_is_linear_interpolation_of_logarithms() -> None:
    sizes, latencies = [1, 5, 7, 40, 300], [900, 1000, 5000, 4000, 90000]
    measured = table(list(zip(sizes, latencies, strict=True)), Axis("x"))
    asked = np.arange(1, 301)
    textbook = np.exp(np.interp(np.log(asked), np.log(sizes), np.log(latencies)))
    assert np.abs(measured.lookup(x=asked) - textbook).max() <= 0.501


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
        st.integers(1, 10**12),
        min_size=1,
        max_size=60,
    )
)
@examples(50)
def test_measured_shapes_are_exact(rows: dict[tuple[int, int], int]) -> None:
    measured = table([(*shape, ns) for shape, ns in rows.items()], Axis("a"), Axis("b"))
    for (a, b), latency_ns in rows.items():
        assert measured.lookup(a=a, b=b) == latency_ns


def test_a_power_law_is_reproduced_even_where_the_grid_has_holes() -> None:
    # latency = 7 * a^2 * b: linear in logarithms, which every choice of neighbours must give back.
    grid = [(2**i, 3**j) for i in range(5) for j in range(5) if (i, j) not in {(2, 2), (3, 1)}]
    measured = table([(a, b, 7 * a * a * b) for a, b in grid], Axis("a"), Axis("b"))
    for a, b in [(4, 9), (8, 3), (5, 20), (15, 70)]:
        assert measured.lookup(a=a, b=b) == pytest.approx(7 * a * a * b, rel=1e-6, abs=0.5)


def test_outside_it_goes_on_and_says_so() -> None:
    measured = table(LINE, Axis("x"))
    with pytest.warns(ExtrapolationWarning, match=r"x=64.*x 1 to 32.*slope") as caught:
        beyond = measured.lookup(x=64)
    assert beyond == pytest.approx(1000 * 3**6, rel=1e-6)
    assert caught[0].filename == __file__  # it points at the caller, not into the library


def test_inside_it_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table(LINE, Axis("x")).lookup(x=[1, 3, 32]).tolist()[::2] == [1000, 243000]  # type: ignore[union-attr]


def test_a_gap_is_bridged_from_both_sides() -> None:
    # Fifty shapes crowd at 1 to 50, one lies at 10^6: nearest by distance to 100 are 32 of the crowd.
    crowded = [(x, 1000) for x in range(1, 51)]
    with pytest.warns(
        UnreliableCostWarning, match="unreliable around x=7071"
    ):  # nothing near it was measured
        found = table([*crowded, (10**6, 9000)], Axis("x")).lookup(x=7071)
    assert found == 3000  # half way in logarithms


def line(middle: int) -> CostTable:
    """Return eleven sizes, 4 times apart, that take 10,000 ns, but for the sixth (1024)."""
    return table([(4**i, middle if i == 5 else 10_000) for i in range(11)], Axis("x"))


@pytest.mark.parametrize(
    ("middle", "rough"), [(13_620, False), (13_650, True), (7_345, False), (7_325, True)]
)
def test_rough_is_where_neighbours_miss_one_another(middle: int, rough: bool) -> None:
    # With d = |ln(middle / 10000)| the sixth size is missed by d by the line through the two beside it, these
    # are missed by d / 2 and the others by 0; each at a variance of 1 in units of the step ln 4. Half way
    # between two sizes, each of weight 1/2, the variance of an estimate is 1/2. So beside the sixth the
    # standard error is sqrt(1/2 (1/2 d^2 + 1/2 d^2 / 4)) = sqrt(5/16) d, one step further it is
    # sqrt(1/2 * 1/2 d^2 / 4) = d / 4, then 0. It is beyond ln(2) / 4 from d = 0.30999 on: 13634, or 7335.
    measured, d = line(middle), abs(np.log(middle / 10_000))
    estimate = measured.estimate(np.array([[512], [2048], [128], [8], [1024]]))
    beside = np.sqrt(5 / 16) * d
    assert estimate.error == pytest.approx([beside, beside, d / 4, 0, 0], rel=1e-5, abs=1e-6)
    assert estimate.rough.tolist() == [rough, rough, False, False, False]
    assert measured.lookup(x=1024) == middle  # measured, and says nothing: a warning would be an error here


def test_a_rough_lookup_says_what_to_expect() -> None:
    # d = ln 4: errors of 4^sqrt(5/16) - 1 = 117 %.
    measured = line(40_000)
    with pytest.warns(
        UnreliableCostWarning, match="unreliable around x=512 and 1 other shape: .* 117%, and"
    ) as caught:
        assert measured.lookup(x=[512, 1024, 2048]).tolist() == [20_000, 40_000, 20_000]  # type: ignore[union-attr]
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_beyond_rough_shapes_one_warning_is_enough() -> None:
    # The last two of eleven contradict the others: beyond them both warnings would be true.
    measured = table([(4**i, 10_000 * 8 ** (i == 9)) for i in range(11)], Axis("x"))
    assert measured.estimate(np.array([[4**11]])).rough.all()
    with pytest.warns(ExtrapolationWarning) as caught:
        measured.lookup(x=4**11)
    assert len(caught) == 1


def test_too_few_shapes_to_contradict_one_another() -> None:
    # A line is fixed by two shapes; with fewer than eight more there is too little to judge by.
    zigzag = [(4**i, 10_000 * 8 ** (i % 2)) for i in range(10)]
    assert table(zigzag[:9], Axis("x")).estimate(np.array([[512]])).error.tolist() == [0]
    assert table(zigzag, Axis("x")).estimate(np.array([[512]])).error[0] > 1
    assert Kriging(np.array([[1.0]]), np.array([5.0])).at(np.array([[2.0]])).errors.tolist() == [0]


@given(st.integers(0, 2**32 - 1))
@examples(20)
def test_errors_are_those_of_leaving_each_neighbour_out(seed: int) -> None:
    # The short cut through the inverse, against predicting every point from the others for real.
    rng = np.random.default_rng(seed)
    points, values, query = rng.uniform(0, 3, (12, 2)), rng.normal(size=12), np.array([[1.5, 1.5]])
    ratio = []
    for i in range(12):
        others = Kriging(np.delete(points, i, 0), np.delete(values, i))
        ratio.append((values[i] - others.at(points[[i]]).values[0]) ** 2 / variance(others, points[i]))
    whole = Kriging(points, values)
    # An estimate is linear in the values: its weights are the estimates of unit vectors.
    weights = [Kriging(points, unit).at(query).values[0] for unit in np.eye(12)]
    contradiction = np.average(ratio, weights=np.abs(weights))
    expected = np.sqrt(variance(whole, query[0]) * contradiction)
    assert whole.at(query).errors[0] == pytest.approx(expected, rel=1e-4)


def variance(kriging: Kriging, query: npt.NDArray[np.float64]) -> float:
    """Return the variance of value(query) - estimate, for a field whose covariance is minus the distance."""
    n = len(kriging.points)
    weights = np.array([Kriging(kriging.points, unit).at(query[None]).values[0] for unit in np.eye(n)])
    places = np.vstack([kriging.points, query])
    covariance = 1e-8 * np.eye(n + 1) - np.linalg.norm(places[:, None] - places[None, :], axis=2)
    contrast = np.append(-weights, 1)
    return float(contrast @ covariance @ contrast)


def test_a_corner_without_shapes_is_outside() -> None:
    # Large a with large b was not measured (it would not fit): inside the range of each axis, and outside.
    corner = [(2**i, 2**j, 2 ** (i + j)) for i in range(12) for j in range(12) if i + j < 12]
    with pytest.warns(ExtrapolationWarning, match="a=2048, b=2048"):
        assert table(corner, Axis("a"), Axis("b")).lookup(a=2048, b=2048) == pytest.approx(2**22, rel=1e-5)


def test_order_of_rows_does_not_matter() -> None:
    rows = [(a, b, a * b + (a * 7919 + b * 104729) % 50) for a in (1, 2, 4, 8, 9) for b in (1, 3, 10, 30, 31)]
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    ask = {"a": np.arange(1, 10), "b": 17}
    with pytest.warns(UnreliableCostWarning):
        one, other = (table(given, Axis("a"), Axis("b")).lookup(**ask) for given in (rows, shuffled))  # type: ignore[arg-type]
    assert np.array_equal(one, other)


def test_repeated_shapes_have_their_median() -> None:
    assert table([(8, 30), (8, 10), (8, 11), (4, 5), (4, 6)], Axis("x")).lookup(x=[8, 4]).tolist() == [11, 6]  # type: ignore[union-attr]


def test_one_point_is_all_there_is_to_say() -> None:
    only = table([(8, 8, 100)], Axis("a"), Axis("b"))
    assert only.lookup(a=8, b=8) == 100
    with pytest.warns(ExtrapolationWarning):
        assert only.lookup(a=16, b=8) == 100


def test_variants_are_apart() -> None:
    measured = table(
        [(1, 64, 10), (4, 64, 20), (1, 128, 1000), (4, 128, 2000)], Axis("x"), Axis("dim", "exact")
    )
    assert measured.lookup(x=2, dim=64) == 14
    assert measured.lookup(x=2, dim=128) == 1414
    with pytest.raises(InputError, match=r"dim=96.*dim=64; dim=128"):
        measured.lookup(x=2, dim=96)


def test_only_variants_need_no_interpolation() -> None:
    named = table([(1, 10), (2, 20)], Axis("mode", "exact"))
    assert named.lookup(mode=2) == 20
    with pytest.raises(InputError, match="mode=3"):
        named.lookup(mode=3)


def test_arguments_broadcast() -> None:
    measured = table([(a, b, a * b) for a in (1, 2, 4) for b in (1, 10)], Axis("a"), Axis("b"))
    assert measured.lookup(a=[[1], [4]], b=[1, 10]).tolist() == [[1, 10], [4, 40]]  # type: ignore[union-attr]
    assert isinstance(measured.lookup(a=1, b=1), int)
    assert measured.lookup(a=np.array([], dtype=np.int64), b=1).shape == (0,)  # type: ignore[union-attr]


def test_lookups_that_make_no_sense_are_refused() -> None:
    measured = table(LINE, Axis("nbytes"))
    with pytest.raises(UnknownNameError, match=r"did you mean 'nbytes'"):
        measured.lookup(bytes=3)
    with pytest.raises(InputError, match="missing: nbytes"):
        measured.lookup()
    with pytest.raises(InputError, match="positive"):
        measured.lookup(nbytes=0)
    with pytest.raises(InputError, match="whole"):
        measured.lookup(nbytes=1.5)
    with pytest.raises(InputError, match="292 years"):
        measured.lookup(nbytes=2**62)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "rows"),
        ([(1, 2, 3)], "shape"),
        ([(1, 2), (3,)], "different lengths"),
        ([(1.5, 2)], "whole"),
        ([(0, 2)], "x = 0"),
        ([(4, 0)], "latency_ns = 0"),
    ],
)
def test_tables_that_make_no_sense_are_refused(rows: list[tuple[int, ...]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        table(rows, Axis("x"))


def test_axes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="distinct"):
        table([(1, 2, 3)], Axis("x"), Axis("x"))
    with pytest.raises(InputError, match="'log' or 'exact'"):
        Axis("x", "linear")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["table.json", "table.json.gz"])
def test_a_file_holds_all_of_a_table(tmp_path: Path, name: str) -> None:
    rows = [(a, v, 100 * a + v) for a in (1, 2, 5) for v in (0, 7)]
    axes = Axis("a"), Axis("v", "exact")
    measured = CostTable.from_rows("toy", "op", axes, rows, {"source": "made up"})
    save_table(measured, tmp_path / name)
    again = load_table(tmp_path / name)
    assert np.array_equal(again.shapes, measured.shapes)
    assert np.array_equal(again.latency_ns, measured.latency_ns)
    assert (again.axes, again.device, again.kind) == (axes, "toy", "op")
    assert again.provenance == {"source": "made up"}
    save_table(again, tmp_path / f"again-{name}")
    assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "sim.cost_table/2"}, "schema"),
        ({"unit": "us"}, "'unit' must be 'ns'"),
        ({"axis": []}, "unknown keys axis"),
        ({"axes": [{"name": "m", "weight": 1}]}, "an axis: unknown keys weight; known: name, scale"),
        ({"axes": [{"nam": "x"}]}, "unknown keys nam"),
        ({"rows": [[1, 2, 3]]}, "shape"),
        ({"provenance": None}, None),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    tmp_path: Path, change: dict[str, object], said: str | None
) -> None:
    path = tmp_path / "t.json"
    save_table(table(LINE, Axis("x")), path)
    data = {**json.loads(path.read_text()), **change}
    if said is None:  # a missing key rather than a wrong value
        del data["provenance"]
        said = "'provenance' is missing"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=said) as caught:
        load_table(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json"):
        load_table(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("[1, 2")
    with pytest.raises(InputError, match=r"text\.json"):
        load_table(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(InputError, match="'schema' must be"):
        load_table(tmp_path / "list.json")
    (tmp_path / "twice.json").write_text('{"schema": "sim.cost_table/1", "kind": "a", "kind": "b"}')
    with pytest.raises(InputError, match=r"twice\.json: cannot be read as JSON: the key 'kind' stands twice"):
        load_table(tmp_path / "twice.json")


def test_neighbours_at_equal_distance_are_taken_in_row_order() -> None:
    square = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0], [0.0, 0.1]])
    assert nearest_rows(square, np.zeros((1, 2)), 3).tolist() == [[0, 1, 4]]


@given(
    st.lists(
        st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=40, unique=True
    ),
    st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5)),
    st.floats(-10, 10),
)
def test_a_constant_is_reproduced_everywhere(
    points: list[tuple[float, float, float]], query: tuple[float, float, float], constant: float
) -> None:
    flat = Kriging(np.array(points), np.full(len(points), constant))
    estimate = flat.at(np.array([query])).values
    assert estimate[0] == pytest.approx(constant, abs=1e-9)
