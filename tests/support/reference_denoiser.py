"""The float reference model behind the interface of the denoising loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from edgekit.export.reference import PrefixKV, ReferenceModel
from edgekit.export.role_head import RoleHead
from edgekit.runtime.sampling.asks import PassRows
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids
from support.fake_denoiser import head


class ReferenceDenoiser:
    """Implements `Denoiser`; everything in float32, full scores, no streaming."""

    def __init__(self, model: ReferenceModel, roles: RoleHead | None = None) -> None:
        self.model, self.roles, self.role_head = model, roles, roles is not None
        self.vocab_size, self.prefix_block = model.architecture.vocab_size, model.architecture.prefix_block
        self.hidden_size = model.embedding.shape[1]
        self.reset()

    def reset(self) -> None:
        self.prefix: PrefixKV | None = None
        self.prefix_length = 0
        self.pieces: list[Ids] = []
        self.uncached: Ids = np.empty(0, np.int64)

    @torch.no_grad()
    def prefill(self, ids: Ids) -> None:
        if not len(ids):
            return
        self.prefix = self.model.encode(torch.from_numpy(ids)[None], self.prefix)
        self.prefix_length += len(ids)
        self.pieces.append(ids)

    @torch.no_grad()
    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        conditioning = None if soft is None else torch.from_numpy(soft)[None]
        hidden = self.model.hidden(torch.from_numpy(ids)[None], self.prefix, conditioning)
        roles = None if self.roles is None else self.roles.scores(hidden[0]).numpy()
        logits = self.model.head(hidden)[0].numpy()
        return head(logits, request, self.model.embedding.numpy(), roles)

    def run_rows(self, segments: Sequence[PassRows]) -> list[HeadOutput]:
        """Finished text, then canvases, each of which sees all that is kept before it."""
        answers = []
        for each in segments:
            before = self.prefix_length if each.seen is None else sum(seen.count for seen in each.seen)
            assert each.at == before == self.prefix_length
            if each.request is not None and each.keep:
                # Causal text, of which its last row predicts: that sees what a canvas of one row sees.
                assert each.block == self.prefix_block == 1
                assert list(each.request.rows or ()) == [len(each.ids) - 1]
                self.prefill(each.ids[:-1])
                answers.append(self.denoise(each.ids[-1:], replace(each.request, rows=None)))
                self.prefill(each.ids[-1:])
            elif each.request is not None:
                assert each.block == 0
                answers.append(self.denoise(each.ids, each.request))
            else:
                assert each.block == self.prefix_block and each.keep
                self.prefill(each.ids)
        return answers
