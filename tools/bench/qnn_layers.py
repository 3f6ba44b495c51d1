"""What does it take to compile layers for Qualcomm's NPU? Random layers of a released model's shape, or of
LLaDA's as narrow as `--hidden` says, are exported as `--target android` exports them, and each package is
compiled for chips. Of layers with experts that is what the NPU computes of them.

    python -m edgekit.tools.bench.qnn_layers --layers 2 --soc sm8650,sm8750
    python -m edgekit.tools.bench.qnn_layers --model diffusion-gemma-26b --lengths 0 --project 30

A row for every binary: its bytes, seconds, and the peak of the process that compiled it. Behind the rows of a
chip they are projected to a model of `--project` layers.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from edgekit.flashload.sizes import size
from edgekit.tools.bench import random_checkpoint
from edgekit.tools.planning import released

#: Of GSAI-ML/LLaDA-8B.
LLADA, HEAD_DIM = "llada-8b", 128
#: Layers are what is asked.
VOCABULARY = 4096


def shape(hidden: int) -> dict[str, Any]:
    """What config.json of GSAI-ML/LLaDA-8B has otherwise at another width."""
    return {
        "d_model": hidden,
        "n_heads": hidden // HEAD_DIM,
        "n_kv_heads": hidden // HEAD_DIM,
        "mlp_hidden_size": 3 * hidden,
    }


def compiled(package: Path, functions: list[str], soc: str, target: Path) -> tuple[float, int, int]:
    """Seconds, peak bytes of the compiling process and bytes of its binary."""
    from edgekit.export.formats.qnn.contexts import compile_package

    started = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()  # so that the peak is of this package alone
    if not child:
        import resource

        files = compile_package(package, functions, soc, target, 1 << 40)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        os.write(writing, f"{peak} {sum(file.stat().st_size for file in files)}".encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    said = os.read(reading, 100).split()
    os.close(reading)
    if not said:
        raise click.ClickException(f"{package} cannot be compiled for {soc}")
    return time.monotonic() - started, int(said[0]), int(said[1])


@click.command()
@click.option("--layers", default=2, show_default=True)
@click.option("--soc", "socs", default="sm8650,sm8750", show_default=True)
@click.option("--lengths", default="256", show_default=True)
@click.option("--chunk", default=1, show_default=True)
@click.option("--quant", default="mixed4", show_default=True)
@click.option("--model", default=LLADA, show_default=True, type=click.Choice(list(released.MODELS)))
@click.option("--hidden", default=None, type=int, help=f"A multiple of {HEAD_DIM}, of LLaDA's layers.")
@click.option("--project", default=32, show_default=True)
def main(
    layers: int, socs: str, lengths: str, chunk: int, quant: str, model: str, hidden: int | None, project: int
) -> None:
    from edgekit.export.formats.options import Packaging, parse_lengths, parse_names
    from edgekit.export.pipeline import ExportOptions, export
    from edgekit.export.quantize import Scheme

    with tempfile.TemporaryDirectory() as scratch:
        source, bundle = Path(scratch, "checkpoint"), Path(scratch, "bundle")
        config = released.config(model, layers, VOCABULARY)
        random_checkpoint.write(source, config if hidden is None else config | shape(hidden), distinct=True)
        packaging = Packaging(parse_lengths(lengths), layers_per_chunk=chunk)
        started = time.monotonic()
        export(source, bundle, ExportOptions("qnn", "android", Scheme(quant, 32), packaging=packaging))
        click.echo(f"export: {time.monotonic() - started:.0f} s")
        click.echo("| package | chip | lengths | package's bytes | binary | seconds | peak |")
        click.echo("|---|---|---|---|---|---|---|")
        for soc in parse_names(socs):
            total = [0.0, 0.0]
            for package in sorted((bundle / "packages").glob("layers.*.qnn")):
                functions = sorted(f.name.removesuffix(".npu.onnx") for f in package.glob("*.npu.onnx"))
                seconds, peak, nbytes = compiled(package, functions, soc, Path(scratch, soc, package.stem))
                own = size(sum(f.stat().st_size for f in package.iterdir()))
                took = f"{size(nbytes)} | {seconds:.0f} | {size(peak)}"
                click.echo(f"| {package.stem} | {soc} | {lengths} | {own} | {took} |")
                total = [total[0] + seconds, total[1] + nbytes]
            each = project / layers
            click.echo(
                f"\n{soc}, {project} layers: {total[0] * each / 60:.0f} min, {size(int(total[1] * each))}\n"
            )


if __name__ == "__main__":
    main()
