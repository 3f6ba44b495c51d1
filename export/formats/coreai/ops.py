"""`edgekit::` and aten operators in Core AI, one function each: how a layer's graph is said in its words.

A program computes in one type, that of its inputs. In float16 the norms, the router's probabilities and what
the head makes of its logits are float32 inside. Norms and attention are composites: graphs of their own that
say what they compute, for which devices have kernels of their own.

Products with weights are convolutions of one pixel, with channels first and positions along the last axis:
what the Neural Engine computes, and how Apple writes its own models for iOS (github.com/apple/coreai-models).
Their kernels for processors sum float16 products in float32, those of matrix products in float16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from coreai.authoring.graph_builder import GraphOp

# isort: split
# Of the same package, which cannot be imported in any other order.
from coreai._compiler.dialects import coreai
from coreai._compiler.ir import (
    ArrayAttr,
    Attribute,
    BoolAttr,
    DictAttr,
    F16Type,
    F32Type,
    FloatAttr,
    InsertionPoint,
    IntegerAttr,
    IntegerType,
    StringAttr,
    Type,
    Value,
)

from edgekit.export.formats.nodes import Arguments, Nodes, Refused, same_type
from edgekit.export.formats.packages.graph import LARGEST, STEP

aten, edgekit = torch.ops.aten, torch.ops.edgekit

_END = 2**31 - 1


def shape_of(x: Value) -> list[int]:
    return list(x.type.shape)


def cast(x: Value, element: Type) -> Value:
    return x if x.type.element_type == element else coreai.cast(x, element)


def wide(x: Value) -> Value:
    """x in float32."""
    return cast(x, F32Type.get())


def like(x: Value, value: Any) -> Value:
    """A number or an array of numbers in the type of x."""
    half = x.type.element_type == F16Type.get()
    return coreai.constant(np.asarray(value, np.float16 if half else np.float32))


def reshape(x: Value, shape: Iterable[int]) -> Value:
    return coreai.reshape(x, np.asarray(list(shape), np.int32))


def transposed(x: Value, first: int = -2, second: int = -1) -> Value:
    order = list(range(x.type.rank))
    order[first], order[second] = order[second], order[first]
    return coreai.transpose(x, np.asarray(order, np.uint32))


def columns(x: Value, start: int, stop: int) -> Value:
    """x[..., start:stop]."""
    return part_of(x, x.type.rank - 1, start, stop)


def part_of(x: Value, axis: int, start: int, stop: int) -> Value:
    """Elements start to stop along an axis."""
    starts, stops, steps = [0] * x.type.rank, [_END] * x.type.rank, [1] * x.type.rank
    starts[axis], stops[axis] = start, stop
    return coreai.slice_(x, starts, stops, steps)


def channels_first(x: Value) -> Value:
    """x [..., T, K] with one matrix in it as a picture [1, K, 1, T]."""
    length, width = shape_of(x)[-2:]
    return reshape(transposed(reshape(x, [length, width])), [1, width, 1, length])


def convolved(x: Value, kernel: Value, groups: int = 1) -> Value:
    """A picture [1, K * groups, 1, T] times the transposed matrices of a kernel [N * groups, K, 1, 1]: a
    picture [1, N * groups, 1, T].
    """
    once = np.ones(2, np.uint32)
    return coreai.conv2d(x, kernel, once, once, np.asarray(groups, np.uint32))


def reduced(reduction: Callable[..., Value], x: Value, axis: int, keep: bool = False) -> Value:
    axis %= x.type.rank
    y = reduction(x, [axis])
    return y if keep else coreai.shrink_dims(y, [axis])


def composite(
    kind: str, inputs: dict[str, Value], facts: dict[str, Any], body: Callable[..., Value]
) -> Value:
    """Call a graph that declares to be a `kind` with `facts`, and computes `body` of its inputs. Calls of the
    same graph on values of the same types share it.
    """
    module = InsertionPoint.current.block.owner.parent
    types = [x.type for x in inputs.values()]
    attributes = {name: _attribute(value) for name, value in (facts | {"version": 1}).items()}
    declared = DictAttr.get(
        {
            "input_names": ArrayAttr.get([StringAttr.get(n) for n in inputs]),
            "output_names": ArrayAttr.get([StringAttr.get("output")]),
            "op_attrs": DictAttr.get(attributes),
        }
    )
    declaration = Attribute.parse(f'#coreai.composite_declaration<"{kind}" = {declared}>')
    block = module.regions[0].blocks[0]
    known = [op for op in block.operations if isinstance(op, GraphOp) and op.composite_decl is not None]
    for graph in known:
        if graph.composite_decl == declaration and list(graph.type.inputs) == types:
            return graph(*inputs.values())[0]
    name = f"{kind}_{len(known)}"
    with InsertionPoint.at_block_begin(block):
        graph = GraphOp(name, types, [], private=True, no_inline=True, composite_decl=declaration)
    with graph.block:
        graph.outputs_spec = [("", body(*graph.arguments))]
    return graph(*inputs.values())[0]


def _attribute(value: Any) -> Attribute:
    if isinstance(value, bool):
        return BoolAttr.get(value)
    if isinstance(value, int):
        return IntegerAttr.get(IntegerType.get_signed(64), value)
    return FloatAttr.get(F32Type.get(), value)


def rms_norm(a: Arguments) -> Value:
    x, weight, eps = a["x"], a["weight"], a["eps"]
    if weight is None:
        weight = like(x, np.ones(shape_of(x)[-1]))

    def body(x: Value, scale: Value) -> Value:
        y = wide(x)
        mean = coreai.reduce_mean(coreai.broadcasting_mul(y, y), [y.type.rank - 1])
        inverse = coreai.rsqrt(coreai.broadcasting_add(mean, like(mean, eps)))
        return cast(
            coreai.broadcasting_mul(coreai.broadcasting_mul(y, inverse), wide(scale)), x.type.element_type
        )

    return composite("rms_norm", {"input": x, "scale": weight}, {"axes": -1, "eps": eps}, body)


def row_factors(x: Value, axis: int) -> Value:
    """Factors that rows, along an axis, are divided by before they are rounded. Those that are smaller than
    normal numbers are rounded in steps of these: nothing is divided by zero.
    """
    smallest = float(np.finfo(np.float16 if x.type.element_type == F16Type.get() else np.float32).tiny)
    top = coreai.reduce_max(coreai.abs_(x), [axis])
    return coreai.broadcasting_maximum(coreai.broadcasting_mul(top, like(x, 1 / LARGEST)), like(x, smallest))


def rounded(x: Value) -> Value:
    """x as multiples of `STEP`, at most 127 of them."""
    # Offsets before and after scaling are none, and the axis says nothing where the scale is one number.
    how = (like(x, STEP), np.zeros((), np.int8), like(x, 0.0), np.zeros((), np.int32))
    return coreai.dequantize(coreai.quantize(x, *how), *how)


def round_rows(x: Value) -> tuple[Value, Value]:
    """See `PackageGraph`. Rounded is the picture of x, right before its product."""
    factor = row_factors(x, x.type.rank - 1)
    return rounded(channels_first(coreai.broadcasting_divide(x, factor))), factor


def round_groups(x: Value) -> tuple[Value, Value]:
    """The same for x [n, K, T] with rows along the second axis: a picture of n groups of channels, and
    factors [n, 1, T].
    """
    count, width, length = shape_of(x)
    factor = row_factors(x, 1)
    picture = reshape(coreai.broadcasting_divide(x, factor), [1, count * width, 1, length])
    return rounded(picture), factor


def operand(a: Arguments, x: Value, kernel: Value) -> tuple[Value, Value | None]:
    """The picture of x [..., T, K] for its product with a kernel, and the factors of its rows if it is
    rounded.
    """
    picture, factor = a["operand"](x, kernel)
    return (channels_first(x) if factor is None else picture), factor


def multiplied(y: Value, factor: Value | None) -> Value:
    """y times the factors of its rows, if there are any."""
    return y if factor is None else coreai.broadcasting_mul(y, factor)


def projected(x: Value, kernel: Value, picture: Value | None = None) -> Value:
    """x [..., T, K] with one matrix in it times the transposed matrix of a kernel [N, K, 1, 1]. `picture` is
    that of x where it is rounded.
    """
    *before, _ = shape_of(x)
    rows = shape_of(kernel)[0]
    picture = channels_first(x) if picture is None else picture
    y = reshape(convolved(picture, kernel), [rows, before[-1]])
    return reshape(transposed(y), [*before, rows])


def product(a: Arguments, x: Value, kernel: Value) -> tuple[Value, Value | None]:
    """The same, and what its rows are to be multiplied by if x was rounded."""
    picture, factor = operand(a, x, kernel)
    return projected(x, kernel, picture), factor


def linear(a: Arguments) -> Value:
    x, kernel = a["x"], a["weight"]
    y = multiplied(*product(a, x, kernel)) if a["act_bits"] == 8 else projected(x, kernel)
    y = y if a["bias"] is None else coreai.broadcasting_add(y, a["bias"])
    if a["down"] is None:
        return y
    inner = multiplied(projected(x, a["down"]), a["adapter"])
    return coreai.broadcasting_add(y, projected(inner, a["up"]))


def rope(a: Arguments) -> Value:
    x, cos, sin = a["x"], a["cos"], a["sin"]
    half, width = shape_of(cos)[-1], shape_of(x)[-1]
    first, second = columns(x, 0, half), columns(x, half, 2 * half)
    mul = coreai.broadcasting_mul
    parts = [
        coreai.broadcasting_sub(mul(first, cos), mul(second, sin)),
        coreai.broadcasting_add(mul(second, cos), mul(first, sin)),
    ]
    if 2 * half < width:
        parts.append(columns(x, 2 * half, width))
    return coreai.concat(x.type.rank - 1, parts)


def attention(a: Arguments) -> Value:
    keys, values, mask, scale = a["k"], a["v"], a["mask"], a["scale"]
    if a["prefix_k"] is not None:
        keys = coreai.concat(2, [a["prefix_k"], keys])
        values = coreai.concat(2, [a["prefix_v"], values])
    inputs = {"query": a["q"], "key": keys, "value": values}
    if mask is not None:
        inputs["attn_mask"] = reshape(mask, [1] * (4 - mask.type.rank) + shape_of(mask))

    def body(q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
        # Query heads that share a KV head are one more axis: keys and values are never repeated.
        whole, element = shape_of(q), q.type.element_type
        q, k, v = wide(q), wide(k), wide(v)
        batch, groups, count, size = shape_of(k)
        shared = whole[1] // groups
        q = coreai.broadcasting_mul(q, like(q, scale))
        if shared > 1:
            q = reshape(q, [batch, groups, shared, whole[2], size])
            k, v = (reshape(x, [batch, groups, 1, count, size]) for x in (k, v))
        scores = coreai.broadcasting_batch_matmul(q, transposed(k))
        if mask is not None:
            scores = coreai.broadcasting_add(scores, wide(mask))
        y = coreai.broadcasting_batch_matmul(coreai.softmax(scores, scores.type.rank - 1), v)
        return cast(reshape(y, whole) if shared > 1 else y, element)

    facts = {"is_causal": False, "scale": scale, "window_size": 0}
    return composite("scaled_dot_product_attention", inputs, facts, body)


def activated(gate: Value, up: Value, kind: str) -> Value:
    """activation(gate) * up."""
    y = coreai.gelu(gate, approximate="tanh") if kind == "gelu_tanh" else coreai.silu(gate)
    return coreai.broadcasting_mul(y, up)


def gated_act(a: Arguments) -> Value:
    return activated(a["gate"], a["up"], a["kind"])


def experts(a: Arguments) -> Value:
    # Every expert sees every position: shapes that depend on the router's choice are nothing for these
    # devices, and with a whole canvas nearly all experts are chosen anyway. Positions that did not choose an
    # expert have weight zero in the sum. Rows are rounded before they are weighted: of those with weight zero
    # nothing would be left to round.
    x, index, weight = a["x"], a["index"], a["weight"]
    length, width = shape_of(x)
    ids = transposed(index)  # [k, T]
    picture, scale = operand(a, x, a["gate_up"].groups[0])  # all groups have the same bits
    element, start, total = x.type.element_type, 0, None
    for gate_up, down in zip(a["gate_up"].groups, a["down"].groups, strict=True):
        count = shape_of(down)[0] // width
        own = np.arange(start, start + count, dtype=np.int32)[:, None, None]
        chosen = coreai.broadcasting_equal(coreai.expand_dims(ids, [0]), own)  # [n, k, T]
        mix = coreai.broadcasting_mul(cast(chosen, weight.type.element_type), transposed(weight))
        mix = cast(reduced(coreai.reduce_sum, mix, 1, keep=True), element)  # [n, 1, T]
        inner = shape_of(gate_up)[0] // (2 * count)
        both = reshape(convolved(picture, gate_up), [count, 2, inner, length])
        both = both if scale is None else coreai.broadcasting_mul(both, reshape(scale, [1, length]))
        gate, up = (coreai.shrink_dims(y, [1]) for y in (part_of(both, 1, 0, 1), part_of(both, 1, 1, 2)))
        mixed, factor = a["operand"](activated(gate, up, a["kind"]), down, round_groups)
        if factor is None:
            mixed = reshape(coreai.broadcasting_mul(mixed, mix), [1, count * inner, 1, length])
        part = reshape(convolved(mixed, down, groups=count), [count, width, length])
        part = part if factor is None else multiplied(part, coreai.broadcasting_mul(factor, mix))
        part = reduced(coreai.reduce_sum, part, 0)
        total = part if total is None else coreai.broadcasting_add(total, part)
        start += count
    assert total is not None
    return transposed(total)


def route(a: Arguments) -> tuple[Value, Value]:
    if a["capacity"]:  # the rows of a shorter pass, which pad it, would choose too
        raise Refused("chooses experts for several rows together")
    logits, k, groups = wide(a["logits"]), a["k"], a["groups"]
    length, experts = shape_of(logits)
    p = coreai.softmax(logits, 1) if a["score"] == "softmax" else coreai.sigmoid(logits)
    wanted = p
    if a["bias"] is not None:
        order = _largest(p, experts)
        every = coreai.broadcasting_add(
            coreai.broadcasting_sub(order, order), np.arange(experts, dtype=np.int32)[None]
        )
        wanted = coreai.broadcasting_add(p, _looked_up(a["bias"], every))
    if groups > 1:
        of_group = reshape(wanted, [length, groups, experts // groups])
        best = reduced(coreai.reduce_sum, columns(coreai.sort(of_group, 2, True, True), 0, 2), -1)
        size, kept = experts // groups, _largest(best, a["kept_groups"])
        # The first expert of each kept group, and those behind it.
        first = coreai.broadcasting_mul(kept, np.full((1, 1), size, np.int32))
        own = np.arange(size, dtype=np.int32)[None, None]
        pool = coreai.broadcasting_add(coreai.expand_dims(first, [2]), own)
        pool = reshape(pool, [length, a["kept_groups"] * size])
        place = _largest(coreai.gather_along_axis(wanted, pool, 1), k)
        index = coreai.gather_along_axis(pool, place, 1)
    else:
        index = _largest(wanted, k)
    weight = coreai.gather_along_axis(p, index, 1)
    if a["normalize"]:
        total = reduced(coreai.reduce_sum, weight, -1, True)
        weight = coreai.broadcasting_divide(weight, total)
    if a["scale"] != 1:
        weight = coreai.broadcasting_mul(weight, like(weight, a["scale"]))
    if a["expert_scale"] is not None:
        weight = coreai.broadcasting_mul(weight, _looked_up(a["expert_scale"], index))
    return index, weight


def _looked_up(vector: Value, index: Value) -> Value:
    """Entries of a stored vector in float32, by computed places: a conversion of all of it would be folded
    into another constant, which nobody fills.
    """
    flat = coreai.gather_along_axis(vector, reshape(index, [int(np.prod(shape_of(index)))]), 0)
    return wide(reshape(flat, shape_of(index)))


def _largest(x: Value, count: int) -> Value:
    """Places of the largest of the last axis, in order: int32."""
    order = coreai.argsort(x, x.type.rank - 1, True, True)
    return columns(coreai.cast(order, np.int32), 0, count)


def vocab_logits(a: Arguments) -> Value:
    y, factor = product(a, a["x"], a["table"])
    logits, cap = multiplied(wide(y), None if factor is None else wide(factor)), a["softcap"]
    if cap > 0:
        bounded = coreai.tanh(coreai.broadcasting_divide(logits, like(logits, cap)))
        logits = coreai.broadcasting_mul(bounded, like(logits, cap))
    return logits


def vocab_head(a: Arguments) -> list[Value]:
    z = coreai.broadcasting_divide(vocab_logits(a), wide(a["temperature"]))
    top, arg = coreai.reduce_max(z, [1]), _argmax(z)
    e = coreai.exp(coreai.broadcasting_sub(z, top))
    # Of the argmax it is 1: the sums are over all others. A 0 for each row is computed: Core AI would keep a
    # constant as a resource of its own.
    none = coreai.broadcasting_sub(top, top)
    others = coreai.scatter_along_axis(e.type, e, coreai.expand_dims(arg, [1]), none, 1)
    out = [coreai.shrink_dims(top, [1]), arg]
    out += [reduced(coreai.reduce_sum, y, -1) for y in (others, coreai.broadcasting_mul(others, z))]
    if a["noise"] is not None:
        score = coreai.broadcasting_add(z, wide(a["noise"]))
        sample = _argmax(score)
        there = coreai.gather_along_axis(z, coreai.expand_dims(sample, [1]), 1)
        out += [reduced(coreai.reduce_max, score, -1), sample, coreai.shrink_dims(there, [1])]
    if a["soft"]:
        # A reshaped constant would be folded into a second one, which nobody fills; a transposed one is not.
        table = coreai.transpose(a["table"], np.asarray([2, 3, 0, 1], np.uint32))  # [1, 1, V, K]
        length, width = shape_of(e)[0], shape_of(table)[-1]
        picture = reshape(cast(e, table.type.element_type), [1, 1, *shape_of(e)])
        soft = coreai.broadcasting_batch_matmul(picture, table)
        out.append(wide(reshape(soft, [length, width])))
    return out


def _argmax(x: Value) -> Value:
    """Of rows [T, V]: int32 [T]."""
    return coreai.shrink_dims(coreai.cast(coreai.argmax(x, 1), np.int32), [1])


def _binary(function: Callable[[Value, Value], Value]) -> Callable[[Arguments], Value]:
    def handle(a: Arguments) -> Value:
        if a.get("alpha", 1) != 1:
            raise Refused("has a factor for its second argument")
        x, y = a["self"], a["other"]
        if not isinstance(y, Value):
            return function(x, like(x, y))
        narrow = x.type.element_type == y.type.element_type
        return function(x, y) if narrow else function(wide(x), wide(y))

    return handle


def _index_select(a: Arguments) -> Value:
    if a["self"].type.rank != 1:
        raise Refused("selects from something else than a vector")
    return coreai.gather_along_axis(a["self"], a["index"], 0)


#: What a node becomes: arguments by name -> value or values. Beside those of the node there is `operand`,
#: which is `PackageGraph`'s. `nodes.RESHAPES` are not among them.
NODES: Nodes = {
    edgekit.rms_norm.default: rms_norm,
    edgekit.linear.default: linear,
    edgekit.rope.default: rope,
    edgekit.attention.default: attention,
    edgekit.gated_act.default: gated_act,
    edgekit.route.default: route,
    edgekit.experts.default: experts,
    edgekit.vocab_logits.default: vocab_logits,
    edgekit.vocab_head.default: vocab_head,
    aten.add.Tensor: _binary(coreai.broadcasting_add),
    aten.sub.Tensor: _binary(coreai.broadcasting_sub),
    aten.mul.Tensor: _binary(coreai.broadcasting_mul),
    aten.div.Tensor: _binary(coreai.broadcasting_divide),
    aten.index_select.default: _index_select,
    aten.transpose.int: lambda a: transposed(a["self"], a["dim0"], a["dim1"]),
    aten.to.dtype: same_type,
}
