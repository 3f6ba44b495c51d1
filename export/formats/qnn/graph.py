"""A package for the NPU being built: an ONNX model for each function, over constants in one file beside them.

Layers and self-conditioning run on the NPU; their products take 16-bit codes, and all between them is float.
The last norm runs on the processor, in float32, and so does the vocabulary head, which is the core's: of
their sums tokens are made, and the NPU's floats have 16 bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from edgekit.export.errors import ExportError
from edgekit.export.formats.onnx import ops as processor_ops
from edgekit.export.formats.onnx.graph import Operators, check, convert
from edgekit.export.formats.packages.functions import Feature, Signature
from edgekit.export.formats.packages.graph import PackageBuilder
from edgekit.export.formats.packages.layout import Constant
from edgekit.export.formats.packages.stamp import Frame, Region, Template
from edgekit.export.formats.qnn import layout, ops
from edgekit.export.models.base import WeightSpec
from edgekit.export.programs import Program
from edgekit.export.quantize import Choice
from edgekit.runtime.checks.mil.types import BY_NAME
from edgekit.runtime.engines.qnn.programs import WEIGHTS_FILE, Place, model_file

_TYPES = {
    "int4": TensorProto.INT4,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "fp32": TensorProto.FLOAT,
}
_FEATURES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32}
_DTYPES = {torch.float32: "float32", torch.int64: "int32"}
#: Where constants begin in the file of weights.
_ALIGNMENT = 64
#: Converts a program, or gives what it made of it before.
Converted = Callable[[Program, Operators], ModelProto]
#: A weight as `QnnGraph.weight` gives it: names of its constants by the end of those of its tensors.
_Weight = Mapping[str, str]


class Conversions:
    """Converts each program once: those of a chunk's layers are the same."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Program, ModelProto]] = {}

    def __call__(self, program: Program, operators: Operators) -> ModelProto:
        """A model that may be changed."""
        if id(program) not in self._made:
            self._made[id(program)] = (program, convert(program, operators))
        out = ModelProto()
        out.CopyFrom(self._made[id(program)][1])
        return out


