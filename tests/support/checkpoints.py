"""Random checkpoints in the layout that the Hugging Face hub uses, small enough for unit tests.

`write_checkpoint` writes config.json, generation_config.json, safetensors weights (one file or indexed
shards) and a byte-level BPE tokenizer, so that a test can run a family from files to text. Every tensor is
random, the norms, scalars and router scales too: their defaults of 1 and 0 would hide a loader that drops
them. A tensor's values depend only on the seed, its name and its shape.

`load_oracle` loads such a directory into the transformers class that computes the same function.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import dense_checkpoints as dense

if TYPE_CHECKING:
    import torch

FAMILIES = ("diffusion_gemma", "llada", "llada_moe", "llada2_moe", "dream")

CHATML = (
    "{% if messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA_CHAT = """{{- bos_token -}}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\n' + message['content'] | trim + '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|turn>model\n' -}}
    {%- if not enable_thinking | default(false) -%}
        {{- '<|channel>thought\n<channel|>' -}}
    {%- endif -%}
{%- endif -%}
"""
LLADA_CHAT = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
ROLE_CHAT = (
    "{% if messages[0]['role'] != 'system' %}<role>SYSTEM</role>detailed thinking off<|role_end|>{% endif %}"
    "{% for message in messages %}"
    "{% set role = {'user': 'HUMAN', 'assistant': 'ASSISTANT', 'system': 'SYSTEM'}[message['role']] %}"
    "{{ '<role>' + role + '</role>' + message['content'] + '<|role_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}"
)

# Special tokens get the ids 0, 1, 2, ... in this order; roles name those that configs and tokenizers use.
SPECIAL_TOKENS: dict[str, list[str]] = {
    "diffusion_gemma": [
        "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|tool_response>",
        "<|channel>", "<channel|>", "<|image|>", "<|image>", "<image|>",
    ],
    "llada": [
        "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>",
        "<|eot_id|>",
    ],
    "llada_moe": ["<|startoftext|>", "<|endoftext|>", "<|mask|>", "<role>", "</role>", "<|role_end|>"],
    "llada2_moe": ["<|startoftext|>", "<|endoftext|>", "<|mask|>", "<role>", "</role>", "<|role_end|>",
                   "<|reserved_200|>", "<|reserved_201|>"],
    "dream": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"],
}  # fmt: skip
TOKEN_ROLES: dict[str, dict[str, str]] = {
    "diffusion_gemma": {"bos_token": "<bos>", "eos_token": "<turn|>", "pad_token": "<pad>",
                        "unk_token": "<unk>", "mask_token": "<mask>"},
    "llada": {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    "llada_moe": {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
                  "mask_token": "<|mask|>"},
    "llada2_moe": {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
                   "mask_token": "<|mask|>"},
    "dream": {"bos_token": "<|beginoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
              "mask_token": "<|mask|>"},
}  # fmt: skip
CHAT_TEMPLATES = {
    "diffusion_gemma": GEMMA_CHAT, "llada": LLADA_CHAT, "llada_moe": ROLE_CHAT, "llada2_moe": ROLE_CHAT,
    "dream": CHATML,
}  # fmt: skip

CORPUS = [
    "Why is the sky blue? Because air scatters short wavelengths of light more than long ones.",
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "A diffusion language model refines many positions of the text at once.",
    "Dans l'été, où êtes-vous? Größe, Übermut und Straße. Привет, мир! 你好，世界。こんにちは 🙂🚀",
    "def add(a, b):\n    return a + b\n\nfor i in range(10):\n    print(i, add(i, 1))\n",
]


def write_checkpoint(
    directory: str | Path,
    family: str,
    seed: int = 0,
    *,
    shards: int = 1,
    dtype: str = "float32",
    resaved_config: bool = False,
    **config_overrides: Any,
) -> dict[str, Any]:
    """Write a random checkpoint of `family` to `directory` and return the contents of its config.json.

    family: one of FAMILIES (case does not matter) or of `dense_checkpoints`. dtype: "float32" or "bfloat16".
    shards: 1 writes model.safetensors, more write indexed shards of about equal tensor count.
    config_overrides: values by config.json key, in the family's own spelling (`n_heads` for llada,
    `num_experts` for llada_moe, ...). `expert_capacity` makes llada2_moe one of LLaDA2.2, with its other
    keys. For diffusion_gemma they go to `text_config`, or to the top level where
    the key lives there (`canvas_length`, ...); `vision_config` takes a dict. Unknown keys raise ValueError.
    resaved_config (diffusion_gemma only): keep the config as transformers saves it, with `per_layer_config`,
    in place of the hub's `global_head_dim` and `num_global_key_value_heads`.
    """
    family = family.lower()
    if family not in FAMILIES + dense.FAMILIES:
        raise ValueError(f"unknown family {family!r}; known: {', '.join(FAMILIES + dense.FAMILIES)}")
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype must be float32 or bfloat16, not {dtype!r}")
    if resaved_config and family != "diffusion_gemma":
        raise ValueError("resaved_config is for diffusion_gemma")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if family == "diffusion_gemma":
        config, tensors = _diffusion_gemma(directory, seed, dtype, resaved_config, config_overrides)
        vocab_size = config["text_config"]["vocab_size"]
    elif family in dense.FAMILIES:
        config = dense.config(family, dtype, config_overrides)
        tensors = _random_tensors(dense.shapes(family, config), seed, dtype)
        family, vocab_size = "dream", config["vocab_size"]
    else:
        base = _default_config(family, dtype)
        if family == "llada2_moe":
            if config_overrides.get("expert_capacity") is not None:
                base |= _llada22_keys()
            elif "block_size" in config_overrides:  # which their files leave out
                base["block_size"] = None
        config = _merged(base, config_overrides)
        tensors = _random_tensors(expected_shapes(config), seed, dtype)
        vocab_size = config["vocab_size"]
    write_tokenizer(directory, family, vocab_size)
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", _generation_config(family, config))
    write_weights(directory, tensors, shards)
    return config


def expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape for a config that is not diffusion_gemma's."""
    architecture = config["architectures"][0]
    if (family := dense.family_of(config)) is not None:
        return dense.shapes(family, config)
    if architecture == "LLaDA2MoeModelLM":
        return _llada2_moe_shapes(config)
    if architecture == "LLaDAModelLM":
        return _llada_shapes(config)
    if architecture in ("LLaDAMoEModelLM", "DreamModel"):
        return _qwen_like_shapes(config, moe=architecture == "LLaDAMoEModelLM")
    raise ValueError(f"no shape table for {architecture}")


