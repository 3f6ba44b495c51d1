"""The `edgekit::` operators: the few things every backend treats in its own way.

Each operator has one reference implementation in plain PyTorch, a fake implementation for tracing, and one
translation per backend (`export/formats/`). Called eagerly, the reference itself runs, so it can be
differentiated and compiled; under `torch.export` the call is recorded as a single `edgekit::` node.

Weights of a linear map are described by the tensors that are present:

| bits | weight                   | group_scales | scales    | value of weight [n, k]                  |
|------|--------------------------|--------------|-----------|-----------------------------------------|
| 16   | float [N, K]             | none         | none      | weight                                  |
| 8    | uint8 [N, K], q + 128    | none         | float [N] | scales[n] * q                           |
| 4    | uint8 [N, K/2], q + 8    | uint8 [N, K/G] | float [N] | scales[n] * group_scales[n, k // G] * q |

Two 4-bit codes share a byte, the lower column in the low nibble. `group_scales * q` is an integer of at most
eight bits, so an int8 matrix product computes the 4-bit form exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def _operator(fake: Callable[..., Any]) -> Callable[[Function], Function]:
    """Register a reference implementation as `edgekit::<name>`; the result records that node only while
    exporting.
    """

    def register(reference: Function) -> Function:
        name = reference.__name__
        operator = torch.library.custom_op(f"edgekit::{name}", reference, mutates_args=())
        operator.register_fake(fake)

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_exporting():
                return operator(*args, **kwargs)
            return reference(*args, **kwargs)

        call.__name__, call.__doc__ = name, reference.__doc__
        return call  # type: ignore[return-value]

    return register


def unpack_codes(codes: Tensor, bits: int) -> Tensor:
    """Signed integers [..., N, K] (int8) of the stored codes [..., N, K * bits / 8] (uint8)."""
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
        return codes.to(torch.int8) - 8
    return (codes ^ 128).view(torch.int8)


def dequantize(weight: Tensor, group_scales: Tensor | None, scales: Tensor | None) -> Tensor:
    """Float32 weight [..., N, K] of any of the three forms in the module's table."""
    if scales is None:
        return weight
    if group_scales is None:
        return unpack_codes(weight, 8).float() * scales[..., None]
    q = unpack_codes(weight, 4).float().unflatten(-1, (group_scales.shape[-1], -1))
    return (q * group_scales[..., None].float()).flatten(-2) * scales[..., None]


def round_rows(x: Tensor) -> Tensor:
    """x [..., K] rounded to int8 by rows, as engines do where `act_bits` is 8: the integers nearest to
    x * 127 / max|x|, of two equally near ones the even, times max|x| / 127. Rows of zeros stay zeros.
    """
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return (x / scale).round() * scale


@_operator(lambda x, weight, eps: torch.empty_like(x))
def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root mean square normalization over the last axis in float32, times `weight` where there is one."""
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight
    return y.to(x.dtype)


def _linear_fake(
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
    # The number of outputs comes from the scales: a format may store codes in a layout of its own.
    return x.new_empty(*x.shape[:-1], weight.shape[0] if scales is None else scales.shape[0])


@_operator(_linear_fake)
def linear(
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
    """`x @ weight.T + bias` for x [..., K]. `act_bits` 8 lets an engine round activations to int8 per row
    (`round_rows`); 16 forbids it.

    With `down` [R, K] and `up` [N, R], float, `low_rank(x, down, up, adapter)` is added: a low-rank adapter,
    its scale in `up`. For it no engine rounds activations.

    The reference never rounds activations.
    """
    y = F.linear(x, dequantize(weight, group_scales, scales).to(x.dtype), bias)
    return y if down is None or up is None else y + low_rank(x, down, up, adapter)


def low_rank(x: Tensor, down: Tensor, up: Tensor, adapter: Tensor | None = None) -> Tensor:
    """`(x @ down.T) @ up.T`: what a low-rank adapter adds to a product of x [..., T, K]; times the factors of
    rows `adapter` [T, 1] where such are given. Where they are 0 it adds zeros.
    """
    inner = x @ down.to(x.dtype).T
    if adapter is not None:  # here, where rows are short
        inner = inner * adapter.to(x.dtype)
    return inner @ up.to(x.dtype).T


@_operator(lambda x, cos, sin: torch.empty_like(x))
def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half position embedding of x [B, heads, T, D] by tables [T, R] (or [B, 1, T, R]); dims beyond
    2R pass unchanged.
    """
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    # The halves of a full-width rotation are D/2 apart; R < D/2 rotates the first 2R dims among themselves.
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).to(x.dtype)


