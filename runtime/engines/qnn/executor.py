"""Qualcomm's NPU by ONNX Runtime and its plug-in provider `onnxruntime-qnn`: on x86-64 Linux Qualcomm's own
emulation of the NPU, and beside it the processor for what is the processor's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from edgekit.runtime.engine_registry import ENGINES
from edgekit.runtime.engines.base import Arrays
from edgekit.runtime.engines.onnx.programs import Refused
from edgekit.runtime.engines.qnn.programs import Place, check_program, model_file, place_of
from edgekit.runtime.engines.qnn.socs import EMULATED, SOCS
from edgekit.runtime.engines.remarks import unsaid
from edgekit.runtime.errors import EngineFailed, EngineUnavailable, one_line
from edgekit.runtime.telemetry import load_onnxruntime

#: The name that the provider has in ONNX Runtime.
PROVIDER = "QNNExecutionProvider"
_FATAL = 4  # of ONNX Runtime's log
#: Of the emulation, when it begins.
_REMARK = re.compile(rb"^ *# LIBNATIVE: .*\n?", re.MULTILINE)


class QnnExecutor:
    """Opens and calls packages, folders that end in `.qnn`.

    Raises:
        EngineUnavailable: onnxruntime or onnxruntime-qnn is missing, or finds no NPU and no emulation.
    """

    name = "qnn"

    def __init__(self) -> None:
        self._ort, qnn, self._devices = provider()
        self._settings = {"backend_path": qnn.get_qnn_htp_path()}
        if self._devices[0].device.type == self._ort.OrtHardwareDeviceType.CPU:
            self._settings |= {"soc_model": str(SOCS[EMULATED].model)}

    def open(self, path: Path, functions: Sequence[str]) -> _Model:
        """Raises EngineFailed."""
        model = _Model(self, path)
        for function in functions:
            model.load(function)
        return model

    def session(self, path: Path, function: str) -> Any:
        """ONNX Runtime's session for a function of the package at `path`. Raises EngineFailed."""
        place = place_of(path, function)
        if place is None:
            raise EngineFailed(f"{path}: has no function {function}; copy or export the bundle again")
        file = path / model_file(function, place)
        try:
            check_program(file.read_bytes(), "qnn")
            with unsaid(1, _REMARK):
                return self._ort.InferenceSession(str(file), sess_options=self._options(place))
        except Refused as error:
            raise EngineFailed(f"{file}: {error}; export the bundle again") from None
        except Exception as error:
            raise EngineFailed(f"{file}: QNN cannot load it: {one_line(error)}") from error

    def _options(self, place: Place) -> Any:
        options = self._ort.SessionOptions()
        options.log_severity_level = _FATAL
        options.add_session_config_entry("session.load_model_format", "ONNX")
        options.enable_cpu_mem_arena = False
        if place == "npu":
            # What the NPU does not take is an error, and not the processor's without a word.
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            options.add_provider_for_devices(self._devices, self._settings)
        return options


class _Model:
    """An opened package; a session for each of its functions is made at its first call."""

    def __init__(self, executor: QnnExecutor, path: Path) -> None:
        self._executor, self._path = executor, path
        self._sessions: dict[str, Any] = {}

    def load(self, function: str) -> Any:
        """Raises EngineFailed."""
        if function not in self._sessions:
            self._sessions[function] = self._executor.session(self._path, function)
        return self._sessions[function]

    def call(self, function: str, inputs: Arrays) -> Mapping[str, np.ndarray]:
        session = self.load(function)
        try:
            names = [output.name for output in session.get_outputs()]
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))
        except Exception as error:
            raise EngineFailed(
                f"{self._path}: QNN failed in function {function}: {one_line(error)}"
            ) from error

    def close(self) -> None:
        self._sessions.clear()


@functools.cache
def provider() -> tuple[ModuleType, ModuleType, list[Any]]:
    """ONNX Runtime, the module of the provider, which is registered, and its first device.

    Raises:
        EngineUnavailable: a package is missing, or finds no NPU and no emulation.
    """
    row = ENGINES.find(QnnExecutor.name)
    install = f"pip install '{row.install if row else 'onnxruntime-qnn'}'"
    try:
        ort = load_onnxruntime()
        import onnxruntime_qnn
    except ImportError as error:
        raise EngineUnavailable(f"the qnn engine needs onnxruntime-qnn: {install}") from error
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
