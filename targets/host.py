"""This machine, or another computer: the native core on the processor, or ONNX Runtime on it or any GPU."""

from __future__ import annotations

from edgekit.targets import ON_WEBGPU, Target

TARGET = Target(
    name="host",
    summary="computers: the native core, ONNX Runtime or TVM on the processor, or the latter two on a GPU",
    formats=("native", "onnx", "onnx-gpu", "tvm"),
    preset="mixed4",
    group_size=32,
    engines={"tvm": "tvm"},
    checked={
        "native": "executed and measured on x86-64 Linux",
        "onnx": "executed and measured on x86-64 Linux",
        "onnx-gpu": ON_WEBGPU,
        "tvm": "executed and measured on x86-64 Linux; for GPUs compiled alone",
    },
)
