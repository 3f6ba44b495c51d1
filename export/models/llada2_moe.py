"""LLaDA2.0, 2.1 and 2.2 (`llada2_moe`): pre-norm layers with partial rotation, experts that a sigmoid router
chooses beside one that every token has, and blocks of text that see themselves and what precedes them.

2.0 and 2.1 have the same configuration and the same tensors. 2.2 has `expert_capacity`: the rows of a block
choose among so many experts together, in place of the groups, whose keys stay in the file without effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import config as c
from edgekit.export.models.base import (
    Architecture,
    LayerSpec,
    Part,
    Weights,
    WeightSpec,
    linear,
    matrix,
    mixture,
    mlp,
    rope_default,
    route,
    vector,
)
from edgekit.export.models.config import Key, integer, number, only
from edgekit.export.models.transformer import PreNormLayer

#: The released checkpoints' vocabulary, and ids that their files may leave out.
RELEASED_VOCAB = 157184
RELEASED_IDS = {"mask_token_id": 156895, "eos_token_id": 156892, "pad_token_id": 156892}
#: 2.2 alone has them: what removes a position, and what puts one before it.
RELEASED_EDITS = {"delete_token_id": 156930, "insert_token_id": 156931}
BLOCK = 32  # of all of them, which 2.0 and 2.1 do not say
#: What the published procedures generate with: that of 2.0, which never writes over a token, and that of 2.2.
DECODING = {"steps": 32, "threshold": 0.95}
EDITING = {"steps": 32, "threshold": 0.5, "editing_threshold": 0.0, "max_post_steps": 16}

#: Defaults of LLaDA2MoeConfig, where it has any that work; rope_theta differs between releases.
SCHEMA = c.Schema(
    {
        "vocab_size": Key(integer(high=c.MOST_TOKENS), 30592),
        "hidden_size": Key(integer(), 1024),
        "intermediate_size": Key(integer()),
        "moe_intermediate_size": Key(integer()),
        "num_hidden_layers": Key(integer(high=c.MOST_LAYERS), 24),
        "num_attention_heads": Key(integer(), 16),
        "num_key_value_heads": Key(integer()),
        "head_dim": Key(integer(), None, None),  # hidden_size / num_attention_heads
        "num_experts": Key(integer(high=c.MOST_EXPERTS), 16),
        "num_experts_per_tok": Key(integer(high=c.MOST_EXPERTS), 2),
        "num_shared_experts": Key(integer(0, c.MOST_EXPERTS), 0, 0),
        "first_k_dense_replace": Key(integer(0, c.MOST_LAYERS), 0),
        "n_group": Key(integer(high=c.MOST_EXPERTS), 8),
        "topk_group": Key(integer(high=c.MOST_EXPERTS), 4),
        "expert_capacity": Key(integer(0, c.MOST_EXPERTS), 0, 0),
        "block_size": Key(integer(high=c.MOST_POSITIONS), BLOCK, BLOCK),
        "routed_scaling_factor": Key(number(1e-6, 1e6), 2.5),
        "norm_topk_prob": Key(only(True), True, True),
        "score_function": Key(only("sigmoid"), "sigmoid", "sigmoid"),
        "moe_router_enable_expert_bias": Key(only(True), True, True),
        "router_dtype": Key(only("fp32"), "fp32", "fp32"),
        "hidden_act": Key(only("silu", "swish"), "silu"),
        "rms_norm_eps": Key(c.RMS_EPS, 1e-5),
        "max_position_embeddings": Key(integer(high=c.MOST_POSITIONS), 16384),
        "tie_word_embeddings": Key(c.FLAG, False, False),
        "rope_theta": Key(c.ROPE_THETA),
        **c.PLAIN_ROPE,
        "partial_rotary_factor": Key(number(0, 1), 0.5),
        "rotary_dim": Key(integer(0), None, None),  # head_dim * partial_rotary_factor
        "use_qk_norm": Key(only(True), True),
        "use_qkv_bias": Key(only(False), False, False),
        "use_bias": Key(only(False), True, False),
        "use_rmsnorm": Key(only(True), True, True),
        "use_sliding_window": Key(only(False), False, False),
        "norm_head": Key(only(False), False, False),
        "norm_softmax": Key(only(False), False, False),
        "mask_token_id": c.TOKEN,
        "eos_token_id": c.TOKEN,
        "pad_token_id": c.TOKEN,
        "delete_token_id": c.TOKEN,
        "split_token_id": c.TOKEN,
    },
    c.NO_EFFECT
    | {
        "_moe_implementation", "embedding_dropout", "max_window_layers", "output_dropout",
        "output_router_logits", "router_aux_loss_coef", "sliding_window",
    },
)  # fmt: skip


class LLaDA2Layer(PreNormLayer):
    """A layer with experts: `rule` chooses them, see `ops.route`; with `shared`, one that every token has is
    added to them.
    """

    def __init__(
        self,
        num_heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        top_k: int,
        rule: dict[str, Any],
        shared: bool,
    ) -> None:
        super().__init__(num_heads, kv_heads, head_dim, eps, qk_norm=True, top_k=top_k)
        self.rule, self.shared = rule, shared

    def feed_forward(self, h: Tensor, w: Weights) -> Tensor:
        flat = h.flatten(0, 1)
        logits = linear(flat, w, "router", act_bits=16).float()
        bias = w["router.expert_bias"]
        if h.shape[0] == 1:
            index, weight = route(logits, self.top_k, bias=bias, **self.rule)
        else:  # blocks are of one text
            texts = logits.chunk(h.shape[0])
            routed = [route(text, self.top_k, bias=bias, **self.rule) for text in texts]
            index, weight = (torch.cat(each) for each in zip(*routed, strict=True))
        mixed = mixture(flat, index, weight.to(flat.dtype), w, self.activation).view_as(h)
        return mixed + mlp(h, w, "shared_expert", self.activation) if self.shared else mixed


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """Build from a `llada2_moe` config.json.

    Raises:
        UnsupportedModel: see `edgekit.export.models.architecture`.
    """
    v = c.read_needing_theta(SCHEMA, config)
    hidden, num_heads, kv_heads = v["hidden_size"], v["num_attention_heads"], v["num_key_value_heads"]
    head_dim = v["head_dim"] or c.divided(hidden, num_heads, "hidden_size", "num_attention_heads")
    c.check_heads(num_heads, kv_heads, head_dim)
    layers, experts, vocab = v["num_hidden_layers"], v["num_experts"], v["vocab_size"]
    dense, block, width, eps = (
        v["first_k_dense_replace"],
        v["block_size"],
        v["moe_intermediate_size"],
        v["rms_norm_eps"],
    )
    shared, tied = v["num_shared_experts"] * width, v["tie_word_embeddings"]
    c.check_experts(layers, experts, v["num_experts_per_tok"], "num_experts_per_tok")
    theta, rotated = _rope(v, config, head_dim)
    plain = PreNormLayer(num_heads, kv_heads, head_dim, eps, qk_norm=True)
    mixed = LLaDA2Layer(
        num_heads, kv_heads, head_dim, eps, v["num_experts_per_tok"], _rule(v), shared=shared > 0
    )

    def weights(i: int) -> tuple[WeightSpec, ...]:
        p = f"model.layers.{i}."
        q, kv = num_heads * head_dim, kv_heads * head_dim
        joined = p + "attention.query_key_value.weight"

        def rows(name: str, first: int, count: int) -> WeightSpec:
            return matrix(name, count, hidden, "attention", Part(joined, rows=(first, first + count)))

        own = (
            vector("input_layernorm.weight", hidden, p + "input_layernorm.weight"),
            rows("self_attn.q_proj", 0, q),
            rows("self_attn.k_proj", q, kv),
            rows("self_attn.v_proj", q + kv, kv),
            vector("self_attn.q_norm.weight", head_dim, p + "attention.query_layernorm.weight"),
            vector("self_attn.k_norm.weight", head_dim, p + "attention.key_layernorm.weight"),
            matrix("self_attn.o_proj", hidden, q, "attention", p + "attention.dense.weight"),
            vector("post_attention_layernorm.weight", hidden, p + "post_attention_layernorm.weight"),
        )
        if i < dense:
            return own + _mlp("mlp", p + "mlp.", hidden, v["intermediate_size"], "mlp")
        return (
            *own,
            matrix("router", experts, hidden, "router", p + "mlp.gate.weight"),
            vector("router.expert_bias", experts, p + "mlp.gate.expert_bias"),
            *(
                _mlp("shared_expert", p + "mlp.shared_experts.", hidden, shared, "shared_mlp")
                if shared
                else ()
            ),
        )

    def expert(i: int, e: int) -> tuple[WeightSpec, ...]:
        p = f"model.layers.{i}.mlp.experts.{e}."
        return (
            matrix("gate_up", 2 * width, hidden, "experts", p + "gate_proj.weight", p + "up_proj.weight"),
            matrix("down", hidden, width, "experts", p + "down_proj.weight"),
        )

    def layer(i: int) -> LayerSpec:
        own = () if i < dense else tuple(expert(i, e) for e in range(experts))
        kind, module = ("dense", plain) if i < dense else ("moe", mixed)
        return LayerSpec(kind, module, weights(i), own, kv_heads, head_dim, "partial", uses_mask=True)

    return Architecture(
        family="llada2_moe",
        sampler="block",
        hidden_size=hidden,
        vocab_size=vocab,
        norm_eps=eps,
        layers=tuple(layer(i) for i in range(layers)),
        ropes={"partial": rope_default(theta, rotated)},
        embedding=matrix("embedding", vocab, hidden, "embedding", "model.word_embeddings.weight"),
        head=None if tied else matrix("head", vocab, hidden, "head", "lm_head.weight"),
        final=(vector("norm.weight", hidden, "model.norm.weight"),),
        ignored=("lm_head.weight",) if tied else (),
        max_positions=v["max_position_embeddings"],
        causal_prefix=True,
        prefix_block=block,
        notes=SCHEMA.notes(config),
        defaults=_defaults(v),
    )


def _mlp(name: str, stored: str, hidden: int, width: int, role: str) -> tuple[WeightSpec, ...]:
    return (
        matrix(name + ".gate_proj", width, hidden, role, stored + "gate_proj.weight"),
        matrix(name + ".up_proj", width, hidden, role, stored + "up_proj.weight"),
        matrix(name + ".down_proj", hidden, width, role, stored + "down_proj.weight"),
    )


def _rope(v: dict[str, Any], config: dict[str, Any], head_dim: int) -> tuple[float, int]:
    """Theta, and how many channels of a head are rotated."""
    theta, factor = c.partial_rope(v, config)
    rotated = int(head_dim * factor)
    if rotated == 0 or rotated % 2:
        raise UnsupportedModel(
            f"{c.FILE}: partial_rotary_factor is {factor:g} of head_dim {head_dim}; rotation needs an even "
            "number of channels"
        )
    if v["rotary_dim"] not in (None, rotated):
        raise UnsupportedModel(
            f"{c.FILE}: rotary_dim is {v['rotary_dim']}, but partial_rotary_factor {factor:g} of head_dim "
            f"{head_dim} is {rotated}"
        )
    return theta, rotated


def _rule(v: dict[str, Any]) -> dict[str, Any]:
    """How a row's experts are chosen, for `route`."""
    experts, top_k, capacity = v["num_experts"], v["num_experts_per_tok"], v["expert_capacity"]
    rule = {"score": "sigmoid", "normalize": top_k > 1, "scale": v["routed_scaling_factor"]}
    if capacity:
        if not top_k <= capacity <= experts:
            raise UnsupportedModel(
                f"{c.FILE}: expert_capacity is {capacity}; a block chooses from num_experts_per_tok {top_k} "
                f"to num_experts {experts}"
            )
        return rule | {"capacity": capacity, "block": v["block_size"]}
    groups, kept = v["n_group"], v["topk_group"]
    if kept > groups:
        raise UnsupportedModel(f"{c.FILE}: topk_group is {kept} of n_group {groups}: not possible")
    if groups == 1:
        return rule
    size = c.divided(experts, groups, "num_experts", "n_group")
    if size < 2 or top_k > kept * size:
        raise UnsupportedModel(
            f"{c.FILE}: num_experts {experts} in n_group {groups}, of which topk_group {kept} stay, are too "
            f"few for num_experts_per_tok {top_k}"
        )
    return rule | {"groups": groups, "kept_groups": kept}


def _defaults(v: dict[str, Any]) -> dict[str, Any]:
    """For the sampler: token ids, and the numbers of the published procedure."""
    released = v["vocab_size"] == RELEASED_VOCAB
    own: dict[str, Any] = {"block_length": v["block_size"]} | (RELEASED_IDS if released else {})
    if not v["expert_capacity"]:
        return own | DECODING | c.token_defaults(v)
    stated = {"delete_token_id": v["delete_token_id"], "insert_token_id": v["split_token_id"]}
    edits = (RELEASED_EDITS if released else {}) | {k: t for k, t in stated.items() if t is not None}
    return own | EDITING | edits | c.token_defaults(v)