@_operator(lambda q, k, v, prefix_k, prefix_v, mask, scale: torch.empty_like(q))
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix_k: Tensor | None,
    prefix_v: Tensor | None,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention of q [B, heads, T, D] over [prefix KV ; canvas].

    k, v [B, kv_heads, T, D] and prefix_k, prefix_v [B, kv_heads, P, D] (none: P = 0); query head h reads KV
    head h // (heads / kv_heads). `mask` is additive, float, broadcastable to [B, heads, T, P + T]; none
    means that every query sees every key.
    """
    keys = k if prefix_k is None else torch.cat((prefix_k, k), 2)
    values = v if prefix_v is None else torch.cat((prefix_v, v), 2)
    repeat = q.shape[1] // keys.shape[1]
    if repeat > 1:
        keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale).contiguous()


def activation(x: Tensor, kind: str) -> Tensor:
    """`silu`, or `gelu_tanh` (the tanh approximation of GELU)."""
    return F.gelu(x, approximate="tanh") if kind == "gelu_tanh" else F.silu(x)


@_operator(lambda gate, up, kind: torch.empty_like(gate))
def gated_act(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    """`activation(gate) * up`; kind is `silu` (SwiGLU) or `gelu_tanh` (GeGLU)."""
    return activation(gate, kind) * up


def _route_fake(logits: Tensor, bias: Tensor | None, expert_scale: Tensor | None, k: int, *_: Any) -> Any:
    rows = logits.shape[0]
    return logits.new_empty(rows, k, dtype=torch.int64), logits.new_empty(rows, k)


@_operator(_route_fake)
def route(
    logits: Tensor,
    bias: Tensor | None,
    expert_scale: Tensor | None,
    k: int,
    score: str,
    normalize: bool,
    scale: float,
    groups: int,
    kept_groups: int,
    capacity: int,
    block: int,
) -> tuple[Tensor, Tensor]:
    """Chosen experts, int64 [T, k], the most wanted first, and their weights [T, k], for router logits [T, E]
    in float32.

    `score` makes the logits probabilities: `softmax` over all experts, or `sigmoid` of each. Experts are
    chosen by probability plus `bias` [E], and weighted by probability alone, to a sum of 1 over the chosen
    ones if `normalize`, times `scale` and `expert_scale` [E].

    With more than one of `groups` of equal size, a row chooses among the experts of the `kept_groups` whose
    two most wanted experts have the largest sum (DeepSeek-V3, arXiv 2412.19437). With a `capacity` above 0
    the rows of each `block` choose among so many experts together: those that some row of the block wants
    most (LLaDA2.2). Blocks are counted from the first row of each segment of a pass: the last one of a text
    may be shorter, and is never joined with rows of another. A model has one of the two.
    """
    return routed(
        logits, bias, expert_scale, k, score, normalize, scale, groups, kept_groups, capacity, block
    )


def routed(
    logits: Tensor,
    bias: Tensor | None,
    expert_scale: Tensor | None,
    k: int,
    score: str,
    normalize: bool,
    scale: float,
    groups: int,
    kept_groups: int,
    capacity: int,
    block: int,
) -> tuple[Tensor, Tensor]:
    """`route` in operators of PyTorch."""
    probability = torch.softmax(logits, -1) if score == "softmax" else torch.sigmoid(logits)
    wanted = probability if bias is None else probability + bias
    if groups > 1:
        index = _within_groups(wanted, k, groups, kept_groups)
    elif capacity:
        index = _within_blocks(wanted, k, capacity, block)
    else:
        index = torch.topk(wanted, k).indices
    weight = probability.gather(-1, index)
    if normalize:
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    if scale != 1:
        weight = weight * scale
    return index, weight if expert_scale is None else weight * expert_scale[index]


def _within_groups(wanted: Tensor, k: int, groups: int, kept: int) -> Tensor:
    of_group = wanted.unflatten(-1, (groups, -1))
    best = torch.topk(of_group, 2).values.sum(-1)
    own = torch.arange(wanted.shape[-1], device=wanted.device).view(groups, -1)
    pool = own[torch.topk(best, kept).indices].flatten(1)  # [T, experts of the kept groups]
    return pool.gather(-1, torch.topk(wanted.gather(-1, pool), k).indices)


def _within_blocks(wanted: Tensor, k: int, capacity: int, block: int) -> Tensor:
    # Exact for all positions that there are, and truncation is a cast in every format.
    of_row = (torch.arange(wanted.shape[0], device=wanted.device) / block).to(torch.int64)
    most = torch.full_like(wanted, float("-inf"))  # a row for each block, and rows that none has
    most = most.scatter_reduce(0, of_row[:, None].expand_as(wanted), wanted, "amax")
    pool = torch.topk(most, capacity).indices[of_row]  # [T, capacity]
    return pool.gather(-1, torch.topk(wanted.gather(-1, pool), k).indices)


def expert(
    x: Tensor,
    gate_up: tuple[Tensor, Tensor | None, Tensor | None],
    down: tuple[Tensor, Tensor | None, Tensor | None],
    kind: str,
) -> Tensor:
    """One expert on its rows x [R, H]: `down(act(gate x) * up x)`; rows 0..M-1 of gate_up are the gate,
    M..2M-1 the up half.
    """
    gate, up = linear(x, *gate_up, None, 8).chunk(2, -1)
    return linear(gated_act(gate, up, kind), *down, None, 8)


@_operator(
    lambda x, index, weight, gate_up, gate_up_group, gate_up_scale, down, down_group, down_scale, kind: (
        torch.empty_like(x)
    )
)
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
    """Mixture of experts: `sum_j weight[t, j] * expert_{index[t, j]}(x[t])` for x [T, H], index and weight
    [T, top_k].

    Weights are stacked over experts: gate_up [E, 2M, H], down [E, H, M] (float, or codes with their
    scales). Contributions are added in the order of expert index, whatever the order in which experts are
    computed, so that results repeat.
    """
    y = torch.zeros_like(x)

    def of(e: int, *stack: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        a, b, c = (None if s is None else s[e] for s in stack)
        assert a is not None
        return a, b, c

    for e in range(gate_up.shape[0]):
        token, slot = torch.nonzero(index == e, as_tuple=True)
        if token.numel():
            out = expert(
                x[token],
                of(e, gate_up, gate_up_group, gate_up_scale),
                of(e, down, down_group, down_scale),
                kind,
            )
            y = y.index_add(0, token, (out * weight[token, slot, None]).to(y.dtype))
    return y


@_operator(lambda x, table, scales, softcap: x.new_empty(x.shape[0], table.shape[0]))
def vocab_logits(x: Tensor, table: Tensor, scales: Tensor | None, softcap: float) -> Tensor:
    """Logits [T, V'] of x [T, H] against rows of the vocabulary table [V', H]; `softcap * tanh(logits /
    softcap)` if it is > 0.
    """
    logits = F.linear(x, dequantize(table, None, scales).to(x.dtype)).float()
    return softcapped(logits, softcap)


def softcapped(logits: Tensor, softcap: float) -> Tensor:
    """`softcap * tanh(logits / softcap)`, or the logits themselves where there is no cap (0)."""
    return softcap * torch.tanh(logits / softcap) if softcap > 0 else logits


def head_statistics(z: Tensor, noise: Tensor | None, embedding: Tensor | None) -> list[Tensor]:
    """The results of `vocab_head` for scores z [T, V']; `embedding` [V', H], float, asks for the soft one."""
    top, arg = z.max(-1)
    e = torch.exp(z - top[:, None])
    # top - top is 0 for each row: a constant of that shape would have to ask how many rows there are.
    others = e.scatter(-1, arg[:, None], (top - top)[:, None])
    out = [top, arg, others.sum(-1), (others * z).sum(-1)]
    if noise is not None:
        score, sample = (z + noise).max(-1)
        out += [score, sample, z.gather(1, sample[:, None])[:, 0]]
    if embedding is not None:
        out += [e @ embedding.to(e.dtype)]
    return out


def _vocab_head_fake(
    x: Tensor,
    table: Tensor,
    scales: Tensor | None,
    temperature: Tensor,
    noise: Tensor | None,
    softcap: float,
    soft: bool,
) -> list[Tensor]:
    rows = x.shape[0]

    def number() -> Tensor:
        return x.new_empty(rows)

    def ident() -> Tensor:
        return x.new_empty(rows, dtype=torch.int64)

    out = [number(), ident(), number(), number()]
    if noise is not None:
        out += [number(), ident(), number()]
    if soft:
        out += [x.new_empty(rows, x.shape[1])]
    return out


@_operator(_vocab_head_fake)
def vocab_head(
    x: Tensor,
    table: Tensor,
    scales: Tensor | None,
    temperature: Tensor,
    noise: Tensor | None,
    softcap: float,
    soft: bool,
) -> list[Tensor]:
    """Statistics of z = logits / temperature over the given rows of the table, without keeping z.

    Returns [max z, argmax z, sum exp(z - max), sum z * exp(z - max)], both sums over all tokens but the
    argmax: its own term is 1, next to which float32 has nothing below 6e-8. With `noise` [T, V'] also [max
    (z + noise), its argument, z there] (Gumbel-max sampling); with `soft` also sum_v exp(z_v - max) * E_v
    [T, H], over all tokens. Results over tiles of the table combine as in the online softmax (arXiv
    1805.02867); indices count from the tile's first row.
    """
    z = vocab_logits(x, table, scales, softcap) / temperature
    return head_statistics(z, noise, dequantize(table, None, scales) if soft else None)
