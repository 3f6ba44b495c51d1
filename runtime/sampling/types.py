"""A model as a sampler sees it: a canvas goes in, statistics of the scores come out.

Full scores (positions x vocabulary) are hundreds of megabytes, so samplers work on what one pass over tiles
of the embedding table can produce: argmax, entropy, log-sum-exp, a Gumbel-max sample and the expected
embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

#: Logical roles of tokens, in the order in which `order="logic"` commits them (LogicDiff, arXiv 2603.26771).
ROLES = ("premise", "connective", "derived", "conclusion", "filler")

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


class GumbelTile(Protocol):
    """Standard Gumbel noise for every (row, token) pair of one head pass.

    A pure function of its arguments: tiles may be asked for in any order, from any thread, more than once.
    """

    def __call__(self, start: int, stop: int) -> Floats:
        """Noise for the token ids start..stop (exclusive), float32 [rows, stop - start]."""


@dataclass(frozen=True, eq=False)
class HeadRequest:
    """A request to the vocabulary head, whose scores are `z = logits / temperature` (division in float32).

    `rows` are indices into the canvas, in the order in which the results are wanted; None means all. `gumbel`
    covers those rows, not the canvas; sessions make its numbers themselves, and so take none but a draw of
    `PhiloxNoise.gumbel`, for as many rows and the whole vocabulary. `gumbel_scale` is at least 0 and finite.
    `soft` asks for `softmax(z) @ E` with the table E that the head scores
    by (the embedding's, where they are tied), without any input scale factor. `top_k` is at most the
    vocabulary size. `logits` asks for all of z, `roles` for scores of the logical roles of the tokens that
    the rows predict, which only a bundle with a role head has.
    """

    rows: Ids | None = None
    temperature: float = 1.0
    gumbel: GumbelTile | None = None
    gumbel_scale: float = 1.0
    soft: bool = False
    top_k: int = 0
    logits: bool = False
    roles: bool = False


@dataclass(eq=False)
class HeadOutput:
    """Statistics of z for R rows. Ties are broken towards the lower token id.

    argmax int64 [R], others float32 [R] = sum of exp(z - max z) over all tokens but the argmax (whose
    probability is 1 / (1 + others)), entropy float32 [R] in nats, log_z float32 [R] (log-sum-exp of z). With
    a `gumbel`: sample int64 [R] = argmax(z + gumbel_scale * gumbel), sample_prob float32 [R] =
    softmax(z)[sample]. With `soft`: soft float32 [R, hidden]. With `top_k`: top_ids int64 [R, k] and top_z
    float32 [R, k], descending. With `logits`: logits float32 [R, vocabulary] = z. With `roles`:
    roles float32 [R, 5], scores in the order of `ROLES`.
    """

    argmax: Ids
    others: Floats
    entropy: Floats
    log_z: Floats
    sample: Ids | None = None
    sample_prob: Floats | None = None
    soft: Floats | None = None
    top_ids: Ids | None = None
    top_z: Floats | None = None
    logits: Floats | None = None
    roles: Floats | None = None


class Denoiser(Protocol):
    """A model with its prefix KV cache. `prefix_length` counts the committed positions whose KV is kept.

    `uncached`, int64 [U], is text behind them that no prefill has encoded: the end of the last answer, which
    loops of families with a causal encoder leave here, and encode with the text that follows it.
    """

    uncached: Ids

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int:
        """Width of a soft embedding."""

    @property
    def prefix_length(self) -> int: ...

    @property
    def pieces(self) -> Sequence[Ids]:
        """The token ids behind the prefix, in the pieces in which they were encoded."""

    def reset(self) -> None:
        """Forgets the prefix, and what is uncached."""

    def prefill(self, ids: Ids) -> None:
        """Causal pass over ids [T] that appends their KV to the prefix (families with a causal encoder)."""

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        """Bidirectional pass of ids [T] at positions prefix_length.. over [prefix KV ; canvas].

        `soft` is the previous step's HeadOutput.soft (self-conditioning) or None. It is a function of its
        arguments and the prefix: it leaves no trace that a later call could notice.
        """


@runtime_checkable
class Projector(Protocol):
    """A denoiser that keeps the hidden states of its last `denoise`, so that other rows or statistics of the
    same pass cost one more head pass and not one more pass over all layers. Of others the samplers ask for
    the same pass again.
    """

    def project(self, request: HeadRequest) -> HeadOutput:
        """The answer that the last `denoise` would have given to this request."""
