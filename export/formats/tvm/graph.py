"""From an exported program to a function of a Relax module, with its arguments described."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from tvm import relax, tirx

from edgekit.export.errors import ExportError
from edgekit.export.formats.native import layout
from edgekit.export.formats.nodes import RESHAPES, Arguments, NodeTranslator, Refused, makes_array
from edgekit.export.formats.tvm import ops
from edgekit.export.formats.tvm.ops import Matrix, Mixture
from edgekit.export.models.base import WeightSpec
from edgekit.export.programs import Program
from edgekit.export.quantize import Choice

edgekit = torch.ops.edgekit
ATTENTION, EXPERTS, LINEAR, ROUTE = (
    edgekit.attention.default, edgekit.experts.default, edgekit.linear.default, edgekit.route.default,
)  # fmt: skip
#: Types of arguments as the manifest calls them, which are safetensors' names, in TVM's. bfloat16 comes as
#: bits.
TYPES = {"F32": "float32", "I64": "int64", "U8": "uint8", "BF16": "uint16"}
_TORCH_TYPES = {torch.float32: "F32", torch.int64: "I64"}
#: What stands for a matrix among a program's inputs.
_STORED = ("weight", "codes", "scales")
#: Bits of matrices that are floats, and of activations that are rounded.
_FLOATS, _ROUNDED = 16, 8
#: What a layer's caller keeps of it, beside y.
KEPT = ("k", "v")
#: Inputs of layers that attention alone takes, and that the caller of a program knows.
SEEN = ("prefix_k", "prefix_v", "mask")


@dataclass(frozen=True)
class Argument:
    """An input or output. Weights are named `w.` and the tensor's name in its run; sizes are numbers, or
    names of lengths.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True)
