"""Each key of each family's config.json, left out, null and with other values, and random combinations: the
logits are transformers' from the same file and weights, or both refuse.

Combinations are drawn until so many have computed logits on both sides; what both refuse is not counted. More
of them: EDGEKIT_CONFIG_COMBINATIONS=1000 pytest tests/export/test_config_sweep.py -k random
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.config_oracles import CANVAS, VOCAB, Pair, oracle_logits, our_logits

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import architecture

COMBINATIONS = int(os.environ.get("EDGEKIT_CONFIG_COMBINATIONS", "50"))

ABSENT = object()


@dataclass(frozen=True)
class Family:
    """A tiny config, other values of its keys that are supported, and values that are refused though the
    oracle computes something, or cannot be asked. Keys are paths: "text_config.head_dim".
    """

    config: dict[str, Any]
    supported: dict[str, tuple[Any, ...]]
    refused: dict[str, tuple[Any, ...]]


ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
T = "text_config."

GEMMA = Family(
    {
        "architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma",
        "boi_token_id": 1, "eoi_token_id": 2, "image_token_id": 3, "canvas_length": CANVAS,
        "dtype": "float32", "eos_token_id": [1, 6], "initializer_range": 0.02, "tie_word_embeddings": True,
        "transformers_version": "5.23.0", "vision_soft_tokens_per_image": 4,
        "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1,
            "final_logit_softcapping": 20.0, "global_head_dim": 12, "head_dim": 8,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 24, "initializer_range": 0.02,
            "intermediate_size": 20, "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 512, "model_type": "diffusion_gemma_text",
            "moe_intermediate_size": 12, "num_attention_heads": 4, "num_experts": 4,
            "num_global_key_value_heads": 1, "num_hidden_layers": 2, "num_key_value_heads": 2,
            "pad_token_id": 0, "rms_norm_eps": 1e-5, "rope_parameters": ROPE, "sliding_window": 4,
            "tie_word_embeddings": True, "top_k_experts": 2, "use_bidirectional_attention": "vision",
            "vocab_size": VOCAB,
        },
        "vision_config": {
            "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4,
            "pooling_kernel_size": 3, "position_embedding_size": 16,
        },
    },
    {
        "canvas_length": (8,), "eos_token_id": (1, [1], []), "dtype": ("bfloat16", "float16"),
        "torch_dtype": ("bfloat16",), "architectures": (["Other"],),
        "_name_or_path": ("x",), "auto_map": ({"AutoModel": "a.B"},), "quantization_config": (None,),
        T + "final_logit_softcapping": (30, 2.5, 1000.0), T + "rms_norm_eps": (1e-3, 0.5),
        T + "sliding_window": (2, 5, 512), T + "top_k_experts": (1, 3, 4),
        T + "num_experts": (2, 3), T + "num_attention_heads": (2, 8), T + "num_key_value_heads": (1, 4),
        T + "num_global_key_value_heads": (2, 4), T + "head_dim": (2, 16), T + "global_head_dim": (2, 8, 24),
        T + "hidden_size": (8, 40), T + "intermediate_size": (1, 32), T + "moe_intermediate_size": (1, 20),
        T + "vocab_size": (60,), T + "attention_dropout": (0.5,), T + "tie_word_embeddings": (False,),
        T + "max_position_embeddings": (64,), T + "use_cache": (False,), T + "initializer_range": (1.0,),
        T + "hidden_activation": ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"),
        T + "layer_types": (
            ["full_attention"] * 2, ["sliding_attention"] * 2, ["full_attention", "sliding_attention"],
        ),
        T + "per_layer_config": (
            {"1": {"head_dim": 16, "num_key_value_heads": 4}}, {"01": {"head_dim": 4}}, {"1": {}}, {},
            {"0": {"head_dim": 6}, "1": {"num_key_value_heads": 1, "skip": []}},
        ),
        T + "rope_parameters": tuple(
            ROPE | part for part in (
                {"sliding_attention": {"rope_theta": 500}},
                {"sliding_attention": {"type": "default", "rope_theta": 500.0}},
                {"sliding_attention": ROPE["full_attention"]},
                {"sliding_attention": ROPE["sliding_attention"] | {"partial_rotary_factor": 1}},
                {"sliding_attention": ROPE["sliding_attention"] | {"factor": 4.0}},
                {"full_attention": ROPE["sliding_attention"]},
                {"full_attention": {"type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}},
                {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6}},
                {"full_attention": ROPE["full_attention"] | {"factor": 8.0}},
                {"full_attention": ROPE["full_attention"] | {"partial_rotary_factor": 0}},
                {"other": 3},
            )
        ),
        T + "attention_k_eq_v": (False,), T + "enable_moe_block": (False,), T + "no_such_key": (3,),
    },
    {
        "canvas_length": (None, 0, 1.5, "8"), "tie_word_embeddings": (False,), "dtype": ("float8_e4m3fn", 3),
        "eos_token_id": ("1", 1.5, [True]), "text_config": (3, []),
        "quantization_config": ({"quant_method": "gptq", "bits": 4},),
        T + "use_bidirectional_attention": ("all", "none", True), T + "attention_bias": (True,),
        T + "hidden_activation": ("gelu", "silu", 3), T + "rms_norm_eps": (-1.0, 0.0, "1e-6", [1]),
        T + "final_logit_softcapping": (None, 0, -30.0, "30"), T + "sliding_window": (1, 0, -1, 7.5),
        T + "hidden_size": (24.5, 24.0, "24", True, -24, 2**31), T + "num_hidden_layers": (0, 2**31, 3),
        T + "num_experts": (2**31, 1), T + "head_dim": (7,), T + "num_attention_heads": (3,),
        T + "is_causal": (False, None), T + "rope_scaling": (None, {"rope_type": "linear", "factor": 2.0}),
        T + "layer_types": (
            ["full_attention"], ["chunked_attention", "full_attention"], "full_attention", [3, 4],
        ),
        T + "partial_rotary_factor": (0.5,),
        T + "per_layer_config": (
            {"2": {"head_dim": 8}}, {"x": {}}, {"1": {"sliding_window": 4}}, {"1": {"skip": ["mlp"]}},
            {"1": 3}, {"1": {"head_dim": "8"}}, [], 3,
        ),
        T + "rope_parameters": (
            {}, {"sliding_attention": ROPE["sliding_attention"]}, {"rope_type": "default", "rope_theta": 1e4},
            ROPE | {"sliding_attention": None}, ROPE | {"sliding_attention": {"rope_type": "default"}},
            *(
                ROPE | {"full_attention": ROPE["full_attention"] | part}
                for part in (
                    {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn"}, {"rope_theta": "1"},
                    {"rope_theta": -1.0}, {"rope_theta": None}, {"partial_rotary_factor": 2},
                    {"partial_rotary_factor": None}, {"factor": 0}, {"rope_type": None},
                )
            ),
            ROPE | {"sliding_attention": ROPE["sliding_attention"] | {"partial_rotary_factor": 0.5}},
        ),
    },
)  # fmt: skip

LLADA = Family(
    {
        "activation_type": "silu", "alibi": False, "alibi_bias_max": 8.0, "architectures": ["LLaDAModelLM"],
        "attention_dropout": 0.0, "attention_layer_norm": False, "attention_layer_norm_with_affine": True,
        "bias_for_layer_norm": False, "block_group_size": 1, "block_type": "llama", "d_model": 24,
        "embedding_dropout": 0.0, "embedding_size": VOCAB + 8, "eos_token_id": 1, "flash_attention": False,
        "include_bias": False, "include_qkv_bias": False, "init_cutoff_factor": None, "init_device": "meta",
        "init_fn": "mitchell", "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms",
        "layer_norm_with_affine": True, "mask_token_id": 2, "max_sequence_length": 512, "mlp_hidden_size": 20,
        "mlp_ratio": 4, "model_type": "llada", "multi_query_attention": None, "n_heads": 4, "n_kv_heads": 2,
        "n_layers": 2, "pad_token_id": 1, "precision": "amp_bf16", "residual_dropout": 0.0,
        "rms_norm_eps": 1e-3, "rope": True, "rope_full_precision": True, "rope_theta": 500000.0,
        "scale_logits": False, "torch_dtype": "float32", "transformers_version": "4.46.3", "use_cache": False,
        "vocab_size": VOCAB, "weight_tying": False,
    },
    {
        "d_model": (8, 40), "n_heads": (2, 6), "n_kv_heads": (1, 4), "mlp_hidden_size": (1, 36),
        "mlp_ratio": (2, 2.5, "x"), "vocab_size": (60,), "embedding_size": (VOCAB,), "weight_tying": (True,),
        "rms_norm_eps": (1e-6, 0.1), "rope_theta": (100, 1e6), "max_sequence_length": (64,),
        "n_layers": (1, 3),
        "rope_full_precision": (False,), "attention_dropout": (0.5,), "torch_dtype": ("bfloat16",),
        "eos_token_id": ([1, 3], -1), "tie_word_embeddings": (True,), "no_such_key": ([1],),
    },
    {
        "alibi": (True, 0), "rope": (False, 1), "block_type": ("sequential",), "activation_type": ("gelu",),
        "layer_norm_type": ("default",), "layer_norm_with_affine": (False,), "include_bias": (True,),
        "include_qkv_bias": (True,), "bias_for_layer_norm": (True,), "attention_layer_norm": (True,),
        "input_emb_norm": (True,), "scale_logits": (True,), "block_group_size": (2,),
        "n_kv_heads": (3, 0, 2.0),
        "multi_query_attention": (True, False, 3), "n_layers": (2**31, 2.5, 0), "d_model": (23, "24"),
        "rms_norm_eps": (-1, 0, "x"), "rope_theta": (0, -1, None, "x"), "mask_token_id": (1.5, "2"),
        "architectures": ("LLaDAModelLM", 3, [3]), "quantization_config": ({"quant_method": "awq"}, 3),
        "embedding_size": (0, 2**40), "weight_tying": (1, "yes"),
    },
)  # fmt: skip

MOE = Family(
    {
        "architectures": ["LLaDAMoEModelLM"], "attention_bias": False, "attention_dropout": 0.0,
        "clip_qkv": None, "dense_intermediate_size": 64, "eos_token_id": 1, "expert_intermediate_size": 12,
        "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02, "max_position_embeddings": 512,
        "model_type": "llada", "moe_layer_freq": [1, 1], "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax", "norm_topk_prob": None, "num_attention_heads": 4,
        "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "output_router_logits": False, "pad_token_id": 1, "partial_rotary_factor": 1, "qk_layernorm": True,
        "rms_norm_eps": 1e-3, "rope_scaling": None, "rope_theta": 50000.0, "routed_scaling_factor": 1,
        "router_aux_loss_coef": 0.01, "router_num_group": None, "router_topk_group": None,
        "shared_expert_intermediate_size": None, "tie_word_embeddings": False, "use_cache": False,
        "vocab_size": VOCAB,
    },
    {
        "hidden_size": (8, 40), "num_attention_heads": (2, 6), "num_key_value_heads": (1, 4),
        "num_experts": (3, 5), "num_experts_per_tok": (1, 4), "expert_intermediate_size": (1, 20),
        "rms_norm_eps": (1e-6, 0.1), "rope_theta": (100, 1e6), "tie_word_embeddings": (True,),
        "norm_topk_prob": (True, False), "head_dim": (2, 8), "router_num_group": (1, -2),
        "routed_scaling_factor": (1.0,), "partial_rotary_factor": (1.0,), "dense_intermediate_size": (3,),
        "shared_expert_intermediate_size": (0,), "max_position_embeddings": (64,), "no_such_key": ("x",),
    },
    {
        "qk_layernorm": (False,), "moe_layer_freq": ([0, 1], [1], 1, [True, True]), "attention_bias": (True,),
        "shared_expert_intermediate_size": (8,), "moe_router_enable_expert_bias": (True,),
        "moe_router_score_function": ("sigmoid",), "routed_scaling_factor": (2.5,), "router_num_group": (4,),
        "clip_qkv": (6.0,), "rope_scaling": ({"type": "linear", "factor": 2.0},), "hidden_act": ("gelu",),
        "partial_rotary_factor": (0.5,), "num_experts_per_tok": (5, 0, 1.5), "num_hidden_layers": (2**31,),
        "num_experts": (2**31,), "rms_norm_eps": (-1, 0), "num_key_value_heads": (3,), "hidden_size": (26,),
        "head_dim": (7,),
    },
)  # fmt: skip

DREAM = Family(
    {
        "architectures": ["DreamModel"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 1,
        "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20,
        "mask_token_id": 2, "max_position_embeddings": 512, "max_window_layers": 1, "model_type": "Dream",
        "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "pad_token_id": 1,
        "rms_norm_eps": 1e-3, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True,
        "use_sliding_window": False, "vocab_size": VOCAB,
    },
    {
        "hidden_size": (8, 40), "num_attention_heads": (2, 6), "num_key_value_heads": (1, 4),
        "intermediate_size": (1, 36), "rms_norm_eps": (1e-6, 0.1), "rope_theta": (100.0, 1e5),
        "tie_word_embeddings": (True,), "sliding_window": (4, 4096), "max_window_layers": (0, 28),
        "head_dim": (2, 8), "vocab_size": (60,), "num_hidden_layers": (1, 3), "no_such_key": (1,),
        "rope_scaling": ({}, {"rope_type": "default"}, {"type": "default"}),
        "rope_parameters": ({}, {"rope_type": "default"}, None),
        "layer_types": (["full_attention"] * 2,), "max_position_embeddings": (64,),
    },
    {
        "use_sliding_window": (True, "no"), "hidden_act": ("gelu",), "num_key_value_heads": (3, 0),
        "rope_scaling": ({"type": "linear", "factor": 2.0}, {"type": "yarn", "factor": 4.0}, "linear"),
        "rope_parameters": ({"rope_type": "dynamic", "factor": 2.0},), "partial_rotary_factor": (0.5,),
        "layer_types": (["full_attention", "sliding_attention"], ["sliding_attention"] * 2),
        "architectures": (["DreamForCausalLM"],), "rms_norm_eps": (-1.0, 0.0, 2),
        "num_hidden_layers": (2**31,),
        "head_dim": (7,), "vocab_size": (0, 40.5), "tie_word_embeddings": ("no", 1),
    },
)  # fmt: skip

YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 2.0, "beta_slow": 0.5,
    "mscale": 1.0, "mscale_all_dim": 0.5, "original_max_position_embeddings": 6, "llama_4_scaling_beta": 0.4,
}  # fmt: skip


def yarn(without: str = "", **own: Any) -> dict[str, Any]:
    return {key: value for key, value in (YARN | own).items() if key != without}


NEMOTRON = Family(
    {
        "architectures": ["NemotronLabsDiffusionModel"], "ar_loss_weight": 1.0, "attention_bias": False,
        "attention_dropout": 0.0, "block_size": 8, "bos_token_id": 1, "dlm_paradigm": "bidirectional",
        "eos_token_id": 1, "head_dim": 8, "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02,
        "intermediate_size": 20, "mask_token_id": 2, "max_position_embeddings": 512, "mlp_bias": False,
        "model_type": "nemotron_labs_diffusion", "num_attention_heads": 4, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-3, "rope_parameters": YARN, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": False, "vocab_size": VOCAB,
    },
    {
        "hidden_size": (8, 40), "num_attention_heads": (2, 6), "num_key_value_heads": (1, 4),
        "intermediate_size": (1, 36), "rms_norm_eps": (1e-6, 0.1), "head_dim": (2, 16), "vocab_size": (60,),
        "num_hidden_layers": (1, 3), "max_position_embeddings": (64,), "dlm_paradigm": ("block_diff",),
        "no_such_key": (1,),
        "rope_parameters": (
            yarn("mscale"), yarn("beta_fast"), yarn("beta_slow", truncate=False), yarn("mscale_all_dim"),
            yarn(mscale=0), yarn(attention_factor=1.7), yarn(factor=1.0), yarn(beta_fast=0.5, beta_slow=2.0),
            yarn("rope_type", type="yarn"), yarn(beta_fast=1.0), yarn(max_position_embeddings=3),
            yarn(rope_type="default"), yarn("factor", rope_type="default"), yarn(rope_theta=2.0),
        ),
    },
    {
        "tie_word_embeddings": (True,), "sliding_window": (8,), "attention_bias": (True,),
        "mlp_bias": (True,), "hidden_act": ("gelu",), "num_key_value_heads": (3, 0), "head_dim": (7,),
        "vision_config": ({},), "block_size": (0,), "rope_theta": (5.0,), "rope_scaling": (YARN,),
        "rms_norm_eps": (-1.0, 0.0), "num_hidden_layers": (2**31,),
        "rope_parameters": (
            yarn("factor"), yarn(factor=0.5), yarn("original_max_position_embeddings"), yarn(factor="8"),
            yarn(rope_type="llama3"), yarn(rope_theta=1.0), yarn(truncate="no"), yarn(beta_fast=-1),
            yarn(rope_type="linear"), "yarn",
        ),
    },
)  # fmt: skip

SDAR = Family(
    {
        "architectures": ["SDARForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "block_size": 4, "bos_token_id": 1, "eos_token_id": [1, 3], "head_dim": 8, "hidden_act": "silu",
        "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20, "mask_token_id": 2,
        "max_position_embeddings": 512, "max_window_layers": 2, "model_type": "sdar",
        "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "pad_token_id": 1,
        "rms_norm_eps": 1e-3, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True,
        "use_sliding_window": False, "vocab_size": VOCAB,
    },
    {
        "hidden_size": (8, 40), "num_attention_heads": (2, 6), "num_key_value_heads": (1, 4),
        "intermediate_size": (1, 36), "rms_norm_eps": (1e-6, 0.1), "rope_theta": (100.0, 1e5),
        "tie_word_embeddings": (True,), "head_dim": (2, 16), "vocab_size": (60,),
        "num_hidden_layers": (1, 3), "block_size": (1, 3, 16), "use_regular_causal": (False,),
        "rope_parameters": ({}, {"rope_type": "default"}), "no_such_key": (1,),
    },
    {
        "use_sliding_window": (True,), "use_regular_causal": (True,), "attention_bias": (True,),
        "hidden_act": ("gelu",), "num_key_value_heads": (3, 0), "head_dim": (7,), "block_size": (0, "4"),
        "rope_scaling": ({"type": "linear", "factor": 2.0},), "layer_types": (["sliding_attention"] * 2,),
        "tie_word_embeddings": ("no", 1), "num_hidden_layers": (2**31,), "vocab_size": (0, 40.5),
    },
)  # fmt: skip

FAMILIES = {
    "diffusion_gemma": GEMMA, "llada": LLADA, "llada_moe": MOE, "dream": DREAM,
    "nemotron_labs_diffusion": NEMOTRON, "sdar": SDAR,
}  # fmt: skip

#: What says which family it is, or is of the vision tower, which is left out.
NOT_SWEPT = ("model_type", "vision_config")
#: Left out, these are those of a model that is too large to build here.
LARGE = {
    ("dream", "hidden_size"),
    *(
        (family, key)
        for family in ("nemotron_labs_diffusion", "sdar")
        for key in ("hidden_size", "vocab_size")
    ),
}
#: Left out, these are slow; single changes cover them.
WIDE = {
    "vocab_size",
    "intermediate_size",
    T + "vocab_size",
    T + "hidden_size",
    T + "intermediate_size",
    "d_model",
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small cost less than waking threads for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def changed(config: dict[str, Any], *changes: tuple[str, Any]) -> dict[str, Any]:
    """The config with other values at paths; ABSENT leaves the key out."""
    new = copy.deepcopy(config)
    for path, value in changes:
        part = new
        *parents, name = path.split(".")
        for parent in parents:
            part = part[parent] if isinstance(part.get(parent), dict) else {}
        if value is ABSENT:
            part.pop(name, None)
        else:
            part[name] = copy.deepcopy(value)
    return new


def paths(family: str) -> list[str]:
    known = FAMILIES[family]
    text = [T + key for key in known.config.get("text_config", {}) if key not in NOT_SWEPT]
    return list(
        dict.fromkeys(
            [k for k in known.config if k not in NOT_SWEPT] + text + [*known.supported, *known.refused]
        )
    )


def inert(family: str, path: str) -> bool:
    """Whether the family declares that the key changes nothing: transformers may check it all the same."""
    module = importlib.import_module(f"edgekit.export.models.{family}")
    schema = (
        (module.TEXT if path.startswith(T) else module.TOP) if family == "diffusion_gemma" else module.SCHEMA
    )
    return path.split(".")[-1] in schema.no_effect


def compare(folder: Path, family: str, config: dict[str, Any], seed: int, lax: bool = False) -> bool:
    """Whether both compute, and to the same logits. Where the oracle refuses, so does edgekit, unless
    `lax`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    try:
        oracle, exact, prompt, canvas = oracle_logits(family, folder, seed)
    except Exception as error:  # whatever transformers raises
        if not lax:
            try:
                architecture(config)
            except UnsupportedModel:
                return False
            raise AssertionError(f"the oracle refuses, edgekit does not: {error!r}") from error
        return False
    pair = Pair(oracle, exact, our_logits(family, folder, prompt, canvas, seed))
    assert pair.oracle.shape == pair.ours.shape
    assert pair.gap <= pair.allowed, f"differs by {pair.gap}, allowed {pair.allowed}"
    return True


