"""From exported programs to the files of a Core AI asset, and where its weights belong in them.

A graph is built for every function, over constants that are named resources without values. They are
stored once, whatever the number of functions, and found in the written file by their names: as placeholders
of a few bytes, so that a package of any size costs no more than its graph.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from coreai.authoring import AIProgram, Context, Module

# isort: split
# Of the same package, which cannot be imported in any other order.
from coreai._compiler.dialects import coreai
from coreai._compiler.ir import (
    DenseElementsAttr,
    DenseResourceElementsAttr,
    F16Type,
    F32Type,
    FloatAttr,
    InsertionPoint,
    IntegerAttr,
    IntegerType,
    Location,
    RankedTensorType,
    Type,
    Value,
)
from coreai.authoring.graph_builder import GraphOp

from edgekit.export.errors import ExportError
from edgekit.export.formats.coreai import bytecode
from edgekit.export.formats.coreai.ops import NODES, reshape, round_rows, shape_of
from edgekit.export.formats.packages.functions import Feature, Signature
from edgekit.export.formats.packages.graph import PackageGraph
from edgekit.export.formats.packages.layout import Constant
from edgekit.export.formats.packages.stamp import Frame, Region, Template

PROGRAM_FILE, HASH_FILE, METADATA_FILE = "main.mlirb", "main.hash", "metadata.json"
#: Resources begin at multiples of it, in the file and in memory. Readers refuse files that lie in memory less
#: well aligned than their resources, and small ones lie where malloc puts them.
ALIGNMENT = 16
_RESOURCE = re.compile(r"dense_resource<\"?([^\">]+)\"?> : ")


def _elements() -> dict[str, Type]:
    return {
        "float16": F16Type.get(),
        "float32": F32Type.get(),
        "int32": IntegerType.get_signed(32),
        "fp16": F16Type.get(),
        "fp32": F32Type.get(),
        "int4": IntegerType.get_signed(4),
        "int8": IntegerType.get_signed(8),
    }


def _name_of(element: Type) -> str:
    return next(name for name, known in _elements().items() if known == element)


class CoreaiGraph(PackageGraph):
    """A package of Core AI being built."""

    NAME, SYSTEM, NODES = "coreai", "Core AI", NODES

    def __init__(self, int8_activations: bool = False) -> None:
        super().__init__(int8_activations)
        self._resources: dict[str, Any] = {}
        self._held: dict[str, int] = {}  # bytes of each while Core AI writes
        self._used: dict[str, set[str]] = {}  # constants by function
        self._context = Context()
        # Locations would be lines of this file, which are nobody's business.
        with self._context, Location.unknown():
            self._module = Module.create()

    def add(
        self,
        name: str,
        inputs: Sequence[Feature],
        body: Callable[[dict[str, Value]], Mapping[str, Value]],
    ) -> None:
        self._begin()
        with self._context, Location.unknown(), InsertionPoint(self._module._body):
            elements = _elements()
            types = [RankedTensorType.get(f.shape, elements[f.dtype]) for f in inputs]
            graph = GraphOp(name, types, [], [f.name for f in inputs])
            with graph.block:
                results = body({f.role: v for f, v in zip(inputs, graph.arguments, strict=True)})
                outputs = tuple(
                    Feature(role, _name_of(v.type.element_type), tuple(shape_of(v)))
                    for role, v in results.items()
                )
                named = zip(outputs, results.values(), strict=True)
                graph.set_outputs_spec_from_dict(OrderedDict((f.name, v) for f, v in named))
        self.functions[name] = Signature(tuple(inputs), outputs)
        self._used[name] = self.stored.keys() & self._known.keys()

    def content(self, stored: Constant) -> np.ndarray:
        """A stand-in for a constant while Core AI writes the program, which does not look at it: a number,
        since equal resources would become one. It gets its full size in the template.
        """
        number = (len(self._resources) + 1).to_bytes(8, "little")[: stored.nbytes]
        return np.frombuffer(number, np.uint8).copy()

    def _constant(self, stored: Constant) -> Value:
        if stored.name not in self._resources:
            kind = RankedTensorType.get(_kernel_shape(stored.shape), _elements()[stored.dtype.name])
            content = self.content(stored)
            self._held[stored.name] = content.nbytes
            self._resources[stored.name] = DenseResourceElementsAttr.get_from_buffer(
                content, stored.name, kind, alignment=ALIGNMENT
            )
        return coreai.ConstantOp(value=self._resources[stored.name]).result

    def _round_rows(self, x: Value) -> tuple[Value, Value]:
        return round_rows(x)

    def _scaled(self, name: str, codes: Value, scales: Value) -> Value:
        offsets = [_zeros(shape_of(scales), v.type.element_type) for v in (codes, scales)]
        return coreai.blockwise_shift_scale(codes, scales, *offsets)

    def _reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        return reshape(value, shape)

    def finish(self) -> Template:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "package.aimodel"
            # The rewriting passes of `with self._module` stay out: they fold products of weights, join equal
            # ones, and these have no values yet. Specialization on the device has passes of its own.
            with self._context, Location.unknown():
                AIProgram(self._module).save_asset(folder)
            metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
            metadata.pop("creationDate", None)  # equal packages are to have equal bytes
            (folder / METADATA_FILE).write_text(
                json.dumps(metadata, indent=1, sort_keys=True), encoding="utf-8"
            )
            # Core AI takes the digest of the program, which holds the weights, for a package's identity.
            (folder / HASH_FILE).unlink()
            self._check(folder / PROGRAM_FILE)
            files = {
                path.relative_to(folder).as_posix(): Frame.whole(path.read_bytes())
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
            program = (folder / PROGRAM_FILE).read_bytes()
        sizes = {name: stack.constant.nbytes for name, stack in self.stored.items()}
        files[PROGRAM_FILE], places = bytecode.resized(program, sizes)
        regions: dict[str, Region] = {}
        for name, stack in self.stored.items():
            regions |= stack.regions(PROGRAM_FILE, places[name][0])
        return Template(files, regions, {PROGRAM_FILE: HASH_FILE})

    def _check(self, program: Path) -> None:
        """That a file has the constants that it was given, and its functions use them, none folded."""
        written = read_program(program)
        for name, constants in self._used.items():
            if lost := sorted(constants - {c.name for c in written.constants[name]}):
                raise ExportError(f"Core AI has folded {lost[0]} into other constants in function {name}")
        held = {name: nbytes for name, (_, nbytes) in bytecode.resources(program).items()}
        # One of Core AI's own would be made of placeholders.
        if changed := sorted(name for name, _ in held.items() ^ self._held.items()):
            what = "not stored as it is" if changed[0] in self._held else "made out of others"
            raise ExportError(f"Core AI has a constant {changed[0]} that is {what}")


@dataclass(frozen=True)
class NamedConstant:
    """A constant of a program that is a resource: its type in MLIR's words, and its shape."""

    name: str
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WrittenProgram:
    """A program that was written: by function its named constants, and those that are codes and scales of a
    product.
    """

    constants: Mapping[str, tuple[NamedConstant, ...]]
    scaled: Mapping[str, tuple[tuple[NamedConstant | None, NamedConstant | None], ...]]


