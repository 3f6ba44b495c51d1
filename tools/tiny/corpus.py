"""Token batches of the task language: a seeded stream of conversations whose last answer is to be learned.

Run as `python -m edgekit.tools.tiny.corpus` it prints the length distribution per task and the examples per
second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.tools.tiny.tasks import TASKS, Example, draw, examples
from edgekit.tools.tiny.tokenizer import FAMILIES, PAD, Family, load

# Task, prompt ids, answer ids.
_Row = tuple[str, list[int], list[int]]

# Shares of training examples by the part of the training steps that has passed: each row holds until its
# first number.
Curriculum = tuple[tuple[float, dict[str, float]], ...]

# What looks things up in the prompt comes first, then arithmetic, which needs many more examples than the
# rest and is learned only once the digits are found; the last row keeps all of it. Stories have the longest
# answers and therefore teach more per example. Short chains and short lists come before long ones: a step of
# a chain is the same everywhere, and cheaper where there are few.
FROM_SCRATCH: Curriculum = (
    (
        0.2,
        {
            "copying": 0.56,
            "json": 0.16,
            "story": 0.04,
            "question": 0.04,
            "short-sorting": 0.1,
            "short-chain": 0.1,
        },
    ),
    (
        0.55,
        {
            "addition": 0.40,
            "copying": 0.08,
            "json": 0.05,
            "story": 0.02,
            "question": 0.02,
            "short-sorting": 0.10,
            "sorting": 0.08,
            "short-chain": 0.20,
            "chain": 0.05,
        },
    ),
    (
        1.0,
        {
            "addition": 0.25,
            "sorting": 0.15,
            "copying": 0.10,
            "json": 0.08,
            "story": 0.03,
            "question": 0.04,
            "chain": 0.20,
            "short-sorting": 0.07,
            "short-chain": 0.08,
        },
    ),
)

# For weights that know all but chains and sorting.
CHAINS: Curriculum = (
    (
        0.3,
        {
            "addition": 0.08,
            "copying": 0.05,
            "json": 0.04,
            "story": 0.01,
            "question": 0.02,
            "short-sorting": 0.20,
            "sorting": 0.15,
            "short-chain": 0.40,
            "chain": 0.05,
        },
    ),
    (
        1.0,
        {
            "addition": 0.10,
            "copying": 0.06,
            "json": 0.05,
            "story": 0.01,
            "question": 0.03,
            "short-sorting": 0.05,
            "sorting": 0.30,
            "short-chain": 0.15,
            "chain": 0.25,
        },
    ),
)

# For weights that know all but additions and chains.
ARITHMETIC: Curriculum = (
    (
        1.0,
        {
            "addition": 0.36,
            "copying": 0.07,
            "json": 0.05,
            "story": 0.01,
            "question": 0.02,
            "short-sorting": 0.02,
            "sorting": 0.10,
            "short-chain": 0.09,
            "chain": 0.28,
        },
    ),
)

# For weights that know all but additions of three and four digits.
LONG_SUMS: Curriculum = (
    (
        1.0,
        {
            "addition": 0.10,
            "addition-3": 0.13,
            "addition-4": 0.25,
            "copying": 0.07,
            "json": 0.05,
            "story": 0.01,
            "question": 0.02,
            "short-sorting": 0.02,
            "sorting": 0.10,
            "short-chain": 0.05,
            "chain": 0.20,
        },
    ),
)

#: By name, for `train_tiny --curriculum`.
CURRICULA = {"from-scratch": FROM_SCRATCH, "chains": CHAINS, "arithmetic": ARITHMETIC, "long-sums": LONG_SUMS}


def mixture(share: float, curriculum: Curriculum = FROM_SCRATCH) -> dict[str, float]:
    """The shares of the tasks when `share` (0..1) of the training steps has passed."""
    return next((weights for until, weights in curriculum if share < until), curriculum[-1][1])


@dataclass(frozen=True)
class BatchOptions:
    """The form of batches.

    `prompt_widths` and `canvas_lengths` are what to choose from: prompts and answers take the first width
    they fit into, longer ones are skipped. Few widths keep the number of distinct matrix shapes small.
    `tokens` bounds B * (P + answer_copies * A), the positions of a batch. `history` is the probability of one
    or two earlier turns before the prompt. `full_share` is the probability that a conversation is for the
    longest canvas, whatever the length of its answer.
    """

    canvas_lengths: tuple[int, ...] = (16, 32, 64, 128)
    prompt_widths: tuple[int, ...] = (20, 24, 28, 36, 48, 64, 96, 160)
    tokens: int = 4096
    answer_copies: int = 1
    history: float = 0.06
    full_share: float = 0.0
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

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The characters of an answer that each of its tokens stands for, without the end of turn."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).offsets)

    def text(self, ids: Sequence[int]) -> str:
        """The answer that a canvas holds: what stands before the first end-of-turn or fill id."""
        kept = []
        for token in ids:
            if token in (self.family.end_id, self.family.fill_id):
                break
            kept.append(int(token))
        return str(self._tokenizer.decode(kept))


def collate(
    tasks: Sequence[str],
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
    return Batch(list(tasks), prompt, lengths[0], answer, lengths[1])


class Batches:
    """Batches without end, the same for the same arguments. Examples of similar prompt width and equal canvas
    width are put together.

    `state` is all that the batches to come depend on: a stream with the same encoder and options that takes
    it gives the same ones. `options` may be exchanged between two batches.
    """

    DRAWN = 256  # examples that are drawn together

    def __init__(self, encoder: Encoder, options: BatchOptions, seed: int = 0, split: str = "train") -> None:
        self.encoder, self.options, self.split = encoder, options, split
        self._rng = random.Random(f"batches {split} {seed}")
        self._pools: dict[tuple[int, int], list[_Row]] = {}
        # Rows of batches that are complete.
        self._ready: list[tuple[int, int, list[_Row]]] = []

    @property
    def state(self) -> dict[str, Any]:
        """Numbers, strings, tuples and lists only."""
        pools = [(*key, list(rows)) for key, rows in self._pools.items()]
        return {"rng": self._rng.getstate(), "pools": pools, "ready": list(self._ready)}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._rng.setstate(state["rng"])
        self._pools = {(width, canvas): list(rows) for width, canvas, rows in state["pools"]}
        self._ready = list(state["ready"])

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        while not self._ready:
            self._draw()
        width, canvas, rows = self._ready.pop(0)
        tasks, prompts, answers = zip(*rows, strict=True)
        return collate(tasks, prompts, answers, self.encoder.family, width, canvas)

    def _draw(self) -> None:
        rng, options = self._rng, self.options
        names, shares = list(options.weights), list(options.weights.values())
        chosen, texts = [], []
        for task in rng.choices(names, shares, k=self.DRAWN):
            example = draw(task, rng, self.split)
            turns = []
            if rng.random() < options.history:
                earlier = (draw(t, rng, self.split) for t in rng.choices(names, shares, k=rng.randint(1, 2)))
                turns = [(e.prompt, e.answer) for e in earlier]
            chosen.append(example)
            texts.append(self.encoder.family.prompt(turns, example.prompt))
        prompts, answers = self.encoder.prompts(texts), self.encoder.answers([e.answer for e in chosen])
        for example, prompt, answer in zip(chosen, prompts, answers, strict=True):
            least = options.canvas_lengths[-1] if rng.random() < options.full_share else len(answer)
            canvas = next((c for c in options.canvas_lengths if least <= c), None)
            if canvas is None or canvas < len(answer) or len(prompt) > options.prompt_widths[-1]:
                continue
            width = next(w for w in options.prompt_widths if len(prompt) <= w)
            pool = self._pools.setdefault((width, canvas), [])
            pool.append((example.task, prompt, answer))
            if len(pool) >= max(1, options.tokens // (width + options.answer_copies * canvas)):
                self._ready.append((width, canvas, pool.copy()))
                pool.clear()


def held_out(
    encoder: Encoder, task: str, count: int, canvas: int, seed: int = 0
) -> tuple[list[Example], Batch]:
    """`count` held-out examples of one task and their batch, the same for the same arguments."""
    chosen = examples(task, count, seed)
    prompts = encoder.prompts([encoder.family.prompt([], e.prompt) for e in chosen])
    answers = encoder.answers([e.answer for e in chosen])
    return chosen, collate([task] * count, prompts, answers, encoder.family, max(map(len, prompts)), canvas)


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
        for batch in Batches(encoder, BatchOptions()):
            seen += len(batch.tasks)
            if time.perf_counter() - start > 3:
                break
        print(f"  {seen / (time.perf_counter() - start):.0f} examples/s")


if __name__ == "__main__":
    main()
