"""Seconds of MatMulNBits by block size, bits and accuracy level on a provider of ONNX Runtime, beside MatMul:

    python -m edgekit.tools.bench.onnx_gpu_blocks [PROVIDER]

Needs onnx, and an onnxruntime with the provider (WebGpuExecutionProvider by default).
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np

from edgekit.runtime.telemetry import load_onnxruntime

ROWS, COLUMNS, OUTPUTS = 64, 256, 256
_REPEATS = 5


def seconds(provider: str, nodes: list[Any], arrays: dict[str, np.ndarray]) -> float:
    """The median time of a program of these nodes, which gives `y`, without the first call."""
    from onnx import helper

    def value(name: str, array: np.ndarray) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    result = value("y", np.empty((1, ROWS, OUTPUTS), np.float32))
    graph = helper.make_graph(nodes, "g", [value(*each) for each in arrays.items()], [result])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = load_onnxruntime().InferenceSession(
        model.SerializeToString(), providers=[provider, "CPUExecutionProvider"], enable_fallback=0
    )
    taken = []
    for _ in range(_REPEATS + 1):
        started = time.perf_counter()
        session.run(None, arrays)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def main() -> None:
    """Print the table."""
    from onnx import helper

    provider = sys.argv[1] if len(sys.argv) > 1 else "WebGpuExecutionProvider"
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, ROWS, COLUMNS), np.float32)
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    w = rng.standard_normal((COLUMNS, OUTPUTS), np.float32)
    plain = seconds(provider, [product], {"x": x, "w": w})
    print(f"{provider}, {ROWS} x {COLUMNS} x {OUTPUTS}: MatMul {plain:.4f} s")
    for bits in (4, 8):
        for block in (16, 32, 64, 128):
            shape = (OUTPUTS, COLUMNS // block, block * bits // 8)
            codes = rng.integers(0, 256, shape, np.uint8)
            arrays = {"x": x, "q": codes, "s": rng.random(shape[:2], np.float32)}
            for level in (0, 4):
                node = helper.make_node(
                    "MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft", K=COLUMNS, N=OUTPUTS,
                    bits=bits, block_size=block, accuracy_level=level,
                )  # fmt: skip
                taken = seconds(provider, [node], arrays)
                print(f"{bits} bits, blocks of {block}, accuracy level {level}: {taken:.4f} s")


if __name__ == "__main__":
    main()
