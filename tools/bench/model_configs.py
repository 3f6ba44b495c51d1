"""config.json of released models, exact or with fewer layers: what benchmarks with random weights are sized
by.
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


#: Name on the command line -> its configuration for a number of layers.
MODELS: dict[str, Callable[..., dict[str, Any]]] = {
    "llada-8b": llada_8b,
    "diffusion-gemma-26b": diffusion_gemma_26b,
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
