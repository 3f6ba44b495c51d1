"""The model as a loop calls it: inputs checked, passes counted, scores of any size taken in bounded
pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from edgekit.runtime.sampling.errors import InvalidPrompt, NonFiniteLogits
from edgekit.runtime.sampling.events import Stats
from edgekit.runtime.sampling.types import Denoiser, Floats, HeadOutput, HeadRequest, Ids, Projector

T = TypeVar("T")


def check_prompt(prompt_ids: Ids | Sequence[int], vocab_size: int, least: int = 0) -> Ids:
    """The prompt as int64 [P]. Raises InvalidPrompt unless it is a flat list of `least` ids of the vocabulary
    or more.
    """
    prompt = np.asarray(prompt_ids)
    if prompt.ndim != 1:
        raise InvalidPrompt(f"the prompt has shape {prompt.shape}; pass one flat list of token ids")
    if prompt.size < least:
        raise InvalidPrompt("the prompt is empty; this model needs at least its begin-of-sequence token")
    if not prompt.size:
        return np.empty(0, dtype=np.int64)
    if prompt.dtype.kind not in "iu" and all(type(token) is int for token in prompt_ids):
        prompt = np.asarray(prompt_ids, dtype=object)  # beyond 64 bits, and so beyond any vocabulary
    elif prompt.dtype.kind not in "iu":
        raise InvalidPrompt(f"the prompt holds {prompt.dtype} values; pass integer token ids")
    outside = np.flatnonzero((prompt < 0) | (prompt >= vocab_size))
    if outside.size:
        raise InvalidPrompt(
            f"prompt token {int(prompt[outside[0]])} at position {int(outside[0])} is outside the model's "
            f"vocabulary of {vocab_size} tokens; use the tokenizer of this model"
        )
    return prompt.astype(np.int64)


class Passes:
    """Counts into `stats`; `logits_budget_bytes` bounds the float32 scores that are in memory at once."""

    def __init__(self, denoiser: Denoiser, stats: Stats, logits_budget_bytes: int = 64 << 20) -> None:
        self.vocab_size = denoiser.vocab_size
        self._denoiser = denoiser
        self._stats = stats
        self._rows_at_once = max(1, logits_budget_bytes // (4 * denoiser.vocab_size))
        self._last_ids: Ids | None = None
        self._last_soft: Floats | None = None

    def run(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        """One pass over all layers. Raises NonFiniteLogits."""
        self._last_ids, self._last_soft = ids, soft
        self._stats.forwards += 1
        return self._checked(self._denoiser.denoise(ids, request, soft))

    def again(self, request: HeadRequest) -> HeadOutput:
        """Another request on the last pass: one head pass where the denoiser kept the hidden states,
        otherwise the pass is repeated. The ids given to `run` must not have changed since. Raises
        NonFiniteLogits."""
        if isinstance(self._denoiser, Projector):
            self._stats.projections += 1
            return self._checked(self._denoiser.project(request))
        if self._last_ids is None:
            raise RuntimeError("again() before run()")
        return self.run(self._last_ids, request, self._last_soft)

    def row_chunks(self, count: int) -> Iterator[slice]:
        """Slices of 0..count whose full scores fit the budget (one row at least)."""
        for start in range(0, count, self._rows_at_once):
            yield slice(start, min(count, start + self._rows_at_once))

    def _checked(self, output: HeadOutput) -> HeadOutput:
        bad = int(np.count_nonzero(~np.isfinite(output.log_z)))
        if bad:
            raise NonFiniteLogits(
                f"pass {self._stats.forwards}: the scores of {bad} of {output.log_z.shape[0]} positions are "
                "not finite; the weights or the quantization of this model are broken"
            )
        return output


def wanted(value: T | None, name: str) -> T:
    """A requested field of a HeadOutput; a denoiser that leaves it out does not implement the protocol."""
    if value is None:
        raise TypeError(f"the denoiser was asked for '{name}' and did not return it")
    return value
