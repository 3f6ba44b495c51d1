"""A model being run: engine, streamed weights, prefix KV and vocabulary head behind the denoiser interface
of the sampling loops.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.flashload.owner_process import OwnerProcess
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle, Layer
from edgekit.runtime.engines.base import Engine, Executor
from edgekit.runtime.engines.packages import PackageEngine
from edgekit.runtime.head import HeadState
from edgekit.runtime.memory import check_machine, needs, residency
from edgekit.runtime.package_cache import PackageCache
from edgekit.runtime.prefix import EncodedIds, PrefixKV
from edgekit.runtime.process import MOST_THREADS, peak_bytes, usable_cores
from edgekit.runtime.sampling.options import check_int
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids
from edgekit.runtime.weights import WeightStore

if TYPE_CHECKING:
    from edgekit.runtime.native_session import NativeSession

#: Positions per prefill pass for models without a canvas length of their own.
PREFILL_POSITIONS = 256
#: The additive mask value that hides a key.
MASKED = np.float32(-1e30)
DENOISE, PREFILL, HEAD = "denoise", "prefill", "head"
#: The `phase` input of layer programs, see `edgekit.export.models.base`.
_PHASES = {DENOISE: np.array([0], np.int64), PREFILL: np.array([1], np.int64)}


@dataclass(frozen=True)
class SessionOptions:
    """`memory_bytes` bounds the whole process (None: everything resident, which the machine must have memory
    for); `resident_bytes` caps the pinned weights further.

    `positions` and `canvas` are the largest prefix and pass that the budget must hold; threads 0 takes
    every usable core. Raises InvalidOption for a number of threads that no engine takes.
    """

    memory_bytes: int | None = None
    resident_bytes: int | None = None
    positions: int = 2048
    canvas: int = 256
    threads: int = 0

    def __post_init__(self) -> None:
        if self.threads != 0:
            check_int("threads", self.threads, 1, MOST_THREADS)


class Session:
    """Implements `sampling.Denoiser` and `sampling.Projector`. Not for use by several threads at once.
    In a child of fork its calls raise InvalidRequest: the threads that do the work stay in the parent.

    Raises:
        EdgekitError: the bundle is damaged, its engine is not available, or the budget is too small.
    """

    def __init__(
        self, path: str | Path, options: SessionOptions | None = None, executor: Executor | None = None
    ) -> None:
        """`executor` runs a bundle's packages in place of the format's own, for checks."""
        self._process = OwnerProcess()
        self.options = options or SessionOptions()
        self.bundle = Bundle.open(path)
        model = self.model = self.bundle.model
        packaged: PackageEngine | None = None
        if self.bundle.packages is not None:
            packaged = engines.create_for_packages(self.bundle, executor)
        self._engine: Engine = packaged or engines.create(self.bundle, self.options.threads or usable_cores())
        self._file = self.bundle.open_weights()
        try:
            self.needs = needs(self.bundle, self._file, self.options.positions, self.options.canvas)
            self.plan = residency(
                self.bundle, self._file, self.needs, self.options.memory_bytes, self.options.resident_bytes
            )
            if self.options.memory_bytes is None:
                check_machine(self.bundle, self._file, self.needs, self.plan.footprint_bytes)
            firsts = [model.layers[chunk[0]] for chunk in model.chunks]
            layers = [r for layer in firsts for r in (layer.run, *layer.experts)]
            head = list((model.head or model.embedding).runs)
            before = ["self_conditioning"] if model.self_conditioning else []
            passes = {DENOISE: [*before, *layers, "final", *head], PREFILL: layers, HEAD: head}
            self._weights: WeightStore | PackageCache
            if packaged is None:
                self._weights = WeightStore(self._file, self.plan, passes)
            else:
                self._weights = PackageCache(self._file, self.plan, passes, packaged.open)
        except BaseException:
            self._file.close()
            raise
        self._prefix = PrefixKV([(x.kv_heads, x.head_dim, x.window) for x in model.layers])
        self._ropes = {name: np.array(f, np.float32) for name, f in model.ropes.items()}
        self.encoded = EncodedIds()
        self.uncached: Ids = np.empty(0, np.int64)
        self._last: Floats | None = None
        self._pass_seconds = 0.0

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def prefix_length(self) -> int:
        return self._prefix.length

    @property
    def hidden_size(self) -> int:
        """Width of a soft embedding."""
        return self.model.hidden_size

    @property
    def pieces(self) -> list[Ids]:
        """The token ids behind the prefix, in the pieces in which they were encoded."""
        return self.encoded.calls

    def reset(self) -> None:
        """Forget the prefix, and what is uncached."""
        self._check_process()
        self._prefix.clear()
        self.encoded.calls.clear()
        self.uncached = np.empty(0, np.int64)

    def prefill(self, ids: Ids) -> None:
        """Encode ids [T] causally, in chunks of the canvas's length, and keep their keys and values."""
        chunk = self.model.canvas_length or PREFILL_POSITIONS
        self._check_lengths(min(chunk, len(ids)), self.prefix_length + len(ids))
        try:
            for start in range(0, len(ids), chunk):
                part = ids[start : start + chunk]
                more = start + chunk < len(ids)
                with self._pass(PREFILL, PREFILL if more else DENOISE):
                    self._layers(self._embed(part), PREFILL)
                    self._prefix.advance(len(part))
        finally:
            self.encoded.prefilled(ids, self.prefix_length)

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        """One bidirectional pass of ids [T] over [prefix KV ; canvas], and the head on the requested rows."""
        self._check_lengths(len(ids), self.prefix_length)
        with self._pass(DENOISE, DENOISE):
            x = self._embed(ids)
            if self.model.self_conditioning:
                scale = np.float32(self.model.embedding_scale)
                earlier = np.zeros_like(x) if soft is None else (soft * scale)[None]
                with self._weights.use("self_conditioning") as weights:
                    x = self._engine.self_condition(x, earlier, weights)
            x = self._layers(x, DENOISE)
            with self._weights.use("final") as weights:
                self._last = self._engine.final(x, weights)[0]
            return self._head(request)

    def project(self, request: HeadRequest) -> HeadOutput:
        """The vocabulary head once more on the hidden states of the last `denoise`."""
        with self._pass(HEAD, DENOISE):
            return self._head(request)

    @contextmanager
    def _pass(self, kind: str, then: str) -> Iterator[None]:
        """Time a pass and have its weights read ahead. One that fails leaves no half-read schedule, and a
        prefill no half-filled prefix: the prefix is forgotten then.
        """
        self._check_process()
        started = time.perf_counter()
        self._weights.begin(kind, then)
        try:
            yield
        except BaseException:
            self._weights.idle()
            if kind == PREFILL:
                self._prefix.clear()
            raise
        finally:
            self._pass_seconds += time.perf_counter() - started

    def idle(self) -> None:
        """Tell that no pass follows soon: stops reading ahead."""
        self._check_process()
        self._weights.idle()

    def statistics(self) -> dict[str, Any]:
        """I/O and compute of this session so far; seconds and bytes. See also `sampling.Stats`."""
        self._check_process()
        stats = self._weights.statistics() | self._engine.statistics()
        return stats | {
            "pass_seconds": self._pass_seconds,
            "compute_seconds": self._pass_seconds - stats["io_wait_seconds"],
            "process_bytes": self.needs.process,
            "peak_bytes": peak_bytes(),
            "memory_bytes": self.options.memory_bytes,
        }

    def close(self) -> None:
        """Release memory and files; in a child of fork, which has no part in them, nothing."""
        if not self._process.here:
            return
        try:
            self._weights.close()
        finally:
            self._file.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_process(self) -> None:
        self._process.check(f"{self.bundle.path}: the session")

    def _check_lengths(self, count: int, committed: int) -> None:
        """Without a budget memory grows with passes, up to what the machine has. Raises BudgetExceeded."""
        o = self.options
        if o.memory_bytes is not None or (count <= o.canvas and committed <= o.positions):
            return
        longer = needs(self.bundle, self._file, max(o.positions, committed), max(o.canvas, count))
        own = replace(longer, process=self.needs.process)
        check_machine(self.bundle, self._file, own, self.plan.footprint_bytes)

    def _embed(self, ids: Ids) -> Floats:
        """Scaled embeddings [1, T, H]."""
        table, ids = self.model.embedding, np.asarray(ids, np.int64)
        out = np.empty((1, len(ids), self.model.hidden_size), np.float32)
        for run, start, stop in table.spans():
            here = np.nonzero((ids >= start) & (ids < stop))[0]
            if here.size:
                out[0, here] = self._weights.table_rows(run, ids[here] - start)
        return out * np.float32(self.model.embedding_scale)

    def _layers(self, x: Floats, phase: str) -> Floats:
        length = x.shape[1]
        positions = np.arange(self._prefix.length, self._prefix.length + length)
        tables = {}
        for name, frequency in self._ropes.items():
            angle = positions.astype(np.float32)[:, None] * frequency
            tables[name] = (np.cos(angle), np.sin(angle))
        for chunk in self.model.chunks:
            first = self.model.layers[chunk[0]]
            inputs = [self._layer_inputs(i, positions, tables, phase) for i in chunk]
            inputs[0]["x"] = x
            with self._weights.use(first.run) as weights:
                x, kept = self._engine.layers(first.program, inputs, weights, self._experts(first))
            if phase == PREFILL:
                for i, (k, v) in zip(chunk, kept, strict=True):
                    self._prefix.append(i, k, v)
        return x

    def _layer_inputs(
        self, i: int, positions: Ids, tables: dict[str, tuple[Floats, Floats]], phase: str
    ) -> dict[str, np.ndarray]:
        """The inputs of layer i but x."""
        layer = self.model.layers[i]
        keys, values, first = self._prefix.view(i)
        cos, sin = tables[layer.rope]
        return {
            "prefix_k": keys,
            "prefix_v": values,
            "cos": cos,
            "sin": sin,
            "mask": pass_mask(positions, first, layer.window, phase),
            "phase": _PHASES[phase],
        }

    def _experts(self, layer: Layer) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Resident experts first: they compute while the others are read."""
        pinned = [e for e, run in enumerate(layer.experts) if self._weights.is_pinned(run)]
        streamed = [e for e, run in enumerate(layer.experts) if not self._weights.is_pinned(run)]
        for e in (*pinned, *streamed):
            with self._weights.use(layer.experts[e]) as weights:
                yield e, weights

    def _head(self, request: HeadRequest) -> HeadOutput:
        assert self._last is not None, "project() needs a denoise() before it"
        x = self._last if request.rows is None else self._last[np.asarray(request.rows, np.int64)]
        x = np.ascontiguousarray(x)
        state = HeadState(x.shape[0], self.model.hidden_size, request, self.vocab_size)
        temperature = np.float32(request.temperature)
        for run, start, stop in (self.model.head or self.model.embedding).spans():
            noise = None
            if request.gumbel is not None:
                noise = request.gumbel(start, stop) * np.float32(request.gumbel_scale)
            with self._weights.use(run) as table:
                state.add(start, self._engine.head_tile(x, float(temperature), noise, request.soft, table))
                if request.logits or request.top_k:
                    state.add_logits(start, self._engine.head_logits(x, float(temperature), table))
        return state.result()


def open_session(
    path: str | Path,
    options: SessionOptions | None = None,
    engine: str | None = None,
    executor: Executor | None = None,
) -> Session | NativeSession:
    """The session for a bundle's format: the native core's, or the shared one over an engine. Of a set it is
    the bundle that `engine` or this system runs.

    `engine` insists on one by name ("native", "onnx", "mlx", "coreml", "coreai"); `executor` is as in
    `Session`. Raises what `Bundle.open` and the sessions raise.
    """
    bundle = Bundle.open(path, engine)
    if bundle.manifest.programs.get("format") == "native":
        from edgekit.runtime.native_session import NativeSession

        return NativeSession(bundle.path, options)
    return Session(bundle.path, options, executor)


def pass_mask(positions: Ids, first: int, window: int | None, phase: str) -> Floats:
    """Additive mask [T, P' + T] over kept prefix and own positions; keys count from absolute position
    `first`.

    A canvas sees all of what is kept: a layer with a window keeps window - 1 positions.
    """
    keys = np.arange(first, positions[-1] + 1)
    if phase == DENOISE:
        return np.zeros((len(positions), len(keys)), np.float32)
    distance = positions[:, None] - keys
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return np.where(hidden, MASKED, np.float32(0))
