"""How fast are the native core's products with weights of 4 and 8 bits?

Each shape is timed beside two limits: the processor's int8 rate (on registers alone, a loop per thread, in
the same minute) and, interleaved, ONNX Runtime's DynamicQuantizeMatMul with a constant int8 weight, packed
beforehand. All take and return floats, so rounding of activations is part of the time. Small weights
are drawn many times over and used in turn, so that they come from memory as they do in a model. Outside the
timed window: drawing of weights, session creation, one warm-up round.

The functions are those of the testing library: build with -DEDGEKIT_TESTING=ON (as `make test` does), or name
the file in EDGEKIT_TESTING_LIB.

    python -m edgekit.tools.bench.native_gemm
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from edgekit.flashload import _native
from edgekit.runtime.bench import probe_processor
from edgekit.runtime.telemetry import load_onnxruntime

PANEL = 64
GROUP = 64
COLD_BYTES = 100_000_000
PEAK_SECONDS = 0.3


class Matrix(ctypes.Structure):
    """kernels/matrix.h: Matrix."""

    _fields_ = [
        ("rows", ctypes.c_int64), ("columns", ctypes.c_int64), ("bits", ctypes.c_int),
        ("group", ctypes.c_int64), ("codes", ctypes.c_void_p), ("group_scales", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
    ]  # fmt: skip


class QuantizedRows(ctypes.Structure):
    """kernels/matrix.h: QuantizedRows."""

    _fields_ = [
        ("codes", ctypes.c_void_p), ("scales", ctypes.c_void_p), ("sums", ctypes.c_void_p),
        ("rows", ctypes.c_int64), ("columns", ctypes.c_int64), ("stride", ctypes.c_int64),
    ]  # fmt: skip


class Addends(ctypes.Structure):
    """kernels/gemm.h: Addends."""

    _fields_ = [
        ("bias", ctypes.c_void_p), ("residual", ctypes.c_void_p), ("residual_stride", ctypes.c_int64),
    ]  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """x [m, k] times a weight [n, k]; gated: the first n / 2 outputs are the gates of the others."""

    m: int
    k: int
    n: int
    gated: bool = False

    def __str__(self) -> str:
        return f"{self.m} x {self.k} x {self.n}" + (" gated" if self.gated else "")

    @property
    def operations(self) -> int:
        return 2 * self.m * self.k * self.n

    def copies(self, bits: int) -> int:
        """The number of weights that are used in turn."""
        return 1 if self.m >= 64 else max(1, COLD_BYTES * 8 // (self.k * self.n * bits))


SHAPES = (
    Shape(256, 4096, 4096), Shape(256, 4096, 12288), Shape(16, 2816, 1408, gated=True), Shape(16, 704, 2816),
)  # fmt: skip


def testing_library() -> ctypes.CDLL:
    """The library with the `ekt_` functions, beside the core unless EDGEKIT_TESTING_LIB names another."""
    beside = str(_native.library_path()).replace("edgekit_core", "edgekit_testing")
    try:
        return ctypes.CDLL(os.environ.get("EDGEKIT_TESTING_LIB", beside))
    except OSError as error:
        raise click.ClickException(f"{error}; configure with -DEDGEKIT_TESTING=ON and build") from error


def aligned(size: int, dtype: type = np.uint8) -> NDArray[Any]:
    """Zeros that start at a multiple of 64 bytes."""
    memory = np.zeros(size * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size * np.dtype(dtype).itemsize].view(dtype)


class Native:
    """The products of one shape with weights of one width."""

    def __init__(self, library: ctypes.CDLL, gemm: ctypes.c_void_p, shape: Shape, bits: int) -> None:
        rng = np.random.default_rng(0)
        self.library, self.gemm, self.shape = library, gemm, shape
        rows = shape.n // 2 if shape.gated else shape.n
        count = shape.copies(bits) * (2 if shape.gated else 1)
        self.arrays: list[NDArray[Any]] = []
        self.matrices = [self._matrix(rng, rows, shape.k, bits) for _ in range(count)]
        self.x = rng.standard_normal((shape.m, shape.k), np.float32)
        self.y = np.empty((shape.m, rows), np.float32)
        library.ekt_quantized_bytes.restype = ctypes.c_uint64
        size = library.ekt_quantized_bytes(ctypes.c_int64(shape.m), ctypes.c_int64(shape.k))
        self.memory = aligned(size)
        self.rounded = QuantizedRows()

    def _matrix(self, rng: np.random.Generator, rows: int, columns: int, bits: int) -> Matrix:
        panels = -(-rows // PANEL)
        codes = aligned(panels * PANEL * columns * bits // 8)
        groups = aligned(panels * PANEL * columns // GROUP)
        codes[:] = rng.integers(0, 256, codes.size, np.uint8)
        groups[:] = rng.integers(1, 16, groups.size, np.uint8)
        scales = np.full(panels * PANEL, 1e-3, np.float32)
        self.arrays += [codes, groups, scales]
        address = [array.ctypes.data for array in (codes, groups, scales)]
        return Matrix(rows, columns, bits, GROUP, *address)

    def __call__(self) -> None:
        """All weights in turn."""
        m, k = ctypes.c_int64(self.shape.m), ctypes.c_int64(self.shape.k)
        rounded = ctypes.byref(self.rounded)
        y = (ctypes.c_void_p(self.y.ctypes.data), ctypes.c_int64(self.y.shape[1]))
        status = 0
        for i in range(0, len(self.matrices), 2 if self.shape.gated else 1):
            self.library.ekt_quantize_rows(
                self.gemm, ctypes.c_void_p(self.x.ctypes.data), k, m, k,
                ctypes.c_void_p(self.memory.ctypes.data), rounded,
            )  # fmt: skip
            matrix = ctypes.byref(self.matrices[i])
            if self.shape.gated:
                up = ctypes.byref(self.matrices[i + 1])
                status |= self.library.ekt_linear_gated(self.gemm, matrix, up, rounded, 0, *y)
            else:
                status |= self.library.ekt_linear(self.gemm, matrix, rounded, *y, ctypes.byref(Addends()))
        if status:
            raise click.ClickException(f"the product {self.shape} failed with status {status}")


def onnx_runtime(shape: Shape, threads: int) -> Callable[[], object]:
    """The same products in one graph (a gated one as plain product with both halves)."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    x = rng.standard_normal((shape.m, shape.k), np.float32)
    nodes, weights, outputs = [], [], []
    for i in range(shape.copies(8)):
        codes = rng.integers(-127, 128, (shape.k, shape.n), np.int8)
        weights.append(numpy_helper.from_array(codes, f"w{i}"))
        weights.append(numpy_helper.from_array(np.full(shape.n, 1e-3, np.float32), f"s{i}"))
        names = ["x", f"w{i}", f"s{i}"]
        nodes.append(helper.make_node("DynamicQuantizeMatMul", names, [f"y{i}"], domain="com.microsoft"))
        outputs.append(helper.make_tensor_value_info(f"y{i}", 1, None))
    inputs = [helper.make_tensor_value_info("x", 1, x.shape)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})


