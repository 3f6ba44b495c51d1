"""kernels/gemm.h as functions of numpy arrays, and what they must return: integer and float32 sums."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.native_testing import library

Floats = NDArray[np.float32]
Array = NDArray[Any]
PANEL = 64
QUAD = 4
FLOAT_BLOCK = 256  # columns that a float product sums from zero before adding them to the columns before
MIX_ROWS = 1024  # rows of a table that share the step of the digits of p
MOST_STEPS = np.float32(127 * 256 + 127)
GAP = 3  # floats between rows of results, which must stay as they are
UNTOUCHED = np.float32(-77.25)


class CMatrix(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_int64), ("columns", ctypes.c_int64), ("bits", ctypes.c_int),
        ("group", ctypes.c_int64), ("codes", ctypes.c_void_p), ("group_scales", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
    ]  # fmt: skip


class CRows(ctypes.Structure):
    _fields_ = [
        ("codes", ctypes.c_void_p), ("scales", ctypes.c_void_p), ("sums", ctypes.c_void_p),
        ("rows", ctypes.c_int64), ("columns", ctypes.c_int64), ("stride", ctypes.c_int64),
    ]  # fmt: skip


class CTable(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_int64), ("columns", ctypes.c_int64), ("bits", ctypes.c_int),
        ("codes", ctypes.c_void_p), ("scales", ctypes.c_void_p),
    ]  # fmt: skip


class CAddends(ctypes.Structure):
    _fields_ = [
        ("bias", ctypes.c_void_p), ("residual", ctypes.c_void_p), ("residual_stride", ctypes.c_int64),
    ]  # fmt: skip


def aligned(array: Array) -> Array:
    """A copy that starts at a multiple of 64 bytes."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def address(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def bfloat16(x: Floats) -> NDArray[np.uint16]:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def widened(x: NDArray[np.uint16]) -> Floats:
    return (x.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Matrix:
    """`values` [N, K] times `scales` [N]; integers for 4 and 8 bits. `view` points into `stored`."""

    values: Array
    scales: Floats
    view: CMatrix
    stored: tuple[Array, ...]


def _panels(x: Array, padding: int) -> Array:
    """[N, K, ...] to [panels, 64, K, ...]."""
    fill = np.full((-len(x) % PANEL, *x.shape[1:]), padding, x.dtype)
    return np.concatenate([x, fill]).reshape(-1, PANEL, *x.shape[1:])


def _quads(x: Array, padding: int) -> Array:
    """[N, K] to [panels, quads, 64, 4]."""
    wide = np.pad(x, ((0, 0), (0, -x.shape[1] % QUAD)), constant_values=padding)
    return _panels(wide, padding).reshape(-1, PANEL, wide.shape[1] // QUAD, QUAD).transpose(0, 2, 1, 3)


def random_matrix(rng: np.random.Generator, rows: int, columns: int, bits: int, group: int = 0) -> Matrix:
    scales = rng.uniform(0.001, 0.1, rows).astype(np.float32)
    padded = aligned(_panels(scales, 0).reshape(-1))
    if bits == 16:
        raw = aligned(bfloat16(rng.standard_normal((rows, columns), np.float32)))
        view = CMatrix(rows, columns, 16, 0, address(raw), None, None)
        return Matrix(widened(raw), np.ones(rows, np.float32), view, (raw,))
    if bits == 8:
        q = rng.integers(-128, 128, (rows, columns))
        codes = aligned(_quads((q + 128).astype(np.uint8), 128))
        view = CMatrix(rows, columns, 8, 0, address(codes), None, address(padded))
        return Matrix(q, scales, view, (codes, padded))
    q = rng.integers(-8, 8, (rows, columns))
    group_scales = rng.integers(1, 16, (rows, columns // group))
    quads = _quads((q + 8).astype(np.uint8), 8)
    packed = aligned(quads[:, 0::2] | quads[:, 1::2] << 4)
    stored = aligned(_panels(group_scales.astype(np.uint8), 1).transpose(0, 2, 1))
    view = CMatrix(rows, columns, 4, group, address(packed), address(stored), address(padded))
    return Matrix(q * np.repeat(group_scales, group, axis=1), scales, view, (packed, stored, padded))


@dataclass(frozen=True)
class Table:
    values: Array
    scales: Floats
    view: CTable
    stored: tuple[Array, ...]


def table_of(values: Array, scales: Floats) -> Table:
    """8 bits."""
    codes = aligned((values + 128).astype(np.uint8))
    return Table(values, scales, CTable(*values.shape, 8, address(codes), address(scales)), (codes, scales))


def random_table(rng: np.random.Generator, rows: int, columns: int, bits: int) -> Table:
    if bits == 16:
        raw = aligned(bfloat16(rng.standard_normal((rows, columns), np.float32)))
        view = CTable(rows, columns, 16, address(raw), None)
        return Table(widened(raw), np.ones(rows, np.float32), view, (raw,))
    q = rng.integers(-128, 128, (rows, columns))
    return table_of(q, rng.uniform(0.001, 0.1, rows).astype(np.float32))


def instruction_sets() -> list[str]:
    get = library().ekt_gemm_instruction_set
    get.restype = ctypes.c_char_p
    names: list[str] = []
    while name := get(len(names)):
        names.append(name.decode())
    return names


class Gemm:
    """Threads with their scratch memory."""

    def __init__(self, handle: int) -> None:
        self.handle = ctypes.c_void_p(handle)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the library: arrays by address (None: null), structures by reference,
        integers as int64.
        """
        passed: list[Any] = []
        for value in arguments:
            if isinstance(value, np.ndarray):
                passed.append(ctypes.c_void_p(value.ctypes.data))
            elif value is None:
                passed.append(ctypes.c_void_p())
            elif isinstance(value, int):
                passed.append(ctypes.c_int64(value))
            else:
                passed.append(ctypes.byref(value))
        assert getattr(library(), name)(self.handle, *passed) == 0, name

    def quantize(self, x: Floats) -> Quantized:
        """`x` may have any distance between its rows."""
        rows, columns = x.shape
        size = library().ekt_quantized_bytes
        size.restype = ctypes.c_uint64
        memory = aligned(np.full(size(ctypes.c_int64(rows), ctypes.c_int64(columns)), 0xEE, np.uint8))
        view = CRows()
        self_call = library().ekt_quantize_rows
        self_call.restype = None
        self_call(
            self.handle, ctypes.c_void_p(x.ctypes.data), ctypes.c_int64(x.strides[0] // 4),
            ctypes.c_int64(rows), ctypes.c_int64(columns), ctypes.c_void_p(memory.ctypes.data),
            ctypes.byref(view),
        )  # fmt: skip
        view.owner = memory  # lives as long as what points into it
        return Quantized(view, memory)

    def rows(self, name: str, rows: int, columns: int, *arguments: Any, tail: tuple[Any, ...] = (),
             y: Floats | None = None) -> Floats:  # fmt: skip
        """The [rows, columns] that a function writes (added to `y` if given), with the gaps looked at."""
        wide = np.full((rows, columns + GAP), UNTOUCHED)
        if y is not None:
            wide[:, :columns] = y
        self.call(name, *arguments, wide, columns + GAP, *tail)
        assert np.all(wide[:, columns:] == UNTOUCHED), "written beyond the end of a row"
        return wide[:, :columns]


@dataclass(frozen=True)
class Quantized:
    view: CRows
    memory: Array

    def _part(self, start: int, dtype: type, count: int) -> Array:
        offset = start - self.memory.ctypes.data
        assert offset >= 0 and offset + 4 * count <= self.memory.nbytes
        return self.memory[offset : offset + 4 * count].view(dtype)

    @property
    def codes(self) -> Array:
        """int8 [rows, stride]."""
        return self.memory[: self.view.rows * self.view.stride].view(np.int8).reshape(-1, self.view.stride)

    @property
    def scales(self) -> Floats:
        return self._part(self.view.scales, np.float32, self.view.rows)

    @property
    def sums(self) -> Array:
        return self._part(self.view.sums, np.int32, self.view.rows)


@contextmanager
def gemm(threads: int) -> Iterator[Gemm]:
    opened = library().ekt_gemm_open
    opened.restype = ctypes.c_void_p
    handle = opened(threads)
    try:
        yield Gemm(handle)
    finally:
        library().ekt_gemm_close(ctypes.c_void_p(handle))


def rounded(x: Floats) -> tuple[Array, Floats]:
    """Codes and scales of the rows of x, all finite and not tiny."""
    most = np.abs(x).max(axis=1)
    factor = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    return np.rint(x * factor[:, None]).astype(np.int64), most / np.float32(127)


def product(x: Array, x_scales: Floats, weights: Matrix | Table) -> Floats:
    """float(integer sum) * (activation scale * weight scale)."""
    sums = x.astype(np.int64) @ weights.values.astype(np.int64).T
    assert np.abs(sums).max(initial=0) < 2**31
    return sums.astype(np.float32) * (x_scales[:, None] * weights.scales[None, :])


def float_product(x: Floats, values: Array) -> Floats:
    """x @ values.T, column after column within a block, block after block."""
    total = np.zeros((len(x), len(values)), np.float32)
    for first in range(0, x.shape[1], FLOAT_BLOCK):
        part = np.zeros_like(total)
        for k in range(first, min(first + FLOAT_BLOCK, x.shape[1])):
            part += x[:, k, None] * values[None, :, k].astype(np.float32)
        total = part if first == 0 else total + part
    return total


def dither(count: int) -> Array:
    """0..255 with the bits of the index reversed, over and over."""
    reversed_bits = [int(f"{i:08b}"[::-1], 2) for i in range(256)]
    return np.resize(np.array(reversed_bits, np.int64), count)


def mixed(y: Floats, p: Floats, table: Table, fine_above: Floats) -> Floats:
    """y + p @ table as table_mix computes it."""
    if table.view.bits == 16:
        return float_product(p, table.values.T) + y
    for first in range(0, p.shape[1], MIX_ROWS):
        part = p[:, first : first + MIX_ROWS]
        weights = part * table.scales[None, first : first + MIX_ROWS]
        most = weights.max(axis=1)
        factor = np.divide(MOST_STEPS, most, out=np.zeros_like(most), where=most > 0)
        steps = np.rint(weights * factor[:, None]).astype(np.int64)
        fine = (part.max(axis=1) > fine_above)[:, None]
        low = np.where(fine, (steps + 128) % 256 - 128, 0)
        coarse = np.minimum((steps + dither(steps.shape[1])) // 256, 127)
        high = np.where(fine, (steps - low) // 256, coarse)
        q = table.values[first : first + MIX_ROWS].astype(np.int64)
        high_sum, low_sum = high @ q, low @ q
        sums = high_sum.astype(np.float32) * np.float32(256) + low_sum.astype(np.float32)
        y = y + sums * (most / MOST_STEPS)[:, None]
    return y
