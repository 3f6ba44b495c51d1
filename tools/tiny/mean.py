"""Writes a tiny model whose weights are the mean of others': of runs that began with the same weights it is
often right more often than any (Wortsman et al. 2022, "Model soups").

    python -m edgekit.tools.tiny.mean OUT RUN RUN ...
"""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import torch
from safetensors.torch import load_file, save

from edgekit.flashload.files import write_atomic

_WEIGHTS = "model.safetensors"


def mean(out: Path, runs: list[Path]) -> None:
    """Write `out`: the files of the first of `runs`, and in each matrix the mean over all, in bfloat16.

    Raises click.ClickException if runs have other tensors than the first.
    """
    tensors = [load_file(run / _WEIGHTS) for run in runs]
    shapes = [{name: tensor.shape for name, tensor in each.items()} for each in tensors]
    for run, own in zip(runs, shapes, strict=True):
        if own != shapes[0]:
            raise click.ClickException(f"{run} has other tensors than {runs[0]}; give runs of one model")
    halves = {
        name: torch.stack([each[name].double() for each in tensors]).mean(0).to(torch.bfloat16)
        for name in sorted(tensors[0])
    }
    shutil.copytree(runs[0], out, ignore=shutil.ignore_patterns(_WEIGHTS, "golden-*.json"))
    write_atomic(out / _WEIGHTS, save(halves, metadata={"format": "pt"}))


@click.command()
@click.argument("out", type=click.Path(exists=False, path_type=Path))
@click.argument(
    "runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
def main(out: Path, runs: tuple[Path, ...]) -> None:
    """Write OUT with the mean of the weights of RUNS, folders of one tiny model."""
    if out.exists():
        raise click.ClickException(f"{out} exists; give a new folder")
    mean(out, list(runs))


if __name__ == "__main__":
    main()
