"""Phones with Android: the native core on the processor, and the NPU of Qualcomm's Snapdragon through QNN."""

from __future__ import annotations

from edgekit.targets import Target
from edgekit.targets.tier import Tier

TARGET = Target(
    name="android",
    summary="Android phones: the native core, and Snapdragon's NPU through QNN",
    formats=("native", "qnn"),
    preset="mixed4",
    group_size=32,
    together=("native", "qnn"),
    checked={
        "qnn": "executed in Qualcomm's emulation on x86-64 Linux; not run on a device",
        "native": "core executed under qemu for aarch64; not run on a device",
    },
    tiers=(
        # Android has no limit for native memory, and ends what takes too much; those of 12 and 16 GB are
        # as in devices.toml.
        Tier("6 GB phone", 2_000_000_000, "estimated: a third of the memory"),
        Tier("8 GB phone", 3_000_000_000, "estimated: less than 40% of the memory"),
        Tier("12 GB phone", 5_000_000_000, "estimated: about 40% of the memory"),
        Tier("16 GB phone", 6_000_000_000, "estimated: less than 40% of the memory"),
    ),
    describe="edgekit.targets.android_folder:describe",
)
