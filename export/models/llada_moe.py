"""LLaDA-MoE-7B-A1B (`llada` on the hub, with num_experts): pre-norm layers, per-head q/k norm, softmax
router without renormalisation.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import config as c
from edgekit.export.models.base import Architecture, matrix, rope_default, vector
from edgekit.export.models.config import Key, integer, only
from edgekit.export.models.transformer import Decoder

#: The released checkpoints' vocabulary, and ids that their config.json may leave out.
RELEASED_VOCAB = 157184
RELEASED_IDS = {"mask_token_id": 156895, "eos_token_id": 156892, "pad_token_id": 156892}


#: Defaults of the model's own class, where it has any that work: most of them are -1.
SCHEMA = c.Schema(
    {
        "vocab_size": Key(integer(high=c.MOST_TOKENS)),
        "hidden_size": Key(integer()),
        "expert_intermediate_size": Key(integer()),
        "num_hidden_layers": Key(integer(high=c.MOST_LAYERS)),
        "num_attention_heads": Key(integer()),
        "num_key_value_heads": Key(integer(), None, None),  # as many as attention heads
        "head_dim": Key(integer(), None, None),  # hidden_size / num_attention_heads
        "num_experts": Key(integer(high=c.MOST_EXPERTS)),
        "num_experts_per_tok": Key(integer(high=c.MOST_EXPERTS)),
        "hidden_act": Key(only("silu", "swish"), "silu"),
        "rms_norm_eps": Key(c.RMS_EPS, 1e-5),
        "max_position_embeddings": Key(integer(high=c.MOST_POSITIONS), 4096),
        "tie_word_embeddings": Key(c.FLAG, False, False),
        "rope_theta": Key(c.ROPE_THETA),
        **c.PLAIN_ROPE,
        "partial_rotary_factor": Key(only(1), 1, 1),
        "attention_bias": Key(only(False), False, False),
        "clip_qkv": Key(only(None), None, None),
        "qk_layernorm": Key(only(True), False, False),
        "moe_layer_freq": Key(
            c.Kind(
                "experts in every layer are supported alone: expected a list of ones",
                lambda v: isinstance(v, list) and all(type(x) is int and x == 1 for x in v),
            ),
            None,
            None,
        ),
        "shared_expert_intermediate_size": Key(only(0, -1), None, None),
        "moe_router_enable_expert_bias": Key(only(False), False, False),
        "moe_router_score_function": Key(only("softmax"), "softmax", "softmax"),
        "routed_scaling_factor": Key(only(1), 1, 1),
        "router_num_group": Key(only(-2, -1, 0, 1), None, None),
        "router_topk_group": Key(only(-2, -1, 0, 1), None, None),
        "mask_token_id": c.TOKEN,
        "eos_token_id": c.TOKEN,
        "pad_token_id": c.TOKEN,
    },
    # The class fixes norm_topk_prob to false, whatever the file says.
    c.NO_EFFECT
    | {"dense_intermediate_size", "norm_topk_prob", "output_router_logits", "router_aux_loss_coef"},
)


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a LLaDA-MoE config.json.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    v = c.read_needing_theta(SCHEMA, config)
    hidden, num_heads, vocab = v["hidden_size"], v["num_attention_heads"], v["vocab_size"]
    kv_heads = num_heads if v["num_key_value_heads"] is None else v["num_key_value_heads"]
    head_dim = v["head_dim"] or c.divided(hidden, num_heads, "hidden_size", "num_attention_heads")
    c.check_heads(num_heads, kv_heads, head_dim)
    experts, top_k, layers = v["num_experts"], v["num_experts_per_tok"], v["num_hidden_layers"]
    c.check_experts(layers, experts, top_k, "num_experts_per_tok")
    if v["moe_layer_freq"] and len(v["moe_layer_freq"]) != layers:
        raise UnsupportedModel(
            f"config.json: moe_layer_freq has {len(v['moe_layer_freq'])} entries for {layers} layers"
        )
    width, eps, tied = v["expert_intermediate_size"], v["rms_norm_eps"], v["tie_word_embeddings"]
    decoder = Decoder(
        hidden, num_heads, kv_heads, head_dim, width, eps, qk_norm=True, experts=experts, top_k=top_k
    )
    return Architecture(
        family="llada_moe",
        sampler="llada",
        hidden_size=hidden,
        vocab_size=vocab,
        norm_eps=eps,
        layers=decoder.layers(layers),
        ropes={"full": rope_default(c.plain_rope_theta(v, config), head_dim)},
        embedding=matrix("embedding", vocab, hidden, "embedding", "model.embed_tokens.weight"),
        head=None if tied else matrix("head", vocab, hidden, "head", "lm_head.weight"),
        final=(vector("norm.weight", hidden, "model.norm.weight"),),
        ignored=("lm_head.weight",) if tied else (),
        max_positions=v["max_position_embeddings"],
        notes=SCHEMA.notes(config),
        defaults=(RELEASED_IDS if vocab == RELEASED_VOCAB else {}) | c.token_defaults(v),
    )
