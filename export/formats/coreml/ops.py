"""`edgekit::` and aten operators in MIL, one function each: how a layer's graph is said in Core ML's words.

Everything is computed in one type, that of the inputs. In float16 (what the Neural Engine knows) squares,
sums and masks are kept within its range. The heads' sums alone are joined in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from edgekit.export.formats.nodes import Arguments, Refused, same_type
from edgekit.export.formats.packages.graph import LARGEST, STEP

aten, edgekit = torch.ops.aten, torch.ops.edgekit

#: Terms of a sum that are added in the type of a program, which may be float16.
_MOST_TERMS = 64
#: A score that no token has: its exponential is 0 beside all others, and its difference to them a float16.
_FAR = -30000.0


def _like(x: Var, value: float) -> Any:
    """A number in the type of x."""
    return np.float16(value) if x.dtype == types.fp16 else np.float32(value)


def _shape(x: Var) -> tuple[int, ...]:
    return tuple(int(size) for size in x.shape)


def rms_norm(a: Arguments) -> Var:
    # Rows are divided by their largest value, which no square of float16 may exceed, and eps by its square:
    # with s = max(|x|, sqrt(eps)), x / sqrt(mean x^2 + eps) = (x / s) / sqrt(mean (x / s)^2 + eps / s^2).
    x, root = a["x"], math.sqrt(a["eps"])
    largest = mb.reduce_max(x=mb.abs(x=x), axes=[-1], keep_dims=True)
    scale = mb.maximum(x=largest, y=_like(x, root))
    y = mb.real_div(x=x, y=scale)
    floor = mb.square(x=mb.real_div(x=_like(x, root), y=scale))
    mean = mb.reduce_mean(x=mb.square(x=y), axes=[-1], keep_dims=True)
    y = mb.mul(x=y, y=mb.rsqrt(x=mb.add(x=mean, y=floor)))
    return y if a["weight"] is None else mb.mul(x=y, y=a["weight"])


def round_rows(x: Var) -> tuple[Var, Var]:
    """See `PackageGraph`. Quantize and dequantize with one constant scale, no zero point, before a product
    with codes of 8 bits: so coremltools says that a device may multiply integers. It says so of `linear` and
    `conv` alone; experts are `matmul`, which a device may compute in floats.
    """
    # Rows that are smaller than normal numbers are rounded in steps of these: nothing is divided by zero.
    top = mb.reduce_max(x=mb.abs(x=x), axes=[-1], keep_dims=True)
    factor = mb.maximum(x=mb.mul(x=top, y=_like(x, 1 / LARGEST)), y=_like(x, _smallest(x)))
    step = mb.const(val=_like(x, STEP))
    codes = mb.quantize(input=mb.real_div(x=x, y=factor), scale=step, output_dtype="int8")
    return mb.dequantize(input=codes, scale=step), factor


def _smallest(x: Var) -> float:
    """The smallest normal number of the type of x."""
    return float(np.finfo(_like(x, 0).dtype).tiny)


def linear(a: Arguments) -> Var:
    x, factor = a["operand"](a["x"], a["weight"]) if a["act_bits"] == 8 else (a["x"], None)
    y = _product(a, x, factor, a["weight"], a["bias"])
    if a["down"] is None:
        return y
    inner = _product(a, a["x"], None, a["down"], None)
    inner = inner if a["adapter"] is None else mb.mul(x=inner, y=a["adapter"])
    return mb.add(x=y, y=_product(a, inner, None, a["up"], None))


def _product(a: Arguments, x: Var, factor: Var | None, weight: Var, bias: Var | None) -> Var:
    # Left out, a bias would be written into the program as zeros, once for each product.
    if factor is None and bias is not None:
        return mb.linear(x=x, weight=weight, bias=bias)
    y = mb.linear(x=x, weight=weight, bias=a["zeros"](x, _shape(weight)[0]))
    y = y if factor is None else mb.mul(x=y, y=factor)
    return y if bias is None else mb.add(x=y, y=bias)


def rope(a: Arguments) -> Var:
    x, cos, sin = a["x"], a["cos"], a["sin"]
    half, width = _shape(cos)[-1], _shape(x)[-1]
    sizes = [half, half] + ([width - 2 * half] if width > 2 * half else [])
    first, second, *rest = mb.split(x=x, split_sizes=sizes, axis=-1)
    turned = [
        mb.sub(x=mb.mul(x=first, y=cos), y=mb.mul(x=second, y=sin)),
        mb.add(x=mb.mul(x=second, y=cos), y=mb.mul(x=first, y=sin)),
    ]
    return mb.concat(values=[*turned, *rest], axis=-1)


def attention(a: Arguments) -> Var:
    # Query heads that share a KV head become rows of one product: keys and values are never repeated.
    q, keys, values, mask = a["q"], a["k"], a["v"], a["mask"]
    if a["prefix_k"] is not None:
        keys = mb.concat(values=[a["prefix_k"], keys], axis=2)
        values = mb.concat(values=[a["prefix_v"], values], axis=2)
    batch, heads, length, dim = _shape(q)
    groups, shared = _shape(keys)[1], heads // _shape(keys)[1]
    # The operator divides by sqrt(dim).
    q = mb.mul(x=q, y=_like(q, a["scale"] * math.sqrt(dim)))
    q = mb.reshape(x=q, shape=[batch, groups, shared * length, dim])
    if mask is None:
        out = mb.scaled_dot_product_attention(query=q, key=keys, value=values)
    else:
        if shared > 1:
            mask = mb.concat(values=[mask] * shared, axis=-2)
        mask = mb.expand_dims(x=mask, axes=list(range(4 - len(_shape(mask)))))
        out = mb.scaled_dot_product_attention(query=q, key=keys, value=values, attn_mask=mask)
    return mb.reshape(x=out, shape=[batch, heads, length, dim])


def activated(gate: Var, up: Var, kind: str) -> Var:
    """activation(gate) * up."""
    if kind == "gelu_tanh":
        return mb.mul(x=mb.gelu(x=gate, mode="TANH_APPROXIMATION"), y=up)
    return mb.mul(x=mb.silu(x=gate), y=up)


def gated_act(a: Arguments) -> Var:
    return activated(a["gate"], a["up"], a["kind"])


def experts(a: Arguments) -> Var:
    # Every expert sees every position: shapes that depend on the router's choice are nothing for these
    # devices, and with a whole canvas nearly all experts are chosen anyway. Positions that did not choose an
    # expert have weight zero in the sum, which is over experts and their columns at once. Rows are rounded
    # before they are weighted: of those with weight zero nothing would be left to round.
    x, index, weight = a["x"], a["index"], a["weight"]
    start, total = 0, None
    for gate_up, down in zip(a["gate_up"].groups, a["down"].groups, strict=True):
        count = _shape(gate_up)[0]
        ids = np.arange(start, start + count, dtype=np.int32)[:, None, None]
        chosen = mb.equal(x=mb.expand_dims(x=index, axes=[0]), y=ids)
        chosen = mb.cast(x=chosen, dtype="fp16" if x.dtype == types.fp16 else "fp32")
        mix = mb.reduce_sum(x=mb.mul(x=chosen, y=weight), axes=[-1], keep_dims=True)  # [n, T, 1]
        rows, factor = a["operand"](x, gate_up)
        both = mb.matmul(x=mb.expand_dims(x=rows, axes=[0]), y=gate_up, transpose_y=True)
        both = both if factor is None else mb.mul(x=both, y=factor)
        gate, up = mb.split(x=both, num_splits=2, axis=-1)
        inner, factor = a["operand"](activated(gate, up, a["kind"]), down)
        inner = mb.mul(x=inner, y=mix) if factor is None else inner
        part = mb.matmul(x=inner, y=down, transpose_y=True)
        part = part if factor is None else mb.mul(x=part, y=mb.mul(x=factor, y=mix))
        part = mb.reduce_sum(x=part, axes=[0])
        total = part if total is None else mb.add(x=total, y=part)
        start += count
    assert total is not None
    return total


def route(a: Arguments) -> tuple[Var, Var]:
    if a["capacity"]:  # the rows of a shorter pass, which pad it, would choose too
        raise Refused("chooses experts for several rows together")
    logits, k, groups = a["logits"], a["k"], a["groups"]
    length, experts = _shape(logits)
    p = mb.softmax(x=logits, axis=-1) if a["score"] == "softmax" else mb.sigmoid(x=logits)
    wanted = p if a["bias"] is None else mb.add(x=p, y=a["bias"])
    if groups > 1:
        of_group = mb.reshape(x=wanted, shape=[length, groups, experts // groups])
        best = mb.reduce_sum(x=_largest(of_group, 2)[0], axes=[-1])
        own = np.arange(experts, dtype=np.int32).reshape(groups, -1)
        pool = mb.gather(x=own, indices=_largest(best, a["kept_groups"])[1], axis=0, validate_indices=False)
        pool = mb.reshape(x=pool, shape=[length, a["kept_groups"] * (experts // groups)])
        place = _largest(_along(wanted, pool), k)[1]
        index = _along(pool, place)
    else:
        index = _largest(wanted, k)[1]
    weight = _along(p, index)
    if a["normalize"]:
        total = mb.reduce_sum(x=weight, axes=[-1], keep_dims=True)
        weight = mb.real_div(x=weight, y=total)
    if a["scale"] != 1:
        weight = mb.mul(x=weight, y=_like(weight, a["scale"]))
    if a["expert_scale"] is not None:
        own = mb.gather(x=a["expert_scale"], indices=index, axis=0, validate_indices=False)
        weight = mb.mul(x=weight, y=own)
    return index, weight


def _largest(x: Var, count: int) -> Sequence[Var]:
    """The largest of the last axis, in order, and their places."""
    out: Sequence[Var] = mb.topk(x=x, k=count, axis=-1, ascending=False)
    return out


def _along(x: Var, index: Var) -> Var:
    return mb.gather_along_axis(x=x, indices=index, axis=-1, validate_indices=False)


def vocab_logits(a: Arguments) -> Var:
    x, factor = a["operand"](a["x"], a["table"])
    logits, cap = _product(a, x, factor, a["table"], None), a["softcap"]
    if cap > 0:
        bounded = mb.tanh(x=mb.mul(x=logits, y=_like(logits, 1 / cap)))
        logits = mb.mul(x=bounded, y=_like(logits, cap))
    return logits


def vocab_head(a: Arguments) -> list[Var]:
    z = mb.real_div(x=vocab_logits(a), y=a["temperature"])
    top = mb.reduce_max(x=z, axes=[-1], keep_dims=True)
    arg = mb.reduce_argmax(x=z, axis=-1, keep_dims=True)
    own = mb.equal(x=arg, y=np.arange(_shape(z)[1], dtype=np.int32)[None])
    others = mb.select(cond=own, a=_like(z, _FAR), b=z)
    # In float16 exp(z - max) is 0 where float32 has it still: the sums are relative to the largest of the
    # others first. And a sum of z exp(z - max) over a tile may be too large, that of (z - max) exp(z - max)
    # is not.
    second = mb.reduce_max(x=others, axes=[-1], keep_dims=True)
    distance = mb.sub(x=others, y=second)
    e = mb.exp(x=distance)
    total, below = _row_sum(e), _row_sum(mb.mul(x=e, y=distance))
    highest, second = (_wide(mb.squeeze(x=x, axes=[-1])) for x in (top, second))
    share = mb.exp(x=mb.sub(x=second, y=highest))
    out = [highest, mb.squeeze(x=arg, axes=[-1]), mb.mul(x=total, y=share)]
    out.append(mb.mul(x=mb.add(x=below, y=mb.mul(x=second, y=total)), y=share))
    if a["noise"] is not None:
        score = mb.add(x=z, y=a["noise"])
        sample = mb.reduce_argmax(x=score, axis=-1, keep_dims=True)
        z_there = mb.gather_along_axis(x=z, indices=sample, axis=-1, validate_indices=False)
        out += [_wide(mb.reduce_max(x=score, axes=[-1])), mb.squeeze(x=sample, axes=[-1])]
        out += [_wide(mb.squeeze(x=z_there, axes=[-1]))]
    if a["soft"]:
        out.append(mb.matmul(x=mb.exp(x=mb.sub(x=z, y=top)), y=a["table"]))
    return out


def _row_sum(x: Var) -> Var:
    """Sums [T] of rows [T, V] in float32. A device may add float16 in float16, where what is less than a
    thousandth of the sum so far is lost: only few are added before the type is wider.
    """
    length, width = _shape(x)
    few = max(n for n in range(1, _MOST_TERMS + 1) if width % n == 0)
    parts = mb.reduce_sum(x=mb.reshape(x=x, shape=[length, width // few, few]), axes=[-1])
    return mb.reduce_sum(x=_wide(parts), axes=[-1])


def _wide(x: Var) -> Var:
    return mb.cast(x=x, dtype="fp32") if x.dtype == types.fp16 else x


def _operands(a: Arguments) -> tuple[Any, Any]:
    if a.get("alpha", 1) != 1:
        raise Refused("has a factor for its second argument")
    x, y = a["self"], a["other"]
    return x, y if isinstance(y, Var) else _like(x, y)


def _binary(function: Callable[..., Var]) -> Callable[[Arguments], Var]:
    def handle(a: Arguments) -> Var:
        x, y = _operands(a)
        return function(x=x, y=y)

    return handle


def _index_select(a: Arguments) -> Var:
    return mb.gather(x=a["self"], indices=a["index"], axis=a["dim"], validate_indices=False)


def _transpose(a: Arguments) -> Var:
    order = list(range(len(_shape(a["self"]))))
    first, second = a["dim0"], a["dim1"]
    order[first], order[second] = order[second], order[first]
    return mb.transpose(x=a["self"], perm=order)


#: What a node becomes: arguments by name -> value or values. Beside those of the node there are `zeros`,
#: which makes a vector of them, and `operand`, which is `PackageGraph`'s. `nodes.RESHAPES` are not there.
NODES: dict[Any, Callable[[Arguments], Any]] = {
    edgekit.rms_norm.default: rms_norm,
    edgekit.linear.default: linear,
    edgekit.rope.default: rope,
    edgekit.attention.default: attention,
    edgekit.gated_act.default: gated_act,
    edgekit.route.default: route,
    edgekit.experts.default: experts,
    edgekit.vocab_logits.default: vocab_logits,
    edgekit.vocab_head.default: vocab_head,
    aten.add.Tensor: _binary(mb.add),
    aten.sub.Tensor: _binary(mb.sub),
    aten.mul.Tensor: _binary(mb.mul),
    aten.div.Tensor: _binary(mb.real_div),
    aten.index_select.default: _index_select,
    aten.transpose.int: _transpose,
    aten.to.dtype: same_type,
}
