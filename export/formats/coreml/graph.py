"""From exported programs to the files of a Core ML package, and where its weights belong in them.

Nothing is converted: a function's operations are built in coremltools' MIL, with constants that hold no
memory, and its exporter writes them down. Which bytes of `weight.bin` a constant has follows from the layout
of that file, in which functions share constants of one name. So a package of any size costs no more than its
graph, and small constants, which converters put into the program, can be stamped too.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import coremltools as ct
import numpy as np
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

from edgekit.export.formats.coreml.ops import NODES, round_rows
from edgekit.export.formats.nodes import Arguments
from edgekit.export.formats.packages.functions import Feature, Signature
from edgekit.export.formats.packages.graph import PackageGraph
from edgekit.export.formats.packages.layout import Constant
from edgekit.export.formats.packages.stamp import Frame, Region, Template
from edgekit.runtime.checks.mil.blob import lay_out, pack_header
from edgekit.runtime.checks.mil.types import BY_NAME

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


class CoremlGraph(PackageGraph):
    """A package of Core ML being built."""

    NAME, SYSTEM, NODES = "coreml", "Core ML", NODES

    def __init__(self, int8_activations: bool = False) -> None:
        super().__init__(int8_activations)
        self.program = MilProgram()

    def add(
        self,
        name: str,
        inputs: Sequence[Feature],
        body: Callable[[dict[str, Var]], Mapping[str, Var]],
    ) -> None:
        mb.name_count.clear()  # names are numbered by it: equal packages are to have equal bytes
        self._begin()
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

    def values(self, stored: Constant) -> np.ndarray:
        """A stand-in for a constant in the program: it takes no memory, since nobody looks at it."""
        kind = np.dtype(nptype_from_builtin(string_to_builtin(stored.dtype.name)))
        return np.broadcast_to(np.zeros((), kind), stored.shape)

    def _constant(self, stored: Constant) -> Var:
        return mb.const(val=self.values(stored), name=_identifier(stored.name))

    def _round_rows(self, x: Var) -> tuple[Var, Var]:
        return round_rows(x)

    def _scaled(self, name: str, codes: Var, scales: Var) -> Var:
        return mb.constexpr_blockwise_shift_scale(data=codes, scale=scales, name=_identifier(name))

    def _reshaped(self, value: Var, shape: Sequence[int]) -> Var:
        return mb.reshape(x=value, shape=shape)

    def _extras(self, node: Node) -> Arguments:
        return super()._extras(node) | {"zeros": self._zeros}

    def _zeros(self, like: Var, count: int) -> Var:
        """A vector of zeros in the type of `like`: no tensor, and zero in the file."""
        kind = types.builtin_to_string(like.dtype)
        return self.constant(Constant(f"zeros.{kind}.{count}", BY_NAME[kind], (count,)), tensor=False)

    def finish(self) -> Template:
        records = lay_out((s.constant.dtype, s.constant.count) for s in self.stored.values())
        places = {_identifier(name): record.offset for name, record in zip(self.stored, records, strict=True)}
        self.program.default_function_name = next(iter(self.functions))
        exported = _Exporter(self.program, places).export()
        model = proto.Model_pb2.Model(
            specificationVersion=int(TARGET), description=_description(self.program)
        )
        model.mlProgram.CopyFrom(exported)
        regions: dict[str, Region] = {}
        for stack, record in zip(self.stored.values(), records, strict=True):
            regions |= stack.regions(WEIGHT_FILE, record.data_offset)
        fixed = ((0, pack_header(len(records))), *((r.offset, r.pack()) for r in records))
        last = records[-1]
        spec = model.SerializeToString(deterministic=True)
        files = {
            "Manifest.json": Frame.whole(_manifest()),
            "Data/" + MODEL_FILE: Frame.whole(spec),
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
