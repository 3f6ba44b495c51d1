"""NVIDIA's compiler for kernels, NVRTC: where it is installed. Imports nothing of TVM's."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path

from edgekit.runtime.installed import folder_of


def lacking() -> str:
    """A package that compiling for NVIDIA GPUs takes and that is not installed; empty if there is none. NVRTC
    and its headers may also be those of a CUDA toolkit, which CUDA_PATH names.
    """
    found = None
    with contextlib.suppress(ImportError):
        found = importlib.util.find_spec("cuda.bindings.nvrtc")
    if found is None:
        return "cuda-bindings"
    if os.environ.get("CUDA_PATH"):
        return ""
    own = folder()
    if own is None or not any(own.glob("lib/libnvrtc.so*")):
        return "nvidia-cuda-nvrtc"
    return "" if (own / "include" / "cuda_runtime.h").is_file() else "nvidia-cuda-runtime"


def folder() -> Path | None:
    """The folder of the packages of CUDA 13 on the package index, None where none is installed."""
    return folder_of("nvidia.cu13")
