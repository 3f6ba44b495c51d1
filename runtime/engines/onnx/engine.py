"""ONNX Runtime on the CPU. Weights are graph inputs, bound to the buffers they were read into; 4-bit ones
are unpacked to 8 bits first, and 8-bit ones copied as uint8 where the processor asks for it
(`engines/onnx/integer_product.py`).
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.manifest import Manifest
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engine_registry import ENGINES
from edgekit.runtime.engines import memory
from edgekit.runtime.engines.base import Arrays, Engine, EngineBytes, LayersOutput, Lengths, Routing, TilePart
from edgekit.runtime.engines.onnx import integer_product
from edgekit.runtime.engines.onnx.programs import Refused, check_program
from edgekit.runtime.engines.unpack import unpack_int4
from edgekit.runtime.errors import EngineFailed, EngineUnavailable, UnsupportedBundle, one_line
from edgekit.runtime.sampling.types import Floats
from edgekit.runtime.telemetry import load_onnxruntime

_UINT8 = "tensor(uint8)"
_FATAL = 4  # of ONNX Runtime's log

_engines: WeakSet[OnnxEngine] = WeakSet()


def _keep_in_child() -> None:
    """An ONNX Runtime session that ends joins its threads. A child of fork has none of them and would wait
    for ever or crash when its interpreter ends, so there the sessions never end.
    """
    for engine in _engines:
        for session in engine._sessions.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_in_child)


class OnnxEngine(Engine):
    """Runs the programs of an `onnx` bundle.

    Raises:
        EngineUnavailable: onnxruntime is missing or too old, or its integer products are wrong on this
            processor.
        UnsupportedBundle: the bundle's programs or layout are not this engine's.
    """

    name = "onnx"
    #: Of the bundles that it runs.
    layout: ClassVar[str] = "onnx-3"
    #: Attention as the programs use it.
    minimum_version: ClassVar[tuple[int, int]] = (1, 30)

    def __init__(self, folder: BundleFolder, manifest: Manifest, threads: int) -> None:
        try:
            onnxruntime = load_onnxruntime()
        except ModuleNotFoundError as error:
            row = ENGINES.find(self.name)
            install = "onnxruntime" if row is None else row.install
            raise EngineUnavailable(
                f"the {self.name} engine needs onnxruntime: pip install '{install}'"
            ) from error
        version = tuple(int(p) for p in onnxruntime.__version__.split(".")[:2])
        if version < self.minimum_version:
            raise EngineUnavailable(
                f"onnxruntime {onnxruntime.__version__} is too old; "
                f"install {'.'.join(map(str, self.minimum_version))} or newer"
            )
        if manifest.format != self.name or manifest.programs.get("layout") != self.layout:
            found = f"{manifest.format}/{manifest.programs.get('layout')}"
            raise UnsupportedBundle(
                f"{folder.path}: programs are {found}; the {self.name} engine runs "
                f"{self.name}/{self.layout}; export the bundle again"
            )
        self._ort, self._folder, self._entries = onnxruntime, folder, manifest.programs.get("entries")
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        # Failures come as exceptions; the runtime's own lines about them would stand beside ours.
        self._options.log_severity_level = _FATAL
        self._run_options = onnxruntime.RunOptions()
        self._run_options.log_severity_level = _FATAL
        self._options.add_session_config_entry("session.load_model_format", "ONNX")
        # The arena keeps what one pass needed for ever; activations are small against the weights that the
        # memory is for.
        self._options.enable_cpu_mem_arena = False
        self._sessions: dict[str, Any] = {}
        #: Of every program its inputs and their types, as ONNX Runtime names them.
        self._wanted: dict[str, dict[str, str]] = {}
        self._scratch: dict[str, np.ndarray] = {}
        _engines.add(self)
        self._unpack_seconds = 0.0
        self._bfloat16 = 16  # onnx.TensorProto.BFLOAT16
        self._uint8 = integer_product.takes_uint8(manifest)

    def memory(self, bundle: Bundle, lengths: Lengths) -> EngineBytes:
        return memory.stored_weights(bundle, lengths, copies=False, uint8=self._uint8)

    def layers(self, program: str, inputs: Sequence[Arrays], weights: Arrays) -> LayersOutput:
        (only,) = inputs
        return _kept(self._run(program, self._entry(program), only, weights))

    def route(self, program: str, inputs: Arrays, weights: Arrays) -> Routing:
        name = program + ".before"
        out = self._run(name, self._part(program, "before"), inputs, weights)
        _check(name, out, _routing(out, inputs["x"].shape))
        return Routing(out["experts.x"], out["experts.index"], out["experts.weight"], out["k"], out["v"], out)

    def expert(self, program: str, x: Floats, weights: Arrays) -> Floats:
        return self._one(f"{program}.expert", self._part(program, "expert"), {"x": x}, weights, x.shape)

    def join(self, program: str, inputs: Arrays, routing: Routing, mixed: Floats, weights: Arrays) -> Floats:
        given = {**inputs, **routing.further, "experts.y": mixed}
        return self._run(program + ".after", self._part(program, "after"), given, weights)["y"]

    def self_condition(self, embedded: Floats, soft: Floats, weights: Arrays) -> Floats:
        inputs = {"embedded": embedded, "soft": soft}
        name = "self_conditioning"
        return self._one(name, self._entry(name), inputs, weights, embedded.shape)

    def final(self, x: Floats, weights: Arrays) -> Floats:
        return self._one("final", self._entry("final"), {"x": x}, weights, x.shape)

    def head_tile(
        self, x: Floats, temperature: float, noise: Floats | None, soft: bool, table: Arrays
    ) -> TilePart:
        name = "head" + ("_sample" if noise is not None else "") + ("_soft" if soft else "")
        inputs = {"x": x, "temperature": np.array([temperature], np.float32)}
        if noise is not None:
            inputs["noise"] = noise
        out = self._run(name, self._entry(name), inputs, table)
        rows = (x.shape[0],)
        sampled = {"score": rows, "sample": rows, "sample_z": rows} if noise is not None else {}
        wanted = {"max": rows, "argmax": rows, "sum_others": rows, "sum_z_others": rows, **sampled}
        _check(name, out, wanted | ({"soft": x.shape} if soft else {}))
        return TilePart(
            out["max"], out["argmax"], out["sum_others"], out["sum_z_others"],
            out.get("score"), out.get("sample"), out.get("sample_z"), out.get("soft"),
        )  # fmt: skip

    def head_logits(self, x: Floats, temperature: float, table: Arrays) -> Floats:
        inputs = {"x": x, "temperature": np.array([temperature], np.float32)}
        out = self._run("head_logits", self._entry("head_logits"), inputs, table)
        _check("head_logits", out, {"z": (x.shape[0], out["z"].shape[-1] if "z" in out else 0)})
        return out["z"]

    def statistics(self) -> dict[str, Any]:
        return {
            "engine": self.name,
            "unpack_seconds": self._unpack_seconds,
            "scratch_bytes": sum(a.nbytes for a in self._scratch.values()),
        }

    def _run(
        self, name: str, entry: dict[str, Any], inputs: Arrays, weights: Arrays
    ) -> dict[str, np.ndarray]:
        session = self._session(name, entry)
        feed: dict[str, Any] = {}
        for wanted, kind in self._wanted[name].items():
            try:
                if wanted.startswith("w."):
                    # The names within a tile of a table are its tensors' alone.
                    own = wanted[2:].removeprefix("table.")
                    feed[wanted] = self._bound(own, weights, np.uint8 if kind == _UINT8 else np.int8)
                else:
                    feed[wanted] = self._value(inputs[wanted])
            except (LookupError, ValueError) as error:
                raise EngineFailed(
                    f"{self._folder.path}: program {name} takes {wanted[:80]!r}, which is not among its "
                    "weights and inputs in that form; export the bundle again"
                ) from error
        try:
            outputs = session.run_with_ort_values(None, feed, self._run_options)
        except Exception as error:
            raise EngineFailed(
                f"{self._folder.path}: onnxruntime failed in program {name}: {one_line(error)}"
            ) from error
        return {n: v.numpy() for n, v in zip(entry["outputs"], outputs, strict=True)}

    def _one(
        self, name: str, entry: dict[str, Any], inputs: Arrays, weights: Arrays, shape: tuple[int, ...]
    ) -> np.ndarray:
        """The only result `y` of a program, of this shape."""
        out = self._run(name, entry, inputs, weights)
        _check(name, out, {"y": shape})
        return out["y"]

    def _entry(self, program: str) -> dict[str, Any]:
        """The manifest's entry of a program. Raises EngineFailed."""
        entry = self._entries.get(program) if isinstance(self._entries, dict) else None
        if not isinstance(entry, dict):
            raise EngineFailed(f"{self._folder.path}: has no program {program}; export the bundle again")
        return entry

    def _part(self, program: str, part: str) -> dict[str, Any]:
        entry = self._entry(program).get(part)
        if not isinstance(entry, dict):
            raise EngineFailed(
                f"{self._folder.path}: has no program {program}.{part}; export the bundle again"
            )
        return entry

    def _value(self, array: np.ndarray) -> Any:
        """An OrtValue over the array's own memory. uint16 is how bfloat16 is held in numpy."""
        array = np.ascontiguousarray(array)
        if array.dtype == np.uint16:
            return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, self._bfloat16)
        return self._ort.OrtValue.ortvalue_from_numpy(array)

    def _bound(self, name: str, weights: Arrays, codes: type[np.int8 | np.uint8]) -> Any:
        """The OrtValue of a weight. Raises LookupError and ValueError where it is not there in that form."""
        return self._value(self._weight(name, weights, codes))

    def _weight(self, name: str, weights: Arrays, codes: type[np.int8 | np.uint8]) -> np.ndarray:
        """A weight as its program takes it: int8 codes as `codes`, which of uint8 are code + 128."""
        stored = weights.get(name)
        if stored is not None and not (stored.dtype == np.int8 and codes is np.uint8):
            return stored
        started = time.perf_counter()
        matrix = name.removesuffix(".codes")
        if stored is not None:
            zero = np.uint8(integer_product.ZERO_POINT)
            out = np.bitwise_xor(stored.view(np.uint8), zero, out=self._room(matrix, stored.shape, codes))
        else:
            packed, groups = weights[matrix + ".packed"], weights[matrix + ".group_scales"]
            shape = (packed.shape[0], groups.shape[1])
            out = unpack_int4(packed, groups, self._room(matrix, shape, codes))
        self._unpack_seconds += time.perf_counter() - started
        return out

    def _room(self, matrix: str, shape: tuple[int, ...], dtype: type[np.int8 | np.uint8]) -> np.ndarray:
        """Scratch for the codes of a matrix, the same at every call."""
        size = math.prod(shape)
        scratch = self._scratch.get(matrix)
        if scratch is None or scratch.size < size:
            scratch = self._scratch[matrix] = np.empty(size, np.int8)
        return scratch[:size].view(dtype).reshape(shape)

    def _create(self, program: bytes) -> Any:
        """A session of ONNX Runtime. Raises what that does."""
        return self._ort.InferenceSession(program, self._options, providers=["CPUExecutionProvider"])

    def _session(self, name: str, entry: dict[str, Any]) -> Any:
        if name not in self._sessions:
            file, outputs = entry.get("file"), entry.get("outputs")
            if self._uint8:
                file = entry.get("file_uint8", file)
            if not isinstance(file, str) or not isinstance(outputs, list):
                raise EngineFailed(
                    f"{self._folder.path}: the manifest gives program {name} no file or no outputs"
                )
            path, program = self._folder.path / file, self._folder.read(file)
            try:
                check_program(program, self.name)
            except Refused as error:
                raise EngineFailed(f"{path}: program {name} {error}; export the bundle again") from None
            try:
                session = self._create(program)
            except Exception as error:
                raise EngineFailed(
                    f"{path}: onnxruntime {self._ort.__version__} cannot load it: {one_line(error)}"
                ) from error
            found = [o.name for o in session.get_outputs()]
            if found != outputs:
                raise EngineFailed(
                    f"{path}: program {name} has the outputs {_names(found)} and the manifest says "
                    f"{_names(outputs)}; export the bundle again"
                )
            self._sessions[name] = session
            self._wanted[name] = {i.name: i.type for i in session.get_inputs()}
        return self._sessions[name]


