"""Display of objects in notebooks: a title, details and tables, as HTML.

Jupyter calls ``_repr_html_`` of an object. Each class gives its title, details and rows; here they become
HTML, without colours, so that they look right in all themes, including dark ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple, TypeVar

from sim.base.arrays import group_pairs

Rows = Sequence[Mapping[str, str]]

_T = TypeVar("_T")


class Section(NamedTuple):
    """A part of the output on runs, the same in a terminal and a notebook.

    Attributes
    ----------
    lines : sequence of str
        Above its tables.
    tables : sequence of rows
        Each row with its cells by column.
    notes : sequence of str
        Below them.
    """

    lines: Sequence[str] = ()
    tables: Sequence[Rows] = ()
    notes: Sequence[str] = ()


_MOST_ROWS: Final = 20
"""Maximum number of rows shown; the rest are counted."""


_PREFORMATTED: Final = "background:none;font-family:monospace;white-space:pre;overflow-x:auto"


def card(title: str, details: Iterable[str] = (), *tables: Rows, text: str = "") -> str:
    """Return HTML of a title, details (one per line), preformatted text and tables.

    Parameters
    ----------
    title : str
    details : iterable of str
    *tables : sequence of mappings
        Rows; their keys are the columns. Columns of numbers are right-aligned.
    text : str
        Its lines and blanks are kept.

    Examples
    --------
    >>> print(card("a < b", ["1 op"], [{"op": "a", "ns": "10"}]))
    <div><strong>a &lt; b</strong><br>1 op
    <table><thead>
    <tr><th style="text-align:left">op</th><th style="text-align:right">ns</th></tr></thead><tbody>
    <tr><td style="text-align:left">a</td><td style="text-align:right">10</td></tr>
    </tbody></table></div>
    """
    lines = "<br>".join([f"<strong>{escape(title)}</strong>", *map(escape, details)])
    typed = [f'<pre style="{_PREFORMATTED}">{escape(text)}</pre>'] if text else []
    return "\n".join([f"<div>{lines}", *typed, *(_table(rows) for rows in tables if rows)]) + "</div>"


def card_of(title: str, sections: Sequence[Section]) -> str:
    """Return HTML of a title, the lines and notes of sections, and their tables; see `card`."""
    lines = (line for part in sections for line in (*part.lines, *part.notes))
    return card(title, lines, *(table for part in sections for table in part.tables))


def _table(rows: Rows) -> str:
    visible, columns = rows[:_MOST_ROWS], list(rows[0])
    sides = {column: "right" if _is_numeric(visible, column) else "left" for column in columns}
    lines = [
        "".join(f'<td style="text-align:{sides[column]}">{escape(row[column])}</td>' for column in columns)
        for row in visible
    ]
    if more := len(rows) - len(visible):
        lines.append(f'<td style="text-align:left" colspan="{len(columns)}">... {more:,} more</td>')
    head = "".join(f'<th style="text-align:{sides[column]}">{escape(column)}</th>' for column in columns)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead>\n<tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _is_numeric(rows: Rows, column: str) -> bool:
    """Whether all non-empty cells of a column are numbers, with or without a unit."""
    cells = [row[column] for row in rows if row[column]]
    return bool(cells) and all(cell.lstrip("-+")[:1].isdigit() and len(cell) < 24 for cell in cells)


def alike(things: Iterable[_T], row: Callable[[_T], Mapping[str, str]], name: Callable[[_T], str]) -> Rows:
    """Return one row per group of things with equal rows, named after its first and last member.

    Examples
    --------
    >>> alike(["a", "b", "x"], lambda letter: {"late": "yes" if letter > "w" else ""}, str.upper)
    [{'': 'A ... B (2)', 'late': ''}, {'': 'X', 'late': 'yes'}]
    """
    groups = group_pairs((tuple(row(thing).values()), thing) for thing in things)
    return [
        {
            "": name(some[0]) + (f" ... {name(some[-1])} ({len(some):,})" if len(some) > 1 else ""),
            **row(some[0]),
        }
        for some in groups.values()
    ]


def filled_columns(rows: Rows) -> Rows:
    """Return rows without the columns in which all cells are empty.

    Examples
    --------
    >>> filled_columns([{"device": "gpu0", "gap": ""}])
    [{'device': 'gpu0'}]
    """
    filled = [column for column in (rows[0] if rows else ()) if any(row[column] for row in rows)]
    return [{column: row[column] for column in filled} for row in rows]
