"""The whole model in PyTorch, eagerly: for training and for parity tests.

    arch = architecture(config)                         # edgekit.export.models
    model = ReferenceModel.random(arch, seed=0)         # trainable float32 parameters, or
    model = ReferenceModel(arch, load_float_weights(arch, checkpoint))
    kv = model.encode(prompt_ids)                       # families with a prefix: prefix KV per layer
    logits = model.denoise(canvas_ids, kv, soft=soft)   # [B, T, V] float32
    soft = torch.softmax(logits / temperature, -1) @ model.embedding  # for the next step, unscaled
    logits = model.denoise(ids)                         # LLaDA, Dream: no prefix

Batches of unequal prompts: pad on the left and pass `lengths`-derived `positions` [B, T] and an additive
float `mask` broadcastable to [B, heads, T, P + T]; by default positions continue the prefix and nothing is
masked but by causality and the sliding window.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from edgekit.export import ops
from edgekit.export.models.base import DENOISE, PREFILL, Architecture, LayerInputs, LayerSpec
from edgekit.export.weights import full_name

PrefixKV = list[tuple[Tensor, Tensor]]
#: Additive mask value: finite, so that a fully masked padding row gives a number and not NaN.
MASKED = -1e30


def causal_mask(queries: Tensor, keys: Tensor, window: int | None, block: int = 1, start: int = 0) -> Tensor:
    """Additive mask [..., T, S] for query positions [..., T] and key positions [..., S]: 0 <= q - k < window.
    With `block` > 1, positions of one block of so many, counted from `start`, see each other too.
    """
    distance = queries[..., :, None] - keys[..., None, :]
    of_query, of_key = (torch.div(p - start, block, rounding_mode="floor") for p in (queries, keys))
    allowed = of_query[..., :, None] >= of_key[..., None, :]
    if window is not None:
        allowed &= distance < window
    return torch.zeros(allowed.shape, device=queries.device).masked_fill(~allowed, MASKED)


class ReferenceModel(nn.Module):
    """Embedding, layers and vocabulary head over a dictionary of weights named by
    `edgekit.export.weights.full_name`.

    Matrices are present as `<name>.weight` (float) or as `<name>.codes`, `.group_scales`, `.scales` (see
    edgekit.export.ops).
    """

    def __init__(self, architecture: Architecture, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.architecture = architecture
        self._names = list(weights)
        for name, value in weights.items():
            key = name.replace(".", "__")
            if value.is_floating_point():
                self.register_parameter(
                    key, value if isinstance(value, nn.Parameter) else nn.Parameter(value)
                )
            else:
                self.register_buffer(key, value)
        units = [
            "self_conditioning.",
            "norm.",
            "embedding.",
            "head.",
            *(f"layers.{i}." for i in range(len(architecture.layers))),
        ]
        self._units = {
            u: [(n[len(u) :], n.replace(".", "__")) for n in weights if n.startswith(u)] for u in units
        }

    @classmethod
    def random(cls, architecture: Architecture, seed: int = 0, std: float = 0.02) -> ReferenceModel:
        """Trainable start: matrices normal(0, std), output projections scaled by 1/sqrt(2 L), norms and
        scalars one, biases zero.
        """
        generator = torch.Generator().manual_seed(seed)
        depth = (2 * len(architecture.layers)) ** -0.5
        stacks: dict[str, list[Tensor]] = {}
        for unit, spec in architecture.weights():
            if spec.role == "float":
                value = torch.zeros(spec.shape) if spec.name.endswith(".bias") else torch.ones(spec.shape)
            else:
                value = torch.randn(spec.shape, generator=generator) * std
                if spec.name.endswith(("o_proj", "down_proj", "down")):
                    value *= depth
            stacks.setdefault(full_name(unit, spec), []).append(value)
            stacked = {n for n in stacks if ".experts." in n}
        return cls(architecture, {n: torch.stack(v) if n in stacked else v[0] for n, v in stacks.items()})

    def weights(self) -> dict[str, Tensor]:
        """All weights by name."""
        return {name: getattr(self, name.replace(".", "__")) for name in self._names}

    def _unit(self, prefix: str) -> dict[str, Tensor]:
        return {name: getattr(self, key) for name, key in self._units[prefix]}

    def _table(self, name: str) -> tuple[Tensor, Tensor | None]:
        unit = self._unit(name + ".")
        return (unit["weight"], None) if "weight" in unit else (unit["codes"], unit["scales"])

    @property
    def embedding(self) -> Tensor:
        """The float embedding table [V, H], without the embedding scale."""
        table, scales = self._table("embedding")
        return ops.dequantize(table, None, scales)

    def embed(self, ids: Tensor) -> Tensor:
        """Scaled embeddings [B, T, H]."""
        table, scales = self._table("embedding")
        rows = ops.dequantize(table[ids], None, None if scales is None else scales[ids])
        return rows * self.architecture.embedding_scale

    def encode(
        self,
        ids: Tensor,
        prefix: PrefixKV | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> PrefixKV:
        """Pass over ids [B, T] after `prefix`, causal by blocks of `Architecture.prefix_block` rows: the
        prefix KV extended by T positions, for every layer (nothing trimmed).
        """
        _, kv = self.layers(self.embed(ids), prefix, positions, mask, phase=PREFILL, causal=True)
        before = prefix or [(k[:, :, :0], v[:, :, :0]) for k, v in kv]
        return [
            (torch.cat((pk, k), 2), torch.cat((pv, v), 2))
            for (pk, pv), (k, v) in zip(before, kv, strict=True)
        ]

    def hidden(
        self,
        ids: Tensor,
        prefix: PrefixKV | None = None,
        soft: Tensor | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Final normed hidden states [B, T, H] of a bidirectional pass over [prefix KV ; ids].

        `soft` [B, T, H] is softmax(z) @ E of the previous step, unscaled; None at the first step.
        """
        x = self.embed(ids)
        if self.architecture.self_conditioning is not None:
            soft = (
                torch.zeros_like(x) if soft is None else soft.to(x.dtype) * self.architecture.embedding_scale
            )
            x = self.architecture.self_conditioning(x, soft, self._unit("self_conditioning."))
        x, _ = self.layers(x, prefix, positions, mask, phase=DENOISE, causal=False)
        return ops.rms_norm(x, self._unit("norm.")["weight"], self.architecture.norm_eps)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] in float32 of final hidden states."""
        table, scales = self._table("head" if self.architecture.head is not None else "embedding")
        flat = ops.vocab_logits(hidden.flatten(0, -2), table, scales, self.architecture.softcap)
        return flat.view(*hidden.shape[:-1], -1)

    def denoise(
        self,
        ids: Tensor,
        prefix: PrefixKV | None = None,
        soft: Tensor | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V] of a bidirectional pass; arguments as in `hidden`. They are not shifted (see
        Architecture.shift_logits).
        """
        return self.head(self.hidden(ids, prefix, soft, positions, mask))

    forward = denoise

    def layers(
        self,
        x: Tensor,
        prefix: PrefixKV | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        phase: int,
        causal: bool,
    ) -> tuple[Tensor, PrefixKV]:
        """All layers on x [B, T, H] behind `prefix`: y [B, T, H], and the KV of these positions for each.
        `causal` is for committed text, see `encode`.
        """
        batch, length, _ = x.shape
        seen = 0 if prefix is None else prefix[0][0].shape[2]
        own = torch.arange(seen, seen + length, device=x.device)
        positions = own if positions is None else positions
        tables = {name: rope.tables(positions) for name, rope in self.architecture.ropes.items()}
        if positions.ndim == 2:  # one table per row of the batch, shared by the heads
            tables = {
                name: {which: table[:, None] for which, table in own.items()} for name, own in tables.items()
            }
        keys = torch.arange(seen + length, device=x.device)
        which = torch.tensor([phase], device=x.device)
        out: PrefixKV = []
        for i, layer in enumerate(self.architecture.layers):
            k, v = prefix[i] if prefix is not None else self._empty(layer, batch, x)
            own_mask = self._mask(layer, own, keys, seen, length, causal)
            if mask is not None:
                own_mask = mask if own_mask is None else own_mask + mask
            inputs = LayerInputs(x, **tables[layer.rope], prefix_k=k, prefix_v=v, mask=own_mask, phase=which)
            x, k, v = layer.apply(inputs, self._unit(f"layers.{i}."))
            out.append((k, v))
        return x, out

    @staticmethod
    def _empty(layer: LayerSpec, batch: int, x: Tensor) -> tuple[Tensor, Tensor]:
        none = x.new_zeros(batch, layer.kv_heads, 0, layer.head_dim)
        return none, none

    def _mask(
        self, layer: LayerSpec, own: Tensor, keys: Tensor, seen: int, length: int, causal: bool
    ) -> Tensor | None:
        if causal:
            return causal_mask(own, keys, layer.window, self.architecture.prefix_block, seen)
        # A canvas sees the last window - 1 committed positions and all of itself.
        if layer.window is None or seen < layer.window:
            return None
        hidden = keys < seen - (layer.window - 1)
        return torch.zeros(length, keys.shape[0], device=keys.device).masked_fill(hidden, MASKED)
