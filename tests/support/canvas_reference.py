"""A plain loop over one canvas of random tokens: DiffusionGemma's procedure with what transformers has not.

Fixed places stay as they were given; a place keeps its best token where that persists at a low entropy; best
tokens that are shown whole and predicted again end the canvas.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from edgekit.runtime.sampling import PhiloxNoise
from support.fake_denoiser import FakeDenoiser


class Canvas:
    """`shown` is what the model was shown in each step, `verified` the steps before those of best tokens."""

    def __init__(self, model: FakeDenoiser, options: dict[str, Any], seed: int) -> None:
        self.model, self.options, self.noise = model, SimpleNamespace(**options), PhiloxNoise(seed)
        self.shown: list[list[int]] = []
        self.verified: list[int] = []

    def run(self) -> list[int]:
        """The tokens of the first canvas. The model has encoded the prompt."""
        o, size, vocab = self.options, self.options.canvas_length, self.model.vocab_size
        start = np.array(o.canvas) if o.canvas else np.full(size, -1)
        fixed = np.isin(np.arange(size), o.fixed)
        random = self.noise.integers(vocab, size)
        canvas = np.where(start < 0, random, start)
        soft, past, verifying = None, list[np.ndarray](), False
        for remaining in range(o.steps, 0, -1):
            self.shown.append(canvas.tolist())
            temperature = np.float32(o.t_min) + np.float32(o.t_max - o.t_min) * np.float32(
                remaining / o.steps
            )
            z = self.model.scores(canvas, soft) / np.float32(temperature)
            p = np.exp(z - z.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            entropy = -(p * np.log(np.maximum(p, 1e-38))).sum(1)
            gumbel = self.noise.gumbel(size, vocab)(0, vocab)
            predicted, best, sample = z.argmax(1), np.where(fixed, start, z.argmax(1)), (z + gumbel).argmax(1)
            keeps = np.zeros(size, bool)
            order = [i for i in np.argsort(entropy, kind="stable") if not fixed[i]]
            for rank, i in enumerate(order):
                keeps[i] = entropy[order[:rank]].sum() <= o.entropy_bound
            if o.persistence is not None and len(past) >= o.persistence:
                same = np.all([earlier == predicted for earlier in past[-o.persistence :]], axis=0)
                persists = same & (entropy <= o.persistent_entropy)
                keeps, sample = keeps | persists, np.where(persists, predicted, sample)
            fresh = self.noise.integers(vocab, size)
            mean = float(entropy[~fixed].mean()) if not fixed.all() else 0.0
            was_verifying, again = verifying, (best == canvas)
            verifying = False
            stable = bool(past) and np.array_equal(np.where(fixed, start, past[-1]), best)
            if (was_verifying and again.all()) or (stable and mean < o.confidence_threshold):
                return best.tolist()
            past.append(predicted)
            if was_verifying:
                canvas = np.where(again, best, fresh)
            elif o.verify_bound is not None and entropy[~fixed].sum() <= o.verify_bound:
                verifying, canvas = True, best
                self.verified.append(o.steps - remaining + 1)
            else:
                canvas = np.where(keeps, sample, fresh)
            canvas = np.where(fixed, start, canvas)
            soft = (p @ self.model.embeddings).astype(np.float32)
        return best.tolist()
