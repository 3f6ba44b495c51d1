"""Structs of `edgekit.h` that several bindings share."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any


class Struct(ctypes.Structure):
    """A struct whose first member is its size."""

    def __init__(self, **members: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **members)


class HeadRequestStruct(Struct):
    """`ek_head_request`."""

    _fields_ = (
        ("struct_size", c_uint32), ("temperature", c_float), ("rows", c_void_p), ("row_count", c_int64),
        ("gumbel", c_int32), ("gumbel_scale", c_float), ("seed", c_uint64), ("draw", c_uint64),
        ("soft", c_int32), ("reserved", c_int32), ("top_k", c_int64),
    )  # fmt: skip


class HeadOutputStruct(Struct):
    """`ek_head_output`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("argmax", c_void_p), ("others", c_void_p),
        ("entropy", c_void_p), ("log_z", c_void_p), ("sample", c_void_p), ("sample_prob", c_void_p),
        ("soft", c_void_p), ("top_ids", c_void_p), ("top_z", c_void_p), ("logits", c_void_p),
    )  # fmt: skip
