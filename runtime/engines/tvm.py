"""TVM's runtime for the core, which runs bundles of the format `tvm` with it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from ctypes import CDLL, c_char_p
from pathlib import Path

from edgekit.flashload import _native
from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.errors import EngineUnavailable

#: The packages that hold the libraries, whose names leave out what each system adds.
_LIBRARIES = {"tvm_ffi": "tvm_ffi", "tvm": "tvm_runtime"}
#: What the package `tvm` has beside its runtime, each on some systems.
_FOR_GPUS = ("tvm_runtime_cuda", "tvm_runtime_metal")
_INSTALL = "pip install 'edgekit[tvm]'"


def load_runtime() -> None:
    """Have the core load TVM's libraries from their packages, without importing these, and with them what TVM
    has for GPUs where that can be loaded: whether a bundle takes it, the core says.

    Raises:
        EngineUnavailable: a package is not installed, or its library cannot be loaded or is of another
            version. NativeError: the core is missing.
    """
    paths = [_native.path_bytes(_library(package, name)) for package, name in _LIBRARIES.items()]
    core = _native.functions({"ek_tvm_load": (c_char_p, c_char_p)})
    try:
        _native.check(core.ek_tvm_load(*paths))
    except EdgekitError as error:
        raise EngineUnavailable(f"the tvm engine cannot load TVM's runtime: {error}: {_INSTALL}") from error
    _load_for_gpus()


@functools.cache
def _load_for_gpus() -> None:
    for name in _FOR_GPUS:
        library = _library("tvm", name)
        if not library.is_file():
            continue
        with contextlib.suppress(OSError):  # without the system of the GPU, or its driver
            if name == "tvm_runtime_cuda" and (own := _folder("nvidia.cu13")) is not None:
                for cuda in own.glob("lib/libcudart.so.*"):  # where nobody looks who is not told to
                    CDLL(str(cuda))
            CDLL(str(library))


def _folder(package: str) -> Path | None:
    """The folder of a package, None where it is not installed."""
    spec = None
    with contextlib.suppress(ImportError):
        spec = importlib.util.find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return Path(folders[0]) if folders else None


def _library(package: str, name: str) -> Path:
    folder = _folder(package)
    if folder is None:
        raise EngineUnavailable(f"the tvm engine needs {package}: {_INSTALL}")
    file = {"win32": f"{name}.dll", "darwin": f"lib{name}.dylib"}.get(sys.platform, f"lib{name}.so")
    return folder / "lib" / file
