"""Dream-7B, Dream-Coder-7B, DiffuCoder-7B (`Dream`): Qwen2 layers with q/k/v biases, a full mask, and
logits shifted by one.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import config as c
from edgekit.export.models import qwen
from edgekit.export.models.base import Architecture

#: Defaults of DreamConfig, which are those of Qwen2Config.
SCHEMA = c.Schema(qwen.QWEN2, qwen.QWEN2_NO_EFFECT)


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `Dream` config.json.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    v = SCHEMA.read(config)
    if "DreamForCausalLM" in (v["architectures"] or ()):
        raise UnsupportedModel(
            "config.json: architectures is DreamForCausalLM, whose logits are not shifted; "
            "only 'DreamModel' is supported"
        )
    layers = qwen.decoder(v, qwen3=False)
    return qwen.model(layers, v, config, SCHEMA, family="dream", sampler="dream", shift_logits=True)
