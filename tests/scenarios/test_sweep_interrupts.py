"""A second Ctrl-C while a parallel sweep ends its processes."""

from __future__ import annotations

import gc
import os
import signal
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from threading import Thread

import pytest

from scenarios.variants.executors import process_executor, run_on, without_interrupts
from sim.base.errors import RunError


def _fail_on_two() -> None:
    with process_executor(2, gc.enable) as executor:
        for _ in range(2):
            executor.submit(time.sleep, 5)
        raise ZeroDivisionError


def test_an_interrupt_while_processes_are_ended_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminate = BaseProcess.terminate

    def interrupted(process: BaseProcess) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        terminate(process)

    monkeypatch.setattr(BaseProcess, "terminate", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(ZeroDivisionError):
            _fail_on_two()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt_twice(heard: list[int]) -> None:
    with process_executor(2, gc.enable) as executor:
        executor.submit(time.sleep, 5)
        for _ in range(2):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)
            except KeyboardInterrupt:
                heard.append(signal.SIGINT)
        raise ZeroDivisionError


def test_a_second_interrupt_is_not_heard() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(ZeroDivisionError):
            _interrupt_twice(heard)
        assert heard == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_that_is_killed_ends_the_work_with_a_sentence() -> None:
    with (
        pytest.raises(RunError, match="a process ended by itself"),
        process_executor(1, gc.enable) as executor,
    ):
        list(run_on(executor, os._exit, [1]))


def _fail_beside(stray: BaseProcess) -> None:
    with process_executor(1, gc.enable):
        stray.start()
        raise ZeroDivisionError


def test_a_process_that_the_executor_does_not_know_of_is_ended() -> None:
    stray = get_context("spawn").Process(target=time.sleep, args=(60,))
    with pytest.raises(ZeroDivisionError):
        _fail_beside(stray)
    stray.join(30)
    assert stray.exitcode == -signal.SIGTERM


def test_an_interrupt_that_another_thread_takes_is_held_back() -> None:
    done = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = Thread(target=time.sleep, args=(5,), daemon=True)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt), without_interrupts():
            done += [signal.pthread_kill(other.ident or 0, signal.SIGINT), time.sleep(0.1), "all"]
        assert done[-1] == "all"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
