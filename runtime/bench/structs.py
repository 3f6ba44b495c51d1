"""Structs of `edgekit.h` about measuring."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p

from edgekit.flashload.structs import Struct

#: `ek_bench_joules`.
JOULES = ctypes.CFUNCTYPE(c_double, c_void_p)


class BenchOptionsStruct(Struct):
    """`ek_bench_options`."""

    _fields_ = (
        ("struct_size", c_uint32), ("interval_milliseconds", c_uint32), ("spans", c_int64),
        ("about", c_char_p), ("joules", JOULES), ("user_data", c_void_p),
    )  # fmt: skip


class ProcessorProbeStruct(Struct):
    """`ek_processor_probe`."""

    _fields_ = (
        ("struct_size", c_uint32), ("threads", c_int32), ("int8_operations", c_double),
        ("float_operations", c_double), ("memory_bytes", c_double), ("int8_instructions", c_char_p),
        ("float_instructions", c_char_p), ("product_operations", c_double),
        ("few_row_operations", c_double), ("attention_operations", c_double),
    )  # fmt: skip


class DiskProbeStruct(Struct):
    """`ek_disk_probe`."""

    _fields_ = (
        ("struct_size", c_uint32), ("direct", c_int32), ("bytes_per_second", c_double),
        ("seconds", c_double), ("bytes", c_uint64),
    )  # fmt: skip
