"""Checks of the programs of an ONNX bundle before ONNX Runtime sees one: a bundle may come from a stranger,
and a loop that does not end, or a file elsewhere that a program takes for its constants, is valid ONNX.
"""

from __future__ import annotations

from ctypes import c_char_p, c_uint64

from edgekit.flashload import _native
from edgekit.flashload.errors import EdgekitError

#: Beside a package's programs, with the constants of all of them.
WEIGHTS_FILE = "weights.bin"


class Refused(Exception):
    """Why a program does not reach ONNX Runtime, in words that follow its name."""


def check_program(data: bytes, program_format: str = "onnx") -> None:
    """Raises Refused unless `data` is an ONNX model of the operators alone that exports of the format write,
    without parts that are graphs of their own and without data outside of it, but for that in WEIGHTS_FILE
    where the format has such.
    """
    core = _native.functions({"ek_onnx_check": (c_char_p, c_uint64, c_char_p)})
    try:
        _native.check(core.ek_onnx_check(data, len(data), program_format.encode()))
    except EdgekitError as error:
        raise Refused(str(error)) from None
