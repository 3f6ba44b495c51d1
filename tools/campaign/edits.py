"""Edits of a bundle, as data: the same edit can be made again in another bundle, and kept in a file.

Positions are shares of a file, not offsets, and JSON is addressed by path, so that an edit keeps its meaning
when a format moves its bytes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Steps of a path through JSON: names of objects, numbers of lists.
Path_ = list[Any]


@dataclass(frozen=True)
class Edit:
    """One edit of `file`, a name relative to the bundle.

    `part` is "bytes", "json", or "header" for the JSON at the beginning of a safetensors file.
    """

    file: str
    action: str
    part: str = "bytes"
    arguments: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file, "part": self.part, "action": self.action, **self.arguments}

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Edit:
        rest = dict(table)
        return cls(rest.pop("file"), rest.pop("action"), rest.pop("part"), rest)

    def __str__(self) -> str:
        shown = {k: v[:40] if isinstance(v, str) else v for k, v in self.as_dict().items()}
        return json.dumps(shown)[:300]


class NotHere(Exception):
    """The bundle has no such file, or no such place in it."""


def apply(edit: Edit, bundle: Path) -> None:
    """Make the edit in the folder `bundle`. Files are replaced, never written in place: they may be links to
    those of another copy. Raises NotHere.
    """
    path = bundle / edit.file
    if edit.action == "plant":
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, edit.arguments["text"].encode())
        return
    if not path.is_file():
        raise NotHere(edit.file)
    if edit.part == "bytes":
        _BYTES[edit.action](path, edit.arguments)
    elif edit.part == "json":
        _replace(path, _edited(path.read_bytes(), edit))
    else:
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = _edited(data[8 : 8 + length], edit)
        # Padded as before where it fits, so that the data stays where its header says.
        header = header.ljust(length, b" ")
        _replace(path, len(header).to_bytes(8, "little") + header + data[8 + length :])


def _replace(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


# --- bytes --------------------------------------------------------------------------------------------------


def _at(data: bytearray, share: float) -> int:
    return min(int(share * len(data)), len(data) - 1)


def _changed(change: Callable[[bytearray, dict[str, Any]], None]) -> Callable[[Path, dict[str, Any]], None]:
    def action(path: Path, arguments: dict[str, Any]) -> None:
        data = bytearray(path.read_bytes())
        if not data:
            raise NotHere(f"{path.name} is empty")
        change(data, arguments)
        _replace(path, bytes(data))

    return action


@_changed
def _flip(data: bytearray, arguments: dict[str, Any]) -> None:
    data[_at(data, arguments["position"])] ^= 1 << arguments["bit"]


@_changed
def _zero(data: bytearray, arguments: dict[str, Any]) -> None:
    start = _at(data, arguments["position"])
    count = min(arguments["count"], len(data) - start)
    data[start : start + count] = bytes(count)


@_changed
def _fill(data: bytearray, arguments: dict[str, Any]) -> None:
    start = _at(data, arguments["position"])
    count = min(arguments["count"], len(data) - start)
    data[start : start + count] = bytes([arguments["value"]]) * count


@_changed
def _cut(data: bytearray, arguments: dict[str, Any]) -> None:
    del data[_at(data, arguments["position"]) :]


@_changed
def _extend(data: bytearray, arguments: dict[str, Any]) -> None:
    data += bytes([arguments["value"]]) * arguments["count"]


@_changed
def _insert(data: bytearray, arguments: dict[str, Any]) -> None:
    behind = arguments["behind"].encode()
    at = data.find(behind)
    if at < 0:
        raise NotHere(f"nothing is {behind!r}")
    at += len(behind)
    data[at:at] = arguments["text"].encode() * arguments["count"]


@_changed
def _swap(data: bytearray, arguments: dict[str, Any]) -> None:
    count = min(arguments["count"], len(data) // 2)
    a, b = sorted((_at(data, arguments["position"]), _at(data, arguments["other"])))
    a, b = min(a, len(data) - 2 * count), min(b, len(data) - count)
    if b - a >= count:
        data[a : a + count], data[b : b + count] = data[b : b + count], data[a : a + count]


def _write(path: Path, arguments: dict[str, Any]) -> None:
    _replace(path, arguments["text"].encode())


def _delete(path: Path, arguments: dict[str, Any]) -> None:
    path.unlink()


def _fifo(path: Path, arguments: dict[str, Any]) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, arguments: dict[str, Any]) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path, arguments: dict[str, Any]) -> None:
    path.unlink()
    path.symlink_to(arguments["target"])


_BYTES: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "flip": _flip, "zero": _zero, "fill": _fill, "cut": _cut, "extend": _extend, "insert": _insert,
    "swap": _swap, "write": _write, "delete": _delete, "fifo": _fifo, "folder": _folder, "link": _link,
}  # fmt: skip


# --- JSON ---------------------------------------------------------------------------------------------------


def _edited(data: bytes, edit: Edit) -> bytes:
    try:
        tree = json.loads(data)
    except ValueError:
        raise NotHere(f"{edit.file} is not JSON") from None
    arguments = edit.arguments
    where: Path_ = arguments["path"]
    parent, key = _find(tree, where)
    if edit.action == "set":
        parent[key] = arguments["value"]
    elif edit.action == "remove":
        del parent[key]
    elif edit.action == "rename":
        if not isinstance(parent, dict):
            raise NotHere(f"{where} is in a list")
        parent[arguments["name"]] = parent.pop(key)
    elif edit.action == "scale":
        if not isinstance(parent[key], int | float) or isinstance(parent[key], bool):
            raise NotHere(f"{where} is no number")
        parent[key] = type(parent[key])(parent[key] * arguments["by"])
    elif edit.action == "repeat":
        parent[key] = [parent[key]] * arguments["count"]
    elif edit.action == "nest":
        for _ in range(arguments["depth"]):
            parent[key] = [parent[key]]
    elif edit.action == "grow":
        parent[key] = arguments["item"] * arguments["count"]
    else:
        raise ValueError(edit.action)
    return json.dumps(tree, ensure_ascii=False, allow_nan=True).encode("utf-8", "surrogatepass")


def _find(tree: Any, where: Path_) -> tuple[Any, Any]:
    """The container of the value at a path, and the path's last step."""
    parent: Any = {"": tree}
    key: Any = ""
    for step in where:
        parent = parent[key]
        key = step
        try:
            parent[key]
        except (KeyError, IndexError, TypeError):
            raise NotHere(f"nothing at {where}") from None
    if not where:
        raise NotHere("an edit of a whole file is one of bytes")
    return parent, key


def edited_copy(source: Path, target: Path, edit: Edit) -> bool:
    """A copy with an edit in place of what is at `target`; whether the files have a place for the edit."""
    shutil.rmtree(target, ignore_errors=True)
    copy_bundle(source, target)
    try:
        apply(edit, target)
    except NotHere:
        return False
    return True


def copy_bundle(source: Path, target: Path) -> None:
    """A copy whose files share their bytes with the source's: edits replace them."""
    shutil.copytree(source, target, copy_function=os.link)
