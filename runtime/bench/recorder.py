"""What a session does while it is measured: the core's recorder."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import POINTER, c_char_p, c_int64, c_uint64, c_void_p
from types import TracebackType
from typing import Any, Final, Protocol

from edgekit.flashload import _native
from edgekit.flashload.core_json import read_json
from edgekit.flashload.errors import EdgekitError, InvalidRequest
from edgekit.runtime.bench.structs import JOULES, BenchOptionsStruct
from edgekit.runtime.core_structs import (
    EVENT_COMMITTED,
    EVENT_DONE,
    EVENT_DRAFT,
    EventStruct,
    GenerationStatisticsStruct,
)
from edgekit.runtime.sampling.events import Committed, Done, Draft, Event, Stats
from edgekit.runtime.session.session import Session

#: Of the reports that this version reads and writes.
REPORT_VERSION: Final = 1

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_bench_open": (c_void_p, POINTER(BenchOptionsStruct), POINTER(c_void_p)),
    "ek_bench_begin": (c_void_p, c_char_p, c_int64),
    "ek_bench_tell": (c_void_p, c_int64, POINTER(EventStruct)),
    "ek_bench_end": (c_void_p,),
    "ek_bench_drop": (c_void_p,),
    "ek_bench_get_report": (c_void_p, c_char_p, c_uint64, POINTER(c_uint64)),
}
_KINDS: Final = {Draft: EVENT_DRAFT, Committed: EVENT_COMMITTED, Done: EVENT_DONE}
_COUNTED: Final = (
    "denoising_steps", "forwards", "projections", "prefills", "committed_tokens", "canvases", "rows",
)  # fmt: skip


class Counting(Protocol):
    """A sampler, or what else counts as one does."""

    @property
    def stats(self) -> Stats: ...


class Bench:
    """Measures tests of a session, over whichever engine; use it as a context manager, within that of the
    session.

    `about` is for the report: the model, the engine, who measures. Of each test the first `spans` reads,
    waits and uses of weights are kept. `joules` reads a meter in place of those that the library knows, from
    any moment on; it is called often, from another thread.
    """

    def __init__(
        self,
        session: Session,
        about: Mapping[str, Any] | None = None,
        spans: int = 0,
        joules: Callable[[], float | None] | None = None,
        interval_milliseconds: int = 0,
    ) -> None:
        self._handle: int | None = None
        self._session = session
        self._library = _native.functions(_SIGNATURES, "ek_bench_close")
        #: By number of a generation: where its drafts end, and who counts since the core was told.
        self._stops: dict[int, int] = {}
        self._counting: dict[int, Counting] = {}
        self._joules = JOULES(0) if joules is None else JOULES(lambda _: _reading(joules))
        wanted = BenchOptionsStruct(
            interval_milliseconds=interval_milliseconds,
            spans=spans,
            about=json.dumps(dict(about or {})).encode(),
            joules=self._joules,
        )
        handle = c_void_p()
        session.call("ek_bench_open", ctypes.byref(wanted), ctypes.byref(handle))
        self._handle = handle.value
        session.watched_by(self)

    @contextmanager
    def test(self, label: Mapping[str, Any], prompt_tokens: int = 0) -> Iterator[None]:
        """What the session does within it is a test of that name, a dictionary that JSON can hold; one that
        ends by an exception is forgotten. What was read ahead is dropped first.
        """
        text = json.dumps(dict(label)).encode()
        self._call("ek_bench_begin", text, prompt_tokens)
        try:
            yield
            for sequence, sampler in self._counting.items():
                self._told(sequence, Draft, sampler.stats)
            self._call("ek_bench_end")
        except BaseException:
            with suppress(EdgekitError):  # of one that was closed meanwhile
                self._call("ek_bench_drop")
            raise
        finally:
            self._stops, self._counting = {}, {}

    def tell(self, sequence: int, event: Event, sampler: Counting | None = None) -> None:
        """A generation of the test, by number, told this now; `sampler` counts it until the test ends."""
        stop = 0
        if isinstance(event, Draft):
            stop = event.start + len(event.ids)
            if sampler is not None and stop <= self._stops.get(sequence, -1):
                # A further step: only its counters are new, and the next step waits while they are told.
                self._counting[sequence] = sampler
                return
            self._stops[sequence] = stop
        self._counting.pop(sequence, None)
        stats = event.stats if isinstance(event, Done) else None if sampler is None else sampler.stats
        self._told(sequence, type(event), stats, stop)

    def _told(self, sequence: int, kind: type[Event], stats: Stats | None, stop: int = 0) -> None:
        """Tell the core; a draft is of the answer's positions before `stop`."""
        counted = None
        if stats is not None:
            counted = GenerationStatisticsStruct(**{name: getattr(stats, name) for name in _COUNTED})
        told = EventStruct(
            kind=_KINDS[kind],
            count=stop,
            statistics=None if counted is None else ctypes.pointer(counted),
        )
        self._call("ek_bench_tell", sequence, ctypes.byref(told))

    def report(self) -> dict[str, Any]:
        """All tests that are over, with the machine, the bundle and the session: docs/bench.md."""
        library, handle = self._library, self._opened()
        found: dict[str, Any] = self._session.during(
            lambda: read_json(lambda *place: int(library.ek_bench_get_report(handle, *place)))
        )
        return found

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.ek_bench_close(handle)

    def _call(self, name: str, *arguments: Any) -> None:
        function, handle = getattr(self._library, name), self._opened()
        self._session.during(lambda: _native.check(function(handle, *arguments)))

    def _opened(self) -> int:
        if self._handle is None:
            raise InvalidRequest("the bench is closed, or its session is")
        return self._handle

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _reading(joules: Callable[[], float | None]) -> float:
    """What a meter says; negative: it does not."""
    try:
        found = joules()
        return -1.0 if found is None else float(found)
    except Exception:
        return -1.0
