"""Blocks of columns that share a scale in MatMulNBits."""

from __future__ import annotations

#: The size that WebGPU's kernels for many rows are made for, and the smallest: others are up to fifty times
#: slower there.
BLOCKS = (32, 16)


def block_of(columns: int) -> int | None:
    """The size of blocks for rows, or groups, of so many columns; None if they do not divide into any."""
    return next((size for size in BLOCKS if columns % size == 0), None)
