"""The pre-norm decoder layer that LLaDA, LLaDA-MoE and Dream share, and the weights it takes."""

from __future__ import annotations

from torch import Tensor, nn

from edgekit.export import ops
from edgekit.export.models.base import (
    LayerInputs,
    Weights,
    heads,
    join_heads,
    linear,
    mixture,
    mlp,
    rotated,
    route,
)


class PreNormLayer(nn.Module):
    """x + attention(norm x), then x + ffn(norm x); bidirectional. `top_k` > 0 makes the feed-forward part a
    mixture of experts.

    Router weights are the softmax over all experts, used as they are (not renormalised over the selected
    ones).
    """

    activation = "silu"

    def __init__(
        self, num_heads: int, kv_heads: int, head_dim: int, eps: float, qk_norm: bool = False, top_k: int = 0
    ) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.head_dim = num_heads, kv_heads, head_dim
        self.eps, self.qk_norm, self.top_k = eps, qk_norm, top_k

    def forward(self, inputs: LayerInputs, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
        x = inputs.x
        h = ops.rms_norm(x, w["input_layernorm.weight"], self.eps)
        q = heads(linear(h, w, "self_attn.q_proj"), self.num_heads)
        k = heads(linear(h, w, "self_attn.k_proj"), self.kv_heads)
        v = heads(linear(h, w, "self_attn.v_proj"), self.kv_heads)
        if self.qk_norm:
            q = ops.rms_norm(q, w["self_attn.q_norm.weight"], self.eps)
            k = ops.rms_norm(k, w["self_attn.k_norm.weight"], self.eps)
        q, k = rotated(q, k, inputs)
        a = ops.attention(q, k, v, inputs.prefix_k, inputs.prefix_v, inputs.mask, self.head_dim**-0.5)
        x = x + linear(join_heads(a), w, "self_attn.o_proj")
        h = ops.rms_norm(x, w["post_attention_layernorm.weight"], self.eps)
        return x + self.feed_forward(h, w), k, v

    def feed_forward(self, h: Tensor, w: Weights) -> Tensor:
        if not self.top_k:
            return mlp(h, w, "mlp", self.activation)
        flat = h.flatten(0, 1)
        # Routing decides which weights are used at all: its logits are never computed from rounded
        # activations.
        logits = linear(flat, w, "router", act_bits=16).float()
        index, weight = route(logits, self.top_k)
        return mixture(flat, index, weight.to(flat.dtype), w, self.activation).view_as(h)
