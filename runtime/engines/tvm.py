"""TVM's runtime for the core, which runs bundles of the format `tvm` with it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
from ctypes import c_char_p
from pathlib import Path

from edgekit.flashload import _native
from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.errors import EngineUnavailable

#: The packages that hold the libraries, whose names leave out what each system adds.
_LIBRARIES = {"tvm_ffi": "tvm_ffi", "tvm": "tvm_runtime"}
_INSTALL = "pip install 'edgekit[tvm]'"


def load_runtime() -> None:
    """Have the core load TVM's libraries from their packages, without importing these.

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


def _load_cuda() -> None:
    """Have CUDA's runtime in the process where its package is installed: TVM's part for NVIDIA GPUs, which is
    loaded with the first bundle for one, takes it from there.
    """
    with contextlib.suppress(ImportError, OSError):
        spec = importlib.util.find_spec("nvidia.cu13")
        for folder in [] if spec is None else spec.submodule_search_locations or []:
            for library in sorted(Path(folder, "lib").glob("libcudart.so.*")):
                ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def _library(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    if not folders:
        raise EngineUnavailable(f"the tvm engine needs {package}: {_INSTALL}")
    file = {"win32": f"{name}.dll", "darwin": f"lib{name}.dylib"}.get(sys.platform, f"lib{name}.so")
    return Path(folders[0]) / "lib" / file
