"""FreeDave's procedure (arXiv 2510.00294; cychomatica/FreeDave, `generate_with_prefix_cache_FreeDave` and
`block_diffusion_generate_FreeDave`), greedy, with a static schedule and over full scores.

A forward gives scores of one canvas, or of several drafts at once. From what it predicts for the last canvas
that is verified, the canvases of the next steps are drafted; the first of them is what the schedule gives
anyway. All of them are forwarded at once, and a draft is right where it is what a step from the one before it
gives. The last one that is right is the canvas that the next drafts begin from.

Also models that are easy or hard to predict, and one that answers passes of several canvases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgekit.runtime.sampling import HeadOutput, HeadRequest, PassRows
from support.fake_denoiser import FakeDenoiser, head

#: Scores [T, V] of canvases that are forwarded at once.
Forward = Callable[[list[list[int]]], list[np.ndarray]]
#: Tokens of scores, and how sure they are.
Ranking = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def by_probability(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest tokens and their probabilities."""
    z = scores.astype(np.float64)
    e = np.exp(z - z.max(-1, keepdims=True))
    return z.argmax(-1), (e / e.sum(-1, keepdims=True)).max(-1)


def by_entropy(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest tokens and their negative entropies."""
    z = scores.astype(np.float64)
    e = np.exp(z - z.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return z.argmax(-1), (p * np.log(np.maximum(p, 1e-300))).sum(-1)


def shares_of(masks: int, steps: int) -> list[int]:
    """Tokens of each step, the larger ones first."""
    return [masks // steps + (i < masks % steps) for i in range(steps)]


def shares_in_time(masks: int, steps: int, eps: float = 1e-3) -> list[int]:
    """Tokens of each step of Dream's schedule, without the steps that have none."""
    times = np.linspace(1, eps, steps + 1, dtype=np.float64).astype(np.float32)
    found = []
    for step in range(steps):
        share = np.float32(1) if step + 1 == steps else np.float32(1) - times[step + 1] / times[step]
        found.append(int(np.float32(masks) * share))
        masks -= found[-1]
    return [share for share in found if share]


@dataclass
class FreeDave:
    """`forwards` of one canvas or several drafts, `accepted` drafts behind the first of each forward, and the
    blocks whose finished canvas was one of these, in `finished`.
    """

    forward: Forward
    rank: Ranking
    mask: int
    draft_steps: int
    forwards: int = 0
    accepted: int = 0
    finished: list[bool] = field(default_factory=list)

    def _ask(self, canvases: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
        self.forwards += 1
        return [self.rank(scores) for scores in self.forward(canvases)]

    def _transfer(
        self, canvas: list[int], block: range, said: tuple[np.ndarray, np.ndarray], count: int
    ) -> list[int]:
        """The canvas with the surest of the block's masks filled, so many of them."""
        token, sure = said
        open_ = [i for i in block if canvas[i] == self.mask]
        chosen = sorted(open_, key=lambda i: -sure[i])[:count]
        return [int(token[i]) if i in chosen else given for i, given in enumerate(canvas)]

    def block(self, canvas: list[int], block: range, shares: Sequence[int]) -> list[int]:
        """The canvas with a block filled in so many steps."""
        steps, step = len(shares), 0
        (said,) = self._ask([canvas])
        while step < steps:
            count = min(self.draft_steps, steps - step)
            drafts = [
                self._transfer(canvas, block, said, sum(shares[step : step + i + 1])) for i in range(count)
            ]
            if steps - step == 1:
                self.finished.append(False)
                return drafts[0]
            answers = self._ask(drafts)
            targets = [
                self._transfer(draft, block, answer, sum(shares[step + i + 1 : step + i + 2]))
                for i, (draft, answer) in enumerate(zip(drafts, answers, strict=True))
            ]
            matched = 0
            while matched + 1 < count and targets[matched] == drafts[matched + 1]:
                matched += 1
            self.accepted += matched
            canvas, said, step = drafts[matched], answers[matched], step + matched + 1
        self.finished.append(True)
        return canvas


class Drafting(FakeDenoiser):
    """A model of hashes that answers passes of several canvases: what each position likes, and noise of the
    whole canvas, `noise` times as large. Without noise every draft is right. Each position has a role.
    """

    role_head = True

    def __init__(self, vocab_size: int, seed: int = 0, noise: float = 1.0, never: Sequence[int] = ()) -> None:
        super().__init__(vocab_size, seed, scale=noise)
        self.bias[list(never)] = -30
        self.passes: list[list[PassRows]] = []

    def scores(self, ids: np.ndarray | Sequence[int], soft: np.ndarray | None = None) -> np.ndarray:
        """Scores [T, V]."""
        likes = np.random.default_rng(self.seed)
        own = likes.standard_normal((len(ids), self.vocab_size), dtype=np.float32)
        return super().scores(ids, soft) + 3 * own

    def roles(self, ids: np.ndarray | Sequence[int]) -> np.ndarray:
        """Scores [T, 5]."""
        return np.random.default_rng(self.seed).standard_normal((len(ids), 5), dtype=np.float32)

    def denoise(self, ids: np.ndarray, request: HeadRequest, soft: np.ndarray | None = None) -> HeadOutput:
        self.calls.append((ids.copy(), request, soft))
        return head(self.scores(ids, soft), request, self.embeddings, self.roles(ids))

    def run_rows(self, segments: Sequence[PassRows]) -> list[HeadOutput]:
        self.passes.append(list(segments))
        answers = []
        for each in segments:
            assert each.at == 0 and not each.keep and each.request is not None
            assert not any(seen.count for seen in each.seen or ())
            answers.append(head(self.scores(each.ids), each.request, roles=self.roles(each.ids)))
        return answers

    def project(self, request: HeadRequest) -> HeadOutput:
        """Of the last pass, which was of one canvas."""
        ids, _, soft = self.calls[-1]
        return head(self.scores(ids, soft), request)

    def forward(self, canvases: list[list[int]]) -> list[np.ndarray]:
        """Scores of each."""
        return [self.scores(canvas) for canvas in canvases]
