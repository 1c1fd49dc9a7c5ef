"""JSON files of one long list: its items come one at a time, so that nobody has to hold them all.

::

    {"schemaVersion": 1, "traceEvents": [ {...}, {...}, ... ], "traceName": "..."}
                                          └──► yielded          └──► kept with the others

The text is read in pieces. Items are parsed many at a time, up to a place where one object seems to follow
another. If it was none (inside an item, or a text), or if something is wrong, `json` parses the rest of the
piece item by item, and says what. An item that does not end in the text read so far is tried again with twice
as much.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

from scenarios.importers.files import StrPath
from sim.files.reading import read_chunks
from sim.words.errors import InputError

__all__ = ["MOST_CHARACTERS", "Decode", "items", "lists"]

Decode = Callable[[str], list[Any]]
"""Parses the text of a list; ValueError or RecursionError: something is wrong with it."""

MOST_CHARACTERS: Final = 2**28
"""Longest item, or other value, of a file."""

_TOKEN: Final = 16
"""So near the end of the text `json` may take for wrong, or whole, what goes on: ``-Infin``, ``1e``."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NEXT: Final = re.compile(r"[ \t\n\r]*([,\]}])[ \t\n\r]*")
_BETWEEN: Final = re.compile(r"\}[ \t\n\r]*,[ \t\n\r]*\{")
_TOGETHER: Final = 2**16
"""Characters parsed together: what is made of them should fit into a processor's cache."""
_TRIES: Final = 100
"""How many braces at the end of a piece are looked at for one that is followed by another item."""


def items(path: StrPath, what: str, key: str, others: dict[str, Any]) -> Iterator[Any]:
    """Yield the items of the list `key` of a JSON object one by one, as `lists`."""
    return chain.from_iterable(lists(path, what, key, others))


def lists(
    path: StrPath, what: str, key: str, others: dict[str, Any], decode: Decode = json.loads
) -> Iterator[list[Any]]:
    """Yield the items of the list `key` of a JSON object, many at a time; a list instead of the object is it.

    Parameters
    ----------
    path : path
        May be gzipped.
    what : str
        What the file should be, for messages.
    key : str
    others : dict
        Gets the other members of the object; when the last item was yielded, all of them.
    decode : callable
        What parses several items at once; it may leave out members that nobody asks for.

    Raises
    ------
    InputError
        As `read_chunks`; the file is not JSON, neither object nor list, or has no such list, or two.
    """
    text = _Text(path)
    found = False
    if text.takes("["):
        found = True
        yield from text.rest_of_list(decode)
    elif text.takes("{"):
        for name in text.rest_of_names():
            if name != key:
                others[name] = text.value()
            elif found:
                raise InputError(f"{path}: not {what} (it has two lists {key})")
            elif text.takes("["):
                found = True
                yield from text.rest_of_list(decode)
            else:
                break
    else:
        text.value()  # which may be no JSON at all
    if not found:
        raise InputError(f"{path}: not {what} (it has no list {key})")
    text.ends()


