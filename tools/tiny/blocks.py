"""Decoding with a block-causal model in three modes, many prompts at once: a plain reference without caches.

Text is causal, the active block behind it is bidirectional. The modes are those of Nemotron-Labs-Diffusion: a
token at a time; blocks of masks that are filled where the model is sure; blocks drafted in one pass and kept
as far as the causal pass agrees, which gives what a token at a time gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from edgekit.export.reference import MASKED, ReferenceModel


@dataclass
class Answer:
    """Answer ids, the end included, and the passes that they took. Encoding the prompt is no pass of its own
    where its logits give the first token.
    """

    ids: list[int] = field(default_factory=list)
    passes: int = 0


@dataclass(frozen=True)
class BlockDecoding:
    """Greedy decoding of `limit` tokens at most; an answer ends at one of `ends`."""

    model: ReferenceModel
    mask_id: int
    ends: frozenset[int]
    limit: int = 128
    block: int = 16

    @torch.no_grad()
    def logits(self, texts: Sequence[list[int]], blocks: Sequence[list[int]], causal: bool) -> list[Tensor]:
        """Logits [len(block), V] of each row's block behind its text."""
        longest = max(len(t) + len(b) for t, b in zip(texts, blocks, strict=True))
        ids = torch.zeros(len(texts), longest, dtype=torch.int64)
        positions = torch.zeros_like(ids)
        hidden = torch.ones(len(texts), 1, longest, longest, dtype=torch.bool).triu(1)
        for row, (text, block) in enumerate(zip(texts, blocks, strict=True)):
            pad, start = longest - len(text) - len(block), longest - len(block)
            ids[row, pad:] = torch.tensor(text + block)
            positions[row, pad:] = torch.arange(len(text) + len(block))
            hidden[row, :, :, :pad] = True
            if not causal:
                hidden[row, :, start:, start:] = False
        mask = torch.zeros(hidden.shape).masked_fill(hidden, MASKED)
        states = self.model.hidden(ids, positions=positions, mask=mask)
        return [self.model.head(states[row, longest - len(b) :]) for row, b in enumerate(blocks)]

    def _following(self, texts: Sequence[list[int]]) -> list[int]:
        """The token that the causal pass of each text predicts behind it."""
        last = self.logits([t[:-1] for t in texts], [t[-1:] for t in texts], causal=True)
        return [int(z[-1].argmax()) for z in last]

    def _run(
        self, prompts: Sequence[list[int]], advance: Callable[[list[list[int]], list[Answer]], None]
    ) -> list[Answer]:
        answers = [Answer() for _ in prompts]
        while open_rows := [i for i, a in enumerate(answers) if not self._over(a)]:
            rows = [answers[i] for i in open_rows]
            advance([prompts[i] + answers[i].ids for i in open_rows], rows)
            for answer in rows:
                end = next((i for i, token in enumerate(answer.ids) if token in self.ends), len(answer.ids))
                answer.ids = answer.ids[: min(end + 1, self.limit)]
        return answers

    def _over(self, answer: Answer) -> bool:
        return len(answer.ids) >= self.limit or bool(answer.ids and answer.ids[-1] in self.ends)

    def autoregressive(self, prompts: Sequence[list[int]]) -> list[Answer]:
        """A token at a time."""

        def advance(texts: list[list[int]], rows: list[Answer]) -> None:
            for row, token in zip(rows, self._following(texts), strict=True):
                row.ids.append(token)
                row.passes += 1

        return self._run(prompts, advance)

    def diffusion(self, prompts: Sequence[list[int]], threshold: float = 0.9) -> list[Answer]:
        """Blocks of masks behind a token that the causal pass of the text before them predicts: every pass
        fills those whose likeliest token has at least `threshold`, or the one that comes nearest. The causal
        passes count.
        """

        def advance(texts: list[list[int]], rows: list[Answer]) -> None:
            blocks = [[token] + [self.mask_id] * (self.block - 1) for token in self._following(texts)]
            # Not found by the mask's id: a model may choose it as a token.
            masked = [set(range(1, self.block)) for _ in texts]
            while active := [i for i, positions in enumerate(masked) if positions]:
                found = self.logits([texts[i] for i in active], [blocks[i] for i in active], causal=False)
                for i, z in zip(active, found, strict=True):
                    self._fill(blocks[i], masked[i], z, threshold)
                    rows[i].passes += 1
            for row, block in zip(rows, blocks, strict=True):
                row.ids += block
                row.passes += 1

        return self._run(prompts, advance)

    def _fill(self, block: list[int], masked: set[int], z: Tensor, threshold: float) -> None:
        probability, best = torch.softmax(z.float(), -1).max(-1)
        surest = max(sorted(masked), key=lambda i: float(probability[i]))
        for i in sorted(masked):
            if i == surest or probability[i] >= threshold:
                block[i] = int(best[i])
                masked.discard(i)

    def speculative(self, prompts: Sequence[list[int]]) -> list[Answer]:
        """Equal to `autoregressive`: after its first token, a block is drafted behind the known token, then
        verified causally, and kept up to where both differ, with the causal token there.
        """

        def advance(texts: list[list[int]], rows: list[Answer]) -> None:
            fresh = [i for i, row in enumerate(rows) if not row.ids]
            if fresh:
                for i, token in zip(fresh, self._following([texts[i] for i in fresh]), strict=True):
                    rows[i].ids.append(token)
                    rows[i].passes += 1
                return
            known = [t[:-1] for t in texts]
            blocks = [[t[-1], *[self.mask_id] * (self.block - 1)] for t in texts]
            drafts = self.logits(known, blocks, causal=False)
            blocks = [[b[0], *z[1:].argmax(-1).tolist()] for b, z in zip(blocks, drafts, strict=True)]
            for row, block, z in zip(rows, blocks, self.logits(known, blocks, causal=True), strict=True):
                verified = z.argmax(-1).tolist()
                kept = 0
                while kept + 1 < len(block) and verified[kept] == block[kept + 1]:
                    kept += 1
                row.ids += verified[: kept + 1]
                row.passes += 2

        return self._run(prompts, advance)
