"""Measure here what can be measured without a GPU, and write ``validation/README.md`` anew.

::

    python -m validation.record timer threads     into validation/data/DEVICE-DATE, then the page
    python -m validation.record                   the page only, from what is recorded
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from validation.__main__ import main as validate

__all__ = ["main", "page"]


def page(folder: Path) -> str:
    """Return the reports of all recorded machines as one page, figures included.

    Parameters
    ----------
    folder : Path
        ``validation``, with ``data/DEVICE-DATE/report.md``.
    """
    parts = [
        "# Validation",
        "",
        "This page shows how close simulated makespans come to measured ones, for readers who want to know "
        "how far to trust a prediction. `make validate` (and `make validate-gpu` on a machine with CUDA) "
        "generates it from the recordings in `data/`; `docs/design.md` describes the method and its lessons. "
        "The tests predict every recorded case again and fail if an error grows.",
    ]
    for report in sorted(folder.glob("data/*/report.md")):
        text = report.read_text().replace("](", f"](data/{report.parent.name}/")
        parts += ["", "\n".join(f"#{line}" if line.startswith("#") else line for line in text.splitlines())]
    return "\n".join(parts) + "\n"


def main(backends: Sequence[str] | None = None) -> int:
    """Measure on these backends and write the page; return the worst exit status."""
    backends = sys.argv[1:] if backends is None else backends
    status = max([validate(["--backend", backend]) for backend in backends], default=0)
    Path("validation/README.md").write_text(page(Path("validation")))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
