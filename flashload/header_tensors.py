"""Tensors in the header of a safetensors file, for the formats of flash files."""

from __future__ import annotations

from typing import Any

from edgekit.flashload.errors import MalformedFile
from edgekit.flashload.format import MAX_BYTES, STORAGE_DTYPES, TensorSlot

#: Begin and end in the data, and the tensor with offset 0.
Span = tuple[int, int, TensorSlot]


def is_size(value: Any) -> bool:
    # bool is an int to Python; floats and strings are not sizes to us.
    return type(value) is int and 0 <= value <= MAX_BYTES


def check_name(kind: str, name: str, where: str) -> None:
    if not name or not name.isprintable():  # it will be part of messages
        raise MalformedFile(f"{where}: the {kind} name {name[:80]!r} is empty or cannot be printed")


def parse_tensors(table: dict[str, Any], where: str) -> list[Span]:
    """(begin, end, slot with offset 0) sorted by position, sizes checked against dtype and shape."""
    spans: list[Span] = []
    for name, entry in table.items():
        check_name("tensor", name, where)
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise MalformedFile(f"{where}: tensor {name}: must have exactly dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in STORAGE_DTYPES:
            raise MalformedFile(f"{where}: tensor {name}: unknown dtype {str(dtype)[:40]!r}")
        if not isinstance(shape, list) or not all(is_size(size) and size > 0 for size in shape):
            raise MalformedFile(f"{where}: tensor {name}: bad shape {str(shape)[:80]}")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(is_size(value) for value in offsets):
            raise MalformedFile(f"{where}: tensor {name}: bad data_offsets {str(offsets)[:80]}")
        begin, end = offsets
        nbytes = STORAGE_DTYPES[dtype].itemsize
        for size in shape:
            nbytes *= size
            if nbytes > MAX_BYTES:
                raise MalformedFile(f"{where}: tensor {name}: shape {str(shape)[:80]} overflows 2^63-1 bytes")
        if end - begin != nbytes:
            raise MalformedFile(
                f"{where}: tensor {name}: {dtype} {shape} needs {nbytes} bytes, its offsets "
                f"{begin}..{end} give {end - begin}"
            )
        spans.append((begin, end, TensorSlot(name, dtype, tuple(shape), 0, nbytes)))
    spans.sort(key=lambda span: span[:2])
    return spans
