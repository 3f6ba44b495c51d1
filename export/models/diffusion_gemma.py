"""DiffusionGemma (`diffusion_gemma`): one text stack that encodes committed text causally and denoises a
canvas bidirectionally.

Encoder and decoder share every matrix; they differ in the scalar that multiplies a layer's output (selected
by `phase`), in the mask, and in self-conditioning, which only the decoder has. The vision tower is left
out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from edgekit.export import ops
from edgekit.export.errors import UnsupportedModel
from edgekit.export.models.base import (
    Architecture,
    LayerSpec,
    Part,
    Rope,
    Weights,
    WeightSpec,
    heads,
    join_heads,
    linear,
    matrix,
    mixture,
    mlp,
    rope_default,
    vector,
)
from edgekit.export.models.config import positive, require, unsupported_unless


class GemmaLayer(nn.Module):
    """A layer: attention, then a dense MLP and an expert mixture side by side, norms before and after each
    branch.

    `shared_kv`: values are the scale-less norm of the raw key projection (global layers have no v_proj).
    The router reads the raw residual, not the normed one. The attention scale is 1.
    """

    activation = "gelu_tanh"

    def __init__(
        self, num_heads: int, kv_heads: int, shared_kv: bool, top_k: int, hidden: int, eps: float
    ) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.shared_kv = num_heads, kv_heads, shared_kv
        self.top_k, self.router_scale, self.eps = top_k, hidden**-0.5, eps

    def forward(
        self,
        x: Tensor,
        prefix_k: Tensor | None,
        prefix_v: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        phase: Tensor | None,
        w: Weights,
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert phase is not None
        h = ops.rms_norm(x, w["input_layernorm.weight"], self.eps)
        q = heads(linear(h, w, "self_attn.q_proj"), self.num_heads)
        raw_k = heads(linear(h, w, "self_attn.k_proj"), self.kv_heads)
        raw_v = raw_k if self.shared_kv else heads(linear(h, w, "self_attn.v_proj"), self.kv_heads)
        q = ops.rope(ops.rms_norm(q, w["self_attn.q_norm.weight"], self.eps), cos, sin)
        k = ops.rope(ops.rms_norm(raw_k, w["self_attn.k_norm.weight"], self.eps), cos, sin)
        v = ops.rms_norm(raw_v, None, self.eps)
        a = linear(join_heads(ops.attention(q, k, v, prefix_k, prefix_v, mask, 1.0)), w, "self_attn.o_proj")
        x = x + ops.rms_norm(a, w["post_attention_layernorm.weight"], self.eps)

        dense = mlp(
            ops.rms_norm(x, w["pre_feedforward_layernorm.weight"], self.eps), w, "mlp", self.activation
        )
        dense = ops.rms_norm(dense, w["post_feedforward_layernorm_1.weight"], self.eps)
        flat = x.flatten(0, 1)
        index, weight = self.route(flat, w)
        mixed = ops.rms_norm(flat, w["pre_feedforward_layernorm_2.weight"], self.eps)
        mixed = mixture(mixed, index, weight.to(flat.dtype), w, self.activation).view_as(x)
        mixed = ops.rms_norm(mixed, w["post_feedforward_layernorm_2.weight"], self.eps)
        x = x + ops.rms_norm(dense + mixed, w["post_feedforward_layernorm.weight"], self.eps)
        return x * w["layer_scalars"].index_select(0, phase).to(x.dtype), k, v

    def route(self, residual: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        """Expert indices and mixing weights [tokens, top_k], the weights summing to one before the
        per-expert scale.
        """
        u = ops.rms_norm(residual, None, self.eps) * w["router.scale"] * self.router_scale
        logits = linear(u, w, "router.proj", act_bits=16).float()
        top, index = torch.topk(torch.softmax(logits, -1), self.top_k)
        weight = top / top.sum(-1, keepdim=True)
        return index, weight * w["router.per_expert_scale"][index]


class SelfConditioning(nn.Module):
    """norm(embedded + MLP(norm(soft))): the decoder's input. With soft = 0 (no previous step) the MLP term
    is zero, the norm remains.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, embedded: Tensor, soft: Tensor, w: Weights) -> Tensor:
        n = ops.rms_norm(soft, w["pre_norm.weight"], self.eps)
        return ops.rms_norm(embedded + mlp(n, w, "mlp", "gelu_tanh"), None, self.eps)


