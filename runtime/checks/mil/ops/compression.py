"""Compressed weights. Each operation gives `Rows` that are decompressed, in float32, when they are taken."""

from __future__ import annotations

import math

import numpy as np

from edgekit.runtime.checks.mil.ops.quantization import along
from edgekit.runtime.checks.mil.ops.registry import IOS16, IOS18, Call, op
from edgekit.runtime.checks.mil.rows import ComputedRows, Rows, WholeRows, narrowed
from edgekit.runtime.checks.mil.types import BY_NAME, FP32, Array, unpack


def _sizes(data: tuple[int, ...], parameters: tuple[int, ...], what: str) -> list[int]:
    """Elements of `data` along each axis that share one of the parameters."""
    if len(data) != len(parameters) or not data or any(d % p for d, p in zip(data, parameters, strict=True)):
        raise ValueError(f"{what} has shape {parameters}, the data {data}")
    return [d // p for d, p in zip(data, parameters, strict=True)]


def _rows_of_blocks(parameters: Rows, block: int, start: int, stop: int) -> Array:
    """One row of parameters for each of the rows start..stop of the data, of which `block` share one."""
    if block == 1:
        return parameters.rows(start, stop)
    first = start // block
    return parameters.rows(first, -(-stop // block))[np.arange(start, stop) // block - first]


@op("constexpr_blockwise_shift_scale", since=IOS18, note="any rank, blocks along any axis")
def constexpr_blockwise_shift_scale(call: Call, data: Rows, scale: Rows, offset: Rows | None = None) -> Rows:
    """scale * (data - offset)."""
    block = _sizes(data.shape, scale.shape, "scale")
    if offset is not None and offset.shape != scale.shape:
        raise ValueError(f"offset has shape {offset.shape}, scale {scale.shape}")
    # Axis i as (parameters, block), so that the parameters broadcast over the block.
    split = [size for p, b in zip(scale.shape[1:], block[1:], strict=True) for size in (p, b)]
    once = [size for p in scale.shape[1:] for size in (p, 1)]

    def rows(start: int, stop: int) -> Array:
        count = stop - start
        values = data.rows(start, stop).astype(np.float32).reshape(count, *split)
        if offset is not None:
            shift = _rows_of_blocks(offset, block[0], start, stop).astype(np.float32)
            values -= shift.reshape(count, *once)
        factor = _rows_of_blocks(scale, block[0], start, stop).astype(np.float32)
        values *= factor.reshape(count, *once)
        return narrowed(values.reshape(count, *data.shape[1:]), scale.dtype, call.rounds)

    return ComputedRows(scale.dtype, data.shape, rows, (data, scale, offset))


@op("constexpr_affine_dequantize", since=IOS16)
def constexpr_affine_dequantize(
    call: Call, quantized_data: Rows, zero_point: Rows, scale: Rows, axis: Rows
) -> Rows:
    """scale * (quantized_data - zero_point), both scalars or vectors over `axis`."""
    shape = quantized_data.shape
    at = int(axis.all()) % len(shape)
    for vector in (zero_point, scale):
        if vector.shape not in ((), (shape[at],)):
            raise ValueError(f"a vector of {vector.shape} does not fit axis {at} of {shape}")

    def rows(start: int, stop: int) -> Array:
        def part(values: Array) -> Array:
            return along(values[start:stop] if values.ndim and at == 0 else values, len(shape), at)

        values = quantized_data.rows(start, stop).astype(np.float32)
        values = (values - part(zero_point.all().astype(np.float32))) * part(scale.all().astype(np.float32))
        return narrowed(values, scale.dtype, call.rounds)

    return ComputedRows(scale.dtype, shape, rows, (quantized_data,))


@op("constexpr_cast", since=IOS16)
def constexpr_cast(source_val: Rows, output_dtype: str) -> Rows:
    if output_dtype != "fp32":
        raise ValueError(f"output_dtype '{output_dtype}' is not fp32")

    def rows(start: int, stop: int) -> Array:
        return source_val.rows(start, stop).astype(np.float32)

    return ComputedRows(FP32, source_val.shape, rows, (source_val,))


@op(
    "constexpr_lut_to_dense",
    since=IOS16,
    note="both forms: packed indices, and from iOS 18 on blocks and vectors",
)
def constexpr_lut_to_dense(
    call: Call, indices: Rows, lut: Rows, shape: Rows | None = None, vector_axis: Rows | None = None
) -> Rows:
    if call.opset < IOS18:
        if shape is None:
            raise ValueError("no shape is given")
        return _packed_lut(indices, lut, tuple(int(size) for size in shape.all()))
    *groups, palette, vector = lut.shape
    block = _sizes(indices.shape, tuple(groups), "lut without its last two axes")
    if vector > 1 and vector_axis is None:
        raise ValueError("a table of vectors needs vector_axis")
    at = 0 if vector_axis is None else int(vector_axis.all()) % len(groups)
    # Number of the table of each index, summed up from its axes.
    strides = [math.prod(groups[i + 1 :]) for i in range(len(groups))]
    inner = [
        (np.arange(size) // b * s).reshape(-1, *[1] * (len(groups) - 1 - axis))
        for axis, (size, b, s) in enumerate(zip(indices.shape, block, strides, strict=True))
    ]

    def index_rows(start: int, stop: int) -> Array:
        first = start // block[0]
        tables = lut.rows(first, -(-stop // block[0])).reshape(-1, vector)
        number = sum(inner[1:], inner[0][start:stop] - first * strides[0])
        places = np.asarray(number) * palette + indices.rows(start, stop)
        if vector == 1:
            return tables[:, 0][places]
        found = np.moveaxis(tables[places], -1, at + 1)
        return found.reshape(*found.shape[:at], -1, *found.shape[at + 2 :])

    dense = tuple(size * (vector if axis == at else 1) for axis, size in enumerate(indices.shape))

    def rows(start: int, stop: int) -> Array:
        per = vector if at == 0 else 1  # rows of the result for each row of indices
        first = start // per
        return index_rows(first, -(-stop // per))[start - first * per : stop - first * per]

    return ComputedRows(lut.dtype, dense, rows, (indices, lut))


def _packed_lut(indices: Rows, lut: Rows, shape: tuple[int, ...]) -> Rows:
    """One table for the whole tensor; indices packed into the bytes of a vector."""
    bits = {2: 1, 4: 2, 16: 4, 64: 6, 256: 8}.get(lut.shape[0], 0) if len(lut.shape) == 1 else 0
    if not bits:
        raise ValueError(f"a table of shape {lut.shape} is none of 2, 4, 16, 64 or 256 values")
    width, kind = math.prod(shape[1:]), BY_NAME[f"uint{bits}"]
    if indices.shape != (-(-bits * math.prod(shape) // 8),):
        raise ValueError(f"{indices.shape} bytes of indices do not fit shape {shape} with {bits} bits")

    def rows(start: int, stop: int) -> Array:
        first, bit = divmod(start * width * bits, 8)
        packed = indices.rows(first, -(-stop * width * bits // 8))
        places = unpack(packed, kind, (stop - start) * width, bit)
        return lut.all()[places].reshape(stop - start, *shape[1:])

    return ComputedRows(lut.dtype, shape, rows, (indices,))


def _scattered(nonzero: Array, mask: Array) -> Array:
    """Zeros, and where the mask is set the given elements in order."""
    if nonzero.shape != (np.count_nonzero(mask),):
        raise ValueError(f"{nonzero.size} elements for {np.count_nonzero(mask)} places of the mask")
    dense = np.zeros(mask.shape, nonzero.dtype)
    dense[mask != 0] = nonzero
    return dense


@op("constexpr_sparse_to_dense", since=IOS16, note="both forms: packed mask, and from iOS 18 on uint1")
def constexpr_sparse_to_dense(call: Call, nonzero_data: Rows, mask: Rows, shape: Rows | None = None) -> Rows:
    if call.opset >= IOS18:
        return WholeRows(nonzero_data.dtype, mask.shape, lambda: _scattered(nonzero_data.all(), mask.all()))
    if shape is None:
        raise ValueError("no shape is given")
    dense = tuple(int(size) for size in shape.all())
    count = math.prod(dense)
    if mask.shape != (-(-count // 8),):
        raise ValueError(f"a mask of {mask.shape} bytes does not fit shape {dense}")

    def compute() -> Array:
        bits = unpack(mask.all(), BY_NAME["uint1"], count)
        return _scattered(nonzero_data.all(), bits.reshape(dense))

    return WholeRows(nonzero_data.dtype, dense, compute)


def _sparse_result(mask: Rows, dense: Rows) -> tuple[Rows, Rows]:
    """The mask, and the elements of the dense tensor under it."""
    count = int(np.count_nonzero(mask.all()))
    return mask, WholeRows(dense.dtype, (count,), lambda: dense.all()[mask.all() != 0])


@op("constexpr_lut_to_sparse", since=IOS18)
def constexpr_lut_to_sparse(
    call: Call, indices_mask: Rows, indices_nonzero_data: Rows, lut: Rows, vector_axis: Rows | None = None
) -> tuple[Rows, Rows]:
    indices = WholeRows(
        indices_nonzero_data.dtype,
        indices_mask.shape,
        lambda: _scattered(indices_nonzero_data.all(), indices_mask.all()),
    )
    dense = constexpr_lut_to_dense(call, indices, lut, None, vector_axis)
    mask = indices_mask
    if vector_axis is not None:
        at, vector = int(vector_axis.all()), lut.shape[-1]
        mask = WholeRows(indices_mask.dtype, dense.shape, lambda: np.repeat(indices_mask.all(), vector, at))
    return _sparse_result(mask, dense)


@op("constexpr_sparse_blockwise_shift_scale", since=IOS18)
def constexpr_sparse_blockwise_shift_scale(
    call: Call, data_mask: Rows, nonzero_data: Rows, scale: Rows, offset: Rows | None = None
) -> tuple[Rows, Rows]:
    data = WholeRows(
        nonzero_data.dtype, data_mask.shape, lambda: _scattered(nonzero_data.all(), data_mask.all())
    )
    return _sparse_result(data_mask, constexpr_blockwise_shift_scale(call, data, scale, offset))
