"""The command line: ``sim VERB ...``, one file a verb.

Importing this imports typer and nothing heavier, so that ``sim --help`` answers at once; a verb imports
what it needs when it runs.
"""

from scenarios.cli.app import app

__all__ = ["app"]
