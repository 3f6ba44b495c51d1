"""Nemotron-Labs-Diffusion 3B, 8B, 14B (`nemotron_labs_diffusion`): Ministral 3's layers, with YaRN and a
factor for queries by position. Committed text is causal, the active block sees all of itself; logits are not
shifted. The same weights, causal all the way, are an autoregressive model.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import config as c
from edgekit.export.models.base import (
    Architecture,
    OwnAdapter,
    QueryScale,
    Rope,
    matrix,
    rope_default,
    vector,
)
from edgekit.export.models.config import Key, integer, number, only
from edgekit.export.models.transformer import Decoder
from edgekit.export.models.yarn import Yarn

#: The released checkpoints' vocabulary, and ids that their config.json may leave out.
RELEASED_VOCAB = 131072
RELEASED_IDS = {"mask_token_id": 100, "eos_token_id": 11, "bos_token_id": 1}
#: What Ministral3Config rotates by where a config does not say.
ROPE: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384,
    "llama_4_scaling_beta": 0.1,
}  # fmt: skip
#: Defaults of Ministral3Config, and of the released configs where those add to it.
SCHEMA = c.Schema(
    {
        "vocab_size": Key(integer(high=c.MOST_TOKENS), 131072),
        "hidden_size": Key(integer(), 4096),
        "intermediate_size": Key(integer(), 14336),
        "num_hidden_layers": Key(integer(high=c.MOST_LAYERS), 34),
        "num_attention_heads": Key(integer(), 32),
        "num_key_value_heads": Key(integer(), 8),
        "head_dim": Key(integer(), 128),
        "hidden_act": Key(only("silu", "swish"), "silu"),
        "rms_norm_eps": Key(c.RMS_EPS, 1e-5),
        "max_position_embeddings": Key(integer(high=c.MOST_POSITIONS), 262144),
        "tie_word_embeddings": Key(only(False), False),
        "rope_theta": Key(c.ROPE_THETA, None, None),  # that of rope_parameters
        "rope_parameters": Key(c.TABLE, ROPE, ROPE),
        "rope_scaling": Key(only(None), None, None),
        "sliding_window": Key(only(None), None, None),
        "attention_bias": Key(only(False), False, False),
        "mlp_bias": Key(only(False), False, False),
        "vision_config": Key(
            c.Kind("checkpoints that see images are not supported; give one for text", lambda v: False),
            None,
            None,
        ),
        "block_size": Key(integer(high=c.MOST_POSITIONS), 32, 32),
        "mask_token_id": c.TOKEN,
        "eos_token_id": c.TOKEN,
        "pad_token_id": c.TOKEN,
        "bos_token_id": c.TOKEN,
    },
    # What the last training was for (dlm_paradigm) changes nothing in the network.
    c.NO_EFFECT
    | {
        "ar_loss_weight", "default_diffusion_min_threshold", "default_diffusion_sampler",
        "default_diffusion_sampling_scaling_factor", "default_diffusion_steps",
        "default_diffusion_threshold", "default_generation_mode", "dlm_loss_weight", "dlm_paradigm",
        "dp_varying_mask_ratio",
    },
)  # fmt: skip
_ROPE_KEYS = {
    "rope_type": Key(only("yarn", "default"), "default"),
    "rope_theta": Key(c.ROPE_THETA, None, None),
    # No factor without the number of positions that it counts in.
    "llama_4_scaling_beta": Key(number(0, 1e6), None, None),
    "original_max_position_embeddings": Key(integer(high=c.MOST_POSITIONS), None, None),
}
_YARN_KEYS = {
    "factor": Key(number(1, 1e6)),
    "original_max_position_embeddings": Key(integer(high=c.MOST_POSITIONS)),
    "beta_fast": Key(number(1e-6, 1e6), 32.0, 32.0),
    "beta_slow": Key(number(1e-6, 1e6), 1.0, 1.0),
    "mscale": Key(number(0, 1e6), None, None),
    "mscale_all_dim": Key(number(0, 1e6), None, None),
    "attention_factor": Key(number(1e-6, 1e6), None, None),
    "truncate": Key(c.FLAG, True),
}


def _rope(v: dict[str, Any], head_dim: int) -> tuple[Rope, float]:
    """The rotation, and the factor that it gives to products of queries and keys."""
    where, table = "rope_parameters.", c.with_rope_type(v["rope_parameters"])
    own = c.Schema(_ROPE_KEYS, prefix=where).read(table)
    stated = {theta for theta in (v["rope_theta"], own["rope_theta"]) if theta is not None}
    if len(stated) > 1:
        raise UnsupportedModel(
            f"{c.FILE}: rope_theta is {v['rope_theta']:g}, {where}rope_theta is {own['rope_theta']:g}; keep "
            "the one that the model was trained with"
        )
    theta = next(iter(stated), ROPE["rope_theta"])
    beta, positions = own["llama_4_scaling_beta"], own["original_max_position_embeddings"]
    if beta and positions is None:
        raise UnsupportedModel(
            f"{c.FILE}: {where}original_max_position_embeddings is missing, which llama_4_scaling_beta "
            f"{beta:g} counts in; there is no safe default, write the checkpoint's value"
        )
    scale = QueryScale(beta, positions) if beta else None
    if own["rope_type"] == "default":
        return Rope(rope_default(theta, head_dim).inverse_frequency, scale), 1.0
    if theta <= 1:
        raise UnsupportedModel(f"{c.FILE}: {where}rope_theta is {theta:g}; YaRN needs a number above 1")
    y = c.Schema(_YARN_KEYS, prefix=where).read(table)
    yarn = Yarn(
        y["factor"], y["original_max_position_embeddings"], y["beta_fast"], y["beta_slow"], y["truncate"]
    )
    factor = y["attention_factor"] or yarn.attention_factor(y["mscale"], y["mscale_all_dim"])
    return Rope(yarn.inverse_frequency(theta, head_dim), scale), factor**2


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `nemotron_labs_diffusion` config.json.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    v = SCHEMA.read(config)
    hidden, vocab, eps = v["hidden_size"], v["vocab_size"], v["rms_norm_eps"]
    num_heads, kv_heads, head_dim = v["num_attention_heads"], v["num_key_value_heads"], v["head_dim"]
    c.check_heads(num_heads, kv_heads, head_dim)
    rope, factor = _rope(v, head_dim)
    decoder = Decoder(
        hidden, num_heads, kv_heads, head_dim, v["intermediate_size"], eps, scale=factor * head_dim**-0.5
    )
    return Architecture(
        family="nemotron_labs_diffusion",
        sampler="block",
        hidden_size=hidden,
        vocab_size=vocab,
        norm_eps=eps,
        layers=decoder.layers(v["num_hidden_layers"], "encoder.", uses_mask=True),
        ropes={"full": rope},
        embedding=matrix("embedding", vocab, hidden, "embedding", "encoder.embed_tokens.weight"),
        head=matrix("head", vocab, hidden, "head", "diffusion_head.weight"),
        final=(vector("norm.weight", hidden, "encoder.norm.weight"),),
        max_positions=v["max_position_embeddings"],
        causal_prefix=True,
        # The adapter of self-speculation, where its file lies among those of the model.
        ignored=("*rotary_emb.inv_freq", "base_model.*"),
        # It drafts; what verifies a draft, and the other modes, run without.
        own_adapter=OwnAdapter("linear_spec_lora", "draft", {"draft_adapter": 1}),
        notes=SCHEMA.notes(config),
        defaults={
            "block_length": v["block_size"],
            "steps": 32,
            "threshold": 0.9,
            "align": "prompt",
            "causal_start": True,
        }
        | (RELEASED_IDS if vocab == RELEASED_VOCAB else {})
        | c.token_defaults(v),
    )