def read_program(path: Path) -> WrittenProgram:
    """Read a program back as Core AI does."""
    constants, scaled = {}, {}
    context = Context()
    program = AIProgram._load_bytecode(path, context._mlir_context)
    for graph in program._module._body.operations:
        if isinstance(graph, GraphOp):
            name, operations = graph.symbol_name, list(graph.entry_block.operations)
            found = [_named(operation) for operation in operations]
            constants[name] = tuple(c for c in found if c is not None)
            scaled[name] = tuple(
                (_named(o.operands[0].owner), _named(o.operands[1].owner))
                for o in operations
                if o.name == "coreai.blockwise_shift_scale"
            )
    return WrittenProgram(constants, scaled)


def _named(owner: Any) -> NamedConstant | None:
    """The constant that makes a value, if it is a resource; the owner of an input is a block."""
    if getattr(owner, "name", "") != "coreai.constant":
        return None
    match = _RESOURCE.match(str(owner.attributes["value"]))
    if match is None:
        return None
    kind = RankedTensorType(owner.results[0].type)
    return NamedConstant(match[1], str(kind.element_type), tuple(kind.shape))


def _kernel_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a constant in a program: matrices [N, K] and stacks [n, N, K] are kernels of convolutions
    [n * N, K, 1, 1].
    """
    return tuple(shape) if len(shape) < 2 else (math.prod(shape[:-1]), shape[-1], 1, 1)


def _zeros(shape: Sequence[int], element: Type) -> Value:
    zero = IntegerAttr.get(element, 0) if isinstance(element, IntegerType) else FloatAttr.get(element, 0.0)
    kind = RankedTensorType.get(shape, element)
    return coreai.ConstantOp(value=DenseElementsAttr.get_splat(kind, zero)).result
