"""Counts what an answer of a batch reads and takes: one at a time, and several in every pass.

    python -m edgekit.tools.bench.batch BUNDLE [--memory 1GB] [--resident 0]
        [--sequences 1,4,auto] [--prompts 32]

Prompts are tasks of the tiny models, each with a seed of its own. `auto` is what `edgekit batch` takes by
itself. Opening the session is not part of the time. The last line is JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

import click

from edgekit.flashload.sizes import size
from edgekit.runtime.api import Answer
from edgekit.runtime.api.batch import opened_batch, request_of
from edgekit.runtime.generation import Generator, Settings
from edgekit.tools.options import Bytes, Count, Several
from edgekit.tools.tiny.tasks import stream

#: What the tiny models are asked, in equal parts.
TASKS = ("addition", "copying", "json", "sorting")


def measure(
    bundle: str,
    memory: int | None,
    resident: int | None,
    sequences: int | None,
    prompts: Sequence[str],
    new_tokens: int | None,
) -> dict[str, Any]:
    """The costs of answering prompts, with a digest of all answers. Raises EdgekitError."""
    with Generator(bundle, memory_bytes=memory, resident_bytes=resident) as generator:
        requests = [
            request_of(generator, tuple(generator.encode(prompt)), Settings(new_tokens, seed=seed))
            for seed, prompt in enumerate(prompts)
        ]
        lengths = {request.sampler.lengths for request in requests}
        with opened_batch(generator, lengths, sequences, len(requests)) as batch:
            found = dict(batch.run(enumerate(requests)))
            costs, count = batch.costs, batch.sequences
    texts, tokens = list[str](), 0
    for number in range(len(requests)):
        answer = found[number]
        if not isinstance(answer, Answer):
            raise answer
        texts.append(answer.text)
        tokens += answer.statistics.tokens
    return {
        "sequences": count,
        "answers": len(requests),
        "passes": costs.passes,
        "rows_per_pass": costs.rows / costs.passes,
        "bytes_per_answer": costs.bytes_read / len(requests),
        "seconds": costs.seconds,
        "tokens_per_second": tokens / costs.seconds,
        "texts": hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16],
    }


@click.command()
@click.argument("bundle")
@click.option("--memory", type=Bytes(least=1), help="Budget for the process. Default: none.")
@click.option("--resident", type=Bytes(), help="At most so many bytes of weights stay; 0 streams all.")
@click.option("--sequences", type=Several(Count(1, 1024), none="auto"), default="1,2,4,8", show_default=True)
@click.option("--prompts", default=32, show_default=True, type=Count(1), help="How many.")
@click.option("--new-tokens", type=Count(1), help="Of an answer. Default: the model's own.")
def main(
    bundle: str,
    memory: int | None,
    resident: int | None,
    sequences: Sequence[int | None],
    prompts: int,
    new_tokens: int | None,
) -> None:
    """Count what answers of BUNDLE read, so many at a time."""
    drawn = stream(dict.fromkeys(TASKS, 1.0), split="held-out")
    asked = [example.prompt for example in islice(drawn, prompts)]
    rows = [measure(bundle, memory, resident, count, asked, new_tokens) for count in sequences]
    click.echo("| at a time | passes | rows a pass | read an answer | seconds | tokens/s |")
    click.echo("|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        click.echo(
            f"| {row['sequences']} | {row['passes']} | {row['rows_per_pass']:.0f} | "
            f"{size(round(row['bytes_per_answer']))} | {row['seconds']:.1f} | "
            f"{row['tokens_per_second']:.1f} |"
        )
    same = len({row["texts"] for row in rows}) == 1
    click.echo(f"answers are {'the same' if same else 'NOT the same'}")
    click.echo(json.dumps(rows))


if __name__ == "__main__":
    main()
