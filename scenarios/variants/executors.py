"""Where variants run: on processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
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


def run_on(
    executor: Executor, run: Callable[[_P], _R], points: Iterable[_P], ahead: int | None = None
) -> Generator[tuple[_P, _R], None, None]:
    """Yield points with what came of them, as they end.

    Parameters
    ----------
    executor : concurrent.futures.Executor
    run : callable
    points : iterable
    ahead : int, optional
        How many run at once; they come in order then. By default all do.

    Raises
    ------
    RunError
        A process ended by itself.
    """
    left = iter(points)
    running: dict[Future[_R], _P] = {}
    ended: SimpleQueue[Future[_R]] = SimpleQueue()  # an interrupt leaves no lock of it taken

    def submit(most: int | None) -> None:
        with without_interrupts():  # which processes that start now inherit: Ctrl-C is for this one alone
            for point in itertools.islice(left, most):
                future = executor.submit(run, point)
                running[future] = point
                future.add_done_callback(ended.put)

    try:
        submit(ahead)
        while running:
            future = ended.get() if ahead is None else next(iter(running))
            found, point = future.result(), running.pop(future)
            submit(0 if ahead is None else 1)
            yield point, found
    except BrokenExecutor:
        raise RunError("a process ended by itself; the machine may have run out of memory") from None
    finally:
        for future in running:
            future.cancel()


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


def executor_of(
    jobs: int, begin: Callable[[], None], dask: str | None = None
) -> AbstractContextManager[Executor | None]:
    """Give what variants run on: a Dask cluster where there is an address, processes, or None: here."""
    if dask is not None:
        return dask_executor(dask)
    return process_executor(jobs, begin) if jobs > 1 else nullcontext()


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
