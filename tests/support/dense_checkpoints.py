"""Random checkpoints of Nemotron-Labs-Diffusion and of the families made of Qwen2 and Qwen3, and what
transformers computes of them. `support.checkpoints` writes and loads them with all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: The released Nemotrons rotate so; here with borders, a factor and a scale that tiny models reach.
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 4.0, "beta_slow": 1.0,
    "mscale": 1.0, "mscale_all_dim": 0.5, "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.4,
}  # fmt: skip
_QWEN = {
    "attention_dropout": 0.0, "bos_token_id": 3, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 64,
    "initializer_range": 0.02, "intermediate_size": 96, "max_position_embeddings": 512,
    "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0,
    "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None,
    "tie_word_embeddings": False, "use_cache": True, "use_sliding_window": False, "vocab_size": 384,
}  # fmt: skip
_QWEN2 = _QWEN | {"max_window_layers": 3}
_QWEN3 = _QWEN | {"attention_bias": False, "head_dim": 24, "max_window_layers": 3}
_SDAR = _QWEN3 | {"block_size": 4, "mask_token_id": 4, "eos_token_id": [2, 0]}
#: config.json by family, with the keys that the libraries write. Ids are those of Dream's tokenizer.
CONFIGS: dict[str, dict[str, Any]] = {
    "nemotron_labs_diffusion": {
        "architectures": ["NemotronLabsDiffusionModel"], "model_type": "nemotron_labs_diffusion",
        "ar_loss_weight": 1.0, "attention_bias": False, "attention_dropout": 0.0, "block_size": 8,
        "bos_token_id": 3, "dlm_paradigm": "bidirectional", "eos_token_id": 2, "head_dim": 24,
        "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 96,
        "mask_token_id": 4, "max_position_embeddings": 512, "mlp_bias": False, "num_attention_heads": 4,
        "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_parameters": YARN,
        "sliding_window": None, "tie_word_embeddings": False, "use_cache": False, "vocab_size": 384,
    },
    "sdar": {"architectures": ["SDARForCausalLM"], "model_type": "sdar"} | _SDAR,
    "sdar_moe": {
        "architectures": ["SDARMoeForCausalLM"], "model_type": "sdar_moe", "decoder_sparse_step": 1,
        "mlp_only_layers": [], "moe_intermediate_size": 32, "norm_topk_prob": True, "num_experts": 8,
        "num_experts_per_tok": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001,
    } | _SDAR,
    "fast_dllm": {
        "architectures": ["Fast_dLLM_QwenForCausalLM"], "model_type": "Fast_dLLM_Qwen", "bd_size": 8,
        "layer_types": ["full_attention"] * 3,
    } | _QWEN2 | {"tie_word_embeddings": True},
    "a2d_qwen2": {
        "architectures": ["A2DQwen2LMHeadModel"], "model_type": "a2d-qwen2", "decoding": "mdlm",
    } | _QWEN2 | {"tie_word_embeddings": True},
    "a2d_qwen3": {
        "architectures": ["A2DQwen3LMHeadModel"], "model_type": "a2d-qwen3", "decoding": "bd3lm",
        "block_size": 8,
    } | _QWEN3 | {"tie_word_embeddings": True},
    "coda": {
        "architectures": ["CoDALanguageModel"], "model_type": "CoDA", "mask_token_id": 4,
    } | {key: value for key, value in _QWEN3.items() if key != "tie_word_embeddings"},
}  # fmt: skip
#: Families whose files have a head of their own although config.json says that there is none.
OWN_HEAD = ("a2d_qwen2", "a2d_qwen3", "coda")
FAMILIES = tuple(CONFIGS)
_FAMILY_OF = {config["architectures"][0]: family for family, config in CONFIGS.items()}


def config(family: str, dtype: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """config.json with `overrides`; raises ValueError for keys that it does not have."""
    own = CONFIGS[family]
    if unknown := sorted(set(overrides) - set(own)):
        raise ValueError(f"no such key in the {family} config: {', '.join(unknown)}")
    merged = own | {"torch_dtype": dtype} | dict(overrides)
    if "layer_types" in own:
        merged["layer_types"] = ["full_attention"] * merged["num_hidden_layers"]
    return merged


def family_of(config: Mapping[str, Any]) -> str | None:
    """The family of a config.json; None for one of another module."""
    return _FAMILY_OF.get(config["architectures"][0])


def shapes(family: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, by the names of Llama, Qwen2, Qwen3 and Qwen3-MoE."""
    model, head = "model.", "lm_head.weight"
    if family == "nemotron_labs_diffusion":
        model, head = "encoder.", "diffusion_head.weight"
    hidden, vocab, heads = config["hidden_size"], config["vocab_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    rows = {"q": heads * width, "k": config["num_key_value_heads"] * width}
    rows["v"] = rows["k"]
    found: dict[str, tuple[int, ...]] = {
        model + "embed_tokens.weight": (vocab, hidden), model + "norm.weight": (hidden,)
    }  # fmt: skip
    for i in range(config["num_hidden_layers"]):
        layer = f"{model}layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}{norm}.weight"] = (hidden,)
        for name, size in rows.items():
            found[f"{layer}self_attn.{name}_proj.weight"] = (size, hidden)
            if family in ("fast_dllm", "a2d_qwen2"):
                found[f"{layer}self_attn.{name}_proj.bias"] = (size,)
            elif family != "nemotron_labs_diffusion" and name != "v":
                found[f"{layer}self_attn.{name}_norm.weight"] = (width,)
        found[layer + "self_attn.o_proj.weight"] = (hidden, rows["q"])
        mlps, ffn = ["mlp."], config["intermediate_size"]
        if family == "sdar_moe":
            mlps, ffn = (
                [f"mlp.experts.{e}." for e in range(config["num_experts"])],
                config["moe_intermediate_size"],
            )
            found[layer + "mlp.gate.weight"] = (config["num_experts"], hidden)
        for mlp in mlps:
            for name in ("gate", "up"):
                found[f"{layer}{mlp}{name}_proj.weight"] = (ffn, hidden)
            found[f"{layer}{mlp}down_proj.weight"] = (hidden, ffn)
    if family in OWN_HEAD or not config["tie_word_embeddings"]:
        found[head] = (vocab, hidden)
    return found


