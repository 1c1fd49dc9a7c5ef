"""A scenario at many settings: every combination, on as many workers as there are, resumable.

::

    --vary workload.batch=1,8,32 --vary machine.devices.gpu0.streams=1,4     6 points, the last key fastest
           │
           └► FILE.points   one line of JSON for each point that is done, as it is done
           └► FILE          all points in order, when all are done

Points whose sizes do not fit one another (3 ranks for 8 heads) are left out before anything runs, and counted
by reason (`fitting`). A sweep that was interrupted goes on where it was, and one that ended is there at once:
points in the first file are not run again, unless the scenario, a file that it names, or this program has
changed since, which a warning says. A point that fails (out of
memory, say) is a row that says so.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from queue import SimpleQueue
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from scenarios.fields.results import RATES, column_of_result
from scenarios.file.document import Document
from scenarios.variants.sweep_files import (
    Point,
    Row,
    check_same_table,
    column_of,
    finished,
    keep,
    program,
    remember,
    same_as,
    stamps,
    sweeping,
    write_rows,
)
from sim.base.errors import InputError, MisfitError, RunError, SimError, extra

if TYPE_CHECKING:
    from scenarios.run.load import Scenarios


# ----------------------------------------------------------------------------------------------------------
# Where the points of a sweep run: on processes of this machine, or on a Dask cluster.


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while the block runs: it is heard at its end.

    Processes that start meanwhile inherit that. An interrupt while a lock is taken would leave it taken.
    """
    before, heard = signal.getsignal(signal.SIGINT), []
    noted = current_thread() is main_thread() and callable(before)
    if noted:  # the mask below is that of this thread: another one may take the signal
        signal.signal(signal.SIGINT, lambda *said: heard.append(said))
    masks = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if noted:
            signal.signal(signal.SIGINT, before)
            if heard and callable(before):
                before(*heard[0])


@contextmanager
def _heard_once() -> Iterator[Callable[[], object]]:
    """Let Ctrl-C be heard once while the block runs: another would cut short what the first has to end.

    Gives what ignores it from now on. A mask would not do, as other threads take the signal.
    """
    before = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(before):
        yield lambda: None
        return

    def deaf() -> object:
        return signal.signal(signal.SIGINT, signal.SIG_IGN)

    def hear(number: int, frame: FrameType | None) -> None:
        deaf()
        before(number, frame)

    signal.signal(signal.SIGINT, hear)
    try:
        yield deaf
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(begin: Callable[[], None]) -> None:
    begin()
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    Thread(target=end, daemon=True).start()


@contextmanager
def process_executor(jobs: int, begin: Callable[[], None]) -> Iterator[Executor]:
    """Give an executor on so many processes, which end at once if something goes wrong here.

    They also end if this process is killed: one that waits for work would wait for ever.

    Parameters
    ----------
    jobs : int
    begin : callable
        What each process does first.
    """
    others = active_children()
    with (
        _heard_once() as deaf,
        ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (begin,)) as executor,
    ):
        try:
            yield executor
        except BaseException:
            deaf()
            for process in active_children():  # one that was being started, the executor does not know
                if process not in others:
                    process.terminate()
            executor.shutdown(cancel_futures=True)
            raise


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """Give an executor on the Dask cluster at `address`, and leave the cluster afterwards.

    Raises
    ------
    MissingExtraError
        The extra ``dask`` is not installed.
    InputError
        `address` is none.
    """
    with extra("dask", "a sweep on a Dask cluster"):
        from distributed import Client
    try:
        client = Client(address)
    except ValueError as error:
        raise InputError(
            f"{address!r} is no address of a Dask scheduler (tcp://HOST:PORT): {error}"
        ) from None
    with client:
        yield client.get_executor()


# ----------------------------------------------------------------------------------------------------------

_OF_TRAINING: Final = (
    "step_ns",
    "tokens_per_s",
    "mfu",
    "peak_bytes",
    "capacity_bytes",
    "bubble",
    "exposed_ns",
)


_INVALID: Final = "invalid: "
"""Before what is wrong with the settings of a point. Where all points have it, the sweep is refused."""


class Interrupted(KeyboardInterrupt):
    """A sweep was interrupted; `rows` are those of the points that were done."""

    def __init__(self, rows: list[Row], told: str) -> None:
        super().__init__(told)
        self.rows = rows


