"""Forms of the attention, expert and norm operators that train several times faster on a CPU, with equal
values.

`F.scaled_dot_product_attention` has a slow backward for short sequences on CPUs, the reference mixture of
experts allocates a gradient of all experts for every single one, and a norm is a dozen small operations in
each direction. `training_operators` swaps all three inside a `with` block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from edgekit.export import ops

ROWS = 128


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x.float()
        inverse = torch.rsqrt(
            torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square() / x.shape[-1] + eps
        )
        unit = wide * inverse
        ctx.save_for_backward(unit, inverse, weight)
        ctx.dtype = x.dtype
        return (unit if weight is None else unit * weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        unit, inverse, weight = ctx.saved_tensors
        grad = grads[0].float()
        part = grad * unit
        grad_weight = None
        if weight is not None:
            grad_weight = part.sum(tuple(range(part.ndim - 1)))
            part, grad = part * weight, grad * weight
        # d/dx of x / rms(x): the part of the gradient along x is taken out.
        grad_x = torch.addcmul(grad, unit, part.mean(-1, keepdim=True), value=-1) * inverse
        return grad_x.to(ctx.dtype), grad_weight, None, None


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """`ops.rms_norm` with a backward in closed form.

    Under autocast, normed values with a weight come out in the lower precision at once: matrices are what
    reads them, and each would cast them again.
    """
    lower = weight is not None and torch.is_autocast_enabled(x.device.type)
    result: Tensor = _RmsNorm.apply(
        x, weight, eps, torch.get_autocast_dtype(x.device.type) if lower else x.dtype
    )
    return result


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix_k: Tensor | None,
    prefix_v: Tensor | None,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """`ops.attention` by two batched matrix products; query heads that share a KV head are rows of one
    product."""
    if prefix_k is not None and prefix_v is not None and prefix_k.shape[2]:
        k, v = torch.cat((prefix_k, k), 2), torch.cat((prefix_v, v), 2)
    batch, heads, length, dim = q.shape
    groups = k.shape[1]
    q = q.reshape(batch, groups, -1, dim)
    score = torch.matmul(q if scale == 1.0 else q * scale, k.transpose(2, 3)).float()
    score = score.view(batch, groups, heads // groups, length, -1)
    if mask is not None:
        score = score + (mask[:, :, None] if mask.ndim == 4 else mask)
    weight = torch.softmax(score, -1).to(v.dtype).view(batch, groups, -1, k.shape[2])
    return torch.matmul(weight, v).view(batch, heads, length, dim)


def experts(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate_up: Tensor,
    gate_up_group: Tensor | None,
    gate_up_scale: Tensor | None,
    down: Tensor,
    down_group: Tensor | None,
    down_scale: Tensor | None,
    kind: str,
) -> Tensor:
    """`ops.experts` for float weights: tokens sorted by expert, so that each expert is one product on
    adjacent rows.

    Every expert's rows are rounded up to a multiple of ROWS, because matrix libraries prepare and cache code
    for each shape. The rows added have weight zero.
    """
    count, chosen = gate_up.shape[0], index.flatten()
    order = chosen.argsort(stable=True)
    sizes = torch.bincount(chosen, minlength=count)
    padded = (sizes + ROWS - 1) // ROWS * ROWS
    shift = (padded - sizes).cumsum(0) - (padded - sizes)
    place = torch.arange(len(order), device=x.device) + shift[chosen[order]]
    lengths = padded.tolist()
    token = order.new_zeros(sum(lengths)).index_copy(
        0, place, order.div(index.shape[1], rounding_mode="floor")
    )
    share = weight.new_zeros(sum(lengths)).index_copy(0, place, weight.flatten().index_select(0, order))
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    rows = x.to(dtype).index_select(0, token).split(lengths)
    pairs = zip(rows, gate_up.to(dtype).unbind(0), strict=True)
    gate, up = torch.cat([torch.mm(r, w.t()) for r, w in pairs]).chunk(2, -1)
    hidden = (ops.activation(gate, kind) * up * share[:, None].to(dtype)).split(lengths)
    out = torch.cat([torch.mm(h, w.t()) for h, w in zip(hidden, down.to(dtype).unbind(0), strict=True)])
    wide = torch.promote_types(dtype, torch.float32)
    return torch.zeros(x.shape, dtype=wide, device=x.device).index_add(0, token, out.to(wide)).to(x.dtype)


@contextmanager
def training_operators() -> Iterator[None]:
    """Use the operators of this file in every model until the block ends, and torch's deterministic ones.

    Others sum gradients in the order in which threads finish.
    """
    before = ops.attention, ops.experts, ops.rms_norm
    deterministic, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    ops.attention, ops.experts, ops.rms_norm = attention, experts, rms_norm
    try:
        yield
    finally:
        ops.attention, ops.experts, ops.rms_norm = before
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