def _llada_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, ffn, vocab = config["d_model"], config["mlp_hidden_size"], config["embedding_size"]
    kv = hidden // config["n_heads"] * config["n_kv_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.transformer.wte.weight": (vocab, hidden)}
    for i in range(config["n_layers"]):
        block = f"model.transformer.blocks.{i}."
        shapes |= {
            block + "attn_norm.weight": (hidden,),
            block + "ff_norm.weight": (hidden,),
            block + "q_proj.weight": (hidden, hidden),
            block + "k_proj.weight": (kv, hidden),
            block + "v_proj.weight": (kv, hidden),
            block + "attn_out.weight": (hidden, hidden),
            block + "ff_proj.weight": (ffn, hidden),
            block + "up_proj.weight": (ffn, hidden),
            block + "ff_out.weight": (hidden, ffn),
        }
    shapes["model.transformer.ln_f.weight"] = (hidden,)
    if not config["weight_tying"]:
        shapes["model.transformer.ff_out.weight"] = (vocab, hidden)
    return shapes


def _qwen_like_shapes(config: Mapping[str, Any], moe: bool) -> dict[str, tuple[int, ...]]:
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    head_dim = hidden // config["num_attention_heads"]
    kv = head_dim * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "input_layernorm.weight": (hidden,),
            layer + "post_attention_layernorm.weight": (hidden,),
            layer + "self_attn.q_proj.weight": (hidden, hidden),
            layer + "self_attn.k_proj.weight": (kv, hidden),
            layer + "self_attn.v_proj.weight": (kv, hidden),
            layer + "self_attn.o_proj.weight": (hidden, hidden),
        }
        if moe:
            shapes[layer + "self_attn.q_norm.weight"] = shapes[layer + "self_attn.k_norm.weight"] = (
                head_dim,
            )
            shapes[layer + "mlp.gate.weight"] = (config["num_experts"], hidden)
            mlps, ffn = (
                [f"mlp.experts.{e}." for e in range(config["num_experts"])],
                config["expert_intermediate_size"],
            )
        else:
            shapes[layer + "self_attn.q_proj.bias"] = (hidden,)
            shapes[layer + "self_attn.k_proj.bias"] = shapes[layer + "self_attn.v_proj.bias"] = (kv,)
            mlps, ffn = ["mlp."], config["intermediate_size"]
        for mlp in mlps:
            shapes[layer + mlp + "gate_proj.weight"] = shapes[layer + mlp + "up_proj.weight"] = (ffn, hidden)
            shapes[layer + mlp + "down_proj.weight"] = (hidden, ffn)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _llada2_moe_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, vocab, head_dim = config["hidden_size"], config["vocab_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config["moe_intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.word_embeddings.weight": (vocab, hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "input_layernorm.weight": (hidden,),
            layer + "post_attention_layernorm.weight": (hidden,),
            layer + "attention.query_key_value.weight": ((heads + 2 * kv_heads) * head_dim, hidden),
            layer + "attention.query_layernorm.weight": (head_dim,),
            layer + "attention.key_layernorm.weight": (head_dim,),
            layer + "attention.dense.weight": (hidden, heads * head_dim),
        }
        mlps = {"mlp.": config["intermediate_size"]}
        if i >= config["first_k_dense_replace"]:
            mlps = {f"mlp.experts.{e}.": width for e in range(config["num_experts"])}
            if config["num_shared_experts"]:
                mlps["mlp.shared_experts."] = config["num_shared_experts"] * width
            shapes |= {
                layer + "mlp.gate.weight": (config["num_experts"], hidden),
                layer + "mlp.gate.expert_bias": (config["num_experts"],),
            }
        for mlp, ffn in mlps.items():
            shapes[layer + mlp + "gate_proj.weight"] = shapes[layer + mlp + "up_proj.weight"] = (ffn, hidden)
            shapes[layer + mlp + "down_proj.weight"] = (hidden, ffn)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _default_config(family: str, dtype: str) -> dict[str, Any]:
    ids = {token: i for i, token in enumerate(SPECIAL_TOKENS[family])}
    if family == "llada":
        return {
            "architectures": ["LLaDAModelLM"], "model_type": "llada", "activation_type": "silu",
            "alibi": False, "attention_dropout": 0.0, "attention_layer_norm": False,
            "bias_for_layer_norm": False, "block_group_size": 1, "block_type": "llama", "d_model": 64,
            "embedding_dropout": 0.0, "embedding_size": 384, "eos_token_id": ids["<|endoftext|>"],
            "include_bias": False, "include_qkv_bias": False, "input_emb_norm": False,
            "layer_norm_type": "rms", "layer_norm_with_affine": True, "mask_token_id": ids["<|mdm_mask|>"],
            "max_sequence_length": 512, "mlp_hidden_size": 96, "mlp_ratio": 4, "n_heads": 4,
            "n_kv_heads": 4, "n_layers": 3, "pad_token_id": ids["<|endoftext|>"], "residual_dropout": 0.0,
            "rms_norm_eps": 1e-5, "rope": True, "rope_full_precision": True, "rope_theta": 500000.0,
            "scale_logits": False, "torch_dtype": dtype, "use_cache": False, "vocab_size": 384,
            "weight_tying": False,
        }  # fmt: skip
    if family == "llada_moe":
        return {
            "architectures": ["LLaDAMoEModelLM"], "model_type": "llada", "attention_bias": False,
            "attention_dropout": 0.0, "dense_intermediate_size": 128, "eos_token_id": ids["<|endoftext|>"],
            "expert_intermediate_size": 32, "hidden_act": "silu", "hidden_size": 64,
            "max_position_embeddings": 512, "moe_layer_freq": [1, 1, 1], "norm_topk_prob": None,
            "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 3,
            "num_key_value_heads": 4, "pad_token_id": ids["<|endoftext|>"], "partial_rotary_factor": 1,
            "qk_layernorm": True, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 50000.0,
            "router_num_group": None, "routed_scaling_factor": 1, "shared_expert_intermediate_size": None,
            "tie_word_embeddings": False, "torch_dtype": dtype, "use_cache": False, "vocab_size": 384,
        }  # fmt: skip
    if family == "llada2_moe":  # the keys of LLaDA2.0-mini and 2.1-mini
        return {
            "architectures": ["LLaDA2MoeModelLM"], "model_type": "llada2_moe", "attention_dropout": 0.0,
            "dtype": dtype, "embedding_dropout": 0.0, "first_k_dense_replace": 1, "head_dim": 16,
            "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 96,
            "max_position_embeddings": 512, "max_window_layers": 28, "moe_intermediate_size": 32,
            "moe_router_enable_expert_bias": True, "n_group": 4, "norm_head": False, "norm_softmax": False,
            "norm_topk_prob": True, "num_attention_heads": 4, "num_experts": 12, "num_experts_per_tok": 3,
            "num_hidden_layers": 3, "num_key_value_heads": 2, "num_shared_experts": 1, "output_dropout": 0.0,
            "output_router_logits": False, "pad_token_id": ids["<|endoftext|>"], "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 600000, "rotary_dim": 8,
            "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function": "sigmoid",
            "sliding_window": 4096, "tie_word_embeddings": False, "topk_group": 2,
            "transformers_version": "4.57.1", "use_bias": False, "use_cache": False, "use_qkv_bias": False,
            "use_rmsnorm": True, "use_sliding_window": False, "vocab_size": 384,
        }  # fmt: skip
    return {
        "architectures": ["DreamModel"], "model_type": "Dream", "attention_dropout": 0.0,
        "bos_token_id": ids["<|beginoftext|>"], "eos_token_id": ids["<|endoftext|>"], "hidden_act": "silu",
        "hidden_size": 64, "intermediate_size": 96, "mask_token_id": ids["<|mask|>"],
        "max_position_embeddings": 512, "max_window_layers": 3, "num_attention_heads": 4,
        "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": ids["<|endoftext|>"],
        "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": dtype, "use_cache": True, "use_sliding_window": False,
        "vocab_size": 384,
    }  # fmt: skip