def refuse(config: dict[str, Any], path: str) -> None:
    """Edgekit refuses the config in one line that names the key."""
    with pytest.raises(UnsupportedModel) as caught:
        architecture(config)
    message = str(caught.value)
    assert message.startswith("config.json: ") and "\n" not in message and len(message) < 400, message
    assert path.split(".")[-1].removesuffix("s") in message, message


@pytest.mark.parametrize("family,path", [(f, p) for f in FAMILIES for p in paths(f)])
def test_each_key_by_itself(tmp_path: Path, family: str, path: str) -> None:
    known, computed = FAMILIES[family], 0
    for i, value in enumerate((ABSENT, None, *known.supported.get(path, ()))):
        if (family, path) in LARGE and value is ABSENT:
            continue
        if value is None and None in known.refused.get(path, ()):
            continue  # the oracle computes with it all the same
        config = changed(known.config, (path, value))
        computed += compare(tmp_path / str(i), family, config, 1, lax=inert(family, path))
    for value in known.refused.get(path, ()):
        refuse(changed(known.config, (path, value)), path)
    assert computed >= len(known.supported.get(path, ())), "a supported value was refused by the oracle"


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_combinations(tmp_path: Path, family: str, part: int) -> None:
    known, computed, wanted = FAMILIES[family], 0, len(range(part, COMBINATIONS, 5))
    for seed in range(part, 5 * COMBINATIONS, 5):
        if computed == wanted:
            break
        rng = random.Random(f"{family} {seed}")
        changes: dict[str, Any] = {}
        lax = False
        for path in rng.sample(paths(family), rng.randint(2, 7)):
            supported = [*known.supported.get(path, ())]
            if supported and rng.random() < 0.7:
                changes[path] = rng.choice(supported)
            elif (family, path) not in LARGE and path not in WIDE and path != "text_config":
                changes[path] = ABSENT if rng.random() < 0.85 else None
                lax |= inert(family, path)
            if changes.get(path, 0) is None and None in known.refused.get(path, ()):
                del changes[path]
        config = changed(known.config, *changes.items())
        try:
            computed += compare(tmp_path / str(seed), family, config, seed, lax)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {changes}: {error}") from error
    assert computed == wanted, "one in five combinations should compute, or the sweep shows little"
