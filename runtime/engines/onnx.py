"""ONNX Runtime on the CPU. Weights are graph inputs, bound to the buffers they were read into; 4-bit ones
are unpacked to int8 first.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.manifest import Manifest
from edgekit.runtime.engines.base import Arrays, Experts, OneLayerEngine
from edgekit.runtime.engines.mixture import mix
from edgekit.runtime.errors import EngineFailed, EngineUnavailable, UnsupportedBundle
from edgekit.runtime.head import TilePart
from edgekit.runtime.sampling.types import Floats
from edgekit.runtime.unpack import unpack_int4

LAYOUT = "onnx-1"
#: GroupQueryAttention and Attention as the programs use them.
MINIMUM_VERSION = (1, 30)


class OnnxEngine(OneLayerEngine):
    """Runs the programs of an `onnx` bundle.

    Raises:
        EngineUnavailable: onnxruntime is missing or too old, or its int8 product saturates on this processor.
        UnsupportedBundle: the bundle's programs or layout are not this engine's.
    """

    name = "onnx"

    def __init__(self, folder: BundleFolder, manifest: Manifest, threads: int) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise EngineUnavailable(
                "the onnx engine needs onnxruntime: pip install 'edgekit[onnx]'"
            ) from error
        version = tuple(int(p) for p in onnxruntime.__version__.split(".")[:2])
        if version < MINIMUM_VERSION:
            raise EngineUnavailable(
                f"onnxruntime {onnxruntime.__version__} is too old; "
                f"install {'.'.join(map(str, MINIMUM_VERSION))} or newer"
            )
        if manifest.programs.get("format") != "onnx" or manifest.programs.get("layout") != LAYOUT:
            found = f"{manifest.programs.get('format')}/{manifest.programs.get('layout')}"
            raise UnsupportedBundle(
                f"{folder.path}: programs are {found}; the onnx engine runs onnx/{LAYOUT}; "
                "export the bundle again"
            )
        self._ort, self._folder, self._entries = onnxruntime, folder, manifest.programs["entries"]
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.log_severity_level = 3
        # The arena keeps what one pass needed for ever; activations are small against the weights that the
        # memory is for.
        self._options.enable_cpu_mem_arena = False
        self._sessions: dict[str, Any] = {}
        self._wanted: dict[str, frozenset[str]] = {}
        self._scratch: dict[str, np.ndarray] = {}
        self._unpack_seconds = 0.0
        self._bfloat16 = 16  # onnx.TensorProto.BFLOAT16
        if any(role["bits"] < 16 for role in manifest.quantization.get("roles", ())):
            _check_integer_product(onnxruntime)

    def layer(
        self, program: str, inputs: Arrays, weights: Arrays, experts: Experts
    ) -> tuple[Floats, Floats, Floats]:
        entry = self._entries[program]
        if "before" not in entry:
            out = self._run(program, entry, inputs, weights)
            return out["y"], out["k"], out["v"]
        first = self._run(program + ".before", entry["before"], inputs, weights)
        mixed = mix(
            first["experts.x"],
            first["experts.index"],
            first["experts.weight"],
            experts,
            lambda x, tensors: self._run(f"{program}.expert", entry["expert"], {"x": x}, tensors)["y"],
        )
        last = self._run(program + ".after", entry["after"], {**inputs, **first, "experts.y": mixed}, weights)
        out = {**first, **last}
        return out["y"], out["k"], out["v"]

    def self_condition(self, embedded: Floats, soft: Floats, weights: Arrays) -> Floats:
        inputs = {"embedded": embedded, "soft": soft}
        return self._run("self_conditioning", self._entries["self_conditioning"], inputs, weights)["y"]

    def final(self, x: Floats, weights: Arrays) -> Floats:
        return self._run("final", self._entries["final"], {"x": x}, weights)["y"]

    def head_tile(
        self, x: Floats, temperature: float, noise: Floats | None, soft: bool, table: Arrays
    ) -> TilePart:
        name = "head" + ("_sample" if noise is not None else "") + ("_soft" if soft else "")
        inputs = {"x": x, "temperature": np.array([temperature], np.float32)}
        if noise is not None:
            inputs["noise"] = noise
        out = self._run(name, self._entries[name], inputs, _table(table))
        return TilePart(
            out["max"], out["argmax"], out["sum_exp"], out["sum_z_exp"],
            out.get("score"), out.get("sample"), out.get("sample_z"), out.get("soft"),
        )  # fmt: skip

    def head_logits(self, x: Floats, temperature: float, table: Arrays) -> Floats:
        inputs = {"x": x, "temperature": np.array([temperature], np.float32)}
        return self._run("head_logits", self._entries["head_logits"], inputs, _table(table))["z"]

    def scratch_bytes(self) -> int:
        return sum(a.nbytes for a in self._scratch.values())

    def statistics(self) -> dict[str, Any]:
        return {
            "engine": self.name,
            "unpack_seconds": self._unpack_seconds,
            "scratch_bytes": self.scratch_bytes(),
        }

    def _run(
        self, name: str, entry: dict[str, Any], inputs: Arrays, weights: Arrays
    ) -> dict[str, np.ndarray]:
        session = self._session(name, entry)
        feed: dict[str, Any] = {}
        for wanted in self._wanted[name]:
            value = self._weight(wanted[2:], weights) if wanted.startswith("w.") else inputs[wanted]
            feed[wanted] = self._value(value)
        try:
            outputs = session.run_with_ort_values(None, feed)
        except Exception as error:
            first = str(error).strip().splitlines()[0]
            raise EngineFailed(f"onnxruntime failed in program {name}: {first}") from error
        return {n: v.numpy() for n, v in zip(entry["outputs"], outputs, strict=True)}

    def _value(self, array: np.ndarray) -> Any:
        """An OrtValue over the array's own memory. uint16 is how bfloat16 is held in numpy."""
        array = np.ascontiguousarray(array)
        if array.dtype == np.uint16:
            return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, self._bfloat16)
        return self._ort.OrtValue.ortvalue_from_numpy(array)

    def _weight(self, name: str, weights: Arrays) -> np.ndarray:
        if name in weights:
            return weights[name]
        matrix = name.removesuffix(".codes")
        packed, groups = weights[matrix + ".packed"], weights[matrix + ".group_scales"]
        started = time.perf_counter()
        shape = (packed.shape[0], groups.shape[1])
        scratch = self._scratch.get(matrix)
        if scratch is None or scratch.size < shape[0] * shape[1]:
            scratch = self._scratch[matrix] = np.empty(shape[0] * shape[1], np.int8)
        out = unpack_int4(packed, groups, scratch[: shape[0] * shape[1]].reshape(shape))
        self._unpack_seconds += time.perf_counter() - started
        return out

    def _session(self, name: str, entry: dict[str, Any]) -> Any:
        if name not in self._sessions:
            program = self._folder.read(entry["file"])
            try:
                session = self._ort.InferenceSession(
                    program, self._options, providers=["CPUExecutionProvider"]
                )
            except Exception as error:
                path, first = self._folder.path / entry["file"], str(error).strip().splitlines()[0]
                raise EngineFailed(
                    f"{path}: onnxruntime {self._ort.__version__} cannot load it: {first}"
                ) from error
            self._sessions[name] = session
            self._wanted[name] = frozenset(i.name for i in session.get_inputs())
        return self._sessions[name]


