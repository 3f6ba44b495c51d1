"""A model being run: the core's session over the engine of a bundle's format.

The core holds weights, prefix and head; arrays cross the C ABI of `edgekit.h`, and calls release the
interpreter lock. Engines in Python are called back (`edgekit.runtime.engines.plug`).
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import platform
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from ctypes import POINTER, c_char_p, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from edgekit.flashload import _native, errors
from edgekit.flashload.names import shown
from edgekit.flashload.owner_process import OwnerProcess
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.core_structs import EngineStruct, ExecutorStruct, PassSegmentStruct
from edgekit.runtime.engine_registry import running
from edgekit.runtime.engines import MakeEngine
from edgekit.runtime.engines.base import Engine, Executor
from edgekit.runtime.engines.executor_plug import ExecutorPlug
from edgekit.runtime.engines.plug import EnginePlug
from edgekit.runtime.errors import EngineFailed, PromptTooLong
from edgekit.runtime.one_owner import OneOwner
from edgekit.runtime.process import MOST_THREADS, peak_bytes, usable_cores
from edgekit.runtime.sampling.asks import Ask, PassRows, Prefix
from edgekit.runtime.sampling.core import CoreSampler
from edgekit.runtime.sampling.drive import within_core
from edgekit.runtime.sampling.errors import InvalidOption, NonFiniteLogits
from edgekit.runtime.sampling.options import check_bytes, check_int
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids
from edgekit.runtime.session.memory import PLAN_SIGNATURE, MemoryPlan, read_plan
from edgekit.runtime.session.pass_arrays import PassArrays, segment_list
from edgekit.runtime.session.sequence import Segment, Sequence, Uncached
from edgekit.runtime.session.structs import (
    InfoStruct,
    OptionsStruct,
    SaveOptionsStruct,
    SequenceInfoStruct,
    StatisticsStruct,
)

T = TypeVar("T")


class Watcher(Protocol):
    """What looks on while a session runs."""

    def close(self) -> None: ...


_UNLIMITED = 2**64 - 1
_MOST_POSITIONS = 1 << 22
#: Of a session, see `ek_session_options`.
MOST_SEQUENCES = 65536
_ERRORS = {13: NonFiniteLogits, 18: PromptTooLong, 19: EngineFailed}


@dataclass(frozen=True)
class SessionOptions:
    """`memory_bytes` bounds the whole process (None: everything resident, which the machine must have memory
    for); `resident_bytes` caps the pinned weights further.

    `positions` and `canvas` are the largest prefix and segment of a pass that the budget must hold, for so
    many `sequences` at a time, the session's own among them, and as many segments of a pass, or `segments`
    where these are more; without a budget they only say what to plan for. `cached` are positions of a canvas
    whose keys and values passes keep, of models that encode no prefix. threads 0 takes every usable core.
    `adapter` is the number of the adapter that all is computed with but segments of `run_pass`, which say it
    themselves, from 1 (`bundle.model.adapters`); 0: none.
    Raises InvalidOption for what none of them can be.
    """

    memory_bytes: int | None = None
    resident_bytes: int | None = None
    positions: int = 2048
    canvas: int = 256
    threads: int = 0
    sequences: int = 1
    segments: int = 0
    cached: int = 0
    adapter: int = 0

    def __post_init__(self) -> None:
        check_bytes("memory_bytes", self.memory_bytes, 1)
        check_bytes("resident_bytes", self.resident_bytes, 0)
        for name, least, most in (
            ("positions", 0, _MOST_POSITIONS),
            ("canvas", 1, _MOST_POSITIONS),
            ("sequences", 1, MOST_SEQUENCES),
            ("segments", 0, MOST_SEQUENCES),
            ("cached", 0, _MOST_POSITIONS),
            ("adapter", 0, MOST_SEQUENCES),
        ):
            check_int(name, getattr(self, name), least, most)
        if self.threads != 0:
            check_int("threads", self.threads, 1, MOST_THREADS)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_session_open_engine": (c_char_p, POINTER(OptionsStruct), POINTER(EngineStruct), POINTER(c_void_p)),
    "ek_session_open_packages": (
        c_char_p,
        POINTER(OptionsStruct),
        POINTER(ExecutorStruct),
        POINTER(c_void_p),
    ),
    "ek_plan_session": PLAN_SIGNATURE,
    "ek_session_get_plan": (c_void_p, POINTER(c_void_p)),
    "ek_session_get_info": (c_void_p, POINTER(InfoStruct)),
    "ek_session_reset": (c_void_p,),
    "ek_session_idle": (c_void_p,),
    "ek_session_pass": (c_void_p, POINTER(PassSegmentStruct), c_int64),
    "ek_session_get_statistics": (c_void_p, POINTER(StatisticsStruct)),
    "ek_session_run_sampler": (c_void_p, c_void_p, c_void_p, c_void_p),
    "ek_sequence_open": (c_void_p, POINTER(c_void_p)),
    "ek_sequence_copy": (c_void_p, c_void_p, POINTER(c_void_p)),
    "ek_sequence_prefill": (c_void_p, c_void_p, c_void_p, c_int64),
    "ek_sequence_check_prefill": (c_void_p, c_void_p, c_void_p, c_int64),
    "ek_sequence_crop": (c_void_p, c_void_p, c_int64),
    "ek_sequence_get_text": (c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64, POINTER(c_int64)),
    "ek_sequence_get_info": (c_void_p, c_void_p, POINTER(SequenceInfoStruct)),
    "ek_sequence_keep": (c_void_p, c_void_p, c_void_p, c_int64),
    "ek_sequence_save": (c_void_p, c_void_p, c_char_p, POINTER(SaveOptionsStruct)),
    "ek_sequence_load": (c_void_p, c_void_p, c_char_p),
}


def _library() -> ctypes.CDLL:
    _native.functions({}, "ek_sequence_close")
    return _native.functions(_SIGNATURES, "ek_session_close")


def _options(given: SessionOptions | None) -> SessionOptions:
    if given is not None and not isinstance(given, SessionOptions):
        raise InvalidOption(f"the options are {shown(given)}; pass SessionOptions(...)")
    return given or SessionOptions()


def _core_options(o: SessionOptions) -> OptionsStruct:
    return OptionsStruct(
        threads=o.threads,
        memory_bytes=o.memory_bytes or 0,
        resident_bytes=_UNLIMITED if o.resident_bytes is None else o.resident_bytes,
        positions=o.positions,
        canvas=o.canvas,
        sequences=o.sequences,
        segments=o.segments,
        cached=o.cached,
        adapter=o.adapter,
    )


def _nobody() -> Sequence | None:
    return None


class Session(OneOwner):
    """Implements `sampling.Denoiser` and `sampling.Projector`. Not for use by several threads at once.
    In a child of fork its calls raise InvalidRequest: the threads that do the work stay in the parent.

    Raises:
        NativeError: the core is missing or cannot be loaded.
        EdgekitError: the bundle is damaged, its engine is not available, or the budget is too small.

    What an engine in Python raises within a call is raised by the call.
    """

    def __init__(
        self,
        bundle: str | Path | Bundle,
        options: SessionOptions | None = None,
        executor: Executor | None = None,
        engine: str | MakeEngine | None = None,
    ) -> None:
        """`bundle` is a folder, or what was opened of it. `executor` runs a bundle's packages in place of the
        format's own, for checks; `engine` is the name of one of those that the format has, or makes what
        computes in place of them.
        """
        self._handle: int | None = None
        self._place = c_void_p()  # where the core puts it, null once it is closed
        self._process = OwnerProcess()
        self._gate = threading.Lock()
        # What a signal can interrupt anywhere is put down before it is done, and only ever taken away.
        self._under_way: set[object] = set()  # a token for each call
        self._sequences: WeakSet[Sequence] = WeakSet()  # besides its own
        self._watchers: WeakSet[Watcher] = WeakSet()
        self._dropped: deque[int] = deque()  # handles of sequences to close when no call is under way
        self.options = o = _options(options)
        self.bundle = Bundle.opened(bundle)
        self.model = self.bundle.model
        self._digest = self.bundle.digest
        self._library = _library()
        own = engine is not None and not isinstance(engine, str)
        computes = (
            engines.create(self.bundle, o.threads or usable_cores(), executor, engine)
            if engine is None or isinstance(engine, str)
            else engines.made_by(engine, self.bundle)
        )
        self._plug: EnginePlug | ExecutorPlug | None = None
        opens = self._library.ek_session_open_engine
        if isinstance(computes, Engine):
            self._plug = EnginePlug(computes, self.bundle, own)
        elif computes is not None:
            self._plug, opens = ExecutorPlug(computes), self._library.ek_session_open_packages
        # Of its own sequence, which exists while somebody uses it: the two would keep each other.
        self._uncached = Uncached()
        self._sequence: Callable[[], Sequence | None] = _nobody
        wanted = _core_options(o)
        table = None if self._plug is None else ctypes.byref(self._plug.struct)
        folder, place = _native.path_bytes(self.bundle.path), ctypes.byref(self._place)
        opening = object()
        self._under_way.add(opening)
        if isinstance(self._plug, ExecutorPlug):
            _OPENED_AHEAD.add(self)
        try:
            self._check(lambda: opens(folder, ctypes.byref(wanted), table, place))
        except BaseException:
            self._end()
            raise
        finally:
            self._under_way.discard(opening)
        self._handle = self._place.value
        info = self._info()
        self.vocab_size, self.hidden_size = int(info.vocabulary), int(info.hidden_size)
        self.threads = int(info.threads)
        #: Positions that are encoded at once: a longer text takes several passes.
        self.prefill_rows = int(info.prefill_rows)
        #: Of encoded text, rows that see each other; 1: it is causal.
        self.prefix_block = int(info.prefix_block)
        self.shift_logits = self.model.shift_logits
        self.role_head = self.model.role_head
        self.adapter = o.adapter
        self._process_bytes = int(info.process_bytes)
        if isinstance(computes, Engine):
            computes.bounded = o.memory_bytes is not None or bool(self.plan.streamed)

    @property
    def engine(self) -> Engine | None:
        """What computes in Python; None for the core's own engine, which is also that of packages."""
        return None if self._plug is None else self._plug.engine

    @property
    def plan(self) -> MemoryPlan:
        """The plan that runs: memory by cause, and which weights stay there now."""
        return self._within(
            lambda handle: read_plan(
                lambda plan: self._library.ek_session_get_plan(handle, plan), _native.check
            )
        )

    @property
    def sequence(self) -> Sequence:
        """The sequence of its own, which the session's functions use."""
        sequence = self._sequence()
        if sequence is None:
            sequence = Sequence(self, None, self._uncached)
            self._sequence = weakref.ref(sequence)
        return sequence

    @property
    def prefix_length(self) -> int:
        return self.sequence.prefix_length

    @property
    def prefix(self) -> Prefix:
        """See `Sequence.prefix`."""
        return self.sequence.prefix

    @property
    def uncached(self) -> Ids:
        return self.sequence.uncached

    @uncached.setter
    def uncached(self, ids: Ids) -> None:
        self.sequence.uncached = ids

    @property
    def last_pass(self) -> int:
        """See `Sequence.last_pass`."""
        return self.sequence.last_pass

    @property
    def pieces(self) -> list[Ids]:
        """The token ids behind the prefix, in the pieces in which they were encoded."""
        return self.sequence.pieces

    def reset(self) -> None:
        """Forget the prefix, and what is uncached."""
        self.sequence.reset()

    def prefill(self, ids: Ids) -> None:
        """See `Sequence.prefill`."""
        self.sequence.prefill(ids)

    @within_core
    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        """One bidirectional pass of ids [T] over [prefix KV ; canvas], and the head on the requested rows."""
        return self.sequence.denoise(ids, request, soft)

    @within_core
    def project(self, request: HeadRequest) -> HeadOutput:
        """The vocabulary head once more on the hidden states of the last `denoise`."""
        return self.sequence.project(request)

    def run_rows(self, segments: Items[PassRows]) -> list[HeadOutput]:
        """See `Sequence.run_rows`."""
        return self.sequence.run_rows(segments)

    def crop(self, length: int) -> None:
        """See `Sequence.crop`."""
        self.sequence.crop(length)

    def run_sampler(self, sampler: CoreSampler) -> Ask:
        """See `Sequence.run_sampler`."""
        return self.sequence.run_sampler(sampler)

    def open_sequence(self) -> Sequence:
        """A sequence without text. Raises BudgetExceeded for more than the session was opened for, its own
        counted.
        """
        return Sequence.opened(self, "ek_sequence_open")

    def load_sequence(self, path: str | os.PathLike[str]) -> Sequence:
        """A sequence that holds what `Sequence.save` has written. Raises as `Sequence.load` and
        `open_sequence`.
        """
        sequence = self.open_sequence()
        try:
            sequence.load(path)
        except BaseException:
            sequence.close()
            raise
        return sequence

    @within_core
    def run_pass(self, segments: Items[Segment]) -> list[HeadOutput | None]:
        """One pass over the weights for all segments: the answers to their requests, None without one.

        Raises InvalidRequest for segments that do not fit the model or each other, BudgetExceeded for what
        the session was not opened for; `segment` of the error is the number of the one that is refused. After
        a failure every sequence keeps what it kept.
        """
        given = segment_list(segments)  # before anything is looked at: making them may be the caller's code
        return self._within(lambda handle: self._run_pass(handle, given))

    def _run_pass(self, handle: int, segments: list[Segment]) -> list[HeadOutput | None]:
        arrays, run = PassArrays(segments, self), self._library.ek_session_pass
        self._check(lambda: run(handle, arrays.structs, len(arrays.structs)))
        return [None if head is None else head.answer for head in arrays.heads]

    def idle(self) -> None:
        """Tell that no pass follows soon: stops reading ahead, and may keep other experts in memory."""
        self.call("ek_session_idle")

    def statistics(self) -> dict[str, Any]:
        """I/O, compute and memory of this session so far; seconds and bytes. See also `sampling.Stats`."""
        return self.counters() | {
            "process_bytes": self._process_bytes,
            "peak_bytes": peak_bytes(),
            "memory_bytes": self.options.memory_bytes,
        }

    def counters(self) -> dict[str, Any]:
        """I/O and compute of this session so far."""
        found = StatisticsStruct()
        self.call("ek_session_get_statistics", ctypes.byref(found))
        stats = {
            name: getattr(found, name)
            for name, _ in StatisticsStruct._fields_
            if name not in ("struct_size", "reserved", "io_mode")
        }
        own = _of_core(self.bundle.manifest.format) if self._plug is None else self._plug.statistics()
        return {
            **stats,
            **own,
            "io_mode": found.io_mode.decode(),
            "compute_seconds": found.pass_seconds - found.io_wait_seconds,
        }

    def close(self) -> None:
        """Release memory, files and its sequences; in a child of fork, which has no part in them, nothing.

        Raises InvalidRequest while a call of it is under way, in an engine or another thread.
        """
        if not self._process.here:
            self._handle = self._place.value = None
            return
        self._check_opening()
        with self._gate:
            if self._under_way:
                raise errors.InvalidRequest(
                    f"{self.bundle.path}: the session is in a call, and cannot be closed by its engine or "
                    "another thread before that is over"
                )
            self._handle = None
        if self._place.value is None:
            return
        for watcher in list(self._watchers):
            watcher.close()  # what looks on must end first
        with self._gate:
            self._dropped.extend(filter(None, [each.taken() for each in list(self._sequences)]))
            self._close_dropped()
        self._end()

    def _end(self) -> None:
        """Close the handle, once: no signal comes between taking it and the core, which `next` calls."""
        ends = self._library.ek_session_close
        try:
            _raising(self._plug, lambda: next(map(ends, iter(self._taken, None)), None))
        finally:
            if self._plug is not None and self._place.value is None:
                self._plug.close()

    def left(self) -> bool:
        """Close it while Python ends, and whether that is done: what other threads call ends at the next
        package.
        """
        with suppress(BaseException):
            if isinstance(self._plug, ExecutorPlug) and self._under_way:
                self._plug.leave()
            self.close()
        return self._place.value is None and not self._under_way

    def _taken(self) -> int | None:
        value, self._place.value = self._place.value, None
        return value

    def _check_opening(self) -> None:
        if isinstance(self._plug, ExecutorPlug) and self._plug.opens_here():
            raise errors.InvalidRequest(
                f"{self.bundle.path}: the session cannot be called, or closed, by what opens its packages"
            )

    def __enter__(self) -> Session:
        if self._handle is None:
            raise errors.InvalidRequest(f"{self.bundle.path}: the session is closed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_place", None) is None or self._place.value is None:
            return
        if isinstance(self._plug, ExecutorPlug) and self._plug.opens_here():
            threading.Thread(target=self.close, daemon=False).start()  # collected by what it would wait for
        else:
            self.close()

    def watched_by(self, watcher: Watcher) -> None:
        """Have `watcher` closed before the session is."""
        self._watchers.add(watcher)

    def during(self, call: Callable[[], T]) -> T:
        """What `call` returns; the session cannot be closed meanwhile. Raises InvalidRequest where it is."""
        return self._within(lambda _: call())

    # What follows is for `Sequence`.

    def check_sampler(self, sampler: CoreSampler) -> None:
        """Raises InvalidRequest for a sampler of another bundle. Who names none says that it fits."""
        if sampler.bundle is not None and sampler.bundle != self._digest:
            raise errors.InvalidRequest(
                f"the sampler is of another bundle than {self.bundle.path}, whose session it is driven over"
            )

    def own(self, sequence: Sequence) -> None:
        """Know of a sequence that is about to be opened."""
        self._sequences.add(sequence)

    def release(self, sequence: Sequence) -> None:
        """Close a sequence when no call is under way, and in a child of fork never."""
        if self._process.here:
            with self._gate:
                handle = sequence.taken()
                if handle is not None:
                    self._dropped.append(handle)
                self._close_dropped()

    def drop(self, handle: int) -> None:
        """Close a sequence before the next call. Any thread may be collecting it, so no lock is taken."""
        self._dropped.append(handle)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the core. Sequences among the arguments stay open meanwhile."""
        function = getattr(self._library, name)

        def call(handle: int) -> None:
            given = [each.handle if isinstance(each, Sequence) else each for each in arguments]
            self._check(lambda: function(handle, *given))

        self._within(call)

    def _within(self, call: Callable[[int], T]) -> T:
        """What `call` returns of the handle, which stays open meanwhile. No `with` block of a generator: its
        end may be missed where a signal comes before it.
        """
        self._process.check("the session")
        self._check_opening()
        token = object()
        try:
            with self._gate:
                self._close_dropped()
                handle = self._handle
                if handle is None:
                    raise errors.InvalidRequest(f"{self.bundle.path}: the session is closed")
                self._under_way.add(token)
            return call(handle)
        finally:
            self._under_way.discard(token)
            with self._gate:
                self._close_dropped()

    def _close_dropped(self) -> None:
        """To be called with the gate held: a call that begins waits for it."""
        while self._dropped and not self._under_way:
            self._library.ek_sequence_close(self._dropped.popleft())

    def _check(self, call: Callable[[], int]) -> None:
        """Raise what an engine in Python raised within a call into the core, else what its status says;
        before it, what it raised where something was given back.
        """
        if self._plug is not None:
            self._plug.raise_later()
        _raising(self._plug, lambda: _native.check(call(), _ERRORS))

    def _info(self) -> InfoStruct:
        info = InfoStruct()
        self._within(
            lambda handle: _native.check(self._library.ek_session_get_info(handle, ctypes.byref(info)))
        )
        return info


#: Those whose packages Python opens ahead of their use, on a thread of the core's.
_OPENED_AHEAD: WeakSet[Session] = WeakSet()
#: Seconds that Python waits at its end for what other threads have under way.
_LEAVES_S = 10.0


@atexit.register
def _close_all() -> None:
    """Python ends a thread that is within it when it ends itself, which the core cannot survive."""
    until = time.monotonic() + _LEAVES_S
    for session in list(_OPENED_AHEAD):
        while not session.left() and time.monotonic() < until:
            time.sleep(0.01)  # a call of another thread, which nobody waits for, ends


def _of_core(written: str) -> dict[str, Any]:
    """What statistics tell of an engine of the core, which has the name of the format that it runs."""
    row = running(written)
    emulates = row is not None and not row.is_for(platform.machine(), None)
    return {"engine": written, **({"provider": "emulation"} if emulates else {})}


def _raising(plug: EnginePlug | ExecutorPlug | None, call: Callable[[], T]) -> T:
    """What `call` returns; raises what an engine in Python raised within it."""
    return call() if plug is None else plug.raising(call)


def open_session(
    bundle: str | Path | Bundle,
    options: SessionOptions | None = None,
    engine: str | MakeEngine | None = None,
    executor: Executor | None = None,
) -> Session:
    """The session for a bundle: a folder, of a set the bundle that `engine` or this system runs, or what was
    opened of it.

    `engine` insists on one by name ("native", "onnx", "mlx", "coreml", "coreai"), or makes one of the
    caller's own for the opened bundle; `executor` is as in `Session`. Raises what `Bundle.open` and `Session`
    raise.
    """
    named = engine if isinstance(engine, str) else None
    return Session(Bundle.opened(bundle, named), options, executor, engine)


def plan_session(
    bundle: Bundle,
    options: SessionOptions | None = None,
    engine: Engine | None = None,
    process_bytes: int | None = None,
) -> MemoryPlan:
    """The plan that a session over `engine` (None: the core's own) would make, from headers alone.
    `process_bytes` stands for what the process holds; None: what this one does.

    Raises:
        BudgetExceeded: the budget is too small; says how much would be enough.
    """
    plug = None if engine is None else EnginePlug(engine, bundle)
    wanted = _core_options(_options(options))
    table = None if plug is None else ctypes.byref(plug.struct)
    folder, held = _native.path_bytes(bundle.path), _UNLIMITED if process_bytes is None else process_bytes
    return _raising(
        plug,
        lambda: read_plan(
            lambda plan: _library().ek_plan_session(folder, ctypes.byref(wanted), table, held, plan),
            functools.partial(_native.check, further=_ERRORS),
        ),
    )
