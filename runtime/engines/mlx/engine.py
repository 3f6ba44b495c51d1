"""MLX: on the GPU of a Mac, or on a processor. Weights are copied into arrays of MLX's for the call alone,
and every program is evaluated before it returns: nothing refers to the ring afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.manifest import MANIFEST_NAME, Manifest
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines import memory
from edgekit.runtime.engines.base import Arrays, Engine, EngineBytes, LayersOutput, Lengths, Routing, TilePart
from edgekit.runtime.engines.mlx import functions as mlx_functions
from edgekit.runtime.engines.mlx import programs as mlx_programs
from edgekit.runtime.engines.mlx import version as mlx_version
from edgekit.runtime.engines.mlx.functions import Array, ExportedFunction
from edgekit.runtime.engines.mlx.programs import DTYPES, Argument, Function
from edgekit.runtime.errors import EngineFailed, EngineUnavailable, UnsupportedBundle, one_line
from edgekit.runtime.sampling.types import Floats

LAYOUT = "mlx-2"
_INSTALL = "pip install 'edgekit[mlx]'"
#: Sessions of several threads share one stream, which takes the work of one at a time.
_BUSY = threading.Lock()
#: Sizes change with the prefix: more arguments than this are not remembered.
_MOST_REPLAYED = 64
_streams: list[Any] = []


@dataclass
class _Imported:
    """A function as MLX has it, what its file holds, and the arguments that it was replayed for."""

    call: Any
    file: ExportedFunction
    replayed: set[tuple[Array, ...]] = field(default_factory=set)


class MlxEngine(Engine):
    """Runs the programs of an `mlx` bundle on MLX's default device.

    Raises:
        EngineUnavailable: mlx is missing, or a version whose function files edgekit does not know.
        UnsupportedBundle: the bundle's programs are not this engine's, or of another version of MLX.
        MalformedFile: the manifest does not describe all programs that the model needs.

    Its calls raise EngineFailed, and ChecksumMismatch or another BundleError for a function's file that is
    not the one that the manifest describes.
    """

    name = "mlx"

    def __init__(self, folder: BundleFolder, manifest: Manifest, threads: int) -> None:
        """MLX decides about threads itself."""
        try:
            import mlx.core as mx

            version = mlx_version.installed()
        except ImportError as error:
            raise EngineUnavailable(f"the mlx engine needs mlx: {_INSTALL}") from error
        if not mlx_version.reads(version):
            raise EngineUnavailable(
                f"mlx {version} is not one that edgekit knows ({mlx_version.REQUIREMENT}); {_INSTALL}"
            )
        programs = manifest.programs
        if manifest.format != "mlx" or programs.get("layout") != LAYOUT:
            found = f"{manifest.format}/{programs.get('layout')}"
            raise UnsupportedBundle(
                f"{folder.path}: programs are {found}; the mlx engine runs mlx/{LAYOUT}; "
                "export the bundle again"
            )
        _check_version(str(programs.get("mlx")), folder.path)
        self._mx, self._folder = mx, folder
        self._device = "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"
        self._programs = mlx_programs.read(manifest, self._device, str(folder.path / MANIFEST_NAME))
        self._functions: dict[str, _Imported] = {}
        with _BUSY:
            if not _streams:
                # Imported functions run on the first stream that the process made for their device, and an
                # ordinary stream runs in the thread alone that made it.
                _streams.append(mx.new_thread_unsafe_stream(mx.default_device()))

    def memory(self, bundle: Bundle, lengths: Lengths) -> EngineBytes:
        return memory.stored_weights(bundle, lengths, copies=True, uint8=False)

    def layers(self, program: str, inputs: Sequence[Arrays], weights: Arrays) -> LayersOutput:
        (only,) = inputs
        out = self._run(program, only, weights)
        return out["y"], [(out["k"], out["v"])]

    def route(self, program: str, inputs: Arrays, weights: Arrays) -> Routing:
        out = self._run(f"{program}.before", inputs, weights)
        return Routing(out["experts.x"], out["experts.index"], out["experts.weight"], out["k"], out["v"], out)

    def expert(self, program: str, x: Floats, weights: Arrays) -> Floats:
        return self._run(f"{program}.expert", {"x": x}, weights)["y"]

    def join(self, program: str, inputs: Arrays, routing: Routing, mixed: Floats, weights: Arrays) -> Floats:
        given = {**inputs, **routing.further, "experts.y": mixed}
        return self._run(f"{program}.after", given, weights)["y"]

    def self_condition(self, embedded: Floats, soft: Floats, weights: Arrays) -> Floats:
        inputs = {"embedded": embedded, "soft": soft}
        return self._run("self_conditioning", inputs, weights)["y"]

    def final(self, x: Floats, weights: Arrays) -> Floats:
        return self._run("final", {"x": x}, weights)["y"]

    def head_tile(
        self, x: Floats, temperature: float, noise: Floats | None, soft: bool, table: Arrays
    ) -> TilePart:
        name = "head" + ("_sample" if noise is not None else "") + ("_soft" if soft else "")
        inputs = {"x": x, "temperature": np.array([temperature], np.float32)}
        if noise is not None:
            inputs["noise"] = noise
        out = self._run(name, inputs, _table(table))
        return TilePart(
            out["max"], out["argmax"], out["sum_others"], out["sum_z_others"],
            out.get("score"), out.get("sample"), out.get("sample_z"), out.get("soft"),
        )  # fmt: skip

    def head_logits(self, x: Floats, temperature: float, table: Arrays) -> Floats:
        inputs = {"x": x, "temperature": np.array([temperature], np.float32)}
        return self._run("head_logits", inputs, _table(table))["z"]

    def statistics(self) -> dict[str, Any]:
        held = int(self._mx.get_cache_memory())
        return {"engine": self.name, "device": self._device, "scratch_bytes": held}

    def _run(self, name: str, inputs: Arrays, weights: Arrays) -> dict[str, np.ndarray]:
        mx, program = self._mx, self._programs[name]
        function = self._function(program)
        lengths: dict[str, int] = {}
        arrays = [_matching(name, wanted, inputs, weights, lengths) for wanted in program.inputs]
        self._replay(program, function, arrays, lengths)
        arguments = [self._argument(w, array) for w, array in zip(program.inputs, arrays, strict=True)]
        del arrays
        try:
            with _BUSY:
                outputs = function.call(*arguments)
                del arguments
                mx.eval(outputs)
        except Exception as error:  # whatever its C++ throws
            reason = one_line(error)
            if "There is no Stream" in reason:
                reason += (
                    "; mlx was in use before the session was opened: open it first, or use it in that thread"
                )
            raise EngineFailed(f"mlx failed in program {name}: {reason}") from error
        results = {
            o.name: np.array(array, DTYPES[o.dtype])
            for o, array in zip(program.outputs, outputs, strict=True)
        }
        del outputs
        # What MLX keeps of freed arrays would come on top of the budget.
        mx.clear_cache()
        return results

    def _argument(self, wanted: Argument, array: np.ndarray) -> Any:
        """An array of MLX's own."""
        made = self._mx.array(array)
        return made.view(self._mx.bfloat16) if wanted.dtype == "BF16" else made

    def _replay(
        self, program: Function, function: _Imported, arrays: list[np.ndarray], lengths: dict[str, int]
    ) -> None:
        """MLX computes what a file says on trust: what it makes of these arguments is followed before."""
        arguments = tuple(
            Array.of_integers(w.dtype, array) if w.dtype == "I64" else Array(array.shape, w.dtype)
            for w, array in zip(program.inputs, arrays, strict=True)
        )
        if arguments in function.replayed:
            return
        path = self._folder.path / program.file
        made = mlx_functions.replay(function.file, arguments, str(path))
        given = [(a.dtype, a.shape) for a in made]
        declared = [
            (o.dtype, _sizes(o, lengths, a.shape)) for o, a in zip(program.outputs, made, strict=False)
        ]
        if len(made) != len(program.outputs) or given != declared:
            raise EngineFailed(
                f"{path}: gives {_some(made)}, the manifest declares {_some(program.outputs)}; "
                "export the bundle again"
            )
        if len(function.replayed) == _MOST_REPLAYED:
            function.replayed.clear()
        function.replayed.add(arguments)

    def _function(self, program: Function) -> _Imported:
        if program.name not in self._functions:
            path = self._folder.path / program.file
            data = self._folder.read(program.file)
            _check_version(mlx_functions.version(data, str(path)), path)
            file = mlx_functions.parse(data, str(path))
            if file.device != self._device:
                raise EngineFailed(
                    f"{path}: is for the {file.device}, not the {self._device}; export the bundle again"
                )
            try:
                self._functions[program.name] = _Imported(self._mx.import_function(str(path)), file)
            except Exception as error:  # whatever its C++ throws
                raise EngineFailed(f"{path}: mlx cannot load it: {one_line(error)}") from error
        return self._functions[program.name]