def _table(table: Arrays) -> dict[str, np.ndarray]:
    return {"table." + name: value for name, value in table.items()}


def _check_integer_product(ort: Any) -> None:
    """Refuse a processor on which ONNX Runtime's uint8 x int8 product saturates.

    Its kernels for x86 without VNNI add pairs of products in 16 bits, which overflows for large codes; the
    result would be silently wrong.
    """
    a, b = np.full((4, 256), 255, np.uint8), np.full((256, 32), 127, np.int8)
    session = ort.InferenceSession(_integer_product_model(), providers=["CPUExecutionProvider"])
    y = session.run(None, {"a": a, "b": b})[0]
    if not np.array_equal(y, a.astype(np.int32) @ b.astype(np.int32)):
        raise EngineUnavailable(
            "onnxruntime's int8 product saturates on this processor (x86 without VNNI), so results would be "
            "wrong; use a processor with VNNI or an Arm one, or export with --quant bf16"
        )


def _integer_product_model() -> bytes:
    """A graph of one MatMulInteger, in ONNX's protobuf encoding: the runtime has no package that could
    write it.
    """

    def field(number: int, data: bytes | int) -> bytes:
        if isinstance(data, int):
            return bytes([number << 3, data])
        return bytes([number << 3 | 2, len(data)]) + data

    def value(name: bytes, kind: int) -> bytes:
        return field(1, name) + field(2, field(1, field(1, kind)))

    uint8, int8, int32 = 2, 3, 6
    node = field(1, b"a") + field(1, b"b") + field(2, b"y") + field(4, b"MatMulInteger")
    graph = field(1, node) + field(2, b"g") + field(11, value(b"a", uint8)) + field(11, value(b"b", int8))
    graph += field(12, value(b"y", int32))
    return field(1, 10) + field(7, graph) + field(8, field(1, b"") + field(2, 21))
