"""Measures procedures on paired prompts: the passes that they spend, and the answers that they lose.

    python -m edgekit.tools.bench.frontier BUNDLE [--task chains] [--per-task 1000] [--at-once 32]
        [--compare orders] [--procedures FILE] [--only NAME] [--answers ANSWERS.jsonl] [--resident 0]
        [--json RESULT.json]

A procedure is a name and sampler options; the first one is what the others are compared with. Every procedure
gets the same prompts and seeds. `--compare` chooses among those of `compared.py`: rules that commit several
positions at once, orders in which positions are committed, on chains and sorting, of a bundle with a role
head (`edgekit.tools.train_roles`), or speculation, which gives the text of one token or one step at a time.
`--procedures` is a JSON object of options by name, in their place. Answers go to a file, a line each, and
what is there is not computed again: interrupt it whenever you like.

The limit is one pass per answer. What counts is passes (forwards), each a read of the weights when these are
streamed, and rows (positions of all passes), which are computed. Prompts share passes, which changes no
answer; so the time that this takes says nothing about one prompt alone. With `--resident` the first
`--streamed` prompts of each task also run alone, so many bytes of weights staying in memory, for the bytes
that an answer reads.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.generation import Generator, longest, options_for, sampler_model
from edgekit.runtime.sampling import Committed, CoreSampler, Done, HeadOutput, HeadRequest, Ids, drive
from edgekit.runtime.sampling.asks import Ask, Denoise, Pass
from edgekit.runtime.session import Session, SessionOptions, Together, open_session
from edgekit.tools.bench.compared import COMPARED
from edgekit.tools.bench.frontier_answers import Answer, Answers, Key
from edgekit.tools.bench.frontier_rows import Row, overview, rows, table
from edgekit.tools.bench.procedures import chosen
from edgekit.tools.options import Bytes
from edgekit.tools.tiny.tasks import MEASURED, Example, examples


class Counting:
    """A sampler whose rows are counted that the vocabulary head sees."""

    def __init__(self, sampler: CoreSampler) -> None:
        self._sampler, self.head_rows = sampler, 0

    def next(self, answer: HeadOutput | Sequence[HeadOutput] | None = None) -> Ask:
        ask = self._sampler.next(answer)
        if isinstance(ask, Denoise):
            self.head_rows += _rows_of(ask.ids, ask.request)
        elif isinstance(ask, Pass):
            self.head_rows += sum(_rows_of(each.ids, each.request) for each in ask.segments)
        return ask

    def copy(self) -> Counting:
        copied = Counting(self._sampler.copy())
        copied.head_rows = self.head_rows
        return copied


def _rows_of(ids: Ids, request: HeadRequest | None) -> int:
    return 0 if request is None else len(ids) if request.rows is None else len(request.rows)


class Bench:
    """Prompts of tasks, answered by a bundle under different options."""

    def __init__(self, bundle: str, per_task: int, tasks: Sequence[str], seed: int) -> None:
        with Generator(bundle) as generator:
            self.bundle, self.family, self._tokenizer = (
                generator.bundle,
                generator.family,
                generator.tokenizer,
            )
            self.examples = {task: examples(task, per_task, seed) for task in tasks}
            self._prompts = {
                task: [generator.encode(example.prompt) for example in found]
                for task, found in self.examples.items()
            }
        self._model, self._seed = sampler_model(self.bundle), seed

    def sampler(self, key: Key) -> CoreSampler:
        prompt, options = self._prompts[key.task][key.index], json.loads(key.options)
        return CoreSampler(self._model, prompt, seed=self._seed + key.index, options=options)

    def session(self, wanted: Sequence[Key], limits: SessionOptions, at_once: int = 1) -> Session:
        """One that suffices for `at_once` of these. Raises EdgekitError for options that the sampler does not
        have.
        """
        lengths = longest([self.sampler(key).lengths for key in wanted], at_once)
        return open_session(self.bundle, options_for(self.bundle, limits, lengths, at_once))

    def answer(self, key: Key, ids: list[int], done: Done, counted: Counting, read: int = 0) -> Answer:
        text = self._tokenizer.decode(ids, skip_special=True)
        example: Example = self.examples[key.task][key.index]
        stats = done.stats
        return Answer(
            example.check(text),
            text,
            stats.denoising_steps,
            stats.forwards,
            stats.rows,
            counted.head_rows,
            stats.committed_tokens,
            read,
        )

    def together(self, wanted: Sequence[Key], at_once: int) -> Iterator[tuple[Key, Answer]]:
        """Answers as they come, `at_once` prompts in every pass."""
        with self.session(wanted, SessionOptions(), at_once) as session, Together(session) as together:
            free = [session.sequence, *(session.open_sequence() for _ in range(at_once - 1))]
            taken: dict[Key, Any] = {}
            ids: dict[Key, list[int]] = {}
            counts: dict[Key, Counting] = {}
            waiting = iter(wanted)
            while True:
                while free and (key := next(waiting, None)) is not None:
                    counts[key], ids[key] = Counting(self.sampler(key)), []
                    taken[key] = free.pop()
                    together.join(key, counts[key], taken[key])
                if not taken:
                    return
                for told, event in together.step():
                    assert isinstance(told, Key), "they joined by key"
                    if isinstance(event, Exception):
                        raise event
                    if isinstance(event, Committed):
                        ids[told] += event.ids.tolist()
                    elif isinstance(event, Done):
                        free.append(taken.pop(told))
                        yield told, self.answer(told, ids.pop(told), event, counts.pop(told))

    def alone(self, wanted: Sequence[Key], resident: int) -> Iterator[tuple[Key, Answer]]:
        """Answers one after the other, so many bytes of weights staying in memory."""
        with self.session(wanted, SessionOptions(resident_bytes=resident)) as session:
            for key in wanted:
                counted, ids = Counting(self.sampler(key)), list[int]()
                before = session.counters()["bytes_read"]
                for event in drive(counted, session):
                    if isinstance(event, Committed):
                        ids += event.ids.tolist()
                    elif isinstance(event, Done):
                        read = session.counters()["bytes_read"] - before
                        yield key, self.answer(key, ids, event, counted, read)


def progress(total: int) -> Callable[[int], None]:
    """Shows on a terminal how many answers there are, and for how long it goes on."""
    started, shown, tty = time.monotonic(), 0.0, sys.stderr.isatty()

    def show(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < (1 if tty else 30) and done < total:
            return
        shown, left = now, (now - started) / done * (total - done)
        text = f"{done} of {total} answers, {left:.0f} s to go"
        click.echo(f"\r{text:40s}" if tty and done < total else f"\r{text:40s}\n", nl=False, err=True)

    return show


def measured(
    bundle: str,
    tasks: Sequence[str],
    per_task: int,
    at_once: int,
    compared: str,
    procedures: Path | None,
    only: Sequence[str],
    answers: Path,
    resident: int | None,
    streamed: int,
    seed: int,
) -> list[Row]:
    """The rows of `main`'s arguments; what the file of answers lacks is computed. Raises EdgekitError."""
    bench = Bench(bundle, per_task, tasks, seed)
    settings = chosen(procedures, COMPARED[compared][0].get(bench.family, {"default": {}}), only)
    file = Answers(answers, {"bundle": bench.bundle.digest, "seed": seed})
    wanted = [
        Key(options, task, index)
        for options in settings.values()
        for task in tasks
        for index in range(per_task)
    ]
    missing = [key for key in wanted if key not in file.found]
    show = progress(len(missing))
    if missing:
        for done, (key, answer) in enumerate(bench.together(missing, at_once), 1):
            file.add(key, answer)
            show(done)
    if resident is not None:
        alone = [replace(key, resident=resident) for key in wanted if key.index < streamed]
        if missing := [key for key in alone if key not in file.found]:
            for key, answer in bench.alone(missing, resident):
                file.add(key, answer)
        wanted += alone
    return rows({key: file.found[key] for key in wanted}, settings, tasks)


