"""Token batches of the task language: a seeded stream of conversations whose last answer is to be learned.

Run as `python -m edgekit.tools.tiny.corpus` it prints the length distribution per task and the examples per
second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.tools.tiny.tasks import TASKS, Example, draw, examples, stream
from edgekit.tools.tiny.tokenizer import FAMILIES, PAD, Family, load

# Shares of training examples by the part of the training time that has passed: each row holds until its
# first number. What looks things up in the prompt comes first, then arithmetic, which needs many more
# examples than the rest and is learned only once the digits are found; the last row keeps all of it. Stories
# have the longest answers and therefore teach more per example.
CURRICULUM: tuple[tuple[float, dict[str, float]], ...] = (
    (
        0.2,
        {
            "copying": 0.76,
            "json": 0.16,
            "story": 0.04,
            "question": 0.04,
        },
    ),
    (
        0.65,
        {
            "addition": 0.70,
            "sorting": 0.02,
            "copying": 0.12,
            "json": 0.05,
            "story": 0.03,
            "question": 0.02,
            "chain": 0.06,
        },
    ),
    (
        1.0,
        {
            "addition": 0.36,
            "sorting": 0.09,
            "copying": 0.17,
            "json": 0.12,
            "story": 0.07,
            "question": 0.06,
            "chain": 0.13,
        },
    ),
)


def mixture(share: float) -> dict[str, float]:
    """The shares of the tasks when `share` (0..1) of the training time has passed."""
    return next((weights for until, weights in CURRICULUM if share < until), CURRICULUM[-1][1])


@dataclass(frozen=True)
class BatchOptions:
    """The form of batches.

    `prompt_widths` and `canvas_lengths` are what to choose from: prompts and answers take the first width
    they fit into, longer ones are skipped. Few widths keep the number of distinct matrix shapes small.
    `tokens` bounds B * (P + answer_copies * A), the positions of a batch. `history` is the probability of one
    or two earlier turns before the prompt.
    """

    canvas_lengths: tuple[int, ...] = (16, 32, 64, 128)
    prompt_widths: tuple[int, ...] = (20, 24, 28, 36, 48, 96, 160)
    tokens: int = 4096
    answer_copies: int = 1
    history: float = 0.06
    weights: Mapping[str, float] = field(default_factory=lambda: mixture(1.0))


@dataclass(frozen=True)
class Batch:
    """B conversations. Prompts are padded on the left; answers end with the end-of-turn id and are filled to
    the canvas.
    """

    tasks: list[str]
    prompt: np.ndarray  # int64 [B, P], padded with id 0
    prompt_lengths: np.ndarray  # int64 [B]
    answer: np.ndarray  # int64 [B, A]
    answer_lengths: np.ndarray  # int64 [B], end-of-turn id included


class Encoder:
    """Turns examples of a family into token ids; `source` is the tokenizer.json of a trained model, or its
    folder.
    """

    def __init__(self, family: str, source: Path | bytes | None = None) -> None:
        self.family: Family = FAMILIES[family]
        self._tokenizer: Any = load(source)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of whole conversations as `Family.prompt` writes them."""
        return [e.ids for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of answers, each ended by the family's end-of-turn id."""
        return [[*ids, self.family.end_id] for ids in self.prompts(texts)]

    def text(self, ids: Sequence[int]) -> str:
        """The answer that a canvas holds: what stands before the first end-of-turn or fill id."""
        kept = []
        for token in ids:
            if token in (self.family.end_id, self.family.fill_id):
                break
            kept.append(int(token))
        return str(self._tokenizer.decode(kept))


def collate(
    chosen: Sequence[Example],
    prompts: Sequence[list[int]],
    answers: Sequence[list[int]],
    family: Family,
    width: int,
    canvas: int,
) -> Batch:
    """Pad prompts on the left to `width` and fill answers to `canvas` positions."""
    prompt = np.full((len(prompts), width), PAD, np.int64)
    answer = np.full((len(answers), canvas), family.fill_id, np.int64)
    for row, (p, a) in enumerate(zip(prompts, answers, strict=True)):
        prompt[row, width - len(p) :] = p
        answer[row, : len(a)] = a
    lengths = np.array([len(p) for p in prompts], np.int64), np.array([len(a) for a in answers], np.int64)
    return Batch([e.task for e in chosen], prompt, lengths[0], answer, lengths[1])


def _conversations(
    encoder: Encoder, options: BatchOptions, seed: int, split: str
) -> Iterator[tuple[Example, str]]:
    rng = random.Random(f"history {seed}")
    for example in stream(options.weights, seed, split):
        turns = []
        if rng.random() < options.history:
            for task in rng.choices(
                list(options.weights), list(options.weights.values()), k=rng.randint(1, 2)
            ):
                earlier = draw(task, rng, split)
                turns.append((earlier.prompt, earlier.answer))
        yield example, encoder.family.prompt(turns, example.prompt)


def batches(encoder: Encoder, options: BatchOptions, seed: int = 0, split: str = "train") -> Iterator[Batch]:
    """Batches without end; examples of similar prompt width and equal canvas width are put together."""
    pools: dict[tuple[int, int], list[tuple[Example, list[int], list[int]]]] = {}
    source = _conversations(encoder, options, seed, split)
    while True:
        drawn = [next(source) for _ in range(512)]
        prompts = encoder.prompts([text for _, text in drawn])
        answers = encoder.answers([example.answer for example, _ in drawn])
        for (example, _), prompt, answer in zip(drawn, prompts, answers, strict=True):
            canvas = next((c for c in options.canvas_lengths if len(answer) <= c), None)
            if canvas is None or len(prompt) > options.prompt_widths[-1]:
                continue
            width = next(w for w in options.prompt_widths if len(prompt) <= w)
            pool = pools.setdefault((width, canvas), [])
            pool.append((example, prompt, answer))
            if len(pool) >= max(1, options.tokens // (width + options.answer_copies * canvas)):
                chosen, prompt_ids, answer_ids = zip(*pool, strict=True)
                yield collate(chosen, prompt_ids, answer_ids, encoder.family, width, canvas)
                pool.clear()


def held_out(
    encoder: Encoder, task: str, count: int, canvas: int, seed: int = 0
) -> tuple[list[Example], Batch]:
    """`count` held-out examples of one task and their batch, the same for the same arguments."""
    chosen = examples(task, count, seed)
    prompts = encoder.prompts([encoder.family.prompt([], e.prompt) for e in chosen])
    answers = encoder.answers([e.answer for e in chosen])
    return chosen, collate(chosen, prompts, answers, encoder.family, max(map(len, prompts)), canvas)


def main() -> None:
    """Print lengths in tokens per task (median, 95th percentile, longest) and the speed of the stream."""
    for name in FAMILIES:
        encoder = Encoder(name)
        print(f"{name}: prompt with template / answer with end of turn, tokens: median, 95 %, longest")
        for task in TASKS:
            chosen, batch = held_out(encoder, task, 2000, 128)
            cells = []
            for lengths in (batch.prompt_lengths, batch.answer_lengths):
                cells.append(
                    f"{np.median(lengths):4.0f} {np.percentile(lengths, 95):4.0f} {lengths.max():4d}"
                )
            print(
                f"  {task:10s} {cells[0]}  / {cells[1]}   e.g. {chosen[0].prompt!r} -> {chosen[0].answer!r}"
            )
        seen, start = 0, time.perf_counter()
        for batch in batches(encoder, BatchOptions()):
            seen += len(batch.tasks)
            if time.perf_counter() - start > 3:
                break
        print(f"  {seen / (time.perf_counter() - start):.0f} examples/s")


if __name__ == "__main__":
    main()