def fitting(
    path: str,
    points: Sequence[Point],
    sets: Sequence[str] = (),
    allow_code: bool = False,
    allow_outside: bool = False,
) -> tuple[list[Point], dict[str, int]]:
    """Return the points whose sizes fit one another, and how many do not, by reason.

    Nothing is run or built. Workloads that do not know such sizes are asked for one point alone.

    Raises
    ------
    InputError
        None of them fits.
    """
    from scenarios.workloads.workload import Workload

    scenarios = _scenarios(path, tuple(sets), allow_code, allow_outside)
    found: list[Point] = []
    reasons: dict[str, int] = {}
    for i, point in enumerate(points):
        try:
            scenario = scenarios.at([f"{key}={value}" for key, value in point.settings])
            reason = scenario.case(point.policy).misfit()
        except InputError:  # its row will say so
            found.append(point)
            continue
        if not i and type(scenario.content.workload).misfit is Workload.misfit:
            return list(points), {}
        if reason is None:
            found.append(point)
        else:
            reasons[reason] = reasons.get(reason, 0) + 1
    if points and not found:
        raise InputError(f"none of the {len(points):,} points fits: {_counted(reasons)}")
    return found, reasons


def warn_of_unlike_points(
    path: str,
    points: Sequence[Point],
    sets: Sequence[str] = (),
    allow_code: bool = False,
    allow_outside: bool = False,
) -> None:
    """Warn if points put presets side by side whose costs do not compare; see `cases_at`."""
    from scenarios.variants.incomparable_runs import cases_at, warn_of_unlike_costs

    scenarios = _scenarios(path, tuple(sets), allow_code, allow_outside)
    settings = [[f"{key}={value}" for key, value in point.settings] for point in points]
    warn_of_unlike_costs(cases_at(scenarios, settings, points[0].policy if points else None))


def _counted(reasons: Mapping[str, int]) -> str:
    """Return reasons with their numbers, the most frequent first."""
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    return "; ".join(f"{count:,} {reason}" for reason, count in ranked)


def run_point(
    path: str,
    point: Point,
    sets: Sequence[str] = (),
    allow_code: bool = False,
    allow_outside: bool = False,
    results: Sequence[str] = (),
    stamp: str | None = None,
) -> Row:
    """Run one point; return its settings and its numbers, or what went wrong, with the settings or the run.

    `results` are wanted besides, by the names that ``expect:`` has for them. A file with the same `stamp` as
    that of the last point is not read again. A run whose memory is short only
    when all is over (a training step) has its numbers, and an error.
    """
    from scenarios.fields.results import result_of_run
    from scenarios.run.execute import run_case
    from sim.explain.failed_ops import failure_text

    row: Row = {column_of(key): value for key, value in point.settings}
    how = (path, tuple(sets), allow_code, allow_outside)
    scenarios = _scenarios(*how) if stamp is None else _same(*how, stamp)
    who = point.policy or ""
    try:
        case = scenarios.at([f"{key}={value}" for key, value in point.settings]).case(point.policy)
        who = case.label
        result = run_case(case, fits=False)
    except InputError as error:
        if isinstance(error.__cause__, MisfitError):
            return row | {"policy": who, "error": f"left out: {error.__cause__.reason}"}
        return row | {"policy": who, "error": _INVALID + str(error).partition("\n")[0]}
    except SimError as error:
        return row | {"policy": who, "error": str(error).partition("\n")[0]}
    summary = result.summary
    row |= {
        "policy": result.policy,
        "makespan_ns": summary["makespan_ns"],
        "lower_bound_ns": summary["lower_bound_ns"],
        "gap": summary["gap"],
    }
    if summary["no_gap"]:
        row["no_gap"] = summary["no_gap"]
    for name, device in summary["devices"].items():
        for number in ("utilisation", "bubble", "peak_memory_bytes"):
            row[f"{name}.{number}"] = device[number]
    for name, link in summary["links"].items():
        row[f"{name}.utilisation"] = link["utilisation"]
    for name, life in summary.get("training_run", {}).get("recovery", {}).items():
        row[f"{name}.goodput"] = life["goodput"]
    if (pipeline := summary.get("pipeline")) is not None:
        row["pipeline.bubble"] = pipeline["bubble"]
    row |= {rate: summary[rate] for rate in RATES if rate in summary}
    for number in _OF_TRAINING if "train" in summary else ():
        row[f"train.{number}"] = summary["train"][number]
    for name in results:
        row[column_of_result(name)] = result_of_run(name, summary, result.trace)
    row["unused_devices"] = ", ".join(summary["unused_devices"])
    try:
        case.work.fits(result.trace, False)
    except RunError as error:
        return row | {"error": str(error).partition("\n")[0]}
    return row | {"error": failure_text(result.trace) or None}


def _scenarios(path: str, sets: tuple[str, ...], allow_code: bool, allow_outside: bool) -> Scenarios:
    from scenarios.run.load import Scenarios

    return Scenarios(Document.read(path, allow_outside=allow_outside).with_settings(sets), allow_code)