class QnnGraph(PackageBuilder):
    """A package for the NPU, or for the processor beside it."""

    def __init__(self, place: Place, converted: Converted) -> None:
        super().__init__()
        self._place, self._converted = place, converted
        self._operators = ops.decompositions() if place == "npu" else processor_ops.decompositions()
        self._models: dict[str, ModelProto] = {}
        # Of the function that is being built.
        self._nodes: list[NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._features: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._matrices: set[str] = set()
        self._numbers: Iterator[int] = itertools.count()

    def constants(self, name: str, spec: WeightSpec, choice: Choice, precision: str) -> tuple[Constant, ...]:
        return layout.constants(name, spec, choice)

    def add(
        self,
        name: str,
        inputs: Sequence[Feature],
        body: Callable[[dict[str, Any]], Mapping[str, Any]],
    ) -> None:
        self._begin()
        self._nodes, self._initializers, self._features = [], [], {}
        self._matrices, self._numbers = set(), itertools.count()
        results = body({f.role: f.name for f in inputs})
        outputs = [Feature(role, *self._features[value]) for role, value in results.items()]
        self._name({value: f.name for value, f in zip(results.values(), outputs, strict=True)})
        read = {i for node in self._nodes for i in node.input}
        graph = helper.make_graph(
            self._nodes,
            name,
            [_value(f) for f in inputs],
            [_value(f) for f in outputs],
            [i for i in self._initializers if i.name in read],
        )
        opset = helper.make_opsetid("", processor_ops.OPSET)
        model = helper.make_model(graph, opset_imports=[opset], producer_name="edgekit")
        model.ir_version = 10
        self._models[name] = model
        self.functions[name] = Signature(tuple(inputs), tuple(outputs))

    def _name(self, names: Mapping[str, str]) -> None:
        """Rename values of the nodes."""
        for node in self._nodes:
            node.input[:] = [names.get(i, i) for i in node.input]
            node.output[:] = [names.get(o, o) for o in node.output]

    def _constant(self, stored: Constant) -> str:
        # Where it lies is known when all functions are built.
        shape = [int(n) for n in stored.shape]
        name = f"w.{stored.name}"
        self._initializers.append(TensorProto(name=name, data_type=_TYPES[stored.dtype.name], dims=shape))
        return name

    def weight(self, stored: Sequence[Constant], parts: Sequence[Sequence[str]] = ()) -> _Weight:
        """The constants of a weight; of a matrix for the NPU `w` is the matrix [K, N] itself."""
        if parts:
            raise ExportError("format qnn has no form for experts")
        if len(stored) == 1:
            return {"": self.constant(stored[0])}
        own = {c.name.rpartition(".")[2]: self.constant(c) for c in stored}
        if "given_scale" not in own:
            return own
        matrix = own["codes"].removesuffix(".codes")
        if matrix not in self._matrices:
            self._matrices.add(matrix)
            self._dequantize(matrix, own, stored[0])
        return own | {"w": matrix}

    def _dequantize(self, matrix: str, own: _Weight, codes: Constant) -> None:
        columns, rows = codes.shape
        if "group_scales" not in own:
            zeros = self._zeros("int8", (rows,))
            self._add("DequantizeLinear", [own["codes"], own["scales"], zeros], matrix, axis=1)
            return
        groups = next(i.dims[0] for i in self._initializers if i.name == own["group_scales"])
        scales, blocks = matrix + ".blocks", self._zeros("int4", (groups, rows))
        given = [own["group_scales"], own["scales"], self._zeros("uint8", (rows,))]
        self._add("DequantizeLinear", given, scales, axis=1)
        self._add(
            "DequantizeLinear", [own["codes"], scales, blocks], matrix, axis=0, block_size=columns // groups
        )

    def _zeros(self, dtype: str, shape: tuple[int, ...]) -> str:
        name = f"zeros.{dtype}.{'x'.join(map(str, shape))}"
        made: str = self.constant(Constant(name, BY_NAME[dtype], shape), tensor=False)
        return made

    def _add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        node = helper.make_node(operator, list(inputs), [output], f"n{len(self._nodes)}", **attributes)
        self._nodes.append(node)
        return output

    def _coded(self, x: str, scale: str, zero: str, name: str) -> str:
        """x through its 16-bit codes and back."""
        self._add("QuantizeLinear", [x, scale, zero], name + ".codes")
        return self._add("DequantizeLinear", [name + ".codes", scale, zero], name)

    def translate(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        weights: Mapping[str, Callable[[], Any]],
    ) -> dict[str, Any]:
        model = self._converted(program, self._operators)
        at = f"p{next(self._numbers)}."
        known: dict[str, str] = {}
        taken: dict[str, str] = {}  # names of matrices by the inputs that are their codes
        for value in model.graph.input:
            known[value.name] = self._taken(program, value, inputs, weights, at, taken)
        for constant in model.graph.initializer:
            known[constant.name] = constant.name = at + constant.name
            self._initializers.append(constant)
        coded: dict[str, str] = {}
        for node in model.graph.node:
            read = [known[i] if i in known else i and at + i for i in node.input]
            made = [o and at + o for o in node.output]
            if node.op_type == ops.PRODUCT_NODE and node.domain == ops.PRODUCT_DOMAIN:
                self._product(weights[taken[node.input[1]]](), read[0], made[0], coded)
                continue
            node.input[:], node.output[:], node.name = read, made, f"n{len(self._nodes)}"
            self._nodes.append(node)
        return {name: self._result(program, name, at) for name in program.outputs}

    def _product(self, weight: _Weight, x: str, y: str, coded: dict[str, str]) -> None:
        """A product through codes. `coded` has what of the program has been made codes of: ranges of one
        array are the same for all that multiply it.
        """
        if x not in coded:
            coded[x] = self._coded(x, weight["given_scale"], weight["given_zero"], x + ".coded")
        self._add("MatMul", [coded[x], weight["w"]], y + ".float")
        self._coded(y + ".float", weight["made_scale"], weight["made_zero"], y)

    def _taken(
        self,
        program: Program,
        value: ValueInfoProto,
        inputs: Mapping[str, Any],
        weights: Mapping[str, Callable[[], Any]],
        at: str,
        taken: dict[str, str],
    ) -> str:
        """What stands for an input of a program."""
        name = value.name
        if name in inputs:
            given: str = inputs[name]
            if value.type.tensor_type.elem_type != TensorProto.INT64:
                return given
            return self._add("Cast", [given], f"{at}{name}", to=TensorProto.INT64)
        own = name.removeprefix("w.")
        if own in weights:
            return next(iter(weights[own]().values()))
        matrix, _, suffix = own.rpartition(".")
        constants: _Weight = weights[matrix]()
        taken[name] = matrix
        return constants[suffix] if suffix in constants else constants[""]

    def _result(self, program: Program, name: str, at: str) -> str:
        """A value of a program's output of its own, which a function may give."""
        index = program.outputs.index(name)
        node = list(program.exported.graph.nodes)[-1].args[0][index]
        fake = node.meta["val"]
        dtype = _DTYPES[fake.dtype]
        value = f"{at}out.{name}"
        operator, attributes = ("Cast", {"to": TensorProto.INT32}) if dtype == "int32" else ("Identity", {})
        self._add(operator, [at + name], value, **attributes)
        self._features[value] = (dtype, tuple(int(n) for n in fake.shape))
        return value

    def finish(self) -> Template:
        places, end = self._lay_out()
        files: dict[str, Frame] = {}
        for name, model in self._models.items():
            check(_open(model, places), "qnn")
            for initializer in model.graph.initializer:
                if initializer.name in places:
                    offset, nbytes = places[initializer.name]
                    _outside(initializer, offset, nbytes)
            files[model_file(name, self._place)] = Frame.whole(model.SerializeToString(deterministic=True))
        regions: dict[str, Region] = {}
        for stack in self.stored.values():
            if stack.parts:
                regions |= stack.regions(WEIGHTS_FILE, places[f"w.{stack.constant.name}"][0])
        return Template(files | {WEIGHTS_FILE: Frame(end, ())}, regions)

    def _lay_out(self) -> tuple[dict[str, tuple[int, int]], int]:
        """Offset and bytes of every constant in the file of weights, and where that ends. What stays zero
        lies at its beginning, all of it in one place.
        """
        constants = {f"w.{s.constant.name}": (s.constant.nbytes, bool(s.parts)) for s in self.stored.values()}
        end = max((nbytes for nbytes, stamped in constants.values() if not stamped), default=0)
        places = {name: (0, nbytes) for name, (nbytes, stamped) in constants.items() if not stamped}
        for name, (nbytes, stamped) in constants.items():
            if stamped:
                start = -(-end // _ALIGNMENT) * _ALIGNMENT
                places[name], end = (start, nbytes), start + nbytes
        return places, max(end, 1)


def _value(feature: Feature) -> ValueInfoProto:
    return helper.make_tensor_value_info(feature.name, _FEATURES[feature.dtype], feature.shape)


def _open(model: ModelProto, constants: Collection[str]) -> ModelProto:
    """The model with constants, whose file is not there yet, as inputs."""
    out = ModelProto()
    out.CopyFrom(model)
    kept = [i for i in out.graph.initializer if i.name not in constants]
    for each in out.graph.initializer:
        if each.name in constants:
            out.graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, each.dims))
    del out.graph.initializer[:]
    out.graph.initializer.extend(kept)
    return out


def _outside(initializer: TensorProto, offset: int, nbytes: int) -> None:
    """Have a constant lie in the file of weights."""
    initializer.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", nbytes)):
        entry = initializer.external_data.add()
        entry.key, entry.value = key, str(value)
