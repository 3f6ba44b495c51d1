"""How long does the native vocabulary head take, and what do its parts cost?

One head pass of 256 positions over DiffusionGemma's table (262,144 x 2816, 8 bits) by default. "product" is
the product with a matrix of that shape and the limit: its panels are stored ready for the kernel, while a
table is stored row by row. Noise and soft embedding are measured alone and inside the pass. Weights are
random, so that every token has a part in the soft embedding; "sure" rows stand for those of trained models:
one token is at the softcap of 30, the others have scores of a deviation of 3, all at the temperature 0.6, the
middle of DiffusionGemma's schedule; low tokens are the likelier ones, as in vocabularies made by merges.
Making weights is outside the timed window. Needs the testing library (cmake -DEDGEKIT_TESTING=ON);
EDGEKIT_TESTING_LIB may give its path.

    python -m edgekit.tools.bench.native_head
"""

from __future__ import annotations

import ctypes
import importlib.resources
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import click

from edgekit.flashload import _native


def _library() -> ctypes.CDLL:
    name = _native.library_name().replace("core", "testing")
    beside_the_core = Path(str(importlib.resources.files("edgekit.flashload") / name))
    path = Path(os.environ.get("EDGEKIT_TESTING_LIB", beside_the_core))
    if not path.is_file():
        raise click.ClickException(f"{path}: missing; build with -DEDGEKIT_TESTING=ON")
    library = ctypes.CDLL(str(path))
    library.ekt_head_bench_open.restype = ctypes.c_void_p
    for part in ("product", "scores", "mix", "coarse_mix", "noise", "pass"):
        getattr(library, f"ekt_head_bench_{part}").restype = ctypes.c_double
    return library


def ways(library: ctypes.CDLL, bench: ctypes.c_void_p) -> dict[str, Callable[[], float]]:
    """The candidates that are timed, by name; each call returns seconds."""

    def part(name: str) -> Callable[[], float]:
        return lambda: float(getattr(library, f"ekt_head_bench_{name}")(bench))

    def whole(
        gumbel: int, soft: int, softcap: float, top_k: int, sure: float = 0.0, temperature: float = 1.0
    ) -> Callable[[], float]:
        run = library.ekt_head_bench_pass
        run.argtypes = (
            ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_float, ctypes.c_int64,
            ctypes.c_double, ctypes.c_float,
        )  # fmt: skip
        return lambda: float(run(bench, gumbel, soft, softcap, top_k, sure, temperature))

    return {
        "product": part("product"),
        "scores": part("scores"),
        "mix (soft embedding alone), both digits": part("mix"),
        "mix, higher digit": part("coarse_mix"),
        "noise alone": part("noise"),
        "pass: statistics": whole(0, 0, 0.0, 0),
        "pass: statistics, softcap": whole(0, 0, 30.0, 0),
        "pass: statistics, softcap, noise": whole(1, 0, 30.0, 0),
        "pass: statistics, softcap, top 50": whole(0, 0, 30.0, 50),
        "pass: statistics, softcap, noise, soft": whole(1, 1, 30.0, 0),
        "the same, no row sure": whole(1, 1, 30.0, 0, 0.0, 0.6),
        "the same, all rows sure": whole(1, 1, 30.0, 0, 1.0, 0.6),
        "all rows sure, without soft": whole(1, 0, 30.0, 0, 1.0, 0.6),
        "the same, 3/4 of the rows sure": whole(1, 1, 30.0, 0, 0.75, 0.6),
    }


@click.command()
@click.option("--rows", default=256, show_default=True)
@click.option("--hidden", default=2816, show_default=True)
@click.option("--vocabulary", default=262_144, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--runs", default=5, show_default=True)
def main(rows: int, hidden: int, vocabulary: int, threads: int, runs: int) -> None:
    """Time the parts, interleaved; medians."""
    library = _library()
    sizes = (ctypes.c_int64(size) for size in (threads, rows, hidden, vocabulary))
    bench = ctypes.c_void_p(library.ekt_head_bench_open(*sizes))
    if not bench:
        raise click.ClickException("no memory for the table")
    candidates = ways(library, bench)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for run in range(runs + 1):
        for name, call in candidates.items():
            taken = call()
            if run:  # the first round warms up
                seconds[name].append(taken)
    library.ekt_head_bench_close(bench)
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    rate = 2 * rows * hidden * vocabulary / 1e12
    for name, median in medians.items():
        spread = f"({1e3 * min(seconds[name]):.0f}..{1e3 * max(seconds[name]):.0f})"
        share = f"{rate / median:5.2f} TOP/s, {medians['product'] / median:4.0%} of the product's rate"
        products = name != "noise alone"
        click.echo(f"{name:42s} {1e3 * median:7.0f} ms {spread:16s} {share if products else ''}")
    statistic = medians["pass: statistics"] - medians["scores"]
    noise = medians["pass: statistics, softcap, noise"] - medians["pass: statistics, softcap"]
    soft = medians["pass: statistics, softcap, noise, soft"] - medians["pass: statistics, softcap, noise"]
    click.echo(f"in the pass: statistics {statistic:.3f} s, noise {noise:.3f} s, soft {soft:.3f} s")
    all_open = "the same, no row sure"
    for name in ("the same, all rows sure", "the same, 3/4 of the rows sure"):
        ratios = [one / other for one, other in zip(seconds[name], seconds[all_open], strict=True)]
        click.echo(
            f"{name}: {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f}) of no row sure"
        )
    click.echo(json.dumps({"rows": rows, "hidden": hidden, "vocabulary": vocabulary, "threads": threads,
                           "runs": runs, "median_s": medians}))  # fmt: skip


if __name__ == "__main__":
    main()