def oracle(family: str, config: Mapping[str, Any], tied: bool) -> torch.nn.Module:
    """The transformers model of the same function, weights not set: Ministral 3, Qwen2, Qwen3, Qwen3-MoE."""
    import transformers as tf

    taken = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
        "max_position_embeddings", "vocab_size", "intermediate_size", "hidden_act",
    )  # fmt: skip
    given = {key: config[key] for key in taken} | {
        "attn_implementation": "eager", "tie_word_embeddings": tied,
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    if family == "nemotron_labs_diffusion":
        rope = dict(config["rope_parameters"])
        return tf.Ministral3ForCausalLM(
            tf.Ministral3Config(rope_parameters=rope, head_dim=config["head_dim"], **given)
        )
    given["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    if family in ("fast_dllm", "a2d_qwen2"):
        return tf.Qwen2ForCausalLM(tf.Qwen2Config(**given))
    if family != "sdar_moe":
        return tf.Qwen3ForCausalLM(tf.Qwen3Config(head_dim=config["head_dim"], **given))
    moe = ("head_dim", "num_experts", "num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size",
           "decoder_sparse_step", "mlp_only_layers")  # fmt: skip
    given |= {key: config[key] for key in moe} | {"experts_implementation": "eager"}
    return tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(**given))


def oracle_name(name: str) -> str:
    """A stored tensor's name in the transformers model."""
    if name == "diffusion_head.weight":
        return "lm_head.weight"
    return "model." + name.removeprefix("encoder.") if name.startswith("encoder.") else name
