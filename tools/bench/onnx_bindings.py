"""How fast does ONNX Runtime multiply when the weight is a graph input, as streaming needs it?

Answers why the `onnx` format stores int8 [K, N] and unpacks 4-bit codes while binding. One product x [M, K]
@ w [K, N] at a time; every way is timed with its weight as an input, the int8 ones also with the unpacking
that 4-bit storage adds. The limit is the machine's int8 rate. Outside the timed window: session creation,
drawing of weights.

    python -m edgekit.tools.bench.onnx_bindings
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from edgekit.runtime.engines.unpack import unpack_int4
from edgekit.runtime.telemetry import load_onnxruntime


def _session(nodes: list[Any], inputs: dict[str, np.ndarray], threads: int) -> Any:
    from onnx import helper

    def info(name: str, array: np.ndarray) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    output = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [info(n, a) for n, a in inputs.items()], [output])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _node(op: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(op, inputs, [output], domain=domain, **attributes)


def _constant(name: str, value: Any) -> Any:
    from onnx import numpy_helper

    return _node("Constant", [], name, value=numpy_helper.from_array(np.asarray(value)))


def ways(m: int, k: int, n: int, threads: int) -> dict[str, Callable[[], object]]:
    """The candidates that are timed, by name."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k), np.float32)
    codes = rng.integers(-120, 121, (k, n), dtype=np.int8)
    scales = np.full(n, 1e-3, np.float32)
    packed = rng.integers(0, 256, (k, n // 2), dtype=np.uint8)
    groups = rng.integers(1, 16, (k // 32, n), dtype=np.uint8)
    scratch = np.empty((k, n), np.int8)

    per_tensor: dict[str, np.ndarray] = {"x": x, "w": codes, "s": scales}
    whole = _session(
        [_node("DynamicQuantizeMatMul", ["x", "w", "s"], "y", "com.microsoft")], per_tensor, threads
    )
    rows = [
        _constant("top", np.float32(127)), _constant("axis", np.array([1])),
        _constant("off", np.float32(128)), _constant("zero", np.uint8(128)), _node("Abs", ["x"], "a"),
        _node("ReduceMax", ["a", "axis"], "m", keepdims=1), _node("Div", ["m", "top"], "r"),
        _node("Div", ["x", "r"], "q"), _node("Add", ["q", "off"], "o"), _node("Round", ["o"], "i"),
        _node("Cast", ["i"], "u", to=2), _node("MatMulInteger", ["u", "w", "zero"], "p"),
        _node("Cast", ["p"], "f", to=1), _node("Mul", ["f", "r"], "g"), _node("Mul", ["g", "s"], "y"),
    ]  # fmt: skip
    per_row = _session(rows, per_tensor, threads)
    blocks = rng.integers(0, 256, (n, k // 32, 16), dtype=np.uint8)
    block_scales = np.full((n, k // 32), 1e-3, np.float32)
    nbits_inputs: dict[str, np.ndarray] = {"x": x, "w": blocks, "s": block_scales}
    attributes = {"K": k, "N": n, "bits": 4, "block_size": 32, "accuracy_level": 4}
    nbits = _session(
        [_node("MatMulNBits", ["x", "w", "s"], "y", "com.microsoft", **attributes)], nbits_inputs, threads
    )

    def unpacked() -> object:
        unpack_int4(packed, groups, scratch)
        return per_row.run(None, per_tensor | {"w": scratch})

    return {
        "MatMulNBits, 4 bits in groups of 32, int8 activations": lambda: nbits.run(None, nbits_inputs),
        "DynamicQuantizeMatMul, int8, one activation scale": lambda: whole.run(None, per_tensor),
        "MatMulInteger, int8, an activation scale per row (used)": lambda: per_row.run(None, per_tensor),
        "the same, unpacked from 4 bits first (used)": unpacked,
        "unpacking alone": lambda: unpack_int4(packed, groups, scratch),
    }


@click.command()
@click.option("--m", default=256, show_default=True)
@click.option("--k", default=4096, show_default=True)
@click.option("--n", default=12288, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--runs", default=7, show_default=True)
def main(m: int, k: int, n: int, threads: int, runs: int) -> None:
    """Time the ways to bind a weight, interleaved; medians."""
    candidates = ways(m, k, n, threads)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for run in range(runs + 1):
        for name, call in candidates.items():
            started = time.perf_counter()
            call()
            if run:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    for name, median in medians.items():
        spread = (min(seconds[name]), max(seconds[name]))
        click.echo(
            f"{name:58s} {1e3 * median:8.1f} ms ({1e3 * spread[0]:.1f}..{1e3 * spread[1]:.1f})  "
            f"{2 * m * k * n / median / 1e12:5.2f} TOP/s"
        )
    click.echo(json.dumps({"m": m, "k": k, "n": n, "threads": threads, "runs": runs, "median_s": medians}))


if __name__ == "__main__":
    main()
