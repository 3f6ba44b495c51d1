"""Rows by name: those that come with edgekit, and those that installed distributions add as entry points.

A distribution adds a row without a change to edgekit, in its pyproject.toml:

    [project.entry-points."edgekit.formats"]
    gguf = "edgekit_gguf:ROW"

Names are read from metadata. Only the row that is asked for is imported, so that a broken distribution is in
nobody's way but of who asks for its row. Names of edgekit's own rows cannot be taken.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from edgekit.flashload.errors import EdgekitError, one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class BrokenPlugin(EdgekitError):
    """A row that an installed distribution promises and cannot give."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=Named)


def resolve(path: str) -> Any:
    """The object that `module:attribute` names. Raises what importing the module does, and AttributeError."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry(Collection[str], Generic[Row]):
    """Rows of one kind. It is a collection of their names, edgekit's own first.

    `what` says in messages what a row is of, `group` is that of the entry points, and `own` has edgekit's own
    rows, or where they are as `module:attribute`.
    """

    def __init__(self, what: str, group: str, kind: type[Row], own: Mapping[str, Row | str]) -> None:
        self.what, self.group, self.own = what, group, dict(own)
        self._kind = kind

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from sorted({point.name for point in self._added()})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return name in self.own or any(point.name == name for point in self._added())

    def find(self, name: str) -> Row | None:
        """The row of that name; None if there is none.

        Raises:
            BrokenPlugin: the distribution that promises it cannot give it, or several promise it.
        """
        if name in self.own:
            own = self.own[name]
            row: Row = resolve(own) if isinstance(own, str) else own
            return row
        points = [point for point in self._added() if point.name == name]
        if len(points) > 1:
            every = " and ".join(sorted(map(_distribution, points)))
            raise BrokenPlugin(f"{self.what} {name} comes with {every}; uninstall all but one")
        return self._loaded(points[0]) if points else None

    def working(self) -> list[Row]:
        """Every row that can be had."""
        found = []
        for name in self:
            with suppress(BrokenPlugin):
                row = self.find(name)
                assert row is not None  # it has just been listed
                found.append(row)
        return found

    def _added(self) -> list[EntryPoint]:
        """The entry points of rows that are not edgekit's own. Read anew each time, which takes milliseconds
        and is seldom needed: what is installed may change while a process runs.
        """
        return [point for point in _points(self.group) if point.name not in self.own]

    def _loaded(self, point: EntryPoint) -> Row:
        whose, advice = _distribution(point), "update it or uninstall it"
        try:
            row = point.load()
        except Exception as error:  # anything may go wrong in a stranger's module
            why = f"{type(error).__name__}: {one_line(error)}"
            raise BrokenPlugin(
                f"{self.what} {point.name} comes with {whose}, which fails with {why}; {advice}"
            ) from error
        if not isinstance(row, self._kind) or row.name != point.name:
            raise BrokenPlugin(
                f"{self.what} {point.name} comes with {whose}, whose {point.value} is no "
                f"{self._kind.__name__} of that name; {advice}"
            )
        return row


def _points(group: str) -> list[EntryPoint]:
    """The entry points of a group. Distributions whose list of them cannot be read have none."""
    from importlib.metadata import distributions, entry_points  # here: own rows do without, and it is slow

    with suppress(Exception):
        return list(entry_points(group=group))
    found: dict[str, list[EntryPoint]] = {}
    for distribution in distributions():
        with suppress(Exception):
            # The first of a name on sys.path is the one that is imported.
            found.setdefault(distribution.name, list(distribution.entry_points.select(group=group)))
    return [point for points in found.values() for point in points]


def _distribution(point: EntryPoint) -> str:
    """Name and version of what has installed an entry point."""
    owner = point.dist
    return "an unknown distribution" if owner is None else f"{owner.name} {owner.version}"
