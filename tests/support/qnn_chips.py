"""What Qualcomm's libraries say of chips: the name of one by its number, and the number in a binary. The name
is in what they log where a device is made, by a process of its own (in the folder tests):

    python -m support.qnn_chips NUMBER

The places of functions and fields are those of QNN's public headers (`QnnInterface.h`, `QnnHtpDevice.h`,
`System/QnnSystemInterface.h`, `System/QnnSystemContext.h`).
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import onnxruntime_qnn

_NAMED = re.compile(r"unsupported on soc (\w+)")
#: Of functions in QNN's tables of them.
_LOG_CREATE, _DEVICE_CREATE = 25, 40
_CONTEXT_CREATE, _GET_BINARY_INFO = 0, 1
#: The form of a binary's description that has the number.
_NUMBERED = 3
_VERBOSE, _MOST_FUNCTIONS, _MOST_LETTERS = 5, 60, 2000


class _Provider(ctypes.Structure):
    _fields_ = [
        ("backend", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("versions", ctypes.c_uint32 * 6),
        ("functions", ctypes.c_void_p * _MOST_FUNCTIONS),
    ]


class _Chip(ctypes.Structure):
    """Option 0 of HTP's own ones is the number of a chip."""

    _fields_ = [("option", ctypes.c_uint64), ("model", ctypes.c_uint32), ("rest", ctypes.c_uint32 * 4)]


class _Option(ctypes.Structure):
    """Option 0 is one of the backend's own."""

    _fields_ = [("option", ctypes.c_uint64), ("value", ctypes.c_void_p)]


class _SystemProvider(ctypes.Structure):
    _fields_ = [
        ("backend", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_uint32 * 3),
        ("functions", ctypes.c_void_p * 2),
    ]


class _Described(ctypes.Structure):
    """A binary's description, of the third form."""

    _fields_ = [
        ("form", ctypes.c_uint64),
        ("backend", ctypes.c_uint32),
        ("build", ctypes.c_char_p),
        ("versions", ctypes.c_uint32 * 6),
        ("chip", ctypes.c_char_p),
        ("blob_version", ctypes.c_uint32 * 3),
        ("blob_bytes", ctypes.c_uint64),
        ("tensor_count", ctypes.c_uint32),
        ("tensors", ctypes.c_void_p),
        ("graph_count", ctypes.c_uint32),
        ("graphs", ctypes.c_void_p),
        ("platform", ctypes.c_void_p),
        ("metadata_bytes", ctypes.c_uint32),
        ("metadata", ctypes.c_void_p),
        ("model", ctypes.c_uint32),
    ]


def number_in(binary: Path) -> tuple[int, int]:
    """The number of the chip that a binary was compiled for, and how many graphs it has."""
    library = ctypes.CDLL(str(Path(onnxruntime_qnn.get_qnn_htp_path()).with_name("libQnnSystem.so")))
    providers, count = ctypes.POINTER(ctypes.POINTER(_SystemProvider))(), ctypes.c_uint32()
    assert library.QnnSystemInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) == 0
    functions, data = providers[0].contents.functions, binary.read_bytes()
    context, found, nbytes = ctypes.c_void_p(), ctypes.POINTER(_Described)(), ctypes.c_uint64()
    create = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(functions[_CONTEXT_CREATE])
    assert create(ctypes.addressof(context)) == 0
    describe = ctypes.CFUNCTYPE(
        ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p
    )(functions[_GET_BINARY_INFO])
    assert not describe(context, data, len(data), ctypes.addressof(found), ctypes.addressof(nbytes))
    assert found.contents.form == _NUMBERED
    return found.contents.model, found.contents.graph_count


def name_of(model: int) -> str:
    """The name; empty where the library knows no such number."""
    done = subprocess.run(
        [sys.executable, "-m", "support.qnn_chips", str(model)], cwd=Path(__file__).parents[1],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = _NAMED.findall(done.stdout)
    return found[0] if found and found[0] != "UNKNOWN_SDM" else ""


def _tell(model: int) -> None:
    libc, library = ctypes.CDLL(None), ctypes.CDLL(onnxruntime_qnn.get_qnn_htp_path())
    providers, count = ctypes.POINTER(ctypes.POINTER(_Provider))(), ctypes.c_uint32()
    library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count))
    functions = providers[0].contents.functions

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)
    def said(form: bytes, level: int, time: int, arguments: int) -> None:
        text = ctypes.create_string_buffer(_MOST_LETTERS)
        libc.vsnprintf(text, _MOST_LETTERS, ctypes.c_char_p(form), ctypes.c_void_p(arguments))
        print(text.value.decode(errors="replace").strip(), flush=True)

    log, device = ctypes.c_void_p(), ctypes.c_void_p()
    three = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    three(functions[_LOG_CREATE])(ctypes.cast(said, ctypes.c_void_p), _VERBOSE, ctypes.addressof(log))
    chip = _Chip(0, model)
    option = _Option(0, ctypes.addressof(chip))
    options = (ctypes.c_void_p * 2)(ctypes.addressof(option), None)
    make = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    make(functions[_DEVICE_CREATE])(log, ctypes.addressof(options), ctypes.addressof(device))
    os._exit(0)  # the library logs to a function that Python would take away


if __name__ == "__main__":
    _tell(int(sys.argv[1]))
