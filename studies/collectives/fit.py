"""Fit rates of collectives to a fifth of measured times, and judge them on the rest.

::

    python -m studies.collectives.fit --data DIR [--out devices/collectives/nccl_fitted.json]

DIR has ``h200/nccl_2.29.2.csv.gz``, ``cluster/nccl_a100_h100.csv.gz`` and ``kernels/nccl_blackwell.csv.gz``.
The rates of an H200 node are fitted on all rows of the first file, independently of the others. The rates of
the other machines start from these, times one common factor, and are drawn to them, because a fifth of their
rows leaves some open (`drawn_fifth`). The loss is the mean relative error, by iteratively reweighted least
squares. The table goes to stdout.

Only rows of NCCL are judged: two fifths of the second file are all-reduce kernels of other libraries.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from devices.collectives.nccl_model import amounts
from devices.collectives.nccl_tuner import GENERATIONS, NcclChoice, NcclTuner
from sim.base.arrays import group_pairs
from studies.program import Data, run

FloatArray = npt.NDArray[np.float64]

H200_FILE: Final = "h200/nccl_2.29.2.csv.gz"
A100_H100_FILE: Final = "cluster/nccl_a100_h100.csv.gz"
B300_FILE: Final = "kernels/nccl_blackwell.csv.gz"

RATES: Final[Mapping[str, str]] = {
    "launch": "us of a ring, before its first step",
    "hop ll": "us of a step with protocol LL",
    "hop ll128": "us of a step with protocol LL128",
    "hop simple": "us of a step with protocol Simple",
    "start simple": "us that a ring with protocol Simple takes more",
    "channel ll": "us per KB that a channel sends with protocol LL",
    "channel ll128": "us per KB that a channel sends with protocol LL128",
    "channel simple": "us per KB that a channel sends with protocol Simple",
    "link ll": "us per KB that a GPU sends with protocol LL",
    "own": "us per KB of a rank's own part",
    "nvls start": "us of a reduction in the switch",
    "nvls first": "us per KB more, of the first 20 MB",
    "nvls": "us per KB that a GPU sends and receives in it",
    "exchange start ll": "us of messages to all peers with protocol LL",
    "exchange start simple": "us of messages to all peers with protocol Simple",
    "exchange peer": "us more of each peer",
    "exchange own": "us per KB that a rank copies for itself",
    "exchange channel ll": "us per KB that a channel sends with protocol LL",
    "exchange channel simple": "us per KB that a channel sends with protocol Simple",
    "exchange first": "us per KB more, of the first 20 MB",
    "exchange": "us per KB that a GPU sends to its peers, of LL twice",
}
"""What each rate is; KB are 1000 bytes."""

_WIDTH: Final = {"half": 2, "int8": 1}

_DRAWN_TO: Final = 1.5
"""Strength of the pull to the starting rates; found by leaving out parts of the fifth."""

_ROUNDS, _SWEEPS, _SMALLEST_ERROR = 8, 400, 0.02


class Setup(NamedTuple):
    """A machine with the versions of NCCL that behave alike on it.

    `rules` is the version whose choices they make. Rows of the H100 labelled 2.27.3 send messages as
    2.29 does, although its source differs: in the drawn fifth, those of 32 KiB take 12.6 us as with 2.29.2,
    not 9.9 as with 2.23.
    """

    name: str
    gpu: str
    system: str
    versions: tuple[str, ...]
    rules: tuple[int, int]


SETUPS: Final = (
    Setup("A100, NCCL 2.27", "a100", "a100_sxm", ("2.27.3",), (2, 27)),
    Setup("H100, NCCL 2.23", "h100", "h100_sxm", ("2.23",), (2, 23)),
    Setup("H100, NCCL 2.27 and 2.29", "h100", "h100_sxm", ("2.27.3", "2.29.2"), (2, 29)),
    Setup("B300, NCCL 2.29", "b200", "b300_sxm", ("2.29.2",), (2, 29)),
)
_H200: Final = Setup("H200, NCCL 2.29", "h200", "NVIDIA H200", ("2.29.2",), (2, 29))
SHIPPED: Final = {
    "a100": (SETUPS[0].name, "a fifth of the A100's rows, NCCL 2.27.3"),
    "h100": (SETUPS[2].name, "a fifth of the H100's rows, NCCL 2.27.3 and 2.29.2"),
    "h200": ("h200", "all rows of the H200, NCCL 2.29.2"),
    "b200": (SETUPS[3].name, "a fifth of the rows of a B300, which has the B200's NVLinks, NCCL 2.29.2"),
}

_LARGE: Final = 10**6
"""Bytes above which errors are also given separately: sizes sent in training."""


def read_measured(data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the H200 table and that of the other machines, both with kind, gpus, dtype, bytes and us.

    In the second, ``learn`` marks the drawn rows.
    """
    h200, b300 = _by_elements(data / H200_FILE), _by_elements(data / B300_FILE)
    h200 = h200.assign(us=h200.latency * 1000, kind=h200.op.replace("alltoall", "all_to_all"))
    b300 = b300.assign(system=b300.gpu, version="2.29.2", library="nccl", kernel="nccl")
    rest = pd.concat([pd.read_csv(data / A100_H100_FILE).rename(columns={"latency_us": "us"}), b300])
    rest = rest.reset_index(drop=True)
    groups = zip(rest.system.tolist(), rest.op.tolist(), rest.gpus.tolist(), strict=True)
    rest = rest.assign(
        learn=drawn_fifth(zip(groups, rest.bytes.tolist(), strict=True)),
        kind=rest.op.replace("alltoall", "all_to_all"),
    )
    return h200, rest


