"""`edgekit::` operators in ONNX, for ONNX Runtime's CPU kernels.

Each operator is decomposed into aten operators and `torch.onnx.ops.symbolic` placeholders, which
`torch.onnx.export` turns into the named nodes. Weights arrive as graph inputs in the layouts of
`layout`. 4- and 8-bit matrices are both int8 [K, N] by then: of ONNX Runtime's kernels with weights as
inputs, the int8 product alone runs near the machine's rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edgekit.export.ops import head_statistics, low_rank, routed, softcapped

#: The opset of the standard operators used here (RMSNormalization, Attention).
OPSET = 23
#: Domain of the placeholder that marks where a layer's expert mixture stands; the writer splits the graph
#: there.
EXPERTS_DOMAIN, EXPERTS_NODE = "edgekit", "Experts"

_MAX_CODE = 127.0


def node(
    name: str,
    inputs: Sequence[Tensor | None],
    attributes: dict[str, Any],
    shape: Sequence[Any],
    dtype: torch.dtype,
    version: int | None = None,
) -> Tensor:
    """The result of one ONNX operator, `domain::name` where it is not of ONNX's own domain."""
    out: Tensor = torch.onnx.ops.symbolic(
        name, tuple(inputs), attributes, dtype=dtype, shape=tuple(shape), version=version
    )
    return out


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    scale = torch.ones(x.shape[-1]) if weight is None else weight
    return node("RMSNormalization", (x, scale), {"axis": -1, "epsilon": eps}, x.shape, x.dtype, OPSET)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Dynamic activation quantization: uint8 codes (zero point 128) and a float scale per row, |code - 128|
    <= 127.
    """
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / _MAX_CODE
    return (x / scale + 128.0).round().to(torch.uint8), scale


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
    if scales is None:
        y = x @ weight.to(x.dtype).T
    elif act_bits == 16:
        y = (x @ weight.to(x.dtype)) * scales
    else:
        codes, row_scale = quantize_rows(x)
        # int8 activations would take a kernel that is fifteen times slower than uint8 with zero point 128.
        zero = torch.full((), 128, dtype=torch.uint8)
        shape = (*x.shape[:-1], scales.shape[0])
        product = node("MatMulInteger", (codes, weight, zero), {}, shape, torch.int32)
        y = product.to(x.dtype) * row_scale * scales
    return completed(y, x, bias, down, up, adapter)


def completed(
    y: Tensor,
    x: Tensor,
    bias: Tensor | None,
    down: Tensor | None,
    up: Tensor | None,
    adapter: Tensor | None,
) -> Tensor:
    """A product y of x with what a linear adds to it."""
    y = y if bias is None else y + bias
    return y if down is None or up is None else y + low_rank(x, down, up, adapter)


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    parts = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat(parts if rest.shape[-1] == 0 else (*parts, rest), -1)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    # The keys are joined here: the operator's own past input fails when its unused present outputs are
    # pruned.
    keys, values = torch.cat((prefix_k, k), 2), torch.cat((prefix_v, v), 2)
    inputs = (q, keys, values) if mask is None else (q, keys, values, mask)
    return node("Attention", inputs, {"scale": scale, "is_causal": 0}, q.shape, q.dtype, OPSET)


def _gated_act(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    if kind == "gelu_tanh":
        return node("Gelu", (gate,), {"approximate": "tanh"}, gate.shape, gate.dtype, 20) * up
    return gate * torch.sigmoid(gate) * up


def _experts(x: Tensor, index: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return node(f"{EXPERTS_DOMAIN}::{EXPERTS_NODE}", (x, index, weight), {}, x.shape, x.dtype, 1)


def _table_float(table: Tensor, scales: Tensor | None) -> Tensor:
    if scales is None:
        return table.float()
    return (table.float() - 128.0) * scales[:, None]


def _vocab_logits(x: Tensor, table: Tensor, scales: Tensor | None, softcap: float) -> Tensor:
    if scales is None:
        logits = x @ table.to(x.dtype).T
    else:
        # table [V', H] stays row-major, as lookups need it: it is the left, uint8 operand, and the
        # activations are transposed.
        codes, row_scale = quantize_rows(x)
        signed = (codes.to(torch.int32) - 128).to(torch.int8).T.contiguous()
        zero = torch.full((), 128, dtype=torch.uint8)
        shape = (table.shape[0], x.shape[0])
        product = node("MatMulInteger", (table, signed, zero), {}, shape, torch.int32)
        logits = (product.to(x.dtype) * scales[:, None]).T * row_scale
    return softcapped(logits, softcap)


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
    return head_statistics(z, noise, _table_float(table, scales) if soft else None)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions`."""
    e = torch.ops.edgekit
    return {
        e.rms_norm.default: _rms_norm,
        e.linear.default: _linear,
        e.rope.default: _rope,
        e.attention.default: _attention,
        e.gated_act.default: _gated_act,
        e.route.default: routed,
        e.experts.default: _experts,
        e.vocab_logits.default: _vocab_logits,
        e.vocab_head.default: _vocab_head,
    }
