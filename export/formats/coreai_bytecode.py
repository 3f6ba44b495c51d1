"""Where a file of MLIR bytecode (a Core AI asset's `main.mlirb`) keeps its named constants.

Resources, the constants that are stored by name, have a section of their own; another one lists their names
and sizes. Format: mlir.llvm.org/docs/BytecodeFormat, version 6.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgekit.export.errors import ExportError
from edgekit.export.formats.stamp import Frame

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


def resized(data: bytes, sizes: Mapping[str, int]) -> tuple[Frame, dict[str, tuple[int, int]]]:
    """The file that `data` would be if its named constants had these sizes in bytes: without what they hold,
    and the offset and size of each.

    Raises:
        ExportError: `data` is no such file, or its constants are others.
    """
    try:
        return _resized(data, sizes)
    except (IndexError, ValueError, KeyError) as error:
        raise ExportError("the program is no MLIR bytecode that edgekit can write") from error


def _resized(data: bytes, sizes: Mapping[str, int]) -> tuple[Frame, dict[str, tuple[int, int]]]:
    head, sections = _sections(data)
    listed, held, widest = _Writer(), _Writer(), 1
    places: dict[str, tuple[int, int]] = {}
    for entry in _entries(data, sections):
        listed.put(entry.before)
        start = held.size
        if entry.kind == _BLOB:
            alignment = entry.content.number()
            widest = max(widest, alignment)
            held.put(_number(alignment) + _number(sizes[entry.name]))
            held.align(alignment)
            places[entry.name] = (held.size, sizes[entry.name])
            held.size += sizes[entry.name]
        else:
            held.put(entry.content.skip(entry.content.end - entry.content.at))
        listed.put(_number(held.size - start) + bytes([entry.kind]))
    if places.keys() != sizes.keys():
        raise ValueError
    whole = _Writer()
    whole.put(head)
    for section in sections.values():
        own = {_OFFSETS: listed, _RESOURCES: held}.get(section.id) or _Writer(
            data[section.start : section.start + section.size]
        )
        length, alignment = _number(own.size), widest if own is held else section.alignment
        # Sections that happen to be aligned are not marked.
        marked = alignment > 1 and (whole.size + 1 + len(length)) % alignment > 0
        whole.put(bytes([section.id | (0x80 if marked else 0)]) + length)
        if marked:
            whole.put(_number(alignment))
            whole.align(alignment)
        if own is held:
            places = {name: (whole.size + offset, nbytes) for name, (offset, nbytes) in places.items()}
        whole.add(own)
    return Frame(whole.size, tuple((at, bytes(part)) for at, part in whole.parts)), places


def _number(value: int) -> bytes:
    """As `_Cursor.number` reads it."""
    size = next((n for n in range(1, 9) if value < 1 << 7 * n), None)
    if size is None:
        return b"\0" + value.to_bytes(8, "little")
    return ((value << 1 | 1) << size - 1).to_bytes(size, "little")


class _Writer:
    """A file in the making: its size, and (offset, bytes) of what was put there."""

    def __init__(self, data: bytes = b"") -> None:
        self.size = 0
        self.parts: list[tuple[int, bytearray]] = []
        self.put(data)

    def put(self, data: bytes | bytearray) -> None:
        if self.parts and self.parts[-1][0] + len(self.parts[-1][1]) == self.size:
            self.parts[-1][1].extend(data)
        else:
            self.parts.append((self.size, bytearray(data)))
        self.size += len(data)

    def add(self, other: _Writer) -> None:
        start = self.size
        for at, part in other.parts:
            self.size = start + at
            self.put(part)
        self.size = start + other.size

    def align(self, size: int) -> None:
        self.put(bytes([_PADDING]) * (-self.size % size))


def _resources(data: mmap.mmap) -> dict[str, tuple[int, int]]:
    entries = _entries(data, _sections(data)[1])
    return {entry.name: _blob(entry.content) for entry in entries if entry.kind == _BLOB}


@dataclass(frozen=True)
class _Entry:
    """A resource: its name and kind, what precedes its size in the list of all, and its bytes."""

    name: str
    kind: int
    before: bytes
    content: _Cursor


def _entries(data: bytes | mmap.mmap, sections: Mapping[int, _Section]) -> list[_Entry]:
    if _OFFSETS not in sections:
        return []
    names, listed = _strings(sections[_STRINGS].cursor(data)), sections[_OFFSETS].cursor(data)
    start, entries = sections[_RESOURCES].start, list[_Entry]()
    mark, groups, external = listed.at, 0, listed.number()
    while groups < external or listed.at < listed.end:
        listed.number()  # the group's name, or the number of its dialect
        for _ in range(listed.number()):
            name = names[listed.number()]
            before = bytes(data[mark : listed.at])
            size, kind = listed.number(), listed.byte()
            entries.append(_Entry(name, kind, before, _Cursor(data, start, start + size)))
            start, mark = start + size, listed.at
        groups += 1
    return entries


def _blob(entry: _Cursor) -> tuple[int, int]:
    alignment, size = entry.number(), entry.number()
    entry.align(alignment)
    entry.skip(size)
    return entry.at - size, size


@dataclass(frozen=True)
class _Section:
    """A section of a file; `alignment` is 0 where it has none."""

    id: int
    alignment: int
    start: int
    size: int

    def cursor(self, data: bytes | mmap.mmap) -> _Cursor:
        return _Cursor(data, self.start, self.start + self.size)


def _sections(data: bytes | mmap.mmap) -> tuple[bytes, dict[int, _Section]]:
    """What a file begins with, and its sections by id, in their order."""
    cursor = _Cursor(data)
    if cursor.skip(len(MAGIC)) != MAGIC:
        raise ValueError
    cursor.number()  # version
    while cursor.byte():  # producer
        pass
    head, sections = bytes(data[: cursor.at]), dict[int, _Section]()
    while cursor.at < cursor.end:
        first, size, alignment = cursor.byte(), cursor.number(), 0
        if first & 0x80:
            alignment = cursor.number()
            cursor.align(alignment)
        if cursor.at + size > cursor.end:
            raise IndexError
        sections[first & 0x7F] = _Section(first & 0x7F, alignment, cursor.at, size)
        cursor.at += size
    return head, sections


def _strings(section: _Cursor) -> list[str]:
    """The strings of a file; their sizes are stored before them, in reverse."""
    sizes = [section.number() for _ in range(section.number())][::-1]
    return [section.skip(size)[:-1].decode() for size in sizes]
