"""``sim schema``: the JSON Schema of scenario files, for editors."""

from __future__ import annotations

import typer

__all__ = ["schema"]


def schema() -> None:
    """Print the JSON Schema of scenario files.

    An editor with a YAML language server uses it if a scenario begins with the line
    `# yaml-language-server: $schema=./scenario.schema.json`.
    """
    from scenarios.schema import json_schema_text

    typer.echo(json_schema_text(), nl=False)