def _matching(
    name: str, wanted: Argument, inputs: Arrays, weights: Arrays, lengths: dict[str, int]
) -> np.ndarray:
    """The array for an argument, of its type and sizes; `lengths` collects those that have names."""
    label, dtype = wanted.name, wanted.dtype
    source, key = (weights, label[2:]) if label.startswith("w.") else (inputs, label)
    if key not in source:
        raise EngineFailed(
            f"program {name} takes {key}, which its run does not hold; export the bundle again"
        )
    array = np.asarray(source[key])
    if array.dtype != DTYPES[dtype] or array.shape != _sizes(wanted, lengths, array.shape):
        raise EngineFailed(
            f"program {name} takes {key} as {dtype} {list(wanted.shape)}, not as {array.dtype} "
            f"{list(array.shape)}; export the bundle again"
        )
    return array


def _sizes(wanted: Argument, lengths: dict[str, int], have: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of an argument; a length that has no size yet takes it from what is there."""
    sizes = zip_longest(wanted.shape, have, fillvalue=0)
    return tuple(lengths.setdefault(n, size) if isinstance(n, str) else n for n, size in sizes)[
        : len(wanted.shape)
    ]


def _some(arrays: Sequence[Array] | Sequence[Argument]) -> str:
    listed = [f"{a.dtype} {list(a.shape)[:8]}" for a in arrays[:4]]
    return ", ".join(listed) + (f" and {len(arrays) - 4} more" if len(arrays) > 4 else "")


def _check_version(version: str, where: Path) -> None:
    """Before MLX sees the files: it fails in ways that do not name the cause."""
    if not mlx_version.reads(version):
        raise UnsupportedBundle(
            f"{where}: its functions were written by mlx {version}, whose files "
            f"{mlx_version.REQUIREMENT} does not read; export the bundle again"
        )


def _table(table: Arrays) -> dict[str, np.ndarray]:
    return {"table." + name: value for name, value in table.items()}
