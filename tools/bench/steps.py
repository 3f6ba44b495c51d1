"""Times denoising steps of a bundle: seconds per step, split into computing, waiting for reads, and the rest.

    python -m edgekit.tools.bench.steps BUNDLE [--memory 1GB] [--steps 10] [--positions 256] [--threads 2]
        [--idle-every 16] [--disk] [--engine torch]

A step is one pass of `positions` tokens over all layers and the vocabulary head, with what the family's
sampler asks for: argmax and its probability, and for self-conditioned models a Gumbel sample and the soft
embedding, which goes into the next step. Random weights serve as well as trained ones.

`--disk` also times plain reads of the weights before every step, with nothing computed beside them. The
bound of a step is then the larger of what it computes and what its bytes take at the median of those rates.
It needs the testing library, as `tools/bench/flash_reader.py` says, and its buffers (16 of 4 MiB) are in the
peak of memory that is shown.
"""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from typing import Any

import click
import numpy as np

from edgekit.flashload.sizes import size
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.sampling import PhiloxNoise
from edgekit.runtime.sampling.types import HeadRequest
from edgekit.runtime.session import SessionOptions, open_session
from edgekit.tools.bench.flash_reader import MIB, read_seconds, testing_library
from edgekit.tools.bench.timed_pass import timed
from edgekit.tools.options import Bytes

#: What is read to learn the disk's rate, and how. Before it the session has filled its ring.
DISK_BYTES, DISK_READS, DISK_CHUNK, SETTLE_SECONDS = 2 << 30, 16, 4 * MIB, 0.5


class DiskRate:
    """Rates of plain reads of a bundle's weights, in bytes per second: another part each time."""

    def __init__(self, bundle: Bundle) -> None:
        with bundle.open_weights() as file:
            self._start, self._stop = file.layout.data_start, file.layout.size
        self._path, self._at = bundle.weights_path, self._start

    def measure(self) -> float:
        nbytes = min(DISK_BYTES, self._stop - self._start)
        if self._at + nbytes > self._stop:
            self._at = self._start
        start, self._at = self._at, self._at + nbytes
        time.sleep(SETTLE_SECONDS)
        return nbytes / read_seconds(self._path, DISK_READS, DISK_CHUNK, start, nbytes)


def measure(
    bundle: str,
    options: SessionOptions,
    positions: int,
    steps: int,
    idle_every: int = 0,
    beside_disk: bool = False,
    engine: str | None = None,
) -> dict[str, Any]:
    """Per-step seconds, waits and bytes of `steps` steps after one that is not counted.

    After `idle_every` steps the session is told that none follows soon, as after a generation: it may
    rearrange then what it keeps in memory. Other tokens come next.

    Raises ClickException for scores that are not finite, and where `beside_disk` lacks the testing library.
    """
    if beside_disk:
        testing_library()  # now: the weights of a large bundle take minutes
    noise = PhiloxNoise(1)
    rows: list[dict[str, float]] = []
    rates: list[float] = []
    started = time.perf_counter()
    held = Bundle.open(bundle)
    disk = DiskRate(held) if beside_disk else None
    with open_session(held, options, engine) as session:
        opened = time.perf_counter() - started
        conditioned = session.model.self_conditioning
        ids = noise.integers(session.vocab_size, positions)
        soft = None
        for step in range(steps + 1):
            if idle_every and step and step % idle_every == 0:
                session.idle()
                ids, soft = noise.integers(session.vocab_size, positions), None
            gumbel = noise.gumbel(positions, session.vocab_size) if conditioned else None
            request = HeadRequest(temperature=0.8 if conditioned else 1.0, gumbel=gumbel, soft=conditioned)
            if disk is not None:
                rates.append(disk.measure())
            row, output = timed(session, partial(session.denoise, ids, request, soft))
            soft = output.soft
            if not np.isfinite(output.log_z).all():
                raise click.ClickException(f"{bundle}: scores are not finite")
            rows.append(row)
        last = session.statistics()
    if rates:
        for row in rows:
            row["disk_seconds"] = row["bytes_read"] / statistics.median(rates)
            row["times_bound"] = row["seconds"] / max(row["compute_seconds"], row["disk_seconds"])
    return {
        "open_seconds": opened,
        "first_step": rows[0],
        "steps": rows[1:],
        "median_seconds": statistics.median(r["seconds"] for r in rows[1:]),
        "disk_rates": rates,
        "statistics": last,
    }


@click.command()
@click.argument("bundle")
@click.option("--memory", type=Bytes(least=1), help="Budget of the process. Default: everything resident.")
@click.option("--resident", type=Bytes(), help="At most this many bytes of weights stay in memory.")
@click.option("--steps", default=10, show_default=True)
@click.option("--positions", default=256, show_default=True)
@click.option("--threads", default=0, help="0: every usable core.")
@click.option("--idle-every", default=0, help="Steps of a generation, after which it is idle.")
@click.option("--disk", is_flag=True, help="Also time plain reads between the steps.")
@click.option("--engine", help="Of the bundle's format, by name. Default: the format's own.")
@click.option("--json", "as_json", is_flag=True)
def main(
    bundle: str,
    memory: int | None,
    resident: int | None,
    steps: int,
    positions: int,
    threads: int,
    idle_every: int,
    disk: bool,
    engine: str | None,
    as_json: bool,
) -> None:
    """Time denoising steps of BUNDLE."""
    options = SessionOptions(memory, resident, positions=0, canvas=positions, threads=threads)
    result = measure(bundle, options, positions, steps, idle_every, disk, engine)
    if as_json:
        click.echo(json.dumps(result))
        return
    end = result["statistics"]
    click.echo(
        f"opened in {result['open_seconds']:.2f} s; {size(end['pinned_bytes'])} pinned, "
        f"{size(end['streamed_bytes_per_step'])} streamed per step ({end['io_mode']})"
    )
    click.echo("step   seconds   compute   waiting   other   read        rate")
    for i, row in enumerate([result["first_step"], *result["steps"]]):
        rate = row["bytes_read"] / row["io_seconds"] if row["io_seconds"] else 0.0
        click.echo(
            f"{i:4d} {row['seconds']:9.3f} {row['compute_seconds']:9.3f} {row['wait_seconds']:9.3f} "
            f"{row['other_seconds']:7.3f}   {size(row['bytes_read']):10s}  {rate / 1e9:.2f} GB/s"
        )
    click.echo(
        f"median of steps 1..{steps}: {result['median_seconds']:.3f} s; peak memory {size(end['peak_bytes'])}"
    )

    if disk:
        rates, counted = result["disk_rates"], result["steps"]
        reading, times = (
            statistics.median(row[name] for row in counted) for name in ("disk_seconds", "times_bound")
        )
        click.echo(
            f"plain reads beside it: {statistics.median(rates) / 1e9:.2f} GB/s "
            f"({min(rates) / 1e9:.2f}..{max(rates) / 1e9:.2f}), a step's bytes in {reading:.3f} s; "
            f"a step takes {times:.2f} times the larger of that and its computing"
        )


if __name__ == "__main__":
    main()