class Attention:
    """A layer's attention; `masked` tells whether it has a mask."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    masked: bool


@dataclass
class Function:
    """A function of the module, as the manifest describes it. `live` are float32 values that it holds at a
    time, for each position and besides; of a layer there is its attention, and its mixture of experts if it
    has one.
    """

    symbol: str
    inputs: list[Argument] = field(default_factory=list)
    outputs: list[Argument] = field(default_factory=list)
    live: tuple[int, int] = (0, 0)
    attention: Attention | None = None
    mixture: Mixture = field(default_factory=Mixture)

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "function": self.symbol,
            "inputs": [a.as_dict() for a in self.inputs],
            "outputs": [a.as_dict() for a in self.outputs],
            "live": list(self.live),
        }


class Graph(NodeTranslator):
    """A program's nodes as Relax calls. `weights` and `choices` are those of its matrices, by the names that
    they have in the program; `core` tells whether products are the core's kernels.
    """

    NAME, SYSTEM, NODES = "tvm", "TVM", ops.NODES

    def __init__(
        self,
        program: Program,
        weights: Iterable[WeightSpec],
        choices: Mapping[str, Choice],
        core: bool,
    ) -> None:
        self._program, self._choices, self._core = program, choices, core
        self._specs = {spec.name: spec for spec in weights if spec.role != "float"}
        self._nodes = list(program.exported.graph.nodes)
        placeholders = [n for n in self._nodes if n.op == "placeholder"]
        self._names = dict(zip(placeholders, program.inputs, strict=True))
        self._results = dict(zip(program.outputs, self._nodes[-1].args[0], strict=True))
        self._mixture = Mixture()
        #: Lengths by the expression that the tracer has for one, and their names by what stands for them.
        self._lengths: dict[str, tirx.Var] = {}
        for node, name in self._names.items():
            for axis, length in program.axes.get(name, {}).items():
                expression = str(node.meta["val"].shape[axis])
                if expression not in self._lengths:
                    self._lengths[expression] = tirx.Var(length, "int64")

    def add_to(self, builder: relax.BlockBuilder, symbol: str) -> Function:
        """Add the program to a module as the function `symbol`.

        Raises:
            ExportError: a node has no form in TVM.
        """
        made = Function(symbol, mixture=self._mixture)
        known: dict[Node, Any] = {}
        parameters: list[relax.Var] = []
        for node, name in self._names.items():
            if not node.users or name.startswith("w.experts.") or name in SEEN:
                continue
            known[node] = self._placeholder(node, name, made, parameters)
        made.attention = self._attention()
        wanted = {name: n for name, n in self._results.items() if name not in KEPT}
        with builder.function(symbol, parameters):
            with builder.dataflow():
                for node in self._nodes:
                    if node.op == "call_function":
                        known[node] = self._computed(self._program.name, node, known)
                made.outputs = [Argument(n, "F32", self._shape(node)) for n, node in wanted.items()]
                result = builder.emit_output(relax.Tuple([known[node] for node in wanted.values()]))
            builder.emit_func_output(result)
        made.live = self._live()
        return made

    def _placeholder(self, node: Node, name: str, made: Function, parameters: list[relax.Var]) -> Any:
        """A value of the program: a variable, or a matrix of several."""
        matrix, _, suffix = name.removeprefix("w.").rpartition(".")
        if not name.startswith("w.") or matrix not in self._specs or suffix not in _STORED:
            # A pass may have rows of both kinds.
            sizes = [self._positions()] if name == "phase" else self._sizes(node)
            argument = Argument(name, _TORCH_TYPES[node.meta["val"].dtype], named(sizes))
            made.inputs.append(argument)
            parameters.append(_variable(argument, sizes))
            return parameters[-1]
        if suffix == "scales":
            return None  # they come with the codes
        found, arguments = parameters_of(self._specs[matrix], self._choices[matrix])
        made.inputs += arguments
        parameters += found.tensors
        return found

    def _attention(self) -> Attention | None:
        """A layer's, whose caller is told what it sees, and keeps the keys and values that it is given."""
        found = [n for n in self._nodes if n.target is ATTENTION]
        if not found and not set(KEPT) & set(self._results):
            return None
        seen = {name: node for node, name in self._names.items() if name in SEEN and node.users}
        # Behind q come k, v, prefix_k, prefix_v and mask.
        of_layer = [self._results.get(name) for name in KEPT] + [seen.get(name) for name in SEEN]
        if len(found) != 1 or list(found[0].args[1:6]) != of_layer:
            raise ExportError(
                f"program {self._program.name}: its attention is not one over the layer's own keys, prefix "
                "and mask; format tvm cannot express this model"
            )
        q, k, scale = (found[0].args[i] for i in (0, 1, 6))
        assert isinstance(q, Node) and isinstance(k, Node) and isinstance(scale, float)
        _, heads, _, width = q.meta["val"].shape
        return Attention(heads, int(k.meta["val"].shape[1]), width, scale, "mask" in seen)

    def _extras(self, node: Node) -> Arguments:
        if node.target is ROUTE:
            names = {name: node.args[i] for i, name in ((1, "bias"), (2, "expert_scale"))}
            weights = {
                k: self._names.get(n, "").removeprefix("w.") for k, n in names.items() if n is not None
            }
            return {"names": weights}
        if node.target is torch.ops.aten.index_select.default:
            index = node.args[2]
            return {"of_rows": isinstance(index, Node) and self._names.get(index) == "phase"}
        if node.target is EXPERTS:
            return {"mixture": self._mixture}
        return {"product": ops.core_product if self._core else ops.compiled_product}

    def _reshaped(self, value: Any, shape: Sequence[Any]) -> relax.Var:
        return ops.reshaped(value, [self._size(n) for n in shape])

    def _size(self, size: Any) -> Any:
        if isinstance(size, int):
            return size
        if str(size) not in self._lengths:
            raise Refused(f"gives the size {size}, which is no length of an input")
        return self._lengths[str(size)]

    def _sizes(self, node: Node) -> list[Any]:
        return [self._size(n) for n in node.meta["val"].shape]

    def _shape(self, node: Node) -> tuple[int | str, ...]:
        return named(self._sizes(node))

    def _positions(self) -> tirx.Var:
        return next(length for length in self._lengths.values() if length.name == "t")

    def _live(self) -> tuple[int, int]:
        """Float32 values of results that are needed at a time: for each position, and besides."""
        last: dict[Node, int] = {}
        owner: dict[Node, Node] = {}  # what a view looks at
        for i, node in enumerate(self._nodes):
            if node.target in RESHAPES or node.target is torch.ops.aten.to.dtype:
                source = node.args[0]
                assert isinstance(source, Node)
                owner[node] = owner.get(source, source)
            for used in node.all_input_nodes:
                last[owner.get(used, used)] = i
        within = {n: self._within(n) for n in self._nodes if n.target is LINEAR}
        now, most, besides = 0, 0, 0
        ends: dict[int, int] = {}
        for i, node in enumerate(self._nodes):
            if node.op != "call_function" or node in owner or not makes_array(node):
                continue
            value = node.meta["val"]
            for each in value if isinstance(value, list | tuple) else (value,):
                size = math.prod(n for n in each.shape if isinstance(n, int))
                varying = sum(not isinstance(n, int) for n in each.shape)
                if varying == 1:
                    now += size
                    ends[last.get(node, i)] = ends.get(last.get(node, i), 0) + size
                else:
                    besides += size
            most = max(most, now + within.get(node, (0, 0))[0])
            now -= ends.pop(i, 0)
        return most, besides + max((matrices for _, matrices in within.values()), default=0)

    def _within(self, linear: Node) -> tuple[int, int]:
        """Float32 values of a product besides its result: for each position, and besides. Those are the
        products of an adapter, and where products are compiled, rounded activations, integer sums, and the
        matrices in the form that they are multiplied in.
        """
        matrix, *adapter, factors = (linear.args[i] if len(linear.args) > i else None for i in (1, 6, 7, 8))
        assert isinstance(matrix, Node)
        of_adapter = [each.meta["val"].shape for each in adapter if isinstance(each, Node)]
        rows = sum(int(shape[0]) for shape in of_adapter)
        if isinstance(factors, Node):  # the first of them again, times the factors
            rows += int(of_adapter[0][0])
        if self._core:
            return rows, 0
        name = self._names[matrix].removeprefix("w.").rpartition(".")[0]
        act_bits = linear.args[5]
        assert isinstance(act_bits, int)
        positions, besides = product_memory(self._specs[name].shape, self._choices[name].bits, act_bits)
        return rows + positions, max([besides, *(math.prod(shape) for shape in of_adapter)])


