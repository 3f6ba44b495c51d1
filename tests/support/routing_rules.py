"""Rules of routing that no family has yet, put into one that has experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgekit.export.models import transformer
from edgekit.export.models.base import Weights, linear, mixture, route

_SIGMOID = {"k": 3, "score": "sigmoid", "normalize": True, "scale": 2.5}
RULES: dict[str, dict[str, Any]] = {
    "groups": _SIGMOID | {"groups": 4, "kept_groups": 2},
    "blocks": _SIGMOID | {"capacity": 5, "block": 4},
}
#: Of a checkpoint of LLaDA-MoE: as many experts as a head has channels, so that vectors of norms can stand
#: for the bias and the scales of a router, which the family does not have.
EXPERTS: dict[str, Any] = {"num_experts": 16, "num_experts_per_tok": 3, "num_hidden_layers": 2}


def use_rule(name: str, patch: pytest.MonkeyPatch) -> None:
    """Have layers of LLaDA-MoE route by a rule, with a bias and a scale for each expert."""

    def feed_forward(self: Any, h: torch.Tensor, w: Weights) -> torch.Tensor:
        flat = h.flatten(0, 1)
        logits = linear(flat, w, "router", act_bits=16).float()
        bias, own = w["self_attn.q_norm.weight"], w["self_attn.k_norm.weight"]
        index, weight = route(logits, bias=bias, expert_scale=own, **RULES[name])
        return mixture(flat, index, weight.to(flat.dtype), w, self.activation).view_as(h)

    (layer,) = (each for each in vars(transformer).values() if hasattr(each, "feed_forward"))
    patch.setattr(layer, "feed_forward", feed_forward)
