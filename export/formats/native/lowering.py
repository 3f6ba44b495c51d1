"""From an exported program to the op list of the native core: which ops there are, and how a graph becomes
them.

An entry of the manifest is

    {"inputs": [names], "outputs": [values], "weights": {name: shape}, "values": count, "ops": [op...]}
    op = {"op": name, "in": [values or null], "w": [weight names or null], "out": [values], ...attributes}

Values are numbered, the inputs first. Weights are named: a matrix without suffix (its stored form is found
from the tensors of its run) with the shape [N, K], of one expert where there are several; a float vector by
its full name. Values are float32, indices int64. A batch is one sequence; a size is a number, or "t" for the
positions of the pass.

    rms_norm      in x  w weight or null  eps           linear        in x, residual or null  w matrix, bias
                                                                      or null, down, up  act_bits
    linear_gated  in x  w gate, up  kind                gated_act     in gate, up  kind
    rope          in x, cos, sin                        attention     in q, k, v, prefix_k, prefix_v, mask
                                                                      or null  scale
    experts       in x, index, weight  w gate_up, down  kind, experts
    add, mul      in a, b (broadcast)                   scale         in x  by
    route         in logits  w bias, expert_scale, each or null  k, score, normalize, scale, groups,
                                                                 kept_groups, capacity, block
                                                        out indices, weights
    select        in index [1]  w vector                view          in x  shape
    transpose     in x  axes (two that change places)

`linear_gated` is gated_act of two linears of one x; `residual` is added to a linear after its bias. `down`
and `up`, which most linears do not list, are the matrices of a low-rank adapter: (x down^T) up^T is added
last, for an x that is not rounded. `route` is `edgekit.export.ops.route`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.fx import Node

from edgekit.export.errors import ExportError
from edgekit.export.formats.native import fusion
from edgekit.export.formats.native.fusion import Op, Shape, Value, Weight
from edgekit.export.programs import Program, call_arguments

aten, edgekit = torch.ops.aten, torch.ops.edgekit
Arguments = dict[str, Any]
_ADVICE = "the native format cannot express this model, --format onnx may"


def lower(program: Program) -> dict[str, Any]:
    """The manifest's entry for a program whose first input is x [1, T, ...].

    Raises:
        ExportError: a node of the graph that has no form here; it is named.
    """
    lowering = _Lowering(program)
    for node in program.exported.graph.nodes:
        lowering.visit(node)
    ops = fusion.fuse(lowering.ops, lowering.outputs)
    return _entry(program, lowering, ops)


@dataclass
class _Lowering:
    program: Program
    ops: list[Op] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    weights: dict[str, list[int]] = field(default_factory=dict)
    known: dict[Node, Any] = field(default_factory=dict)  # Value, Weight, or a tuple of values

    def visit(self, node: Node) -> None:
        if node.op == "placeholder":
            name = self.program.inputs[len(self.known)]
            self.known[node] = self._input(node, name)
        elif node.op == "output":
            self.outputs = [self.value(node, n) for n in node.args[0]]  # type: ignore[union-attr]
        elif node.target is operator.getitem:
            self.known[node] = self.known[node.args[0]][node.args[1]]  # type: ignore[index]
        elif node.op == "call_function" and node.target in _IGNORED:
            return
        elif node.op == "call_function" and node.target in _NODES:
            self.known[node] = _NODES[node.target](self, node, call_arguments(node))
        else:
            self.refuse(node, "has no form as an op")

    def _input(self, node: Node, name: str) -> Value | Weight:
        if name.startswith("w."):
            return Weight(name.removeprefix("w."), [int(n) for n in node.meta["val"].shape])
        value = Value(self.shape(node, node.meta["val"]))
        self.inputs.append(value)
        return value

    def refuse(self, node: Node, why: str) -> NoReturn:
        raise ExportError(f"program {self.program.name}: node {node.name} ({node.target}) {why}; {_ADVICE}")

    def value(self, node: Node, argument: Any) -> Value:
        """The value that an argument of `node` refers to."""
        found = self.known.get(argument) if isinstance(argument, Node) else None
        if not isinstance(found, Value):
            self.refuse(node, f"takes {argument} where only computed values can stand")
        return found

    def operand(self, node: Node, argument: Any) -> Value | Weight:
        """The same where a weight may stand too: not every use of one is an op, some are fused away."""
        found = self.known.get(argument) if isinstance(argument, Node) else None
        return found if isinstance(found, Weight) else self.value(node, argument)

    def vector(self, node: Node, argument: Any) -> str | None:
        """A float vector among the weights, or null."""
        if argument is None:
            return None
        found = self.known.get(argument)
        if not isinstance(found, Weight) or len(found.shape) != 1:
            self.refuse(node, f"takes {argument} where a float vector of the weights has to stand")
        self.weights[found.name] = found.shape
        return found.name

    def matrix(self, node: Node, argument: Any) -> tuple[str, list[int]]:
        """A matrix among the weights: its name without suffix, and the shape of what is stored."""
        found = self.known.get(argument)
        if not isinstance(found, Weight) or not found.name.endswith((".codes", ".weight")):
            self.refuse(node, f"takes {argument} where a matrix of the weights has to stand")
        name = found.name.rpartition(".")[0]
        self.weights[name] = found.shape[-2:]
        return name, found.shape

    def shape(self, node: Node, tensor: Any) -> Shape:
        """Sizes as numbers; "t" for the positions of the pass, another name for what only inputs have."""
        first = next(iter(self.known), node)
        positions = first.meta["val"].shape[1]

        def size(n: Any) -> int | str:
            if isinstance(n, int):
                return n
            return "t" if n.node.expr == positions.node.expr else str(n.node.expr)

        return tuple(size(n) for n in tensor.shape)

    def emit(self, node: Node, name: str, inputs: list[Any], weights: list[Any], **attributes: Any) -> Any:
        """Append an op that makes what the node makes: one value, or a tuple of them."""
        made = node.meta["val"]
        several = isinstance(made, list | tuple)
        outputs = tuple(Value(self.shape(node, t)) for t in (made if several else [made]))
        self.ops.append(Op(name, inputs, weights, list(outputs), attributes, node.name))
        return outputs if several else outputs[0]


def _rms_norm(low: _Lowering, node: Node, a: Arguments) -> Any:
    weights = [low.vector(node, a["weight"])]
    return low.emit(node, "rms_norm", [low.value(node, a["x"])], weights, eps=a["eps"])


def _linear(low: _Lowering, node: Node, a: Arguments) -> Any:
    weights = [low.matrix(node, a["weight"])[0], low.vector(node, a["bias"])]
    inputs = [low.value(node, a["x"]), None]
    if a["down"] is not None:
        weights += [low.matrix(node, a[name])[0] for name in ("down", "up")]
        inputs += [] if a["adapter"] is None else [low.value(node, a["adapter"])]
    return low.emit(node, "linear", inputs, weights, act_bits=a["act_bits"])


def _rope(low: _Lowering, node: Node, a: Arguments) -> Any:
    return low.emit(node, "rope", [low.value(node, a[n]) for n in ("x", "cos", "sin")], [])


def _attention(low: _Lowering, node: Node, a: Arguments) -> Any:
    inputs: list[Any] = [low.value(node, a[n]) for n in ("q", "k", "v", "prefix_k", "prefix_v")]
    inputs.append(None if a["mask"] is None else low.value(node, a["mask"]))
    return low.emit(node, "attention", inputs, [], scale=a["scale"])


def _gated_act(low: _Lowering, node: Node, a: Arguments) -> Any:
    inputs = [low.value(node, a[n]) for n in ("gate", "up")]
    return low.emit(node, "gated_act", inputs, [], kind=a["kind"])


def _experts(low: _Lowering, node: Node, a: Arguments) -> Any:
    inputs = [low.value(node, a[n]) for n in ("x", "index", "weight")]
    (gate_up, shape), (down, _) = low.matrix(node, a["gate_up"]), low.matrix(node, a["down"])
    return low.emit(node, "experts", inputs, [gate_up, down], kind=a["kind"], experts=shape[0])


def _route(low: _Lowering, node: Node, a: Arguments) -> Any:
    inputs = [low.value(node, a["logits"])]
    weights = [low.vector(node, a[name]) for name in ("bias", "expert_scale")]
    rule = {name: a[name] for name in a if name not in ("logits", "bias", "expert_scale")}
    return low.emit(node, "route", inputs, weights, **rule)


def _binary(name: str) -> Callable[[_Lowering, Node, Arguments], Any]:
    def handle(low: _Lowering, node: Node, a: Arguments) -> Any:
        if a.get("alpha", 1) != 1:
            low.refuse(node, "has a factor for its second argument")
        if isinstance(a["other"], int | float):
            if name != "mul":
                low.refuse(node, "takes a number; only products with one have a form")
            return low.emit(node, "scale", [low.value(node, a["self"])], [], by=float(a["other"]))
        return low.emit(node, name, [low.operand(node, a["self"]), low.operand(node, a["other"])], [])

    return handle


def _select(low: _Lowering, node: Node, a: Arguments) -> Any:
    index = low.value(node, a["index"])
    if index.shape != (1,):
        low.refuse(node, "selects other than one entry")
    return low.emit(node, "select", [index], [low.vector(node, a["self"])])


def _view(low: _Lowering, node: Node, a: Arguments) -> Any:
    value, shape = low.value(node, a["self"]), low.shape(node, node.meta["val"])
    if any(isinstance(n, str) and n != "t" for n in shape):
        low.refuse(node, f"has shape {list(shape)}; only numbers and the positions of the pass can stand")
    return value if value.shape == shape else low.emit(node, "view", [value], [], shape=list(shape))


def _transpose(low: _Lowering, node: Node, a: Arguments) -> Any:
    value = low.value(node, a["self"])
    axes = sorted(axis % len(value.shape) for axis in (a["dim0"], a["dim1"]))
    return low.emit(node, "transpose", [value], [], axes=axes)


def _to(low: _Lowering, node: Node, a: Arguments) -> Any:
    source = a["self"]
    if node.meta["val"].dtype != source.meta["val"].dtype:
        low.refuse(node, f"converts {source.meta['val'].dtype} to {node.meta['val'].dtype}")
    return low.value(node, source)


_NODES: dict[Any, Callable[[_Lowering, Node, Arguments], Any]] = {
    edgekit.rms_norm.default: _rms_norm,
    edgekit.linear.default: _linear,
    edgekit.rope.default: _rope,
    edgekit.attention.default: _attention,
    edgekit.gated_act.default: _gated_act,
    edgekit.route.default: _route,
    edgekit.experts.default: _experts,
    aten.add.Tensor: _binary("add"),
    aten.mul.Tensor: _binary("mul"),
    aten.index_select.default: _select,
    aten.transpose.int: _transpose,
    aten.to.dtype: _to,
} | dict.fromkeys(
    (
        aten.view.default, aten.view_as.default, aten.reshape.default, aten.unflatten.int,
        aten.flatten.using_ints, aten.unsqueeze.default,
    ),
    _view,
)  # fmt: skip
#: Checks of the tracer, and sizes: shapes are taken from what the nodes make.
_IGNORED = {aten._assert_tensor_metadata.default, aten.sym_size.int}


def _entry(program: Program, low: _Lowering, ops: list[Op]) -> dict[str, Any]:
    numbers = {value: i for i, value in enumerate(low.inputs)}

    def number(op: Op, value: Value | Weight | None) -> int | None:
        if isinstance(value, Weight):
            where = f"program {program.name}: node {op.node} ({op.name})"
            raise ExportError(f"{where} takes {value.name} where only computed values can stand; {_ADVICE}")
        return None if value is None else numbers[value]

    listed = []
    for op in ops:
        inputs = [number(op, v) for v in op.inputs]
        numbers |= {value: len(numbers) + i for i, value in enumerate(op.outputs)}
        outputs = [numbers[v] for v in op.outputs]
        listed.append({"op": op.name, "in": inputs, "w": op.weights, "out": outputs, **op.attributes})
    return {
        "inputs": [n for n in program.inputs if not n.startswith("w.")],
        "outputs": [numbers[v] for v in low.outputs],
        "weights": low.weights | {name: shape for op in ops for name, shape in op.fused.items()},
        "values": len(numbers),
        "ops": listed,
    }
