"""Models that transformers builds from a family's config.json, and edgekit's from the same file and weights.

DiffusionGemma's class reads the file itself; Qwen2's reads Dream's keys, Ministral 3's and Qwen3's those of
Nemotron-Labs-Diffusion and SDAR, which have their names and defaults.
LLaDA and LLaDA-MoE have no class there: their keys are renamed to those of Llama and Qwen3-MoE, with the
defaults of their own published classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.models import architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights
from support.checkpoints import fill, write_weights

VOCAB = 40
PROMPT, CANVAS = 11, 5


class Refused(Exception):
    """The model's own class computes something else, or nothing, from this config."""


@dataclass(frozen=True)
class Pair:
    """Logits [1, T, V] of transformers in float32 and float64, and of edgekit. Of DiffusionGemma those of two
    passes: without and with the logits of a step before.
    """

    oracle: torch.Tensor
    exact: torch.Tensor
    ours: torch.Tensor

    @property
    def allowed(self) -> float:
        """Four times what float32 costs the oracle itself, at least 1e-4."""
        return max(1e-4, 4 * float((self.oracle - self.exact).abs().max()))

    @property
    def gap(self) -> float:
        """The largest difference between edgekit and the oracle."""
        return float((self.ours - self.oracle).abs().max())


def diffusion_gemma(folder: Path) -> tuple[torch.nn.Module, Callable[[str], str | None]]:
    """The model that transformers makes of config.json in `folder`, and the stored names of its tensors."""
    config = tf.DiffusionGemmaConfig.from_pretrained(folder)
    model = tf.DiffusionGemmaForBlockDiffusion._from_config(
        config, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
    )

    def stored(name: str) -> str | None:
        tied = name.startswith("model.encoder.language_model.") and not name.endswith("layer_scalar")
        return None if tied or name == "lm_head.weight" else name

    return model, stored


def _causal(config: Any, cls: Any) -> Any:
    config._attn_implementation = config._experts_implementation = "eager"
    return cls(config)


def dream(folder: Path) -> tuple[torch.nn.Module, Callable[[str], str | None]]:
    config = json.loads((folder / "config.json").read_text())
    for key in ("model_type", "architectures", "dtype", "torch_dtype"):
        config.pop(key, None)
    read = tf.Qwen2Config.from_dict(config)
    if read.hidden_act != "silu" or set(read.layer_types) != {"full_attention"}:
        raise Refused("not Dream's activation or attention")
    model = _causal(read, tf.Qwen2ForCausalLM)
    tied = read.tie_word_embeddings
    return model, lambda name: None if tied and name == "lm_head.weight" else name


def nemotron_labs_diffusion(folder: Path) -> tuple[torch.nn.Module, Callable[[str], str | None]]:
    config = json.loads((folder / "config.json").read_text())
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise Refused("biases, which Ministral has none of")
    for key in ("model_type", "architectures", "dtype", "torch_dtype", "attention_bias", "mlp_bias"):
        config.pop(key, None)
    read = tf.Ministral3Config.from_dict(config)
    if read.hidden_act != "silu" or read.tie_word_embeddings or read.sliding_window is not None:
        raise Refused("not Nemotron's activation, head or attention")
    names = {"lm_head.weight": "diffusion_head.weight"}
    return (
        _causal(read, tf.Ministral3ForCausalLM),
        lambda name: names.get(name, "encoder." + name.removeprefix("model.")),
    )


def sdar(folder: Path) -> tuple[torch.nn.Module, Callable[[str], str | None]]:
    config = json.loads((folder / "config.json").read_text())
    for key in ("model_type", "architectures", "dtype", "torch_dtype"):
        config.pop(key, None)
    read = tf.Qwen3Config.from_dict(config)
    if read.hidden_act != "silu" or set(read.layer_types) != {"full_attention"} or read.attention_bias:
        raise Refused("not SDAR's activation, attention or biases")
    tied = read.tie_word_embeddings
    return _causal(
        read, tf.Qwen3ForCausalLM
    ), lambda name: None if tied and name == "lm_head.weight" else name


