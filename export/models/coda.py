"""CoDA 1.7B (`CoDA`): Qwen3 layers, a full mask, and logits shifted by one."""

from __future__ import annotations

from typing import Any

from edgekit.export.models import config as c
from edgekit.export.models import qwen
from edgekit.export.models.base import Architecture
from edgekit.export.models.config import Key, integer

#: The released checkpoints' vocabulary, and ids that their config.json may leave out.
RELEASED_VOCAB = 151936
RELEASED_IDS = {"mask_token_id": 151669, "pad_token_id": 151643}
SCHEMA = c.Schema(
    {key: kind for key, kind in qwen.QWEN3.items() if key != "tie_word_embeddings"}
    | {"head_dim": Key(integer(), None)},  # hidden_size / num_attention_heads
    # Its class has a head of its own, whatever tie_word_embeddings says or leaves out.
    qwen.NO_EFFECT | {"sampling_eps", "tie_word_embeddings"},
)


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `CoDA` config.json.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    v = SCHEMA.read(config) | {"tie_word_embeddings": False}
    ids = RELEASED_IDS if v["vocab_size"] == RELEASED_VOCAB else {}
    return qwen.model(
        qwen.decoder(v, qwen3=True), v, config, SCHEMA, family="coda", sampler="dream", shift_logits=True,
        defaults={"alg": "entropy"} | ids | c.token_defaults(v),
    )  # fmt: skip
