"""LLaDA-8B (`llada`, dense): Llama layers with a full bidirectional mask. LLaDA-MoE shares the model type;
see llada_moe.py.

Stored names: `model.transformer.blocks.{i}.ff_out` is a layer's down projection, `model.transformer.ff_out`
the vocabulary head.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models.base import Architecture, LayerSpec, WeightSpec, matrix, rope_default, vector
from edgekit.export.models.config import positive, require, unsupported_unless
from edgekit.export.models.transformer import PreNormLayer


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `llada` config.json.

    Raises:
        UnsupportedModel: a field is missing, or asks for something that no released checkpoint uses.
    """
    if config.get("num_experts") or "LLaDAMoEModelLM" in (config.get("architectures") or ()):
        from edgekit.export.models import llada_moe

        return llada_moe.architecture(config, dtype)
    for name, value in {
        "block_type": "llama",
        "rope": True,
        "alibi": False,
        "layer_norm_type": "rms",
        "include_bias": False,
        "include_qkv_bias": False,
        "attention_layer_norm": False,
        "input_emb_norm": False,
        "scale_logits": False,
        "block_group_size": 1,
        "activation_type": "silu",
    }.items():
        unsupported_unless(config, name, value)
    hidden, num_heads = positive(config, "d_model"), positive(config, "n_heads")
    kv_heads = config.get("n_kv_heads") or num_heads
    vocab = config.get("embedding_size") or positive(config, "vocab_size")
    intermediate = config.get("mlp_hidden_size") or positive(config, "mlp_ratio") * hidden
    if hidden % num_heads or num_heads % kv_heads:
        raise UnsupportedModel(
            f"config.json: d_model {hidden}, n_heads {num_heads}, n_kv_heads {kv_heads} do not divide"
        )
    head_dim, eps = hidden // num_heads, float(require(config, "rms_norm_eps"))
    module = PreNormLayer(num_heads, kv_heads, head_dim, eps)
    tied = bool(config.get("weight_tying"))

    def weights(i: int) -> tuple[WeightSpec, ...]:
        p, kv = f"model.transformer.blocks.{i}.", kv_heads * head_dim
        return (
            vector("input_layernorm.weight", hidden, p + "attn_norm.weight"),
            matrix("self_attn.q_proj", hidden, hidden, "attention", p + "q_proj.weight"),
            matrix("self_attn.k_proj", kv, hidden, "attention", p + "k_proj.weight"),
            matrix("self_attn.v_proj", kv, hidden, "attention", p + "v_proj.weight"),
            matrix("self_attn.o_proj", hidden, hidden, "attention", p + "attn_out.weight"),
            vector("post_attention_layernorm.weight", hidden, p + "ff_norm.weight"),
            matrix("mlp.gate_proj", intermediate, hidden, "mlp", p + "ff_proj.weight"),
            matrix("mlp.up_proj", intermediate, hidden, "mlp", p + "up_proj.weight"),
            matrix("mlp.down_proj", hidden, intermediate, "mlp", p + "ff_out.weight"),
        )

    return Architecture(
        family="llada",
        sampler="llada",
        hidden_size=hidden,
        vocab_size=vocab,
        norm_eps=eps,
        layers=tuple(
            LayerSpec("dense", module, weights(i), (), kv_heads, head_dim, "full")
            for i in range(positive(config, "n_layers"))
        ),
        ropes={"full": rope_default(float(require(config, "rope_theta")), head_dim)},
        embedding=matrix("embedding", vocab, hidden, "embedding", "model.transformer.wte.weight"),
        head=None if tied else matrix("head", vocab, hidden, "head", "model.transformer.ff_out.weight"),
        final=(vector("norm.weight", hidden, "model.transformer.ln_f.weight"),),
        ignored=("model.transformer.ff_out.weight",) if tied else (),
        defaults={
            k: config[k]
            for k in ("mask_token_id", "eos_token_id", "pad_token_id")
            if config.get(k) is not None
        },
    )
