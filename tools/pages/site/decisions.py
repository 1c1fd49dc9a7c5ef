"""The pages of policies, runtimes and devices: what `sim policies NAME` and similar commands print."""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any, Final

import yaml

from scenarios.reference import DECISIONS, KnownDecision, decisions
from sim.base import plugins

_POLICIES: Final = """\
# Policies and other decisions

Everything that `policy:` and its neighbours may name, with all options: what `sim policies NAME` prints.
The rule of each, with its source, is what the file says that implements it.
"""
_RUNTIMES: Final = """\
# Runtimes

A runtime is a set of decisions that bears the name of a framework; keys beside it change it. What they
do, and where that is known from, is in [what runtimes do](../runtimes.md).
"""
_MACHINES: Final = """\
# Devices and machines

Presets for `machine:`, each number with its source: what `sim devices NAME` prints. The keys of a device
are [here](keys.md#machinedevicesname).
"""


def policies() -> str:
    """Return the page of all decisions."""
    parts = [_POLICIES]
    for decision in DECISIONS:
        title = decision.title[0].upper() + decision.title[1:]
        parts.append(f"## {title}\n")
        parts += [_told(known) for known in decisions(decision.group)]
    return "\n".join(parts)


def _told(known: KnownDecision) -> str:
    parts = [f"### {known.name}\n", f"{_markdown(known.summary)}\n"]
    if known.text:
        parts.append(f"{_markdown(known.text)}\n")
    parts.append(f"    {known.written}\n")
    if known.options:
        parts.append("| option | value | default | meaning |\n|---|---|---|---|")
        for one in known.options:
            default = (
                "**needed**" if one.required else "" if one.default is None else f"`{_word(one.default)}`"
            )
            parts.append(
                f"| `{one.name}` | {_cell(one.type)} | {default} | {_cell(_markdown(one.meaning))} |"
            )
        parts.append("")
    rule = textwrap.indent(_markdown(known.rule), "    ")
    parts.append(f'??? note "Rule and source: `{known.code}`"\n\n{rule}\n')
    return "\n".join(parts)


def runtimes() -> str:
    """Return the page of runtimes."""
    parts = [_RUNTIMES]
    for found in plugins.describe("sim.runtimes"):
        runtime = plugins.lookup("sim.runtimes", found.name)
        written = yaml.safe_dump(dict(runtime), sort_keys=False, default_flow_style=None, width=100)
        parts.append(f"## {found.name}\n\n{found.summary}.\n\n```yaml\n{written}```\n")
    return "\n".join(parts)


def machines() -> str:
    """Return the page of presets."""
    from devices.presets import preset_text

    parts = [_MACHINES]
    for group, title in (("sim.machines", "Machines"), ("sim.devices", "Devices")):
        parts.append(f"## {title}\n")
        for found in plugins.describe(group):
            parts.append(f"### {found.name}\n\n{found.summary}\n")
            if (text := preset_text(found.name)) is not None:
                parts.append(f"```yaml\n{text}```\n")
    return "\n".join(parts)


def _markdown(text: str) -> str:
    """Return a docstring as Markdown: its literal blocks become blocks indented by four spaces."""
    text = re.sub(
        r"(?<=::\n\n)((?: .*\n?|\n(?= |\n* ))+)",
        lambda block: textwrap.indent(textwrap.dedent(block[0]), "    "),
        text,
    )
    text = re.sub(r"^::\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"::\n", ":\n", text)
    text = re.sub(r":\w+:(?=`)", "", text).replace("``", "`")
    return re.sub(r"(?<!\\)<(?=\w)", "&lt;", text) if "`" not in text else text


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
