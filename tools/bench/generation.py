"""Times whole generations of a bundle: milliseconds of a forward, within its pass and around it.

    python -m edgekit.tools.bench.generation BUNDLE [--runs 7] [--memory 1GB] [--prompt TEXT]

Around a pass are the sampler, what drives it, and the interpreter: with a tiny model that is what one sees.
"""

from __future__ import annotations

import statistics
import time

import click

from edgekit.runtime.generation import Generator, Prompt, Settings
from edgekit.tools.options import Bytes


def measure(generator: Generator, prompt: str, seed: int) -> tuple[int, float, float]:
    """Forwards of a generation, its seconds, and those within passes."""
    began = time.perf_counter()
    for _ in generator.generate(Prompt(prompt), Settings(seed=seed)):
        pass
    seconds = time.perf_counter() - began
    stats = generator.stats
    assert stats is not None, "the generation came to its end"
    passes = stats.forwards + stats.projections + stats.prefills
    return passes, seconds, float(stats.engine["pass_seconds"])


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False))
@click.option("--runs", default=7, show_default=True, help="Generations, after one that is not counted.")
@click.option("--memory", type=Bytes(), help="Memory budget; default: everything resident.")
@click.option("--prompt", default="What is 23 + 45?", show_default=True)
def main(bundle: str, runs: int, memory: int | None, prompt: str) -> None:
    """Time generations of BUNDLE."""
    with Generator(bundle, memory_bytes=memory) as generator:
        measure(generator, prompt, 0)
        rows = [measure(generator, prompt, seed) for seed in range(runs)]
    whole = statistics.median(1e3 * seconds / n for n, seconds, _ in rows)
    passed = statistics.median(1e3 * within / n for n, _, within in rows)
    around = statistics.median(1e6 * (seconds - within) / n for n, seconds, within in rows)
    forwards = statistics.median(n for n, *_ in rows)
    click.echo(f"{forwards:g} passes: {whole:.3f} ms each, {passed:.3f} ms within, {around:.0f} us around")


if __name__ == "__main__":
    main()
