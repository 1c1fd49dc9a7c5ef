"""``validation/README.md``: the reports of all recorded machines, and how to record a GPU."""

from __future__ import annotations

from pathlib import Path


def page(folder: Path) -> str:
    """Return the text of ``validation.md`` with the summaries of all recorded machines, figures included.

    Parameters
    ----------
    folder : Path
        ``validation``, with ``data/DEVICE-DATE/report.md``.
    """
    parts = []
    for report in sorted(folder.glob("data/*/report.md")):
        home = f"data/{report.parent.name}"
        head, *_ = report.read_text().split("\n## ", 1)
        title, table = head.removeprefix("# ").split("\n", 1)[0], head[head.index("\n| ") :].strip()
        parts += [f"## {title}", table.replace("](", f"]({home}/")]
        parts += [f"Case by case, with naive predictors: [the whole report]({home}/report.md)."]
    text = Path(__file__).with_name("validation.md").read_text(encoding="utf-8")
    return text.replace("<!-- the recorded machines -->", "\n\n".join(parts))


def text() -> str:
    """Return the page of the recorded machines."""
    return page(Path("validation"))
