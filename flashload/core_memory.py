"""Arrays over memory of the native core."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


def array(address: int | None, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """An array over memory at `address`, which outlives it; empty ones need none."""
    kind = np.dtype(dtype)
    size = kind.itemsize
    for length in shape:
        size *= length
    if size == 0 or address is None:
        return np.empty(shape, kind)
    return np.ndarray(shape, kind, (ctypes.c_char * size).from_address(address))


def address(given: np.ndarray) -> int:
    """Where a contiguous array lies. The array's own `ctypes.data` takes several times as long."""
    if given.size and given.flags.writeable:
        return ctypes.addressof(ctypes.c_char.from_buffer(given.data))
    return int(given.ctypes.data)


def copied(place: int | None, count: int, dtype: Any) -> np.ndarray:
    """So many numbers of memory at an address, as an array of its own; empty ones need none."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer(bytearray(ctypes.string_at(place, size) if place and size else b""), dtype)


def read_only(given: np.ndarray) -> np.ndarray:
    """The same numbers, for those who must not change them."""
    view = given.view()
    view.flags.writeable = False
    return view
