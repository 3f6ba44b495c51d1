"""Computers with an NVIDIA GPU: PyTorch, which takes bundles of the native format, ONNX Runtime or TVM."""

from __future__ import annotations

from edgekit.targets import BY_NVRTC, ON_WEBGPU, Target
from edgekit.targets.tier import Tier

TARGET = Target(
    name="rtx",
    summary="computers with an NVIDIA GPU: PyTorch with CUDA, ONNX Runtime or TVM",
    formats=("native", "onnx-gpu", "tvm"),
    preset="mixed4",
    group_size=32,
    engines={"native": "torch", "tvm": "tvm"},
    devices={"tvm": ("cuda", *(f"cuda-sm_{n}" for n in (75, 80, 86, 89, 90, 120)), "opencl")},
    checked={
        "native": "executed with PyTorch on x86-64 processors; not run on a GPU",
        "onnx-gpu": ON_WEBGPU,
        "tvm": BY_NVRTC,
    },
    tiers=(
        Tier("16 GB computer", 12_000_000_000, "estimated: the memory less 4 GB for the system and CUDA"),
        Tier("32 GB computer", 28_000_000_000, "estimated: the memory less 4 GB for the system and CUDA"),
    ),
    describe="edgekit.targets.computer_folder:describe",
)
