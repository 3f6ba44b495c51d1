"""Macs: MLX on the GPU."""

from __future__ import annotations

from edgekit.targets import Target

TARGET = Target(
    name="mac",
    summary="Macs: MLX on the GPU",
    formats=("mlx",),
    preset="mixed4",
    group_size=64,
    checked={"mlx": "executed with MLX on the processor, Linux; not run on a Mac"},
)
