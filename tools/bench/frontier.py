"""Measures procedures on paired prompts: the passes that they spend, and the answers that they lose.

    python -m edgekit.tools.bench.frontier BUNDLE [--task chains] [--per-task 1000] [--at-once 32]
        [--compare orders] [--procedures FILE] [--only NAME] [--answers ANSWERS.jsonl] [--resident 0]
        [--json RESULT.json]

A procedure is a name and sampler options; the first one is what the others are compared with. Every procedure
gets the same prompts and seeds. `--compare` chooses among those below: rules that commit several positions at
once, orders in which positions are committed, on chains and sorting, of a bundle with a role head
(`edgekit.tools.train_roles`), or speculation, which gives the text of one token or one step at a time.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.sizes import size
from edgekit.runtime.generation import Generator, longest, options_for, sampler_model
from edgekit.runtime.sampling import Committed, CoreSampler, Done, HeadOutput, HeadRequest, Ids, drive
from edgekit.runtime.sampling.asks import Ask, Denoise, Pass
from edgekit.runtime.session import Session, SessionOptions, Together, open_session
from edgekit.tools.bench.procedures import chosen
from edgekit.tools.intervals import mcnemar, paired_difference, wilson
from edgekit.tools.options import Bytes
from edgekit.tools.tiny.tasks import MEASURED, Example, examples

MASKED: dict[str, dict[str, Any]] = {
    "default": {},
    "half the steps": {"steps": 64},
    "a quarter of the steps": {"steps": 32},
    "threshold 0.98": {"threshold": 0.98},
    "threshold 0.95": {"threshold": 0.95},
    "threshold 0.9": {"threshold": 0.9},
    "threshold 0.7": {"threshold": 0.7},
    "threshold 0.5": {"threshold": 0.5},
    "factor 1": {"factor": 1.0},
    "entropy bound 0.02": {"entropy_bound": 0.02},
    "entropy bound 0.1": {"entropy_bound": 0.1},
    "entropy bound 0.5": {"entropy_bound": 0.5},
    "margin 0.5": {"margin": 0.5},
    "persistence 2 from 0.5": {"persistence": 2, "persistent_threshold": 0.5},
    "threshold 0.9, persistence 1 from 0.6": {
        "threshold": 0.9,
        "persistence": 1,
        "persistent_threshold": 0.6,
    },
    "threshold 0.9, early commit 0.5": {"threshold": 0.9, "early_commit": 0.5},
    "dual cache": {"cache": "dual", "block_length": 32},
    "threshold 0.98, dual cache": {"threshold": 0.98, "cache": "dual", "block_length": 32},
    "threshold 0.9, dual cache": {"threshold": 0.9, "cache": "dual", "block_length": 32},
    "delayed cache": {"cache": "delayed", "block_length": 32},
    "delayed cache, refreshed every 4": {"cache": "delayed", "cache_refresh": 4, "block_length": 32},
    "delayed cache, refreshed every 16": {"cache": "delayed", "cache_refresh": 16, "block_length": 32},
    "threshold 0.9, delayed cache": {"threshold": 0.9, "cache": "delayed", "block_length": 32},
}
#: By the sampler's name.
PROCEDURES: dict[str, dict[str, dict[str, Any]]] = {
    "llada": MASKED,
    "dream": MASKED,
    "diffusion_gemma": {
        "default": {},
        "half the steps": {"steps": 24},
        "a quarter of the steps": {"steps": 12},
        "entropy bound 0.5": {"entropy_bound": 0.5},
        "entropy bound 2": {"entropy_bound": 2.0},
        "persistence 1 to 0.5": {"persistence": 1, "persistent_entropy": 0.5},
        "verify within 0.5": {"verify_bound": 0.5},
        "verify within 2": {"verify_bound": 2.0},
        "verify within 8": {"verify_bound": 8.0},
        "verify within 32": {"verify_bound": 32.0},
        "a quarter of the steps, verify within 2": {"steps": 12, "verify_bound": 2.0},
        "entropy bound 0.5, verify within 2": {"entropy_bound": 0.5, "verify_bound": 2.0},
        "entropy bound 2, verify within 2": {"entropy_bound": 2.0, "verify_bound": 2.0},
        "entropy bound 2, verify within 8": {"entropy_bound": 2.0, "verify_bound": 8.0},
    },
    "block": {
        "one a step": {"threshold": None},
        "default": {},
        "masks alone": {"causal_start": False},
        "half the steps": {"threshold": None, "steps": 8},
        "a quarter of the steps": {"threshold": None, "steps": 4},
        "threshold 0.7": {"threshold": 0.7},
        "threshold 0.5": {"threshold": 0.5},
        "entropy bound 0.1": {"remasking": "entropy", "entropy_bound": 0.1},
        "entropy bound 0.5": {"remasking": "entropy", "entropy_bound": 0.5},
        "4 steps drafted": {"threshold": None, "draft_steps": 4},
        "default, 4 steps drafted": {"draft_steps": 4},
        "a token at a time": {"mode": "autoregressive"},
        "speculative": {"mode": "speculative"},
    },
}


#: Orders of commitment, each with a position a step and with four. Blocks from left to right
#: (semi-autoregressive) are what an order has to be better than.
ORDERS: dict[str, dict[str, Any]] = {
    name + suffix: options | more
    for suffix, more in (("", {}), (", a quarter of the steps", {"steps": 32}))
    for name, options in (
        ("confidence, blocks of 32", {"block_length": 32}),
        ("confidence, blocks of 8", {"block_length": 8}),
        ("confidence, one block", {"block_length": 128}),
        ("logic, one block", {"block_length": 128, "order": "logic"}),
        ("logic, blocks of 32", {"block_length": 32, "order": "logic"}),
    )
}
#: What is written a token or a step at a time, and by drafts that are verified, which is to be the same.
SPECULATION: dict[str, dict[str, Any]] = {
    "a token at a time": {"mode": "autoregressive"},
    **{
        f"speculative, {name}": {"mode": "speculative", "ahead": ahead}
        for name, ahead in (("drafts afterwards", 0), ("1 draft ahead", 1), ("4 drafts ahead", 4))
    },
}
DRAFTED: dict[str, dict[str, Any]] = {
    "default": {},
    **{f"{count} steps drafted": {"draft_steps": count} for count in (2, 4, 8)},
}
#: What `--compare` takes: procedures by the sampler's name, and the tasks that they are for.
COMPARED: dict[str, tuple[dict[str, dict[str, dict[str, Any]]], tuple[str, ...]]] = {
    "rules": (PROCEDURES, tuple(MEASURED)),
    "orders": ({"llada": ORDERS, "dream": ORDERS}, ("chain", "sorting")),
    "speculation": ({"block": SPECULATION, "llada": DRAFTED, "dream": DRAFTED}, tuple(MEASURED)),
}


@dataclass(frozen=True)
class Key:
    """What a line of the file answers: `options` are those of the procedure as JSON, `resident` are the bytes
    of weights that stayed in memory of one that ran alone.
    """

    options: str
    task: str
    index: int
    resident: int | None = None


@dataclass(frozen=True)
class Answer:
    """An answer and what it took. `tokens` are those that are no padding, `read` are bytes of one that ran
    alone.
    """

    right: bool
    text: str
    steps: int
    forwards: int
    rows: int
    head_rows: int
    tokens: int
    read: int = 0


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


class Answers:
    """The file of answers. Its first line says of what they are; answers of anything else are refused."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.found = path, dict[Key, Answer]()
        about = json.loads(json.dumps(about))
        lines = path.read_text().splitlines() if path.exists() else []
        if not lines:
            path.write_text(json.dumps(about) + "\n")
        elif (there := json.loads(lines[0])) != about:
            changed = [name for name in about if there.get(name) != about[name]]
            raise EdgekitError(
                f"{path}: has answers of another {', '.join(changed)}; name another file with --answers, "
                "or remove it"
            )
        for line in lines[1:]:
            try:
                read = json.loads(line)
            except ValueError:
                continue  # cut off by an interruption
            self.found[Key(**read["key"])] = Answer(**read["answer"])
        if lines and not path.read_text().endswith("\n"):
            self._write("\n")

    def add(self, key: Key, answer: Answer) -> None:
        self.found[key] = answer
        self._write(json.dumps({"key": vars(key), "answer": vars(answer)}) + "\n")

    def _write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)


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


