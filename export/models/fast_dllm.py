"""Fast_dLLM_v2 1.5B, 7B (`Fast_dLLM_Qwen`): Qwen2 with q/k/v biases. Positions of a block see each other and
all blocks before; logits are shifted by one.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.models import config as c
from edgekit.export.models import qwen
from edgekit.export.models.base import Architecture
from edgekit.export.models.config import Key, integer

#: What the model's own generation masks with, and parts a block into; its config.json names neither.
MASK, SMALL_BLOCK = 151665, 8
SCHEMA = c.Schema(qwen.QWEN2 | {"bd_size": Key(integer(high=c.MOST_POSITIONS), 32, 32)}, qwen.QWEN2_NO_EFFECT)


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `Fast_dLLM_Qwen` config.json.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    v = SCHEMA.read(config)
    block = v["bd_size"]
    small = SMALL_BLOCK if block % SMALL_BLOCK == 0 else block
    mask = {"mask_token_id": MASK} if v["vocab_size"] > MASK else {}
    return qwen.model(
        qwen.decoder(v, qwen3=False), v, config, SCHEMA,
        family="fast_dllm", sampler="block", prefix_block=block, shift_logits=True,
        defaults={
            "block_length": block, "steps": block, "threshold": 0.9, "small_block_length": small,
            "align": "position",
        }
        | mask | c.token_defaults(v),
    )  # fmt: skip
