"""Whose tensor it is: the model, or session, that a tensor's name begins with.

::

    train/0/grad      ──► train         sessions name their ops so; any graph may
    serve/2/head:1    ──► serve
    serve on gpu1     ──► serve         the copy of it on another device
    server/x          ──► server/x      nobody's: a group of its own
"""

from __future__ import annotations

from collections.abc import Iterable

from devices.memory.blocks import Owner

__all__ = ["Groups"]

_ENDINGS = ("/", ":", " ")


class Groups:
    """Owner → the group that its name begins with, or the owner itself.

    Parameters
    ----------
    names : iterable of str
        The groups. Of two that fit the longer counts.

    Examples
    --------
    >>> group_of = Groups(["train", "train/b"])
    >>> [group_of(name) for name in ("train/a/x", "train/b/x", "train", "trainer")]
    ['train', 'train/b', 'train', 'trainer']
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(names, key=len, reverse=True))
        self._known: dict[Owner, Owner] = {}

    def __call__(self, owner: Owner) -> Owner:
        """Return the group of `owner`."""
        if owner not in self._known:
            self._known[owner] = self._find(owner)
        return self._known[owner]

    def _find(self, owner: Owner) -> Owner:
        if isinstance(owner, str):
            for name in self.names:
                if owner == name or (owner.startswith(name) and owner[len(name)] in _ENDINGS):
                    return name
        return owner
