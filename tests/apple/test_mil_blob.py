"""Weight files: what coremltools' own writer wrote is read back; what is damaged is refused in one line."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgekit.runtime.checks.mil.blob import BlobFile
from edgekit.runtime.checks.mil.errors import MalformedBlob, TruncatedBlob
from edgekit.runtime.checks.mil.types import BY_NAME, unpack

ml_dtypes = pytest.importorskip("ml_dtypes")
Array = NDArray[Any]

#: Type -> coremltools' method that writes it, the array type that the method takes, the values.
WRITERS: dict[str, tuple[str, str, int, int]] = {
    "fp32": ("write_float_data", "f4", -1000, 1000),
    "fp16": ("write_fp16_data", "f2", -1000, 1000),
    "int8": ("write_int8_data", "i1", -128, 127),
    "uint8": ("write_uint8_data", "u1", 0, 255),
    "int16": ("write_int16_data", "i2", -32768, 32767),
    "uint16": ("write_uint16_data", "u2", 0, 65535),
    "int32": ("write_int32_data", "i4", -(2**31), 2**31 - 1),
    "uint32": ("write_uint32_data", "u4", 0, 2**32 - 1),
    "int4": ("write_int4_data", "i1", -8, 7),
    "uint1": ("write_uint1_data", "u1", 0, 1),
    "uint2": ("write_uint2_data", "u1", 0, 3),
    "uint3": ("write_uint3_data", "u1", 0, 7),
    "uint4": ("write_uint4_data", "u1", 0, 15),
    "uint6": ("write_uint6_data", "u1", 0, 63),
}


def write(path: Path, tensors: list[tuple[str, Array]]) -> list[int]:
    """A weight file from coremltools; the offsets of its records."""
    storage = pytest.importorskip("coremltools.libmilstoragepython")
    writer = storage._BlobStorageWriter(str(path))
    offsets = []
    for name, array in tensors:
        data = array.view(np.uint16) if name == "fp16" else array
        offsets.append(getattr(writer, WRITERS[name][0])(data))
    del writer
    return offsets


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Array]:
    name = draw(st.sampled_from(sorted(WRITERS)))
    _, dtype, low, high = WRITERS[name]
    count, seed = draw(st.integers(1, 70)), draw(st.integers(0, 2**32 - 1))
    return name, np.random.default_rng(seed).integers(low, high, count, endpoint=True).astype(dtype)


@given(st.lists(tensors(), min_size=1, max_size=6), st.data())
def test_reads_what_coremltools_writes(written: list[tuple[str, Array]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weight.bin")
        offsets = write(path, written)
        blob = BlobFile(path)
        assert [record.offset for record in blob.records()] == offsets
        for (name, array), offset in zip(written, offsets, strict=True):
            record = blob.record(offset)
            assert (record.dtype.name, record.count) == (name, array.size)
            found = blob.read(record)
            assert found.dtype == array.dtype and np.array_equal(found, array)
            first = data.draw(st.integers(0, array.size))
            count = data.draw(st.integers(0, array.size - first))
            assert np.array_equal(blob.read(record, first, count), array[first : first + count])


@pytest.mark.parametrize(
    ("name", "code"), [("bf16", 5), ("fp8e4m3fn", 16), ("fp8e5m2", 17)], ids=["bf16", "e4m3", "e5m2"]
)
def test_reads_float_types_that_numpy_lacks(tmp_path: Path, name: str, code: int) -> None:
    dtype = {"bf16": "bfloat16", "fp8e4m3fn": "float8_e4m3fn", "fp8e5m2": "float8_e5m2"}[name]
    every = np.arange(65536, dtype=np.uint16) if name == "bf16" else np.arange(256, dtype=np.uint8)
    path = tmp_path / "weight.bin"
    path.write_bytes(file_of(record(code, every.nbytes), every.tobytes()))
    blob = BlobFile(path)
    with np.errstate(invalid="ignore"):
        expected = every.view(getattr(ml_dtypes, dtype)).astype(np.float32)
    found = blob.read(blob.record(64))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(blob.read(blob.record(64), 3, 100), expected[3:103])


def test_int4_takes_the_low_half_first() -> None:
    packed = np.array([0x1F, 0x87], np.uint8)
    assert unpack(packed, BY_NAME["int4"], 4).tolist() == [-1, 1, 7, -8]
    assert unpack(packed, BY_NAME["uint4"], 3, first_bit=4).tolist() == [1, 7, 8]


def record(
    code: int = 3, nbytes: int = 16, offset: int = 128, sentinel: int = 0xDEADBEEF, unused: int = 0
) -> bytes:
    return struct.pack("<IIQQQ32x", sentinel, code, nbytes, offset, unused)


def file_of(entry: bytes, data: bytes = bytes(16), version: int = 2) -> bytes:
    return struct.pack("<II56x", 1, version) + entry + data


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", TruncatedBlob, "0 bytes, less than the header"),
        (file_of(record(), version=1), MalformedBlob, "not a weight file of version 2 (found 1)"),
        (file_of(record())[:100], TruncatedBlob, "record at 64 lies outside the file, which has 100 bytes"),
        (file_of(record(sentinel=7)), MalformedBlob, "record at 64 starts with 0x00000007"),
        (file_of(record(code=99)), MalformedBlob, "record at 64 has the unknown type 99"),
        (file_of(record())[:-1], TruncatedBlob, "promises 16 bytes at 128; the file has 143 bytes"),
        (file_of(record(offset=1 << 40)), TruncatedBlob, "promises 16 bytes at 1099511627776"),
        (file_of(record(nbytes=2**64 - 1)), TruncatedBlob, "promises 18446744073709551615 bytes at 128"),
        (file_of(record(offset=0)), TruncatedBlob, "promises 16 bytes at 0"),
        (file_of(record(code=2, nbytes=15)), MalformedBlob, "15 bytes are not a whole number of fp32"),
        (file_of(record(code=8, unused=3)), MalformedBlob, "16 bytes are not a whole number of int4"),
        (file_of(record(code=8, unused=8)), MalformedBlob, "16 bytes are not a whole number of int4"),
        (
            file_of(record(code=12, nbytes=0, unused=4)),
            MalformedBlob,
            "0 bytes are not a whole number of uint3",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, error: type[Exception], message: str) -> None:
    path = tmp_path / "weight.bin"
    path.write_bytes(content)
    with pytest.raises(error) as raised:
        BlobFile(path).record(64)
    assert message in str(raised.value) and str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_one_that_shrinks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "weight.bin"
    with pytest.raises(MalformedBlob, match=r"weight\.bin: cannot be opened: No such file"):
        BlobFile(path)
    path.write_bytes(file_of(record()))
    blob = BlobFile(path)
    entry = blob.record(64)
    path.write_bytes(file_of(record())[:-4])
    with pytest.raises(TruncatedBlob, match="ends at 140; it had 144 bytes when opened"):
        blob.read(entry)


@settings(max_examples=60)
@given(st.binary(min_size=64, max_size=300), st.integers(0, 400))
def test_any_bytes_are_read_or_refused(content: bytes, offset: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weight.bin")
        path.write_bytes(content)
        try:
            blob = BlobFile(path)
            entry = blob.record(offset)
        except MalformedBlob:
            return
        assert blob.read(entry).size == entry.count