def product_memory(shape: Sequence[int], bits: int, act_bits: int) -> tuple[int, int]:
    """Float32 values that a compiled product of a matrix of `shape` holds besides its result: for each
    position, and besides.
    """
    rows, columns = shape
    count = rows * columns
    if bits == _FLOATS:
        return 0, count
    unpacked = -(-count // 4)  # int8
    if act_bits != _ROUNDED:
        return 0, unpacked + count
    return -(-columns // 4) + rows + 1, unpacked


def named(sizes: Sequence[Any]) -> tuple[int | str, ...]:
    """Sizes as an argument has them."""
    return tuple(n if isinstance(n, int) else n.name for n in sizes)


def parameters_of(spec: WeightSpec, choice: Choice) -> tuple[Matrix, list[Argument]]:
    """A matrix as new variables of a function, and these as its arguments."""
    arguments = [Argument(t.name, t.dtype, t.shape) for t in layout.specs("w." + spec.name, spec, choice)]
    tensors = tuple(_variable(each, each.shape) for each in arguments)
    rows, columns = spec.shape
    return Matrix(rows, columns, tensors, choice.group_size if choice.bits == 4 else 0), arguments


def _variable(argument: Argument, shape: Sequence[Any]) -> relax.Var:
    return relax.Var(argument.name, relax.TensorType(shape, TYPES[argument.dtype]))
