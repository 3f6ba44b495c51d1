"""iPhones and iPads: Core ML, from iOS 27 on Core AI, on the Neural Engine and the GPU."""

from __future__ import annotations

from edgekit.targets import Target

TARGET = Target(
    name="ios",
    summary="iPhones and iPads: Core ML or Core AI on the Neural Engine and the GPU",
    formats=("coreml", "coreai"),
    preset="mixed4",
    group_size=32,
    since={"coreai": 27},
)