#: LLaDAConfig's defaults, of the keys that Llama has under other names; but for embedding_size, whose default
#: belongs to the vocabulary of GPT-2.
LLADA = {
    "d_model": 768, "n_heads": 12, "n_kv_heads": None, "n_layers": 12, "mlp_hidden_size": None,
    "mlp_ratio": 4, "vocab_size": 50257, "embedding_size": None, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_sequence_length": 1024, "weight_tying": True, "multi_query_attention": None,
}  # fmt: skip
#: And those of what Llama has no key for, with the values that make the model a Llama.
LLADA_FIXED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "block_type": ("sequential", ("llama",)), "activation_type": ("swiglu", ("silu",)),
    "layer_norm_type": ("default", ("rms",)), "rope": (False, (True,)),
    "alibi": (False, (False, None)), "attention_layer_norm": (False, (False, None)),
    "input_emb_norm": (False, (False, None)), "scale_logits": (False, (False, None)),
    "include_bias": (False, (False,)), "include_qkv_bias": (False, (False,)),
    "bias_for_layer_norm": (None, (False, None)), "block_group_size": (1, (1,)),
    "layer_norm_with_affine": (True, (True,)),
}  # fmt: skip


def llada(folder: Path) -> tuple[torch.nn.Module, Callable[[str], str | None]]:
    config = json.loads((folder / "config.json").read_text())
    for key, (default, fine) in LLADA_FIXED.items():
        if config.get(key, default) not in fine:
            raise Refused(key)
    v = LLADA | {key: config[key] for key in LLADA if key in config}
    kv_heads = v["n_kv_heads"] or (1 if v["multi_query_attention"] else v["n_heads"])
    read = tf.LlamaConfig(
        hidden_size=v["d_model"], intermediate_size=v["mlp_hidden_size"] or v["mlp_ratio"] * v["d_model"],
        num_hidden_layers=v["n_layers"], num_attention_heads=v["n_heads"], num_key_value_heads=kv_heads,
        vocab_size=v["embedding_size"] or v["vocab_size"], rms_norm_eps=v["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": v["rope_theta"]},
        max_position_embeddings=v["max_sequence_length"], tie_word_embeddings=bool(v["weight_tying"]),
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm", "o_proj": "attn_out",
        "q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "gate_proj": "ff_proj",
        "up_proj": "up_proj", "down_proj": "ff_out",
    }  # fmt: skip
    whole = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"}

    def stored(name: str) -> str | None:
        if name == "lm_head.weight" and v["weight_tying"]:
            return None
        part = name.removesuffix(".weight")
        if part in whole:
            return f"model.transformer.{whole[part]}.weight"
        return f"model.transformer.blocks.{part.split('.')[2]}.{names[part.split('.')[-1]]}.weight"

    return _causal(read, tf.LlamaForCausalLM), stored


#: What the class of LLaDA-MoE means where a config is silent, and what makes the model a Qwen3-MoE.
LLADA_MOE_FIXED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "qk_layernorm": (None, (True,)), "hidden_act": ("silu", ("silu",)), "rope_scaling": (None, (None,)),
    "attention_bias": (False, (False, None)), "clip_qkv": (None, (None,)),
    "shared_expert_intermediate_size": (None, (None, 0)),
    "moe_router_enable_expert_bias": (None, (None, False)),
    "moe_router_score_function": (None, (None, "softmax")), "routed_scaling_factor": (1, (1, None)),
    "router_num_group": (-2, (None, -2, 1)), "router_topk_group": (-2, (None, -2, 1)),
    "partial_rotary_factor": (1, (1, None)),
}  # fmt: skip


def llada_moe(folder: Path) -> tuple[torch.nn.Module, Callable[[str], str | None]]:
    config = json.loads((folder / "config.json").read_text())
    for key, (default, fine) in LLADA_MOE_FIXED.items():
        if config.get(key, default) not in fine:
            raise Refused(key)
    if not all(config.get("moe_layer_freq") or [1]):
        raise Refused("moe_layer_freq")
    heads = config["num_attention_heads"]
    own = {key: config[key] for key in ("max_position_embeddings", "rms_norm_eps") if key in config}
    read = tf.Qwen3MoeConfig(**{"rms_norm_eps": 1e-5} | own | dict(
        hidden_size=config["hidden_size"], vocab_size=config["vocab_size"], num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        num_hidden_layers=config["num_hidden_layers"], num_experts=config["num_experts"],
        num_experts_per_tok=config["num_experts_per_tok"],
        moe_intermediate_size=config["expert_intermediate_size"], norm_topk_prob=False,
        decoder_sparse_step=1, mlp_only_layers=[], pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
    ))  # fmt: skip
    tied = read.tie_word_embeddings
    return _causal(read, tf.Qwen3MoeForCausalLM), lambda name: None if tied and "lm_head" in name else name


