"""The results of a generation: an answer with its statistics, and the events on the way to it.

All of it is plain data that can be compared, hashed, pickled, and printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["eos", "length"]


@dataclass(frozen=True)
class Statistics:
    """The costs of a generation. Bytes are of memory or of weights, seconds of the wall clock.

    >>> answer = model.generate("Copy this: red 7", seed=1)
    >>> answer.statistics.finish_reason, answer.statistics.tokens
    ('eos', 3)
    """

    #: Denoising steps whose pass ran, over all canvases or blocks.
    steps: int
    #: Denoising passes: one a step, two with classifier-free guidance, fewer where steps are drafted; with
    #: those that encode text and predict what follows it.
    forwards: int
    #: Further passes, which only encoded text.
    prefills: int
    #: Positions of these passes and of encoded text: what was computed.
    rows: int
    #: Tokens of the answer, its end token included, padding not.
    tokens: int
    #: Tokens before the answer: of a chat, the whole conversation.
    prompt_tokens: int
    #: Of these, those that an earlier turn had the model encode.
    reused_tokens: int
    #: Canvases, or blocks, that were begun.
    canvases: int
    #: "eos": an end token was committed. "length": as many tokens as were asked for.
    finish_reason: FinishReason
    #: The whole generation, from its prompt to its last token.
    seconds: float
    #: Of these: computing, and waiting for weights to be read.
    compute_seconds: float
    wait_seconds: float
    #: Weights read from the disk, and how many a step reads at most; 0 where all stay in memory.
    bytes_read: int
    bytes_per_step: int
    #: Weights that stay in memory.
    resident_bytes: int
    #: The most physical memory that the process has had until now.
    peak_bytes: int
    #: The budget of the process; None: no limit.
    memory_bytes: int | None

    @property
    def tokens_per_step(self) -> float:
        """Tokens of the answer per denoising pass; 0 when none ran."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer over the whole time, reading included."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Answer:
    """A finished answer.

    >>> answer = model.generate("Copy this: red 7", seed=1)
    >>> answer.text
    'red 7'
    >>> model.decode(answer.ids) == answer.text
    True
    """

    #: The answer without special tokens.
    text: str
    #: Every token of the answer, its end token included, padding not.
    ids: tuple[int, ...]
    #: The tokens that the model was given: of a chat, the whole conversation before the answer.
    prompt_ids: tuple[int, ...]
    statistics: Statistics


@dataclass(frozen=True)
class Draft:
    """The state after a denoising step; nothing in it is final.

    >>> drafts = [e for e in model.events("Copy this: red 7", seed=1) if isinstance(e, edgekit.Draft)]
    >>> drafts[0].canvas, drafts[0].step, len(drafts[0].ids)
    (0, 1, 128)
    >>> model.decode(drafts[-1].ids)
    'red 7'
    """

    #: The canvas (or block) at work, counted from 0, and how many there are at most.
    canvas: int
    canvases: int
    #: The step, counted from 1 within its canvas, and how many it has at most.
    step: int
    steps: int
    #: Place of ids[0] in the answer.
    start: int
    #: [T] the best guess for positions start..start+T of the answer; `Model.mask_id` where it is open still.
    ids: tuple[int, ...]
    #: [T] the positions whose tokens this step accepted (DiffusionGemma) or committed (LLaDA, Dream).
    accepted: tuple[bool, ...]
    #: Weights read from the disk since the generation began.
    bytes_read: int

    @property
    def progress(self) -> float:
        """The part of the work that is done, 0..1, if all steps are needed."""
        return min(1.0, (self.canvas + self.step / self.steps) / self.canvases)


@dataclass(frozen=True)
class Committed:
    """Tokens that are final: the answer's ids are those of all such events."""

    canvas: int
    ids: tuple[int, ...]
    #: The text that has become certain. A character whose bytes are not all there yet comes with the next
    #: event or, at the end, with the answer alone.
    text: str


@dataclass(frozen=True)
class Done:
    """The last event of every generation that was not stopped."""

    answer: Answer


Event: TypeAlias = Draft | Committed | Done


def answer_of(events: Iterator[Event]) -> Answer:
    """The answer at the end of a generation."""
    *_, last = events
    assert isinstance(last, Done), "a generation ends with Done"
    return last.answer


def text_of(events: Iterator[Event]) -> Iterator[str]:
    """The text of a generation as it becomes certain, without empty pieces."""
    told = 0
    for event in events:
        text = event.text if isinstance(event, Committed) else ""
        if isinstance(event, Done):
            text = event.answer.text[told:]
        told += len(text)
        if text:
            yield text