def _layer_types(text: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Per layer: type, head_dim, KV heads; from the global_* fields or from `per_layer_config` (newer
    transformers).
    """
    types = require(text, "layer_types", "text_config")
    if len(types) != positive(text, "num_hidden_layers", "text_config"):
        raise UnsupportedModel(
            f"text_config: layer_types has {len(types)} entries for {text['num_hidden_layers']} layers"
        )
    head_dim, kv_heads = (
        positive(text, "head_dim", "text_config"),
        positive(text, "num_key_value_heads", "text_config"),
    )
    per_layer = text.get("per_layer_config") or {}
    out = []
    for i, kind in enumerate(types):
        if kind not in ("sliding_attention", "full_attention"):
            raise UnsupportedModel(
                f"text_config: layer {i} has type {kind!r}; known: sliding_attention, full_attention"
            )
        own = per_layer.get(str(i)) or {}
        dim, kv = own.get("head_dim", head_dim), own.get("num_key_value_heads", kv_heads)
        if kind == "full_attention" and not own and not per_layer:
            dim = positive(text, "global_head_dim", "text_config")
            kv = positive(text, "num_global_key_value_heads", "text_config")
        out.append((kind, dim, kv))
    return out


def _rope(text: dict[str, Any], kind: str, head_dim: int) -> Rope:
    parameters = require(text, "rope_parameters", "text_config").get(kind)
    if not parameters:
        raise UnsupportedModel(f"text_config: rope_parameters has no entry for {kind}")
    theta, rope_type = float(parameters["rope_theta"]), parameters.get("rope_type", "default")
    if rope_type == "default":
        return rope_default(theta, head_dim)
    if rope_type != "proportional":
        raise UnsupportedModel(
            f"text_config: rope_type {rope_type!r} for {kind}; known: default, proportional"
        )
    # Proportional: exponents count over the whole head, only the first pairs rotate, the others have
    # frequency zero.
    pairs = int(parameters.get("partial_rotary_factor", 1.0) * head_dim // 2)
    full = rope_default(theta, head_dim).inverse_frequency
    factor = float(parameters.get("factor", 1.0))
    return Rope(tuple(f / factor for f in full[:pairs]) + (0.0,) * (head_dim // 2 - pairs))


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `diffusion_gemma` config.json. `dtype` is that of the stored embedding, which rounds its
    scale factor.

    Raises:
        UnsupportedModel: a field is missing, or asks for something that is not implemented.
    """
    text = require(config, "text_config")
    where = "text_config"
    unsupported_unless(text, "hidden_activation", "gelu_pytorch_tanh", where)
    unsupported_unless(text, "attention_bias", False, where)
    unsupported_unless(config, "tie_word_embeddings", True)
    hidden, vocab = positive(text, "hidden_size", where), positive(text, "vocab_size", where)
    num_heads, dense = (
        positive(text, "num_attention_heads", where),
        positive(text, "intermediate_size", where),
    )
    experts, top_k = positive(text, "num_experts", where), positive(text, "top_k_experts", where)
    width, eps = positive(text, "moe_intermediate_size", where), float(require(text, "rms_norm_eps", where))
    window = positive(text, "sliding_window", where)
    if top_k > experts:
        raise UnsupportedModel(f"{where}: top_k_experts {top_k} of num_experts {experts}: not possible")
    types = _layer_types(text)
    decoder, encoder = "model.decoder.", "model.encoder.language_model."
    modules: dict[tuple[str, int, int], GemmaLayer] = {}

    def layer(i: int, kind: str, head_dim: int, kv_heads: int) -> LayerSpec:
        p, full = f"{decoder}layers.{i}.", kind == "full_attention"
        q, kv = num_heads * head_dim, kv_heads * head_dim
        if num_heads % kv_heads:
            raise UnsupportedModel(
                f"{where}: layer {i} has {num_heads} attention heads over {kv_heads} KV heads; "
                "they do not divide"
            )

        def norm(name: str, size: int = hidden) -> WeightSpec:
            return vector(name + ".weight", size, f"{p}{name}.weight")

        weights = [
            norm("input_layernorm"),
            matrix("self_attn.q_proj", q, hidden, "attention", p + "self_attn.q_proj.weight"),
            matrix("self_attn.k_proj", kv, hidden, "attention", p + "self_attn.k_proj.weight"),
            norm("self_attn.q_norm", head_dim),
            norm("self_attn.k_norm", head_dim),
            matrix("self_attn.o_proj", hidden, q, "attention", p + "self_attn.o_proj.weight"),
            norm("post_attention_layernorm"),
            norm("pre_feedforward_layernorm"),
            matrix("mlp.gate_proj", dense, hidden, "shared_mlp", p + "mlp.gate_proj.weight"),
            matrix("mlp.up_proj", dense, hidden, "shared_mlp", p + "mlp.up_proj.weight"),
            matrix("mlp.down_proj", hidden, dense, "shared_mlp", p + "mlp.down_proj.weight"),
            norm("post_feedforward_layernorm_1"),
            matrix("router.proj", experts, hidden, "router", p + "router.proj.weight"),
            vector("router.scale", hidden, p + "router.scale"),
            vector("router.per_expert_scale", experts, p + "router.per_expert_scale"),
            norm("pre_feedforward_layernorm_2"),
            norm("post_feedforward_layernorm_2"),
            norm("post_feedforward_layernorm"),
            # In the order of `phase`: the decoder's (DENOISE), then the encoder's (PREFILL).
            vector("layer_scalars", 2, p + "layer_scalar", f"{encoder}layers.{i}.layer_scalar"),
        ]
        if not full:
            weights.insert(
                3, matrix("self_attn.v_proj", kv, hidden, "attention", p + "self_attn.v_proj.weight")
            )
        mixture = tuple(
            (
                matrix("gate_up", 2 * width, hidden, "experts", Part(p + "experts.gate_up_proj", e)),
                matrix("down", hidden, width, "experts", Part(p + "experts.down_proj", e)),
            )
            for e in range(experts)
        )
        module = modules.setdefault(
            (kind, head_dim, kv_heads), GemmaLayer(num_heads, kv_heads, full, top_k, hidden, eps)
        )
        name = ("full" if full else "sliding") + (
            "" if len({t for t in types if t[0] == kind}) == 1 else f"_{head_dim}x{kv_heads}"
        )
        return LayerSpec(
            name,
            module,
            tuple(weights),
            mixture,
            kv_heads,
            head_dim,
            name,
            None if full else window,
            uses_mask=True,
            uses_phase=True,
            activation=GemmaLayer.activation,
        )

    layers = tuple(layer(i, *t) for i, t in enumerate(types))
    ropes = {
        spec.rope: _rope(text, kind, spec.head_dim) for spec, (kind, _, _) in zip(layers, types, strict=True)
    }
    self_conditioning = decoder + "self_conditioning."
    # The reference casts sqrt(hidden_size) to the weight's dtype before multiplying.
    scale = torch.tensor(hidden**0.5).to(getattr(torch, dtype)).item()
    return Architecture(
        family="diffusion_gemma",
        sampler="diffusion_gemma",
        hidden_size=hidden,
        vocab_size=vocab,
        norm_eps=eps,
        layers=layers,
        ropes=ropes,
        embedding=matrix("embedding", vocab, hidden, "embedding", decoder + "embed_tokens.weight"),
        head=None,
        final=(vector("norm.weight", hidden, decoder + "norm.weight"),),
        embedding_scale=scale,
        softcap=float(text.get("final_logit_softcapping") or 0.0),
        self_conditioning=SelfConditioning(eps),
        self_conditioning_weights=(
            vector("pre_norm.weight", hidden, self_conditioning + "pre_norm.weight"),
            matrix(
                "mlp.gate_proj", dense, hidden, "self_conditioning", self_conditioning + "gate_proj.weight"
            ),
            matrix("mlp.up_proj", dense, hidden, "self_conditioning", self_conditioning + "up_proj.weight"),
            matrix(
                "mlp.down_proj", hidden, dense, "self_conditioning", self_conditioning + "down_proj.weight"
            ),
        ),
        canvas_length=positive(config, "canvas_length"),
        causal_prefix=True,
        ignored=("model.encoder.vision_tower.*", "model.encoder.embed_vision.*", "*embed_vision.embedding.*"),
        notes=("the vision tower is left out: this is the text model",),
        defaults={"eos_token_id": config["eos_token_id"]} if config.get("eos_token_id") is not None else {},
    )
