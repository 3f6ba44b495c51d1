"""Measures what a search costs beside one generation: positions that are computed, and bytes that are read.

    python -m edgekit.tools.bench.search BUNDLE [--branches 4] [--share 0.8] [--resident 0]
        [--set name=value]... [--json RESULT.json]

A run and a search of the same prompt and seed, in turns, each in a session of its own kind; the weights
stream as far as --resident says. Branches share the first steps and every read, so the limits are
share + branches * (1 - share) times the positions, and the same bytes. An answer that ends before the fork is
forked late, and reads more: the defaults let every step run. What a session reads ahead for a pass that does
not come is among the bytes of both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from edgekit.flashload.sizes import size
from edgekit.runtime.api import Model
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import Done
from edgekit.runtime.search import Plan, search, verifier_of
from edgekit.tools.options import Assignment, Bytes, Number

PROMPT = "Write as JSON: name: Ada; age: 31; city: Rome"
_ALL: dict[str, Any] = {"temperature": 2.0, "stop_at_eos": False, "max_new_tokens": 64, "steps": 20}
#: By the sampler's name: every step runs, and something is drawn.
EVERY_STEP: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {"steps": 20, "stability_threshold": None, "max_new_tokens": 1},
    "llada": {**_ALL, "block_length": 64},
    "dream": _ALL,
}


def measure(
    bundle: str | Path, branches: int, share: float, resident: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Rows and bytes of one generation and of a search, and their ratios."""
    with Generator(bundle, resident_bytes=resident) as generator:
        wanted = {**EVERY_STEP.get(generator.family, {}), **options}
        own = {name: wanted.pop(name, None) for name in ("max_new_tokens", "steps")}
        settings = Settings(**own, seed=1, options=wanted)
        ids = Model(generator).encode(PROMPT)
        for _ in range(2):  # the first opens a session, and reads ahead for the next
            *_, done = generator.generate(ids, settings)
        assert isinstance(done, Done)
        stats = done.stats
    with Generator(bundle, resident_bytes=resident) as generator:
        plan = Plan(branches, share)
        for _ in range(2):
            found = search(generator, ids, settings, plan, branches, verifier_of("json"), lambda _: ids)
    one = {
        "rows": stats.rows,
        "passes": stats.forwards + stats.prefills,
        "bytes_read": stats.engine["bytes_read"],
    }
    costs = found.costs
    all_of = {"rows": costs.rows, "passes": costs.passes, "bytes_read": costs.bytes_read}
    ratios = {name: all_of[name] / one[name] if one[name] else None for name in one}
    texts = len({attempt.ids for attempt in found.attempts})
    return {
        "branches": branches, "share": share, "shared_steps": found.shared, "steps": stats.denoising_steps,
        "one": one, "search": all_of, "ratios": ratios, "different_answers": texts,
    }  # fmt: skip


@click.command()
@click.argument("bundle")
@click.option("--branches", default=4, show_default=True, type=click.IntRange(1))
@click.option(
    "--share",
    default=0.8,
    show_default=True,
    type=Number(lambda part: 0 <= part < 1, "at least 0 and below 1"),
)
@click.option("--resident", type=Bytes(), default="0", help="Bytes of weights that stay in memory.")
@click.option("--set", "assigned", type=Assignment(), multiple=True, help="A setting by name.")
@click.option("--json", "result", type=click.Path(path_type=Path), help="Write the figures there.")
def main(
    bundle: str,
    branches: int,
    share: float,
    resident: int,
    assigned: tuple[tuple[str, Any], ...],
    result: Path | None,
) -> None:
    """Compare a search over BUNDLE with one generation."""
    found = measure(bundle, branches, share, int(resident), dict(assigned))
    if result is not None:
        result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    one, all_of, ratios = found["one"], found["search"], found["ratios"]
    click.echo(
        f"{branches} branches share {found['shared_steps']} of {found['steps']} steps; "
        f"{found['different_answers']} different answers"
    )
    click.echo("          positions   passes   read")
    for name, row in (("one", one), ("search", all_of)):
        click.echo(f"{name:8s} {row['rows']:10d} {row['passes']:8d}   {size(row['bytes_read'])}")
    read = "-" if ratios["bytes_read"] is None else f"{ratios['bytes_read']:.3f}"
    click.echo(f"ratio    {ratios['rows']:10.3f} {ratios['passes']:8.3f}   {read}")


if __name__ == "__main__":
    main()
