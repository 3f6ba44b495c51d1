"""config.json of released models, exact or with fewer layers: what plans know by name, and what benchmarks
with random weights are sized by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Every sixth layer of DiffusionGemma sees all positions.
_FULL_EVERY = 6


def llada_8b(layers: int = 32) -> dict[str, Any]:
    """LLaDA-8B: dense, bidirectional, untied vocabulary tables."""
    return {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "activation_type": "silu", "alibi": False,
        "block_type": "llama", "block_group_size": 1, "d_model": 4096, "dtype": "bfloat16",
        "embedding_size": 126464, "vocab_size": 126464, "eos_token_id": 126081, "pad_token_id": 126081,
        "mask_token_id": 126336, "include_bias": False, "include_qkv_bias": False, "layer_norm_type": "rms",
        "max_sequence_length": 4096, "mlp_hidden_size": 12288, "mlp_ratio": 4, "n_heads": 32,
        "n_kv_heads": 32, "n_layers": layers, "rms_norm_eps": 1e-5, "rope": True, "rope_theta": 500000.0,
        "scale_logits": False, "weight_tying": False,
    }  # fmt: skip


def diffusion_gemma_26b(layers: int = 30) -> dict[str, Any]:
    """DiffusionGemma-26B-A4B: 128 experts a layer, sliding and full attention. The last layer of a shortened
    one is full, so that both kinds are there.
    """
    last = layers - 1
    kinds = ["full" if i % _FULL_EVERY == _FULL_EVERY - 1 or i == last else "sliding" for i in range(layers)]
    text = {
        "model_type": "diffusion_gemma_text", "hidden_size": 2816, "intermediate_size": 2112,
        "moe_intermediate_size": 704, "num_hidden_layers": layers, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
        "sliding_window": 1024, "final_logit_softcapping": 30.0, "num_experts": 128, "top_k_experts": 8,
        "vocab_size": 262144, "attention_bias": False, "attention_dropout": 0.0, "pad_token_id": 0,
        "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": True, "initializer_range": 0.02,
        "use_bidirectional_attention": "vision", "layer_types": [f"{kind}_attention" for kind in kinds],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
            },
        },
    }  # fmt: skip
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma",
        "canvas_length": 256, "dtype": "bfloat16", "eos_token_id": [1, 106, 50],
        "tie_word_embeddings": True, "text_config": text,
    }  # fmt: skip


def nemotron_3b(layers: int = 26) -> dict[str, Any]:
    """Nemotron-Labs-Diffusion-3B: dense, causal text and a block of 32, untied vocabulary tables."""
    return {
        "architectures": ["NemotronLabsDiffusionModel"], "model_type": "nemotron_labs_diffusion",
        "block_size": 32, "bos_token_id": 1, "dtype": "bfloat16", "eos_token_id": 11, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 9216, "mask_token_id": 100,
        "max_position_embeddings": 262144, "num_attention_heads": 32, "num_hidden_layers": layers,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": None,
        "tie_word_embeddings": False, "vocab_size": 131072,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1,
        },
    }  # fmt: skip


def sdar_4b(layers: int = 36) -> dict[str, Any]:
    """SDAR-4B-Chat: dense, text in blocks of 4, untied vocabulary tables."""
    return {
        "architectures": ["SDARForCausalLM"], "model_type": "sdar", "attention_bias": False,
        "block_size": 4, "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 9728,
        "mask_token_id": 151669, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": layers, "num_key_value_heads": 8, "pad_token_id": 151643, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "tie_word_embeddings": False, "vocab_size": 151936,
    }  # fmt: skip


def fast_dllm_1_5b(layers: int = 28) -> dict[str, Any]:
    """Fast_dLLM_v2_1.5B: dense, text in blocks of 32, one vocabulary table."""
    return {
        "architectures": ["Fast_dLLM_QwenForCausalLM"], "model_type": "Fast_dLLM_Qwen", "bd_size": 32,
        "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645, "hidden_act": "silu",
        "hidden_size": 1536, "intermediate_size": 8960, "max_position_embeddings": 32768,
        "num_attention_heads": 12, "num_hidden_layers": layers, "num_key_value_heads": 2,
        "pad_token_id": 151645, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
        "use_sliding_window": False, "vocab_size": 151936,
    }  # fmt: skip


def llada2_0_mini(layers: int = 20) -> dict[str, Any]:
    """LLaDA2.0-mini and 2.1-mini, 16B-A1.4B: a dense layer, then layers of 256 experts in groups."""
    return {
        "architectures": ["LLaDA2MoeModelLM"], "model_type": "llada2_moe", "attention_dropout": 0.0,
        "dtype": "bfloat16", "embedding_dropout": 0.0, "first_k_dense_replace": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5120,
        "max_position_embeddings": 32768, "max_window_layers": 28, "moe_intermediate_size": 512,
        "moe_router_enable_expert_bias": True, "n_group": 8, "norm_head": False, "norm_softmax": False,
        "norm_topk_prob": True, "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8,
        "num_hidden_layers": layers, "num_key_value_heads": 4, "num_shared_experts": 1, "output_dropout": 0.0,
        "output_router_logits": False, "pad_token_id": 156892, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 600000, "rotary_dim": 64,
        "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function": "sigmoid",
        "sliding_window": 4096, "tie_word_embeddings": False, "topk_group": 4, "use_bias": False,
        "use_cache": False, "use_qkv_bias": False, "use_rmsnorm": True, "use_sliding_window": False,
        "vocab_size": 157184,
    }  # fmt: skip


def llada2_2_mini(layers: int = 20) -> dict[str, Any]:
    """LLaDA2.2-mini: as the ones before it, but a block chooses 48 experts together."""
    return llada2_0_mini(layers) | {
        "block_size": 32, "delete_token_id": 156930, "expert_capacity": 48, "max_position_embeddings": 131072,
        "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 3000000, "rope_type": "default"},
        "rope_theta": 3000000, "split_token_id": 156931, "use_qk_norm": True,
    }  # fmt: skip


#: Name on the command line -> its configuration for a number of layers.
MODELS: dict[str, Callable[..., dict[str, Any]]] = {
    "llada-8b": llada_8b,
    "diffusion-gemma-26b": diffusion_gemma_26b,
    "nemotron-3b": nemotron_3b,
    "sdar-4b": sdar_4b,
    "fast-dllm-1.5b": fast_dllm_1_5b,
    "llada2.0-mini": llada2_0_mini,
    "llada2.2-mini": llada2_2_mini,
}


def config(name: str, layers: int | None = None, vocab: int | None = None) -> dict[str, Any]:
    """The configuration of a model in MODELS; `layers` and `vocab` (tokens) shorten it."""
    full = MODELS[name]() if layers is None else MODELS[name](layers)
    return full if vocab is None else _with_vocabulary(full, vocab)


def _with_vocabulary(full: dict[str, Any], vocab: int) -> dict[str, Any]:
    """Sizes replaced, and ids of tokens that are no longer there by the last ones."""

    def short(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {n: short(n, v) for n, v in value.items()}
        if name in ("vocab_size", "embedding_size"):
            return vocab
        if name.endswith("_token_id") and isinstance(value, int) and value >= vocab:
            return vocab - 1 - (name == "mask_token_id")
        return value

    shortened: dict[str, Any] = short("", full)
    return shortened
