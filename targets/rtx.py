"""Computers with an NVIDIA GPU: PyTorch on it, which takes bundles of the native format."""

from __future__ import annotations

from edgekit.targets import Target

TARGET = Target(
    name="rtx",
    summary="computers with an NVIDIA GPU: PyTorch with CUDA, or the native core on the processor",
    formats=("native",),
    preset="mixed4",
    group_size=32,
    engines={"native": "torch"},
    checked={"native": "executed with PyTorch on x86-64 processors; not run on a GPU"},
)
