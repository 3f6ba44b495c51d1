"""Where a file of MLIR bytecode (a Core AI asset's `main.mlirb`) keeps its named constants.

Resources, the constants that are stored by name, have a section of their own; another one lists their names
and sizes. Format: mlir.llvm.org/docs/BytecodeFormat, version 6.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from edgekit.export.errors import ExportError

MAGIC = b"ML\xefR"
#: Ids of the sections that are read here.
_STRINGS, _RESOURCES, _OFFSETS = 0, 5, 6
_PADDING, _BLOB = 0xCB, 0


class _Cursor:
    """Reads a part of a file from its start on. Raises IndexError and ValueError where it ends."""

    def __init__(self, data: bytes | mmap.mmap, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def byte(self) -> int:
        return self.skip(1)[0]

    def skip(self, count: int) -> bytes:
        if self.at + count > self.end:
            raise IndexError
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        """A variable length integer: the zeros below the first byte's lowest one count the further bytes."""
        first = self.byte()
        if first == 0:
            return int.from_bytes(self.skip(8), "little")
        size = (first & -first).bit_length()
        return int.from_bytes(bytes([first]) + self.skip(size - 1), "little") >> size

    def align(self, size: int) -> None:
        while self.at % size:
            if self.byte() != _PADDING:
                raise ValueError


def resources(path: Path) -> dict[str, tuple[int, int]]:
    """Offset and size in bytes of every named constant in the file.

    Raises:
        ExportError: it is no such file, or is cut short.
    """
    with open(path, "rb") as file:
        if path.stat().st_size < len(MAGIC):
            raise ExportError(f"{path}: is no MLIR bytecode")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _resources(data)
            except (IndexError, ValueError, KeyError):
                raise ExportError(f"{path}: is no MLIR bytecode, or is damaged; export again") from None


def _resources(data: mmap.mmap) -> dict[str, tuple[int, int]]:
    sections = _sections(data)
    if _OFFSETS not in sections:
        return {}
    names, listed = _strings(sections[_STRINGS]), sections[_OFFSETS]
    start = sections[_RESOURCES].at
    found: dict[str, tuple[int, int]] = {}
    groups = 0
    external = listed.number()
    while groups < external or listed.at < listed.end:
        listed.number()  # the group's name, or the number of its dialect
        for _ in range(listed.number()):
            name, size, kind = names[listed.number()], listed.number(), listed.byte()
            if kind == _BLOB:
                found[name] = _blob(_Cursor(data, start, start + size))
            start += size
        groups += 1
    return found


def _blob(entry: _Cursor) -> tuple[int, int]:
    alignment, size = entry.number(), entry.number()
    entry.align(alignment)
    entry.skip(size)
    return entry.at - size, size


def _sections(data: mmap.mmap) -> dict[int, _Cursor]:
    cursor = _Cursor(data)
    if cursor.skip(len(MAGIC)) != MAGIC:
        raise ValueError
    cursor.number()  # version
    while cursor.byte():  # producer
        pass
    sections: dict[int, _Cursor] = {}
    while cursor.at < cursor.end:
        head, size = cursor.byte(), cursor.number()
        if head & 0x80:
            cursor.align(cursor.number())
        sections[head & 0x7F] = _Cursor(data, cursor.at, cursor.at + size)
        if cursor.at + size > cursor.end:
            raise IndexError
        cursor.at += size
    return sections


def _strings(section: _Cursor) -> list[str]:
    """The strings of a file; their sizes are stored before them, in reverse."""
    sizes = [section.number() for _ in range(section.number())][::-1]
    return [section.skip(size)[:-1].decode() for size in sizes]