ORACLES = {
    "diffusion_gemma": diffusion_gemma, "dream": dream, "llada": llada, "llada_moe": llada_moe,
    "nemotron_labs_diffusion": nemotron_labs_diffusion, "sdar": sdar,
}  # fmt: skip


def _behind_text(family: str, folder: Path) -> torch.Tensor | None:
    """The mask [T, T] of a canvas behind the prompt, for families that encode text in blocks."""
    if family not in ("nemotron_labs_diffusion", "sdar"):
        return None
    config = json.loads((folder / "config.json").read_text())
    block = (config.get("block_size") or 4) if family == "sdar" else 1
    number = torch.arange(PROMPT + CANVAS) // block
    number[PROMPT:] = PROMPT + CANVAS
    return torch.where(number[:, None] >= number[None], 0.0, -1e30)


def _split_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Qwen3-MoE holds experts stacked; files hold them one by one."""
    split = {}
    for name, tensor in tensors.items():
        if name.endswith(".mlp.experts.gate_up_proj"):
            for e, both in enumerate(tensor):
                gate, up = both.chunk(2)
                prefix = name.removesuffix("gate_up_proj")
                split |= {f"{prefix}{e}.gate_proj.weight": gate, f"{prefix}{e}.up_proj.weight": up}
        elif name.endswith(".mlp.experts.down_proj"):
            split |= {
                f"{name.removesuffix('down_proj')}{e}.down_proj.weight": x for e, x in enumerate(tensor)
            }
        else:
            split[name] = tensor
    return split


@torch.no_grad()
def oracle_logits(
    family: str, folder: Path, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write random weights for config.json in `folder`; returns the oracle's logits in float32 and float64,
    the prompt and the canvas. Raises whatever transformers raises, and Refused.
    """
    model, stored = ORACLES[family](folder)
    model.eval()
    fill(model, seed)
    tensors = {n: t.detach().clone() for k, t in model.state_dict().items() if (n := stored(k)) is not None}
    if family == "llada_moe":
        tensors = _split_experts(tensors)
    write_weights(folder, tensors)
    generator = torch.Generator().manual_seed(seed)
    prompt, canvas = (torch.randint(0, VOCAB, (1, n), generator=generator) for n in (PROMPT, CANVAS))

    def run() -> torch.Tensor:
        if family == "diffusion_gemma":
            first = model(input_ids=prompt, decoder_input_ids=canvas).logits
            before = conditioning(seed, first)
            second = model(input_ids=prompt, decoder_input_ids=canvas, self_conditioning_logits=before).logits
            return torch.cat([first, second], 1)
        dtype = next(model.parameters()).dtype
        if (mask := _behind_text(family, folder)) is not None:
            both = torch.cat((prompt, canvas), 1)
            given = mask.to(dtype)[None, None]
            return model(input_ids=both, attention_mask=given, use_cache=False).logits[:, PROMPT:]
        full = torch.zeros(1, 1, PROMPT, PROMPT, dtype=dtype)
        return model(input_ids=prompt, attention_mask=full, use_cache=False).logits

    single = run()
    if not torch.isfinite(single).all():
        raise Refused("logits that are not finite")
    model.double()
    return single, run(), prompt, canvas


def conditioning(seed: int, like: torch.Tensor) -> torch.Tensor:
    """Logits as of a step before: given to both, or rounding would be fed back and grow."""
    return 3 * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed + 1)).to(like.dtype)


@torch.no_grad()
def our_logits(
    family: str, folder: Path, prompt: torch.Tensor, canvas: torch.Tensor, seed: int
) -> torch.Tensor:
    """Edgekit's logits for the checkpoint in `folder`. Raises EdgekitError."""
    checkpoint = Checkpoint.open(folder)
    built = architecture(checkpoint.config)
    checkpoint.check(built.stored_shapes(), built.ignored)
    model = ReferenceModel(built, load_float_weights(built, checkpoint)).eval()
    if family == "diffusion_gemma":
        kv = model.encode(prompt)
        first = model.denoise(canvas, kv)
        soft = torch.softmax(conditioning(seed, first), -1) @ model.embedding
        return torch.cat([first, model.denoise(canvas, kv, soft=soft)], 1)
    return model.denoise(canvas, model.encode(prompt)) if built.causal_prefix else model.denoise(prompt)
