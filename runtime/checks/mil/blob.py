"""Weight files of ML Programs (`weights/weight.bin`), format version 2; written down in coremltools' MILBlob.

    file      header, then records, each at a multiple of 64 bytes
    header    u32 number of records, u32 version = 2, 56 bytes reserved
    record    u32 sentinel 0xDEADBEEF, u32 type, u64 bytes of data, u64 offset of the data in the file,
              u64 unused bits at the end of the data (types of less than a byte), 32 bytes reserved
    data      the elements, little endian, without gaps

A program refers to a tensor by the offset of its record. The reserved bytes may hold anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekit.runtime.checks.mil.errors import MalformedBlob, TruncatedBlob
from edgekit.runtime.checks.mil.types import BY_NAME, Array, DType, unpack

_HEADER = struct.Struct("<II56x")
_RECORD = struct.Struct("<IIQQQ32x")
_SENTINEL = 0xDEADBEEF
_VERSION = 2
_ALIGNMENT = 64

_TYPES: Mapping[int, DType] = {
    code: BY_NAME[name]
    for code, name in {
        1: "fp16", 2: "fp32", 3: "uint8", 4: "int8", 5: "bf16", 6: "int16", 7: "uint16", 8: "int4",
        9: "uint1", 10: "uint2", 11: "uint4", 12: "uint3", 13: "uint6", 14: "int32", 15: "uint32",
        16: "fp8e4m3fn", 17: "fp8e5m2",
    }.items()
}  # fmt: skip


_CODES = {dtype.name: code for code, dtype in _TYPES.items()}


@dataclass(frozen=True)
class BlobRecord:
    """One tensor: `nbytes` bytes at `data_offset` hold `count` elements. `offset` is the record's own."""

    offset: int
    dtype: DType
    data_offset: int
    nbytes: int
    count: int

    def pack(self) -> bytes:
        """The bytes at `offset`."""
        unused_bits = 8 * self.nbytes - self.count * self.dtype.bits
        return _RECORD.pack(_SENTINEL, _CODES[self.dtype.name], self.nbytes, self.data_offset, unused_bits)


def pack_header(records: int) -> bytes:
    """The first bytes of a weight file of that many records."""
    return _HEADER.pack(records, _VERSION)


def lay_out(tensors: Iterable[tuple[DType, int]]) -> list[BlobRecord]:
    """Records for tensors, given as type and number of elements, in the order of a new file."""
    records, end = [], _HEADER.size
    for dtype, count in tensors:
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        nbytes = -(-count * dtype.bits // 8)
        records.append(BlobRecord(offset, dtype, offset + _RECORD.size, nbytes, count))
        end = offset + _RECORD.size + nbytes
    return records


class BlobFile:
    """A weight file, read on demand: nothing is kept in memory and nothing is mapped.

    Raises:
        MalformedBlob: not a weight file of version 2.
        TruncatedBlob: shorter than its header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.size = path.stat().st_size
        except OSError as error:
            raise MalformedBlob(f"{path}: cannot be opened: {error.strerror}") from error
        if self.size < _HEADER.size:
            raise TruncatedBlob(f"{path}: {self.size} bytes, less than the header of a weight file")
        self.count, version = _HEADER.unpack(self._read(0, _HEADER.size).data)
        if version != _VERSION:
            raise MalformedBlob(f"{path}: not a weight file of version {_VERSION} (found {version})")

    def record(self, offset: int) -> BlobRecord:
        """The record at `offset`, checked against the file; its data is not read.

        Raises:
            MalformedBlob, TruncatedBlob: there is no whole and consistent record there.
        """
        where = f"{self.path}: record at {offset}"
        if offset < _HEADER.size or offset + _RECORD.size > self.size:
            raise TruncatedBlob(f"{where} lies outside the file, which has {self.size} bytes")
        sentinel, code, nbytes, data_offset, unused_bits = _RECORD.unpack(
            self._read(offset, _RECORD.size).data
        )
        if sentinel != _SENTINEL:
            raise MalformedBlob(f"{where} starts with {sentinel:#010x} instead of {_SENTINEL:#010x}")
        dtype = _TYPES.get(code)
        if dtype is None:
            raise MalformedBlob(f"{where} has the unknown type {code}")
        if data_offset < _HEADER.size or data_offset + nbytes > self.size:
            raise TruncatedBlob(
                f"{where} promises {nbytes} bytes at {data_offset}; the file has {self.size} bytes"
            )
        bits = 8 * nbytes - (unused_bits if dtype.bits < 8 else 0)
        if (dtype.bits < 8 and unused_bits >= 8) or bits < 0 or bits % dtype.bits:
            raise MalformedBlob(f"{where}: {nbytes} bytes are not a whole number of {dtype}")
        return BlobRecord(offset, dtype, data_offset, nbytes, bits // dtype.bits)

    def records(self) -> Iterator[BlobRecord]:
        """Every record in the order of the file."""
        offset = _HEADER.size
        for _ in range(self.count):
            record = self.record(offset)
            yield record
            end = record.data_offset + record.nbytes
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT

    def read(self, record: BlobRecord, first: int = 0, count: int | None = None) -> Array:
        """Elements first..first+count of a record (all by default), as a new one-dimensional array."""
        count = record.count - first if count is None else count
        if first < 0 or count < 0 or first + count > record.count:
            raise IndexError(f"elements {first}..{first + count} of {record.count}")
        first_byte, first_bit = divmod(first * record.dtype.bits, 8)
        nbytes = -(-(first_bit + count * record.dtype.bits) // 8)
        return unpack(self._read(record.data_offset + first_byte, nbytes), record.dtype, count, first_bit)

    def _read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Exactly these bytes. The file is open only meanwhile: nothing has to be closed."""
        data = np.empty(nbytes, np.uint8)
        done = 0
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(offset)
                while done < nbytes and (got := file.readinto(data[done:].data)):
                    done += got
        except OSError as error:
            raise MalformedBlob(f"{self.path}: cannot be read: {error.strerror}") from error
        if done < nbytes:
            raise TruncatedBlob(f"{self.path}: ends at {offset + done}; it had {self.size} bytes when opened")
        return data
