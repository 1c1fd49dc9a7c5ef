"""How many examples hypothesis draws: few and always the same ones, or many new ones.

``HYPOTHESIS_PROFILE=explore`` looks for new counter-examples, `EXPLORE` times as many for each test; by
default (``quick``) a test draws the same examples every time, so that a failure is one for everybody.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

EXPLORE: Final = 20
DRAWN: Final = 60
"""How many examples a test draws that does not say how many (`examples`)."""

_FACTOR = EXPLORE if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 1


def load_profile() -> None:
    """Set what holds for every property test: no deadline, for a busy machine is not a bug."""
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "quick", derandomize=True, deadline=None, max_examples=DRAWN, suppress_health_check=slow
    )
    settings.register_profile(
        "explore", deadline=None, max_examples=DRAWN * EXPLORE, print_blob=True, suppress_health_check=slow
    )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def examples(n: int) -> settings:
    """Return the decorator of a test that draws `n` examples, and more when exploring."""
    return settings(max_examples=n * _FACTOR)
