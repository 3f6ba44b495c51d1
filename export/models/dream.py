"""Dream-7B, Dream-Coder-7B, DiffuCoder-7B (`Dream`): Qwen2 layers with q/k/v biases, a full mask, and
logits shifted by one.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import config as c
from edgekit.export.models.base import Architecture, LayerSpec, WeightSpec, matrix, rope_default, vector
from edgekit.export.models.config import Key, integer, only
from edgekit.export.models.transformer import PreNormLayer

#: Defaults of DreamConfig, which are those of Qwen2Config.
SCHEMA = c.Schema(
    {
        "vocab_size": Key(integer(high=c.MOST_TOKENS), 151936),
        "hidden_size": Key(integer(), 4096),
        "intermediate_size": Key(integer(), 22016),
        "num_hidden_layers": Key(integer(high=c.MOST_LAYERS), 32),
        "num_attention_heads": Key(integer(), 32),
        "num_key_value_heads": Key(integer(), 32, None),  # null: as many as attention heads
        "head_dim": Key(integer(), None),  # hidden_size / num_attention_heads
        "hidden_act": Key(only("silu", "swish"), "silu"),
        "rms_norm_eps": Key(c.RMS_EPS, 1e-6),
        "max_position_embeddings": Key(integer(high=c.MOST_POSITIONS), 32768),
        "tie_word_embeddings": Key(c.FLAG, False),
        "rope_theta": Key(c.ROPE_THETA, 10000.0),
        **c.PLAIN_ROPE,
        "partial_rotary_factor": Key(only(1), 1, 1),
        "use_sliding_window": Key(only(False), False),
        "layer_types": Key(
            c.Kind(
                "only full_attention is supported",
                lambda v: isinstance(v, list) and all(x == "full_attention" for x in v),
            ),
            None,
            None,
        ),
        "architectures": Key(c.STRINGS, None, None),
        "mask_token_id": c.TOKEN,
        "eos_token_id": c.TOKEN,
        "pad_token_id": c.TOKEN,
        "bos_token_id": c.TOKEN,
    },
    # A window has no effect unless it is used; biases are where this family has them, whatever
    # attention_bias says.
    c.NO_EFFECT | {"sliding_window", "max_window_layers", "attention_bias", "mlp_bias"},
)


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
    hidden, num_heads, vocab = v["hidden_size"], v["num_attention_heads"], v["vocab_size"]
    kv_heads = num_heads if v["num_key_value_heads"] is None else v["num_key_value_heads"]
    head_dim = v["head_dim"] or c.divided(hidden, num_heads, "hidden_size", "num_attention_heads")
    c.check_heads(num_heads, kv_heads, head_dim)
    width, eps, tied = v["intermediate_size"], v["rms_norm_eps"], v["tie_word_embeddings"]
    module = PreNormLayer(num_heads, kv_heads, head_dim, eps)

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
            LayerSpec("dense", module, weights(i), (), kv_heads, head_dim, "full")
            for i in range(v["num_hidden_layers"])
        ),
        ropes={"full": rope_default(c.plain_rope_theta(v, config), head_dim)},
        embedding=matrix("embedding", vocab, hidden, "embedding", "model.embed_tokens.weight"),
        head=None if tied else matrix("head", vocab, hidden, "head", "lm_head.weight"),
        final=(vector("norm.weight", hidden, "model.norm.weight"),),
        shift_logits=True,
        max_positions=v["max_position_embeddings"],
        ignored=("lm_head.weight",) if tied else (),
        notes=SCHEMA.notes(config),
        defaults=c.token_defaults(v),
    )
