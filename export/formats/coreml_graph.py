"""From exported programs to the files of a Core ML package, and where its weights belong in them.

Nothing is converted: a function's operations are built in coremltools' MIL, with constants that hold no
memory, and its exporter writes them down. Which bytes of `weight.bin` a constant has follows from the layout
of that file, in which functions share constants of one name. So a package of any size costs no more than its
graph, and small constants, which converters put into the program, can be stamped too.
"""

from __future__ import annotations

import json
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import coremltools as ct
import numpy as np
import torch
from coremltools import proto
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.backend.mil.helper import (
    create_file_value_tensor,
    create_immediate_value,
    types_to_proto_primitive,
)
from coremltools.converters.mil.backend.mil.load import MILProtoExporter
from coremltools.converters.mil.mil import Function as MilFunction
from coremltools.converters.mil.mil import Program as MilProgram
from coremltools.converters.mil.mil import Var, types
from coremltools.converters.mil.mil.types import nptype_from_builtin, string_to_builtin
from torch.fx import Node
from torch.fx.node import map_arg

from edgekit.export.errors import ExportError
from edgekit.export.formats.coreml_layout import Constant
from edgekit.export.formats.coreml_ops import NODES, RESHAPES, ExpertStack, Refused
from edgekit.export.formats.packaging import Feature, Signature
from edgekit.export.formats.stamp import Frame, Region, Template
from edgekit.export.programs import Program, call_arguments
from edgekit.runtime.mil.blob import lay_out, pack_header
from edgekit.runtime.mil.types import BY_NAME

