"""Finding the integer product of ONNX Runtime that is exact on this processor, and so the programs of an ONNX
bundle that run on it.

Its kernels of uint8 x int8 for x86 without VNNI add pairs of products in 16 bits, which overflows for large
codes and gives silently wrong results. Those of uint8 x uint8 widen first; where VNNI has the other product,
they take half as many codes at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from edgekit.flashload.manifest import Manifest
from edgekit.runtime.errors import EngineUnavailable
from edgekit.runtime.telemetry import load_onnxruntime

#: Types of the right operand; the left one is uint8 with zero point 128, as is the right one in uint8.
INT8, UINT8 = "int8", "uint8"
ZERO_POINT = 128
#: In ONNX's numbering of types.
_TYPES = {UINT8: 2, INT8: 3}
_INT32 = 6


def takes_uint8(manifest: Manifest) -> bool:
    """Whether programs of a bundle must take int8 weights as uint8 codes, code + 128, on this processor; only
    those of a quantized ONNX bundle ever do.

    Raises EngineUnavailable.
    """
    return (
        manifest.format == "onnx"
        and any(role["bits"] < 16 for role in manifest.quantization.get("roles", ()))
        and right_operand() == UINT8
    )


@cache
def right_operand() -> str:
    """INT8 where that product is exact, which is the faster one; otherwise UINT8.

    Raises:
        EngineUnavailable: neither is exact.
    """
    onnxruntime = load_onnxruntime()
    for kind in (INT8, UINT8):
        if is_exact(onnxruntime, kind):
            return kind
    raise EngineUnavailable(
        f"the integer products of onnxruntime {onnxruntime.__version__} are wrong on this processor; install "
        "another version, export with --format native, or export with --quant bf16"
    )


def is_exact(ort: Any, kind: str) -> bool:
    """Whether the product with a right operand of this type is right for the largest codes, and for any."""
    rng = np.random.default_rng(0)
    session = ort.InferenceSession(product_model(kind), providers=["CPUExecutionProvider"])
    b = rng.integers(-128, 128, (259, 37), dtype=np.int8)
    b[:, :8], b[:, 8:16] = 127, -128
    codes = b if kind == INT8 else b.view(np.uint8) ^ np.uint8(ZERO_POINT)
    # One row and several are kernels of their own.
    for rows in (1, 13):
        drawn = rng.integers(0, 256, (rows, 259), dtype=np.uint8)
        for a in (drawn, np.full_like(drawn, 255), np.zeros_like(drawn)):
            expected = (a.astype(np.int32) - ZERO_POINT) @ b.astype(np.int32)
            if not np.array_equal(session.run(None, {"a": a, "b": codes})[0], expected):
                return False
    return True


def product_model(kind: str) -> bytes:
    """A program of one MatMulInteger."""
    operands = (b"a", b"b", b"z", *([b"z"] if kind == UINT8 else []))
    zero = _field(2, _TYPES[UINT8]) + _field(8, b"z") + _field(9, bytes([ZERO_POINT]))
    node = _node(b"MatMulInteger", *operands) + _field(5, zero)
    return _program(node + _input(b"a", _TYPES[UINT8]) + _input(b"b", _TYPES[kind]) + _output(_INT32))


def identity_model(kind: int) -> bytes:
    """A program that gives its input `x` of a type, in ONNX's numbering, as `y`."""
    return _program(_node(b"Identity", b"x") + _input(b"x", kind) + _output(kind))


# In ONNX's protobuf encoding: the runtime has no package that could write it.


def _field(number: int, data: bytes | int) -> bytes:
    if isinstance(data, int):
        return bytes([number << 3, data])
    return bytes([number << 3 | 2, len(data)]) + data


def _value(name: bytes, kind: int) -> bytes:
    return _field(1, name) + _field(2, _field(1, _field(1, kind)))


def _input(name: bytes, kind: int) -> bytes:
    return _field(11, _value(name, kind))


def _output(kind: int) -> bytes:
    return _field(12, _value(b"y", kind))


def _node(operator: bytes, *operands: bytes) -> bytes:
    """In front of all else of a graph, with its name."""
    node = b"".join(_field(1, name) for name in operands) + _field(2, b"y") + _field(4, operator)
    return _field(1, node) + _field(2, b"g")


def _program(graph: bytes) -> bytes:
    return _field(1, 10) + _field(7, graph) + _field(8, _field(1, b"") + _field(2, 21))
