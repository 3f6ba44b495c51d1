"""iPhones and iPads: Core ML on the Neural Engine and the GPU."""

from __future__ import annotations

from edgekit.targets import Target

TARGET = Target(
    name="ios",
    summary="iPhones and iPads: Core ML on the Neural Engine and the GPU",
    formats=("coreml",),
    preset="mixed4",
    group_size=32,
)
