"""``validation/README.md``: the reports of all recorded machines, and how to record a GPU."""

from __future__ import annotations

from pathlib import Path


def page(folder: Path) -> str:
    """Return the reports of all recorded machines as one page, figures included.

    Parameters
    ----------
    folder : Path
        ``validation``, with ``data/DEVICE-DATE/report.md`` and ``gpu/session.md``.
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
    parts += ["", (folder / "gpu/session.md").read_text().rstrip()]
    return "\n".join(parts) + "\n"


def text() -> str:
    """Return the page of what is recorded."""
    return page(Path("validation"))
