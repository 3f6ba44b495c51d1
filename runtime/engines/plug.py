"""Makes an engine in Python one of the core's: the functions of `ek_engine` in `edgekit.h` over an `Engine`.

The core calls on the thread that called it. What a function raises cannot cross it: it is kept here, the call
fails, and whoever made it raises the same exception again.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from edgekit.runtime.bundle import Bundle
from edgekit.runtime.core_structs import (
    ENGINE_FUNCTION_TYPES,
    AttentionStruct,
    EngineBytesStruct,
    EngineStruct,
    LayersCallStruct,
    SegmentStruct,
    TileCallStruct,
    WeightsStruct,
)
from edgekit.runtime.engines.base import Arrays, Engine, LayersOutput, Lengths, Opened, Routing
from edgekit.runtime.engines.mixture import Mixture
from edgekit.runtime.engines.stored import StoredWeights, array, heads
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.sampling.noise import PhiloxGumbel
from edgekit.runtime.sampling.types import Floats

_DONE = 1  # EK_ENGINE_DONE
_PHASES = np.array([0], np.int64), np.array([1], np.int64)  # canvas, text: `phase` of layer programs
_PACKAGES = "open_begin", "open_finish", "close_unit"


class EnginePlug:
    """The table of an engine, `struct`, and what it needs while a session uses it."""

    def __init__(self, engine: Engine, bundle: Bundle) -> None:
        self.engine, self._bundle, self._model = engine, bundle, bundle.model
        self._stored = StoredWeights()
        self._opened: dict[str, Opened] = {}
        self._opening: dict[str, Future[tuple[Opened, float]]] = {}
        self._worker: ThreadPoolExecutor | None = None
        self._error: BaseException | None = None
        self._closing: BaseException | None = None  # of a package, which the core tells in its next call
        # Of the layer with experts that is under way, by segment.
        self._inputs: list[Arrays] = []
        self._routed: list[Routing] = []
        self._mixture: Mixture | None = None
        self._name = engine.name.encode()
        functions: dict[str, Any] = {
            name: kind(self._guarded(getattr(self, f"_{name}")))
            for name, kind in ENGINE_FUNCTION_TYPES.items()
            if name not in _PACKAGES or bundle.packages is not None
        }
        self.struct = EngineStruct(name=self._name, **functions)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Around a call into the core: raises what a function of the engine has raised within it."""
        self._error = None
        # A signal that arrives while the core computes is raised where Python goes on, which may be at the
        # entry of a function of the table, before anything there can catch it.
        before = sys.unraisablehook
        if threading.current_thread() is threading.main_thread():
            sys.unraisablehook = lambda told: self._keep(told.exc_value) if told.exc_value else before(told)
        try:
            yield
        except Exception:
            error = self._error or self._closing
            self._error = self._closing = None
            if error is not None:
                raise error from None
            raise
        finally:
            sys.unraisablehook = before
            self._inputs, self._routed, self._mixture = [], [], None

    def close(self) -> None:
        """End the worker, once the session has closed the packages. Raises what closing one has raised."""
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None
        error, self._closing = self._closing, None
        if error is not None:
            raise error

    def _guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        def call(user: object, *arguments: Any) -> int:
            try:
                function(*arguments)
                return _DONE
            except BaseException as error:
                self._keep(error)
                return 0

        return call

    def _keep(self, error: BaseException) -> None:
        """The first one is what went wrong; one that ends the program is more."""
        if self._error is None or not isinstance(error, Exception):
            self._error = error

    def _get_bytes(self, rows: int, kept: int, sequences: int, head_rows: int, out: Any) -> None:
        found = self.engine.memory(self._bundle, Lengths(rows, kept, sequences, head_rows))
        made: EngineBytesStruct = out.contents
        made.activations, made.scratch = found.activations, found.scratch
        made.head, made.allowance = found.head, found.allowance

    def _layers(self, given: Any) -> None:
        call: LayersCallStruct = given.contents
        weights, x = self._weights(call.weights), self._rows(call)
        for segment, inputs in self._segments(call, x):
            self._put(call, segment, x, self.engine.layers(call.program.decode(), inputs, weights))

    def _route(self, given: Any, counts: Any) -> None:
        call: LayersCallStruct = given.contents
        weights, x = self._weights(call.weights), self._rows(call)
        program, self._inputs, self._routed = call.program.decode(), [], []
        for _, (inputs,) in self._segments(call, x):
            self._inputs.append(inputs)
            self._routed.append(self.engine.route(program, inputs, weights))
        self._mixture = Mixture(
            np.concatenate([routed.x for routed in self._routed]),
            np.concatenate([routed.index for routed in self._routed]),
            np.concatenate([routed.weight for routed in self._routed]),
            call.experts,
        )
        out = array(ctypes.addressof(counts.contents), (call.experts,), np.int64)
        out[...] = self._mixture.counts

    def _expert(self, given: Any, expert: int, loaded: Any) -> None:
        assert self._mixture is not None, "experts come behind a route"
        program, weights = given.contents.program.decode(), self._weights(loaded)
        self._mixture.add(expert, lambda x: self.engine.expert(program, x, weights))

    def _join(self, given: Any) -> None:
        assert self._mixture is not None, "join comes behind a route"
        call: LayersCallStruct = given.contents
        weights, x, mixed = self._weights(call.weights), self._rows(call), self._mixture.total()
        parts = zip(call.segments[: call.segment_count], self._inputs, self._routed, strict=True)
        for segment, inputs, routed in parts:
            own = mixed[segment.first_row : segment.first_row + segment.count]
            program = call.program.decode()
            self._put(call, segment, x, self.engine.join(program, inputs, routed, own, weights))

    def _self_condition(self, loaded: Any, rows: int, x: int, soft: int) -> None:
        shape = (1, rows, self._model.hidden_size)
        embedded = array(x, shape)
        made = self.engine.self_condition(embedded, array(soft, shape), self._weights(loaded))
        embedded[...] = _shaped("self_conditioning", "y", made, shape)

    def _final(self, loaded: Any, rows: int, x: int) -> None:
        shape = (1, rows, self._model.hidden_size)
        own = array(x, shape)
        own[...] = _shaped("final", "y", self.engine.final(own, self._weights(loaded)), shape)

    def _tile(self, given: Any) -> None:
        call: TileCallStruct = given.contents
        x, rows = array(call.x, (call.rows, call.hidden_size)), (call.rows,)
        table, noise = self._weights(call.weights), None
        if call.gumbel:
            draw = PhiloxGumbel(call.seed, call.draw, call.rows, self._model.vocab_size)
            noise = draw(call.first_token, call.first_token + call.tokens) * np.float32(call.gumbel_scale)
        part = self.engine.head_tile(x, call.temperature, noise, call.soft is not None, table)
        results: list[tuple[str, int | None, Any, tuple[int, ...], Any]] = [
            ("max", call.largest, part.top, rows, np.float32),
            ("argmax", call.argmax, part.arg, rows, np.int64),
            ("sum_others", call.sum_others, part.sum_others, rows, np.float32),
            ("sum_z_others", call.sum_z_others, part.sum_z_others, rows, np.float32),
            ("score", call.score, part.score, rows, np.float32),
            ("sample", call.sample, part.sample, rows, np.int64),
            ("sample_z", call.sample_z, part.sample_z, rows, np.float32),
            ("soft", call.soft, part.soft, x.shape, np.float32),
        ]
        if call.z is not None:
            z = self.engine.head_logits(x, call.temperature, table)
            results.append(("z", call.z, z, (call.rows, call.tokens), np.float32))
        for name, address, found, shape, dtype in results:
            if address is not None:
                array(address, shape, dtype)[...] = _shaped("head", name, found, shape)

    def _open_begin(self, unit: bytes) -> None:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "edgekit-packages")
        name = unit.decode()
        self._opening[name] = self._worker.submit(self._open, name)

    def _open_finish(self, unit: bytes, seconds: Any) -> None:
        name = unit.decode()
        self._opened[name], seconds[0] = self._opening.pop(name).result()

    def _close_unit(self, unit: bytes) -> None:
        try:
            self._opened.pop(unit.decode()).close()
        except BaseException as error:
            self._closing = self._closing or error
            raise

    def _open(self, name: str) -> tuple[Opened, float]:
        started = time.perf_counter()
        opened: Opened = self.engine.open(name)
        return opened, time.perf_counter() - started

    def _weights(self, given: Any) -> Any:
        """The weights as the engine takes them."""
        weights: WeightsStruct = given.contents
        return self._opened[weights.unit.decode()] if weights.data is None else self._stored.views(weights)

    def _rows(self, call: LayersCallStruct) -> Floats:
        return array(call.x, (1, call.rows, call.hidden_size))

    def _segments(
        self, call: LayersCallStruct, x: Floats
    ) -> Iterator[tuple[SegmentStruct, list[dict[str, np.ndarray]]]]:
        """Every segment with the inputs of its layers."""
        for segment in call.segments[: call.segment_count]:
            inputs = [_inputs(segment, layer) for layer in segment.layers[: call.layer_count]]
            inputs[0]["x"] = x[:, segment.first_row : segment.first_row + segment.count]
            yield segment, inputs

    def _put(self, call: LayersCallStruct, segment: SegmentStruct, x: Floats, made: LayersOutput) -> None:
        """Results of a segment's layers to where the core wants them."""
        y, kept = made
        own = x[:, segment.first_row : segment.first_row + segment.count]
        own[...] = _shaped(call.program.decode(), "y", y, own.shape)
        for layer, pair in zip(segment.layers[: call.layer_count], kept, strict=True):
            for name, found in zip(("k", "v"), pair, strict=True):
                shape = (1, layer.kv_heads, segment.count, layer.head_dim)
                checked = _shaped(call.program.decode(), name, found, shape)
                if getattr(layer, name) is not None:
                    place = getattr(layer, name), layer.kv_heads, layer.own_stride
                    heads(*place, (segment.count, layer.head_dim))[...] = checked


def _inputs(segment: SegmentStruct, layer: AttentionStruct) -> dict[str, np.ndarray]:
    count, tables = segment.count, (segment.count, layer.frequencies)
    kept = layer.kv_heads, layer.kept_stride, (layer.kept, layer.head_dim)
    seen = (count, layer.kept + count)
    return {
        "prefix_k": heads(layer.kept_k, *kept),
        "prefix_v": heads(layer.kept_v, *kept),
        "cos": array(layer.cos, tables),
        "sin": array(layer.sin, tables),
        "mask": np.zeros(seen, np.float32) if layer.mask is None else array(layer.mask, seen),
        "phase": _PHASES[1 if segment.causal else 0],
    }


def _shaped(program: str, name: str, found: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A result of the shape that it must have. Raises EngineFailed."""
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype.kind not in "fiu":
        what = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise EngineFailed(
            f"program {program} gives {name} as {what} where {list(shape)} is expected; "
            "export the bundle again"
        )
    return found
