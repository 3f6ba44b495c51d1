"""The machine, for reports that people send: no name of a user, host or folder."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgekit.flashload import _native
from edgekit.runtime.process import usable_cores
from edgekit.tools.versions import installed_version

_CPU_INFO = Path("/proc/cpuinfo")
#: What Linux calls a processor's name there: on x86, and on ARM where it says anything.
_NAMES = ("model name", "Model", "Hardware")
#: What engines compute with.
_LIBRARIES = (
    "torch", "triton", "onnxruntime", "onnxruntime-gpu", "onnxruntime-webgpu", "onnxruntime-ep-webgpu",
    "apache-tvm", "apache-tvm-ffi", "mlx", "coremltools", "coreai-core",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """System, processor with the extensions that the core uses, cores, and versions."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "architecture": platform.machine(),
        "processor": processor(),
        "cores": usable_cores(),
        "cpu_features": list(_native.load().cpu_features()),
        "python": platform.python_version(),
        "edgekit": installed_version(),
    }


def libraries() -> dict[str, str]:
    """The versions of what engines compute with, of those that are installed, by distribution."""
    found = {}
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def processor() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return next((known[name] for name in _NAMES if known.get(name)), "") or platform.processor() or "unknown"
