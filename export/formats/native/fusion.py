"""Ops that belong together become one: a product with what is added to it, a gate with its activation, a
norm with its weight. The values stay the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

#: Sizes of a value: numbers, or the name of a length that is known when the program runs.
Shape = tuple[int | str, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """A value that one op makes and others take; two of them are never equal."""

    shape: Shape


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight that the graph takes as an input, under the name of its tensor."""

    name: str
    shape: list[int]


@dataclass(eq=False)
class Op:
    """An op of the list that is being built. `node` names it in messages; `fused` are the shapes of weights
    that fusion has brought in.
    """

    name: str
    inputs: list[Value | Weight | None]
    weights: list[str | None]
    outputs: list[Value]
    attributes: dict[str, Any]
    node: str
    fused: dict[str, list[int]] = field(default_factory=dict)


def fuse(ops: list[Op], outputs: list[Value]) -> list[Op]:
    """The same program in fewer ops. An op with several users is never fused away: it would be computed
    twice.
    """
    users = Counter(v for op in ops for v in op.inputs) + Counter(outputs)
    makers = {op.outputs[0]: op for op in ops}
    gone: set[Op] = set()

    def maker(value: Value | Weight | None, name: str) -> Op | None:
        """The op of that name which makes the value for one user alone."""
        op = makers.get(value) if isinstance(value, Value) else None
        return op if op is not None and op.name == name and users[value] == 1 else None

    out = []
    for op in ops:
        if op.name == "mul":
            fused = _weighted_norm(op, maker)
        elif op.name == "gated_act":
            fused = _gated_linears(op, maker)
        elif op.name == "add":
            fused = _residual_linear(op, maker)
        else:
            fused = None
        if fused is not None:
            new, parts = fused
            gone.update(parts)
            makers[new.outputs[0]] = new
            op = new
        out.append(op)
    return [op for op in out if op not in gone]


def _weighted_norm(op: Op, maker: Any) -> tuple[Op, list[Op]] | None:
    """rms_norm(x) * vector is rms_norm(x, vector): the norm multiplies in the same order."""
    for x, vector in (op.inputs, op.inputs[::-1]):
        norm = maker(x, "rms_norm")
        if norm and norm.weights == [None] and isinstance(vector, Weight) and isinstance(x, Value):
            if vector.shape != [x.shape[-1]]:
                return None
            new = Op("rms_norm", norm.inputs, [vector.name], op.outputs, norm.attributes, op.node)
            new.fused[vector.name] = vector.shape
            return new, [norm]
    return None


def _gated_linears(op: Op, maker: Any) -> tuple[Op, list[Op]] | None:
    """Two products of the same x that only meet in a gate: the rows of both are read side by side."""
    gate, up = (maker(v, "linear") for v in op.inputs)
    if gate is None or up is None:
        return None
    if gate.inputs[0] is not up.inputs[0] or gate.outputs[0].shape != up.outputs[0].shape:
        return None
    for product in (gate, up):
        if product.inputs[1] or any(product.weights[1:]) or product.attributes["act_bits"] != 8:
            return None
    weights = [gate.weights[0], up.weights[0]]
    new = Op("linear_gated", [gate.inputs[0]], weights, op.outputs, {"kind": op.attributes["kind"]}, op.node)
    return new, [gate, up]


def _residual_linear(op: Op, maker: Any) -> tuple[Op, list[Op]] | None:
    """A product that is only added to a value of the same shape."""
    for product, residual in (op.inputs[::-1], op.inputs):
        linear = maker(product, "linear")
        if linear is None or not isinstance(residual, Value) or linear.inputs[1] is not None:
            continue
        if residual.shape == linear.outputs[0].shape:
            inputs = [linear.inputs[0], residual, *linear.inputs[2:]]
            return Op("linear", inputs, linear.weights, op.outputs, linear.attributes, op.node), [linear]
    return None
