"""``validation/README.md``: the reports of all recorded machines, and how to record a GPU."""

from __future__ import annotations

from pathlib import Path


def page(folder: Path) -> str:
    """Return the summaries of all recorded machines as one page, figures included.

    Parameters
    ----------
    folder : Path
        ``validation``, with ``data/DEVICE-DATE/report.md`` and ``gpu/session.md``.
    """
    parts = [
        "# Validation",
        "",
        "How close do simulated makespans come to measured ones? `make validate` measures your machine "
        "and adds it here; `make validate-gpu` does so on a CUDA GPU. "
        "[Design](../docs/design.md#9-validation-method-and-lessons) has the method. "
        "The tests predict every recorded case again and fail if an error grows.",
        "",
        "*Prediction*: simulated with a calibration that never saw the graph. *Replay*: with the durations "
        "and decisions of the measured run. *Noise floor*: the median of the other runs of the same case. "
        "Errors are of makespans, mean / maximum. *Tau* compares the order of starts. *Ratio* is the largest "
        "error of a ratio between two policies. *Regret* is the loss from choosing the policy that was "
        "predicted to be best.",
    ]
    for report in sorted(folder.glob("data/*/report.md")):
        home = f"data/{report.parent.name}"
        head, *_ = report.read_text().split("\n## ", 1)
        title, table = head.removeprefix("# ").split("\n", 1)[0], head[head.index("\n| ") :].strip()
        parts += ["", f"## {title}", "", table.replace("](", f"]({home}/"), ""]
        parts += [f"Case by case, with naive predictors: [the whole report]({home}/report.md)."]
    parts += ["", (folder / "gpu/session.md").read_text().rstrip()]
    return "\n".join(parts) + "\n"


def text() -> str:
    """Return the page of the recorded machines."""
    return page(Path("validation"))
