"""Names to objects: how `sim` finds policies, devices and importers without importing their packages.

Built-in and third-party parts use the same Python entry points, so nothing here distinguishes them, and a
new policy needs one line in its author's ``pyproject.toml``::

    [project.entry-points."sim.policies"]           lookup("sim.policies", "my-policy")
    my-policy = "my_package:MyPolicy"       --->        imports my_package now, and not before

* Nothing is imported until it is looked up.
* A plugin that cannot be loaded gives a :class:`PluginWarning` and is left out; the others still work.
* If two plugins have one name, the built-in wins, else the first distribution by name. Listing all plugins
  gives a warning; looking up a built-in by name does not inspect other distributions.
* ``module:Class`` names an object without an entry point. That runs whatever code the module holds, so
  it needs `allow_code`: a scenario is data until its user says otherwise.
* In a source checkout ``pyproject.toml`` itself is read, not the copy of it that the last installation
  made, so that a new entry point works at once.

The entry-point format is the one of the Python packaging specification
(https://packaging.python.org/specifications/entry-points/).
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from sim.base.errors import InputError, UnknownNameError

GROUPS = {
    "sim.policies": "policy",
    "sim.linearizers": "linearizer",
    "sim.placements": "placement",
    "sim.streams": "stream assignment",
    "sim.rewrites": "rewrite",
    "sim.pipelines": "pipeline schedule",
    "sim.batchers": "batcher",
    "sim.routers": "router",
    "sim.runtimes": "runtime",
    "sim.devices": "device preset",
    "sim.machines": "machine preset",
    "sim.costs": "cost model",
    "sim.collectives": "model of collectives",
    "sim.kernels": "kernel",
    "sim.allocators": "allocator",
    "sim.recoveries": "recovery policy",
    "sim.importers": "importer",
    "sim.dtypes": "dtype",
    "sim.kinds": "kind of op",
    "sim.workloads": "kind of workload",
    "sim.commands": "command",
}
"""Each entry-point group, and the name of its members in messages."""

_DISTRIBUTION = "graph-schedule-sim"
_REGISTERED = "(registered)"
_ROOT: Final = Path(__file__).resolve().parents[2]
"""The folder of all packages: the root of a checkout, or site-packages."""


class PluginWarning(UserWarning):
    """A plugin is left out: it cannot be loaded, or its name is taken."""


class Description(NamedTuple):
    """A known name, with a one-line summary and the distribution that it comes from."""

    name: str
    summary: str
    distribution: str


class _Plugin(NamedTuple):
    group: str
    name: str
    value: str
    distribution: str


_registered: dict[tuple[str, str], object] = {}
_broken: set[_Plugin] = set()


def lookup(
    group: str, name: str, *, allow_code: bool = False, directory: str | PathLike[str] | None = None
) -> Any:
    """Return the object known as `name` in `group`, importing it if necessary.

    Parameters
    ----------
    group : str
        One of :data:`GROUPS`, or a group of your own.
    name : str
        A registered name, or ``module:attribute``.
    allow_code : bool
        Whether ``module:attribute`` may be imported.
    directory : path, optional
        A folder searched first for that module: the folder of the scenario file that names it.

    Raises
    ------
    UnknownNameError
        No plugin offers the name (or the one that does cannot be loaded: a warning says why).
    InputError
        ``module:attribute`` without `allow_code`, or no such module or attribute.

    Examples
    --------
    >>> lookup("sim.costs", "fractions:Fraction", allow_code=True)
    <class 'fractions.Fraction'>
    """
    if ":" in name:
        return _load_code(group, name, allow_code, directory)
    if (group, name) in _registered:
        return _registered[group, name]
    spec = built_in(group).get(name)
    plugin = _Plugin(group, name, spec, _DISTRIBUTION) if spec else _plugins(group, tuple(sys.path)).get(name)
    if plugin is not None:
        return _load(plugin)
    raise UnknownNameError(_noun(group), name, names(group))


class Allowed(NamedTuple):
    """Permissions that a scenario has only if its user grants them.

    Attributes
    ----------
    code : bool
        Whether it may name ``module:attribute``, which is then imported.
    outside : bool
        Whether it may name files outside its folder.
    """

    code: bool = False
    outside: bool = False


NOTHING: Final = Allowed()


class Origin(NamedTuple):
    """The context in which plugins are named: what may be loaded, and from where.

    Attributes
    ----------
    directory : path or None
        Base of relative paths, and the folder searched first for ``module:attribute``.
    allow_code : bool
        Whether ``module:attribute`` may be imported.
    allow_outside : bool
        Whether files may be outside the folder.
    """

    directory: str | PathLike[str] | None = None
    allow_code: bool = False
    allow_outside: bool = False

    def lookup(self, group: str, name: str) -> Any:
        """Return the meaning of `name` here: see `sim.base.plugins.lookup`."""
        return lookup(group, name, allow_code=self.allow_code, directory=self.directory)

    def file(self, name: str) -> Path:
        """Return the path of a file named here; see `within`."""
        if self.directory is None:
            return Path(name)
        return within(self.directory, name, allow_outside=self.allow_outside)


def within(directory: str | PathLike[str], name: str | PathLike[str], *, allow_outside: bool = False) -> Path:
    """Return the path of a file that is named relative to `directory`.

    Raises
    ------
    InputError
        The file is outside `directory`, and `allow_outside` is false. Links count as their targets.

    Examples
    --------
    >>> str(within("scenarios", "graphs/a.json.gz"))
    'scenarios/graphs/a.json.gz'
    >>> within("scenarios", "../secret.txt")
    Traceback (most recent call last):
    sim.base.errors.InputError: ../secret.txt: is outside the scenario's folder; allow it with ...
    """
    path = Path(directory) / name
    try:
        allowed = allow_outside or path.resolve().is_relative_to(Path(directory).resolve())
    except (OSError, ValueError, RuntimeError) as error:  # a null character, a cycle of links
        raise InputError(f"{str(name)!r}: is no path ({error})") from None
    if not allowed:
        raise InputError(
            f"{name}: is outside the scenario's folder; allow it with --allow-outside "
            "(pytest: --sim-allow-outside)"
        )
    return path


NOWHERE: Final = Origin()
"""An origin without a folder or permissions."""


def names(group: str) -> list[str]:
    """Return the names known in `group`, sorted, without importing anything."""
    known = {name for registered_group, name in _registered if registered_group == group}
    known |= {name for name, plugin in _plugins(group, tuple(sys.path)).items() if plugin not in _broken}
    return sorted(known)


def describe(group: str) -> list[Description]:
    """Return name, one-line description and origin of everything that can be loaded from `group`, sorted.

    The description is the first line of the object's own docstring. A plugin that cannot be loaded gives a
    :class:`PluginWarning` and is left out.
    """
    descriptions = []
    plugins = _plugins(group, tuple(sys.path))
    for name in names(group):
        origin = plugins[name].distribution if name in plugins else _REGISTERED
        with suppress(UnknownNameError):  # it cannot be loaded
            descriptions.append(Description(name, _summary(lookup(group, name)), origin))
    return descriptions


def register(group: str, name: str, thing: object) -> None:
    """Make `thing` known as `name` in this process, as a notebook or a test does.

    A second registration of a name replaces the first (a cell is run again); the name of a plugin
    cannot be taken, because that would change the meaning of scenarios that use it.

    Raises
    ------
    InputError
        The name is taken by a plugin, empty, or contains a colon.

    Examples
    --------
    >>> register("sim.policies", "mine", object)
    >>> lookup("sim.policies", "mine")
    <class 'object'>
    >>> unregister("sim.policies", "mine")
    """
    if not name or ":" in name:
        raise InputError(f"cannot register the {_noun(group)} {name!r}: a name has no colon and is not empty")
    owner = _plugins(group, tuple(sys.path)).get(name)
    if owner is not None:
        raise InputError(f"cannot register the {_noun(group)} {name!r}: {owner.distribution} has that name")
    _registered[group, name] = thing


def unregister(group: str, name: str) -> None:
    """Undo a :func:`register`.

    Raises
    ------
    UnknownNameError
        Nothing is registered under that name.
    """
    if (group, name) not in _registered:
        raise UnknownNameError(_noun(group), name, [other for where, other in _registered if where == group])
    del _registered[group, name]


@functools.cache
def _all_entry_points(path: tuple[str, ...]) -> Any:
    """Return the entry points of every installed distribution; `path` (sys.path) is the cache key."""
    from importlib.metadata import entry_points

    return entry_points()


@functools.cache
def packages_of_plugins(path: tuple[str, ...]) -> set[str]:
    """Return the top-level packages in which registered plugins are; `path` (sys.path) is the cache key."""
    by_group = (_all_entry_points(path).select(group=group) for group in GROUPS)
    return {entry.module.split(".")[0] for entries in by_group for entry in entries}


@functools.cache
def _plugins(group: str, path: tuple[str, ...]) -> dict[str, _Plugin]:
    """Return the entry points of `group`, one per name; `path` (sys.path) is the cache key."""
    plugins = [
        _Plugin(group, entry.name, entry.value, entry.dist.name if entry.dist is not None else "(unknown)")
        for entry in _all_entry_points(path).select(group=group)
    ]
    if _own_entry_points():  # an installed copy may be older than the checkout
        plugins = [plugin for plugin in plugins if plugin.distribution != _DISTRIBUTION]
        plugins += [_Plugin(group, name, value, _DISTRIBUTION) for name, value in built_in(group).items()]
    plugins.sort(key=lambda plugin: (plugin.distribution != _DISTRIBUTION, plugin.distribution, plugin.value))
    chosen: dict[str, _Plugin] = {}
    for plugin in plugins:
        first = chosen.setdefault(plugin.name, plugin)
        if first is not plugin:
            warnings.warn(
                f"{plugin.distribution} and {first.distribution} both offer the {_noun(group)} "
                f"{plugin.name!r}; the one of {first.distribution} ({first.value}) is used",
                PluginWarning,
                stacklevel=3,
            )
    return chosen


def built_in(group: str) -> Mapping[str, str]:
    """Return this project's own entries in `group`, name to ``module:attribute``, importing nothing."""
    return _own_entry_points().get(group, {})


