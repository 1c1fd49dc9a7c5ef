"""The command line: ``sim VERB ...``, one file a verb.

Importing this imports typer and nothing heavier, so that ``sim --help`` answers at once; a verb imports
what it needs when it runs.
"""

import atexit
import gc
import os
import sys
from types import TracebackType

_hook = sys.excepthook


def _say_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say in a word that somebody stopped the command while its modules were imported."""
    if kind is KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    else:
        _hook(kind, error, trace)


sys.excepthook = _say_interrupted
# What is made while modules are imported stays: the collector, which looks through all of it each time that
# another 700 objects have been made, would take a tenth of a short command's time. At the end it would look
# once more through all that the process is about to give back.
gc.set_threshold(200_000, *gc.get_threshold()[1:])
atexit.register(gc.freeze)
# Asking every installed distribution whether it changes how pydantic validates takes as long.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from sim.base.startup import lazy  # noqa: E402

__all__ = ["app"]

# Making `app` asks for verbs of other packages, which use modules of this one: it is made when it is wanted.
__getattr__ = lazy(__name__, {"app": "scenarios.cli.command"})
