"""dllm's small Qwens (`a2d-qwen2`, `a2d-qwen3`): Qwen2 and Qwen3 that were trained on with another mask, a
full one (mdlm) or one by blocks (bd3lm). Logits are not shifted.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import config as c
from edgekit.export.models import qwen
from edgekit.export.models.base import Architecture
from edgekit.export.models.config import Key, integer, only

OWN = {
    # Written by no library: which of the two a checkpoint is stands in its name alone.
    "decoding": Key(only("mdlm", "bd3lm"), None, None),
    "block_size": Key(integer(high=c.MOST_POSITIONS), 32, 32),
}
SCHEMAS = {
    "a2d-qwen2": c.Schema(qwen.QWEN2 | OWN, qwen.QWEN2_NO_EFFECT),
    "a2d-qwen3": c.Schema(qwen.QWEN3 | OWN, qwen.NO_EFFECT),
}


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from an `a2d-qwen2` or `a2d-qwen3` config.json.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    schema, qwen3 = SCHEMAS[config["model_type"]], config["model_type"] == "a2d-qwen3"
    v = schema.read(config)
    layers = qwen.decoder(v, qwen3=qwen3)
    if v["decoding"] is None:
        raise UnsupportedModel(
            "config.json does not say which mask the model was trained with, nor does the checkpoint's name; "
            "give --decoding mdlm (a full one) or --decoding bd3lm (by blocks)"
        )
    if v["decoding"] == "mdlm":
        return qwen.model(layers, v, config, schema, family="a2d", sampler="llada")
    block = v["block_size"]
    return qwen.model(
        layers, v, config, schema, family="a2d", sampler="block", prefix_block=block,
        defaults={"block_length": block, "steps": block, "align": "prompt"} | c.token_defaults(v),
    )  # fmt: skip