def measure(calls: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Median seconds of each, interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(runs + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if run:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(s) for name, s in seconds.items()}


def compare(library: ctypes.CDLL, shape: Shape, threads: int, runs: int, onnx: bool) -> dict[str, Any]:
    """Rates in GOP/s by name: peak, 4 bits, 8 bits, ONNX Runtime."""
    library.ekt_gemm_open.restype = ctypes.c_void_p
    gemm = ctypes.c_void_p(library.ekt_gemm_open(threads))
    try:
        products = {f"{bits} bits": Native(library, gemm, shape, bits) for bits in (4, 8)}
        operations = {name: shape.operations * shape.copies(int(name[0])) for name in products}
        calls: dict[str, Callable[[], object]] = dict(products)
        if onnx:
            calls["ORT"] = onnx_runtime(shape, threads)
            operations["ORT"] = shape.operations * shape.copies(8)
        rates = {name: operations[name] / s / 1e9 for name, s in measure(calls, runs).items()}
        return rates | {"peak": probe_processor(threads, PEAK_SECONDS).int8_operations / 1e9}
    finally:
        library.ekt_gemm_close(gemm)


@click.command()
@click.option("--threads", default="1,2", show_default=True, help="Numbers of threads, with commas.")
@click.option("--runs", default=9, show_default=True)
@click.option("--onnx/--no-onnx", default=True, help="Whether ONNX Runtime is measured too.")
def main(threads: str, runs: int, onnx: bool) -> None:
    """Print a table of rates in GOP/s (two operations per product), medians."""
    library = testing_library()
    names = ["4 bits", "8 bits", "ORT", "peak"]
    header = " ".join(f"{name:>8s}" for name in names)
    click.echo(f"{'shape':24s} threads {header}  share of peak, 4 and 8 bits")
    results = []
    for shape in SHAPES:
        for count in (int(n) for n in threads.split(",")):
            rates = compare(library, shape, count, runs, onnx)
            cells = " ".join(f"{rates[name]:8.0f}" if name in rates else f"{'-':>8s}" for name in names)
            shares = [f"{rates[name] / rates['peak']:.0%}" for name in names[:2]]
            click.echo(f"{shape!s:24s} {count:7d} {cells}  {' '.join(shares)}")
            results.append({"shape": str(shape), "threads": count, "gops": rates})
    click.echo(json.dumps(results))


if __name__ == "__main__":
    main()
