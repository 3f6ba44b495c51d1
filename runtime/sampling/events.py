"""Events that a sampler tells while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit.runtime.sampling.types import Ids

FinishReason = Literal["eos", "length", "cancelled"]


@dataclass(frozen=True, eq=False)
class Draft:
    """The state after one denoising step; nothing in it is final.

    ids: int64 [T], the best guess for the positions start..start+T of the answer. Masked families fill what
    is still open with the mask id. accepted: bool [T], the positions that this step accepted (entropy bound)
    or committed (masked families). canvas_index counts canvases or blocks, step counts from 1 within each.
    """

    canvas_index: int
    step: int
    start: int
    ids: Ids
    accepted: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Committed:
    """Final tokens, int64 [T]; the answer is the concatenation of all Committed events. `text` is what of
    them is text, None all: a canvas may be padded behind its end token.
    """

    canvas_index: int
    ids: Ids
    text: Ids | None = None


@dataclass
class Stats:
    """Counters of one generation.

    denoising_steps: steps whose forward pass ran. forwards: denoising passes (two a step with classifier-free
    guidance, fewer where steps are drafted). projections: further head passes on the same hidden states.
    prefills: causal passes. committed_tokens: final tokens, padding not counted. canvases: canvases or blocks
    begun. rows: positions that all these passes computed.
    engine: numbers of the engine and the weight stream, filled in by whoever owns them.
    """

    denoising_steps: int = 0
    forwards: int = 0
    projections: int = 0
    prefills: int = 0
    committed_tokens: int = 0
    canvases: int = 0
    rows: int = 0
    finish_reason: FinishReason = "length"
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens per denoising pass; 0 when no pass ran."""
        return self.committed_tokens / self.forwards if self.forwards else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything above as plain values, ready for JSON."""
        return {
            "denoising_steps": self.denoising_steps,
            "forwards": self.forwards,
            "projections": self.projections,
            "prefills": self.prefills,
            "committed_tokens": self.committed_tokens,
            "tokens_per_forward": self.tokens_per_forward,
            "canvases": self.canvases,
            "rows": self.rows,
            "finish_reason": self.finish_reason,
            "engine": dict(self.engine),
        }


@dataclass(frozen=True, eq=False)
class Done:
    """The last event of every generation that was not closed by its caller."""

    stats: Stats


Event = Draft | Committed | Done
