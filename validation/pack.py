"""One archive of what a session has written, for machines from which only a few files can be brought home."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Final

from sim.base.errors import RunError
from sim.base.files import atomic_path

MOST_BYTES: Final = 16_000_000
"""What one file may have on its way home."""


def archive_of(folder: Path) -> Path:
    """Return where the archive of a folder is: beside it."""
    folder = folder.resolve()
    return folder.with_name(f"{folder.name}.tar.gz")


def pack(folder: Path) -> Path:
    """Write the archive DIR.tar.gz beside a folder, whole or not at all; the same files give the same bytes.

    Raises
    ------
    RunError
        It is larger than `MOST_BYTES`; it is there all the same.
    """
    folder = folder.resolve()
    archive = archive_of(folder)
    with (
        atomic_path(archive) as part,
        part.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            tar.add(path, str(path.relative_to(folder.parent)), filter=_plain)
    size = archive.stat().st_size
    if size > MOST_BYTES:
        raise RunError(
            f"{archive} has {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}: pack fewer experiments, "
            "each group of them in a folder of its own (--experiments, --out)"
        )
    return archive


def _plain(about: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who has written a file, and when."""
    about.uid = about.gid = about.mtime = 0
    about.uname = about.gname = ""
    about.mode = 0o644
    return about
