"""Regenerate pages from data, from the root of the repository.

::

    python -m tools.pages                  all of them
    python -m tools.pages zero-bubble      one
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.pages import validation, zero_bubble

PAGES = {
    "validation": (validation.text, "validation/README.md"),
    "zero-bubble": (zero_bubble.text, "studies/zero_bubble/results.md"),
}
"""Name → function that returns its text, and its path"""


def main() -> None:
    """Write the named pages."""
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description="Write pages made from data.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PAGES)}; default: all")
    names = parser.parse_args().names or list(PAGES)
    if unknown := [name for name in names if name not in PAGES]:
        parser.error(f"unknown page {unknown[0]!r}. Known: {', '.join(PAGES)}")
    for name in names:
        text, path = PAGES[name]
        Path(path).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
