"""A model of hashes that shows what a row has seen: for procedures that decode block by block.

What is kept of a row stands for its token, its position and everything that it saw, so an answer differs as
soon as anything was encoded in another way than a reference says. `HashSequence` is what `drive` takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edgekit.runtime.sampling import HeadOutput, HeadRequest, PassRows

Sign = bytes


@dataclass
class HashModel:
    """Scores of `vocabulary` tokens: what a position likes, and noise of what its row has seen, `noise`
    times as large."""

    vocabulary: int = 13
    noise: float = 1.0
    seed: int = 0
    shift: bool = False  # rows of a canvas predict the position behind their own
    mask: int = 12  # which it never predicts

    def group(self, before: Sequence[Sign], ids: Sequence[int], at: int) -> list[Sign]:
        """Signs of rows that see all of `before` and each other."""
        seen = b"".join(sorted(before)) + np.asarray(ids, np.int64).tobytes()
        digest = hashlib.blake2b(seen, digest_size=16).digest()
        return [
            hashlib.blake2b(digest + np.array([token, at + i, self.seed]).tobytes(), digest_size=16).digest()
            for i, token in enumerate(ids)
        ]

    def text(self, before: Sequence[Sign], ids: Sequence[int], at: int, block: int) -> list[Sign]:
        """Signs of text in blocks behind `before`."""
        found: list[Sign] = []
        for start in range(0, len(ids), block):
            found += self.group([*before, *found], ids[start : start + block], at + start)
        return found

    def logits(self, sign: Sign, position: int) -> np.ndarray:
        """Scores [V] of a row that predicts a position."""
        likes = np.random.default_rng([self.seed, position]).normal(size=self.vocabulary)
        heard = np.random.default_rng(np.frombuffer(sign, np.uint64)).normal(size=self.vocabulary)
        scores = (3 * likes + self.noise * heard).astype(np.float32)
        scores[self.mask] = -100
        return scores

    def rows(self, signs: Sequence[Sign], at: int, causal: bool) -> np.ndarray:
        """Scores [T, V] of rows of a pass."""
        ahead = 1 if causal or self.shift else 0
        return np.stack([self.logits(sign, at + i + ahead) for i, sign in enumerate(signs)])


def head(logits: np.ndarray, request: HeadRequest) -> HeadOutput:
    """What a vocabulary head says of scores [T, V]."""
    z = logits if request.rows is None else logits[request.rows]
    z = (z / np.float32(request.temperature)).astype(np.float32)
    top = z.max(-1, keepdims=True)
    e = np.exp(z - top)
    best = z.argmax(-1)
    p = (e / e.sum(-1, keepdims=True)).astype(np.float64)
    out = HeadOutput(
        argmax=best.astype(np.int64),
        others=(e.sum(-1) - 1).astype(np.float32),
        entropy=-(p * np.log(np.maximum(p, 1e-38))).sum(-1).astype(np.float32),
        log_z=(top[:, 0] + np.log(e.sum(-1))).astype(np.float32),
    )
    if request.gumbel is not None:
        noise = request.gumbel(0, z.shape[1]) * np.float32(request.gumbel_scale)
        out.sample = (z + noise).argmax(-1).astype(np.int64)
        out.sample_prob = (e / e.sum(-1, keepdims=True))[np.arange(len(z)), out.sample].astype(np.float32)
    if request.top_k:
        order = np.argsort(-z, -1, kind="stable")[:, : request.top_k]
        out.top_ids = order.astype(np.int64)
        out.top_z = np.take_along_axis(z, order, -1).astype(np.float32)
    if request.logits:
        out.logits = z
    return out


@dataclass
class HashSequence:
    """A sequence over a HashModel, which encodes text in blocks of `block` rows."""

    model: HashModel
    block: int = 1
    kept: list[Sign] = field(default_factory=list)
    text: list[int] = field(default_factory=list)
    pieces: list[np.ndarray] = field(default_factory=list)
    uncached: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    passes: list[list[PassRows]] = field(default_factory=list)
    hidden_size: int = 0

    @property
    def vocab_size(self) -> int:
        return self.model.vocabulary

    @property
    def prefix_length(self) -> int:
        return len(self.kept)

    def reset(self) -> None:
        self.crop(0)

    def crop(self, length: int) -> None:
        del self.kept[length:], self.text[length:]
        self.uncached = np.empty(0, np.int64)

    def prefill(self, ids: np.ndarray) -> None:
        self.kept += self.model.text(self.kept, ids.tolist(), len(self.kept), self.block)
        self.text += ids.tolist()

    def denoise(self, ids: np.ndarray, request: HeadRequest, soft: object = None) -> HeadOutput:
        raise AssertionError("procedures of blocks ask for passes of segments")

    def run_rows(self, segments: Sequence[PassRows]) -> list[HeadOutput]:
        self.passes.append(list(segments))
        own: list[list[Sign]] = []
        answers = []
        for each in segments:
            ids = each.ids.tolist()
            before = list(self.kept[: each.at]) if each.seen is None else []
            for seen in each.seen or ():
                rows = self.kept if seen.segment is None else own[seen.segment]
                assert seen.first + seen.count <= len(rows)
                before += rows[seen.first : seen.first + seen.count]
            signs = (
                self.model.text(before, ids, each.at, each.block)
                if each.block
                else self.model.group(before, ids, each.at)
            )
            own.append(signs)
            if each.request is not None:
                answers.append(head(self.model.rows(signs, each.at, each.block == 1), each.request))
        for each, signs in zip(segments, own, strict=True):
            if each.keep:
                assert each.at <= len(self.kept)
                self.kept[each.at :] = signs
                self.text[each.at :] = each.ids.tolist()
                done = each.at + len(signs)
                assert done
                self.uncached = np.empty(0, np.int64)
        return answers
