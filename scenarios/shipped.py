"""Scenarios that ship with the program: examples to read and to run, and templates to start from.

::

    scenarios/templates/gpu.yaml     preset: h100-sxm     #? GPU
                                             │               └ asked by `sim new`; the comment stays
                                             └ replaced by the answer

A template is a scenario like any other; its values are the default answers. Files that a scenario names
(graphs, recordings) are copied with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copyfile
from typing import Final, NamedTuple

from scenarios.file.document import Document
from scenarios.file.yaml_read import read_yaml, read_yaml_text, texts_in
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.base.files import write_text

_FOLDER: Final = Path(__file__).parent
_EXAMPLES: Final = _FOLDER / "examples"
_TEMPLATES: Final = _FOLDER / "templates"
_QUESTION: Final = re.compile(r"^(?P<key>[ -]*\w+: )(?P<value>\S+)(?P<gap> +)#\? (?P<text>.+)$", re.MULTILINE)
_SCHEMA: Final = "# yaml-language-server: $schema="

Ask = Callable[[str, str, Callable[[str], str]], str]
"""Asks a question with a default; the third argument raises an `InputError` for a wrong answer."""


class Shipped(NamedTuple):
    """A scenario that ships with the program."""

    name: str
    title: str
    description: str
    path: Path
    is_template: bool


def shipped_scenarios() -> Iterator[Shipped]:
    """Yield all scenarios that ship: templates, then examples, each sorted by name.

    Examples
    --------
    >>> [one.name for one in shipped_scenarios()][:5]
    ['cluster', 'gpu', 'pipeline', 'trace', 'around_a_pipeline']
    """
    for folder in (_TEMPLATES, _EXAMPLES):
        yield from map(_read, sorted(folder.glob("*.yaml")))


def _read(path: Path) -> Shipped:
    """Return a shipped scenario, with its description or the comment at the top of its file."""
    content = read_yaml(path).plain()
    _, comment, *_ = path.read_text(encoding="utf-8").splitlines()
    about: str = content.get("description") or comment.removeprefix("# ")
    return Shipped(path.stem, content["name"], about.rstrip(), path, path.parent == _TEMPLATES)


def find_shipped(name: str) -> Shipped:
    """Return the shipped scenario of a name.

    Raises
    ------
    UnknownNameError
        The name is unknown; the message has the nearest one.
    """
    paths = {path.stem: path for folder in (_EXAMPLES, _TEMPLATES) for path in folder.glob("*.yaml")}
    if name not in paths:
        raise UnknownNameError("template or example", name, sorted(paths))
    return _read(paths[name])


def fill_template(text: str, ask: Ask, target: Path) -> str:
    """Return a template with its values replaced by answers, in the order of its questions.

    Parameters
    ----------
    text : str
    ask : callable
    target : Path
        Path of the new scenario; files that it names are beside it.
    """
    start = 0
    while (question := _QUESTION.search(text, start)) is not None:
        head, tail = text[: question.start()], text[question.end() :]

        def line(value: str, question: re.Match[str] = question) -> str:
            gap = " " * max(1, len(question["value"] + question["gap"]) - len(value))
            return f"{question['key']}{value}{gap}# {question['text']}"

        def accept_answer(
            value: str, head: str = head, tail: str = tail, question: re.Match[str] = question
        ) -> str:
            if value != question["value"]:
                _refuse_wrong(head + line(value) + tail, value, question["value"], target)
            return value

        answered = line(ask(question["text"], question["value"], accept_answer))
        text, start = head + answered + tail, len(head + answered)
    return text


def _refuse_wrong(text: str, value: str, default: str, target: Path) -> None:
    """Raise if an answer makes the scenario invalid, or names no file where the default names one."""
    from devices.machine import make_machine
    from scenarios.run.scenario import scenario_of

    document = Document(read_yaml_text(text, "the answer", places=False), target)
    if (_EXAMPLES / default).is_file() and not document.file(value).is_file():
        raise InputError(f"there is no file {value!r} in {target.parent.resolve()}")
    scenario_of(document)
    if (machine := document.at(("machine",))) is not None:
        with error_path("machine"):
            make_machine(machine.plain())


def write_scenario(target: Path, text: str) -> list[Path]:
    """Write a scenario, and those of its files that do not exist there; return what was written.

    Raises
    ------
    InputError
        Its folder does not exist.
    """
    schema = target.with_name("scenario.schema.json")
    where = "./scenario.schema.json" if schema.is_file() else (_FOLDER / schema.name).resolve().as_uri()
    text = f"{_SCHEMA}{where}\n{text.partition(chr(10))[2]}".replace("FILE", target.name)
    write_text(target, text)
    written = [target]
    files = {path.relative_to(_EXAMPLES).as_posix(): path for path in _EXAMPLES.rglob("*") if path.is_file()}
    names = list(texts_in(read_yaml_text(text, str(target), places=False).plain()))
    for name in names:  # the list grows: a scenario that this one extends names files as well
        copy = target.parent / name
        if name in files and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copyfile(files[name], copy)
            written.append(copy)
            if name.endswith(".yaml"):
                names += texts_in(read_yaml(copy).plain())
    return written
