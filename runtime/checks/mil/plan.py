"""Planning a function when it is opened: is all of it covered, what follows from constants alone, and when a
value is needed for the last time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.runtime.checks.mil.errors import MalformedPackage, UnsupportedOps
from edgekit.runtime.checks.mil.ops import Op, registered
from edgekit.runtime.checks.mil.ops.registry import Call
from edgekit.runtime.checks.mil.program import Function, Operation, Reference
from edgekit.runtime.checks.mil.rows import Rows
from edgekit.runtime.checks.mil.types import STRING, TensorType

#: What operations raise for arguments that they are not defined for.
REFUSALS = (ValueError, IndexError, ArithmeticError)
#: Operations of one type that an error message names.
_NAMED = 3


@dataclass(frozen=True)
class Step:
    """An operation that runs, its implementation, and the values that no later one uses."""

    operation: Operation
    op: Op
    last_uses: tuple[str, ...]


def check_coverage(where: str, function: Function) -> None:
    """Every operation is covered, and has the arguments that its implementation takes.

    Raises:
        UnsupportedOps: some are not; all of them in one line.
        MalformedPackage: an argument is missing, or there are several where one belongs.
    """
    missing: dict[str, list[str]] = {}
    for operation in function.operations:
        reason = _not_covered(operation, function)
        if reason is not None:
            missing.setdefault(reason, []).append(f"'{operation.name}'")
    if missing:
        listed = "; ".join(
            f"{reason}: {', '.join(names[:_NAMED])}"
            + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
            for reason, names in sorted(missing.items())
        )
        raise UnsupportedOps(f"{where} uses operations that are not covered: {listed}")
    for operation in function.operations:
        op, at = registered()[operation.type], f"{where}: {operation.type} '{operation.name}'"
        lacking = [key for key in op.required if not operation.inputs.get(key)]
        if lacking:
            raise MalformedPackage(f"{at} lacks {', '.join(lacking)}")
        for key, bindings in operation.inputs.items():
            if key not in op.lists and len(bindings) != 1:
                raise MalformedPackage(f"{at} has {len(bindings)} values for '{key}'")


def _not_covered(operation: Operation, function: Function) -> str | None:
    op = registered().get(operation.type)
    if op is None:
        return operation.type
    unknown = sorted(set(operation.inputs) - {*op.required, *op.optional})
    if unknown:
        return f"{operation.type} with {', '.join(unknown)}"
    if op.since > function.opset:
        return f"{operation.type} before its operation set"
    types: dict[str, TensorType] = {
        key: function.types[bindings[0].name] if isinstance(bindings[0], Reference) else bindings[0].type
        for key, bindings in operation.inputs.items()
        if bindings
    }
    if op.refuses is None or not types.keys() >= set(op.required):
        return None  # what is lacking is reported as such
    reason = op.refuses(types)
    return None if reason is None else f"{operation.type} ({reason})"


def compose_weights(where: str, function: Function, call: Call) -> dict[str, Rows]:
    """Constants and compressed weights by name. The latter are made of the former; nothing is read.

    Raises:
        MalformedPackage: the operands of a compressed weight are not constants, or do not fit each other.
    """
    weights: dict[str, Rows] = dict(function.constants)
    for operation in function.operations:
        if not operation.is_constexpr:
            continue
        op, at = registered()[operation.type], f"{where}: {operation.type} '{operation.name}'"
        arguments: dict[str, Any] = {}
        for key, (binding,) in operation.inputs.items():
            if not isinstance(binding, Reference):
                arguments[key] = binding.text() if binding.dtype is STRING else binding
            elif binding.name in weights:
                arguments[key] = weights[binding.name]
            else:
                raise MalformedPackage(f"{at} depends on '{binding.name}', which is not constant")
        try:
            made = op.run(*[call] * op.takes_call, **arguments)
        except REFUSALS as error:
            raise MalformedPackage(f"{at}: {error}") from error
        results = made if isinstance(made, tuple) else (made,)
        if len(results) != len(operation.outputs):
            raise MalformedPackage(f"{at} gives {len(results)} values, {len(operation.outputs)} are declared")
        for value, rows in zip(operation.outputs, results, strict=True):
            found = TensorType(rows.dtype, rows.shape)
            if rows.dtype is not value.type.dtype or not value.type.fits(rows.shape):
                raise MalformedPackage(f"{at} is declared {value.type} and gives {found}")
            weights[value.name] = rows
    return weights


def steps(function: Function, weights: Mapping[str, Rows]) -> tuple[Step, ...]:
    """The operations that run, in order, each with the values that can be dropped after it."""
    needed = {*function.outputs, *weights, *(value.name for value in function.inputs if value.is_state)}
    result = []
    for operation in reversed(function.operations):
        if operation.is_constexpr:
            continue
        used = {
            b.name for bindings in operation.inputs.values() for b in bindings if isinstance(b, Reference)
        }
        dropped = (used | {value.name for value in operation.outputs}) - needed
        result.append(Step(operation, registered()[operation.type], tuple(sorted(dropped))))
        needed |= used
    return tuple(reversed(result))
