"""Makes an engine in Python one of the core's: the functions of `ek_engine` in `edgekit.h` over an `Engine`.

The core calls on the thread that called it. What a function raises cannot cross it: it is kept here, the call
fails, and whoever made it raises the same exception again.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from edgekit.flashload.core_memory import array, read_only
from edgekit.flashload.names import shown
from edgekit.flashload.sizes import MOST_BYTES
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
from edgekit.runtime.engines.base import (
    Arrays,
    Engine,
    EngineBytes,
    Lengths,
    Opened,
    Routing,
    TilePart,
    matrix,
    statistics_of,
)
from edgekit.runtime.engines.mixture import Mixture
from edgekit.runtime.engines.stored import StoredWeights, heads
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.sampling.noise import PhiloxGumbel
from edgekit.runtime.sampling.types import Floats

T = TypeVar("T")
_DONE = 1  # EK_ENGINE_DONE
#: Canvas, text: `phase` of layer programs. All sessions share them.
_PHASES = read_only(np.array([0], np.int64)), read_only(np.array([1], np.int64))
_PACKAGES = "open_begin", "open_finish", "close_unit"
#: Generators are between an engine and those who hear of its exceptions; these would end them.
_ENDS = StopIteration, GeneratorExit
#: Kinds of the types that numbers of a tile may have, by the type that the core takes.
_KINDS: dict[Any, str] = {np.float32: "fiu", np.int64: "iu"}
#: Functions of the table that are another function of the engine, or of what it has open.
_CALLED = {"get_bytes": "memory", "tile": "head_tile", "open_finish": "open", "close_unit": "close"}


class EnginePlug:
    """The table of an engine, `struct`, and what it needs while a session uses it."""

    def __init__(self, engine: Engine, bundle: Bundle, own: bool = False) -> None:
        """`own`: the caller's, not one that bundles are exported for."""
        self._advice = "mend the engine" if own else "export the bundle again"
        self.engine, self._bundle, self._model = engine, bundle, bundle.model
        self._stored = StoredWeights()
        self._opened: dict[str, Opened] = {}
        self._opening: dict[str, Future[tuple[Opened, float]]] = {}
        self._worker: ThreadPoolExecutor | None = None
        self._error: BaseException | None = None
        self._closing: BaseException | None = None  # of a package, which the core tells in its next call
        # Of the layer with experts that is under way, by segment.
        self._routed: list[tuple[Arrays, Routing, Mixture]] = []
        self._name = engine.name.encode()
        functions: dict[str, Any] = {
            name: kind(self._guarded(name, getattr(self, f"_{name}")))
            for name, kind in ENGINE_FUNCTION_TYPES.items()
            if name not in _PACKAGES or bundle.packages is not None
        }
        self.struct = EngineStruct(name=self._name, **functions)

    def raising(self, call: Callable[[], T]) -> T:
        """What a call into the core returns. Raises what a function of the engine has raised within it."""
        self._error = None
        # A signal that arrives while the core computes is raised where Python goes on, which may be at the
        # entry of a function of the table, before anything there can catch it.
        before = sys.unraisablehook
        if threading.current_thread() is threading.main_thread():
            sys.unraisablehook = lambda told: self._keep(told.exc_value) if told.exc_value else before(told)
        try:
            return call()
        except Exception:
            error = self._error or self._closing
            self._error = self._closing = None
            if error is not None:
                try:
                    raise error from None
                finally:
                    del error  # its traceback has this frame
            raise
        finally:
            sys.unraisablehook = before
            self._routed = []

    def close(self) -> None:
        """End the worker, once the session has closed the packages. Raises what closing one has raised."""
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None
        error, self._closing = self._closing, None
        if error is not None:
            raise error

    def statistics(self) -> dict[str, Any]:
        """The engine's own counters. Raises EngineFailed for what are none, and what the engine raises."""
        try:
            found: object = self.engine.statistics()
        except _ENDS as error:
            raise self._told("statistics", error) from None
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise self._wrong("statistics", shown(found), "a dict of values by name")
        return dict(found)

    def _guarded(self, name: str, function: Callable[..., None]) -> Callable[..., int]:
        def call(user: object, *arguments: Any) -> int:
            try:
                function(*arguments)
                return _DONE
            except BaseException as error:
                self._keep(self._told(_CALLED.get(name, name), error))
                return 0

        return call

    def _told(self, function: str, error: BaseException) -> BaseException:
        """What is said of an exception of the engine's."""
        if isinstance(error, _ENDS):
            raised = f"{type(self.engine).__name__}.{function} raised {type(error).__name__}"
            return EngineFailed(f"{raised}, which ends loops; {self._advice}")
        return error

    def _keep(self, error: BaseException) -> None:
        """The first one is what went wrong; one that ends the program is more."""
        if self._error is None or not isinstance(error, Exception):
            self._error = error

    def _get_bytes(self, rows: int, kept: int, segments: int, head_rows: int, out: Any) -> None:
        found = self.engine.memory(self._bundle, Lengths(rows, kept, segments, head_rows))
        if not isinstance(found, EngineBytes):
            raise self._wrong("memory", found, "EngineBytes")
        made: EngineBytesStruct = out.contents
        for field in dataclasses.fields(EngineBytes):
            count = getattr(found, field.name)
            right = isinstance(count, int | np.integer) and not isinstance(count, bool)
            if not right or not 0 <= count <= MOST_BYTES:
                raise self._wrong("memory", f"{field.name} as {shown(count)}", "a number of bytes")
            setattr(made, field.name, int(count))

    def _layers(self, given: Any) -> None:
        call: LayersCallStruct = given.contents
        weights, x = self._weights(call.weights), self._rows(call)
        for segment, inputs in self._segments(call, x):
            made = self.engine.layers(call.program.decode(), inputs, weights)
            try:
                y, kept = made
                pairs = [(k, v) for k, v in kept]
            except (TypeError, ValueError):
                raise self._wrong("layers", made, "y, and a list of k and v for each layer") from None
            if len(pairs) != call.layer_count:
                raise self._wrong("layers", f"k and v of {len(pairs)} layers", f"those of {call.layer_count}")
            self._put("layers", segment, x, y)
            for layer, (k, v) in zip(segment.layers[: call.layer_count], pairs, strict=True):
                self._keep_rows("layers", segment, layer, k, v)

    def _route(self, given: Any, counts: Any) -> None:
        call: LayersCallStruct = given.contents
        weights, x = self._weights(call.weights), self._rows(call)
        program, self._routed = call.program.decode(), []
        out = array(ctypes.addressof(counts.contents), (call.experts,), np.int64)
        out[...] = 0
        for segment, (inputs,) in self._segments(call, x):
            routed = self.engine.route(program, inputs, weights)
            self._check_routing(routed, (segment.count, call.hidden_size))
            self._keep_rows("route", segment, segment.layers[0], routed.k, routed.v)
            # Experts see the rows of one segment at a time: a sequence is computed as if it were alone.
            mixture = Mixture(routed.x, routed.index, routed.weight, call.experts, self._advice)
            out += mixture.counts
            self._routed.append((inputs, routed, mixture))

    def _expert(self, given: Any, expert: int, loaded: Any) -> None:
        program, weights = given.contents.program.decode(), self._weights(loaded)
        for _, _, mixture in self._routed:
            mixture.add(
                expert,
                lambda x: self._shaped("expert", "y", self.engine.expert(program, x, weights), x.shape),
            )

    def _join(self, given: Any) -> None:
        call: LayersCallStruct = given.contents
        weights, x, program = self._weights(call.weights), self._rows(call), call.program.decode()
        for segment, (inputs, routed, mixture) in zip(
            call.segments[: call.segment_count], self._routed, strict=True
        ):
            self._put("join", segment, x, self.engine.join(program, inputs, routed, mixture.total(), weights))

    def _self_condition(self, loaded: Any, rows: int, x: int, soft: int) -> None:
        shape = (1, rows, self._model.hidden_size)
        own, mixed = array(x, shape), read_only(array(soft, shape))
        made = self.engine.self_condition(read_only(own), mixed, self._weights(loaded))
        own[...] = self._shaped("self_condition", "y", made, shape)

    def _final(self, loaded: Any, rows: int, x: int) -> None:
        shape = (1, rows, self._model.hidden_size)
        own = array(x, shape)
        made = self.engine.final(read_only(own), self._weights(loaded))
        own[...] = self._shaped("final", "y", made, shape)

    def _tile(self, given: Any) -> None:
        call: TileCallStruct = given.contents
        x, rows = read_only(array(call.x, (call.rows, call.hidden_size))), (call.rows,)
        table, noise = self._weights(call.weights), None
        if call.gumbel:
            draw = PhiloxGumbel(call.seed, call.draw, call.rows, self._model.vocab_size)
            tile = draw(call.first_token, call.first_token + call.tokens)
            noise = read_only(tile * np.float32(call.gumbel_scale))
        part = self.engine.head_tile(x, call.temperature, noise, call.soft is not None, table)
        if part is None:
            z = self._logits(call, x, table)
            part = statistics_of(z, noise)
            if call.soft is not None:
                part.soft = np.exp(z - part.top[:, None]) @ matrix(table)
        if not isinstance(part, TilePart):
            raise self._wrong("head_tile", part, "a TilePart")
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
            z = self._logits(call, x, table)
            results.append(("z", call.z, z, (call.rows, call.tokens), np.float32))
        own: dict[str, np.ndarray] = {}
        for name, address, found, shape, dtype in results:
            if address is not None:
                own[name] = array(address, shape, dtype)
                with np.errstate(over="ignore"):  # becomes infinity
                    own[name][...] = self._shaped("head_tile", name, found, shape, _KINDS[dtype])
        self._check_tile(own)

    def _check_tile(self, own: Mapping[str, np.ndarray]) -> None:
        """The core joins tiles on trust. What is NaN in the scores themselves shows in log_z, and has an
        error of its own.
        """
        others = own["sum_others"]
        known = np.isfinite(own["max"]) & ~np.isnan(others)
        wrong = {
            "sum_others": ((others < 0) | np.isinf(others), "a finite number of at least 0"),
            "sum_z_others": (~np.isfinite(own["sum_z_others"]), "a finite number"),
            **{name: (np.isnan(own[name]), "a number") for name in ("score", "sample_z") if name in own},
        }
        for name, (where, expected) in wrong.items():
            if (bad := own[name][known & where]).size:
                raise self._wrong("head_tile", f"{name} of {bad[0]}", expected)

    def _logits(self, call: TileCallStruct, x: Floats, table: Any) -> Floats:
        try:
            found = self.engine.head_logits(x, call.temperature, table)
        except _ENDS as error:
            raise self._told("head_logits", error) from None
        return self._shaped("head_logits", "z", found, (call.rows, call.tokens))

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
            self._closing = self._closing or self._told("close", error)
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
        """Every segment with the inputs of its layers, which may hold what the one before has computed."""
        for segment in call.segments[: call.segment_count]:
            inputs = [_inputs(segment, layer) for layer in segment.layers[: call.layer_count]]
            inputs[0]["x"] = read_only(x[:, segment.first_row : segment.first_row + segment.count])
            yield segment, inputs

    def _put(self, function: str, segment: SegmentStruct, x: Floats, y: Floats) -> None:
        """Rows of a segment to where the core wants them."""
        own = x[:, segment.first_row : segment.first_row + segment.count]
        own[...] = self._shaped(function, "y", y, own.shape)

    def _keep_rows(
        self, function: str, segment: SegmentStruct, layer: AttentionStruct, k: Floats, v: Floats
    ) -> None:
        """Keys and values of a segment to where the core wants them."""
        for name, found in (("k", k), ("v", v)):
            shape = (1, layer.kv_heads, segment.count, layer.head_dim)
            checked = self._shaped(function, name, found, shape)
            if getattr(layer, name) is not None:
                place = getattr(layer, name), layer.kv_heads, layer.own_stride
                heads(*place, (segment.count, layer.head_dim))[...] = checked

    def _check_routing(self, routed: Any, shape: tuple[int, int]) -> None:
        if not isinstance(routed, Routing):
            raise self._wrong("route", routed, "a Routing")
        self._shaped("route", "x", routed.x, shape)
        index = routed.index
        chosen = isinstance(index, np.ndarray) and index.ndim == 2 and index.dtype.kind in "iu"
        if not chosen or len(index) != shape[0]:
            raise self._wrong("route", f"index as {_described(index)}", f"integers [{shape[0]}, k]")
        self._shaped("route", "weight", routed.weight, index.shape)

    def _shaped(
        self, function: str, name: str, found: Any, shape: tuple[int, ...], kinds: str = "fiu"
    ) -> np.ndarray:
        """A result of the shape, and one of the kinds of types, that it must have. Raises EngineFailed."""
        if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype.kind not in kinds:
            integers = "" if "f" in kinds else "integers "
            raise self._wrong(function, f"{name} as {_described(found)}", f"{integers}{list(shape)}")
        return found

    def _wrong(self, function: str, found: Any, expected: str) -> EngineFailed:
        what = found if isinstance(found, str) else _described(found)
        return EngineFailed(
            f"{type(self.engine).__name__}.{function} gives {what} where {expected} is expected; "
            f"{self._advice}"
        )


