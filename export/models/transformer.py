"""The pre-norm decoder layer that all families but DiffusionGemma share, and stacks of it whose tensors have
the names of Llama, Qwen2 and Qwen3.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from edgekit.export import ops
from edgekit.export.models.base import (
    LayerInputs,
    LayerSpec,
    Weights,
    WeightSpec,
    heads,
    join_heads,
    linear,
    matrix,
    mixture,
    mlp,
    rotated,
    route,
    vector,
)


class PreNormLayer(nn.Module):
    """x + attention(norm x), then x + ffn(norm x). `top_k` > 0 makes the feed-forward part a mixture of
    experts. Products of queries and keys are multiplied by `scale`, head_dim^-0.5 where it is None.

    Router weights are the softmax over all experts, with `normalize` divided by the sum of the selected ones.
    """

    activation = "silu"

    def __init__(
        self,
        num_heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        qk_norm: bool = False,
        top_k: int = 0,
        normalize: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.kv_heads = num_heads, kv_heads
        self.eps, self.qk_norm, self.top_k, self.normalize = eps, qk_norm, top_k, normalize
        self.scale = head_dim**-0.5 if scale is None else scale

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
        a = ops.attention(q, k, v, inputs.prefix_k, inputs.prefix_v, inputs.mask, self.scale)
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
        index, weight = route(logits, self.top_k, normalize=self.normalize)
        return mixture(flat, index, weight.to(flat.dtype), w, self.activation).view_as(h)


@dataclass(frozen=True)
class Decoder:
    """The sizes of a stack of `PreNormLayer`s whose tensors are named as Llama, Qwen2 (`bias`), Qwen3
    (`qk_norm`) and Qwen3-MoE (`experts`) name them. `width` is that of the MLP, or of an expert; `scale` see
    PreNormLayer.
    """

    hidden: int
    num_heads: int
    kv_heads: int
    head_dim: int
    width: int
    eps: float
    bias: bool = False  # of q, k and v
    qk_norm: bool = False
    experts: int = 0
    top_k: int = 0
    normalize: bool = False
    scale: float | None = None

    def layers(self, count: int, prefix: str = "model.", *, uses_mask: bool = False) -> tuple[LayerSpec, ...]:
        """Layers whose tensors begin with `<prefix>layers.<i>.`, rotated by the rope "full"."""
        module = PreNormLayer(
            self.num_heads, self.kv_heads, self.head_dim, self.eps, self.qk_norm, self.top_k, self.normalize,
            self.scale,
        )  # fmt: skip
        return tuple(
            LayerSpec(
                "moe" if self.experts else "dense",
                module,
                self._weights(f"{prefix}layers.{i}."),
                tuple(self._expert(f"{prefix}layers.{i}.mlp.experts.{e}.") for e in range(self.experts)),
                self.kv_heads,
                self.head_dim,
                "full",
                uses_mask=uses_mask,
            )
            for i in range(count)
        )

    def _weights(self, p: str) -> tuple[WeightSpec, ...]:
        q, kv = self.num_heads * self.head_dim, self.kv_heads * self.head_dim

        def norm(name: str, size: int = self.hidden) -> WeightSpec:
            return vector(name + ".weight", size, f"{p}{name}.weight")

        def linear(name: str, rows: int, columns: int, role: str, bias: bool = False) -> list[WeightSpec]:
            own = matrix(name, rows, columns, role, f"{p}{name}.weight")
            return [own, vector(name + ".bias", rows, f"{p}{name}.bias")] if bias else [own]

        def attention(name: str, rows: int, columns: int, bias: bool = False) -> list[WeightSpec]:
            return linear(f"self_attn.{name}_proj", rows, columns, "attention", bias)

        def dense(name: str, rows: int, columns: int) -> list[WeightSpec]:
            return linear(f"mlp.{name}_proj", rows, columns, "mlp")

        return (
            norm("input_layernorm"),
            *attention("q", q, self.hidden, self.bias),
            *attention("k", kv, self.hidden, self.bias),
            *attention("v", kv, self.hidden, self.bias),
            *((norm(f"self_attn.{each}_norm", self.head_dim) for each in "qk") if self.qk_norm else ()),
            *attention("o", self.hidden, q),
            norm("post_attention_layernorm"),
            *(
                [matrix("router", self.experts, self.hidden, "router", p + "mlp.gate.weight")]
                if self.experts
                else dense("gate", self.width, self.hidden)
                + dense("up", self.width, self.hidden)
                + dense("down", self.hidden, self.width)
            ),
        )

    def _expert(self, p: str) -> tuple[WeightSpec, ...]:
        gate, up = p + "gate_proj.weight", p + "up_proj.weight"
        return (
            matrix("gate_up", 2 * self.width, self.hidden, "experts", gate, up),
            matrix("down", self.hidden, self.width, "experts", p + "down_proj.weight"),
        )