@functools.cache
def _own_entry_points(root: Path = _ROOT) -> Mapping[str, Mapping[str, str]]:
    """Return the entry points declared in a checkout's ``pyproject.toml``, or recorded by an installation."""
    file = root / "pyproject.toml"
    if file.is_file():
        import tomllib

        project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == _DISTRIBUTION:
            declared: Mapping[str, Mapping[str, str]] = project.get("entry-points", {})
            return declared
    from configparser import RawConfigParser

    written = RawConfigParser(delimiters="=")
    written.optionxform = str  # type: ignore[assignment,method-assign]
    written.read(root.glob(f"{_DISTRIBUTION.replace('-', '_')}-*.dist-info/entry_points.txt"), "utf-8")
    return {group: dict(written[group]) for group in written.sections()}


def _load(plugin: _Plugin) -> Any:
    """Import a plugin and return the object; if that fails, warn, and raise as for an unknown name."""
    try:
        module, _, attributes = plugin.value.partition("[")[0].strip().partition(":")
        return functools.reduce(getattr, filter(None, attributes.split(".")), import_module(module))
    except (Exception, SystemExit) as error:  # other people's code: whatever it does, the others still work
        _broken.add(plugin)
        warnings.warn(
            f"the {_noun(plugin.group)} {plugin.name!r} of {plugin.distribution} "
            f"({plugin.value}) cannot be loaded and is left out: {type(error).__name__}: {error}",
            PluginWarning,
            stacklevel=3,
        )
    raise UnknownNameError(_noun(plugin.group), plugin.name, names(plugin.group))


