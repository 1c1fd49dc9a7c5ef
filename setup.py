"""Compiles the kernel; all else about the distribution is in ``pyproject.toml``.

Each ``sim/kernel/NAME.py`` with a file of types ``NAME.pxd`` beside it is compiled as ``sim.kernel._NAME``
(and so in the other folders that `sim.base.compiled` lists), so that the source stays importable beside it.
The compiled module carries a digest of its source, by which `sim.base.compiled` recognises one that is out
of date.

Compiling is optional: without Cython or a working C compiler, the build says so and the installation is pure
Python. ``SIM_PURE_WHEEL=1`` skips it on purpose, for the wheel that fits every interpreter and platform.
``SIM_CHECKED=1`` compiles it for the tests of ``make test-all``: an index out of bounds is an error there.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

try:
    from Cython.Build import cythonize
except ImportError:  # a build without isolation, in an environment that lacks it
    cythonize = None

SIM = Path("sim")
COMPILED = runpy.run_path(str(SIM / "base" / "compiled.py"))
SOURCES: list[Path] = COMPILED["sources"](SIM)
CHECKED = os.environ.get("SIM_CHECKED", "0") not in ("", "0")
PURE = os.environ.get("SIM_PURE_WHEEL", "0") not in ("", "0")


class Build(build):
    """A build from nothing: what an earlier one left would be packed again, removed modules too."""

    def run(self) -> None:
        """Build."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildKernel(build_ext):
    """Translates copies of the sources under their compiled names, then compiles them."""

    def build_extensions(self) -> None:
        """Compile what compiles, on all cores, and say once when something does not."""
        self.parallel = True
        self.translated = translate(Path(self.build_temp, "kernel"))
        super().build_extensions()
        if not all(Path(self.get_ext_fullpath(extension.name)).exists() for extension in self.extensions):
            say("the C compiler failed (see above)")

    def build_extension(self, ext: Extension) -> None:
        """Compile one translated module."""
        ext.sources = self.translated[ext.name]
        super().build_extension(ext)


def translate(folder: Path) -> dict[str, list[str]]:
    """Return the C source of each compiled module, written below `folder`.

    Cython looks for types in packages, and modules of the kernel that call one another must do so compiled.
    """
    names = "|".join(source.stem for source in SOURCES)
    sibling = re.compile(rf"\bsim\.({'|'.join(COMPILED['FOLDERS'])})\.({names})\b")
    digest = COMPILED["digest"](SIM)
    for source in SOURCES:
        package = folder / source.parent
        package.mkdir(parents=True, exist_ok=True)
        for inner in (package.parent, package):
            (inner / "__init__.py").touch()
        for suffix, more in ((".py", f"\nSOURCE_DIGEST = {digest!r}\n"), (".pxd", "")):
            text = sibling.sub(r"sim.\1._\2", source.with_suffix(suffix).read_text("utf-8"))
            if CHECKED:  # with `noexcept`, an error would be printed and passed over
                text = text.replace("boundscheck=False", "boundscheck=True").replace(" noexcept", "")
            (package / f"_{source.stem}{suffix}").write_text(text + more, "utf-8")
    extensions = [
        Extension(compiled_name(source), [str(folder / source.parent / f"_{source.stem}.py")])
        for source in SOURCES
    ]
    options = {"include_path": [str(folder)], "language_level": "3", "force": True}
    return {extension.name: extension.sources for extension in cythonize(extensions, **options)}


def compiled_name(source: Path) -> str:
    """Return what the compiled module is called."""
    return f"sim.{source.parent.name}._{source.stem}"


def extensions() -> list[Extension]:
    """Return what to compile: nothing for a pure wheel, and nothing without Cython."""
    if PURE or not SOURCES:
        return []
    if cythonize is None:
        say("there is no Cython")
        return []
    # Debug information would name the folder of the build: the same source shall give the same bytes.
    flags = [] if os.name == "nt" else ["-g0", "-O1"] if CHECKED else ["-g0"]
    return [
        Extension(compiled_name(source), [str(source)], extra_compile_args=flags, optional=True)
        for source in SOURCES
    ]


def say(why: str) -> None:
    """Tell the build log that the installation is a slow one, and why."""
    print(
        f"graph-schedule-sim: {why}, so the kernel is installed as pure Python, which is slower", flush=True
    )


setup(ext_modules=extensions(), cmdclass={"build": Build, "build_ext": BuildKernel})
