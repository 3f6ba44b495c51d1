"""DiffusionGemma (`diffusion_gemma`): one text stack that encodes committed text causally and denoises a
canvas bidirectionally.

Encoder and decoder share every matrix; they differ in the scalar that multiplies a layer's output (selected
by `phase`), in the mask, and in self-conditioning, which only the decoder has. The vision tower is left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgekit.export import ops
from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import config as c
from edgekit.export.models.base import (
    Architecture,
    LayerInputs,
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
    rotated,
    route,
    vector,
)
from edgekit.export.models.config import Key, integer, number, only

SLIDING, FULL = "sliding_attention", "full_attention"
#: Names that transformers has for one function.
GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh")
#: What DiffusionGemmaTextConfig rotates by where a config does not say.
ROPES: dict[str, Any] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
ABSENT = c.Kind("only a config without this key is supported", lambda v: False)
DTYPE = Key(only("float32", "bfloat16", "float16", "float64"), None, None)
TOP = c.Schema(
    {
        "text_config": Key(c.TABLE, {}, {}),
        "canvas_length": Key(integer(high=1 << 22), 256),
        "tie_word_embeddings": Key(only(True), True),
        "eos_token_id": c.TOKEN,
        "dtype": DTYPE,
        "torch_dtype": DTYPE,
    },
    c.NO_EFFECT
    | {
        "audio_config", "audio_token_id", "boa_token_id", "boi_token_id", "eoa_token_id", "eoi_token_id",
        "image_token_id", "video_token_id", "vision_config", "vision_soft_tokens_per_image",
    },
)  # fmt: skip
#: Defaults of DiffusionGemmaTextConfig. `save_pretrained` leaves out final_logit_softcapping where it is 30,
#: and writes `per_layer_config` in place of the global_* keys.
TEXT = c.Schema(
    {
        "model_type": Key(only("diffusion_gemma_text"), "diffusion_gemma_text", "diffusion_gemma_text"),
        "vocab_size": Key(integer(high=c.MOST_TOKENS), 262144),
        "hidden_size": Key(integer(), 2304),
        "intermediate_size": Key(integer(), 9216),
        "moe_intermediate_size": Key(integer()),
        "num_hidden_layers": Key(integer(high=c.MOST_LAYERS), 30),
        "num_attention_heads": Key(integer(), 8),
        "num_key_value_heads": Key(integer(), 4),
        "num_global_key_value_heads": Key(integer(), None, None),  # as in sliding layers
        "head_dim": Key(integer(), 256),
        "global_head_dim": Key(integer(), 512),
        "per_layer_config": Key(c.TABLE, None, {}),  # left out: by the global_* keys; null: all layers alike
        "num_experts": Key(integer(high=c.MOST_EXPERTS)),
        "top_k_experts": Key(integer(high=c.MOST_EXPERTS)),
        "hidden_activation": Key(only(*GELU_TANH), "gelu_pytorch_tanh"),
        "rms_norm_eps": Key(c.RMS_EPS, 1e-6),
        "max_position_embeddings": Key(integer(high=c.MOST_POSITIONS), 131072),
        # With a window of one, the cache of transformers keeps the whole prefix: x[-0:] is everything.
        "sliding_window": Key(integer(2, c.MOST_POSITIONS), 512),
        "layer_types": Key(c.STRINGS, None, None),  # every sixth is full
        "rope_parameters": Key(c.TABLE, ROPES, ROPES),
        # Even null replaces rope_parameters in transformers.
        "rope_scaling": Key(ABSENT, None),
        "partial_rotary_factor": Key(only(1), None, None),
        "final_logit_softcapping": Key(number(1e-3, 1e6), 30.0),
        # Of images alone, which are left out; "all" would let the prompt look ahead.
        "use_bidirectional_attention": Key(only("vision"), None, None),
        "is_causal": Key(ABSENT, None),
        "attention_bias": Key(only(False), False),
        "tie_word_embeddings": Key(c.FLAG, True),  # the top level decides
        "dtype": DTYPE,
        "torch_dtype": DTYPE,
    },
    prefix="text_config.",
)
_ROPE_KEYS = {
    "rope_type": Key(only("default", "proportional"), "default"),
    "rope_theta": Key(c.ROPE_THETA),
    "partial_rotary_factor": Key(number(0, 1), 1.0),
    "factor": Key(number(1e-6, 1e6), 1.0),  # of the proportional type
}
_LAYER_KEYS = {
    "head_dim": Key(integer(), None),
    "num_key_value_heads": Key(integer(), None),
    "skip": Key(c.Kind("skipped parts of a layer are not supported", lambda v: v == []), None),
}


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

    def forward(self, inputs: LayerInputs, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
        assert inputs.phase is not None
        x = inputs.x
        h = ops.rms_norm(x, w["input_layernorm.weight"], self.eps)
        q = heads(linear(h, w, "self_attn.q_proj"), self.num_heads)
        raw_k = heads(linear(h, w, "self_attn.k_proj"), self.kv_heads)
        raw_v = raw_k if self.shared_kv else heads(linear(h, w, "self_attn.v_proj"), self.kv_heads)
        q = ops.rms_norm(q, w["self_attn.q_norm.weight"], self.eps)
        q, k = rotated(q, ops.rms_norm(raw_k, w["self_attn.k_norm.weight"], self.eps), inputs)
        v = ops.rms_norm(raw_v, None, self.eps)
        a = ops.attention(q, k, v, inputs.prefix_k, inputs.prefix_v, inputs.mask, 1.0)
        a = linear(join_heads(a), w, "self_attn.o_proj")
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
        return x * w["layer_scalars"].index_select(0, inputs.phase).to(x.dtype), k, v

    def route(self, residual: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        """Expert indices and mixing weights [tokens, top_k], the weights summing to one before the
        per-expert scale.
        """
        u = ops.rms_norm(residual, None, self.eps) * w["router.scale"] * self.router_scale
        logits = linear(u, w, "router.proj", act_bits=16).float()
        return route(logits, self.top_k, normalize=True, expert_scale=w["router.per_expert_scale"])


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


@dataclass(frozen=True)
class _LayerType:
    """A kind of attention and its shape."""

    kind: str
    head_dim: int
    kv_heads: int


def _layer_types(text: dict[str, Any]) -> tuple[list[_LayerType], tuple[str, ...]]:
    """The type of each layer by the rules of DiffusionGemmaTextConfig, and what the user is told of them."""
    count, where, notes = text["num_hidden_layers"], f"{c.FILE}: text_config", tuple[str, ...]()
    kinds = text["layer_types"]
    if kinds is None:
        kinds = [SLIDING if (i + 1) % 6 else FULL for i in range(count)]
    kinds = list(kinds)
    if len(kinds) != count:
        raise UnsupportedModel(
            f"{where}.layer_types has {len(kinds)} entries where num_hidden_layers is {count}"
        )
    for i, kind in enumerate(kinds):
        if kind not in (SLIDING, FULL):
            raise UnsupportedModel(
                f"{where}.layer_types has {c.shown(kind)} for layer {i}; known: {SLIDING}, {FULL}"
            )
    if kinds[-1] != FULL:
        kinds[-1] = FULL
        notes = (f"{where}.layer_types: the last layer is {FULL} whatever the file says",)
    own = _own_shapes(text, kinds)
    types = [
        _LayerType(
            kind,
            own.get(i, {}).get("head_dim") or text["head_dim"],
            own.get(i, {}).get("num_key_value_heads") or text["num_key_value_heads"],
        )
        for i, kind in enumerate(kinds)
    ]
    for kind in (SLIDING, FULL):
        if len({t for t in types if t.kind == kind}) > 1:
            raise UnsupportedModel(
                f"{where}.per_layer_config has several shapes of {kind}; layers of one type have one shape"
            )
    return types, notes


def _own_shapes(text: dict[str, Any], kinds: list[str]) -> dict[int, dict[str, Any]]:
    """Shapes of single layers in place of `head_dim` and `num_key_value_heads`."""
    if text["per_layer_config"] is None:
        own = {
            "head_dim": text["global_head_dim"],
            "num_key_value_heads": text["num_global_key_value_heads"],
        }
        return {i: own for i, kind in enumerate(kinds) if kind == FULL}
    shapes = {}
    for name, own in text["per_layer_config"].items():
        where = f"text_config.per_layer_config.{c.shown(name)[1:-1]}"
        # Names are padded with zeros to equal length where there are ten layers or more.
        if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(kinds)):
            raise UnsupportedModel(f"{c.FILE}: {where} is none of the {len(kinds)} layers")
        if not isinstance(own, dict):
            raise UnsupportedModel(f"{c.FILE}: {where} is {c.shown(own)}; expected an object")
        schema = c.Schema(_LAYER_KEYS, frozenset(), where + ".")
        if unknown := schema.unknown(own):
            raise UnsupportedModel(
                f"{c.FILE}: {where} has {c.shown(unknown[0])}; only head_dim and num_key_value_heads may "
                "differ between layers"
            )
        shapes[int(name)] = schema.read(own)
    return shapes


def _rope(text: dict[str, Any], kind: str, head_dim: int) -> Rope:
    entry = text["rope_parameters"].get(kind)
    where = f"text_config.rope_parameters.{kind}"
    if not isinstance(entry, dict):
        found = "is missing" if kind not in text["rope_parameters"] else f"is {c.shown(entry)}"
        raise UnsupportedModel(f"{c.FILE}: {where} {found}; expected an object with rope_type and rope_theta")
    v = c.Schema(_ROPE_KEYS, prefix=where + ".").read(c.with_rope_type(entry))
    full = rope_default(v["rope_theta"], head_dim).inverse_frequency
    if v["rope_type"] == "default":
        if v["partial_rotary_factor"] != 1:
            raise UnsupportedModel(
                f"{c.FILE}: {where}.partial_rotary_factor is {v['partial_rotary_factor']}; with rope_type "
                "'default' only 1 is supported"
            )
        return Rope(full)
    # Proportional: exponents count over the whole head, only the first pairs rotate, the others have
    # frequency zero.
    pairs = int(v["partial_rotary_factor"] * head_dim // 2)
    return Rope(tuple(f / v["factor"] for f in full[:pairs]) + (0.0,) * (head_dim // 2 - pairs))


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `diffusion_gemma` config.json. `dtype` is that of the stored embedding, which rounds its
    scale factor.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    top = TOP.read(config)
    text = TEXT.read(top["text_config"])
    hidden, vocab, dense = text["hidden_size"], text["vocab_size"], text["intermediate_size"]
    num_heads, experts, top_k = text["num_attention_heads"], text["num_experts"], text["top_k_experts"]
    width, eps, window = text["moe_intermediate_size"], text["rms_norm_eps"], text["sliding_window"]
    c.check_experts(text["num_hidden_layers"], experts, top_k, "top_k_experts", TEXT.prefix)
    types, notes = _layer_types(text)
    for t in dict.fromkeys(types):
        c.check_heads(num_heads, t.kv_heads, t.head_dim, f"text_config: {t.kind}: ")
    decoder, encoder = "model.decoder.", "model.encoder.language_model."
    modules = {
        t.kind: GemmaLayer(num_heads, t.kv_heads, t.kind == FULL, top_k, hidden, eps)
        for t in dict.fromkeys(types)
    }

    def layer(i: int, t: _LayerType) -> LayerSpec:
        p, full, head_dim = f"{decoder}layers.{i}.", t.kind == FULL, t.head_dim
        q, kv = num_heads * head_dim, t.kv_heads * head_dim

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
        name = "full" if full else "sliding"
        return LayerSpec(
            name,
            modules[t.kind],
            tuple(weights),
            mixture,
            t.kv_heads,
            head_dim,
            name,
            None if full else window,
            uses_mask=True,
            uses_phase=True,
            activation=GemmaLayer.activation,
        )

    layers = tuple(layer(i, t) for i, t in enumerate(types))
    ropes = {
        spec.rope: _rope(text, t.kind, t.head_dim)
        for spec, t in dict(zip(types, zip(layers, types, strict=True), strict=True)).values()
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
        softcap=text["final_logit_softcapping"],
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
        canvas_length=top["canvas_length"],
        max_positions=text["max_position_embeddings"],
        causal_prefix=True,
        ignored=("model.encoder.vision_tower.*", "model.encoder.embed_vision.*", "*embed_vision.embedding.*"),
        notes=(
            "the vision tower is left out: this is the text model",
            *notes,
            *TOP.notes(config),
            *TEXT.notes(top["text_config"]),
        ),
        defaults=c.token_defaults(top),
    )
