"""Where the points of a sweep run: on processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread, current_thread, main_thread

from sim.words.errors import InputError, extra

__all__ = ["dask_executor", "process_executor", "without_interrupts"]


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while the block runs, where the system can."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignore Ctrl-C while the block runs; a mask would not do, as other threads take the signal."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
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
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (begin,)) as executor:
        try:
            yield executor
        except BaseException:
            with _deaf():  # a second Ctrl-C would leave a process that the executor then waits for
                for process in list((executor._processes or {}).values()):
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