class _Text:
    """The text of a file, from where it is parsed to where it was read."""

    def __init__(self, path: StrPath) -> None:
        self._path = path
        self._chunks = _decoded(path)
        self._text, self._at, self._over = "", 0, False
        self._before = 0  # characters that were dropped
        self._decode = json.JSONDecoder().raw_decode
        self._more(1)
        self._skip()

    def takes(self, opening: str) -> bool:
        """Whether a character comes next, and go behind it if so."""
        if not self._text.startswith(opening, self._at):
            return False
        self._at += 1
        self._skip()
        return True

    def rest_of_list(self, decode: Decode) -> Iterator[list[Any]]:
        """Yield the items of a list behind its bracket."""
        if self.takes("]"):
            return
        unclear = -1  # up to where the text was read of which no more items are parsed together
        while True:
            if len(self._text) - self._at < _TOGETHER and not self._over:
                self._more(1)  # items at the end are torn, and would be tried in vain
            read = self._before + len(self._text)
            many = self._together(decode) if read > unclear else []
            if not many:
                unclear = read
                many = [self.value()]
            yield many
            if self._next("]") != ",":
                return

    def _together(self, decode: Decode) -> list[Any]:
        """Return items that come next, and go behind them; none if it is not clear where one ends."""
        end = min(len(self._text), self._at + _TOGETHER)
        for _ in range(_TRIES):
            end = self._text.rfind("}", self._at, end)
            if end < 0:
                break
            if _BETWEEN.match(self._text, end):
                try:
                    found = decode(f"[{self._text[self._at : end + 1]}]")
                except (ValueError, RecursionError):
                    break
                self._at = end + 1
                return found
        return []

    def rest_of_names(self) -> Iterator[str]:
        """Yield the names of an object behind its brace; who gets one takes the value."""
        if self.takes("}"):
            return
        while True:
            if not self._text.startswith('"', self._at):
                raise self._wrong("Expecting property name enclosed in double quotes", self._at)
            name = self.value()
            self._skip()
            if not self.takes(":"):
                raise self._wrong("Expecting ':' delimiter", self._at)
            yield name
            if self._next("}") != ",":
                return

    def ends(self) -> None:
        """Refuse what comes behind the end."""
        if self._at < len(self._text):
            raise self._wrong("Extra data", self._at)

    def value(self) -> Any:
        """Return the value that comes next, and go behind it."""
        wanted = 1
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                torn = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _TOKEN
                if self._over or not torn:
                    raise self._wrong(error.msg, error.pos) from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{self._path}: not JSON: {error}") from None
            else:
                if end < len(self._text) - _TOKEN or self._over:
                    self._at = end
                    return value
            wanted = self._more(wanted)

    def _next(self, closing: str) -> str:
        """Return what follows a value, a comma or the end of what it is in, and go behind it."""
        found = _NEXT.match(self._text, self._at)
        if found is None or found[1] not in {",", closing}:
            self._skip()
            found = _NEXT.match(self._text, self._at)
            if found is None or found[1] not in {",", closing}:
                raise self._wrong("Expecting ',' delimiter", self._at)
        self._at = found.end()
        if self._at == len(self._text):
            self._skip()
        return found[1]

    def _skip(self) -> None:
        """Go behind white space, and read on if nothing else is left."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or self._over:
                return
            self._more(1)

    def _more(self, wanted: int) -> int:
        """Drop what was parsed; read at least so many characters more; return how many to ask for then."""
        self._before += self._at
        pieces, size = [self._text[self._at :]], 0
        while size < wanted and not self._over:
            piece = next(self._chunks, None)
            self._over = piece is None
            pieces.append(piece or "")
            size += len(piece or "")
        self._text, self._at = "".join(pieces), 0
        if len(self._text) > MOST_CHARACTERS and not self._over:
            value = f"the value that begins with {self._text[:20]!r}"
            raise InputError(f"{self._path}: {value} is longer than {MOST_CHARACTERS:,} characters")
        return len(self._text)

    def _wrong(self, message: str, at: int) -> InputError:
        line, column = _line_of(self._path, self._before + at)
        where = f"line {line} column {column} (char {self._before + at})"
        return InputError(f"{self._path}: not JSON: {message}: {where}")


def _line_of(path: StrPath, position: int) -> tuple[int, int]:
    """Return line and column of a character, from 1; who reads on without a fault counts none."""
    line, began, before = 1, 0, 0
    for text in _decoded(path):
        gone = text[: position - before]
        line += gone.count("\n")
        began = before + gone.rindex("\n") + 1 if "\n" in gone else began
        before += len(gone)
        if before == position:
            break
    return line, position - began + 1


def _decoded(path: StrPath) -> Iterator[str]:
    """Yield the text of a file, in the encodings that `json.loads` knows."""
    decoder: codecs.IncrementalDecoder | None = None
    size = 0
    try:
        for chunk in read_chunks(path):
            if decoder is None:
                decoder = codecs.getincrementaldecoder(json.detect_encoding(chunk))("surrogatepass")
            size += len(chunk)
            yield decoder.decode(chunk)
        if decoder is not None:
            yield decoder.decode(b"", True)
    except UnicodeDecodeError as error:
        at = size - len(error.object) + error.start
        raise InputError(f"{path}: not JSON: not {error.encoding} ({error.reason}: byte {at})") from None
