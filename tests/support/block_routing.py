"""The routing of LLaDA2.2 in numpy, by what is published of it, for a model of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def block_routing(
    logits: np.ndarray, bias: np.ndarray, k: int, capacity: int, block: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Chosen experts [T, k] and their weights, for router logits [T, E]. A block allows the `capacity`
    experts whose largest sigmoid plus bias, over its rows, are the largest. Of these each row takes its k
    largest, and weights them by their sigmoids alone, made to sum to `scale`.
    """
    wide = logits.astype(np.float64)
    score = 1 / (1 + np.exp(-wide))
    wanted = score + bias
    index = np.empty((len(logits), k), np.int64)
    for first in range(0, len(logits), block):
        rows = wanted[first : first + block]
        allowed = np.sort(np.argsort(-rows.max(0), kind="stable")[:capacity])
        best = np.argsort(-rows[:, allowed], axis=1, kind="stable")[:, :k]
        index[first : first + block] = allowed[best]
    weight = np.take_along_axis(score, index, 1)
    return index, weight / weight.sum(1, keepdims=True) * scale


def use_block_routing(model: Any, config: Mapping[str, Any]) -> None:
    """Have the routers of a GLM-4-MoE choose by blocks of one text."""

    def forward(router: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = hidden.view(-1, hidden.shape[-1]).float() @ router.weight.float().T
        index, weight = block_routing(
            logits.numpy(), router.e_score_correction_bias.numpy(), config["num_experts_per_tok"],
            config["expert_capacity"], config["block_size"], config["routed_scaling_factor"],
        )  # fmt: skip
        return logits, torch.from_numpy(weight).float(), torch.from_numpy(index)

    for layer in model.model.layers[config["first_k_dense_replace"] :]:
        layer.mlp.gate.forward = forward.__get__(layer.mlp.gate)
