"""Files of MLIR bytecode (a Core AI asset's `main.mlirb`) whose named constants get other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgekit.export.errors import ExportError
from edgekit.export.formats.packages.stamp import Frame
from edgekit.runtime.engines.coreai import mlir_bytecode
from edgekit.runtime.engines.coreai.mlir_bytecode import BLOB, OFFSETS, PADDING, RESOURCES, entries, sections


def resources(path: Path) -> dict[str, tuple[int, int]]:
    """Offset and size in bytes of every named constant in the file.

    Raises:
        ExportError: it is no such file, or is cut short.
    """
    try:
        return mlir_bytecode.resources(path)
    except mlir_bytecode.NotBytecode as error:
        raise ExportError(f"{error}; export again") from None


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
    head, found = sections(data)
    listed, held, widest = _Writer(), _Writer(), 1
    places: dict[str, tuple[int, int]] = {}
    for entry in entries(data, found):
        listed.put(entry.before)
        start = held.size
        if entry.kind == BLOB:
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
    for section in found.values():
        own = {OFFSETS: listed, RESOURCES: held}.get(section.id) or _Writer(
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
    """As `Cursor.number` of runtime/mlir_bytecode reads it."""
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
        self.put(bytes([PADDING]) * (-self.size % size))
