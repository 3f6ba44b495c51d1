"""JSON that functions of the core write into a buffer of the caller's."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from ctypes import c_uint64
from typing import Any

from edgekit.flashload import _native

#: What a text may have grown by between being asked how long it is and being written.
_MORE = 4096


def read_json(write: Callable[[Any, int, Any], int], check: Callable[[int], None] = _native.check) -> Any:
    """What `write(buffer, capacity, place of the size)` writes."""
    size = c_uint64()
    check(write(None, 0, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value + _MORE)
    check(write(buffer, len(buffer), ctypes.byref(size)))
    return json.loads(buffer.raw[: size.value])
