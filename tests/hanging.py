"""A test that hangs ends: after a time its process says where it is, and stops.

pytest-xdist reports the test as one that crashed its worker, and goes on with the others in another.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from typing import Final

import pytest

MOST_S: Final = float(os.environ.get("TEST_TIMEOUT_S", "300"))
"""Seconds that a test may take; a slow one four times as many."""


_STDERR: Final = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep where errors go while nothing is captured yet."""
    config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch over a test, its fixtures included."""
    most_s = 4 * MOST_S if item.get_closest_marker("slow") else MOST_S
    faulthandler.dump_traceback_later(most_s, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
