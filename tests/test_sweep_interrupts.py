"""A second Ctrl-C while a parallel sweep ends its processes."""

from __future__ import annotations

import gc
import os
import signal
import time
from multiprocessing.process import BaseProcess

import pytest

from scenarios.run.sweeps.sweep_executors import process_executor


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
