"""Executors on which variants run: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import active_children, get_context, parent_process
from queue import SimpleQueue
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import TypeVar

from sim.base.errors import InputError, RunError, extra

_P = TypeVar("_P")
_R = TypeVar("_R")


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block.

    Processes that start meanwhile inherit that. An interrupt while a lock is held would leave it locked.
    """
    before, heard = signal.getsignal(signal.SIGINT), []
    noted = current_thread() is main_thread() and callable(before)
    if noted:  # the mask below is for this thread only: another one may receive the signal
        signal.signal(signal.SIGINT, lambda *arguments: heard.append(arguments))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if noted:
            signal.signal(signal.SIGINT, before)
            if heard and callable(before):
                before(*heard[0])


def run_on(
    executor: Executor | None, run: Callable[[_P], _R], points: Iterable[_P], ahead: int | None = None
) -> Generator[tuple[_P, _R], None, None]:
    """Yield points with the results of `run`, as they finish.

    Parameters
    ----------
    executor : concurrent.futures.Executor or None
        None: they run here, one after another.
    run : callable
    points : iterable
    ahead : int, optional
        Number of points that run at once; results then come in order. By default all run at once.

    Raises
    ------
    RunError
        A process ended unexpectedly.
    """
    remaining = iter(points)
    if executor is None:
        yield from ((point, run(point)) for point in remaining)
        return
    running: dict[Future[_R], _P] = {}
    ended: SimpleQueue[Future[_R]] = SimpleQueue()  # an interrupt does not leave it locked

    def submit(limit: int | None) -> None:
        with without_interrupts():  # processes that start now inherit it: Ctrl-C is for this one alone
            for point in itertools.islice(remaining, limit):
                future = executor.submit(run, point)
                running[future] = point
                future.add_done_callback(ended.put)

    try:
        submit(ahead)
        while running:
            future = ended.get() if ahead is None else next(iter(running))
            result, point = future.result(), running.pop(future)
            submit(0 if ahead is None else 1)
            yield point, result
    except BrokenExecutor:
        raise RunError("a process ended by itself; the machine may have run out of memory") from None
    finally:
        for future in running:
            future.cancel()


@contextmanager
def _interrupted_once() -> Iterator[Callable[[], object]]:
    """Handle only the first Ctrl-C in the block: a second one would interrupt the clean-up of the first.

    Yields a function that ignores Ctrl-C from then on. A mask would not do, as other threads may receive it.
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


def _begin_process(begin: Callable[[], None]) -> None:
    sys.stdout = sys.stderr  # the table, or JSON, is for the process that started this one to print
    begin()
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    Thread(target=end, daemon=True).start()


@contextmanager
def process_executor(jobs: int, begin: Callable[[], None]) -> Iterator[Executor]:
    """Yield an executor on `jobs` processes, which end at once if something goes wrong here.

    They also end if this process is killed; otherwise idle ones would wait for work for ever.

    Parameters
    ----------
    jobs : int
    begin : callable
        Called first in each process.
    """
    others = active_children()
    with (
        _interrupted_once() as deaf,
        ProcessPoolExecutor(jobs, get_context("spawn"), _begin_process, (begin,)) as executor,
    ):
        try:
            yield executor
        except BaseException:
            deaf()
            for process in active_children():  # the executor does not know one that is just starting
                if process not in others:
                    process.terminate()
            executor.shutdown(cancel_futures=True)
            raise


@contextmanager
def executor_of(jobs: int, begin: Callable[[], None], dask: str | None = None) -> Iterator[Executor | None]:
    """Yield what variants run on: a Dask cluster if there is an address, processes, or None for here.

    Raises
    ------
    MissingExtraError
        The extra ``dask`` is not installed.
    InputError
        The address is not valid.
    """
    if dask is None:
        with process_executor(jobs, begin) if jobs > 1 else nullcontext() as executor:
            yield executor
        return
    with extra("dask", "a sweep on a Dask cluster"):
        from distributed import Client
    try:
        client = Client(dask)
    except ValueError as error:
        raise InputError(f"{dask!r} is no address of a Dask scheduler (tcp://HOST:PORT): {error}") from None
    with client:
        yield client.get_executor()
