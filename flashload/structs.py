"""Structs of `edgekit.h` about flash files, and what all of its structs have in common."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint32, c_uint64
from typing import Any


class Struct(ctypes.Structure):
    """A struct whose first member is its size."""

    def __init__(self, **members: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **members)


def texts(given: Sequence[str]) -> Any:
    """An array of texts for a struct; None for none."""
    return (c_char_p * len(given))(*(text.encode(errors="replace") for text in given)) if given else None


class FlashInfoStruct(Struct):
    """`ek_flash_info`."""

    _fields_ = (
        ("struct_size", c_uint32), ("packed", c_int32), ("path", c_char_p), ("io_mode", c_char_p),
        ("plan", c_char_p), ("bytes", c_uint64), ("header_bytes", c_uint64), ("runs", c_int64),
    )  # fmt: skip


class RunStruct(Struct):
    """`ek_flash_run`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("name", c_char_p), ("offset", c_uint64),
        ("bytes", c_uint64), ("tensors", c_int64), ("parts", c_int64),
    )  # fmt: skip


class PartStruct(Struct):
    """`ek_flash_part`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("offset", c_uint64), ("place", c_uint64),
        ("bytes", c_uint64), ("xxh3", c_uint64),
    )  # fmt: skip


class TensorStruct(Struct):
    """`ek_flash_tensor`."""

    _fields_ = (
        ("struct_size", c_uint32), ("rank", c_uint32), ("name", c_char_p), ("dtype", c_char_p),
        ("shape", POINTER(c_int64)), ("offset", c_uint64), ("bytes", c_uint64),
    )  # fmt: skip


class ChooseOptionsStruct(Struct):
    """`ek_choose_options`."""

    _fields_ = (
        ("struct_size", c_uint32), ("format_count", c_int32), ("formats", POINTER(c_char_p)),
        ("system", c_char_p), ("system_version", c_char_p), ("listed", c_int32), ("reserved", c_int32),
    )  # fmt: skip


class FetchOptionsStruct(Struct):
    """`ek_fetch_options`."""

    _fields_ = (
        ("struct_size", c_uint32), ("source_count", c_int32), ("sources", POINTER(c_char_p)),
        ("sha256", c_char_p), ("formats", POINTER(c_char_p)), ("format_count", c_int32),
        ("compare", c_int32), ("system", c_char_p), ("system_version", c_char_p),
        ("request_bytes", c_uint64), ("only_formats", c_int32), ("keep_format", c_int32),
    )  # fmt: skip


class FetchRequestStruct(Struct):
    """`ek_fetch_request`."""

    _fields_ = (
        ("struct_size", c_uint32), ("source", c_int32), ("name", c_char_p), ("id", c_uint64),
        ("offset", c_uint64), ("bytes", c_uint64), ("size", c_uint64), ("wait_milliseconds", c_int32),
        ("patience_milliseconds", c_int32), ("least_bytes_per_second", c_int32), ("reserved", c_int32),
    )  # fmt: skip


class FetchInfoStruct(Struct):
    """`ek_fetch_info`."""

    _fields_ = (
        ("struct_size", c_uint32), ("current", c_int32), ("total_bytes", c_uint64),
        ("whole_bytes", c_uint64), ("arrived_bytes", c_uint64), ("fetched_bytes", c_uint64),
        ("copied_bytes", c_uint64), ("found_bytes", c_uint64), ("damaged", c_int64),
        ("requests", c_int64), ("arriving", c_char_p), ("chosen", c_char_p), ("kept_format", c_int32),
        ("reserved", c_int32),
    )  # fmt: skip
