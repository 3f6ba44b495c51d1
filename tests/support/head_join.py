"""A reference for the core's joining of the head's tiles, by the online softmax (arXiv 1805.02867)."""

from __future__ import annotations

import numpy as np

from edgekit.runtime.engines.base import TilePart
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids


class HeadState:
    """Joins the parts of tiles in ascending order of tokens; ties keep the lower token."""

    def __init__(self, rows: int, hidden: int, request: HeadRequest, vocab: int) -> None:
        self._request = request
        # Finite, so that its product with a weight of 0 is 0.
        self._top = np.full(rows, np.finfo(np.float32).min, np.float64)
        self._arg = np.zeros(rows, np.int64)
        # Sums run in float64: a vocabulary has hundreds of tiles, and the result must not depend on how it
        # is cut. They are over all tokens but the argmax, whose own term is 1: next to it small ones would be
        # lost.
        self._others = np.zeros(rows, np.float64)
        self._z_others = np.zeros(rows, np.float64)
        self._score = np.full(rows, -np.inf, np.float32)
        self._sample = np.zeros(rows, np.int64)
        self._sample_z = np.zeros(rows, np.float32)
        self._soft = np.zeros((rows, hidden), np.float32) if request.soft else None
        k = min(request.top_k, vocab)
        self._top_ids = np.zeros((rows, 0), np.int64)
        self._top_z = np.zeros((rows, 0), np.float32)
        self._k = k
        self._logits = np.empty((rows, vocab), np.float32) if request.logits else None

    def add(self, start: int, part: TilePart) -> None:
        """Join the tile whose first token is `start`."""
        top = np.maximum(self._top, part.top)
        old, new = np.exp(self._top - top), np.exp(part.top - top)
        # The lower of both argmaxes becomes one of the others.
        better = part.top > self._top
        fallen, below = np.where(better, old, new), np.minimum(self._top, part.top)
        self._others = self._others * old + part.sum_others * new + fallen
        self._z_others = self._z_others * old + part.sum_z_others * new + below * fallen
        if self._soft is not None:
            assert part.soft is not None
            self._soft *= old.astype(np.float32)[:, None]
            self._soft += part.soft * new.astype(np.float32)[:, None]
        self._arg = np.where(better, part.arg + start, self._arg)
        self._top = top
        if part.score is not None:
            assert part.sample is not None and part.sample_z is not None
            better = part.score > self._score
            self._score = np.where(better, part.score, self._score)
            self._sample = np.where(better, part.sample + start, self._sample)
            self._sample_z = np.where(better, part.sample_z, self._sample_z)

    def add_logits(self, start: int, z: Floats) -> None:
        """Join z [rows, tile] itself, for requests that want candidates or all of it."""
        if self._logits is not None:
            self._logits[:, start : start + z.shape[1]] = z
        if self._k:
            ids = np.broadcast_to(np.arange(start, start + z.shape[1]), z.shape)
            self._keep_top(np.concatenate((self._top_ids, ids), 1), np.concatenate((self._top_z, z), 1))

    def _keep_top(self, ids: Ids, z: Floats) -> None:
        if z.shape[1] > 4 * self._k:  # cut down before the stable sort that settles ties
            bound = np.partition(z, z.shape[1] - self._k, 1)[:, z.shape[1] - self._k]
            width = int((z >= bound[:, None]).sum(1).max())
            first = np.argsort(-(z >= bound[:, None]).astype(np.int8), axis=1, kind="stable")[:, :width]
            ids, z = np.take_along_axis(ids, first, 1), np.take_along_axis(z, first, 1)
        order = np.argsort(-z, axis=1, kind="stable")[:, : self._k]
        self._top_ids, self._top_z = np.take_along_axis(ids, order, 1), np.take_along_axis(z, order, 1)

    def result(self) -> HeadOutput:
        """Statistics over the whole vocabulary."""
        log_sum = np.log1p(self._others)
        log_z = self._top + log_sum
        total = 1 + self._others
        # What remains of log Z - sum z p when max z is taken out of both.
        entropy = log_sum + (self._top * self._others - self._z_others) / total
        sampled = self._request.gumbel is not None
        return HeadOutput(
            argmax=self._arg,
            others=self._others.astype(np.float32),
            entropy=np.maximum(entropy, 0.0).astype(np.float32),
            log_z=log_z.astype(np.float32),
            sample=self._sample if sampled else None,
            sample_prob=np.exp(self._sample_z - log_z).astype(np.float32) if sampled else None,
            soft=None if self._soft is None else (self._soft / total[:, None]).astype(np.float32),
            top_ids=self._top_ids if self._k else None,
            top_z=self._top_z if self._k else None,
            logits=self._logits,
        )
