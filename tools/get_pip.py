"""Install pip into the Python that runs this, from PyPI, using only the standard library.

For Debian's and Ubuntu's Python, which come without ensurepip. A wheel is a zip file that Python can
import from, so pip installs itself. The index is the simple one (https://peps.python.org/pep-0503/),
``$PIP_INDEX_URL`` if that is set, and names the SHA-256 of the wheel.
"""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

WHEEL = re.compile(
    r'<a\b(?P<before>[^>]*)href="(?P<url>[^"#]*/(?P<file>pip-(?P<version>[0-9.]+)-py3-none-any\.whl))'
    r'#sha256=(?P<sha256>[0-9a-f]{64})"(?P<after>[^>]*)>'
)


def read(url: str) -> bytes:
    """Return the content of `url`."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
    return content


def newest(page: str) -> re.Match[str]:
    """Return the link to the wheel of the highest final version that was not withdrawn."""
    links = [link for link in WHEEL.finditer(page) if "data-yanked" not in link["before"] + link["after"]]
    return max(links, key=lambda link: [int(part) for part in link["version"].split(".")])


def main() -> None:
    """Fetch the wheel, compare its digest, and let it install itself."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
    link = newest(read(index).decode())
    content = read(urljoin(index, link["url"]))
    if hashlib.sha256(content).hexdigest() != link["sha256"]:
        sys.exit(f"{link['url']} is not what the index says it is")
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / link["file"]
        wheel.write_bytes(content)
        sys.path.insert(0, str(wheel))
        sys.argv = ["pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
        runpy.run_module("pip", run_name="__main__")


if __name__ == "__main__":
    main()
