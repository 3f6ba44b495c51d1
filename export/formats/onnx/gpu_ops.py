"""`edgekit::` operators in ONNX for GPUs: what every provider has kernels for, weights as inputs in the
layouts of `gpu_layout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgekit.export.formats.onnx import ops
from edgekit.export.ops import head_statistics, softcapped

#: The domain of MatMulNBits.
MICROSOFT = "com.microsoft"


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    # As ONNX Runtime knows it again, for a kernel of its own.
    y = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def _linear(
    x: Tensor,
    weight: Tensor,
    group_scales: Tensor | None,
    scales: Tensor | None,
    bias: Tensor | None,
    act_bits: int,
    down: Tensor | None = None,
    up: Tensor | None = None,
    adapter: Tensor | None = None,
) -> Tensor:
    y = x @ weight.T if scales is None else _blocks(x, weight, scales)
    return ops.completed(y, x, bias, down, up, adapter)


def _blocks(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """x [..., K] times a matrix in blocks: codes [N, K/B, bytes], scales [N, K/B]."""
    rows, blocks, nbytes = codes.shape
    columns = x.shape[-1]
    attributes = {
        "K": columns,
        "N": rows,
        "bits": 8 * nbytes * blocks // columns,
        "block_size": columns // blocks,
    }
    like = (x, codes, scales)
    return ops.node(f"{MICROSOFT}::MatMulNBits", like, attributes, (*x.shape[:-1], rows), x.dtype, 1)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix_k: Tensor | None,
    prefix_v: Tensor | None,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    # Of what all providers have: GroupQueryAttention without a causal mask is new, Attention a processor's.
    keys = k if prefix_k is None else torch.cat((prefix_k, k), 2)
    values = v if prefix_v is None else torch.cat((prefix_v, v), 2)
    # Of four dimensions: of five, Qualcomm's product of one head with as many rows as columns is wrong.
    keys, values = keys.flatten(0, 1)[:, None], values.flatten(0, 1)[:, None]
    scores = q.reshape(keys.shape[0], -1, *q.shape[2:]) * scale @ keys.transpose(-1, -2)
    if mask is not None:
        scores = scores + mask
    return (torch.softmax(scores, -1) @ values).reshape(q.shape)


def _gated_act(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    if kind == "gelu_tanh":
        return 0.5 * gate * (1 + torch.tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up
    return gate * torch.sigmoid(gate) * up


def _table(table: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Float32 [V', H], and what its rows have still to be multiplied by."""
    if scales is None:
        return table.float(), None
    one, zero = torch.ones(()), torch.full((), 128, dtype=torch.uint8)
    return ops.node("DequantizeLinear", (table, one, zero), {}, table.shape, torch.float32, ops.OPSET), scales


def _vocab_logits(x: Tensor, table: Tensor, scales: Tensor | None, softcap: float) -> Tensor:
    rows, factors = _table(table, scales)
    # ONNX Runtime rounds a widened table anew where it is transposed.
    logits = (rows @ x.T).T
    return softcapped(logits if factors is None else logits * factors, softcap)


def _vocab_head(
    x: Tensor,
    table: Tensor,
    scales: Tensor | None,
    temperature: Tensor,
    noise: Tensor | None,
    softcap: float,
    soft: bool,
) -> list[Tensor]:
    z = _vocab_logits(x, table, scales, softcap) / temperature
    if not soft:
        return head_statistics(z, noise, None)
    rows, factors = _table(table, scales)
    return head_statistics(z, noise, rows if factors is None else rows * factors[:, None])


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions`."""
    e = torch.ops.edgekit
    return ops.decompositions() | {
        e.rms_norm.default: _rms_norm,
        e.linear.default: _linear,
        e.attention.default: _attention,
        e.gated_act.default: _gated_act,
        e.vocab_logits.default: _vocab_logits,
        e.vocab_head.default: _vocab_head,
    }