@lru_cache(maxsize=1)
def _same(path: str, sets: tuple[str, ...], allow_code: bool, allow_outside: bool, stamp: str) -> Scenarios:
    """Return the scenarios of the sweep that this process has points of: its `stamp` says what they are."""
    return _scenarios(path, sets, allow_code, allow_outside)


def sweep(
    path: str,
    points: Sequence[Point],
    *,
    sets: Sequence[str] = (),
    allow_code: bool = False,
    allow_outside: bool = False,
    results: Sequence[str] = (),
    executor: Executor | None = None,
    out: str | Path | None = None,
    force: bool = False,
    done: Callable[[int, int], None] = lambda k, n: None,
) -> list[Row]:
    """Run all points; return their rows in order.

    Parameters
    ----------
    path : str
        The scenario.
    points : sequence of Point
    sets : sequence of str
        ``KEY=VALUE`` for all points.
    allow_code, allow_outside : bool
        As for `scenarios.run.load.load_scenario`.
    results : sequence of str
        What rows have besides; see `run_point`.
    executor : concurrent.futures.Executor, optional
        Where they run (processes, a Dask cluster); by default here, one after another.
    out : path, optional
        Write the table there. Finished points are remembered beside it, in ``FILE.points``, and not run
        again.
    force : bool
        Whether another table there is replaced.
    done : callable
        Told (how many are done, of how many).

    Raises
    ------
    InputError
        A point's settings make no scenario, or another table is there already.
    Interrupted
        By Ctrl-C.
    """
    if out is not None and not force:
        check_same_table(out, points)
    if out is None:
        return _sweep(path, points, sets, (allow_code, allow_outside), results, executor, None, done)
    with sweeping(out) as known:
        rows = _sweep(path, points, sets, (allow_code, allow_outside), results, executor, known, done)
        if not force and Path(out).exists() and not same_as(rows, out):
            raise InputError(f"{out}: is there already, and its results differ; replace it with --force")
        write_rows(rows, out)
    return rows


def _sweep(
    path: str,
    points: Sequence[Point],
    sets: Sequence[str],
    allowed: tuple[bool, bool],
    results: Sequence[str],
    executor: Executor | None,
    known: Path | None,
    done: Callable[[int, int], None],
) -> list[Row]:
    """Run the points that the file of points does not have yet; return the rows of all in order."""
    allow_code, allow_outside = allowed
    stamp, now = stamps(path, points, sets, allow_outside)
    columns = [column_of_result(name) for name in results]
    rows: dict[str, Row] = {}
    changed = 0
    if known is not None:
        now = {key: f"{own} {program()}" for key, own in now.items()}
        rows, changed = finished(known, now, columns)
    if changed:
        told = "the scenario, a file that it names, or this program has changed since"
        warnings.warn(f"{known}: {told}: {changed:,} of {len(points):,} points run again", stacklevel=3)

    def entry(key: str) -> Row:
        return {"scenario": now[key], "point": key, "row": rows[key]}

    left = [point for point in points if point.key not in rows]
    try:
        done(len(rows), len(points))
        for point, row in _run(
            path, left, (tuple(sets), allow_code, allow_outside, tuple(results), stamp), executor
        ):
            rows[point.key] = row
            if known is not None:
                remember(known, entry(point.key))
            done(len(rows), len(points))
    except KeyboardInterrupt:
        told = f"{len(rows)} of {len(points)} points are done"
        if known is not None and rows:
            told += f"; {known} keeps them, and the same command goes on there"
        raise Interrupted([rows[point.key] for point in points if point.key in rows], told) from None
    ended = [rows[point.key] for point in points]
    if ended and all(str(row["error"]).startswith(_INVALID) for row in ended):  # it is not the values
        raise InputError(str(ended[0]["error"]).removeprefix(_INVALID))
    if known is not None:
        keep(known, (entry(point.key) for point in points))
    return ended


def _run(
    path: str, points: Sequence[Point], how: tuple[Any, ...], executor: Executor | None
) -> Iterator[tuple[Point, Row]]:
    if executor is None:
        for point in points:
            yield point, run_point(path, point, *how)
        return
    ended: SimpleQueue[Future[Row]] = SimpleQueue()  # an interrupt leaves no lock of it taken
    with without_interrupts():  # which processes that start now inherit: Ctrl-C is for this one alone
        futures: dict[Future[Row], Point] = {
            executor.submit(run_point, path, point, *how): point for point in points
        }
        for future in futures:
            future.add_done_callback(ended.put)
    try:
        for _ in points:
            future = ended.get()
            yield futures[future], future.result()
    except BrokenExecutor:
        raise RunError(
            "a process of the sweep ended by itself; the machine may have run out of memory"
        ) from None
    finally:
        for future in futures:
            future.cancel()
