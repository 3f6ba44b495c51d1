"""NVIDIA Jetson: PyTorch on its GPU, which shares one memory with the processor."""

from __future__ import annotations

from edgekit.targets import Target

TARGET = Target(
    name="jetson",
    summary="NVIDIA Jetson: PyTorch with CUDA, or the native core on the processor",
    formats=("native",),
    preset="mixed4",
    group_size=32,
    engines={"native": "torch"},
    checked={"native": "executed with PyTorch on x86-64 processors; not run on a board"},
)
