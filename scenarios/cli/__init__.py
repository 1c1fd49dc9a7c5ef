"""The command line: ``sim VERB ...``.

Importing this package imports typer and nothing heavier, so that ``sim --help`` answers at once; a verb
imports what it needs when it runs.
"""

import atexit
import gc
import os
import sys
from types import TracebackType

_hook = sys.excepthook


def _say_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one word if the command is interrupted while its modules are imported."""
    if kind is KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    else:
        _hook(kind, error, trace)


sys.excepthook = _say_interrupted
# Objects created by imports stay alive. The garbage collector, which scans all of them after every 700 new
# objects, would take a tenth of the time of a short command. At exit it would scan once more everything that
# the process is about to release.
gc.set_threshold(200_000, *gc.get_threshold()[1:])
atexit.register(gc.freeze)
# Asking every installed distribution whether it has a plugin for pydantic takes as long.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
# Help without colours: escape codes in names are written out, and those of colours would be as well.
os.environ.setdefault("_TYPER_FORCE_DISABLE_TERMINAL", "1")

from sim.base.startup import lazy  # noqa: E402

__all__ = ["app"]

# Making `app` loads verbs of other packages, which use modules of this one, so it is made only when needed.
__getattr__ = lazy(__name__, {"app": "scenarios.cli.command"})
