"""This process and its machine, as the core sees them."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_uint32, c_uint64
from typing import Any

from edgekit.flashload import _native
from edgekit.flashload.core_json import read_json
from edgekit.flashload.structs import Struct

#: Threads that an engine takes at most; the native core has the same limit.
MOST_THREADS = 1024


class ProcessMemoryStruct(Struct):
    """`ek_process_memory`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("resident", c_uint64), ("anonymous", c_uint64),
        ("file", c_uint64), ("peak", c_uint64),
    )  # fmt: skip


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_process_get_memory": (POINTER(ProcessMemoryStruct),),
    "ek_describe_machine": (c_char_p, c_uint64, POINTER(c_uint64)),
}


def resident_bytes() -> int:
    """Physical memory of the process now; 0 where the system does not tell."""
    return int(_memory().resident)


def peak_bytes() -> int:
    """The largest physical memory of the process so far; 0 where the system does not tell."""
    peak = int(_memory().peak)
    if peak == 0 and sys.platform == "linux":
        # Some containers have no such line in /proc. This also counts what the process was before an exec,
        # so it comes second.
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak


def usable_cores() -> int:
    """Processor cores that this process may keep busy: those that it may run on, or fewer where a Linux
    control group grants less time. At least 1.
    """
    return int(describe_machine()["cores"])


def describe_machine() -> dict[str, Any]:
    """System, release, architecture, processor, device, cores, memory and extensions of the processor; no
    name of a user, host or folder.
    """
    found: dict[str, Any] = read_json(_native.functions(_SIGNATURES).ek_describe_machine)
    return found


def _memory() -> ProcessMemoryStruct:
    found = ProcessMemoryStruct()
    _native.check(_native.functions(_SIGNATURES).ek_process_get_memory(ctypes.byref(found)))
    return found
