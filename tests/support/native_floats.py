"""kernels/float_ops.h and kernels/attention.h as functions of numpy arrays."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.native_testing import library

Floats = NDArray[np.float32]
INSTRUCTION_SETS = ("avx512", "avx2", "neon", "scalar")
# Written behind every result and looked at afterwards.
GUARD = np.float32(1234.5)


class Strided(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]


def use(name: str | None) -> bool:
    """Whether this machine has the instruction set; it is used from now on."""
    return bool(library().ekt_float_use(None if name is None else name.encode()))


def available() -> list[str]:
    found = [name for name in INSTRUCTION_SETS if use(name)]
    use(None)
    return found


@functools.cache
def pool(threads: int) -> ctypes.c_void_p:
    """Threads that stay for the whole test run, as those of a session do."""
    open_pool = library().ekt_float_pool_open
    open_pool.restype = ctypes.c_void_p
    return ctypes.c_void_p(open_pool(threads))


def pointer(array: NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def strided(array: Floats) -> Any:
    assert array.dtype == np.float32 and array.ndim == 4 and (array.shape[3] < 2 or array.strides[3] == 4)
    shape, stride = (ctypes.c_int64 * 4)(*array.shape), (ctypes.c_int64 * 4)(*(s // 4 for s in array.strides))
    return ctypes.byref(Strided(array.ctypes.data, shape, stride))


def guarded(count: int, dtype: type = np.float32) -> NDArray[Any]:
    """Memory for `count` elements and 16 more that must stay as they are."""
    return np.full(count + 16, GUARD, dtype)


def unguarded(memory: NDArray[Any]) -> NDArray[Any]:
    assert (memory[-16:] == memory.dtype.type(GUARD)).all(), "written beyond the end"
    return memory[:-16]


def aligned(size: int) -> NDArray[np.uint8]:
    """64-byte aligned memory of `size` bytes with 64 guard bytes behind it."""
    memory = np.full(size + 128, 0xAB, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size + 64]


def rows_call(function: str, x: Floats, *arguments: Any, in_place: bool = False, threads: int = 1) -> Floats:
    """`function(pool, x, *arguments, y)` for Strided x; y has the memory order [T, heads, D], or is x."""
    if in_place:
        out = x
    else:
        batch, heads, positions, columns = x.shape
        memory = guarded(x.size)
        out = memory[: x.size].reshape(batch, positions, heads, columns).transpose(0, 2, 1, 3)
    getattr(library(), function)(pool(threads), strided(x), *arguments, strided(out))
    if not in_place:
        unguarded(memory)
    return out


def attention(
    q: Floats,
    k: Floats,
    v: Floats,
    prefix_k: Floats,
    prefix_v: Floats,
    mask: Floats | None,
    scale: float,
    threads: int = 1,
    out: Floats | None = None,
) -> Floats:
    """`out` [1, heads, T, D], in the memory order [T, heads, D] if it is not given."""
    _, heads, positions, head_dim = q.shape
    keys = positions + prefix_k.shape[2]
    assert mask is None or (mask.shape == (positions, keys) and mask.flags.c_contiguous)
    memory = guarded(q.size)
    if out is None:
        out = memory[: q.size].reshape(1, positions, heads, head_dim).transpose(0, 2, 1, 3)
    scratch_bytes = library().ekt_attention_scratch_bytes
    scratch_bytes.restype = ctypes.c_uint64
    scratch = aligned(scratch_bytes(threads, ctypes.c_int64(head_dim)))
    arrays = [strided(array) for array in (q, k, v, prefix_k, prefix_v)]
    library().ekt_attention(
        pool(threads), *arrays, pointer(mask), ctypes.c_float(scale), strided(out), pointer(scratch)
    )
    unguarded(memory)
    assert (scratch[-64:] == 0xAB).all(), "scratch memory written beyond its end"
    return out