def _llada22_keys() -> dict[str, Any]:
    """What LLaDA2.2's file has besides: rotation is said twice, and groups stay without effect."""
    ids = {token: i for i, token in enumerate(SPECIAL_TOKENS["llada2_moe"])}
    return {
        "block_size": 8, "delete_token_id": ids["<|reserved_200|>"], "expert_capacity": 6,
        "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 3000000, "rope_type": "default"},
        "rope_theta": 3000000, "split_token_id": ids["<|reserved_201|>"], "transformers_version": "5.2.0",
        "use_qk_norm": True,
    }  # fmt: skip


def _merged(config: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(overrides) - set(config))
    if unknown:
        raise ValueError(f"no such key in the {config['architectures'][0]} config: {', '.join(unknown)}")
    merged = config | dict(overrides)
    # Values that the hub's files keep equal to another one follow it unless they are given.
    if "embedding_size" in config and "embedding_size" not in overrides:
        merged["embedding_size"] = merged["vocab_size"]
    if "n_kv_heads" in config and "n_kv_heads" not in overrides:
        merged["n_kv_heads"] = merged["n_heads"]
    if "moe_layer_freq" in config and "moe_layer_freq" not in overrides:
        merged["moe_layer_freq"] = [1] * merged["num_hidden_layers"]
        if "num_key_value_heads" not in overrides:
            merged["num_key_value_heads"] = merged["num_attention_heads"]
    return merged


