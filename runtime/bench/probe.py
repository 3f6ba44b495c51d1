"""What this machine can do at most, measured."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.flashload import _native
from edgekit.runtime.bench.structs import DiskProbeStruct, ProcessorProbeStruct

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_probe_processor": (c_int32, c_double, POINTER(ProcessorProbeStruct)),
    "ek_probe_disk": (c_char_p, c_double, POINTER(DiskProbeStruct)),
}


@dataclass(frozen=True)
class ProcessorProbe:
    """Operations per second of loops on registers, a product and a sum being two, and bytes per second read
    from memory that no cache holds, of so many threads together. Then what the native engine's kernels reach:
    products of 256 rows, and of 16, with 4-bit weights from memory, and attention of 256 rows.
    """

    threads: int
    int8_operations: float
    float_operations: float
    memory_bytes: float
    int8_instructions: str
    float_instructions: str
    product_operations: float
    few_row_operations: float
    attention_operations: float


@dataclass(frozen=True)
class DiskProbe:
    """Plain reads of a file; where they are not `direct`, the system has no way past its page cache for it,
    and that may be what was measured.
    """

    direct: bool
    bytes_per_second: float
    seconds: float
    bytes: int


def probe_processor(threads: int = 0, seconds: float = 0.5) -> ProcessorProbe:
    """Measure the processor on `threads` threads (0: every usable core), about `seconds` for each figure.
    Nothing else should run meanwhile. Raises InvalidRequest for numbers that it does not take.
    """
    found = ProcessorProbeStruct()
    _native.check(_native.functions(_SIGNATURES).ek_probe_processor(threads, seconds, ctypes.byref(found)))
    return ProcessorProbe(
        found.threads,
        found.int8_operations,
        found.float_operations,
        found.memory_bytes,
        found.int8_instructions.decode(),
        found.float_instructions.decode(),
        found.product_operations,
        found.few_row_operations,
        found.attention_operations,
    )


def probe_disk(path: str | Path, seconds: float = 1.0) -> DiskProbe:
    """Read a file round and round for about `seconds`. Raises OpenFailed and ReadFailed, and InvalidRequest
    for seconds that it does not take and a file without bytes.
    """
    found = DiskProbeStruct()
    _native.check(
        _native.functions(_SIGNATURES).ek_probe_disk(_native.path_bytes(path), seconds, ctypes.byref(found))
    )
    return DiskProbe(bool(found.direct), found.bytes_per_second, found.seconds, found.bytes)
