"""A model without layers: scores drawn from a hash of what it is given, and the statistics that a head
returns.

The scores of a canvas are a pure function of the seed, the prefix, the canvas and the self-conditioning
input, so any procedure that feeds the same tokens sees the same scores, and any difference in what is fed
shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids

# Small and odd, so that every test crosses tile borders that are not multiples of anything.
TILE = 7


def head(
    logits: Floats, request: HeadRequest, embeddings: Floats | None = None, roles: Floats | None = None
) -> HeadOutput:
    """The HeadOutput for float32 scores [T, V]; `embeddings` [V, H] is needed for `soft` only, `roles` [T, 5]
    for roles.
    """
    rows = np.arange(logits.shape[0]) if request.rows is None else request.rows
    z = logits[rows] / np.float32(request.temperature)
    highest = z.max(axis=1)
    exponentials = np.exp(z - highest[:, None])
    total = exponentials.sum(axis=1)
    log_z = highest + np.log(total)
    probabilities = exponentials / total[:, None]
    logarithms = np.maximum(z - log_z[:, None], np.finfo(np.float32).min)
    index = np.arange(rows.shape[0])
    best = z.argmax(axis=1)
    output = HeadOutput(
        argmax=best,
        others=np.where(np.arange(z.shape[1]) == best[:, None], 0, exponentials).sum(axis=1),
        entropy=-(probabilities * logarithms).sum(axis=1),
        log_z=log_z,
    )
    if request.gumbel is not None:
        noised = np.empty_like(z)
        for start in range(0, z.shape[1], TILE):
            stop = min(z.shape[1], start + TILE)
            noised[:, start:stop] = z[:, start:stop] + np.float32(request.gumbel_scale) * request.gumbel(
                start, stop
            )
        output.sample = noised.argmax(axis=1)
        output.sample_prob = probabilities[index, output.sample]
    if request.soft:
        assert embeddings is not None
        output.soft = probabilities @ embeddings
    if request.top_k:
        output.top_ids = np.argsort(-z, axis=1, kind="stable")[:, : request.top_k]
        output.top_z = np.take_along_axis(z, output.top_ids, axis=1)
    if request.logits:
        output.logits = z
    if request.roles:
        assert roles is not None
        output.roles = roles[rows]
    return output


class FakeDenoiser:
    """Random scores of spread `scale` plus `bias` [V]; `calls` and `prefills` record what was asked."""

    def __init__(
        self, vocab_size: int, seed: int = 0, scale: float = 2.0, bias: Floats | None = None, hidden: int = 4
    ) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.scale = scale
        self.bias = np.zeros(vocab_size, np.float32) if bias is None else bias
        self.embeddings = np.random.default_rng(seed).standard_normal((vocab_size, hidden), dtype=np.float32)
        self.prefix: list[int] = []
        self.uncached: Ids = np.empty(0, np.int64)
        self.resets = 0
        self.prefills: list[Ids] = []
        self.calls: list[tuple[Ids, HeadRequest, Floats | None]] = []

    @property
    def hidden_size(self) -> int:
        return self.embeddings.shape[1]

    @property
    def pieces(self) -> list[Ids]:
        return [np.array(self.prefix, np.int64)] if self.prefix else []

    @property
    def prefix_length(self) -> int:
        return len(self.prefix)

    def reset(self) -> None:
        self.resets += 1
        self.prefix = []
        self.uncached = np.empty(0, np.int64)

    def prefill(self, ids: Ids) -> None:
        self.prefills.append(ids.copy())
        self.prefix.extend(ids.tolist())

    def scores(self, ids: Ids | Sequence[int], soft: Floats | None = None) -> Floats:
        """All scores of a canvas, float32 [T, V]; reference procedures use this."""
        canvas = np.asarray(ids, dtype=np.int64)
        digest = hashlib.sha256(repr((self.seed, self.prefix, canvas.tolist())).encode())
        if soft is not None:
            digest.update(soft.tobytes())
        generator = np.random.default_rng(np.frombuffer(digest.digest(), dtype=np.uint32))
        noise = generator.standard_normal((canvas.shape[0], self.vocab_size), dtype=np.float32)
        return noise * np.float32(self.scale) + self.bias

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        self.calls.append((ids.copy(), request, soft))
        return head(self.scores(ids, soft), request, self.embeddings)


class ProjectingDenoiser(FakeDenoiser):
    """Keeps the scores of its last pass, as an engine keeps the hidden states."""

    projections = 0

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        self.last = self.scores(ids, soft)
        return super().denoise(ids, request, soft)

    def project(self, request: HeadRequest) -> HeadOutput:
        self.projections += 1
        return head(self.last, request, self.embeddings)
