"""``--limit SECONDS``: a command that takes longer is interrupted, as Ctrl-C does.

::

    0 ──────────── SECONDS ──── + 1 s ──── + 2 s
                   interrupt    again      what does not listen is ended
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, Final

import typer

from scenarios.cli.process.added_option import takes_also
from sim.words.errors import SimError

__all__ = ["TimeLimitError", "limited", "with_limit"]

_GRACE_S: Final = 2.0

_Option = Annotated[
    float | None,
    typer.Option("--limit", metavar="SECONDS", help="Stop after so many seconds, with exit status 124."),
]


class TimeLimitError(SimError):
    """A command took longer than ``--limit`` allows; the exit status is that of ``timeout``."""

    exit_status = 124


def with_limit(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb that takes ``--limit`` as well; one that has a ``--limit`` of its own keeps that."""
    if "limit" in inspect.signature(verb).parameters:
        return verb

    @wraps(verb)
    def run(*, limit: float | None, **given: Any) -> Any:
        with limited(limit):
            return verb(**given)

    return takes_also(run, verb, "limit", _Option)


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Interrupt the block, which runs in the main thread, after so many seconds; None: never.

    Raises
    ------
    TimeLimitError
        The time is up.
    """
    if seconds is None:
        yield
        return
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise typer.BadParameter("--limit should be a number of seconds, more than 0")
    said = f"stopped after {seconds:g} s (--limit)"
    up, over = threading.Event(), threading.Event()
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # in the background of a script, under nohup
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch, args=(seconds, said, up, over), daemon=True).start()
    try:
        yield
    except KeyboardInterrupt as error:
        if not up.is_set():
            raise
        raise TimeLimitError(f"{said}; {error}" if str(error) else said) from None
    finally:
        over.set()
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _watch(seconds: float, said: str, up: threading.Event, over: threading.Event) -> None:
    if over.wait(seconds):
        return
    up.set()
    for _ in range(2):  # one that arrives in a finaliser or a callback of the garbage collector is lost
        _interrupt()
        if over.wait(_GRACE_S / 2):
            return
    print(said, file=sys.stderr, flush=True)
    os._exit(TimeLimitError.exit_status)


def _interrupt() -> None:
    if hasattr(signal, "pthread_kill"):  # a signal also ends waiting for a lock or a pipe
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        interrupt_main()
