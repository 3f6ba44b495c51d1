"""The machine, for reports that people send: no name of a user, host or folder."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress
from typing import Any

from edgekit.runtime.bench import describe_machine
from edgekit.tools.versions import installed_version

#: What engines compute with.
_LIBRARIES = (
    "torch", "triton", "onnxruntime", "onnxruntime-gpu", "onnxruntime-webgpu", "onnxruntime-ep-webgpu",
    "onnxruntime-qnn", "apache-tvm", "apache-tvm-ffi", "mlx", "coremltools", "coreai-core",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """What `describe_machine` finds, and versions."""
    return describe_machine() | {"python": platform.python_version(), "edgekit": installed_version()}


def libraries() -> dict[str, str]:
    """The versions of what engines compute with, of those that are installed, by distribution."""
    found = {}
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
