"""NVIDIA Jetson: PyTorch on its GPU, which shares one memory with the processor."""

from __future__ import annotations

from edgekit.targets import BY_NVRTC, Target
from edgekit.targets.tier import Tier

TARGET = Target(
    name="jetson",
    summary="NVIDIA Jetson: PyTorch with CUDA or TVM, or the native core on the processor",
    formats=("native", "tvm"),
    preset="mixed4",
    group_size=32,
    engines={"native": "torch", "tvm": "tvm"},
    devices={"tvm": ("cuda-sm_87", "aarch64", "opencl-aarch64")},
    checked={"native": "executed with PyTorch on x86-64 processors; not run on a board", "tvm": BY_NVRTC},
    tiers=(
        Tier("8 GB Orin Nano", 6_000_000_000, "estimated: the memory less 2 GB for the system and CUDA"),
        Tier("16 GB Orin NX", 14_000_000_000, "estimated: the memory less 2 GB for the system and CUDA"),
        Tier("64 GB AGX Orin", 60_000_000_000, "estimated: the memory less 4 GB for the system and CUDA"),
    ),
    describe="edgekit.targets.computer_folder:describe",
)