def _kept(out: Arrays) -> LayersOutput:
    return out["y"], [(out["k"], out["v"])]


def _names(names: list[Any]) -> str:
    shown = ", ".join(str(name)[:40] for name in names[:6])
    return f"{shown}, ..." if len(names) > 6 else shown or "none"


def _routing(out: Arrays, shape: tuple[int, ...]) -> dict[str, tuple[int, ...] | None]:
    """Shapes of what goes to the experts for positions of `shape` [1, T, H]."""
    index = out.get("experts.index")
    chosen = (shape[1], index.shape[-1] if index is not None and index.ndim else 0)
    return {"experts.x": shape[1:], "experts.index": chosen, "experts.weight": chosen, "k": None, "v": None}


def _check(program: str, out: Arrays, shapes: Mapping[str, tuple[int, ...] | None]) -> None:
    """Raise EngineFailed unless `out` has numbers of these shapes (None: the core looks): nothing behind this
    looks again.
    """
    for name, shape in shapes.items():
        if name not in out:
            raise EngineFailed(f"program {program} gives no {name}; export the bundle again")
        if shape is None:
            continue
        if out[name].shape != shape or out[name].dtype.kind not in "fiu":
            raise EngineFailed(
                f"program {program} gives {name} as {out[name].dtype}{list(out[name].shape)} where "
                f"{list(shape)} is expected; export the bundle again"
            )
