"""How long does a bundle take to arrive, beside what compares nothing?

    python -m edgekit.tools.bench.fetching http://127.0.0.1:8080/llada llada [--rounds 5]

ADDRESS is a server of this machine with the files of BUNDLE, so that its network is memory and what is
measured is the work at this end: the limit of the disk and the processor. Beside fetches with one connection
and with four stand curl, which writes the same files one after the other, and `cp` from folder to folder. All
are run in turn, each into a new folder, and flushed to the disk within the time.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import click

from edgekit.flashload import manifest as manifests
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.flashload.sizes import size
from edgekit.runtime.fetch import fetch


@click.command()
@click.argument("address")
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where they arrive; else a temporary folder.")
def main(address: str, bundle: Path, rounds: int, folder: Path | None) -> None:
    """Medians of ROUNDS runs of each, and what they are in bytes a second."""
    manifest = manifests.load(bundle)
    names = [MANIFEST_NAME, manifest.weights.file, *manifest.files]
    nbytes = sum((bundle / name).stat().st_size for name in names)

    def with_curl(to: Path) -> None:
        for name in names:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["curl", "-sSf", "-o", to / name, f"{address}/{quote(name)}"], check=True)

    ways: dict[str, Callable[[Path], object]] = {
        "fetch, 1 connection": lambda to: fetch(address, to, connections=1),
        "fetch, 4 connections": lambda to: fetch(address, to, connections=4),
        "curl": with_curl,
        "cp": lambda to: shutil.copytree(bundle, to),
    }
    seconds = {name: list[float]() for name in ways}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for _ in range(rounds):
            for name, bring in ways.items():
                to = Path(scratch) / "bundle"
                started = time.perf_counter()
                bring(to)
                os.sync()
                seconds[name].append(time.perf_counter() - started)
                shutil.rmtree(to)
                os.sync()
    click.echo(f"{size(nbytes)}, {rounds} rounds")
    for name, found in seconds.items():
        middle = statistics.median(found)
        click.echo(
            f"{name:22} {middle:7.2f} s ({min(found):.2f}..{max(found):.2f})  {size(nbytes / middle)}/s"
        )


if __name__ == "__main__":
    main()
