"""Raspberry Pi and other ARM computers: the native core."""

from __future__ import annotations

from edgekit.targets import Target

TARGET = Target(
    name="rpi",
    summary="Raspberry Pi and other 64-bit ARM computers: the native core",
    formats=("native",),
    preset="mixed4",
    group_size=32,
    checked={"native": "core executed under qemu for aarch64; not run on a board"},
)
