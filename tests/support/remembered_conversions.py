"""Conversions to ONNX, done once for equal programs, and with the exporter's table of operators built once.

Most random models of the tests share their heads and norms, and a conversion takes a second or two, of which
the table, the same every time, is a quarter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import onnx
import pytest
from torch.onnx._internal.exporter._registration import ONNXRegistry

from edgekit.export.formats.onnx.graph import Operators, convert
from edgekit.export.programs import Program


def identity(program: Program, operators: Operators) -> tuple[Any, ...]:
    """All that a conversion reads: graph with shapes, signature and ranges as text, the values of constants,
    names of inputs and outputs, and what stands for the operators.
    """
    exported = program.exported
    constants = tuple(
        (name, str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes())
        for name, value in sorted(exported.constants.items())
    )
    replaced = tuple(
        sorted(((str(op), function) for op, function in operators.items()), key=lambda pair: pair[0])
    )
    return str(exported), constants, program.inputs, program.outputs, replaced


def remembering(made: dict[tuple[Any, ...], bytes]) -> Callable[[Program, Operators], onnx.ModelProto]:
    """`convert` that looks into `made` first, and gives every caller a model of its own."""

    def converted(program: Program, operators: Operators) -> onnx.ModelProto:
        key = identity(program, operators)
        if key not in made:
            made[key] = convert(program, operators).SerializeToString()
        return onnx.ModelProto.FromString(made[key])

    return converted


def one_table(patch: pytest.MonkeyPatch) -> None:
    """Has the exporter build its table of operators once for each version of them: it changes none that it
    has built.
    """
    build = ONNXRegistry.from_torchlib
    patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(lru_cache(maxsize=None)(build)))
