"""From an exported program to functions that MLX can trace, with their arguments described."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import torch
from torch.fx import Node

from edgekit.export.formats.mlx.layout import Form, matrix_specs
from edgekit.export.formats.mlx.ops import NODES, Matrix
from edgekit.export.formats.nodes import RESHAPES, Arguments, NodeTranslator, Refused, makes_array
from edgekit.export.programs import Program

EXPERTS = torch.ops.edgekit.experts.default
#: What the mixture takes from the layer before it, and gives to the layer after it.
EXPERT_INPUTS, EXPERT_OUTPUT = ("experts.x", "experts.index", "experts.weight"), "experts.y"
#: Types of arguments as the manifest calls them, which are safetensors' names.
ARRAY_TYPES = {
    "F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16, "U32": mx.uint32, "I64": mx.int64,
}  # fmt: skip
_TORCH_TYPES = {torch.float32: "F32", torch.int64: "I64"}
#: Sizes of an argument: numbers, or names of lengths, which are the same in all arguments of a function.
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Argument:
    """An input or output; weights are named `w.` and the tensor's name in its run."""

    name: str
    dtype: str
    shape: Shape

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True)
class Function:
    """A function that is exported as one file: `call` maps arrays in the order of `inputs` to those of
    `outputs`.
    """

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    call: Callable[..., list[mx.array]]
    lengths: Mapping[str, int]  # an example of every length

    def examples(self) -> list[mx.array]:
        """Arrays to trace with; never evaluated."""
        return [
            mx.zeros([self.lengths[n] if isinstance(n, str) else n for n in a.shape], ARRAY_TYPES[a.dtype])
            for a in self.inputs
        ]


def matrix_arguments(
    name: str, rows: int | str, columns: int, stored: Form, precision: str
) -> tuple[Argument, ...]:
    """The arguments that a stored matrix takes, as `matrix_specs` stores it."""
    count = 1 if isinstance(rows, str) else rows
    return tuple(
        Argument("w." + t.name, t.dtype, (rows, *t.shape[1:]))
        for t in matrix_specs(name, count, columns, stored, precision)
    )