@click.command()
@click.argument("bundle")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(MEASURED)), help="Only these tasks.")
@click.option("--per-task", default=100, show_default=True, type=click.IntRange(1))
@click.option(
    "--at-once", default=32, show_default=True, type=click.IntRange(1, 1024), help="Prompts a pass."
)
@click.option(
    "--compare", "compared", default="rules", show_default=True, type=click.Choice(list(COMPARED)),
    help="Which procedures.",
)  # fmt: skip
@click.option("--procedures", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--only", multiple=True, metavar="NAME", help="Only the first procedure and these.")
@click.option(
    "--answers",
    default="frontier.jsonl",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of answers, which is continued.",
)
@click.option("--resident", type=Bytes(0), help="Weights that stay in memory where reads are counted.")
@click.option(
    "--streamed", default=4, show_default=True, type=click.IntRange(1), help="Prompts a task for that."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "to", type=click.Path(dir_okay=False, path_type=Path), help="The rows as JSON.")
def main(
    bundle: str,
    tasks: tuple[str, ...],
    per_task: int,
    at_once: int,
    compared: str,
    procedures: Path | None,
    only: tuple[str, ...],
    answers: Path,
    resident: int | None,
    streamed: int,
    seed: int,
    to: Path | None,
) -> None:
    """Measure a bundle's procedures: passes, rows and right answers on paired prompts."""
    try:
        found = measured(
            bundle,
            list(tasks or COMPARED[compared][1]),
            per_task,
            at_once,
            compared,
            procedures,
            only,
            answers,
            resident,
            streamed,
            seed,
        )
    except EdgekitError as error:
        raise click.ClickException(str(error)) from None
    click.echo(table(found))
    if len({row.task for row in found}) > 1:
        click.echo("\n" + overview(found))
    if to is not None:
        to.write_text(
            json.dumps({"bundle": bundle, "seed": seed, "rows": [asdict(row) for row in found]}, indent=1)
        )


if __name__ == "__main__":
    main()