def drawn_fifth(rows: Iterable[tuple[Sequence[Hashable], int]]) -> list[bool]:
    """Return, for each row (a group and a size), whether it is for fitting; all others are for judging.

    A fifth of the sizes of each group (machine, kind, ranks) is drawn with the group's name as seed,
    so that the measurements do not influence it; all types of a size stay together, because they are
    nearly the same measurement. The rule was fixed before the rows were looked at.

    Examples
    --------
    >>> rows = [(("a100", "all_reduce", 8), 2**k) for k in range(10)]
    >>> sum(drawn_fifth(rows))
    2
    """
    keyed = [(tuple(group), size) for group, size in rows]
    drawn = {}
    for group, found in group_pairs(keyed).items():
        sizes = sorted(set(found))
        drawn[group] = random.Random("/".join(map(str, group))).sample(sizes, max(1, round(len(sizes) / 5)))
    return [size in drawn[group] for group, size in keyed]


def _by_elements(path: Path) -> pd.DataFrame:
    """Return a table whose ``message_size`` counts elements, with op, gpus, dtype and bytes."""
    found = pd.read_csv(path).rename(columns={"op_name": "op", "num_gpus": "gpus", "nccl_dtype": "dtype"})
    return found.assign(bytes=found.message_size * found.dtype.map(_WIDTH))


def _calls(rows: pd.DataFrame) -> Iterator[tuple[str, int, int, str]]:
    """Yield kind, ranks, bytes and type of each row."""
    columns = (rows[name].tolist() for name in ("kind", "gpus", "bytes", "dtype"))
    return zip(*columns, strict=True)


def _choices(rows: pd.DataFrame, setup: Setup) -> list[NcclChoice]:
    """Return NCCL's choice for each row; the switch does not add int8."""
    return [
        NcclTuner(GENERATIONS[setup.gpu], (ranks,), dtype != "int8", setup.rules).choose(kind, nbytes)
        for kind, ranks, nbytes, dtype in _calls(rows)
    ]


def _design(rows: pd.DataFrame, setup: Setup) -> FloatArray:
    found = np.zeros((len(rows), len(RATES)))
    at = {name: k for k, name in enumerate(RATES)}
    for i, (call, choice) in enumerate(zip(_calls(rows), _choices(rows, setup), strict=True)):
        for name, amount in amounts(*call[:3], choice).items():
            found[i, at[name]] = amount
    return found


