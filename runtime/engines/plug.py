"""Makes an engine in Python one of the core's: the functions of `ek_engine` in `edgekit.h` over an `Engine`.

The core calls on the thread that called it. What a function raises cannot cross it: it is kept here, the call
fails, and whoever made it raises the same exception again.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from edgekit.flashload.core_memory import array
from edgekit.flashload.names import shown
from edgekit.flashload.sizes import MOST_BYTES
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.core_structs import (
    ENGINE_FUNCTION_TYPES,
    LOAN_FUNCTION_TYPES,
    MEMORY_FUNCTION_TYPES,
    EngineBytesStruct,
    EngineStruct,
    LayersCallStruct,
    TileCallStruct,
)
from edgekit.runtime.engines.base import (
    Engine,
    EngineBytes,
    Lengths,
    Routing,
    TilePart,
    matrix,
    statistics_of,
)
from edgekit.runtime.engines.kept_errors import ENDS, KeptErrors, told
from edgekit.runtime.engines.segment_arrays import SegmentArrays, segments_of
from edgekit.runtime.engines.space import Expert
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.sampling.noise import PhiloxGumbel

T = TypeVar("T")
_DONE, _SUBMITTED, _FULL = 1, 2, 3  # EK_ENGINE_...
#: Kinds of the types that numbers of a tile may have, by the type that the core takes.
_KINDS: dict[Any, str] = {np.float32: "fiu", np.int64: "iu"}
#: Functions of the table that are another function of the engine.
_CALLED = {"get_bytes": "memory", "tile": "head_tile"}


class EnginePlug:
    """The table of an engine, `struct`, and what it needs while a session uses it."""

    def __init__(self, engine: Engine, bundle: Bundle, own: bool = False) -> None:
        """`own`: the caller's, not one that bundles are exported for."""
        self._advice = "mend the engine" if own else "export the bundle again"
        self.engine, self._bundle, self._model = engine, bundle, bundle.model
        self._space = engine.space()
        self._errors = KeptErrors()
        # Of the layer with experts that is under way, by segment.
        self._routed: list[_Routed] = []
        self._name = engine.name.encode()
        kinds = ENGINE_FUNCTION_TYPES | LOAN_FUNCTION_TYPES
        if self._space.own_memory:
            kinds = kinds | MEMORY_FUNCTION_TYPES
        functions: dict[str, Any] = {
            name: kind(self._guarded(name, getattr(self, f"_{name}"))) for name, kind in kinds.items()
        }
        self.struct = EngineStruct(name=self._name, **functions)

    def raising(self, call: Callable[[], T]) -> T:
        """What a call into the core returns. Raises what a function of the engine has raised within it."""
        try:
            return self._errors.within(call, lambda _: None)
        finally:
            self._routed = []

    def raise_later(self) -> None:
        """Raise what giving memory back has raised, once."""
        self._errors.raise_later()

    def close(self) -> None:
        """To be called once the session is closed. Raises what giving memory back has raised."""
        self._space.close()
        self.raise_later()

    def statistics(self) -> dict[str, Any]:
        """The engine's own counters. Raises EngineFailed for what are none, and what the engine raises."""
        try:
            found: object = self.engine.statistics()
        except ENDS as error:
            raise self._told("statistics", error) from None
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise self._wrong("statistics", shown(found), "a dict of values by name")
        return dict(found)

    def _guarded(self, name: str, function: Callable[..., bool | None]) -> Callable[..., int]:
        more = _FULL if name == "keep" else _SUBMITTED

        def call(user: object, *arguments: Any) -> int:
            try:
                return more if function(*arguments) else _DONE
            except BaseException as error:
                self._errors.keep(self._told(_CALLED.get(name, name), error))
                return 0

        return call

    def _told(self, function: str, error: BaseException) -> BaseException:
        """What is said of an exception of the engine's."""
        return told(self.engine, function, error, self._advice)

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
        made.weights = self._space.room()

    def _layers(self, given: Any) -> bool:
        call: LayersCallStruct = given.contents
        weights, segments = self._space.weights(call.weights.contents), segments_of(self._space, call)
        program, count = call.program.decode(), call.layer_count

        def work() -> None:
            for segment in segments:
                made = self.engine.layers(program, segment.inputs(), weights)
                try:
                    y, kept = made
                    pairs = [(k, v) for k, v in kept]
                except (TypeError, ValueError):
                    raise self._wrong("layers", made, "y, and a list of k and v for each layer") from None
                if len(pairs) != count:
                    raise self._wrong("layers", f"k and v of {len(pairs)} layers", f"those of {count}")
                self._put("layers", segment, y)
                for layer, (k, v) in enumerate(pairs):
                    self._keep_rows("layers", segment, layer, k, v)

        return self._space.submit(work, repeats=program)

    def _route(self, given: Any, counts: Any) -> None:
        call: LayersCallStruct = given.contents
        weights, segments = self._space.weights(call.weights.contents), segments_of(self._space, call)
        program, shape = call.program.decode(), (call.hidden_size,)
        out = array(ctypes.addressof(counts.contents), (call.experts,), np.int64)
        self._routed = []
        self._space.hold(call.weights.contents.unit)

        def work() -> list[tuple[Mapping[str, Any], Routing]]:
            made: list[tuple[Mapping[str, Any], Routing]] = []
            for segment in segments:
                (inputs,) = segment.inputs()
                routed = self.engine.route(program, inputs, weights)
                self._check_routing(routed, (segment.count, *shape))
                self._keep_rows("route", segment, 0, routed.k, routed.v)
                made.append((inputs, routed))
            return made

        def mix(made: list[tuple[Mapping[str, Any], Routing]]) -> None:
            out[...] = 0
            for segment, (inputs, routed) in zip(segments, made, strict=True):
                # Experts see the rows of one segment at a time: a sequence is computed as if it were alone.
                mixture = self._space.mixture(routed.x, routed.index, routed.weight, len(out), self._advice)
                out[...] += mixture.counts
                self._routed.append(_Routed(segment, inputs, routed, mixture))

        self._space.now(work, mix, program)

    def _expert(self, given: Any, expert: int, loaded: Any) -> bool:
        program, segments = given.contents.program.decode(), self._routed

        def run(batch: Sequence[Expert]) -> None:
            for each in segments:
                each.mixture.add_together(batch, apply)

        def apply(x: Any, counts: Sequence[int], weights: Sequence[Any]) -> Any:
            made = self.engine.experts(program, x, counts, weights)
            return self._shaped("expert", "y", made, tuple(x.shape))

        return self._space.defer((expert, self._space.weights(loaded.contents)), run)

    def _join(self, given: Any) -> bool:
        call: LayersCallStruct = given.contents
        weights, program = self._space.weights(call.weights.contents), call.program.decode()
        self._space.hold(None)
        segments, self._routed = self._routed, []

        def work() -> None:
            for each in segments:
                total = each.mixture.total()
                y = self.engine.join(program, each.inputs, each.routing, total, weights)
                self._put("join", each.segment, y)

        return self._space.submit(work)

    def _self_condition(self, loaded: Any, rows: int, x: int, soft: int) -> bool:
        shape = (1, rows, self._model.hidden_size)
        own, mixed = self._space.rows(x, shape), self._space.only_read(self._space.rows(soft, shape))
        weights = self._space.weights(loaded.contents)

        def work() -> None:
            made = self.engine.self_condition(self._space.only_read(own), mixed, weights)
            own[...] = self._shaped("self_condition", "y", made, shape)

        return self._space.submit(work)

    def _final(self, loaded: Any, rows: int, x: int) -> bool:
        shape = (1, rows, self._model.hidden_size)
        own, weights = self._space.rows(x, shape), self._space.weights(loaded.contents)

        def work() -> None:
            made = self.engine.final(self._space.only_read(own), weights)
            own[...] = self._shaped("final", "y", made, shape)

        return self._space.submit(work)

    def _tile(self, given: Any) -> bool:
        call = TileCallStruct.from_buffer_copy(given.contents)
        x = self._space.only_read(self._space.rows(call.x, (call.rows, call.hidden_size)))
        table, noise = self._space.weights(call.weights.contents), None
        if call.gumbel:
            draw = PhiloxGumbel(call.seed, call.draw, call.rows, self._model.vocab_size)
            tile = draw(call.first_token, call.first_token + call.tokens)
            noise = self._space.noise(tile * np.float32(call.gumbel_scale))
        results: list[tuple[str, Any, Any, tuple[int, ...], Any]] = []

        def work() -> None:
            results[:] = self._tile_results(call, x, noise, table)

        def finish() -> None:
            for _, address, found, shape, dtype in results:
                with np.errstate(over="ignore"):  # becomes infinity
                    array(address, shape, dtype)[...] = self._space.numbers(found)

        return self._space.submit(work, finish)

    def _tile_results(
        self, call: TileCallStruct, x: Any, drawn: Callable[[], Any] | None, table: Any
    ) -> list[tuple[str, Any, Any, tuple[int, ...], Any]]:
        """Names, addresses, results, shapes and types of what a tile is asked for."""
        noise = None if drawn is None else drawn()
        part = self.engine.head_tile(x, call.temperature, noise, call.soft is not None, table)
        if part is None:
            z = self._logits(call, x, table)
            part = statistics_of(z, noise)
            if call.soft is not None:
                part.soft = np.exp(z - part.top[:, None]) @ matrix(table)
            part.z = z
        if not isinstance(part, TilePart):
            raise self._wrong("head_tile", part, "a TilePart")
        rows = (call.rows,)
        results: list[tuple[str, int | None, Any, tuple[int, ...], Any]] = [
            ("max", call.largest, part.top, rows, np.float32),
            ("argmax", call.argmax, part.arg, rows, np.int64),
            ("sum_others", call.sum_others, part.sum_others, rows, np.float32),
            ("sum_z_others", call.sum_z_others, part.sum_z_others, rows, np.float32),
            ("score", call.score, part.score, rows, np.float32),
            ("sample", call.sample, part.sample, rows, np.int64),
            ("sample_z", call.sample_z, part.sample_z, rows, np.float32),
            ("soft", call.soft, part.soft, tuple(x.shape), np.float32),
        ]
        if call.z is not None:
            z = self._logits(call, x, table) if part.z is None else part.z
            results.append(("z", call.z, z, (call.rows, call.tokens), np.float32))
        made = []
        for name, address, found, shape, dtype in results:
            if address is not None:
                checked = self._shaped("head_tile", name, found, shape, _KINDS[dtype])
                made.append((name, address, self._space.fetched(checked), shape, dtype))
        return made

    def _logits(self, call: TileCallStruct, x: Any, table: Any) -> Any:
        try:
            found = self.engine.head_logits(x, call.temperature, table)
        except ENDS as error:
            raise self._told("head_logits", error) from None
        return self._shaped("head_logits", "z", found, (call.rows, call.tokens))

    def _put(self, function: str, segment: SegmentArrays, y: Any) -> None:
        """Rows of a segment to where the core wants them."""
        segment.x[...] = self._shaped(function, "y", y, tuple(segment.x.shape))

    def _keep_rows(self, function: str, segment: SegmentArrays, layer: int, k: Any, v: Any) -> None:
        """Keys and values of a segment to where the core wants them."""
        own = segment.layers[layer]
        for name, found, place in (("k", k, own.k), ("v", v, own.v)):
            checked = self._shaped(function, name, found, own.shape)
            if place is not None:
                place[...] = checked

    def _allocate(self, nbytes: int, out: Any) -> None:
        out[0] = self._space.allocate(nbytes)

    def _release(self, address: int, nbytes: int) -> None:
        try:
            self._space.release(address, nbytes)
        except BaseException as error:
            self._errors.keep_for_later(error)
            raise

    def _copy(self, copies: Any, count: int) -> bool:
        return self._space.copy(copies[:count])

    def _lend(self, address: int, nbytes: int) -> None:
        self._space.lend(address, nbytes)

    def _take_back(self, address: int, nbytes: int) -> None:
        try:
            self._space.take_back(address, nbytes)
        except BaseException as error:
            self._errors.keep_for_later(error)
            raise

    def _keep(self, given: Any) -> bool:
        return not self._space.keep(given.contents)

    def _wait(self, count: int) -> None:
        self._space.wait(count)

    def _check_routing(self, routed: Any, shape: tuple[int, int]) -> None:
        if not isinstance(routed, Routing):
            raise self._wrong("route", routed, "a Routing")
        self._shaped("route", "x", routed.x, shape)
        self._shaped("route", "index", routed.index, (shape[0], -1), "iu")
        self._shaped("route", "weight", routed.weight, tuple(routed.index.shape))

    def _shaped(
        self, function: str, name: str, found: Any, shape: tuple[int, ...], kinds: str = "fiu"
    ) -> Any:
        """A result of the shape (-1: any length), and one of the kinds of types, that it must have. Raises
        EngineFailed.
        """
        seen = self._space.looked_at(found)
        if seen is None or seen[1] not in kinds or not _fits(seen[0], shape):
            integers = "" if "f" in kinds else "integers "
            wanted = ", ".join("k" if n < 0 else str(n) for n in shape)
            raise self._wrong(function, f"{name} as {self._described(found)}", f"{integers}[{wanted}]")
        return found

    def _wrong(self, function: str, found: Any, expected: str) -> EngineFailed:
        what = found if isinstance(found, str) else self._described(found)
        return EngineFailed(
            f"{type(self.engine).__name__}.{function} gives {what} where {expected} is expected; "
            f"{self._advice}"
        )

    def _described(self, found: Any) -> str:
        seen = self._space.looked_at(found)
        return type(found).__name__ if seen is None else f"{found.dtype}{list(seen[0])}"


@dataclasses.dataclass
class _Routed:
    """A segment between the routing and the join of a layer with experts."""

    segment: SegmentArrays
    inputs: Mapping[str, Any]
    routing: Routing
    mixture: Any


def _fits(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(found) == len(shape) and all(n in (-1, m) for m, n in zip(found, shape, strict=True))
