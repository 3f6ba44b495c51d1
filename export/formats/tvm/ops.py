"""`edgekit::` and aten operators in Relax, one function each, for whatever builder is at work.

Functions that are looked up by name while a program runs are its engine's, which knows the prefix and the
mask that attention sees, and streams the experts:

    edgekit.attention   scale, q [1, heads, T, D], k, v [1, KV, T, D] -> [1, heads, T, D]
    edgekit.experts     x [T, H], logits [T, E] -> [T, H]; the rule of routing is in the program's entry
    edgekit.linear      act_bits, x [T, K], the stored tensors of a matrix (16 bits: one, 8: codes, scales;
                        4: packed, group_scales, scales) -> [T, N]

The last is for devices whose products are the native core's kernels; for others they are compiled
(`kernels`). Then so are attention and experts, as functions of their own, which the engine calls for what it
is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tvm import relax, te

from edgekit.export.formats.nodes import Arguments, Refused, same_type
from edgekit.export.formats.tvm import kernels

aten, edgekit = torch.ops.aten, torch.ops.edgekit

FLOAT = "float32"
#: Parts that sums of squares are made of.
_LANES = 16
#: Bits of activations that are not rounded.
_FLOATS = 16
LINEAR, ATTENTION, EXPERTS = "edgekit.linear", "edgekit.attention", "edgekit.experts"


@dataclass(frozen=True)
class Matrix:
    """A matrix [N, K] of a program's weights: the variables of its stored tensors, of 4-bit ones with the
    columns of a group.
    """

    rows: int
    columns: int
    tensors: tuple[relax.Var, ...]
    group: int = 0

    @property
    def is_float(self) -> bool:
        return len(self.tensors) == 1


@dataclass(frozen=True)
class Routed:
    """What stands for the chosen experts and their weights until the mixture: logits and the rule."""

    logits: relax.Expr
    rule: dict[str, Any]


@dataclass
class Mixture:
    """The mixture of a program, for its entry: filled while it is translated."""

    rule: dict[str, Any] = field(default_factory=dict)
    kind: str = ""


def sizes(x: relax.Expr) -> list[Any]:
    """The sizes of an array: numbers, or expressions of lengths."""
    return list(x.ty.shape.values)


def emit(value: relax.Expr) -> relax.Var:
    """The value as a variable of the function under construction."""
    return relax.BlockBuilder.current().emit(value)


def expression(function: Callable[..., Any], *arguments: Any) -> relax.Var:
    """A tensor expression of these arguments as a function of its own."""
    return relax.BlockBuilder.current().emit_te(function, *arguments)


def external(name: str, arguments: Sequence[Any], shape: Sequence[Any]) -> relax.Var:
    """What a function of this name, which is looked up when the program runs, writes into a new array."""
    given = [relax.prim_value(a) if isinstance(a, int | float) else a for a in arguments]
    return emit(relax.op.call_dps_packed(name, given, relax.TensorType(shape, FLOAT)))


def reshaped(x: relax.Expr, shape: Sequence[Any]) -> relax.Var:
    """The array in another shape, which is not a copy."""
    return emit(relax.op.reshape(x, shape))


# --- kernels of the core
# --------------------------------------------------------------------------------------


def core_product(x: relax.Expr, matrix: Matrix, act_bits: int) -> relax.Var:
    """x [T, K] times the transposed matrix, by the core."""
    return external(LINEAR, [act_bits, x, *matrix.tensors], [sizes(x)[0], matrix.rows])


# --- compiled kernels
# -----------------------------------------------------------------------------------------


def compiled_product(x: relax.Expr, matrix: Matrix, act_bits: int) -> relax.Var:
    """The same in tensor expressions."""
    if matrix.is_float:
        return expression(kernels.float_product, x, expression(kernels.wide_16bit, *matrix.tensors))
    *stored, scales = matrix.tensors
    if len(stored) == 2:
        weight = expression(kernels.unpacked_4bit(matrix.columns, matrix.rows, matrix.group), *stored)
    else:
        weight = expression(kernels.unpacked_8bit(matrix.columns, matrix.rows), *stored)
    if act_bits != 8:
        return expression(kernels.float_product, x, expression(kernels.wide_8bit, weight, scales))
    of_rows = expression(kernels.row_scales, x)
    total = expression(kernels.integer_product, expression(kernels.rounded, x, of_rows), weight)
    return expression(kernels.scaled, total, of_rows, scales)


def compiled_attention(
    q: relax.Expr, k: relax.Expr, v: relax.Expr, prefix: Sequence[relax.Expr], masks: Sequence[relax.Expr],
    scale: float,
) -> relax.Var:  # fmt: skip
    """Attention [1, heads, T, D] over the pass, and over keys and values of a `prefix` where there is one; of
    masks there is one or none.
    """
    own = expression(kernels.scores(scale, False), q, k, *masks)
    if not prefix:
        return expression(kernels.attended, own, v)
    before = expression(kernels.scores(scale, True), q, prefix[0], *masks)
    return expression(kernels.attended_with_prefix, before, own, prefix[1], v)


# --- nodes
# ----------------------------------------------------------------------------------------------------


def rms_norm(a: Arguments) -> relax.Var:
    width, eps = int(sizes(a["x"])[-1]), float(a["eps"])
    lanes = math.gcd(width, _LANES)

    def of(x: Any, *weights: Any) -> Any:
        # In lanes: vectors, and sums of few numbers, which keep more digits.
        k, lane = te.reduce_axis((0, width // lanes), "k"), te.reduce_axis((0, lanes), "lane")

        def square(*i: Any) -> Any:
            value = x(*i[:-1], k * lanes + i[-1])
            return te.sum(value * value, axis=k)

        parts = te.compute((*x.shape[:-1], lanes), square, "squares")
        total = te.compute(x.shape[:-1], lambda *i: te.sum(parts(*i, lane), axis=lane), "total")

        def value(*i: Any) -> Any:
            y = x(*i) * (1.0 / te.sqrt(total(*i[:-1]) / float(width) + te.const(eps, FLOAT)))
            return y * weights[0](i[-1]) if weights else y

        return te.compute(x.shape, value, "normed")

    return expression(of, a["x"], *([] if a["weight"] is None else [a["weight"]]))


def linear(a: Arguments) -> relax.Var:
    x, matrix = a["x"], a["weight"]
    shape = sizes(x)
    flat = x if len(shape) == 2 else reshaped(x, [math.prod(shape[1:-1], start=shape[0]), shape[-1]])
    y = a["product"](flat, matrix, a["act_bits"])
    if a["bias"] is not None:
        y = emit(relax.op.add(y, a["bias"]))
    if a["down"] is not None:
        inner = a["product"](flat, a["down"], _FLOATS)
        inner = inner if a["adapter"] is None else emit(relax.op.multiply(inner, a["adapter"]))
        y = emit(relax.op.add(y, a["product"](inner, a["up"], _FLOATS)))
    return y if len(shape) == 2 else reshaped(y, [*shape[:-1], matrix.rows])


def attention(a: Arguments) -> relax.Var:
    return external(ATTENTION, [float(a["scale"]), a["q"], a["k"], a["v"]], sizes(a["q"]))


def rope(a: Arguments) -> relax.Var:
    half = int(sizes(a["cos"])[-1])

    def of(x: Any, cos: Any, sin: Any) -> Any:
        def value(b: Any, h: Any, t: Any, d: Any) -> Any:
            first = x[b, h, t, d] * cos[t, d] - x[b, h, t, d + half] * sin[t, d]
            second = x[b, h, t, d] * cos[t, d - half] + x[b, h, t, d - half] * sin[t, d - half]
            later = te.if_then_else(d < 2 * half, second, x[b, h, t, d])
            return te.if_then_else(d < half, first, later)

        return te.compute(x.shape, value, "rotated")

    return expression(of, a["x"], a["cos"], a["sin"])


def activated(gate: Any, up: Any, kind: str) -> Any:
    """activation(gate) * up, of two numbers of an expression."""
    if kind == "gelu_tanh":  # 0.5 (1 + tanh(u)) is sigmoid(2 u)
        inner = gate * te.const(2 * (2 / math.pi) ** 0.5, FLOAT)
        inner = inner * (te.const(1, FLOAT) + te.const(0.044715, FLOAT) * gate * gate)
        return gate * te.sigmoid(inner) * up
    return gate * te.sigmoid(gate) * up


def gated_act(a: Arguments) -> relax.Var:
    def of(gate: Any, up: Any) -> Any:
        return te.compute(gate.shape, lambda *i: activated(gate(*i), up(*i), a["kind"]), "gated")

    return expression(of, a["gate"], a["up"])


def gated_halves(x: relax.Expr, kind: str) -> relax.Var:
    """activation of the first half [T, M] of x [T, 2 M] times the second."""
    width = int(sizes(x)[1]) // 2

    def of(both: Any) -> Any:
        return te.compute(
            (both.shape[0], width), lambda t, m: activated(both[t, m], both[t, m + width], kind), "gated"
        )

    return expression(of, x)


def route(a: Arguments) -> tuple[Routed, Routed]:
    rule = {name: a[name] for name in ROUTING}
    for name in ("bias", "expert_scale"):
        if a[name] is not None and not a["names"][name]:
            raise Refused(f"takes a {name} that is no vector of the weights")
        rule[name] = None if a[name] is None else a["names"][name]
    chosen = Routed(a["logits"], rule)
    return chosen, chosen


#: Numbers of `edgekit::route` that an entry holds as they are.
ROUTING = ("k", "score", "normalize", "scale", "groups", "kept_groups", "capacity", "block")


def experts(a: Arguments) -> relax.Var:
    chosen, mixture = a["weight"], a["mixture"]
    if not isinstance(chosen, Routed) or a["index"] is not chosen or mixture.rule:
        raise Refused("takes other than what the layer's only router has chosen")
    mixture.rule, mixture.kind = chosen.rule, a["kind"]
    return external(EXPERTS, [a["x"], chosen.logits], sizes(a["x"]))


def _binary(function: Callable[[Any, Any], relax.Expr]) -> Callable[[Arguments], relax.Var]:
    def handle(a: Arguments) -> relax.Var:
        if a.get("alpha", 1) != 1:
            raise Refused("has a factor for its second argument")
        other = a["other"]
        return emit(
            function(a["self"], relax.const(other, FLOAT) if isinstance(other, int | float) else other)
        )

    return handle


def index_select(a: Arguments) -> relax.Var:
    if len(sizes(a["self"])) != 1 or a["dim"] != 0:
        raise Refused("selects from something else than a vector")
    if not a["of_rows"]:
        raise Refused("selects by something else than the kind of a pass")

    def of(x: Any, index: Any) -> Any:
        # Of every row: a column, which multiplies rows.
        return te.compute((index.shape[0], 1), lambda i, _: x[index[i]], "selected")

    return expression(of, a["self"], a["index"])


def transpose(a: Arguments) -> relax.Var:
    # Relax's own operator loses the length of the pass in a later step.
    rank = len(sizes(a["self"]))
    first, second = a["dim0"] % rank, a["dim1"] % rank

    def swapped(places: Sequence[Any]) -> list[Any]:
        out = list(places)
        out[first], out[second] = out[second], out[first]
        return out

    def of(x: Any) -> Any:
        return te.compute(tuple(swapped(x.shape)), lambda *i: x(*swapped(i)), "transposed")

    return expression(of, a["self"])


#: What a node becomes: arguments by name, with those that `graph` adds -> variables. Not among them are the
#: operators of the head, which the core computes, and `nodes.RESHAPES`.
NODES: dict[Any, Callable[[Arguments], Any]] = {
    edgekit.rms_norm.default: rms_norm,
    edgekit.linear.default: linear,
    edgekit.rope.default: rope,
    edgekit.attention.default: attention,
    edgekit.gated_act.default: gated_act,
    edgekit.route.default: route,
    edgekit.experts.default: experts,
    aten.add.Tensor: _binary(relax.op.add),
    aten.sub.Tensor: _binary(relax.op.subtract),
    aten.mul.Tensor: _binary(relax.op.multiply),
    aten.index_select.default: index_select,
    aten.transpose.int: transpose,
    aten.to.dtype: same_type,
}
