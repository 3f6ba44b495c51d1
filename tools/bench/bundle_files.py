"""What does comparing a bundle's files with its manifest cost when the bundle is opened?

A folder with a manifest of the size that a model of 3840 experts has and a tokenizer.json of random bytes;
its files are in the page cache, as they are when a bundle is opened again. Measured are opening (which reads
and compares the manifest), reading the tokenizer through the core (which compares it), and plain reading.

    python -m edgekit.tools.bench.bundle_files --megabytes 30
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import xxhash

from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.manifest import Manifest, WeightsEntry

TOKENIZER = "tokenizer/tokenizer.json"


def write(folder: Path, megabytes: int) -> None:
    """The folder. Its weights are a few bytes: opening a manifest does not look at them."""
    (folder / "tokenizer").mkdir()
    (folder / TOKENIZER).write_bytes(os.urandom(megabytes * 1_000_000))
    data = bytes(64)
    (folder / "weights.safetensors").write_bytes(data)
    weights = WeightsEntry(
        "weights.safetensors", 64, hashlib.sha256(data).hexdigest(), 64, xxhash.xxh3_64_hexdigest(data)
    )
    layers = [
        {"program": "moe", "run": f"layers.{i}", "experts": [f"layers.{i}.experts.{e}" for e in range(128)]}
        for i in range(30)
    ]
    files = {TOKENIZER: manifests.file_entry(folder / TOKENIZER)}
    manifests.save(Manifest({}, {}, layers, {}, {}, weights, files), folder)


def milliseconds(run: Callable[[], object], rounds: int) -> str:
    """Median of several runs, and the fastest and slowest."""
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        found.append(1000 * (time.perf_counter() - started))
    return f"{statistics.median(found):.1f} ms ({min(found):.1f}..{max(found):.1f})"


@click.command()
@click.option("--megabytes", default=30, show_default=True, help="Size of tokenizer.json.")
@click.option("--rounds", default=21, show_default=True)
def main(megabytes: int, rounds: int) -> None:
    """Print the times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, megabytes)
        size = (folder / manifests.MANIFEST_NAME).stat().st_size
        opened = BundleFolder(folder)
        click.echo(f"open, manifest of {size} bytes: {milliseconds(lambda: BundleFolder(folder), rounds)}")
        click.echo(f"read and compare {megabytes} MB: {milliseconds(lambda: opened.read(TOKENIZER), rounds)}")
        click.echo(f"compare alone: {milliseconds(lambda: opened.check(TOKENIZER), rounds)}")
        plain = milliseconds((folder / TOKENIZER).read_bytes, rounds)
        click.echo(f"read without comparing: {plain}")


if __name__ == "__main__":
    main()
