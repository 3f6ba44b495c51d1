"""The keys, tensors and layers of the families that were made of Qwen2 and Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.export.models import config as c
from edgekit.export.models.base import Architecture, matrix, rope_default, vector
from edgekit.export.models.config import Key, integer, only
from edgekit.export.models.transformer import Decoder

#: Keys that Qwen2Config and Qwen3Config have in common, with their defaults.
KEYS = {
    "vocab_size": Key(integer(high=c.MOST_TOKENS), 151936),
    "hidden_size": Key(integer(), 4096),
    "intermediate_size": Key(integer(), 22016),
    "num_hidden_layers": Key(integer(high=c.MOST_LAYERS), 32),
    "num_attention_heads": Key(integer(), 32),
    "num_key_value_heads": Key(integer(), 32, None),  # null: as many as attention heads
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
}
#: Qwen2: head_dim left out is hidden_size / num_attention_heads. It has biases of q, k and v whatever
#: attention_bias says.
QWEN2 = KEYS | {"head_dim": Key(integer(), None)}
#: Qwen3: biases of attention are where attention_bias says so.
QWEN3 = KEYS | {"head_dim": Key(integer(), 128), "attention_bias": Key(only(False), False)}
#: A window has no effect unless it is used.
NO_EFFECT = c.NO_EFFECT | {"sliding_window", "max_window_layers", "mlp_bias"}
QWEN2_NO_EFFECT = NO_EFFECT | {"attention_bias"}


@dataclass(frozen=True)
class Experts:
    """The mixture of a Qwen3-MoE: `width` is that of an expert; `normalize` see PreNormLayer."""

    count: int
    top_k: int
    width: int
    normalize: bool


def decoder(v: Mapping[str, Any], *, qwen3: bool, experts: Experts | None = None) -> Decoder:
    """The layers of a Qwen2 or, with `qwen3`, a Qwen3 whose keys have the values `v`.

    Raises:
        UnsupportedModel: heads that do not divide.
    """
    hidden, num_heads = v["hidden_size"], v["num_attention_heads"]
    kv_heads = num_heads if v["num_key_value_heads"] is None else v["num_key_value_heads"]
    head_dim = v["head_dim"] or c.divided(hidden, num_heads, "hidden_size", "num_attention_heads")
    c.check_heads(num_heads, kv_heads, head_dim)
    width, eps = v["intermediate_size"] if experts is None else experts.width, v["rms_norm_eps"]
    mixed: dict[str, Any] = {}
    if experts is not None:
        mixed = {"experts": experts.count, "top_k": experts.top_k, "normalize": experts.normalize}
    return Decoder(hidden, num_heads, kv_heads, head_dim, width, eps, bias=not qwen3, qk_norm=qwen3, **mixed)


def model(
    layers: Decoder,
    v: Mapping[str, Any],
    config: Mapping[str, Any],
    schema: c.Schema,
    *,
    prefix_block: int | None = None,
    **own: Any,
) -> Architecture:
    """An architecture of `layers` whose config.json, `config`, has the values `v` by `schema`. With a
    `prefix_block`, committed text is a prefix in blocks of so many positions. `own` are arguments of
    Architecture: family, sampler and others.

    Raises:
        UnsupportedModel: another way to rotate than the plain one.
    """
    hidden, vocab, prefix = layers.hidden, v["vocab_size"], "model."
    tied = v["tie_word_embeddings"]
    text: dict[str, Any] = {"defaults": c.token_defaults(v)} | own
    if prefix_block is not None:
        text |= {"causal_prefix": True, "prefix_block": prefix_block}
    return Architecture(
        hidden_size=hidden,
        vocab_size=vocab,
        norm_eps=layers.eps,
        layers=layers.layers(v["num_hidden_layers"], prefix, uses_mask=prefix_block is not None),
        ropes={"full": rope_default(c.plain_rope_theta(v, config), layers.head_dim)},
        embedding=matrix("embedding", vocab, hidden, "embedding", prefix + "embed_tokens.weight"),
        head=None if tied else matrix("head", vocab, hidden, "head", "lm_head.weight"),
        final=(vector("norm.weight", hidden, prefix + "norm.weight"),),
        max_positions=v["max_position_embeddings"],
        ignored=("lm_head.weight",) if tied else (),
        notes=schema.notes(config),
        **text,
    )