def _generation_config(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    ids = {token: i for i, token in enumerate(SPECIAL_TOKENS[family])}
    if family == "diffusion_gemma":
        return {
            "eos_token_id": [ids["<eos>"], ids["<turn|>"], ids["<|tool_response>"]],
            "pad_token_id": ids["<pad>"],
            "bos_token_id": ids["<bos>"],
            "max_new_tokens": config["canvas_length"],
            "max_denoising_steps": 8,
            "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
            "t_min": 0.4,
            "t_max": 0.8,
            "stability_threshold": 1,
            "confidence_threshold": 0.005,
        }
    if family == "llada2_moe":
        return {
            "eos_token_id": [ids["<|endoftext|>"], ids["<|role_end|>"]],
            "pad_token_id": config["pad_token_id"],
        }
    generation = {"_from_model_config": True}
    return generation | {
        k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if k in config
    }


# --- DiffusionGemma: written by transformers itself ---------------------------------------------------------


def _diffusion_gemma(
    directory: Path, seed: int, dtype: str, resaved_config: bool, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    import torch
    from safetensors.torch import load_file
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    ids = {token: i for i, token in enumerate(SPECIAL_TOKENS["diffusion_gemma"])}
    layers = overrides.get("num_hidden_layers", 6)
    text: dict[str, Any] = {
        "vocab_size": 384, "hidden_size": 64, "intermediate_size": 48, "moe_intermediate_size": 16,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_global_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32, "sliding_window": 8,
        "num_experts": 4, "top_k_experts": 2, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024, "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": "vision", "attention_bias": False, "attention_dropout": 0.0,
        "tie_word_embeddings": True, "initializer_range": 0.02, "pad_token_id": 0, "eos_token_id": 1,
        "bos_token_id": 2,
        "layer_types": [
            "full_attention" if i % 6 == 5 or i == layers - 1 else "sliding_attention" for i in range(layers)
        ],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
            },
        },
    }  # fmt: skip
    vision: dict[str, Any] = {
        "model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4,
        "pooling_kernel_size": 3, "position_embedding_size": 64, "standardize": True,
        "use_clipped_linears": False,
    }  # fmt: skip
    top: dict[str, Any] = {
        "canvas_length": 16, "image_token_id": ids["<|image|>"], "boi_token_id": ids["<|image>"],
        "eoi_token_id": ids["<image|>"], "eos_token_id": [ids["<eos>"], ids["<turn|>"]],
        "vision_soft_tokens_per_image": 4,
    }  # fmt: skip
    unknown = sorted(set(overrides) - set(text) - set(top) - {"vision_config"})
    if unknown:
        raise ValueError(f"no such key in the diffusion_gemma config: {', '.join(unknown)}")
    text |= {k: v for k, v in overrides.items() if k in text}
    top |= {k: v for k, v in overrides.items() if k in top}
    vision |= overrides.get("vision_config", {})

    model_config = DiffusionGemmaConfig(text_config=dict(text), vision_config=vision, **top)
    with torch.random.fork_rng():
        model = DiffusionGemmaForBlockDiffusion(model_config)
    fill(model, seed)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    if not resaved_config:
        config["text_config"].pop("per_layer_config", None)
        for key in ("global_head_dim", "num_global_key_value_heads"):
            config["text_config"][key] = text[key]
    weights = directory / "model.safetensors"
    tensors = load_file(weights)
    weights.unlink()
    return config, tensors


