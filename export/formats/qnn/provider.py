"""ONNX Runtime's provider for QNN, which compiles packages for chips and brings an emulation of one."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from edgekit.runtime.engines.qnn.libraries import missing
from edgekit.runtime.errors import EngineUnavailable, one_line
from edgekit.runtime.telemetry import load_onnxruntime

#: The name that it has in ONNX Runtime.
PROVIDER = "QNNExecutionProvider"


@functools.cache
def provider() -> tuple[ModuleType, ModuleType, list[Any]]:
    """ONNX Runtime, the module of the provider, which is registered, and its first device.

    Raises:
        EngineUnavailable: a package is missing, or finds no NPU and no emulation.
    """
    try:
        ort = load_onnxruntime()
        import onnxruntime_qnn
    except ImportError as error:
        raise missing("onnxruntime_qnn", "export-qnn") from error
    try:
        devices = _devices(ort)
        if not devices:  # else the application has registered it
            ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
            devices = _devices(ort)
    except Exception as error:
        raise EngineUnavailable(f"onnxruntime-qnn cannot be loaded: {one_line(error)}") from error
    if not devices:
        raise EngineUnavailable("onnxruntime-qnn finds neither an NPU nor its emulation on this system")
    return ort, onnxruntime_qnn, devices[:1]


def _devices(ort: ModuleType) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
