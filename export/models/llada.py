"""LLaDA-8B (`llada`, dense): Llama layers with a full bidirectional mask. LLaDA-MoE shares the model type;
see llada_moe.py.

Stored names: `model.transformer.blocks.{i}.ff_out` is a layer's down projection, `model.transformer.ff_out`
the vocabulary head.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import config as c
from edgekit.export.models.base import Architecture, LayerSpec, WeightSpec, matrix, rope_default, vector
from edgekit.export.models.config import Key, integer, only
from edgekit.export.models.transformer import PreNormLayer

#: Defaults of LLaDAConfig, which are those of a GPT-2; several of them are not supported, so that a config
#: has to say what it is.
SCHEMA = c.Schema(
    {
        "d_model": Key(integer(), 768),
        "n_heads": Key(integer(), 12),
        "n_kv_heads": Key(integer(), None, None),  # 1 with multi_query_attention, otherwise n_heads
        "multi_query_attention": Key(c.FLAG, None, None),
        "n_layers": Key(integer(high=c.MOST_LAYERS), 12),
        "mlp_hidden_size": Key(integer(), None, None),  # mlp_ratio * d_model
        "vocab_size": Key(integer(high=c.MOST_TOKENS), 50257, None),
        "embedding_size": Key(integer(high=c.MOST_TOKENS), None, None),  # vocab_size
        "max_sequence_length": Key(integer(high=c.MOST_POSITIONS), 1024),
        "rms_norm_eps": Key(c.RMS_EPS, 1e-5),
        "rope_theta": Key(c.ROPE_THETA, 10000.0),
        "weight_tying": Key(c.FLAG, True, False),
        "block_type": Key(only("llama"), "sequential"),
        "block_group_size": Key(only(1), 1),
        "activation_type": Key(only("silu"), "swiglu"),
        "layer_norm_type": Key(only("rms"), "default"),
        "layer_norm_with_affine": Key(only(True), True, False),
        "rope": Key(only(True), False, False),
        "alibi": Key(only(False), False, False),
        "attention_layer_norm": Key(only(False), False, False),
        "input_emb_norm": Key(only(False), False, False),
        "scale_logits": Key(only(False), False, False),
        "include_bias": Key(only(False), False),
        "include_qkv_bias": Key(only(False), False),
        "bias_for_layer_norm": Key(only(False), None, None),  # as include_bias
        "mask_token_id": c.TOKEN,
        "eos_token_id": c.TOKEN,
        "pad_token_id": c.TOKEN,
    },
    c.NO_EFFECT
    | {
        "alibi_bias_max", "attention_layer_norm_with_affine", "embedding_dropout", "flash_attention",
        "init_cutoff_factor", "init_device", "init_fn", "init_std", "mlp_ratio", "precision",
        "residual_dropout", "rope_full_precision", "tie_word_embeddings",
    },
)  # fmt: skip
#: `mlp_ratio` counts only where mlp_hidden_size says nothing.
RATIO = c.Schema({"mlp_ratio": Key(integer(), 4)})


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `llada` config.json.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    names = c.Schema({"architectures": Key(c.STRINGS, None, None)}).read(config)["architectures"]
    if config.get("num_experts") or "LLaDAMoEModelLM" in (names or ()):
        from edgekit.export.models import llada_moe

        return llada_moe.architecture(config, dtype)
    v = SCHEMA.read(config)
    hidden, num_heads, kv_heads = v["d_model"], v["n_heads"], _kv_heads(v)
    vocab = v["vocab_size"] if v["embedding_size"] is None else v["embedding_size"]
    if vocab is None:
        raise UnsupportedModel("config.json: vocab_size and embedding_size are null; one is needed")
    intermediate = v["mlp_hidden_size"]
    if intermediate is None:
        intermediate = RATIO.read(config)["mlp_ratio"] * hidden
    head_dim, eps = c.divided(hidden, num_heads, "d_model", "n_heads"), v["rms_norm_eps"]
    c.check_heads(num_heads, kv_heads, head_dim, keys=("n_heads", "n_kv_heads"))
    module = PreNormLayer(num_heads, kv_heads, head_dim, eps)
    tied = v["weight_tying"]

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
            for i in range(v["n_layers"])
        ),
        ropes={"full": rope_default(v["rope_theta"], head_dim)},
        embedding=matrix("embedding", vocab, hidden, "embedding", "model.transformer.wte.weight"),
        head=None if tied else matrix("head", vocab, hidden, "head", "model.transformer.ff_out.weight"),
        final=(vector("norm.weight", hidden, "model.transformer.ln_f.weight"),),
        ignored=("model.transformer.ff_out.weight",) if tied else (),
        max_positions=v["max_sequence_length"],
        notes=SCHEMA.notes(config),
        defaults=c.token_defaults(v),
    )


def _kv_heads(v: dict[str, Any]) -> int:
    num_heads: int = v["n_heads"]
    stated, shared = v["n_kv_heads"], v["multi_query_attention"]
    implied = 1 if shared else num_heads
    if stated is not None and shared is not None and stated != implied:
        raise UnsupportedModel(
            f"config.json: n_kv_heads is {stated}, but multi_query_attention is {shared}, "
            f"which means {implied}"
        )
    return implied if stated is None else int(stated)