def _load_code(group: str, name: str, allow_code: bool, directory: str | PathLike[str] | None) -> Any:
    """Import ``module:attribute``."""
    named = f"the {_noun(group)} {name!r}"
    if not allow_code:
        raise InputError(
            f"{named} is code, which a scenario may not load; allow it with --allow-code "
            "(pytest: --sim-allow-code, Python: allow_code=True)"
        )
    module_name, _, attributes = name.partition(":")
    if not module_name or not attributes:
        raise InputError(f"{named} is not of the form module:Class")
    if module_name.endswith(".py") and "/" not in module_name:
        raise InputError(f"{named}: write the module without .py, {module_name[:-3]}:{attributes}")
    try:
        module = _import(module_name, directory)
    except (Exception, SystemExit) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == module_name
        where = (
            f", neither in {fspath(directory)!r} nor installed" if absent and directory is not None else ""
        )
        raise InputError(f"{named} cannot be imported: {type(error).__name__}: {error}{where}") from error
    try:
        return functools.reduce(getattr, attributes.split("."), module)
    except AttributeError:
        public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        raise UnknownNameError(f"class or function of {module_name!r}:", attributes, public) from None


_files: dict[str, tuple[int, int]] = {}
"""Modification time and size of the files of modules imported here."""


def _import(name: str, directory: str | PathLike[str] | None) -> ModuleType:
    """Import a module, looking into `directory` first; reload it if its file has changed (in a notebook)."""
    importlib.invalidate_caches()  # the file may be younger than the import system's last look
    if directory is None:
        return import_module(name)
    folder = str(Path(directory).resolve())
    sys.path.insert(0, folder)
    try:
        before = sys.modules.get(name)
        module = import_module(name)
        source = getattr(module, "__file__", None)
        if source is not None and name != "__main__":  # which is a script or notebook that runs now
            file = Path(source).stat()
            stamp = file.st_mtime_ns, file.st_size
            if module is before and _files.get(name, stamp) != stamp:
                module = importlib.reload(module)
            _files[name] = stamp
    finally:
        sys.path.remove(folder)
    # Python keeps one module a name: a second scenario's my_policy.py must not silently be the first one's.
    top = name.partition(".")[0]
    spec = PathFinder.find_spec(top, [folder])
    loaded = getattr(sys.modules.get(top), "__file__", None)
    if spec is not None and spec.origin and loaded and not Path(loaded).samefile(spec.origin):
        raise ImportError(f"{loaded} is already imported as {top!r}; rename {spec.origin}")
    return module


def _noun(group: str) -> str:
    """Return the name of the group's members."""
    return GROUPS.get(group, f"member of {group}")


def _summary(thing: object) -> str:
    """Return the first line of the docstring of `thing` itself (or of its class)."""
    import inspect

    described = thing if isinstance(thing, (type, ModuleType)) or inspect.isroutine(thing) else type(thing)
    doc = None if getattr(described, "__module__", None) == "builtins" else described.__doc__
    doc = getattr(thing, "__dict__", {}).get("__doc__") or doc  # an instance with a docstring of its own
    return inspect.cleandoc(doc).partition("\n")[0] if doc else ""
