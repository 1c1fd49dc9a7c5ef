r"""Standard output and standard error of the command.

* Control characters in names come from other people's files, and could steer a terminal. They are written as
  ``\u001b``, as in JSON. Bold text, which the command itself uses, is let through.
* If the reader closes early (``| head -1``), or there is none (``>&-``), the rest of the output is dropped,
  and files are still written.
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
from pathlib import Path
from typing import Any, Final, TextIO

import typer

from sim.base.plugins import packages_of_plugins

_CONTROL: Final = re.compile(
    r"\x1b\[[01]m|([\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff])"
)
"""Bold on and off; characters that steer a terminal or the direction of text, and lone surrogates."""


def escape(text: str) -> str:
    r"""Return `text` with control characters written as escapes.

    Examples
    --------
    >>> print(escape("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[1]):04x}" if found[1] else found[0], text)


class Terminal:
    """A text stream that escapes what is written, and tolerates a reader that has left."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream itself."""
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write `text`, escaped; return its length. Writing nothing is how callers test for a text stream."""
        if shown := escape(text):  # such a test expects an error for bytes, not one of the stream
            with self._forgiving():
                self.stream.write(shown)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._forgiving():
            self.stream.flush()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Drop output that has no reader any more; name the stream in all other errors."""
        try:
            yield
        except OSError as error:
            with suppress(OSError, ValueError):  # buffered output must not fail again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, self.stream.name) from None


@contextmanager
def terminal() -> Iterator[None]:
    """Replace stdout and stderr by a `Terminal` in the block."""
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


def unwrap(stream: TextIO) -> TextIO:
    """Return the stream below a `Terminal`, for a line that is updated in place."""
    return stream.stream if isinstance(stream, Terminal) else stream


# ----------------------------------------------------------------------------------------------------------
# Who caused an unexpected error: this program, or code that the user named.
#
#     scenarios/cli/... ─► sim/engine/engine.py ─► shortest.py:19 ─► heapq.py                theirs
#     scenarios/cli/... ─► sim/engine/engine.py ─► shortest.py:19 ─► sim/graph/graph.py      theirs
#     scenarios/cli/... ─► sim/engine/engine.py ─► numpy/...                                 ours

_ROOT: Final = Path(__file__).resolve().parents[2]
_OURS: Final = ("sim", "devices", "policies", "scenarios", "validation", "studies")


_CALL: Final = re.compile(r'^ +File "(.+)", line (\d+)', re.MULTILINE)


def place_of_other_code(error: BaseException) -> str | None:
    """Return the file and line at which a user's code failed, or None if the error is ours.

    It is theirs if any frame of the traceback is; the last such frame is returned. Libraries are neither,
    except packages that register plugins. Frames of another process are available as text only.
    """
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    plugins = packages_of_plugins(tuple(sys.path))
    calls: list[tuple[Path, int, str]] = []
    each: BaseException | None = error
    while each is not None:  # SimPy raises what a process has raised again, as a cause
        calls += [
            (Path(frame.f_code.co_filename), line, str(frame.f_globals.get("__name__")).split(".")[0])
            for frame, line in traceback.walk_tb(each.__traceback__)
        ]
        each = each.__cause__
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
# How the command shows warnings: one line each on stderr, and one line for a warning that many runs share.


def show_warnings() -> None:
    """Show the warnings of this process as the command does, also in the workers that it starts.

    Of several about the same subject, only the first is shown. A warning whose text differs between runs, for
    example in its counts, has an attribute ``subject``: see `devices.cost.unreliable.PlainRooflineWarning`.
    """
    subjects: set[str] = set()

    def show(message: Warning | str, *where: object, **more: object) -> None:
        subject = getattr(message, "subject", None)
        if subject is None or subject not in subjects:
            typer.echo(f"warning: {message}", err=True)
            subjects.update([subject] if subject is not None else [])

    warnings.showwarning = show