# --- weights ------------------------------------------------------------------------------------------------


def fill(model: torch.nn.Module, seed: int) -> None:
    """Give every tensor of a transformers model random values."""
    filled: set[int] = set()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.data_ptr() not in filled:  # tied tensors share storage: fill each once
            filled.add(tensor.data_ptr())
            tensor.copy_(_random_tensor(name, tuple(tensor.shape), seed))


def _random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: str) -> dict[str, torch.Tensor]:
    import torch

    return {
        name: _random_tensor(name, shape, seed).to(getattr(torch, dtype)) for name, shape in shapes.items()
    }


def _random_tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    import torch

    # The CPU generator takes 32 bits of seed and drops the rest.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    noise = torch.randn(shape, generator=generator)
    if len(shape) >= 2:
        # Outputs of about unit size whatever the width. Gemma's router input has a factor H^-0.5.
        return noise * (1.5 if name.endswith("router.proj.weight") else 1.3 / math.sqrt(shape[-1]))
    if name.endswith("bias"):
        return 0.1 * noise
    return 1 + (0.3 if name.endswith(("scale", "layer_scalar")) else 0.1) * noise


def write_weights(directory: str | Path, tensors: Mapping[str, torch.Tensor], shards: int = 1) -> None:
    """Write `tensors` as model.safetensors or, with `shards` > 1, as indexed shards in name order."""
    from safetensors.torch import save_file

    directory = Path(directory)
    tensors = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    if not 1 <= shards <= len(tensors):
        raise ValueError(f"cannot split {len(tensors)} tensors into {shards} shards")
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name] for name in part}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total_size = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total_size}, "weight_map": weight_map},
    )


