r"""Standard output and error as the command writes to them.

* Control characters in names come from files of other people, and could steer a terminal. They are written
  as ``\u001b``, which is what JSON writes, too. Bold, which the command itself uses, goes through.
* A reader that closes early (``| head -1``) costs nothing but what it does not read: the rest is dropped, and
  files are still written.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

__all__ = ["Terminal", "escaped", "terminal", "unescaped"]

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


class Terminal(io.TextIOBase):
    """A text stream that escapes what is written, and forgives a reader that has left."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return what the stream itself has."""
        return getattr(self.stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return self.stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the stream does about characters that it does not have."""
        return self.stream.errors

    def isatty(self) -> bool:
        """Whether a person reads it."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """Return the number of its file."""
        return self.stream.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

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
    sys.stdout, sys.stderr = (s if isinstance(s, Terminal) else Terminal(s) for s in before)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream below a `Terminal`, for a line that is renewed in place."""
    return stream.stream if isinstance(stream, Terminal) else stream
