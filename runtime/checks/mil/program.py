"""Functions of a program: operations in order, their named arguments, constants that are read when needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.runtime.checks.mil.errors import MalformedPackage
from edgekit.runtime.checks.mil.types import TensorType
from edgekit.runtime.checks.mil.values import Constant, OpenBlob, tensor_type

#: Name of the operation set -> version of the specification: 6 for iOS 15, 7 for 16, 8, 9 (18), 10 (26).
OPSETS: Mapping[str, int] = {f"CoreML{n}": n + 1 for n in range(5, 10)}


@dataclass(frozen=True)
class Value:
    """Something that a function takes or an operation gives. A state keeps its content between runs."""

    name: str
    type: TensorType
    is_state: bool = False


@dataclass(frozen=True)
class Reference:
    """An argument that names an earlier value."""

    name: str


@dataclass(frozen=True)
class Operation:
    """One operation. An argument is a tuple: of one binding, or of several for operations such as concat."""

    type: str
    name: str
    inputs: Mapping[str, tuple[Reference | Constant, ...]]
    outputs: tuple[Value, ...]

    @property
    def is_constexpr(self) -> bool:
        """Whether its result follows from constants alone: a compressed weight."""
        return self.type.startswith("constexpr_")


@dataclass(frozen=True)
class Function:
    """One function: `constants` by name, and the other operations in an order in which they can run."""

    name: str
    opset: int
    inputs: tuple[Value, ...]
    constants: Mapping[str, Constant]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]


def parse_function(name: str, proto: Any, open_blob: OpenBlob, where: str) -> Function:
    """The function in a `MILSpec.Function` message; `where` begins the messages of errors.

    Raises:
        MalformedPackage: a value is missing, defined twice, or not stored as declared.
        UnsupportedPackage: a value is not a tensor.
    """
    block = proto.block_specializations.get(proto.opset)
    if block is None:
        raise MalformedPackage(f"{where} has no block for its operation set '{proto.opset}'")
    if proto.opset not in OPSETS:
        raise MalformedPackage(f"{where} has the unknown operation set '{proto.opset}'")
    inputs = tuple(_input(i, f"{where}: input '{i.name}'") for i in proto.inputs)
    types: dict[str, TensorType] = {}
    for value in inputs:
        _define(types, value, where)
    constants: dict[str, Constant] = {}
    operations = []
    for op in block.operations:
        at = f"{where}: {op.type} '{_name(op)}'"
        outputs = tuple(Value(o.name, tensor_type(o.type, f"{at}: output '{o.name}'")) for o in op.outputs)
        if op.type == "const":
            if len(outputs) != 1 or "val" not in op.attributes:
                raise MalformedPackage(f"{at} has no value")
            constants[outputs[0].name] = constant = Constant(at, op.attributes["val"], open_blob)
            if constant.type != outputs[0].type:
                raise MalformedPackage(f"{at} is declared {outputs[0].type} and holds {constant.type}")
        else:
            arguments = _arguments(op, at, open_blob)
            for binding in (b for bindings in arguments.values() for b in bindings):
                if isinstance(binding, Reference) and binding.name not in types:
                    raise MalformedPackage(f"{at} uses '{binding.name}', which no earlier operation defines")
            operations.append(Operation(op.type, _name(op), arguments, outputs))
        for value in outputs:
            _define(types, value, at)
    for output in block.outputs:
        if output not in types:
            raise MalformedPackage(f"{where}: nothing defines the output '{output}'")
    return Function(
        name, OPSETS[proto.opset], inputs, constants, tuple(operations), tuple(block.outputs), types
    )


def _input(proto: Any, where: str) -> Value:
    if proto.type.WhichOneof("type") == "stateType":
        return Value(proto.name, tensor_type(proto.type.stateType.wrappedType, where), is_state=True)
    return Value(proto.name, tensor_type(proto.type, where))


def _define(types: dict[str, TensorType], value: Value, where: str) -> None:
    if value.name in types:
        raise MalformedPackage(f"{where} defines '{value.name}' a second time")
    types[value.name] = value.type


def _name(op: Any) -> str:
    """The operation's own name, for messages; its first output's where it has none."""
    if "name" in op.attributes:
        strings = op.attributes["name"].immediateValue.tensor.strings.values
        if strings:
            return str(strings[0])
    return op.outputs[0].name if op.outputs else "?"


def _arguments(op: Any, where: str, open_blob: OpenBlob) -> dict[str, tuple[Reference | Constant, ...]]:
    """Inputs and attributes alike: until iOS 17 the operands of constexpr operations are attributes."""
    arguments: dict[str, tuple[Reference | Constant, ...]] = {
        key: tuple(
            Reference(b.name)
            if b.WhichOneof("binding") == "name"
            else Constant(f"{where}: {key}", b.value, open_blob)
            for b in argument.arguments
        )
        for key, argument in op.inputs.items()
    }
    for key, value in op.attributes.items():
        if key != "name":
            if key in arguments:
                raise MalformedPackage(f"{where} has '{key}' both as an input and as an attribute")
            arguments[key] = (Constant(f"{where}: {key}", value, open_blob),)
    return arguments
