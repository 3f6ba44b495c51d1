"""Checkpoints of LLaDA2 for each of its rules of routing: groups of 2.0 and 2.1, blocks of 2.2."""

from __future__ import annotations

from typing import Any

_SMALL: dict[str, Any] = {"num_hidden_layers": 2, "num_experts": 16}
RULES: dict[str, dict[str, Any]] = {
    "groups": _SMALL | {"n_group": 4, "topk_group": 2, "block_size": 4},
    "blocks": _SMALL | {"expert_capacity": 5, "block_size": 4},
}
