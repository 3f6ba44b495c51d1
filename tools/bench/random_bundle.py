"""Write a bundle of random weights in the shape of a real model, for the native core or TVM.

    python -m edgekit.tools.bench.random_bundle llada-8b OUT [--quant mixed4] [--layers 8] [--format tvm]

Sizes, runs and programs are those of an export of the real model, so that streaming and computing cost the
same. Random bytes are drawn once and cut at random places, which makes the disk the limit; scales keep the
output of every product near the size of its input, and norms are 1, so that activations stay finite.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgekit.export import formats
from edgekit.export.bundle_files import Contents
from edgekit.export.formats.native import layout as native_layout
from edgekit.export.formats.native.layout import PAD_GROUP_SCALE, PANEL_ROWS, QUAD, ZERO_CODE, ZERO_NIBBLES
from edgekit.export.formats.options import FormatOptions
from edgekit.export.models import architecture as architecture_of
from edgekit.export.pipeline import Progress
from edgekit.export.quantize import PRESETS, Choice, Scheme
from edgekit.export.runs import TABLE_TILE_BYTES, RunPlan, plan_runs
from edgekit.export.sampler_config import sampler_config
from edgekit.export.skeleton import report_without_errors, seal
from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.format import TensorSpec
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.flashload.sizes import size
from edgekit.flashload.writer import FlashWriter
from edgekit.tools.console import Steps
from edgekit.tools.options import Number
from edgekit.tools.planning import released

Stored = np.ndarray[Any, Any]
#: Formats that store weights as the native core takes them.
FORMATS = "native", "tvm"
#: Elements of a pool of random values, and the most that is cut from it at once.
POOL_ELEMENTS, CUT_ELEMENTS = 32 << 20, 8 << 20
#: Integers that are drawn, symmetric about zero: with another mean the products of many layers would all
#: point the same way.
CODES_8, CODES_4, GROUP_SCALES = range(-127, 128), range(-7, 8), range(1, 16)


def _rms(values: range) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values))


#: Root mean square of a weight before its row's scale.
RMS = {8: _rms(CODES_8), 4: _rms(CODES_4) * _rms(GROUP_SCALES)}


class RandomWeights:
    """The stored tensors of weights of any shape. Equal seeds and calls give equal bytes."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[str, Stored] = {}

    def matrix(
        self, shape: tuple[int, int], choice: Choice, specs: tuple[TensorSpec, ...]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Arrays for the `specs` of a matrix or table in layout `native-1`, large ones in several consecutive
        parts.
        """
        rows, columns = shape
        for spec in specs:
            kind = spec.name.rpartition(".")[2]
            if kind == "scales":
                scales = np.zeros(spec.shape, np.float32)
                scales[:rows] = self._rng.uniform(0.75, 1.25, rows) / (math.sqrt(columns) * RMS[choice.bits])
                yield spec.name, scales
                continue
            pool = self._pool(kind, columns)
            width = math.prod(spec.shape[1:])
            step = max(1, CUT_ELEMENTS // width)
            for start in range(0, spec.shape[0], step):
                count = min(step, spec.shape[0] - start)
                part = self._cut(pool, count * width).reshape(count, *spec.shape[1:])
                last = start + count == spec.shape[0]
                yield spec.name, part if len(spec.shape) == 2 else _padded(part, kind, rows, columns, last)

    def uneven(
        self, tensors: Iterator[tuple[str, np.ndarray]], rows: int, skew: float
    ) -> Iterator[tuple[str, np.ndarray]]:
        """The tensors of a matrix, its `rows` made of lengths 1, 2^-skew, 3^-skew, ... in random order."""
        for name, array in tensors:
            if name.endswith(".scales"):
                array[:rows] *= self._rng.permutation(np.arange(1, rows + 1, dtype=np.float32) ** -skew)
            yield name, array

    def _cut(self, pool: Stored, count: int) -> Stored:
        start = int(self._rng.integers(len(pool) - count + 1))
        return pool[start : start + count]

    def _pool(self, kind: str, columns: int) -> Stored:
        """Random stored values of a tensor by the last part of its name; drawn once. Those of 16-bit matrices
        hold the scale.
        """
        name = f"{kind} {columns}" if kind == "weight" else kind
        if name not in self._pools:
            self._pools[name] = self._draw(kind, columns)
        return self._pools[name]

    def _draw(self, kind: str, columns: int) -> Stored:
        if kind == "weight":
            values = self._rng.standard_normal(POOL_ELEMENTS // 2, np.float32)
            values *= np.float32(1 / math.sqrt(columns))
            return (values.view(np.uint32) >> 16).astype(np.uint16)  # bfloat16: the upper half
        if kind == "packed":
            pairs = np.array([(low + 8) | ((high + 8) << 4) for low in CODES_4 for high in CODES_4], np.uint8)
            return pairs[self._rng.integers(len(pairs), size=POOL_ELEMENTS, dtype=np.uint8)]
        values_of, zero = (CODES_8, ZERO_CODE) if kind == "codes" else (GROUP_SCALES, 0)
        return self._rng.integers(values_of.start + zero, values_of.stop + zero, POOL_ELEMENTS, np.uint8)


def _padded(part: np.ndarray, kind: str, rows: int, columns: int, last: bool) -> np.ndarray:
    """Panels with the padding that the layout asks for; `last` if the last panel is among them."""
    value = {"codes": ZERO_CODE, "packed": ZERO_NIBBLES, "group_scales": PAD_GROUP_SCALE}[kind]
    beside, below = kind == "codes" and columns % QUAD, last and rows % PANEL_ROWS
    if beside or below:
        part = part.copy()
    if beside:
        part[:, -1, :, columns % QUAD :] = value
    if below:
        part[-1, :, rows % PANEL_ROWS :] = value
    return part


def write(
    out: Path,
    config: dict[str, Any],
    scheme: Scheme,
    *,
    seed: int = 0,
    skew: float = 0.0,
    overwrite: bool = False,
    tile_bytes: int = TABLE_TILE_BYTES,
    generation_config: dict[str, Any] | None = None,
    program_format: str = "native",
    device: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the bundle that an export of a checkpoint with this config.json gives, tokenizer left out;
    returns the bytes of its weights. Its routers choose all experts about equally often; the larger `skew`,
    the more often they choose the same few. `program_format` is one that stores weights as the native one.

    Raises:
        EdgekitError: the configuration is not supported, the folder holds a bundle already, or the disk
            refuses.
    """
    if skew and PRESETS[scheme.preset]["router"] == 16:
        raise EdgekitError(
            f"{scheme.preset}: a skew is given to the scales of routers, and this preset has none"
        )
    architecture = architecture_of(config, "bfloat16")
    form = formats.load(program_format)(architecture, scheme, FormatOptions(device=device))
    runs = plan_runs(form, tile_bytes)
    out.mkdir(parents=True, exist_ok=True)
    if overwrite:
        (out / MANIFEST_NAME).unlink(
            missing_ok=True
        )  # from here on the folder is no bundle until it is whole
    source = RandomWeights(seed)
    if progress:
        progress.stage("writing random weights", sum(t.nbytes for r in runs for t in r.spec.tensors))
    tag = f"random {seed} {skew} {scheme} {json.dumps(config, sort_keys=True)}"
    with FlashWriter(out / form.WEIGHTS_FILE, [r.spec for r in runs], overwrite=overwrite, tag=tag) as writer:
        for run in runs:
            writer.write_run(run.spec.name, _tensors(run, source, form.choices, skew))
            if progress:
                progress.advance(sum(t.nbytes for t in run.spec.tensors), run.spec.name)
        if progress:
            progress.stage("checksum of the weights", 0)
        digest = writer.finish()
    report = report_without_errors(form, scheme, runs)
    sampler = sampler_config(architecture, generation_config or {})
    contents = Contents(form, scheme, runs, report, digest, config, sampler)
    seal(out, contents, "random", "random weights: this model says nothing", tag, progress)
    return digest.size


def _tensors(
    run: RunPlan,
    source: RandomWeights,
    choices: Mapping[str, Choice],
    skew: float,
) -> Iterator[tuple[str, np.ndarray]]:
    """The stored tensors of a run in order."""
    for piece in run.pieces:
        if piece.spec.role == "float":
            value = 0.0 if piece.name.endswith(".bias") else 1.0
            yield piece.name, np.full(piece.spec.shape, value, np.float32)
            continue
        shape, choice = (piece.stop - piece.start, piece.spec.shape[1]), choices[piece.matrix]
        specs = native_layout.specs(piece.name, replace(piece.spec, shape=shape), choice)
        tensors = source.matrix(shape, choice, specs)
        if skew and piece.spec.role == "router":
            tensors = source.uneven(tensors, shape[0], skew)
        yield from tensors


@click.command()
@click.argument("model", type=click.Choice(list(released.MODELS)))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--quant", type=click.Choice(list(PRESETS)), default="mixed4", show_default=True)
@click.option("--group-size", default=32, show_default=True)
@click.option("--layers", type=click.IntRange(1), help="Fewer layers than the model has.")
@click.option("--format", "format_", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True)
@click.option("--device", help="What TVM compiles for.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--skew",
    type=Number(lambda skew: skew >= 0, "of at least 0"),
    default=0.0,
    help="How unevenly experts are chosen.",
)
@click.option("--overwrite", is_flag=True, help="Replace a bundle that is in OUT.")
def main(
    model: str,
    out: Path,
    quant: str,
    group_size: int,
    layers: int | None,
    format_: str,
    device: str | None,
    seed: int,
    skew: float,
    overwrite: bool,
) -> None:
    """Write a bundle of random weights in the shape of MODEL to OUT."""
    started = time.monotonic()
    try:
        with Steps("planning") as steps:
            config = released.config(model, layers)
            scheme = Scheme(quant, group_size)
            nbytes = write(
                out, config, scheme, seed=seed, skew=skew, overwrite=overwrite,
                program_format=format_, device=device, progress=steps,
            )  # fmt: skip
    except EdgekitError as error:
        raise click.ClickException(str(error)) from error
    seconds = time.monotonic() - started
    click.echo(f"{out}: {size(nbytes)} of weights in {seconds:.1f} s")


if __name__ == "__main__":
    main()
