"""LLaDA-MoE-7B-A1B (`llada` on the hub, with num_experts): pre-norm layers, per-head q/k norm, softmax
router without renormalisation.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models.base import Architecture, LayerSpec, WeightSpec, matrix, rope_default, vector
from edgekit.export.models.config import positive, require, unsupported_unless
from edgekit.export.models.transformer import PreNormLayer

#: The released checkpoints' vocabulary, and ids that their config.json may leave out.
RELEASED_VOCAB = 157184
RELEASED_IDS = {"mask_token_id": 156895, "eos_token_id": 156892, "pad_token_id": 156892}


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a LLaDA-MoE config.json.

    Raises:
        UnsupportedModel: a field is missing, or asks for shared experts, dense layers or a router bias.
    """
    hidden, num_heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or num_heads
    head_dim = config.get("head_dim") or hidden // num_heads
    experts, top_k = positive(config, "num_experts"), positive(config, "num_experts_per_tok")
    width, vocab = positive(config, "expert_intermediate_size"), positive(config, "vocab_size")
    layers, eps = positive(config, "num_hidden_layers"), float(require(config, "rms_norm_eps"))
    unsupported_unless(config, "qk_layernorm", True)
    unsupported_unless(config, "hidden_act", "silu")
    unsupported_unless(config, "rope_scaling", None)
    if config.get("shared_expert_intermediate_size"):
        raise UnsupportedModel(
            "config.json: shared_expert_intermediate_size is set; a shared expert is not supported"
        )
    if not all(config.get("moe_layer_freq") or [1]):
        raise UnsupportedModel(
            "config.json: moe_layer_freq has dense layers; experts in every layer are supported alone"
        )
    if top_k > experts or num_heads % kv_heads:
        raise UnsupportedModel(
            f"config.json: {top_k} of {experts} experts, {num_heads} heads over {kv_heads} KV heads: "
            "not possible"
        )
    module = PreNormLayer(num_heads, kv_heads, head_dim, eps, qk_norm=True, top_k=top_k)
    tied = bool(config.get("tie_word_embeddings"))

    def weights(i: int) -> tuple[WeightSpec, ...]:
        p = f"model.layers.{i}."
        q, kv = num_heads * head_dim, kv_heads * head_dim
        return (
            vector("input_layernorm.weight", hidden, p + "input_layernorm.weight"),
            matrix("self_attn.q_proj", q, hidden, "attention", p + "self_attn.q_proj.weight"),
            matrix("self_attn.k_proj", kv, hidden, "attention", p + "self_attn.k_proj.weight"),
            matrix("self_attn.v_proj", kv, hidden, "attention", p + "self_attn.v_proj.weight"),
            vector("self_attn.q_norm.weight", head_dim, p + "self_attn.q_norm.weight"),
            vector("self_attn.k_norm.weight", head_dim, p + "self_attn.k_norm.weight"),
            matrix("self_attn.o_proj", hidden, q, "attention", p + "self_attn.o_proj.weight"),
            vector("post_attention_layernorm.weight", hidden, p + "post_attention_layernorm.weight"),
            matrix("router", experts, hidden, "router", p + "mlp.gate.weight"),
        )

    def expert(i: int, e: int) -> tuple[WeightSpec, ...]:
        p = f"model.layers.{i}.mlp.experts.{e}."
        return (
            matrix("gate_up", 2 * width, hidden, "experts", p + "gate_proj.weight", p + "up_proj.weight"),
            matrix("down", hidden, width, "experts", p + "down_proj.weight"),
        )

    return Architecture(
        family="llada_moe",
        sampler="llada",
        hidden_size=hidden,
        vocab_size=vocab,
        norm_eps=eps,
        layers=tuple(
            LayerSpec(
                "moe",
                module,
                weights(i),
                tuple(expert(i, e) for e in range(experts)),
                kv_heads,
                head_dim,
                "full",
            )
            for i in range(layers)
        ),
        ropes={"full": rope_default(float(require(config, "rope_theta")), head_dim)},
        embedding=matrix("embedding", vocab, hidden, "embedding", "model.embed_tokens.weight"),
        head=None if tied else matrix("head", vocab, hidden, "head", "lm_head.weight"),
        final=(vector("norm.weight", hidden, "model.norm.weight"),),
        ignored=("lm_head.weight",) if tied else (),
        defaults=(RELEASED_IDS if vocab == RELEASED_VOCAB else {})
        | {
            k: config[k]
            for k in ("mask_token_id", "eos_token_id", "pad_token_id")
            if config.get(k) is not None
        },
    )
