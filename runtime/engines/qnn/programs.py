"""The files of packages for Qualcomm's NPU: `NAME.qnn/`, a folder with

FUNCTION.npu.onnx        a function that the NPU computes, or
FUNCTION.processor.onnx  one that the processor computes
weights.bin              the constants of all of them
"""

from __future__ import annotations

from typing import Literal, get_args

from edgekit.runtime.engines.onnx.programs import WEIGHTS_FILE, check_program

__all__ = ["PLACES", "SUFFIX", "WEIGHTS_FILE", "Place", "check_program", "model_file"]

#: Where a function is computed.
Place = Literal["npu", "processor"]
PLACES: tuple[Place, ...] = get_args(Place)
#: How the names of packages end.
SUFFIX = ".qnn"


def model_file(function: str, place: Place) -> str:
    """The name of the file of a function within its package."""
    return f"{function}.{place}.onnx"
