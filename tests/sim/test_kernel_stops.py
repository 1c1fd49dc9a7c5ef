"""A run on the compiled kernel can be stopped: its loop comes back to Python again and again."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import Any

import pytest

from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from scenarios.cli.options import TimeLimitError, time_limit
from sim import Device, GraphBuilder, Job, Link, Machine
from sim.job.build_job import make_job
from sim.kernel import run as kernel_run


def all_at_once(transfers: int) -> Job:
    """Return a job of transfers that are all on their way together: each end changes the rates of all."""
    names = [f"d{i}" for i in range(64)]
    links = []
    for name in names:
        links += [
            Link(f"{name}>", name, "hub", 0, 10**9, "shared"),
            Link(f">{name}", "hub", name, 0, 10**9, "shared"),
        ]
    devices = [Device(name, "cpu", workers=1) for name in names]
    b = GraphBuilder("all at once")
    for i in range(transfers):
        b.op(f"send{i}", outputs=i * 7919 % 100_003 + 1, duration_ns=i % 13, device=names[i % 64])
        to = names[(i * 31 + 7 + i // 64) % 64]
        b.op(f"read{i}", inputs=[f"send{i}"], duration_ns=1, device=to)
    return make_job(b.build(), Machine((*devices, Device("hub")), tuple(links), network=make_network))


# An interrupt in a callback of the garbage collector (hypothesis has one) is lost, with this warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_a_limit_ends_the_loop(monkeypatch: pytest.MonkeyPatch, handler: Any) -> None:
    """Also where nobody listens to Ctrl-C, as in the background of a script."""
    monkeypatch.setattr("scenarios.cli.options._GRACE_S", 10)  # the process is that of the tests
    job = all_at_once(4_000)  # nearly a minute
    before = signal.signal(signal.SIGINT, handler)
    began = time.process_time()  # of this process alone, however busy the machine is
    with pytest.raises(TimeLimitError, match=r"stopped after 0.3 s \(--limit\)"), time_limit(0.3):
        kernel_run.run(job, ReadyQueue())
    assert time.process_time() - began < 20  # a second interrupt comes after 5 s
    assert signal.signal(signal.SIGINT, before) == handler


def test_who_misses_the_first_interrupt_hears_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that arrives in a callback of the garbage collector."""
    monkeypatch.setattr("scenarios.cli.options._GRACE_S", 2)

    def sleep_on() -> None:
        with suppress(KeyboardInterrupt):
            time.sleep(30)
        time.sleep(30)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(TimeLimitError), time_limit(0.05):
            sleep_on()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("pure", [False, True])
def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch, pure: bool) -> None:
    job = all_at_once(60)
    traces = []
    for seconds in (0.0, 1e9):  # round by round; in ever longer slices
        monkeypatch.setattr(kernel_run, "_SLICE_S", seconds)
        traces.append(kernel_run.run(job, ReadyQueue(), pure=pure))
    one, other = traces
    assert not isinstance(one, str)
    assert not isinstance(other, str)
    assert one.to_pandas(transfers=True).equals(other.to_pandas(transfers=True))