# --- tokenizer ----------------------------------------------------------------------------------------------


def write_tokenizer(directory: str | Path, family: str, vocab_size: int = 384) -> None:
    """Train a byte-level BPE of at most `vocab_size` entries on a few sentences and write its files.

    diffusion_gemma gets chat_template.jinja, the others an inline template. DiffusionGemma and LLaDA prepend
    bos to plain text, as the originals do.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    directory, family = Path(directory), family.lower()
    special = SPECIAL_TOKENS[family]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(special) + len(alphabet):
        raise ValueError(
            f"vocab_size {vocab_size} is below {len(special) + len(alphabet)} special tokens and bytes"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    roles = TOKEN_ROLES[family]
    if family in ("diffusion_gemma", "llada"):
        bos = roles["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, special.index(bos))]
        )
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "added_tokens_decoder": {
            str(i): {"content": token, "lstrip": False, "normalized": False, "rstrip": False,
                     "single_word": False, "special": True}
            for i, token in enumerate(special)
        },
    } | roles  # fmt: skip
    if family == "diffusion_gemma":
        (directory / "chat_template.jinja").write_text(CHAT_TEMPLATES[family], encoding="utf-8")
    else:
        config["chat_template"] = CHAT_TEMPLATES[family]
    _write_json(directory / "tokenizer_config.json", config)
    _write_json(directory / "special_tokens_map.json", roles)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


# --- oracles ------------------------------------------------------------------------------------------------


def load_oracle(directory: str | Path) -> torch.nn.Module:
    """The transformers model that computes the checkpoint's function: fp32, eager attention, eval mode.

    DiffusionGemma loads as itself. LLaDA loads into Llama, LLaDA-MoE into Qwen3-MoE without top-k
    renormalisation, LLaDA2 into GLM-4-MoE (with a capacity it ignores, and which the caller's router then has
    to know), Dream into Qwen2; those are causal, so pass a 4-D additive mask of zeros and `use_cache=False`
    for the bidirectional pass, and apply Dream's shift outside. So do those of `dense_checkpoints`. Keys must
    match one to one.
    """
    import torch
    import transformers as tf
    from safetensors.torch import load_file

    directory = Path(directory)
    config = json.loads((directory / "config.json").read_text())
    architecture = config["architectures"][0]
    if architecture == "DiffusionGemmaForBlockDiffusion":
        return tf.DiffusionGemmaForBlockDiffusion.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    common = {"attn_implementation": "eager", "pad_token_id": None, "vocab_size": config["vocab_size"]}
    model: torch.nn.Module
    if architecture == "LLaDAModelLM":
        model = tf.LlamaForCausalLM(tf.LlamaConfig(
            hidden_size=config["d_model"], intermediate_size=config["mlp_hidden_size"],
            num_hidden_layers=config["n_layers"], num_attention_heads=config["n_heads"],
            num_key_value_heads=config["n_kv_heads"], rms_norm_eps=config["rms_norm_eps"],
            rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
            max_position_embeddings=config["max_sequence_length"],
            tie_word_embeddings=config["weight_tying"], **common,
        ))  # fmt: skip
        tensors = {_llama_name(name): tensor for name, tensor in tensors.items()}
    elif (family := dense.family_of(config)) is not None:
        tensors = {dense.oracle_name(name): tensor for name, tensor in tensors.items()}
        model = dense.oracle(family, config, "lm_head.weight" not in tensors)
        if family == "sdar_moe":
            tensors = _fuse_experts(tensors, range(config["num_hidden_layers"]), config["num_experts"])
    else:
        shared = common | {
            key: config[key]
            for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                        "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings")
        } | {"rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]}}  # fmt: skip
        if architecture == "LLaDA2MoeModelLM":
            shared["rope_parameters"] |= {"partial_rotary_factor": config["partial_rotary_factor"]}
            model = tf.Glm4MoeForCausalLM(tf.Glm4MoeConfig(
                head_dim=config["head_dim"], intermediate_size=config["intermediate_size"],
                moe_intermediate_size=config["moe_intermediate_size"], n_routed_experts=config["num_experts"],
                num_experts_per_tok=config["num_experts_per_tok"], n_group=config["n_group"],
                n_shared_experts=config["num_shared_experts"], topk_group=config["topk_group"],
                routed_scaling_factor=config["routed_scaling_factor"], use_qk_norm=True, num_mtp_layers=0,
                first_k_dense_replace=config["first_k_dense_replace"], norm_topk_prob=True,
                attention_bias=False, **shared,
            ))  # fmt: skip
            tensors = _glm4_moe_tensors(tensors, config)
        elif architecture == "DreamModel":
            model = tf.Qwen2ForCausalLM(
                tf.Qwen2Config(intermediate_size=config["intermediate_size"], **shared)
            )
        else:
            model = tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(
                head_dim=config["hidden_size"] // config["num_attention_heads"],
                num_experts=config["num_experts"], num_experts_per_tok=config["num_experts_per_tok"],
                norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[],
                moe_intermediate_size=config["expert_intermediate_size"], **shared,
            ))  # fmt: skip
            tensors = _fuse_experts(tensors, range(config["num_hidden_layers"]), config["num_experts"])
    tied = {"lm_head.weight"} - set(tensors)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or set(missing) - tied:
        raise ValueError(f"{directory}: missing {missing}, unexpected {unexpected}")
    return model.float().eval()


def _llama_name(name: str) -> str:
    fixed = {
        "model.transformer.wte.weight": "model.embed_tokens.weight",
        "model.transformer.ln_f.weight": "model.norm.weight",
        "model.transformer.ff_out.weight": "lm_head.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, _, layer, part, kind = name.split(".")
    parts = {
        "attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm", "q_proj": "self_attn.q_proj",
        "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj", "attn_out": "self_attn.o_proj",
        "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj", "ff_out": "mlp.down_proj",
    }  # fmt: skip
    return f"model.layers.{layer}.{parts[part]}.{kind}"


def _glm4_moe_tensors(tensors: dict[str, torch.Tensor], config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """LLaDA2's tensors under the names of GLM-4-MoE, queries, keys and values apart."""
    names = {
        "word_embeddings": "embed_tokens", "attention.dense": "self_attn.o_proj",
        "attention.query_layernorm": "self_attn.q_norm", "attention.key_layernorm": "self_attn.k_norm",
        "gate.expert_bias": "gate.e_score_correction_bias",
    }  # fmt: skip
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    out: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if "query_key_value" in name:
            sizes = [n * config["head_dim"] for n in (heads, kv_heads, kv_heads)]
            for part, rows in zip("qkv", tensor.split(sizes), strict=True):
                out[name.replace("attention.query_key_value", f"self_attn.{part}_proj")] = rows
            continue
        for old, new in names.items():
            name = name.replace(old, new)
        out[name] = tensor
    layers = range(config["first_k_dense_replace"], config["num_hidden_layers"])
    return _fuse_experts(out, layers, config["num_experts"])


def _fuse_experts(
    tensors: dict[str, torch.Tensor], layers: Iterable[int], experts: int
) -> dict[str, torch.Tensor]:
    """Qwen3-MoE and GLM-4-MoE stack experts in memory: gate_up_proj [E, 2M, H], gate rows first, down_proj
    [E, H, M].
    """
    import torch

    fused = dict(tensors)
    for i in layers:
        prefix = f"model.layers.{i}.mlp.experts."
        parts: dict[str, list[torch.Tensor]] = {
            kind: [fused.pop(f"{prefix}{e}.{kind}_proj.weight") for e in range(experts)]
            for kind in ("gate", "up", "down")
        }
        fused[prefix + "gate_up_proj"] = torch.cat(
            [torch.stack(parts["gate"]), torch.stack(parts["up"])], dim=1
        )
        fused[prefix + "down_proj"] = torch.stack(parts["down"])
    return fused
