"""Denoising steps of a bundle beside llama.cpp's pass over a GGUF of the same shape, interleaved in one run.

    python -m edgekit.tools.bench.beside_llama_cpp BUNDLE --llama-bench PATH --gguf FILE [--limit 1GiB]

Each round runs edgekit, then llama.cpp, each in a process of its own, with cold caches and, with --limit,
in a memory cgroup that counts the page cache. llama.cpp runs `-p 256 -n 0` (one prompt pass of as many
positions), repacked without a limit and mapped with one, because repacked weights do not fit. Linux, as
root.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence

import click

from edgekit.tools.bench.cgroup import drop_caches, run_limited
from edgekit.tools.options import Bytes


def _run(command: Sequence[str], limit: int | None) -> tuple[int, str, str, int]:
    drop_caches()
    if limit is not None:
        done = run_limited(command, limit)
        return done.code, done.output, done.errors, done.peak_bytes
    plain = subprocess.run(command, capture_output=True, text=True, check=False)
    return plain.returncode, plain.stdout, plain.stderr, 0


@click.command()
@click.argument("bundle")
@click.option("--llama-bench", "llama", required=True, help="llama.cpp's llama-bench.")
@click.option("--gguf", required=True)
@click.option("--limit", type=Bytes(least=1), help="Memory cgroup for both, page cache included.")
@click.option("--memory", type=Bytes(least=1), help="edgekit's --memory. Default: 93 % of the limit.")
@click.option("--runs", default=5, show_default=True)
@click.option("--steps", default=3, show_default=True, help="Steps that edgekit counts per run.")
@click.option("--threads", default=2, show_default=True)
@click.option("--positions", default=256, show_default=True)
def main(
    bundle: str,
    llama: str,
    gguf: str,
    limit: int | None,
    memory: int | None,
    runs: int,
    steps: int,
    threads: int,
    positions: int,
) -> None:
    """Time a step of BUNDLE beside llama.cpp."""
    if limit is not None and memory is None:
        memory = limit * 93 // 100
    ours = [
        sys.executable, "-m", "edgekit.tools.bench.steps", bundle, "--json", "--steps", str(steps),
        "--threads", str(threads), "--positions", str(positions),
        *(["--memory", str(memory)] if memory is not None else []),
    ]  # fmt: skip
    theirs = [
        llama, "-m", gguf, "-p", str(positions), "-n", "0", "-t", str(threads), "-r", "1", "-o", "json",
        *(["--repack", "0"] if limit is not None else []),
    ]  # fmt: skip
    seconds: dict[str, list[float]] = {"edgekit": [], "llama.cpp": []}
    for i in range(runs):
        code, output, errors, peak = _run(ours, limit)
        if code:
            raise click.ClickException(f"edgekit ended with {code}: {errors.strip()[-400:]}")
        result = json.loads(output)
        rows = result["steps"]
        seconds["edgekit"].append(result["median_seconds"])
        wait, compute, other = (
            statistics.median(r[f"{part}_seconds"] for r in rows) for part in ("wait", "compute", "other")
        )
        line = (
            f"run {i + 1}: edgekit {result['median_seconds']:.2f} s "
            f"(first {result['first_step']['seconds']:.2f}, compute {compute:.2f}, waiting {wait:.2f}, "
            f"other {other:.2f}; "
            f"read {rows[-1]['bytes_read'] / 1e9:.2f} GB, peak {peak / 2**20:.0f} MiB)"
        )
        code, output, errors, peak = _run(theirs, limit)
        if code:
            click.echo(f"{line}; llama.cpp ended with {code}")
            continue
        taken = json.loads(output)[0]["avg_ns"] / 1e9
        seconds["llama.cpp"].append(taken)
        click.echo(f"{line}; llama.cpp {taken:.2f} s (peak {peak / 2**20:.0f} MiB)")
    own = statistics.median(seconds["edgekit"])
    click.echo(f"median: edgekit {own:.3f} s")
    if seconds["llama.cpp"]:
        other_median = statistics.median(seconds["llama.cpp"])
        ratios = [b / a for a, b in zip(seconds["edgekit"], seconds["llama.cpp"], strict=False)]
        click.echo(f"median: llama.cpp {other_median:.3f} s; ratio of medians {other_median / own:.2f}")
        click.echo(f"ratios, run by run: {', '.join(f'{r:.2f}' for r in ratios)}")


if __name__ == "__main__":
    main()