class Graph(NodeTranslator):
    """A program's nodes as MLX calls, whole or cut at its expert mixture.

    `forms`: the stored form of every matrix, by the name it has in the program.
    """

    NAME, SYSTEM, NODES = "mlx", "MLX", NODES

    def __init__(self, program: Program, forms: Mapping[str, Form], precision: str) -> None:
        self._program, self._forms, self._precision = program, forms, precision
        self._nodes = list(program.exported.graph.nodes)
        placeholders = [n for n in self._nodes if n.op == "placeholder"]
        self._names = dict(zip(placeholders, program.inputs, strict=True))
        self._results = dict(zip(program.outputs, self._nodes[-1].args[0], strict=True))
        self._lengths: dict[str, tuple[str, int]] = {}  # by the expression that the tracer has for it
        for node, name in self._names.items():
            for axis, length in program.axes.get(name, {}).items():
                size = node.meta["val"].shape[axis]
                self._lengths.setdefault(str(size), (length, size.node.hint))

    def whole(self) -> Function:
        """The program as one function."""
        return self._function(self._program.name, {}, self._results)

    def split(self) -> tuple[Function, Function]:
        """The layer before its mixture and after it. The first gives `EXPERT_INPUTS`, values that the second
        needs, and those of the layer's outputs that it has; the second takes `EXPERT_OUTPUT` for the mixture.
        """
        mixture = next(n for n in self._nodes if n.target is EXPERTS)
        later = {mixture}
        for node in self._nodes:
            if node.op == "call_function" and later.intersection(node.all_input_nodes):
                later.add(node)
        inputs = {name: mixture.args[i] for i, name in enumerate(EXPERT_INPUTS)}
        last = {name: node for name, node in self._results.items() if node in later}
        crossing = [
            n for n in self._needed(last.values(), {mixture})
            if n not in later and n.op == "call_function" and makes_array(n)
            and any(user in later for user in n.users)
        ]  # fmt: skip
        kept = {f"t{i}": n for i, n in enumerate(crossing)}
        own = {name: node for name, node in self._results.items() if node not in later}
        name = self._program.name
        first = self._function(f"{name}.before", {}, inputs | kept | own)
        given = {mixture: EXPERT_OUTPUT} | {node: name for name, node in kept.items()}
        return first, self._function(f"{name}.after", given, last)

    def _function(self, name: str, given: Mapping[Node, str], results: Mapping[str, Any]) -> Function:
        """The nodes between `given` values, which become inputs, and the results."""
        needed = self._needed(results.values(), given)
        computed = [n for n in needed if n not in self._names and n not in given]
        bound = [(n, self._arguments(n, given)) for n in needed if n in self._names or n in given]
        outputs = tuple(self._argument(label, node, "F32") for label, node in results.items())

        def call(*arrays: mx.array) -> list[mx.array]:
            source, known = iter(arrays), dict[Node, Any]()
            for node, arguments in bound:
                known[node] = self._value(node, [next(source) for _ in arguments])
            for node in computed:
                known[node] = self._computed(self._program.name, node, known)
            made = [known[node] for node in results.values()]
            return [m.astype(ARRAY_TYPES[o.dtype]) for m, o in zip(made, outputs, strict=True)]

        inputs = tuple(a for _, arguments in bound for a in arguments)
        return Function(name, inputs, outputs, call, dict(self._lengths.values()))

    def _needed(self, results: Iterable[Any], given: Iterable[Node]) -> list[Node]:
        """The nodes that the results are made of, in order, down to `given`."""
        found, stop = set(results), set(given)
        for node in reversed(self._nodes):
            if node in found and node not in stop and node.target not in RESHAPES:
                found.update(node.all_input_nodes)
            elif node in found and node not in stop:
                found.add(node.args[0])
        return [n for n in self._nodes if n in found]

    def _arguments(self, node: Node, given: Mapping[Node, str]) -> tuple[Argument, ...]:
        if node in given:
            return (self._argument(given[node], node, "F32"),)
        name, matrix = self._names[node], self._matrix(node)
        if matrix is None:
            return (self._argument(name, node, _TORCH_TYPES[node.meta["val"].dtype]),)
        stored, shape = self._forms[matrix], self._shape(node)
        if stored.bits != 16 and name.endswith(".scales"):
            return ()  # they come with the codes
        columns = shape[1] if stored.bits == 16 else int(shape[1]) * 8 // stored.bits
        return matrix_arguments(matrix, shape[0], int(columns), stored, self._precision)

    def _argument(self, name: str, node: Node, dtype: str) -> Argument:
        made = node.meta["val"].dtype
        return Argument(name, "I64" if made == torch.int64 else dtype, self._shape(node))

    def _shape(self, node: Node) -> Shape:
        return self._sizes(node.meta["val"].shape)

    def _sizes(self, shape: Iterable[Any]) -> Shape:
        return tuple(n if isinstance(n, int) else self._lengths.get(str(n), (str(n), 0))[0] for n in shape)

    def _value(self, node: Node, arrays: Sequence[mx.array]) -> Any:
        """The value of a placeholder: an array, or a matrix in its stored form."""
        matrix = self._matrix(node)
        if matrix is None:
            return arrays[0]
        return Matrix(self._forms[matrix], *arrays) if arrays else None

    def _matrix(self, node: Node) -> str | None:
        """The matrix that a placeholder is a tensor of."""
        name, _, suffix = self._names.get(node, "").removeprefix("w.").rpartition(".")
        return name if name in self._forms and suffix in ("weight", "codes", "scales") else None

    def _extras(self, node: Node) -> Arguments:
        """`sizes` of the array that comes first; those that vary are no integers."""
        first = next((n.meta["val"] for n in node.all_input_nodes if makes_array(n)), None)
        return {"sizes": tuple(first.shape) if isinstance(first, torch.Tensor) else ()}

    def _reshaped(self, value: mx.array, shape: Sequence[Any]) -> mx.array:
        sizes = [n if isinstance(n, int) else -1 for n in shape]
        if sizes.count(-1) > 1:
            raise Refused(f"gives shape {list(self._sizes(shape))}; of its sizes one may vary")
        return mx.reshape(value, sizes)
