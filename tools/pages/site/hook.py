"""Hook of MkDocs that adds the reference, and the files outside docs/ to which pages link.

::

    docs/runtimes.md ─────────────────────────────►  runtimes.html
    validation/README.md, CHANGELOG.md, ... ──────►  validation/README.html     files linked from pages
    signatures, docstrings, JSON Schema ──────────►  reference/policies.html    regenerated with every build

On the site, docs/ is the root, and every other file keeps its path in the repository: links are
written for readers of the repository, and rewritten here.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.pages.site import commands, decisions, keys, python_api

ROOT: Final = Path(__file__).resolve().parents[3]
PAGES: Final = {
    "reference/commands.md": commands.text,
    "reference/keys.md": keys.text,
    "reference/policies.md": decisions.policies,
    "reference/runtimes.md": decisions.runtimes,
    "reference/machines.md": decisions.machines,
    "reference/python.md": python_api.text,
}
"""Page → function that returns its text."""

_LINKED: Final = ("validation/README.md", "benchmarks/README.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""Pages outside docs/ that the navigation names."""

_LINK: Final = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the reference, and all files outside docs/ to which pages link."""
    for uri, text in PAGES.items():
        files.append(File.generated(config, uri, content=text()))
    files.append(
        File.generated(config, "assets/site.css", abs_src_path=str(Path(__file__).with_name("site.css")))
    )
    seen, waiting = (
        set(),
        [f"docs/{file.src_uri}" for file in files.documentation_pages() if file.abs_src_path],
    )
    waiting += _LINKED
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if not path.startswith("docs/"):
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            waiting += _links(path)
    _add_what_the_navigation_leaves_out(config, files)
    return files


def _add_what_the_navigation_leaves_out(config: MkDocsConfig, files: Files) -> None:
    """Append pages of docs/ that are not in `mkdocs.yml` to the navigation, so that none is lost."""
    named = json.dumps(config.nav)
    left = [file.src_uri for file in files.documentation_pages() if f'"{file.src_uri}"' not in named]
    if left and config.nav is not None:
        config.nav.append({"More": left})


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository to links between pages of the site."""
    here = _in_repository(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        path = _target(here, link[2])
        if path is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(path.removeprefix('docs/'), folder or '.')}{link[3]}"

    return _LINK.sub(rewritten, markdown)


def _in_repository(uri: str) -> str:
    """Return the path of a page in the repository."""
    return uri if (ROOT / uri).is_file() or uri in PAGES else f"docs/{uri}"


def _links(path: str) -> Iterator[str]:
    """Yield the files that a page links to."""
    for link in _LINK.finditer((ROOT / path).read_text(encoding="utf-8")):
        target = _target(path, link[2])
        if target is not None:
            yield target


def _target(here: str, link: str) -> str | None:
    """Return the file of the repository to which a link leads, or None."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
    return path if not path.startswith("..") and os.path.isfile(ROOT / path) else None
