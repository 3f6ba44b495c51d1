"""How exact and how fast are the ways to write a product with a weight for Core AI, in its own runtime?

Float16, random [ROWS, K] times the transpose of random [N, K], once as a matrix product, once as one of
operands in float32, once as a 1x1 convolution with channels first (what `edgekit.export.formats.coreai.ops`
writes). The peak signal to noise ratio is that to numpy's product of the same numbers in float64.

    python -m edgekit.tools.bench.coreai_products --columns 64,256,4096
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np


def matrix(x: Any, weight: Any) -> Any:
    """As a matrix product."""
    from coreai._compiler.dialects import coreai

    from edgekit.export.formats.coreai.ops import transposed

    return coreai.broadcasting_batch_matmul(x, transposed(weight))


def wide_matrix(x: Any, weight: Any) -> Any:
    """As a matrix product in float32."""
    from edgekit.export.formats.coreai.ops import cast, wide

    return cast(matrix(wide(x), wide(weight)), x.type.element_type)


def convolution(x: Any, weight: Any) -> Any:
    """As a convolution."""
    from edgekit.export.formats.coreai.ops import projected, reshape, shape_of

    return projected(x, reshape(weight, [*shape_of(weight), 1, 1]))


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "matrix product": matrix,
    "matrix product, operands in float32": wide_matrix,
    "convolution": convolution,
}


def build(way: Callable[[Any, Any], Any], shapes: list[tuple[int, int]], folder: Path) -> None:
    """An asset with one function of two float16 inputs."""
    from coreai.authoring import AIProgram, Context, Module
    from coreai.authoring.graph_builder import GraphOp

    # isort: split
    from coreai._compiler.ir import F16Type, InsertionPoint, Location, RankedTensorType

    with Context(), Location.unknown():
        module = Module.create()
        with InsertionPoint(module._body):
            types = [RankedTensorType.get(shape, F16Type.get()) for shape in shapes]
            graph = GraphOp("main", types, [], ["x", "weight"])
            with graph.block:
                graph.set_outputs_spec_from_dict(OrderedDict(y=way(*graph.arguments)))
        AIProgram(module).save_asset(folder)


async def call(asset: Path, inputs: dict[str, np.ndarray], repeats: int) -> tuple[np.ndarray, list[float]]:
    """The result of a call, and the seconds of `repeats` more."""
    from coreai.authoring import AIModelAsset
    from coreai.runtime import NDArray

    feed, seconds = {name: NDArray(array) for name, array in inputs.items()}, []
    async with AIModelAsset.load(asset).executable() as model:
        function = model.load_function("main")
        result = np.array((await function(feed))["y"].numpy())
        for _ in range(repeats):
            started = time.perf_counter()
            await function(feed)
            seconds.append(time.perf_counter() - started)
    return result, seconds


@click.command()
@click.option("--columns", default="64,256,1024,4096", show_default=True, help="Terms of a sum.")
@click.option("--rows", default=64, show_default=True, help="Positions.")
@click.option("--outputs", default=256, show_default=True, help="Rows of the weight.")
@click.option("--repeats", default=5, show_default=True)
def main(columns: str, rows: int, outputs: int, repeats: int) -> None:
    """Print a line of JSON for each way and number of columns."""
    rng = np.random.default_rng(0)
    for count in (int(c) for c in columns.split(",")):
        x = rng.standard_normal((rows, count)).astype(np.float16)
        weight = (rng.standard_normal((outputs, count)) / np.sqrt(count)).astype(np.float16)
        exact = x.astype(np.float64) @ weight.astype(np.float64).T
        for name, way in WAYS.items():
            with tempfile.TemporaryDirectory() as scratch:
                asset = Path(scratch) / "product.aimodel"
                build(way, [x.shape, weight.shape], asset)
                found, seconds = asyncio.run(call(asset, {"x": x, "weight": weight}, repeats))
            error = np.sqrt(np.mean((found - exact) ** 2))
            row = {
                "columns": count,
                "way": name,
                "decibels": round(float(20 * np.log10(np.abs(exact).max() / error)), 1),
                "milliseconds": round(1e3 * statistics.median(seconds), 2),
            }
            click.echo(json.dumps(row))


if __name__ == "__main__":
    main()
