"""ONNX Runtime on a GPU: the providers for it, products of weights in blocks, and what ran where."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.manifest import Manifest
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines import memory
from edgekit.runtime.engines.base import Arrays, EngineBytes, Lengths
from edgekit.runtime.engines.onnx.engine import OnnxEngine
from edgekit.runtime.engines.onnx.gpu_blocks import block_of
from edgekit.runtime.engines.onnx.integer_product import INT8, identity_model, product_model
from edgekit.runtime.errors import EngineUnavailable, RunsOnProcessor, one_line

#: Providers for GPUs, the faster ones first, and what ONNX Runtime calls their devices.
PROVIDERS = {
    "NvTensorRTRTXExecutionProvider": "cuda",
    "CUDAExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "WebGpuExecutionProvider": "webgpu",
}
#: What a driver takes of the process for compiled programs and buffers of its own: 220 MB with Vulkan in
#: software, for either tiny model. Nobody tells it before.
_DRIVER_BYTES = 256 << 20
#: In ONNX's numbering of types.
_TYPES: dict[type[np.generic], int] = {np.float32: 1, np.uint8: 2}
_PROCESSOR = "CPUExecutionProvider"
_RECORD = "session.record_ep_graph_assignment_info"


def working_provider(ort: Any, options: Any = None) -> str:
    """The first of `PROVIDERS` that opens a program here. Raises EngineUnavailable with what each says."""
    known, failed = ort.get_available_providers(), []
    for provider in PROVIDERS:
        if provider not in known:
            continue
        try:
            found = _opened(ort, product_model(INT8), options, [provider, _PROCESSOR]).get_providers()
        except Exception as error:
            failed.append(f"{provider}: {one_line(error)}")
            continue
        if provider in found:
            return provider
        failed.append(f"{provider} finds no GPU")
    if failed:
        raise EngineUnavailable("; ".join(failed))
    raise EngineUnavailable(
        f"onnxruntime {ort.__version__} has no provider for GPUs, only {', '.join(known)}; in its "
        "place install onnxruntime-webgpu (any GPU) or onnxruntime-gpu (CUDA)"
    )


def _opened(ort: Any, program: bytes, options: Any, providers: list[str]) -> Any:
    # Else a provider that fails is said on stdout and replaced by the processor.
    return ort.InferenceSession(program, options, providers=providers, enable_fallback=0)


class OnnxGpuEngine(OnnxEngine):
    """Runs the programs of an `onnx-gpu` bundle on the first of `PROVIDERS` that works here. What a provider
    has no kernel for runs on the processor: once for each program a warning names it.

    Raises:
        EngineUnavailable: onnxruntime is missing or too old, or, from `prepare`, has no provider that finds a
            GPU.
        UnsupportedBundle: the bundle's programs or layout are not this engine's.
    """

    name = "onnx-gpu"
    layout = "onnx-gpu-1"
    #: MatMulNBits with weights as inputs on WebGPU.
    minimum_version = (1, 27)

    def __init__(self, folder: BundleFolder, manifest: Manifest, threads: int) -> None:
        super().__init__(folder, manifest, threads)
        self._options.add_session_config_entry(_RECORD, "1")
        self._provider, self._device = "", ("", 0)  # of `prepare`
        self._on_processor: dict[str, tuple[str, ...]] = {}
        #: Values of units in the memory of the GPU, by the object that a unit comes as.
        self._kept: dict[int, tuple[Arrays, dict[str, Any]]] = {}
        self._uploads: dict[int, Any] = {}
        self._full = False

    def prepare(self) -> None:
        self._provider = working_provider(self._ort, self._options)
        self._device = PROVIDERS[self._provider], 0

    def memory(self, bundle: Bundle, lengths: Lengths) -> EngineBytes:
        found = memory.stored_weights(bundle, lengths, copies=True, uint8=False)
        # Scales of groups become those of blocks, in float32: up to a quarter of the codes.
        scratch = found.scratch * 5 // 4
        return dataclasses.replace(found, scratch=scratch, allowance=found.allowance + _DRIVER_BYTES)

    def statistics(self) -> dict[str, Any]:
        return super().statistics() | {"provider": self._provider, "on_processor": dict(self._on_processor)}

    def _session(self, name: str, entry: dict[str, Any]) -> Any:
        known = name in self._sessions
        session = super()._session(name, entry)
        if not known:
            self._report(name, session)
        return session

    def _create(self, program: bytes) -> Any:
        return self._open(program, [self._provider, _PROCESSOR])

    def _open(self, program: bytes, providers: list[str]) -> Any:
        return _opened(self._ort, program, self._options, providers)

    def _report(self, name: str, session: Any) -> None:
        """Say what of a program runs on the processor. What only moves or counts is nothing to speak of."""
        others = [
            f"{node.op_type} ({node.name})"
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name != self._provider
            for node in part.get_nodes()
            if node.op_type not in _SIZES
        ]
        if others:
            self._on_processor[name] = tuple(others)
            warnings.warn(
                f"{self._folder.path}: program {name}: {self._provider} has no kernel for "
                f"{', '.join(others)}; the processor runs it",
                RunsOnProcessor,
                stacklevel=2,
            )

    def _bound(self, name: str, weights: Arrays, codes: type[np.int8 | np.uint8]) -> Any:
        if self.bounded:
            return super()._bound(name, weights, codes)
        unit, values = self._kept.setdefault(id(weights), (weights, {}))
        if name not in values:
            values[name] = self._uploaded(self._weight(name, unit, codes))
        return values[name]

    def _uploaded(self, array: np.ndarray) -> Any:
        """The array in the memory of the GPU, or as it is where that has no room for it."""
        if self._full:
            return self._value(array.copy())
        kind = _TYPES[array.dtype.type]
        if kind not in self._uploads:
            self._uploads[kind] = self._create(identity_model(kind))
        binding = self._uploads[kind].io_binding()
        binding.bind_ortvalue_input("x", self._value(array))
        binding.bind_output("y", *self._device)
        try:
            self._uploads[kind].run_with_iobinding(binding, self._run_options)
        except Exception:
            self._full = True
            return self._value(array.copy())
        return binding.get_outputs()[0]

    def _weight(self, name: str, weights: Arrays, codes: type[np.int8 | np.uint8]) -> np.ndarray:
        """A weight as its program takes it: see `export.formats.onnx.gpu_layout`."""
        matrix, _, kind = name.rpartition(".")
        stored = weights[name]
        if stored.dtype == np.uint16:
            return (stored.astype(np.uint32) << 16).view(np.float32)
        if kind not in ("codes", "scales"):
            return stored
        if not matrix:
            return stored  # of a table
        rows, nbytes = weights[f"{matrix}.codes"].shape
        groups = weights.get(f"{matrix}.group_scales")
        columns = nbytes if groups is None else 2 * nbytes
        shared = columns if groups is None else columns // groups.shape[1]
        block = block_of(shared) or shared
        if kind == "codes":
            return stored.reshape(rows, columns // block, -1)
        scales = stored[:, None] if groups is None else stored[:, None] * groups
        return np.repeat(scales, shared // block, 1)


#: Operators over sizes and indices, which processors compute wherever the arrays are.
_SIZES = frozenset(
    ("Constant", "Gather", "Identity", "MemcpyFromHost", "MemcpyToHost", "Reshape", "Shape", "Unsqueeze")
)
