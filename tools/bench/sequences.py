"""Times passes of one sequence and of several, in turns: what streaming weights cost is paid once for all.

    python -m edgekit.tools.bench.sequences BUNDLE [--memory 1GB] [--sequences 4]
        [--positions 64] [--rounds 5]

`--memory` is what one sequence gets; the budget of the session is that and what the further ones need. The
bound beside the time of several is max(N times the computing of one, the reading of one).
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from functools import partial
from typing import Any

import click
import numpy as np

from edgekit.flashload.sizes import size
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.sampling import PhiloxNoise
from edgekit.runtime.sampling.types import HeadOutput, HeadRequest
from edgekit.runtime.session import Segment, SessionOptions, open_session, plan_session
from edgekit.tools.bench.timed import timed
from edgekit.tools.options import Bytes


def budget(bundle: Bundle, memory: int | None, options: SessionOptions) -> int | None:
    """`memory` and what the further sequences need beside the first."""
    if memory is None:
        return None
    one, all_of = (plan_session(bundle, each).needs for each in (replace(options, sequences=1), options))
    return memory + all_of - one


def measure(bundle: str, memory: int | None, sequences: int, positions: int, rounds: int) -> dict[str, Any]:
    """Medians of passes of one sequence and of all, in turns, after one of each that is not counted; and
    whether the answers of the first are the same in both.
    """
    options = SessionOptions(positions=0, canvas=positions, sequences=sequences)
    opened = Bundle.open(bundle)
    options = replace(options, memory_bytes=budget(opened, memory, options))
    noise = PhiloxNoise(1)
    rows: dict[int, list[dict[str, float]]] = {1: [], sequences: []}
    same = True
    with open_session(opened, options) as session:
        texts = [session.sequence, *(session.open_sequence() for _ in range(sequences - 1))]
        canvases = [noise.integers(session.vocab_size, positions) for _ in texts]
        for round_ in range(rounds + 1):
            kept: list[HeadOutput] = []
            for count in (1, sequences):
                segments = [Segment(t, ids, HeadRequest()) for t, ids in zip(texts, canvases, strict=True)]
                row, answers = timed(session, partial(session.run_pass, segments[:count]))
                assert answers[0] is not None
                kept.append(answers[0])
                if round_:
                    rows[count].append(row)
            same = same and np.array_equal(kept[0].log_z, kept[1].log_z)
        end = session.statistics()
    median = {
        count: {name: statistics.median(row[name] for row in found) for name in found[0]}
        for count, found in rows.items()
    }
    one, several = median[1], median[sequences]
    bound = max(sequences * one["compute_seconds"], one["io_seconds"])
    return {
        "one": one, "several": several, "bound_seconds": bound, "ratio": several["seconds"] / bound,
        "same": same, "statistics": end, "memory_bytes": options.memory_bytes,
    }  # fmt: skip


@click.command()
@click.argument("bundle")
@click.option("--memory", type=Bytes(least=1), help="Budget for one sequence. Default: everything resident.")
@click.option("--sequences", default=4, show_default=True, type=click.IntRange(2))
@click.option("--positions", default=64, show_default=True, help="Of each canvas.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True)
def main(bundle: str, memory: int | None, sequences: int, positions: int, rounds: int, as_json: bool) -> None:
    """Time passes of one and of several sequences over BUNDLE."""
    found = measure(bundle, memory, sequences, positions, rounds)
    if as_json:
        click.echo(json.dumps(found))
        return
    end = found["statistics"]
    click.echo(
        f"{size(end['pinned_bytes'])} pinned, {size(end['streamed_bytes_per_step'])} streamed per pass "
        f"({end['io_mode']}); peak memory {size(end['peak_bytes'])}"
    )
    click.echo("sequences  seconds  compute  reading   read")
    for count, row in ((1, found["one"]), (sequences, found["several"])):
        click.echo(
            f"{count:9d} {row['seconds']:8.3f} {row['compute_seconds']:8.3f} {row['io_seconds']:8.3f}   "
            f"{size(row['bytes_read'])}"
        )
    click.echo(
        f"{sequences} sequences take {found['ratio']:.3f} times max({sequences} x compute, reading) = "
        f"{found['bound_seconds']:.3f} s; answers of the first are "
        f"{'the same' if found['same'] else 'NOT the same'} in company"
    )


if __name__ == "__main__":
    main()
