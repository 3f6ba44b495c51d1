"""TVM's runtime for the core, which runs bundles of the format `tvm` with it."""

from __future__ import annotations

import contextlib
import functools
import sys
from ctypes import CDLL, c_char_p
from pathlib import Path

from edgekit.flashload import _native
from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.errors import EngineUnavailable
from edgekit.runtime.installed import folder_of

#: The packages that hold the libraries, whose names leave out what each system adds.
_LIBRARIES = {"tvm_ffi": "tvm_ffi", "tvm": "tvm_runtime"}
_INSTALL = "pip install 'edgekit[tvm]'"


def load_runtime() -> None:
    """Have the core load TVM's libraries from their packages, without importing these. What TVM has for GPUs
    beside them the core loads with the first bundle that takes it.

    Raises:
        EngineUnavailable: a package is not installed, or its library cannot be loaded or is of another
            version. NativeError: the core is missing.
    """
    _load_cuda()
    paths = [_native.path_bytes(_library(package, name)) for package, name in _LIBRARIES.items()]
    core = _native.functions({"ek_tvm_load": (c_char_p, c_char_p)})
    try:
        _native.check(core.ek_tvm_load(*paths))
    except EdgekitError as error:
        raise EngineUnavailable(f"the tvm engine cannot load TVM's runtime: {error}: {_INSTALL}") from error


@functools.cache
def _load_cuda() -> None:
    """Have CUDA's runtime in the process where its package is installed: nobody looks there who is not told
    to, and TVM's library for NVIDIA GPUs needs it.
    """
    own = folder_of("nvidia.cu13")
    for library in [] if own is None else own.glob("lib/libcudart.so.*"):
        with contextlib.suppress(OSError):
            CDLL(str(library))


def _library(package: str, name: str) -> Path:
    folder = folder_of(package)
    if folder is None:
        raise EngineUnavailable(f"the tvm engine needs {package}: {_INSTALL}")
    file = {"win32": f"{name}.dll", "darwin": f"lib{name}.dylib"}.get(sys.platform, f"lib{name}.so")
    return folder / "lib" / file
