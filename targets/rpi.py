"""Raspberry Pi and other ARM computers: the native core, or TVM with its kernels."""

from __future__ import annotations

from edgekit.targets import Target
from edgekit.targets.tier import Tier

TARGET = Target(
    name="rpi",
    summary="Raspberry Pi and other 64-bit ARM computers: the native core, or TVM with its kernels",
    formats=("native", "tvm"),
    preset="mixed4",
    group_size=32,
    engines={"tvm": "tvm"},
    devices={"tvm": ("aarch64", "opencl-aarch64")},
    checked={
        "native": "core executed under qemu for aarch64; not run on a board",
        "tvm": "executed under qemu for aarch64; not run on a board",
    },
    tiers=(
        Tier("4 GB board", 3_000_000_000, "estimated: the memory less 1 GB for the system"),
        Tier("8 GB board", 7_000_000_000, "estimated: the memory less 1 GB for the system"),
        Tier("16 GB board", 15_000_000_000, "estimated: the memory less 1 GB for the system"),
    ),
    describe="edgekit.targets.computer_folder:describe",
)
