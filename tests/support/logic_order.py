"""A plain loop of a masked family that unmasks by logical roles, as arXiv 2603.26771 (LogicDiff) says:
premises, then connectives, then derived steps, then conclusions. Where the paper is silent: what is none of
these comes last, the surest of a role first, as many in a step as the family's schedule says, block after
block.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from edgekit.runtime.sampling.types import Floats, Ids
from support.fake_denoiser import FakeDenoiser, head

PREMISE, CONNECTIVE, DERIVED, CONCLUSION, FILLER = range(5)
#: Role scores [T, 5] of a canvas.
Roles = Callable[[Ids], Floats]


def random_roles(ids: Ids) -> Floats:
    """Of every canvas others."""
    return np.random.default_rng(np.asarray(ids)).standard_normal((len(ids), 5), dtype=np.float32)


class RoleDenoiser(FakeDenoiser):
    """Random scores, and roles by a function of the canvas."""

    role_head = True
    roles: Roles = staticmethod(random_roles)

    def denoise(self, ids: Ids, request: Any, soft: Floats | None = None) -> Any:
        self.calls.append((ids.copy(), request, soft))
        self.last = ids.copy()
        return head(self.scores(ids, soft), request, self.embeddings, self.roles(ids))


class ProjectingRoles(RoleDenoiser):
    """Keeps its last canvas, as an engine keeps the hidden states."""

    def project(self, request: Any) -> Any:
        return head(self.scores(self.last), request, self.embeddings, self.roles(self.last))


def unmasked(model: RoleDenoiser, prompt: list[int], given: dict[str, Any], shift: bool) -> list[list[int]]:
    """The answer's positions that each step unmasks, and behind them the answer: greedy, in float64."""
    o = SimpleNamespace(**given)
    x = np.array([*prompt, *[o.mask_token_id] * o.max_new_tokens])
    first, steps_of_all = len(prompt), []
    length = o.block_length or o.max_new_tokens
    for begin in range(first, len(x), length):
        steps = o.steps * length // o.max_new_tokens
        times = torch.linspace(1, getattr(o, "eps", 0), steps + 1)
        for step in range(steps):
            where = [i for i in range(begin, begin + length) if x[i] == o.mask_token_id]
            if shift:
                count = len(where)
                if step < steps - 1:
                    count = int(count * (1 - times[step + 1] / times[step]))
            else:
                count = length // steps + (step < length % steps)
            if not count:
                continue
            logits = torch.from_numpy(model.scores(x)).double()
            if getattr(o, "cfg_scale", 0):
                blank = x.copy()
                blank[:first] = o.mask_token_id
                other = torch.from_numpy(model.scores(blank)).double()
                logits = other + (o.cfg_scale + 1) * (logits - other)
            roles = model.roles(x)
            if shift:
                logits, roles = (t[[0, *range(len(x) - 1)]] for t in (logits, roles))
            p = logits.softmax(-1).numpy()
            best = p.argmax(-1)
            sure = {i: (p[i] * np.log(p[i])).sum() if shift else p[i].max() for i in where}
            last = getattr(o, "confidence_eos_eot_inf", False)
            ends = {i for i in where if last and best[i] in o.eos_token_ids}
            key = {i: (5, 0.0, i) if i in ends else (int(roles[i].argmax()), -sure[i], i) for i in where}
            taken = sorted(where, key=key.__getitem__)[:count]
            x[taken] = best[taken]
            steps_of_all.append([i - first for i in sorted(taken)])
    return [*steps_of_all, x[first:].tolist()]
