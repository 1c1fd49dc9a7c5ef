"""How many examples hypothesis draws: few and always the same ones, or many new ones.

A property test says with `examples` (or `seeds`) how many it wants. ``HYPOTHESIS_PROFILE`` says how many
it gets: ``quick``, which is `make test`, one in eight, but five; ``full``, which is `make test-all`, half of
them, but ten; and ``explore`` twenty times as many. The first two draw the same examples every time, so that
a failure is one for everybody; the third looks for new counter-examples.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "quick")
SHARES: Final = {"quick": (1 / 8, 5), "full": (1 / 2, 10), "explore": (20, 10)}
"""Which share of its examples a test gets, and how many at least, if it wants as many."""
DRAWN: Final = 60
"""How many examples a test wants that does not say how many."""


def load_profile() -> None:
    """Set what holds for every property test: no deadline, for a busy machine is not a bug."""
    explore = PROFILE == "explore"
    settings.register_profile(
        PROFILE,
        examples(DRAWN),
        deadline=None,
        derandomize=not explore,
        print_blob=explore,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile(PROFILE)


def examples(n: int) -> settings:
    """Return the decorator of a test that wants `n` examples."""
    return settings(max_examples=drawn(n))


def seeds(n: int) -> range:
    """Return the seeds of a test that draws by itself and wants `n`: as many as it would get examples."""
    return range(drawn(n))


def drawn(n: int) -> int:
    """Return how many draws a test gets that wants `n`."""
    share, least = SHARES[PROFILE]
    return max(min(n, least), round(n * share))
