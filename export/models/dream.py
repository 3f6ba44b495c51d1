"""Dream-7B, Dream-Coder-7B, DiffuCoder-7B (`Dream`): Qwen2 layers with q/k/v biases, a full mask, and
logits shifted by one.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models.base import Architecture, LayerSpec, WeightSpec, matrix, rope_default, vector
from edgekit.export.models.config import positive, require, rope_theta, unsupported_unless
from edgekit.export.models.transformer import PreNormLayer


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `Dream` config.json.

    Raises:
        UnsupportedModel: a field is missing, or asks for rope scaling or a sliding window.
    """
    hidden, num_heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or num_heads
    head_dim = config.get("head_dim") or hidden // num_heads
    width, vocab = positive(config, "intermediate_size"), positive(config, "vocab_size")
    layers, eps = positive(config, "num_hidden_layers"), float(require(config, "rms_norm_eps"))
    unsupported_unless(config, "hidden_act", "silu")
    unsupported_unless(config, "rope_scaling", None)
    unsupported_unless(config, "use_sliding_window", False)
    if num_heads % kv_heads:
        raise UnsupportedModel(
            f"config.json: {num_heads} attention heads do not divide over {kv_heads} KV heads"
        )
    module = PreNormLayer(num_heads, kv_heads, head_dim, eps)
    tied = bool(config.get("tie_word_embeddings"))

    def weights(i: int) -> tuple[WeightSpec, ...]:
        p = f"model.layers.{i}."
        q, kv = num_heads * head_dim, kv_heads * head_dim
        return (
            vector("input_layernorm.weight", hidden, p + "input_layernorm.weight"),
            matrix("self_attn.q_proj", q, hidden, "attention", p + "self_attn.q_proj.weight"),
            vector("self_attn.q_proj.bias", q, p + "self_attn.q_proj.bias"),
            matrix("self_attn.k_proj", kv, hidden, "attention", p + "self_attn.k_proj.weight"),
            vector("self_attn.k_proj.bias", kv, p + "self_attn.k_proj.bias"),
            matrix("self_attn.v_proj", kv, hidden, "attention", p + "self_attn.v_proj.weight"),
            vector("self_attn.v_proj.bias", kv, p + "self_attn.v_proj.bias"),
            matrix("self_attn.o_proj", hidden, q, "attention", p + "self_attn.o_proj.weight"),
            vector("post_attention_layernorm.weight", hidden, p + "post_attention_layernorm.weight"),
            matrix("mlp.gate_proj", width, hidden, "mlp", p + "mlp.gate_proj.weight"),
            matrix("mlp.up_proj", width, hidden, "mlp", p + "mlp.up_proj.weight"),
            matrix("mlp.down_proj", hidden, width, "mlp", p + "mlp.down_proj.weight"),
        )

    return Architecture(
        family="dream",
        sampler="dream",
        hidden_size=hidden,
        vocab_size=vocab,
        norm_eps=eps,
        layers=tuple(
            LayerSpec("dense", module, weights(i), (), kv_heads, head_dim, "full") for i in range(layers)
        ),
        ropes={"full": rope_default(rope_theta(config), head_dim)},
        embedding=matrix("embedding", vocab, hidden, "embedding", "model.embed_tokens.weight"),
        head=None if tied else matrix("head", vocab, hidden, "head", "lm_head.weight"),
        final=(vector("norm.weight", hidden, "model.norm.weight"),),
        shift_logits=True,
        ignored=("lm_head.weight",) if tied else (),
        defaults={
            k: config[k]
            for k in ("mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
            if config.get(k) is not None
        },
    )
