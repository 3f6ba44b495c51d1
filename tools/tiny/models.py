"""Configurations of the two tiny models, as their Hugging Face directories state them."""

from __future__ import annotations

from typing import Any

from edgekit.tools.tiny import tokenizer as t

CANVAS = 128

#: DiffusionGemma's shape in small: sliding and full layers, a dense MLP beside the experts.
GEMMA_CONFIG: dict[str, Any] = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"],
    "model_type": "diffusion_gemma",
    "canvas_length": CANVAS,
    "dtype": "bfloat16",
    "eos_token_id": [t.EOS, t.TURN_END],
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "diffusion_gemma_text",
        "hidden_size": 192,
        "intermediate_size": 256,
        "moe_intermediate_size": 96,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 32,
        "global_head_dim": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "final_logit_softcapping": 30.0,
        "num_experts": 8,
        "top_k_experts": 2,
        "vocab_size": t.VOCAB_SIZE,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "pad_token_id": t.PAD,
        "eos_token_id": t.EOS,
        "bos_token_id": t.BOS,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
            },
        },
    },
}
GEMMA_GENERATION: dict[str, Any] = {
    "max_new_tokens": CANVAS,
    "max_denoising_steps": 48,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
    "t_min": 0.4,
    "t_max": 0.8,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
    "eos_token_id": [t.EOS, t.TURN_END],
    "pad_token_id": t.PAD,
    "bos_token_id": t.BOS,
}

LLADA_CONFIG: dict[str, Any] = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 192,
    "dtype": "bfloat16",
    "embedding_size": t.VOCAB_SIZE,
    "vocab_size": t.VOCAB_SIZE,
    "eos_token_id": t.END_OF_TEXT,
    "pad_token_id": t.END_OF_TEXT,
    "bos_token_id": t.START_OF_TEXT,
    "mask_token_id": t.MDM_MASK,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "max_sequence_length": 512,
    "mlp_hidden_size": 576,
    "mlp_ratio": 3,
    "n_heads": 6,
    "n_kv_heads": 6,
    "n_layers": 6,
    "rms_norm_eps": 1e-5,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 10000.0,
    "scale_logits": False,
    "use_cache": False,
    "weight_tying": False,
}
LLADA_GENERATION: dict[str, Any] = {
    "steps": CANVAS,
    "gen_length": CANVAS,
    "block_length": 32,
    "temperature": 0.0,
    "cfg_scale": 0.0,
    "remasking": "low_confidence",
    "mask_token_id": t.MDM_MASK,
    "eos_token_id": t.END_OF_TEXT,
    "eot_token_id": t.END_OF_TURN,
    "pad_token_id": t.END_OF_TEXT,
    "bos_token_id": t.START_OF_TEXT,
}

#: family name -> (config.json, generation_config.json)
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma": (GEMMA_CONFIG, GEMMA_GENERATION),
    "llada": (LLADA_CONFIG, LLADA_GENERATION),
}
