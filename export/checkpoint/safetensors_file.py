"""One safetensors file: header parsing and exact reads.

Byte layout of a file:

    0        8          8+n                      end
    | u64 n  | JSON, n  | data, tightly packed   |

n is little-endian. The JSON object maps a tensor name to {"dtype", "shape", "data_offsets": [begin, end]},
offsets counted from 8+n, and may hold "__metadata__" (string to string). Every data byte belongs to exactly
one tensor.

Files are never memory-mapped: a mapped page counts as memory of the process, and an export promises a peak.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.export.checkpoint.errors import (
    MalformedWeights,
    TruncatedWeights,
    WeightsChanged,
    WeightsUnreadable,
)
from edgekit.export.checkpoint.text_files import check_marks, refuse_lfs_pointer
from edgekit.flashload.errors import cut

# The limit of the safetensors library, so that a garbage length cannot make us allocate its claim.
MAX_HEADER_BYTES = 100_000_000
# Below the 2 GiB minus a page that one read call transfers on Linux, and small beside any layer.
READ_CHUNK_BYTES = 64 << 20

# Bits per element. Types that are absent are listed by the file but cannot be checked for size or read.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

_HAS_PREADV = hasattr(os, "preadv")


@dataclass(frozen=True)
class TensorEntry:
    """The place of a tensor: `offset` is absolute in the file, `nbytes` its stored size."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class SafetensorsFile:
    """A parsed header plus the file's identity, which every later read checks."""

    path: Path
    entries: dict[str, TensorEntry]
    metadata: dict[str, str]
    identity: tuple[int, int, int]

    def read_into(self, entry: TensorEntry, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes of `entry` from byte `start` on.

        Raises WeightsChanged, TruncatedWeights or WeightsUnreadable, never returns short.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise WeightsUnreadable(f"{self.path}: cannot be opened: {error.strerror}") from error
        try:
            if _identity(os.fstat(fd)) != self.identity:
                raise WeightsChanged(f"{self.path}: the file changed while it was being read; start again")
            _read_exact(fd, entry.offset + start, buffer, lambda: f"{self.path}: tensor {cut(entry.name)}")
        finally:
            os.close(fd)


def open_safetensors(path: Path) -> SafetensorsFile:
    """Parse and check the header of `path`; no tensor data is read."""
    try:
        # Asked before: opening waits at a FIFO.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise WeightsUnreadable(f"{path}: is not a regular file")
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise WeightsUnreadable(f"{path}: cannot be opened: {error.strerror}") from error

    def read(offset: int, count: int) -> bytes:
        buffer = bytearray(count)
        _read_exact(fd, offset, memoryview(buffer), lambda: f"{path}: header")
        return bytes(buffer)

    try:
        found = os.fstat(fd)
        return parse_safetensors(path, found.st_size, _identity(found), read)
    finally:
        os.close(fd)


def parse_safetensors(
    path: Path, file_bytes: int, identity: tuple[int, int, int], read: Callable[[int, int], bytes]
) -> SafetensorsFile:
    """Parse and check the header of a file of `file_bytes` that need not be here: `read` gives the bytes at
    an offset, as many as it is asked for. `path` names the file in messages, and is where its tensors are
    read once it is there with this identity.
    """
    header_bytes = _header_length(read(0, min(file_bytes, 64)), path, file_bytes)
    header = _parse_json(read(8, header_bytes), path)
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise MalformedWeights(
            f"{path}: __metadata__ in the header is not an object; download the file again"
        )
    entries = {name: _entry(name, value, path, 8 + header_bytes) for name, value in header.items()}
    _check_coverage(entries, path, 8 + header_bytes, file_bytes)
    return SafetensorsFile(path, entries, metadata, identity)


def _identity(of: os.stat_result) -> tuple[int, int, int]:
    return of.st_ino, of.st_size, of.st_mtime_ns


def _read_exact(fd: int, offset: int, buffer: memoryview, what: Callable[[], str]) -> None:
    """Loop until `buffer` is full: a read may return fewer bytes than asked for without being at the end."""
    buffer = buffer.cast("B")
    done = 0
    while done < len(buffer):
        part = buffer[done : done + READ_CHUNK_BYTES]
        try:
            count = _pread_into(fd, part, offset + done)
        except OSError as error:
            message = f"{what()}: read of {len(part)} bytes at {offset + done} failed: {error.strerror}"
            raise WeightsUnreadable(message) from error
        if count == 0:
            missing = len(buffer) - done
            raise TruncatedWeights(f"{what()}: the file ends {missing} bytes early; download it again")
        done += count


def _pread_into(fd: int, part: memoryview, offset: int) -> int:
    if _HAS_PREADV:
        return os.preadv(fd, [part], offset)
    # Windows has no positioned read. Every read has a descriptor of its own, so seeking disturbs nobody.
    os.lseek(fd, offset, os.SEEK_SET)
    data = os.read(fd, len(part))
    part[: len(data)] = data
    return len(data)


def _header_length(head: bytes, path: Path, file_bytes: int) -> int:
    """`head` is the beginning of the file: 64 bytes, or all of a smaller one."""
    refuse_lfs_pointer(head, path)
    if len(head) < 8:
        raise TruncatedWeights(
            f"{path}: has {file_bytes} bytes, too few for a safetensors file; download it again"
        )
    length: int = struct.unpack_from("<Q", head)[0]
    if length > MAX_HEADER_BYTES or (len(head) > 8 and head[8:9] != b"{"):
        # Only now: a header of 640 bytes begins with the pickle mark 80 02 too.
        if head.startswith((b"PK\x03\x04", b"\x80\x02")):
            raise MalformedWeights(
                f"{path}: is a pickle file under a safetensors name; convert it to safetensors"
            )
        raise MalformedWeights(f"{path}: does not begin with a safetensors header; download the file again")
    if 8 + length > file_bytes:
        message = f"{path}: has {file_bytes} bytes but its header alone needs {8 + length}; download it again"
        raise TruncatedWeights(message)
    return length


def _parse_json(raw: bytes, path: Path) -> dict[str, Any]:
    check_marks(raw, path, MalformedWeights)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise MalformedWeights(f"{path}: the header lists {cut(twice)} twice; download the file again")
        return value

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise MalformedWeights(
            f"{path}: the header is not valid JSON ({error}); download the file again"
        ) from error
    if not isinstance(header, dict):
        raise MalformedWeights(f"{path}: the header is not a JSON object; download the file again")
    return header


def _entry(name: str, value: Any, path: Path, data_start: int) -> TensorEntry:
    where = f"{path}: tensor {cut(name)}"
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= set(value):
        raise MalformedWeights(f"{where}: the header entry is not dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise MalformedWeights(f"{where}: dtype {cut(dtype)} is not a string")
    if not _naturals(shape):
        raise MalformedWeights(f"{where}: shape {cut(shape)} is not a list of sizes")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise MalformedWeights(f"{where}: data_offsets {cut(offsets)} are not a begin and an end")
    nbytes = offsets[1] - offsets[0]
    if dtype in DTYPE_BITS and math.prod(shape) * DTYPE_BITS[dtype] != 8 * nbytes:
        raise MalformedWeights(
            f"{where}: {nbytes} bytes do not hold {dtype} {cut(shape)}; download the file again"
        )
    return TensorEntry(name, dtype, tuple(shape), data_start + offsets[0], nbytes)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _check_coverage(entries: dict[str, TensorEntry], path: Path, data_start: int, file_bytes: int) -> None:
    """Tensors must tile the data section: an overlap or a hole means that the header is not this data's."""
    position, previous = data_start, ""
    for entry in sorted(entries.values(), key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset < position:
            raise MalformedWeights(
                f"{path}: tensors {cut(previous)} and {cut(entry.name)} overlap; download the file again"
            )
        if entry.offset > position:
            hole = entry.offset - position
            raise MalformedWeights(
                f"{path}: {hole} bytes before tensor {cut(entry.name)} belong to no tensor"
            )
        position, previous = entry.offset + entry.nbytes, entry.name
    if position > file_bytes:
        raise TruncatedWeights(
            f"{path}: has {file_bytes} bytes, tensor {cut(previous)} ends at {position}; download it again"
        )
    if position < file_bytes:
        raise MalformedWeights(
            f"{path}: {file_bytes - position} bytes after the last tensor belong to no tensor"
        )


def raw_dtype(dtype: str) -> np.dtype[Any] | None:
    """The numpy type that holds the stored bits of a safetensors type, or None if there is none.

    Types that numpy lacks come as unsigned integers of their width (BF16 as uint16, 8-bit floats as uint8).
    """
    kinds = {"BOOL": "u1", "BF16": "<u2", "C64": "<c8"}
    if dtype in kinds:
        return np.dtype(kinds[dtype])
    if DTYPE_BITS.get(dtype) is None or DTYPE_BITS[dtype] % 8:
        return None
    if dtype.startswith("F8_"):
        return np.dtype("u1")
    return np.dtype(f"<{dtype[0].lower()}{DTYPE_BITS[dtype] // 8}")