#: Compressed constants in blocks came with iOS 18; nothing here needs a later one.
TARGET = ct.target.iOS18
MODEL_FILE = "com.apple.CoreML/model.mlmodel"
WEIGHT_FILE = "Data/com.apple.CoreML/weights/weight.bin"
_IN_PROGRAM = "@model_path/weights/weight.bin"
_TYPES = {"float16": types.fp16, "float32": types.fp32, "int32": types.int32}
_ARRAYS = proto.FeatureTypes_pb2.ArrayFeatureType
_FEATURES = {
    types.fp16: _ARRAYS.FLOAT16,
    types.fp32: _ARRAYS.FLOAT32,
    types.int32: _ARRAYS.INT32,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


@dataclass(frozen=True)
class Stack:
    """A constant [n, ...] of the program that is stored in n parts, the tensors of `parts`."""

    constant: Constant
    parts: tuple[str, ...]


class PackageGraph:
    """A package being built: functions over shared constants."""

    def __init__(self) -> None:
        self.functions: dict[str, Signature] = {}
        self.program = MilProgram()
        #: The constants of all functions in the order of the weight file.
        self.stored: dict[str, Stack] = {}
        self._known: dict[str, Var] = {}

    def add(
        self,
        name: str,
        inputs: Sequence[Feature],
        body: Callable[[dict[str, Var]], Mapping[str, Var]],
    ) -> None:
        """Add a function. `body` maps values by role to results by role, building with `constant`,
        `weight` and `translate`.
        """
        mb.name_count.clear()  # names are numbered by it: equal packages are to have equal bytes
        self._known = {}
        placeholders = {f.name: mb.placeholder(shape=f.shape, dtype=_TYPES[f.dtype]) for f in inputs}
        with MilFunction(placeholders, opset_version=TARGET) as function:
            results = body({f.role: function.inputs[f.name] for f in inputs})
            outputs = []
            for role, value in results.items():
                feature = Feature(role, _NAMES[value.dtype], tuple(int(n) for n in value.shape))
                value.name = feature.name
                outputs.append(feature)
            function.set_outputs(list(results.values()))
        self.program.add_function(name, function)
        self.functions[name] = Signature(tuple(inputs), tuple(outputs))

    def constant(self, stored: Constant, parts: Sequence[str] = (), tensor: bool = True) -> Var:
        """A constant in the function that is being built; `parts` are its tensors where it is a stack. One
        that is no tensor stays zero.
        """
        if stored.name not in self._known:
            tensors = tuple(parts or [stored.name] if tensor else ())
            self.stored.setdefault(stored.name, Stack(stored, tensors))
            self._known[stored.name] = mb.const(val=self.values(stored), name=_identifier(stored.name))
        return self._known[stored.name]

    def values(self, stored: Constant) -> np.ndarray:
        """What a constant holds in the program: nothing that takes memory, since nobody looks at it."""
        kind = np.dtype(nptype_from_builtin(string_to_builtin(stored.dtype.name)))
        return np.broadcast_to(np.zeros((), kind), stored.shape)

    def weight(self, stored: Sequence[Constant], parts: Sequence[Sequence[str]] = ()) -> Var:
        """The value of a stored weight or stack: a float constant, or the product of codes and scales."""
        lists = parts or [()] * len(stored)
        values = [self.constant(c, p) for c, p in zip(stored, lists, strict=True)]
        if len(values) == 1:
            return values[0]
        name = stored[0].name.removesuffix(".codes")
        if name not in self._known:
            self._known[name] = mb.constexpr_blockwise_shift_scale(
                data=values[0], scale=values[1], name=_identifier(name)
            )
        return self._known[name]

    def translate(
        self,
        program: Program,
        inputs: Mapping[str, Var],
        weights: Mapping[str, Callable[[], Var | ExpertStack]],
    ) -> dict[str, Var]:
        """The nodes of an exported program in the function that is being built: outputs by name.

        `inputs` are values of its inputs; `weights` give those of its matrices and vectors, by name.

        Raises:
            ExportError: a node has no form in Core ML.
        """
        nodes = list(program.exported.graph.nodes)
        names = dict(zip((n for n in nodes if n.op == "placeholder"), program.inputs, strict=True))
        known: dict[Node, Any] = {
            node: inputs[name] if name in inputs else _given(name, weights) for node, name in names.items()
        }
        for node in nodes:
            if node.op == "call_function":
                known[node] = self._computed(program.name, node, known)
        results = dict(zip(program.outputs, nodes[-1].args[0], strict=True))
        return {name: known[node] for name, node in results.items()}

    def _computed(self, program: str, node: Node, known: Mapping[Node, Any]) -> Any:
        if not isinstance(node.meta.get("val"), torch.Tensor | list | tuple):
            return None  # a check of the tracer
        if node.target is operator.getitem:
            return known[node.args[0]][node.args[1]]  # type: ignore[index]
        if node.target in RESHAPES:
            return mb.reshape(x=known[node.args[0]], shape=list(node.meta["val"].shape))  # type: ignore[index]
        try:
            if node.target not in NODES:
                raise Refused("has no form in Core ML")
            arguments = {k: map_arg(v, lambda n: known[n]) for k, v in call_arguments(node).items()}
            return NODES[node.target](arguments | {"zeros": self._zeros})
        except Refused as why:
            raise ExportError(
                f"program {program}: node {node.name} ({node.target}) {why}; format coreml cannot express "
                "this model"
            ) from None

    def _zeros(self, like: Var, count: int) -> Var:
        """A vector of zeros in the type of `like`: no tensor, and zero in the file."""
        kind = types.builtin_to_string(like.dtype)
        return self.constant(Constant(f"zeros.{kind}.{count}", BY_NAME[kind], (count,)), tensor=False)

    def finish(self) -> Template:
        """The files of the package and the regions of its tensors."""
        records = lay_out((s.constant.dtype, s.constant.count) for s in self.stored.values())
        places = {_identifier(name): record.offset for name, record in zip(self.stored, records, strict=True)}
        self.program.default_function_name = next(iter(self.functions))
        exported = _Exporter(self.program, places).export()
        model = proto.Model_pb2.Model(
            specificationVersion=int(TARGET), description=_description(self.program)
        )
        model.mlProgram.CopyFrom(exported)
        regions = {}
        for stack, record in zip(self.stored.values(), records, strict=True):
            for i, part in enumerate(stack.parts):
                size = record.nbytes // len(stack.parts)
                regions[part] = Region(WEIGHT_FILE, record.data_offset + i * size, size)
        fixed = ((0, pack_header(len(records))), *((r.offset, r.pack()) for r in records))
        last = records[-1]
        spec = model.SerializeToString(deterministic=True)
        files = {
            "Manifest.json": _whole(_manifest()),
            "Data/" + MODEL_FILE: _whole(spec),
            WEIGHT_FILE: Frame(last.data_offset + last.nbytes, fixed),
        }
        return Template(files, regions)


class _Exporter(MILProtoExporter):
    """coremltools' exporter, with the constants of `places` (offsets of records by name) in a weight file
    that somebody else writes.
    """

    def __init__(self, program: MilProgram, places: Mapping[str, int]) -> None:
        super().__init__(program, "", int(TARGET))
        self._places = places

    def get_milproto_value(self, var: Var) -> Any:
        if var.op.name not in self._places:
            return create_immediate_value(var)
        primitive = types_to_proto_primitive(var.sym_type.get_primitive())
        return create_file_value_tensor(_IN_PROGRAM, self._places[var.op.name], var.shape, primitive)


def _given(name: str, weights: Mapping[str, Callable[[], Any]]) -> Any:
    """The value of a placeholder for a tensor of a weight; None for one that comes with another."""
    own = name.removeprefix("w.")
    if own in weights:
        return weights[own]()
    matrix, _, suffix = own.rpartition(".")
    return weights[matrix]() if suffix in ("weight", "codes") else None


def _identifier(name: str) -> str:
    """The name of a constant in a program, where names are identifiers."""
    return "w_" + name.replace(".", "_").replace("-", "_")


def _description(program: MilProgram) -> Any:
    """The features of all functions, as apps see them."""

    def feature(name: str, value: Var) -> Any:
        array = _ARRAYS(shape=value.shape, dataType=_FEATURES[value.dtype])
        kind = proto.FeatureTypes_pb2.FeatureType(multiArrayType=array)
        return proto.Model_pb2.FeatureDescription(name=name, type=kind)

    functions = [
        proto.Model_pb2.FunctionDescription(
            name=name,
            input=[feature(n, v) for n, v in function.inputs.items()],
            output=[feature(v.name, v) for v in function.outputs],
        )
        for name, function in program.functions.items()
    ]
    return proto.Model_pb2.ModelDescription(
        functions=functions, defaultFunctionName=program.default_function_name
    )


def _whole(data: bytes) -> Frame:
    return Frame(len(data), ((0, data),))


def _manifest() -> bytes:
    """Manifest.json of a package. The names of its items differ within it, and mean nothing else."""
    model, weights = (str(uuid.uuid5(uuid.NAMESPACE_URL, "edgekit/" + part)) for part in ("model", "weights"))
    entries = {
        model: ("Model Specification", "model.mlmodel", MODEL_FILE),
        weights: ("Model Weights", "weights", "com.apple.CoreML/weights"),
    }
    items = {
        key: {"author": "com.apple.CoreML", "description": f"CoreML {what}", "name": file, "path": path}
        for key, (what, file, path) in entries.items()
    }
    content = {"fileFormatVersion": "1.0.0", "itemInfoEntries": items, "rootModelIdentifier": model}
    return json.dumps(content, indent=4).encode()
