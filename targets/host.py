"""This machine, or any other computer with a processor that ONNX Runtime supports."""

from __future__ import annotations

from edgekit.targets import Target

TARGET = Target(
    name="host",
    summary="computers: ONNX Runtime on the processor",
    formats=("onnx",),
    preset="mixed4",
    group_size=32,
)
