"""Conversations in files, none of which replaces somebody else's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.files import write_atomic

#: Of what people read, and of what a chat goes on from.
READ, RESUMED = ".json", ".kv"


class Transcripts:
    """The files that one chat has written: these it may replace, as long as nobody else has changed them."""

    def __init__(self) -> None:
        self._written: dict[Path, tuple[int, ...]] = {}
        self.last: Path | None = None

    def know(self, path: Path) -> None:
        """Take a file that this chat goes on from as its own."""
        path = Path(os.path.abspath(path))
        self._written[path] = _identity(path)
        self.last = path

    def save(
        self, name: str, content: Callable[[], Mapping[str, Any]], resumable: Callable[[Path], None]
    ) -> Path:
        """Write `content` as JSON, or have `resumable` write a file that is called so: whole, or not at all.
        A name without a suffix gets `.json`.

        Raises EdgekitError for a file that is there already, a folder or another kind of name, OSError, and
        what the two raise.
        """
        if name[-1:] == os.sep or os.path.isdir(os.path.expanduser(name)):
            raise EdgekitError(f"{name}: is a folder; give a file, such as {Path(name) / 'talk.json'}")
        path = Path(os.path.abspath(os.path.expanduser(name)))
        if path.suffix == "" and not os.path.lexists(path):
            path = path.with_name(path.name + READ)
        if path.suffix not in (READ, RESUMED) and not os.path.lexists(path):
            read, resumed = (Path(name).with_suffix(suffix) for suffix in (READ, RESUMED))
            raise EdgekitError(f"{name}: a transcript is JSON; write {read}, or {resumed} to go on from it")
        # A half of a character that a terminal gave becomes an escape that JSON knows.
        data = _json(content()).encode("utf-8", "backslashreplace") if path.suffix == READ else None
        ours = self._written.get(path)
        if ours is None or not os.path.lexists(path):
            self._claim(path)
        elif ours != _identity(path):
            raise EdgekitError(f"{path}: was changed since this chat wrote it; give another name")
        try:
            if data is None:
                resumable(path)
            else:
                write_atomic(path, data)
        except BaseException:
            if path not in self._written:
                path.unlink(missing_ok=True)
            raise
        self._written[path] = _identity(path)
        self.last = path
        return path

    def _claim(self, path: Path) -> None:
        """Take a name that nobody has, which only creating the file can tell."""
        self._written.pop(path, None)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            raise EdgekitError(
                f"{path}: is there already, and not from this chat; give another name"
            ) from None


def _json(content: Mapping[str, Any]) -> str:
    """JSON that people can read: a line for each key, and for each element of a list."""

    def value(found: Any) -> str:
        if not isinstance(found, list) or not found:
            return json.dumps(found, ensure_ascii=False)
        return "[\n  " + ",\n  ".join(json.dumps(item, ensure_ascii=False) for item in found) + "\n ]"

    return (
        "{\n " + ",\n ".join(f"{json.dumps(key)}: {value(item)}" for key, item in content.items()) + "\n}\n"
    )


def _identity(path: Path) -> tuple[int, ...]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
