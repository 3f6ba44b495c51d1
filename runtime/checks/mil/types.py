"""MIL's types of values, and how their bytes become numpy arrays.

Numbers are little endian. Types of less than a byte are packed without gaps, the first element in the lowest
bits of the first byte; an element may straddle two bytes (uint3, uint6). int4 is two's complement.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class DType:
    """A type of elements. `name` is MIL's; `bits` is its stored width (0: not a number); arrays hold `numpy`.

    numpy has no type of less than a byte, no bfloat16 and no 8-bit floats: their values are held in the
    smallest type that has them all.
    """

    name: str
    bits: int
    numpy: np.dtype[Any]

    @property
    def is_float(self) -> bool:
        return self.numpy.kind == "f"

    def __str__(self) -> str:
        return self.name


def _dtype(name: str, bits: int, numpy: str) -> DType:
    return DType(name, bits, np.dtype(numpy))


FP16, FP32, STRING = _dtype("fp16", 16, "<f2"), _dtype("fp32", 32, "<f4"), _dtype("string", 0, "O")
BOOL, INT32 = _dtype("bool", 8, "?"), _dtype("int32", 32, "<i4")
_BF16, _E4M3, _E5M2 = _dtype("bf16", 16, "<f4"), _dtype("fp8e4m3fn", 8, "<f4"), _dtype("fp8e5m2", 8, "<f4")

#: By the number of the type in MIL.proto.
DTYPES: Mapping[int, DType] = {
    1: BOOL,
    2: STRING,
    10: FP16,
    11: FP32,
    12: _dtype("fp64", 64, "<f8"),
    13: _BF16,
    21: _dtype("int8", 8, "i1"),
    22: _dtype("int16", 16, "<i2"),
    23: INT32,
    24: _dtype("int64", 64, "<i8"),
    25: _dtype("int4", 4, "i1"),
    31: _dtype("uint8", 8, "u1"),
    32: _dtype("uint16", 16, "<u2"),
    33: _dtype("uint32", 32, "<u4"),
    34: _dtype("uint64", 64, "<u8"),
    35: _dtype("uint4", 4, "u1"),
    36: _dtype("uint2", 2, "u1"),
    37: _dtype("uint1", 1, "u1"),
    38: _dtype("uint6", 6, "u1"),
    39: _dtype("uint3", 3, "u1"),
    40: _E4M3,
    41: _E5M2,
}
BY_NAME: Mapping[str, DType] = {dtype.name: dtype for dtype in DTYPES.values()}


@dataclass(frozen=True)
class TensorType:
    """Type of a value; a dimension that is known only when the program runs is None."""

    dtype: DType
    shape: tuple[int | None, ...]

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape may be such a value."""
        return len(shape) == len(self.shape) and all(
            declared is None or size == declared for size, declared in zip(shape, self.shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


def unpack(data: NDArray[np.uint8], dtype: DType, count: int, first_bit: int = 0) -> Array:
    """`count` elements from the bytes `data`, the first at bit `first_bit` (0..7) of the first byte.

    For types of whole bytes the result is a view of `data`. The caller has checked that data is long enough.
    """
    if dtype is _BF16:
        return (data.view("<u2")[:count].astype(np.uint32) << 16).view(np.float32)
    if dtype in (_E4M3, _E5M2):
        return _float8_values(dtype)[data[:count]]
    if dtype.bits >= 8:
        return data.view(dtype.numpy)[:count]
    if 8 % dtype.bits == 0:
        per_byte, mask = 8 // dtype.bits, (1 << dtype.bits) - 1
        spread = np.empty((data.size, per_byte), np.uint8)
        for i in range(per_byte):
            np.right_shift(data, i * dtype.bits, out=spread[:, i])
        spread &= mask
        first = first_bit // dtype.bits
        values = spread.reshape(-1)[first : first + count]
    else:
        bits = np.unpackbits(data, bitorder="little")[first_bit : first_bit + count * dtype.bits]
        weights = (1 << np.arange(dtype.bits)).astype(np.uint8)
        values = (bits.reshape(count, dtype.bits) * weights).sum(1, dtype=np.uint8)
    if dtype.numpy.kind == "u":
        return values
    sign = 1 << (dtype.bits - 1)
    values ^= sign
    signed = values.view(np.int8)
    signed -= sign
    return signed


@functools.cache
def _float8_values(dtype: DType) -> NDArray[np.float32]:
    """The value of each byte. E4M3FN has no infinities and NaN only at S.1111.111; E5M2 follows IEEE 754."""
    exponent_bits = 4 if dtype is _E4M3 else 5
    mantissa_bits, bias = 7 - exponent_bits, (1 << (exponent_bits - 1)) - 1
    code = np.arange(256)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    magnitude = np.where(
        exponent == 0, np.ldexp(mantissa, 1 - bias), np.ldexp(1 + mantissa, np.maximum(exponent, 1) - bias)
    )
    if dtype is _E4M3:
        magnitude[(code & 0x7F) == 0x7F] = np.nan
    else:
        special = exponent == 31
        magnitude[special] = np.where(mantissa[special] == 0, np.inf, np.nan)
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.float32)
