"""ONNX Runtime and Qualcomm's provider for the core, which runs bundles of the format `qnn` with them."""

from __future__ import annotations

import ctypes
import re
import sys
from ctypes import POINTER, c_char_p, c_uint32
from pathlib import Path

from edgekit.flashload import _native
from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.structs import Struct
from edgekit.runtime import remarks
from edgekit.runtime.engines.qnn.socs import EMULATED, SOCS
from edgekit.runtime.errors import EngineUnavailable
from edgekit.runtime.installed import folder_of
from edgekit.runtime.telemetry import switch_off

#: Of the emulation, when it is loaded.
_REMARK = re.compile(rb"^ *# LIBNATIVE: .*\n?", re.MULTILINE)
#: Where the libraries lie in their packages, by system.
_ONNXRUNTIME = {"win32": "onnxruntime.dll", "darwin": "libonnxruntime.*.dylib"}
_PROVIDER = {"win32": "onnxruntime_providers_qnn.dll"}
_BACKEND = {"win32": "QnnHtp.dll"}


class QnnOptionsStruct(Struct):
    """`ek_qnn_options`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("onnxruntime", c_char_p), ("provider", c_char_p),
        ("backend", c_char_p), ("chip", c_char_p), ("soc_model", c_char_p),
    )  # fmt: skip


def load_runtime(chip: str | None = None) -> None:
    """Have the core load the libraries from their packages; once in a process. Packages that were compiled
    for `chip` are opened in place of those that are compiled when they are opened. An emulation stands for
    that chip, or for EMULATED.

    Raises:
        EngineUnavailable: a package is not installed, its library cannot be loaded, or it finds no NPU and no
            emulation. NativeError: the core is missing.
    """
    switch_off()
    backend = _library("onnxruntime_qnn", _BACKEND.get(sys.platform, "libQnnHtp.so"))
    try:
        remarks.on_talkative()
        with remarks.unsaid(1, _REMARK):
            ctypes.CDLL(str(backend))
    except OSError as error:
        raise EngineUnavailable(f"onnxruntime-qnn cannot be loaded: {error}") from error
    options = QnnOptionsStruct(
        onnxruntime=_native.path_bytes(
            _library("onnxruntime", _ONNXRUNTIME.get(sys.platform, "libonnxruntime.so.*"), "capi")
        ),
        provider=_native.path_bytes(
            _library("onnxruntime_qnn", _PROVIDER.get(sys.platform, "libonnxruntime_providers_qnn.so"))
        ),
        backend=_native.path_bytes(backend),
        chip=chip and chip.encode(),
        soc_model=str(SOCS.get(chip or EMULATED, SOCS[EMULATED]).model).encode(),
    )
    core = _native.functions({"ek_qnn_load": (POINTER(QnnOptionsStruct),)})
    try:
        _native.check(core.ek_qnn_load(ctypes.byref(options)))
    except EdgekitError as error:
        raise EngineUnavailable(
            f"the qnn engine cannot load its libraries: {error}: {_install('qnn')}"
        ) from error


def _library(package: str, pattern: str, below: str = "") -> Path:
    """Raises EngineUnavailable."""
    folder = folder_of(package)
    found = [] if folder is None else sorted(Path(folder, below).glob(pattern))
    if not found:
        raise missing(package)
    return found[0]


def missing(package: str, extra: str = "qnn") -> EngineUnavailable:
    """The error for a package, by the name of its module, that is not installed and that `extra` brings."""
    return EngineUnavailable(f"the qnn engine needs {package.replace('_', '-')}: {_install(extra)}")


def _install(extra: str) -> str:
    return f"pip install 'edgekit[{extra}]'"
