"""SDAR and TraDo, dense (`sdar`) and with experts (`sdar_moe`): Qwen3 and Qwen3-MoE. Positions of a block see
each other and all blocks before; logits are not shifted.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.models import config as c
from edgekit.export.models import qwen
from edgekit.export.models.base import Architecture
from edgekit.export.models.config import Key, integer, only

#: The released checkpoints' vocabulary, and ids that their config.json may leave out.
RELEASED_VOCAB = 151936
RELEASED_IDS = {"mask_token_id": 151669, "eos_token_id": [151645, 151643], "pad_token_id": 151643}
#: Defaults of SDARConfig, which are those of Qwen3Config.
_KEYS = qwen.QWEN3 | {
    "block_size": Key(integer(high=c.MOST_POSITIONS), 4, 4),
    # A prompt that is causal in a model whose answer is not.
    "use_regular_causal": Key(only(False), False, False),
}
SCHEMA = c.Schema(_KEYS, qwen.NO_EFFECT)
#: And of Qwen3MoeConfig, but for norm_topk_prob: its default is false, released configs say true.
MOE = c.Schema(
    _KEYS
    | {
        "head_dim": Key(integer(), None, None),  # hidden_size / num_attention_heads
        "num_experts": Key(integer(high=c.MOST_EXPERTS)),
        "num_experts_per_tok": Key(integer(high=c.MOST_EXPERTS)),
        "moe_intermediate_size": Key(integer()),
        "norm_topk_prob": Key(c.FLAG),
        "decoder_sparse_step": Key(only(1), 1),
        "mlp_only_layers": Key(
            c.Kind("experts in every layer are supported alone: expected an empty list", lambda v: v == []),
            [],
            [],
        ),
    },
    qwen.NO_EFFECT | {"output_router_logits", "router_aux_loss_coef"},
)


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `sdar` or `sdar_moe` config.json.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    family = config["model_type"]
    schema = SCHEMA if family == "sdar" else MOE
    v = schema.read(config)
    experts = None
    if family == "sdar_moe":
        experts = qwen.Experts(
            v["num_experts"], v["num_experts_per_tok"], v["moe_intermediate_size"], v["norm_topk_prob"]
        )
        c.check_experts(v["num_hidden_layers"], experts.count, experts.top_k, "num_experts_per_tok")
    block = v["block_size"]
    ids = (RELEASED_IDS if v["vocab_size"] == RELEASED_VOCAB else {}) | c.token_defaults(v)
    return qwen.model(
        qwen.decoder(v, qwen3=True, experts=experts), v, config, schema,
        family=family, sampler="block", prefix_block=block,
        defaults={"block_length": block, "steps": block, "threshold": 0.85, "align": "position"} | ids,
    )  # fmt: skip
