"""Does measuring change what is measured? Steps of an answer with the recorder looking on, and without.

    python -m edgekit.tools.bench.measuring BUNDLE [--rounds 20] [--forwards 16] [--memory 1GB] [--spans 1000]

Pairs of runs of the same answer in one session, of which now the first is measured and now the second. A
step goes from one draft to the next: neither the first pass nor the beginning and the end of a test are in
it, where the recorder drops what was read ahead, starts its thread and joins it. The ratio of a pair is that
of its two medians of seconds; of all pairs the median counts, with a 95 % interval that supposes no
distribution. Beside it stands the same of the processor time of all threads, the recorder's among them, over
all steps of a run: other programs disturb it less. What telling the recorder of a draft takes is
in both, and stands below them in time of the thread that tells, which hardly anything disturbs. The energy
meters that the system has are read while a run is measured. Tokens of the prompt are random, and random
weights serve as well as trained ones, see `tools/bench/answer.py`.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import click

from edgekit.runtime.bench import Bench
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.sampling import CoreSampler, Draft, drive
from edgekit.runtime.session import Session, SessionOptions
from edgekit.tools.bench.answer import PROCEDURES, Answer
from edgekit.tools.intervals import median_interval
from edgekit.tools.options import Bytes, Count


@dataclass(frozen=True)
class Run:
    """Steps of an answer: seconds of the median one, processor seconds of all, those of the thread that the
    recorder's telling of a draft took in the median, and how many.
    """

    seconds: float
    processor_seconds: float
    telling_seconds: float
    steps: int


def timed_steps(sampler: CoreSampler, session: Session, forwards: int, bench: Bench | None) -> Run:
    """An answer of at most so many forwards, told to `bench`. Raises ClickException where it has no two
    drafts.
    """
    drafts, telling = list[tuple[float, float]](), list[float]()
    events = drive(sampler, session)
    for event in events:
        before = time.thread_time()
        if bench is not None:
            bench.tell(0, event, sampler)
        if isinstance(event, Draft):
            telling.append(time.thread_time() - before)
            drafts.append((time.perf_counter(), time.process_time()))
            if len(drafts) == forwards:
                break
    events.close()
    if len(drafts) < 2:
        raise click.ClickException("the answer has fewer than two drafts; give more --new-tokens")
    seconds = [after[0] - before[0] for before, after in pairwise(drafts)]
    return Run(
        statistics.median(seconds),
        drafts[-1][1] - drafts[0][1],
        statistics.median(telling[1:]),
        len(seconds),
    )


def measure(
    bundle: str,
    prompt_tokens: int,
    new_tokens: int,
    rounds: int,
    forwards: int,
    limits: SessionOptions,
    spans: int = 0,
) -> dict[str, Any]:
    """The runs of each pair, and ratios of those that were measured to those that were not. Raises what
    `timed_steps` and opening the bundle raise.
    """
    opened = Bundle.open(bundle)
    answer = Answer(opened, prompt_tokens, new_tokens)
    options = next(iter(PROCEDURES[opened.manifest.sampler["name"]].values()))
    pairs = list[dict[str, Run]]()
    with answer.session(answer.sampler(options), limits) as session, Bench(session, spans=spans) as bench:

        def alone() -> Run:
            found = timed_steps(answer.sampler(options), session, forwards, None)
            session.idle()
            return found

        def measured() -> Run:
            with bench.test({}, prompt_tokens):
                found = timed_steps(answer.sampler(options), session, forwards, bench)
            session.idle()
            return found

        ways: dict[str, Callable[[], Run]] = {"alone": alone, "measured": measured}
        for run in ways.values():
            run()
        for number in range(rounds):
            order = ("measured", "alone") if number % 2 else ("alone", "measured")
            pairs.append({name: ways[name]() for name in order})
        meters = [meter["meter"] for meter in bench.report()["tests"][0]["energy"]]
    return {
        "bundle": bundle,
        "steps": pairs[0]["alone"].steps,
        "alone_ms": 1e3 * statistics.median(pair["alone"].seconds for pair in pairs),
        **{name: _ratio(pairs, name) for name in ("seconds", "processor_seconds")},
        "telling_us": 1e6 * (_told(pairs, "measured") - _told(pairs, "alone")),
        "meters": meters,
        "pairs": [{name: asdict(found) for name, found in pair.items()} for pair in pairs],
    }


def _told(pairs: list[dict[str, Run]], name: str) -> float:
    """Of runs that are not measured it is what reading the clock takes."""
    return statistics.median(pair[name].telling_seconds for pair in pairs)


def _ratio(pairs: list[dict[str, Run]], name: str) -> dict[str, Any]:
    ratios = [getattr(pair["measured"], name) / getattr(pair["alone"], name) for pair in pairs]
    return {"median": statistics.median(ratios), "interval": median_interval(ratios)}


@click.command()
@click.argument("bundle")
@click.option("--rounds", type=Count(1), default=20, show_default=True, help="Pairs of runs.")
@click.option("--forwards", type=Count(2), default=16, show_default=True, help="Drafts of a run, at most.")
@click.option("--prompt-tokens", type=Count(1), default=32, show_default=True)
@click.option("--new-tokens", type=Count(1), default=64, show_default=True)
@click.option("--memory", type=Bytes(least=1), help="Budget of the process. Default: everything resident.")
@click.option("--threads", type=Count(0), default=0, help="0: every usable core.")
@click.option("--spans", type=Count(0), default=0, help="Reads, waits and uses of weights that are kept.")
@click.option("--json", "as_json", is_flag=True)
def main(
    bundle: str,
    rounds: int,
    forwards: int,
    prompt_tokens: int,
    new_tokens: int,
    memory: int | None,
    threads: int,
    spans: int,
    as_json: bool,
) -> None:
    """Compare steps of BUNDLE that are measured with steps that are not."""
    limits = SessionOptions(None if memory is None else int(memory), threads=threads)
    found = measure(bundle, prompt_tokens, new_tokens, rounds, forwards, limits, spans)
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(
        f"{rounds} pairs of {found['steps']} steps of {found['alone_ms']:.3f} ms, meters: "
        f"{', '.join(found['meters']) or 'none'}; measured over not measured:"
    )
    for name, words in (("seconds", "seconds of a step"), ("processor_seconds", "processor time")):
        ratio = found[name]
        low, high = ratio["interval"] or (None, None)
        within = "too few pairs for an interval" if low is None else f"{low:.4f}..{high:.4f}"
        click.echo(f"{words}: {ratio['median']:.4f} ({within})")
    click.echo(f"telling of a draft: {found['telling_us']:.1f} us of a step")


if __name__ == "__main__":
    main()