def _least(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the x >= 0 with the least |a x - b|, by coordinate descent."""
    square, right = a.T @ a, a.T @ b
    size = np.sqrt(np.diag(square))
    size[size == 0] = 1
    square, right = square / np.outer(size, size), right / size
    x = np.zeros(len(right))
    for _ in range(_SWEEPS):
        for k in range(len(x)):
            x[k] = max(0.0, x[k] + right[k] - square[k] @ x)
    return x / size


def _fit(a: FloatArray, us: FloatArray, start: FloatArray, drawn_to: float) -> FloatArray:
    """Return rates with a small mean relative error, drawn to the starting rates."""
    weight = np.ones(len(us))
    pull, target = np.diag(drawn_to / start), np.full(len(start), drawn_to)
    x = start
    for _ in range(_ROUNDS):
        rows = np.vstack([a * (weight / us)[:, None], pull])
        x = _least(rows, np.concatenate([weight, target]))
        weight = 1 / np.sqrt(np.maximum(np.abs(a @ x / us - 1), _SMALLEST_ERROR))
    return x


def _of(rows: pd.DataFrame, setup: Setup) -> pd.DataFrame:
    return rows[(rows.system == setup.system) & (rows.library == "nccl") & rows.version.isin(setup.versions)]


def fitted(h200: pd.DataFrame, rest: pd.DataFrame) -> dict[str, FloatArray]:
    """Return the rates of ``h200``, from its own table, and of each setup, from its drawn fifth."""
    found = {"h200": _fit(_design(h200, _H200), h200.us.to_numpy(), np.ones(len(RATES)), _SMALLEST_ERROR)}
    for setup in SETUPS:
        learn = _of(rest, setup)
        learn = learn[learn.learn]
        a, us = _design(learn, setup), learn.us.to_numpy()
        start = np.maximum(found["h200"], 1e-6)
        found[setup.name] = _fit(a, us, start * np.median(us / (a @ start)), _DRAWN_TO)
    return found


Baseline = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def _alpha_beta(size: FloatArray, us: FloatArray, asked: FloatArray) -> FloatArray:
    a = np.stack([np.ones(len(size)), size], axis=1)
    x = _least(a / us[:, None], np.ones(len(us)))
    return np.asarray(x[0] + x[1] * asked, dtype=float)


def _nearest(size: FloatArray, us: FloatArray, asked: FloatArray) -> FloatArray:
    apart = np.abs(np.log(asked)[:, None] - np.log(size)[None, :])
    return np.array([us[row == row.min()].mean() for row in apart])


def _log_log(size: FloatArray, us: FloatArray, asked: FloatArray) -> FloatArray:
    """Interpolate between drawn sizes; keep the bandwidth above the largest, the time below the smallest."""
    sizes = np.unique(size)
    means = np.array([us[size == each].mean() for each in sizes])
    found = np.exp(np.interp(np.log(asked), np.log(sizes), np.log(means)))
    return np.asarray(np.where(asked > sizes[-1], means[-1] * asked / sizes[-1], found), dtype=float)


_BASELINES: Final[Mapping[str, Baseline]] = {
    "alpha-beta": _alpha_beta,
    "nearest": _nearest,
    "interpolated": _log_log,
}
"""Baselines fitted to the drawn rows of each kind, number of ranks and kernel."""


def _beside(rows: pd.DataFrame, rule: Baseline) -> FloatArray:
    found = pd.Series(0.0, index=rows.index)
    for _, group in rows.groupby(["kind", "gpus", "library", "kernel"]):
        learn, asked = group[group.learn], group[~group.learn]
        found[asked.index] = rule(
            learn.bytes.to_numpy(float), learn.us.to_numpy(float), asked.bytes.to_numpy(float)
        )
    return np.asarray(found[rows.index[~rows.learn]], dtype=float)


def _line(name: str, rows: pd.DataFrame, predictions: Mapping[str, FloatArray]) -> dict[str, Any]:
    us = rows.us.to_numpy()
    errors = {rule: predicted / us - 1 for rule, predicted in predictions.items()}
    first = next(iter(errors.values()))
    return {
        "rows": name,
        "judged": len(us),
        "1 MB and more %": round(100 * float(np.abs(first[rows.bytes.to_numpy() >= _LARGE]).mean()), 1),
        **{f"{rule} %": round(100 * float(np.abs(error).mean()), 1) for rule, error in errors.items()},
        "bias %": round(100 * float(first.mean()), 1),
        "worst %": round(100 * float(np.abs(first).max()), 0),
    }


def _estimates(rows: pd.DataFrame, setup: Setup) -> FloatArray:
    return np.array([choice.estimate_us for choice in _choices(rows, setup)])


def error_lines(
    h200: pd.DataFrame, rest: pd.DataFrame, rates: Mapping[str, FloatArray]
) -> Iterator[dict[str, Any]]:
    """Yield a line for each machine: mean relative errors of rules on the rows that were not drawn; large,
    bias and worst are for the first rule.
    """
    tuner = _estimates(h200, _H200)
    yield _line("H200, NCCL 2.29 (nothing fitted)", h200, {"tuner": tuner})
    parts = []
    for setup in SETUPS:
        rows = _of(rest, setup)
        judged = rows[~rows.learn]
        predictions = {
            "fitted": _design(judged, setup) @ rates[setup.name],
            "tuner": _estimates(judged, setup),
            **{name: _beside(rows, rule) for name, rule in _BASELINES.items()},
        }
        parts.append((judged, predictions))
        yield _line(setup.name, *parts[-1])
    together = {name: np.concatenate([predictions[name] for _, predictions in parts]) for name in parts[0][1]}
    yield _line("all that were fitted", pd.concat([judged for judged, _ in parts]), together)
    others = rest[rest.library != "nccl"]
    for system, rows in others.groupby("system"):
        predictions = {name: _beside(rows, rule) for name, rule in _BASELINES.items()}
        yield _line(f"{system}, kernels of others", rows[~rows.learn], predictions)


def main(data: Data, out: Path | None = None) -> None:
    """Fit rates of collectives, judge them, and write them to a file if one is given."""
    h200, rest = read_measured(data)
    rates = fitted(h200, rest)
    print(pd.DataFrame(error_lines(h200, rest, rates)).to_string(index=False))
    if out:
        gpus = {
            gpu: {
                "fitted_to": what,
                "rates": {name: float(f"{rate:.5g}") for name, rate in zip(RATES, rates[key], strict=True)},
            }
            for gpu, (key, what) in SHIPPED.items()
        }
        content = {
            "schema": "sim.nccl_rates/1",
            "source": "studies.collectives.fit, on measured times of ai-dynamo/aiconfigurator (Apache-2.0)",
            "unit": "us, and us per 1000 bytes",
            "gpus": gpus,
        }
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main)
