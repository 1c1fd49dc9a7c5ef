"""The page of the command line: the ``--help`` of every command."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from typer.main import get_command

_HEAD: Final = """\
# Commands

What `sim COMMAND --help` says of each command. Exit status: 0 done; 1 a check failed, or the workload
cannot run on the machine; 2 wrong usage or a wrong scenario; 3 a mistake of this program
(`SIM_TRACEBACK=1` shows where); 124 `--limit` is over; 130 interrupted. `sim --install-completion` makes
the shell complete names.
"""


def text() -> str:
    """Return the page."""
    from scenarios.cli import app

    group: Any = get_command(app)
    context = group.make_context("sim", [], resilient_parsing=True)
    parts = [_HEAD]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        parts.append(f"## sim {name}\n\n{inspect.cleandoc(command.help or '').strip()}\n")
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"    sim {name} {usage}\n")
        records = [param.get_help_record(context) for param in command.params]
        rows = [_row(*record) for record in records if record is not None]
        parts.append("\n".join(["| argument or option | meaning |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _row(name: str, told: str) -> str:
    """Return the row of an argument or option."""
    meaning = " ".join(told.split()).replace("|", "\\|").replace("<", "&lt;")
    return f"| `{re.sub(' <.*>', '', name)}` | {meaning} |"
