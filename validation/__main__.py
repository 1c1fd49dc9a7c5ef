"""``python -m validation``; see `validation.command`.

Anything that would break its imports is reported first in plain words: others have set up the machine.
"""

import sys
from importlib.util import find_spec

if sys.version_info < (3, 11):  # noqa: UP036 -- older versions must be able to read this file
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"validation needs Python 3.11 or newer; {sys.executable} is {version}", file=sys.stderr)
    raise SystemExit(2)
if find_spec("numpy") is None:
    print(f"validation needs numpy, and {sys.executable} has none", file=sys.stderr)
    raise SystemExit(2)

from validation.command import main

if __name__ == "__main__":
    raise SystemExit(main())
