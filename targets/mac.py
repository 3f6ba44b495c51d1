"""Macs: MLX on the GPU, or TVM."""

from __future__ import annotations

from edgekit.targets import Target

TARGET = Target(
    name="mac",
    summary="Macs: MLX on the GPU, or TVM",
    formats=("mlx", "tvm"),
    preset="mixed4",
    group_size=64,
    engines={"tvm": "tvm"},
    devices={"tvm": ("metal", "macos")},
    checked={
        "mlx": "executed with MLX on the processor, Linux; not run on a Mac",
        "tvm": "compiled by TVM, the same programs executed on x86-64 processors; not run on a Mac",
    },
)
