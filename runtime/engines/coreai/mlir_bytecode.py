"""The places of named constants in a file of MLIR bytecode (a Core AI asset's `main.mlirb`).

Resources, the constants that are stored by name, have a section of their own; another one lists their names
and sizes. Format: mlir.llvm.org/docs/BytecodeFormat, version 6.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"ML\xefR"
#: Ids of the sections that are read here.
STRINGS, RESOURCES, OFFSETS = 0, 5, 6
PADDING, BLOB = 0xCB, 0


class NotBytecode(ValueError):
    """A file is no MLIR bytecode, or is cut short."""


class Cursor:
    """Reads a part of a file from its start on. Raises IndexError and ValueError where it ends."""

    def __init__(self, data: bytes | mmap.mmap, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def byte(self) -> int:
        return self.skip(1)[0]

    def skip(self, count: int) -> bytes:
        start = self.pass_over(count)
        return self.data[start : self.at]

    def pass_over(self, count: int) -> int:
        """Skip `count` bytes and return where they begin."""
        if count > self.end - self.at:
            raise IndexError
        self.at += count
        return self.at - count

    def number(self) -> int:
        """A variable length integer: the zeros below the first byte's lowest one count the further bytes."""
        first = self.byte()
        if first == 0:
            return int.from_bytes(self.skip(8), "little")
        size = (first & -first).bit_length()
        return int.from_bytes(bytes([first]) + self.skip(size - 1), "little") >> size

    def align(self, size: int) -> None:
        if size < 1:
            raise ValueError
        while self.at % size:
            if self.byte() != PADDING:
                raise ValueError


def resources(path: Path) -> dict[str, tuple[int, int]]:
    """Offset and size in bytes of every named constant in the file. Raises NotBytecode, OSError."""
    with open(path, "rb") as file:
        if path.stat().st_size < len(MAGIC):
            raise NotBytecode(f"{path}: is no MLIR bytecode")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _resources(data, path)


def structure(path: Path) -> bytes:
    """A digest of everything but what the named constants hold: programs that agree in it are parsed alike.
    Raises NotBytecode, OSError.
    """
    digest, at = hashlib.sha256(), 0
    with open(path, "rb") as file:
        for offset, nbytes in sorted(resources(path).values()):
            file.seek(at)
            digest.update(file.read(offset - at))
            at = offset + nbytes
        file.seek(at)
        digest.update(file.read())
    return digest.digest()


def _resources(data: mmap.mmap, path: Path) -> dict[str, tuple[int, int]]:
    try:
        found = entries(data, sections(data)[1])
        return {entry.name: _blob(entry.content) for entry in found if entry.kind == BLOB}
    except (IndexError, ValueError, KeyError):
        raise NotBytecode(f"{path}: is no MLIR bytecode, or is damaged") from None


@dataclass(frozen=True)
class Entry:
    """A resource: its name and kind, what precedes its size in the list of all, and its bytes."""

    name: str
    kind: int
    before: bytes
    content: Cursor


def entries(data: bytes | mmap.mmap, found: Mapping[int, Section]) -> list[Entry]:
    """The resources of a file with these sections. Raises IndexError, ValueError and KeyError."""
    if OFFSETS not in found:
        return []
    names, listed = _strings(found[STRINGS].cursor(data)), found[OFFSETS].cursor(data)
    start, made = found[RESOURCES].start, list[Entry]()
    mark, groups, external = listed.at, 0, listed.number()
    while groups < external or listed.at < listed.end:
        listed.number()  # the group's name, or the number of its dialect
        for _ in range(listed.number()):
            name = names[listed.number()]
            before = bytes(data[mark : listed.at])
            size, kind = listed.number(), listed.byte()
            made.append(Entry(name, kind, before, Cursor(data, start, start + size)))
            start, mark = start + size, listed.at
        groups += 1
    return made


def _blob(entry: Cursor) -> tuple[int, int]:
    alignment, size = entry.number(), entry.number()
    entry.align(alignment)
    return entry.pass_over(size), size


@dataclass(frozen=True)
class Section:
    """A section of a file; `alignment` is 0 where it has none."""

    id: int
    alignment: int
    start: int
    size: int

    def cursor(self, data: bytes | mmap.mmap) -> Cursor:
        return Cursor(data, self.start, self.start + self.size)


def sections(data: bytes | mmap.mmap) -> tuple[bytes, dict[int, Section]]:
    """Read a file's beginning, and its sections by id, in their order. Raises IndexError and ValueError."""
    cursor = Cursor(data)
    if cursor.skip(len(MAGIC)) != MAGIC:
        raise ValueError
    cursor.number()  # version
    while cursor.byte():  # producer
        pass
    head, found = bytes(data[: cursor.at]), dict[int, Section]()
    while cursor.at < cursor.end:
        first, size, alignment = cursor.byte(), cursor.number(), 0
        if first & 0x80:
            alignment = cursor.number()
            cursor.align(alignment)
        if cursor.at + size > cursor.end:
            raise IndexError
        found[first & 0x7F] = Section(first & 0x7F, alignment, cursor.at, size)
        cursor.at += size
    return head, found


def _strings(section: Cursor) -> list[str]:
    """The strings of a file; their sizes are stored before them, in reverse."""
    sizes = [section.number() for _ in range(section.number())][::-1]
    return [section.skip(size)[:-1].decode() for size in sizes]