@dataclass(frozen=True)
class Row:
    """A procedure on a task, or on all: shares 0..1, means per answer. `difference` is the interval of the
    change of `exact` from the first procedure, `chance` the probability that chance alone changes as much,
    `same` the share of texts that are those of the first.
    """

    procedure: str
    task: str
    count: int
    exact: float
    interval: tuple[float, float]
    difference: tuple[float, float] | None
    chance: float | None
    same: float | None
    forwards: float
    rows: float
    head_rows: float
    tokens_per_forward: float
    read: float | None


def rows(found: Mapping[Key, Answer], procedures: Mapping[str, str], tasks: Sequence[str]) -> list[Row]:
    """A row for each procedure (options by name) and task, and for all tasks where there are several."""
    groups = {task: [task] for task in tasks}
    if len(tasks) > 1:
        groups["all"] = list(tasks)
    first = next(iter(procedures.values()))
    return [
        _row(found, procedure, options, first, group, members)
        for group, members in groups.items()
        for procedure, options in procedures.items()
    ]


def _row(
    found: Mapping[Key, Answer], procedure: str, options: str, first: str, group: str, tasks: Sequence[str]
) -> Row:
    all_own = {key: answer for key, answer in found.items() if key.options == options and key.task in tasks}
    own = {key: answer for key, answer in all_own.items() if key.resident is None}
    count, right = len(own), sum(answer.right for answer in own.values())
    forwards = sum(answer.forwards for answer in own.values())
    streamed = [answer for key, answer in all_own.items() if key.resident is not None]
    a_forward = sum(each.read for each in streamed) / max(1, sum(each.forwards for each in streamed))
    difference = chance = same = None
    if options != first:
        before = {key: found[replace(key, options=first)] for key in own}
        gained = sum(answer.right and not before[key].right for key, answer in own.items())
        lost = sum(before[key].right and not answer.right for key, answer in own.items())
        same = sum(answer.text == before[key].text for key, answer in own.items()) / count
        difference, chance = paired_difference(gained, lost, count), mcnemar(gained, lost)
    return Row(
        procedure,
        group,
        count,
        right / count,
        wilson(right, count),
        difference,
        chance,
        same,
        forwards / count,
        sum(answer.rows for answer in own.values()) / count,
        sum(answer.head_rows for answer in own.values()) / count,
        sum(answer.tokens for answer in own.values()) / max(1, forwards),
        a_forward * forwards / count if streamed else None,
    )