def _kept(layer: AttentionStruct, name: str) -> np.ndarray:
    """Keys or values [1, KV, P, D] that a segment sees before its own, of all pieces."""
    pieces = [
        heads(getattr(piece, name), layer.kv_heads, piece.stride, (piece.count, layer.head_dim))
        for piece in layer.pieces[: layer.piece_count]
    ]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate([np.empty((1, layer.kv_heads, 0, layer.head_dim), np.float32), *pieces], 2)


def _inputs(segment: SegmentStruct, layer: AttentionStruct) -> dict[str, np.ndarray]:
    count, tables = segment.count, (segment.count, layer.frequencies)
    seen = (count, layer.kept + count)
    scale = {}
    if layer.query_scale is not None:
        scale["query_scale"] = read_only(array(layer.query_scale, (count, 1)))
    return {
        "prefix_k": read_only(_kept(layer, "k")),
        "prefix_v": read_only(_kept(layer, "v")),
        "cos": read_only(array(layer.cos, tables)),
        "sin": read_only(array(layer.sin, tables)),
        **scale,
        "mask": read_only(np.zeros(seen, np.float32) if layer.mask is None else array(layer.mask, seen)),
        "phase": _PHASES[1 if segment.causal else 0],
    }


def _described(found: Any) -> str:
    return f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
