r"""Standard output and error as the command writes to them.

* Control characters in names come from files of other people, and could steer a terminal. They are written
  as ``\u001b``, which is what JSON writes, too. Bold, which the command itself uses, goes through.
* A reader that closes early (``| head -1``), or is not there (``>&-``), costs nothing but what it does not
  read: the rest is dropped, and files are still written.
"""

from __future__ import annotations

import io
import os
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, TextIO

import typer

from sim.base.plugins import GROUPS

_CONTROL: Final = re.compile(
    r"\x1b\[[01]m|([\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff])"
)
"""Bold on and off; what steers a terminal or the direction of text, and what is no character at all."""


def escaped(text: str) -> str:
    r"""Return `text` with control characters written out.

    Examples
    --------
    >>> print(escaped("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[1]):04x}" if found[1] else found[0], text)


class Terminal:
    """A text stream that escapes what is written, and forgives a reader that has left."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return what the stream itself has."""
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write `text`, escaped; return its length. Nothing is a question whether this is for text."""
        if shown := escaped(text):  # who asks does not hear of an error, but wants one of bytes
            with self._forgiving():
                self.stream.write(shown)
        return len(text)

    def flush(self) -> None:
        """Hand over what was written."""
        with self._forgiving():
            self.stream.flush()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Drop what nobody reads any more; name the stream in any other failure."""
        try:
            yield
        except OSError as error:
            with suppress(OSError, ValueError):  # what is still held must not fail again at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, self.stream.name) from None


@contextmanager
def terminal() -> Iterator[None]:
    """Write through a `Terminal` while the block runs."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (s if isinstance(s, Terminal) else Terminal(s or io.StringIO()) for s in before)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream below a `Terminal`, for a line that is renewed in place."""
    return stream.stream if isinstance(stream, Terminal) else stream


# ----------------------------------------------------------------------------------------------------------
# Whose mistake an unexpected error is: this program's, or that of a class that the user named.
#
#     scenarios/cli/... ─► sim/engine/engine.py ─► shortest.py:19 ─► heapq.py                theirs
#     scenarios/cli/... ─► sim/engine/engine.py ─► shortest.py:19 ─► sim/graph/graph.py      theirs
#     scenarios/cli/... ─► sim/engine/engine.py ─► numpy/...                                 ours

_ROOT: Final = Path(__file__).resolve().parents[2]
_OURS: Final = ("sim", "devices", "policies", "scenarios", "validation", "studies")


_CALL: Final = re.compile(r'^ +File "(.+)", line (\d+)', re.MULTILINE)


def place_of_other_code(error: BaseException) -> str | None:
    """Return the file and line at which code of others went wrong; None where the mistake is ours.

    It is theirs if any of the calls that led there was; the last one is told. Libraries are neither, but for
    packages that register plugins. Of calls in another process there is a text.
    """
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    plugins = {each.module.split(".")[0] for group in GROUPS for each in entry_points(group=group)}
    calls = [
        (Path(frame.f_code.co_filename), line, str(frame.f_globals.get("__name__")).split(".")[0])
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if type(error.__cause__).__name__ == "_RemoteTraceback":
        for name, line in _CALL.findall(str(error.__cause__)):
            file = Path(name)
            package = (file.relative_to(_ROOT) if file.is_relative_to(_ROOT) else file).parts[0]
            calls.append((file, int(line), package))
    for file, line, package in reversed(calls):
        ours = package in _OURS and (not file.is_absolute() or file.is_relative_to(_ROOT))
        library = any(file.is_relative_to(folder) for folder in libraries) and package not in plugins
        if file.is_file() and not library and not ours:
            return f"{file}:{line}"
    return None


# ----------------------------------------------------------------------------------------------------------
# How the command shows warnings: a line each on stderr, and one line for what many runs have in common.


class Shown:
    """Writes warnings to stderr; of those about the same subject in many runs, the first.

    A warning whose text differs from run to run (its counts do) names in its attribute ``subject`` what it is
    about, as `devices.cost.unreliable.PlainRooflineWarning` does.
    """

    def __init__(self) -> None:
        self.subjects: set[str] = set()

    def __call__(self, message: Warning | str, *where: object, **more: object) -> None:
        """Show a warning, in place of `warnings.showwarning`."""
        subject = getattr(message, "subject", None)
        if subject in self.subjects:
            return
        if subject is not None:
            self.subjects.add(subject)
        typer.echo(f"warning: {message}", err=True)


def show_warnings() -> None:
    """Show the warnings of this process as the command does: for the workers that it starts."""
    warnings.showwarning = Shown()
