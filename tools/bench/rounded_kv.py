"""Measures what saving keys and values in 8 bits changes: answers, right ones, and scores.

    python -m edgekit.tools.bench.rounded_kv BUNDLE [--task copying] [--per-task 100] [--json RESULT.json]

Of each prompt all but its last tokens are encoded and saved, once with 32 and once with 8 bits, and the
answer is generated behind what is loaded, so that all that it knows of the prompt has been rounded. Scores
are those of a canvas of random tokens. The limit is no change at all.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.generation import Generator, Prompt, Settings
from edgekit.runtime.sampling import Committed, HeadRequest
from edgekit.runtime.sampling.types import Floats
from edgekit.runtime.session import SavedSequence, read_saved
from edgekit.tools.tiny.tasks import MEASURED, Example, examples

#: Of a prompt: not rounded, since the answer's first pass encodes them.
LAST = 4
#: Log-probabilities below are of tokens that nobody draws.
LEAST = -10.0
CANVAS = 32


@dataclass
class Change:
    """Of the answers to a task: how many there are, stayed the same, and are right with 32 and 8 bits. Of
    log-probabilities above LEAST the mean change, in nats; of rows the share whose best token is another.
    """

    count: int = 0
    same: int = 0
    right_32: int = 0
    right_8: int = 0
    nats: float = 0.0
    other_best: float = 0.0
    bytes_32: int = 0
    bytes_8: int = 0


class Behind:
    """Answers and scores behind files."""

    def __init__(self, generator: Generator, ids: Sequence[int], seed: int) -> None:
        self._generator, self._seed = generator, seed
        self._ids = np.array(ids, np.int64)
        self._cut = len(ids) - LAST

    def save(self, path: Path, bits: int) -> SavedSequence:
        self._generator.save(path, [self._ids[: self._cut]], [], bits=bits)
        return read_saved(path)

    def answer(self, saved: SavedSequence) -> list[int]:
        generator = self._generator
        generator.session.reset()
        generator.resume(saved)
        events = generator.generate(
            self._ids[self._cut :].tolist(), Settings(seed=self._seed), behind=saved.pieces
        )
        found: list[int] = []
        for event in events:
            if isinstance(event, Committed):
                found += (event.ids if event.text is None else event.text).tolist()
        return found

    def log_probabilities(self, saved: SavedSequence) -> Floats:
        session = self._generator.session
        session.sequence.load(saved.path)
        session.prefill(self._ids[self._cut :])
        canvas = np.random.default_rng(self._seed).integers(0, session.vocab_size, CANVAS)
        logits = session.denoise(canvas, HeadRequest(logits=True)).logits
        assert logits is not None, "they were asked for"
        z = logits - logits.max(-1, keepdims=True)
        return z - np.log(np.exp(z).sum(-1, keepdims=True))


def measure(generator: Generator, given: Sequence[Example], folder: Path) -> Change:
    """Raises EdgekitError for a model that keeps no text."""
    if not generator.bundle.model.causal_prefix:
        raise EdgekitError(f"{generator.bundle.path}: the model keeps no text between passes; give another")
    change = Change(len(given))
    for seed, example in enumerate(given):
        behind = Behind(generator, generator.encode(Prompt(example.prompt)), seed)
        files = [behind.save(folder / f"{bits}.kv", bits) for bits in (32, 8)]
        exact, rounded = (behind.answer(saved) for saved in files)
        change.same += exact == rounded
        right = [
            example.check(generator.tokenizer.decode(ids, skip_special=True)) for ids in (exact, rounded)
        ]
        change.right_32 += right[0]
        change.right_8 += right[1]
        whole, near = (behind.log_probabilities(saved) for saved in files)
        change.nats += float(np.abs(whole - near)[whole > LEAST].mean()) / len(given)
        change.other_best += float((whole.argmax(-1) != near.argmax(-1)).mean()) / len(given)
        sizes = [saved.path.stat().st_size for saved in files]
        change.bytes_32 += sizes[0]
        change.bytes_8 += sizes[1]
    return change


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(MEASURED)), help="Only these tasks.")
@click.option("--per-task", default=100, show_default=True, help="Held-out examples per task.")
@click.option("--json", "result", type=click.Path(dir_okay=False, path_type=Path), help="Write it here too.")
def main(bundle: Path, tasks: tuple[str, ...], per_task: int, result: Path | None) -> None:
    found: dict[str, Change] = {}
    with Generator(bundle) as generator, tempfile.TemporaryDirectory() as folder:
        for task in tasks or MEASURED:
            found[task] = change = measure(generator, examples(task, per_task, seed=7), Path(folder))
            click.echo(
                f"{task:12s} same {change.same} of {change.count}; "
                f"right {change.right_32} and {change.right_8}; {change.nats:.4f} nats; "
                f"another best token in {change.other_best:.2%} of rows; "
                f"{change.bytes_8 / change.bytes_32:.2f} of the bytes"
            )
    if result is not None:
        result.write_text(json.dumps({task: asdict(each) for task, each in found.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