HEADS = [
    "procedure", "right", "95 %", "change in points, 95 %", "p", "same text", "forwards", "rows", "head rows",
    "tokens a forward",
]  # fmt: skip


def table(found: list[Row]) -> str:
    """Rows as Markdown."""
    lines = []
    for task in dict.fromkeys(row.task for row in found):
        own = [row for row in found if row.task == task]
        reads = any(row.read is not None for row in own)
        heads = [*HEADS, "read"] if reads else HEADS
        lines += [
            "",
            f"{task}, {own[0].count} prompts:",
            "",
            f"| {' | '.join(heads)} |",
            "|---" * len(heads) + "|",
        ]
        for row in own:
            low, high = row.interval
            change = (
                ""
                if row.difference is None
                else "{:+.1f} … {:+.1f}".format(*(100 * x for x in row.difference))
            )
            cells = [
                row.procedure,
                f"{row.exact:.1%}",
                f"{low:.1%} … {high:.1%}",
                change,
                "" if row.chance is None else f"{row.chance:.3f}" if row.chance >= 0.0005 else "< 0.001",
                "" if row.same is None else f"{row.same:.1%}",
                f"{row.forwards:.1f}",
                f"{row.rows:.0f}",
                f"{row.head_rows:.0f}",
                f"{row.tokens_per_forward:.2f}",
            ]
            if reads:
                cells.append("" if row.read is None else size(row.read))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines[1:])


def overview(found: list[Row]) -> str:
    """Right answers and passes of every procedure on every task, as Markdown."""
    tasks = list(dict.fromkeys(row.task for row in found))
    procedures = list(dict.fromkeys(row.procedure for row in found))
    cell = {(row.procedure, row.task): f"{row.exact:.1%} in {row.forwards:.1f}" for row in found}
    return "\n".join(
        [
            "right in so many passes, by task:",
            "",
            f"| procedure | {' | '.join(tasks)} |",
            "|---" * (len(tasks) + 1) + "|",
            *(f"| {name} | {' | '.join(cell[name, task] for task in tasks)} |" for name in procedures),
        ]
    )


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
