"""Computers with an NVIDIA GPU: PyTorch on it, which takes bundles of the native format, or ONNX Runtime."""

from __future__ import annotations

from edgekit.targets import ON_WEBGPU, Target
from edgekit.targets.tier import Tier

TARGET = Target(
    name="rtx",
    summary="computers with an NVIDIA GPU: PyTorch with CUDA, or ONNX Runtime",
    formats=("native", "onnx-gpu"),
    preset="mixed4",
    group_size=32,
    engines={"native": "torch"},
    checked={
        "native": "executed with PyTorch on x86-64 processors; not run on a GPU",
        "onnx-gpu": ON_WEBGPU,
    },
    tiers=(
        Tier("16 GB computer", 12_000_000_000, "estimated: the memory less 4 GB for the system and CUDA"),
        Tier("32 GB computer", 28_000_000_000, "estimated: the memory less 4 GB for the system and CUDA"),
    ),
    describe="edgekit.targets.computer_folder:describe",
)
