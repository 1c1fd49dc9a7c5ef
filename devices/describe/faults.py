"""Errors of ours inside pydantic's: what a reader of `sim` refuses, pydantic reports in the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_core import PydanticCustomError

from sim.words.errors import InputError

__all__ = ["fault", "reader"]


def fault(message: str, path: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """Return an error that pydantic reports with exactly this message, and with its path before `path`."""
    return PydanticCustomError("scenario", "{message}", {"message": message, "path": path})


def reader(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `read` with errors of `sim` turned into pydantic's."""

    def read_value(value: Any) -> Any:
        try:
            return read(value)
        except InputError as error:
            raise fault(error.message, error.path) from None

    return read_value
