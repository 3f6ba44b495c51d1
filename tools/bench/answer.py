"""Times the forwards of an answer at its start, in its middle and at its end, and whole answers.

    python -m edgekit.tools.bench.answer BUNDLE [--memory 1GiB] [--resident 0] [--prompt-tokens 128]
        [--new-tokens 256] [--forwards 16] [--procedures FILE] [--only NAME] [--whole] [--disk]
        [--json RESULT.json]

Procedures take their turns at each place. Tokens of the prompt are random, and what is committed follows the
schedule of `steps`, not what the model says, so that random weights serve as well as trained ones. Later
places begin behind a longer prompt: what is finished costs an answer as much as its prompt.

A forward that begins a block may compute more than the others (a cache is filled, finished text is encoded)
and is shown by itself. `--procedures` is a JSON object of sampler options by name, in place of those below.

`--disk` also times plain reads of the weights before each place, for the larger of what a forward computes
and what its bytes take at the median of those rates. It needs the testing library, see
`tools/bench/flash_reader.py`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.sizes import size
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.generation import options_for, sampler_model
from edgekit.runtime.sampling import CoreSampler, Done, Draft, drive
from edgekit.runtime.sampling.options import settle
from edgekit.runtime.session import Session, SessionOptions, open_session
from edgekit.tools.bench.flash_reader import testing_library
from edgekit.tools.bench.procedures import chosen
from edgekit.tools.bench.steps import DiskRate
from edgekit.tools.bench.timed_pass import timed
from edgekit.tools.options import Bytes

_MASKED = {"block_length": 32, "stop_at_eos": False}
#: Options of procedures by the sampler's name. Without `steps` a step of a masked model commits one token.
#: Tokens are not edited: random weights would do so without end.
PROCEDURES: dict[str, dict[str, dict[str, Any]]] = {
    "llada": {
        "no cache": {**_MASKED, "cache": "none"},
        "prefix cache": {**_MASKED, "cache": "prefix"},
        "dual cache": {**_MASKED, "cache": "dual"},
        "delayed cache": {**_MASKED, "cache": "delayed"},
    },
    "diffusion_gemma": {"every step": {"stability_threshold": None}},
    "block": {"schedule": {"threshold": None, "editing_threshold": None, "stop_at_eos": False}},
}
PROCEDURES["dream"] = PROCEDURES["llada"]
PLACES = ("start", "middle", "end")


class Answer:
    """An answer that is timed, of so many `tokens`."""

    def __init__(self, bundle: Bundle, prompt_tokens: int, tokens: int) -> None:
        self._bundle, self._tokens = bundle, tokens
        most = min(bundle.model.vocab_size, 1000)  # special tokens lie behind, as a rule
        self._prompt = np.random.default_rng(0).integers(5, most, prompt_tokens)

    def sampler(self, options: Mapping[str, Any]) -> CoreSampler:
        """A procedure at its beginning."""
        model = sampler_model(self._bundle)
        block = block_length(self._bundle, options, self._tokens)
        one_a_step = {"llada": self._tokens, "dream": self._tokens, "block": block}
        steps = options.get("steps", one_a_step.get(model.section["name"]))
        wanted = {name: value for name, value in options.items() if name != "steps"}
        return CoreSampler(model, self._prompt, max_new_tokens=self._tokens, steps=steps, options=wanted)

    def session(self, sampler: CoreSampler, limits: SessionOptions) -> Session:
        """One that is as long as this takes."""
        return open_session(self._bundle, options_for(self._bundle, limits, sampler.lengths))

    def forwards(
        self, options: Mapping[str, Any], most: int, limits: SessionOptions
    ) -> list[dict[str, float]]:
        """What each of the first forwards took, `most` at most, as `timed` has it; `begins` is 1 where it
        begins a block.
        """
        rows: list[dict[str, float]] = []
        sampler = self.sampler(options)
        with self.session(sampler, limits) as session:
            events = drive(sampler, session)
            while len(rows) < most:
                row, event = timed(session, lambda: next((e for e in events if isinstance(e, Draft)), None))
                if event is None:
                    break
                rows.append(row | {"begins": float(event.step == 1)})
            events.close()
        return rows

    def whole(self, options: Mapping[str, Any], limits: SessionOptions) -> dict[str, Any]:
        """Seconds, forwards, rows and bytes of all of it."""
        sampler, done = self.sampler(options), None
        with self.session(sampler, limits) as session:

            def run() -> None:
                nonlocal done
                *_, done = drive(sampler, session)

            row, _ = timed(session, run)
            peak = session.statistics()["peak_bytes"]
        assert isinstance(done, Done)
        stats = done.stats
        return row | {
            "tokens": self._tokens,
            "forwards": stats.forwards + stats.prefills,
            "rows": stats.rows,
            "peak_bytes": peak,
        }


def block_length(bundle: Bundle, options: Mapping[str, Any], new_tokens: int) -> int:
    """Tokens of the blocks of an answer, or of its canvases; of an answer without either, all."""
    wanted = {name: value for name, value in options.items() if name != "steps"}
    values = settle(sampler_model(bundle), max_new_tokens=new_tokens, options=wanted).values()
    return int(values.get("block_length") or values.get("canvas_length") or values["max_new_tokens"])


def tokens_left(place: str, new_tokens: int, block: int) -> int:
    """New tokens from a place of an answer on, whole blocks."""
    blocks = max(1, new_tokens // block)
    return block * {"middle": (blocks + 1) // 2, "end": 1}.get(place, blocks)


def measure(
    bundle: str,
    procedures: Mapping[str, Mapping[str, Any]],
    prompt_tokens: int,
    new_tokens: int,
    forwards: int,
    limits: SessionOptions,
    whole: bool,
    disk: bool,
) -> dict[str, Any]:
    """Rows of forwards by procedure and place, whole answers, and rates of the disk."""
    if disk:
        testing_library()  # now: the weights of a large bundle take minutes
    held = Bundle.open(bundle)
    rate = DiskRate(held) if disk else None
    rates: list[float] = []
    places: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in procedures}
    answers: dict[str, dict[str, Any]] = {}
    for turn, place in enumerate((*PLACES, "whole") if whole else PLACES):
        for name in list(procedures)[:: -1 if turn % 2 else 1]:
            options = procedures[name]
            if rate is not None:
                rates.append(rate.measure())
            block = block_length(held, options, new_tokens)
            all_of, left = (tokens_left(each, new_tokens, block) for each in ("whole", place))
            answer = Answer(held, prompt_tokens + all_of - left, left)
            if place == "whole":
                answers[name] = answer.whole(options, limits)
            else:
                places[name][place] = answer.forwards(options, forwards, limits)
            click.echo(f"{place}: {name}", err=True)
    answers = {name: answers[name] for name in procedures if name in answers}
    return {"places": places, "answers": answers, "disk_rates": rates}


def _row(procedure: str, place: str, rows: Sequence[Mapping[str, float]], rate: float | None) -> str:
    parts = ("seconds", "compute_seconds", "wait_seconds", "bytes_read")
    seconds, compute, wait, read = (statistics.median(row[part] for row in rows) for part in parts)
    bound = "" if rate is None else f"{seconds / max(compute, read / rate):6.2f}"
    return (
        f"{procedure:20s} {place:14s} {len(rows):4d} {seconds:9.3f} {compute:9.3f} {wait:9.3f} "
        f"{size(int(read)):>10s} {bound}"
    )


def table(found: Mapping[str, Any]) -> str:
    """Medians of forwards, with those that begin a block by themselves, and whole answers."""
    rate = statistics.median(found["disk_rates"]) if found["disk_rates"] else None
    bound = "" if rate is None else "  times the bound"
    lines = [f"procedure            place      forwards   seconds   compute   waiting       read{bound}"]
    for procedure, places in found["places"].items():
        for place, rows in places.items():
            for name, begins in ((f"{place}, begins", 1.0), (place, 0.0)):
                if own := [row for row in rows if row["begins"] == begins]:
                    lines.append(_row(procedure, name, own, rate))
    if rate is not None:
        lines.append(f"plain reads: {size(int(rate))}/s")
    if found["answers"]:
        first = next(iter(found["answers"].values()))["seconds"]
        lines += [
            "",
            "whole answer         tokens forwards     rows   seconds  tokens/s       read speed-up",
        ]
        for name, row in found["answers"].items():
            seconds = row["seconds"]
            lines.append(
                f"{name:20s} {row['tokens']:6d} {row['forwards']:8d} {row['rows']:8d} {seconds:9.1f} "
                f"{row['tokens'] / seconds:9.2f} {size(row['bytes_read']):>10s} {first / seconds:8.2f}"
            )
    return "\n".join(lines)


@click.command()
@click.argument("bundle")
@click.option("--memory", type=Bytes(least=1), help="Budget of the process. Default: everything resident.")
@click.option("--resident", type=Bytes(), help="At most this many bytes of weights stay in memory.")
@click.option("--prompt-tokens", default=128, show_default=True, type=click.IntRange(1))
@click.option("--new-tokens", default=256, show_default=True, type=click.IntRange(1))
@click.option("--forwards", default=16, show_default=True, type=click.IntRange(1), help="At each place.")
@click.option("--threads", default=0, help="0: every usable core.")
@click.option("--procedures", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--only", multiple=True, metavar="NAME", help="Only the first procedure and these.")
@click.option("--whole", is_flag=True, help="Also whole answers.")
@click.option("--disk", is_flag=True, help="Also time plain reads.")
@click.option("--json", "to", type=click.Path(dir_okay=False, path_type=Path), help="Everything as JSON.")
def main(
    bundle: str,
    memory: int | None,
    resident: int | None,
    prompt_tokens: int,
    new_tokens: int,
    forwards: int,
    threads: int,
    procedures: Path | None,
    only: tuple[str, ...],
    whole: bool,
    disk: bool,
    to: Path | None,
) -> None:
    """Time the forwards of an answer of BUNDLE."""
    try:
        family = Bundle.open(bundle).manifest.sampler["name"]
        settings = chosen(procedures, PROCEDURES.get(family, {"default": {}}), only)
        limits = SessionOptions(memory, resident, threads=threads)
        options = {name: json.loads(each) for name, each in settings.items()}
        found = measure(bundle, options, prompt_tokens, new_tokens, forwards, limits, whole, disk)
    except EdgekitError as error:
        raise click.ClickException(str(error)) from None
    click.echo(table(found))
    if to is not None:
        to.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
