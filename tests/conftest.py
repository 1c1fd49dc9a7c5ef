"""What all tests share: recorded inputs, reproducible property tests, drawing without a display."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("MPLBACKEND", "Agg")

# The same examples every time, and no deadline: a busy machine is not a bug. To look for new
# counter-examples: HYPOTHESIS_PROFILE=explore.
settings.register_profile(
    "reproducible", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "reproducible"))


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the folder of the repository."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir(root: Path) -> Path:
    """Return the folder of recorded inputs, or skip: they are other people's and not part of the repository.

    It is ``$SIM_DATA``, or ``shared/data`` beside the repository.
    """
    given = os.environ.get("SIM_DATA")
    folder = Path(given) if given else root.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no recorded inputs: {folder} is not a folder (set SIM_DATA to where they are)")
    return folder
