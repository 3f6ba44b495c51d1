"""`edgekit::` and aten operators in MLX, one function each: how a layer's graph is said in MLX's words.

Programs are exported for any length, which rules out what MLX has no shape rule for: slices, splits, views
as another type, and broadcasts to a given shape. Halves are therefore gathered by constant indices, and the
gate and up halves of an expert are matrices of their own.

Nor may an axis of one entry be reduced (sum, max, mean): MLX leaves such a node out, but in functions for any
length it records it, and its Reduce reads beyond an empty list there, which ends the process. Axes of any
length are therefore not reduced at all: sums are products, and the largest entry is gathered.

All arithmetic is float32, whatever the type of the stored scales: residual streams pass what float16 holds,
and MLX's processor kernels for x86 sum half precision in half precision (49 dB a layer of width 1024 against
the same codes, where float16 scales alone leave 75).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import torch

from edgekit.export.formats.mlx.layout import Form
from edgekit.export.formats.nodes import Arguments, Refused, same_type

aten, edgekit = torch.ops.aten, torch.ops.edgekit

#: What is so far below the largest score has no part in a softmax. Finite, as its product with 0 must be 0.
_FAR = 1e30


@dataclass(frozen=True)
class Matrix:
    """A stored matrix [N, K] while its program is traced; scales and biases only where `form` has groups."""

    form: Form
    weight: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None

    def product(self, x: mx.array, transpose: bool = True) -> mx.array:
        """x [..., K] times the transposed matrix; x [..., N] times the matrix if not `transpose`."""
        if self.scales is None:
            weight = self.weight.astype(mx.float32)
            return mx.matmul(x, mx.swapaxes(weight, -1, -2) if transpose else weight)
        form = self.form
        return mx.quantized_matmul(
            x, self.weight, self.scales, self.biases, transpose, form.group_size, form.bits
        )


def _columns(x: mx.array, start: int, stop: int) -> mx.array:
    """x[..., start:stop]."""
    index = np.arange(start, stop, dtype=np.uint32).reshape((1,) * (x.ndim - 1) + (-1,))
    return mx.take_along_axis(x, mx.array(index), -1)


def rms_norm(a: Arguments) -> mx.array:
    x, weight = a["x"], a["weight"]
    if x.shape[-1] == 1:
        y = x * mx.rsqrt(x * x + a["eps"])
        return y if weight is None else y * weight
    return mx.fast.rms_norm(x, weight, a["eps"])


def linear(a: Arguments) -> mx.array:
    y: mx.array = a["weight"].product(a["x"])
    y = y if a["bias"] is None else y + a["bias"]
    if a["down"] is None:
        return y
    inner = a["down"].product(a["x"])
    return y + a["up"].product(inner if a["adapter"] is None else inner * a["adapter"])


def rope(a: Arguments) -> mx.array:
    x, cos, sin = a["x"], a["cos"], a["sin"]
    half, width = cos.shape[-1], x.shape[-1]
    first, second = _columns(x, 0, half), _columns(x, half, 2 * half)
    parts = [first * cos - second * sin, second * cos + first * sin]
    if 2 * half < width:
        parts.append(_columns(x, 2 * half, width))
    return mx.concatenate(parts, -1)


def attention(a: Arguments) -> mx.array:
    # mx.fast has it too, but traced without a GPU it is recorded as these operators, with a mask of the
    # traced lengths.
    q, mask = a["q"] * a["scale"], a["mask"]
    keys, values = mx.concatenate([a["prefix_k"], a["k"]], 2), mx.concatenate([a["prefix_v"], a["v"]], 2)
    repeat = q.shape[1] // keys.shape[1]
    if repeat > 1:
        q = mx.unflatten(q, 1, (keys.shape[1], repeat))
        keys, values = mx.expand_dims(keys, 2), mx.expand_dims(values, 2)
    scores = mx.matmul(q, mx.swapaxes(keys, -1, -2))
    if mask is not None:
        scores = scores + mask
    out = mx.matmul(mx.softmax(scores, -1, precise=True), values)
    return mx.flatten(out, 1, 2) if repeat > 1 else out


def activated(gate: mx.array, up: mx.array, kind: str) -> mx.array:
    """activation(gate) * up."""
    if kind == "gelu_tanh":  # 0.5 (1 + tanh(u)) is sigmoid(2 u), which loses no digits where tanh nears -1
        inner = (2 * (2 / np.pi) ** 0.5) * (gate + 0.044715 * gate * gate * gate)
        return gate * mx.sigmoid(inner) * up
    return gate * mx.sigmoid(gate) * up


def gated_act(a: Arguments) -> mx.array:
    return activated(a["gate"], a["up"], a["kind"])


def route(a: Arguments) -> tuple[mx.array, mx.array]:
    if a["capacity"]:
        raise Refused("chooses experts for several rows together")
    logits, k = a["logits"], a["k"]
    p = mx.softmax(logits, -1, precise=True) if a["score"] == "softmax" else mx.sigmoid(logits)
    wanted = p if a["bias"] is None else p + a["bias"]
    if a["groups"] > 1:
        of_group = mx.unflatten(wanted, 1, (a["groups"], -1))
        two = mx.take_along_axis(of_group, _largest(of_group, 2), -1)
        best = mx.squeeze(_total(two), -1)
        own = np.arange(logits.shape[1], dtype=np.uint32).reshape(a["groups"], -1)
        pool = mx.flatten(mx.take(mx.array(own), _largest(best, a["kept_groups"]), 0), 1)
        index = mx.take_along_axis(pool, _largest(mx.take_along_axis(wanted, pool, -1), k), -1)
    else:
        index = _largest(wanted, k)
    weight = mx.take_along_axis(p, index, -1)
    if a["normalize"]:
        weight = weight / (_total(weight) + 1e-20)
    if a["scale"] != 1:
        weight = weight * a["scale"]
    return index, weight if a["expert_scale"] is None else weight * mx.take(a["expert_scale"], index, 0)


def _largest(x: mx.array, count: int) -> mx.array:
    """Places of the largest of the last axis, in order."""
    return _columns(mx.argsort(-x, -1), 0, count)


def _total(x: mx.array) -> mx.array:
    """Sums over the last axis, which stays."""
    return mx.matmul(x, mx.array(np.ones((x.shape[-1], 1), np.float32)))


def expert(x: mx.array, gate: Matrix, up: Matrix, down: Matrix, kind: str) -> mx.array:
    """One expert on its rows: down(act(gate x) * up x)."""
    return down.product(activated(gate.product(x), up.product(x), kind))


def vocab_logits(a: Arguments) -> mx.array:
    logits, cap = a["table"].product(a["x"]), a["softcap"]
    return mx.tanh(logits / cap) * cap if cap > 0 else logits


def vocab_head(a: Arguments) -> list[mx.array]:
    z = vocab_logits(a) / a["temperature"]
    index = mx.argmax(z, -1, keepdims=True)
    top = mx.take_along_axis(z, index, -1)
    others = mx.put_along_axis(z, index, top - _FAR, -1)
    # Of a softmax, and a product instead of a sum: see the head of this file.
    p = mx.softmax(others, -1, precise=True)
    second = mx.argmax(others, -1, keepdims=True)
    most = mx.exp(mx.take_along_axis(others, second, -1) - top)
    sum_others = most / mx.take_along_axis(p, second, -1)
    mean = mx.squeeze(mx.matmul(mx.expand_dims(p, -2), mx.expand_dims(others, -1)), -1)
    statistics = [top, index, sum_others, mean * sum_others]
    if a["noise"] is not None:
        score = z + a["noise"]
        sample = mx.argmax(score, -1, keepdims=True)
        statistics += [mx.take_along_axis(score, sample, -1), sample, mx.take_along_axis(z, sample, -1)]
    out = [mx.squeeze(s, -1) for s in statistics]
    if a["soft"]:
        p = mx.softmax(z, -1, precise=True)
        out.append(a["table"].product(p, transpose=False) * (1 + sum_others))
    return out


def _binary(function: Callable[[Any, Any], mx.array]) -> Callable[[Arguments], mx.array]:
    def handle(a: Arguments) -> mx.array:
        if a.get("alpha", 1) != 1:
            raise Refused("has a factor for its second argument")
        return function(a["self"], a["other"])

    return handle


def _index_select(a: Arguments) -> mx.array:
    if a["self"].ndim != 1:
        raise Refused("selects from something else than a vector")
    return mx.take(a["self"], a["index"], 0)


def _transpose(a: Arguments) -> mx.array:
    return mx.swapaxes(a["self"], a["dim0"], a["dim1"])


#: What a node becomes: arguments by name -> array or arrays. Not among them are `edgekit::experts`, where
#: layers are cut (see `graph`), and `nodes.RESHAPES`.
NODES: dict[Any, Callable[[Arguments], Any]] = {
    edgekit.rms_norm.default: rms_norm,
    edgekit.linear.default: linear,
    edgekit.rope.default: rope,
    edgekit.attention.default: attention,
    edgekit.gated_act.default: gated_act,
    edgekit.route.default: route,
    edgekit.vocab_logits.default: vocab_logits,
    edgekit.vocab_head.default: vocab_head,
    aten.add.Tensor: _binary(mx.add),
    aten.sub.Tensor: _binary(mx.subtract),
    aten.mul.Tensor: _binary(mx.multiply),
    aten.div.Tensor: _binary(mx.divide),
    aten.index_select.default: _index_select,
    aten.transpose.int: _transpose,
    aten.to.dtype: same_type,
}
