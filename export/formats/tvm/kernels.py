"""Tensor expressions of what programs for GPUs compute themselves, over weights in layout `native-1`.

Products follow the native core: a matrix of 4 or 8 bits becomes int8, activations are rounded to int8 by
rows, sums are int32, and two scales make floats of them. Such a product is what tensor cores take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

#: A tensor, or an index, of an expression.
Expression = Any

_PANEL, _QUAD = 64, 4


def unpacked_8bit(columns: int, rows: int) -> Callable[[Expression], Expression]:
    """int8 [N, K] of codes [P, Q, 64, 4]."""

    def of(codes: Expression) -> Expression:
        def code(n: Expression, k: Expression) -> Expression:
            stored = codes[n // _PANEL, k // _QUAD, n % _PANEL, k % _QUAD]
            return (stored.astype("int16") - te.const(128, "int16")).astype("int8")

        return te.compute((rows, columns), code, "unpacked")

    return of


def unpacked_4bit(columns: int, rows: int, group: int) -> Callable[[Expression, Expression], Expression]:
    """int8 [N, K], codes times group scales, of packed [P, K / 8, 64, 4] and group_scales [P, K / G, 64]."""

    def of(packed: Expression, groups: Expression) -> Expression:
        def code(n: Expression, k: Expression) -> Expression:
            panel, row = n // _PANEL, n % _PANEL
            pair = packed[panel, k // (2 * _QUAD), row, k % _QUAD]
            nibble = (pair >> ((k // _QUAD % 2) * 4).astype("uint8")) & te.const(15, "uint8")
            scale = groups[panel, k // group, row].astype("int8")
            return (nibble.astype("int8") - te.const(8, "int8")) * scale

        return te.compute((rows, columns), code, "unpacked")

    return of


def row_scales(x: Expression) -> Expression:
    """max|x| / 127 [T] of x [T, K]."""
    k = te.reduce_axis((0, x.shape[1]), "k")
    most = te.compute((x.shape[0],), lambda t: te.max(te.abs(x[t, k]), axis=k), "most")
    return te.compute((x.shape[0],), lambda t: most[t] / 127.0, "scale")


def rounded(x: Expression, scales: Expression) -> Expression:
    """int8 [T, K] of x [T, K]; rows of zeros stay zeros."""

    def code(t: Expression, k: Expression) -> Expression:
        return te.nearbyint(x[t, k] / te.max(scales[t], te.const(1e-30, "float32"))).astype("int8")

    return te.compute(x.shape, code, "rounded")


def integer_product(x: Expression, weight: Expression) -> Expression:
    """int32 [T, N] of int8 [T, K] and int8 [N, K]."""
    k = te.reduce_axis((0, x.shape[1]), "k")

    def total(t: Expression, n: Expression) -> Expression:
        return te.sum(x[t, k].astype("int32") * weight[n, k].astype("int32"), axis=k)

    return te.compute((x.shape[0], weight.shape[0]), total, "product")


def scaled(total: Expression, x_scales: Expression, scales: Expression) -> Expression:
    """float32 [T, N] of sums [T, N]; `scales` [64 P] are those of the rows, padded to whole panels."""
    return te.compute(
        total.shape, lambda t, n: total[t, n].astype("float32") * (x_scales[t] * scales[n]), "scaled"
    )


def wide_8bit(weight: Expression, scales: Expression) -> Expression:
    """float32 [N, K] of int8 [N, K], for products whose activations must not be rounded."""
    return te.compute(weight.shape, lambda n, k: weight[n, k].astype("float32") * scales[n], "wide")


def wide_16bit(weight: Expression) -> Expression:
    """float32 [N, K] of bfloat16 [N, K], which comes as its bits in uint16."""

    def value(n: Expression, k: Expression) -> Expression:
        return tirx.reinterpret("float32", weight[n, k].astype("uint32") << te.const(16, "uint32"))

    return te.compute(weight.shape, value, "wide")


def float_product(x: Expression, weight: Expression) -> Expression:
    """float32 [T, N] of [T, K] and [N, K]."""
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute(
        (x.shape[0], weight.shape[0]), lambda t, n: te.sum(x[t, k] * weight[n, k], axis=k), "product"
    )


def scores(scale: float, before: bool) -> Callable[..., Expression]:
    """Scores [heads, T, S] of q [1, heads, T, D] and keys [1, KV, S, D], the prefix (`before`) or the pass
    itself, of whose mask [T, P + T] the last columns are.
    """

    def of(q: Expression, keys: Expression, *masks: Expression) -> Expression:
        heads, share = q.shape[1], q.shape[1] // keys.shape[1]
        d = te.reduce_axis((0, q.shape[3]), "d")
        found = te.compute(
            (heads, q.shape[2], keys.shape[2]),
            lambda h, t, s: te.sum(q[0, h, t, d] * keys[0, h // share, s, d], axis=d),
            "scores",
        )

        def masked(h: Expression, t: Expression, s: Expression) -> Expression:
            value = found[h, t, s] * te.const(scale, "float32")
            for mask in masks:
                value = value + mask[t, s if before else s + mask.shape[1] - keys.shape[2]]
            return value

        return te.compute(found.shape, masked, "masked")

    return of


def _largest(scores: Expression) -> Expression:
    s = te.reduce_axis((0, scores.shape[2]), "s")
    return te.compute(scores.shape[:2], lambda h, t: te.max(scores[h, t, s], axis=s), "top")


def _weights(scores: Expression, top: Expression) -> Expression:
    return te.compute(scores.shape, lambda h, t, s: te.exp(scores[h, t, s] - top[h, t]), "weights")


def _total(weights: Expression) -> Expression:
    s = te.reduce_axis((0, weights.shape[2]), "s")
    return te.compute(weights.shape[:2], lambda h, t: te.sum(weights[h, t, s], axis=s), "total")


def _mixed(weights: Expression, values: Expression) -> Expression:
    share = weights.shape[0] // values.shape[1]
    s = te.reduce_axis((0, weights.shape[2]), "s")
    return te.compute(
        (*weights.shape[:2], values.shape[3]),
        lambda h, t, d: te.sum(weights[h, t, s] * values[0, h // share, s, d], axis=s),
        "mixed",
    )


def attended(own: Expression, v: Expression) -> Expression:
    """Values [1, heads, T, D] mixed by the softmax of scores [heads, T, T]."""
    weights = _weights(own, _largest(own))
    mixed, total = _mixed(weights, v), _total(weights)
    return te.compute((1, *mixed.shape), lambda _, h, t, d: mixed[h, t, d] / total[h, t], "attended")


def attended_with_prefix(
    before: Expression, own: Expression, prefix_v: Expression, v: Expression
) -> Expression:
    """The same by the softmax over both parts of the scores, [heads, T, P] with P > 0 and [heads, T, T].

    The parts stay apart: schedules for GPUs do not fuse loops over P + T. A sum over no positions at all
    would not even be set to zero.
    """
    tops = _largest(before), _largest(own)
    top = te.compute(tops[0].shape, lambda h, t: te.max(tops[0][h, t], tops[1][h, t]), "top")
    weights = _weights(before, top), _weights(own, top)
    totals = _total(weights[0]), _total(weights[1])
    mixed = _mixed(weights[0], prefix_v), _mixed(weights[1], v)
    return te.compute(
        (1, *mixed[1].shape),
        lambda _, h, t, d: (mixed[0][h, t, d] + mixed[1][h, t, d]) / (totals[0][h, t] + totals[1][h, t]),
        "attended",
    )
