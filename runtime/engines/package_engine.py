"""Runs the packages of a bundle: chooses functions by length, pads what goes in, cuts what comes out.

Functions have fixed sizes. Rows and prefix are padded to the smallest function that they fit; the mask hides
the padding, and what comes out for padded rows is dropped. See `edgekit.runtime.bundle.packages` for what
functions take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.packages import TOKENS, Function, Package, Port
from edgekit.runtime.engines import memory
from edgekit.runtime.engines.base import (
    Arrays,
    Engine,
    EngineBytes,
    Executor,
    LayersOutput,
    Lengths,
    OpenModel,
    TilePart,
)
from edgekit.runtime.errors import EngineFailed, PromptTooLong, UnsupportedBundle
from edgekit.runtime.sampling.types import Floats

#: The additive mask value that hides a key: within float16, and as good as minus infinity for scores there.
MASKED = np.float32(-3e4)


class OpenedPackage:
    """A package of the bundle, open: what the engine gets in place of weights."""

    def __init__(self, entry: Package, model: OpenModel) -> None:
        self.entry, self._model = entry, model
        self.called: dict[str, None] = {}  # the functions called so far, in order

    def run(self, function: Function, arrays: Arrays) -> dict[str, np.ndarray]:
        """Run a function on float32 or integer arrays by role, each at most as large as declared; the rest
        is filled with zeros. Returns float32 and int64 arrays by role.

        Raises:
            EngineFailed: the executor failed, or gave something else than the manifest declares.
        """
        self.called[function.name] = None
        feed = {port.name: _padded(arrays[role], port) for role, port in function.inputs.items()}
        outputs = self._model.call(function.name, feed)
        return {
            role: _checked(outputs, port, f"{self.entry.path}: function {function.name}")
            for role, port in function.outputs.items()
        }

    def close(self) -> None:
        self._model.close()

    def __enter__(self) -> OpenedPackage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PackageEngine(Engine):
    """The engine for bundles whose weights lie in packages, over an executor.

    Raises:
        UnsupportedBundle: the bundle's weights do not lie in packages.
    """

    def __init__(self, bundle: Bundle, executor: Executor) -> None:
        if bundle.packages is None:
            found = bundle.manifest.format
            raise UnsupportedBundle(f"{bundle.path}: format {found} has no packages for {executor.name}")
        self.name = executor.name
        self._folder, self._packages, self._executor = bundle.path, bundle.packages, executor
        self._files, self._verified = bundle.folder, set[str]()
        self._layers = {
            bundle.model.layers[chunk[0]].run: tuple(bundle.model.layers[i] for i in chunk)
            for chunk in bundle.model.chunks
        }
        self._called: dict[str, tuple[str, ...]] = {}
        self._calls = 0

    def open(self, name: str) -> OpenedPackage:
        """Open a package; the functions called when it was last open are made ready. Its files are compared
        with their checksums the first time: systems end the process over a file that they cannot parse.

        Raises:
            EngineFailed: the executor cannot open it. BundleError: a file is missing or damaged.
        """
        entry = self._packages[name]
        if name not in self._verified:
            for file in entry.files:
                self._files.check(file)
            self._verified.add(name)
        return OpenedPackage(
            entry, self._executor.open(Path(self._folder, entry.path), self._called.get(name, ()))
        )

    def memory(self, bundle: Bundle, lengths: Lengths) -> EngineBytes:
        return memory.packages(bundle.model, self._packages, lengths)

    def layers(self, program: str, inputs: Sequence[Arrays], weights: OpenedPackage) -> LayersOutput:
        kept = [i["prefix_k"].shape[2] for i in inputs]
        function = self._fitting(weights.entry, inputs[0]["x"].shape[1], kept)
        return self.call(weights, function, inputs)

    def call(self, weights: OpenedPackage, function: Function, inputs: Sequence[Arrays]) -> LayersOutput:
        """`layers` by a function that they fit. Raises EngineFailed."""
        length = inputs[0]["x"].shape[1]
        arrays = {name: inputs[0][name] for name in ("x", "phase", "adapter") if name in inputs[0]}
        for slot, (layer, own, prefix) in enumerate(
            zip(self._layers[weights.entry.name], inputs, function.prefixes, strict=True)
        ):
            arrays[f"prefix_k.{slot}"], arrays[f"prefix_v.{slot}"] = own["prefix_k"], own["prefix_v"]
            tables = (name for name in ("cos", "sin", "query_scale") if name in own)
            arrays |= {f"{name}.{layer.rope}": own[name] for name in tables}
            mask = f"mask.{'full' if layer.window is None else layer.window}"
            if mask not in arrays:
                arrays[mask] = padded_mask(own["mask"], own["prefix_k"].shape[2], prefix, function.t)
        out = self._run(weights, function, arrays)
        kv = [
            (out[f"k.{slot}"][:, :, :length], out[f"v.{slot}"][:, :, :length]) for slot in range(len(inputs))
        ]
        return out["y"][:, :length], kv

    def self_condition(self, embedded: Floats, soft: Floats, weights: OpenedPackage) -> Floats:
        function = self._fitting(weights.entry, embedded.shape[1])
        out = self._run(weights, function, {"embedded": embedded, "soft": soft})
        return out["y"][:, : embedded.shape[1]]

    def final(self, x: Floats, weights: OpenedPackage) -> Floats:
        function = self._fitting(weights.entry, x.shape[1])
        return self._run(weights, function, {"x": x})["y"][:, : x.shape[1]]

    def head_tile(
        self, x: Floats, temperature: float, noise: Floats | None, soft: bool, table: OpenedPackage
    ) -> TilePart:
        function = self._fitting(table.entry, len(x), head=(noise is not None, soft, False))
        arrays = {"x": x, "temperature": np.array([temperature], np.float32)}
        if noise is not None:
            arrays["noise"] = noise
        out = {role: array[: len(x)] for role, array in self._run(table, function, arrays).items()}
        return TilePart(
            out["max"], out["argmax"], out["sum_others"], out["sum_z_others"],
            out.get("score"), out.get("sample"), out.get("sample_z"), out.get("soft"),
        )  # fmt: skip

    def head_logits(self, x: Floats, temperature: float, table: OpenedPackage) -> Floats:
        function = self._fitting(table.entry, len(x), head=(False, False, True))
        arrays = {"x": x, "temperature": np.array([temperature], np.float32)}
        return self._run(table, function, arrays)["z"][: len(x)]

    def statistics(self) -> dict[str, Any]:
        return {"engine": self.name, "scratch_bytes": 0, "calls": self._calls}

    def _run(self, package: OpenedPackage, function: Function, arrays: Arrays) -> dict[str, np.ndarray]:
        out = package.run(function, arrays)
        self._calls += 1
        self._called[package.entry.name] = tuple(package.called)
        return out

    def _fitting(
        self,
        entry: Package,
        length: int,
        kept: Sequence[int] = (),
        head: tuple[bool, bool, bool] | None = None,
    ) -> Function:
        """The smallest function for `length` rows and prefixes of `kept` positions; of the head, the one that
        samples, gives soft embeddings or gives logits as `head` says.

        Raises:
            PromptTooLong: there is none so large. UnsupportedBundle: the head has no such function.
        """
        offered = [
            f
            for f in entry.functions
            if head is None or head == (f.samples, "soft" in f.outputs, "z" in f.outputs)
        ]
        if not offered:
            wanted = "head" + "".join(
                "_" + name for name, on in zip(("sample", "soft", "logits"), head or (), strict=False) if on
            )
            raise UnsupportedBundle(
                f"{self._folder}: package {entry.name} has no function {wanted}; export the bundle again"
            )
        fitting = [
            f
            for f in offered
            if f.t >= length and all(p >= k for p, k in zip(f.prefixes, kept, strict=False))
        ]
        if not fitting:
            behind = f" after a prefix of {max(kept)}" if kept else ""
            raise PromptTooLong(
                f"{self._folder}: {length} positions{behind} are more than "
                f"package {entry.name} was exported for; {exported_for(self._packages.lengths())}"
            )
        return min(fitting, key=lambda f: (f.t, f.p))


def exported_for(lengths: Sequence[tuple[int, int]]) -> str:
    """Describe the lengths that a bundle has programs for, and what to do when they are too short."""
    most = ", ".join(f"{t} after {p}" if p else str(t) for t, p in lengths[-1:])
    return f"its programs take at most {most} positions: shorten the text or export with longer --lengths"


def padded_mask(mask: Floats, kept: int, prefix: int, length: int) -> Floats:
    """The additive mask [T, kept + T] for `length` rows over `prefix` + `length` keys.

    Hidden keys get MASKED. Padded rows see what the last row sees: a row that sees nothing would be an
    average of everything, whatever lies there.
    """
    rows, own = len(mask), mask.shape[1] - kept
    out = np.full((length, prefix + length), MASKED, np.float32)
    out[:rows, :kept] = mask[:, :kept]
    out[:rows, prefix : prefix + own] = mask[:, kept:]
    out[rows:] = out[rows - 1]
    return np.maximum(out, MASKED, out=out)


def _padded(array: np.ndarray, port: Port) -> np.ndarray:
    """The array at the start of one of zeros, of the port's type and shape; of an engine's input a copy.
    Core ML's bindings take no array that is read-only, and Core ML may hold one for longer than the call.
    """
    if array.shape == port.shape:
        with np.errstate(over="ignore"):  # becomes infinity, which the sampling loops report
            return np.require(array, port.dtype, ("C", "W"))
    if array.ndim != len(port.shape) or any(a > b for a, b in zip(array.shape, port.shape, strict=True)):
        raise EngineFailed(
            f"input {port.role} has shape {list(array.shape)}, the program takes {list(port.shape)}"
        )
    out = np.zeros(port.shape, port.dtype)
    with np.errstate(over="ignore"):
        out[tuple(slice(0, size) for size in array.shape)] = array
    return out


def _checked(outputs: Mapping[str, np.ndarray], port: Port, at: str) -> np.ndarray:
    """An output as the session computes with it."""
    array = outputs.get(port.name)
    if array is None or tuple(array.shape) != port.shape:
        found = "nothing" if array is None else f"shape {list(array.shape)}"
        raise EngineFailed(
            f"{at} gives {found} for output {port.name}, the manifest says {list(port.shape)}; "
            "copy or export the bundle again"
        )
    return np.asarray(array, np.int64 if port.role in TOKENS else np.float32)
