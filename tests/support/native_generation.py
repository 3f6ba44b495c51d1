"""Whole generations through the C ABI."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint32, c_void_p
from typing import Any

import numpy as np

from edgekit.flashload.structs import Struct
from edgekit.runtime.core_structs import GenerationStatisticsStruct as Statistics
from edgekit.runtime.sampling.core_abi import Wishes as Options
from edgekit.runtime.session import Session
from support.native_sampler import Outcome, copy_of

#: Finish reasons by number; the first is that of a generation that has not come to its end.
REASONS = ("none", "eos", "length", "cancelled")


class Event(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("kind", c_int32), ("canvas_index", c_int64), ("step", c_int64),
        ("start", c_int64), ("ids", POINTER(c_int64)), ("count", c_int64), ("accepted", POINTER(c_uint8)),
        ("statistics", POINTER(Statistics)),
    )  # fmt: skip


ON_EVENT = ctypes.CFUNCTYPE(c_int32, POINTER(Event), c_void_p)


def function(session: Session) -> Any:
    """ek_generate."""
    found = session._library.ek_generate
    found.argtypes = (
        c_void_p, c_void_p, c_int64, POINTER(Options), ON_EVENT, c_void_p, POINTER(Statistics),
    )  # fmt: skip
    found.restype = c_int32
    return found


def last_error(session: Session) -> str:
    text: bytes = session._library.ek_last_error()
    return text.decode()


def plain(statistics: Statistics) -> dict[str, Any]:
    """As sampler_runs.plain has those of a sampler."""
    names = [name for name, kind in Statistics._fields_[2:] if kind is c_int64]
    counters = {name: getattr(statistics, name) for name in names}
    return counters | {"finish_reason": REASONS[statistics.finish_reason]}


def generate(
    session: Session,
    prompt: Sequence[int],
    *,
    seed: int = 0,
    max_new_tokens: int = 0,
    steps: int = 0,
    options: Mapping[str, Any] | str | None = None,
    stop_after: int | None = None,
) -> Outcome:
    """ek_generate: events as sampler_runs.plain gives them, and the final statistics. The callback asks to
    stop at event number `stop_after`. A string as `options` is passed on as it is.
    """
    outcome = Outcome([])
    answer: list[int] = []
    seconds, called = 0.0, time.monotonic()

    def on_event(pointer: Any, user_data: int | None) -> int:
        nonlocal seconds
        event = pointer[0]
        assert user_data == 77 and event.struct_size == ctypes.sizeof(Event)
        assert event.statistics[0].struct_size == ctypes.sizeof(Statistics)
        ids, own = copy_of(event.ids, event.count).tolist(), plain(event.statistics[0])
        assert seconds <= event.statistics[0].seconds <= time.monotonic() - called
        seconds = event.statistics[0].seconds
        if event.kind == 0:
            accepted = copy_of(event.accepted, event.count).tolist()
            outcome.events.append(("draft", event.canvas_index, event.step, event.start, ids, accepted))
        elif event.kind == 1:
            assert event.start == len(answer) and not event.accepted
            answer.extend(ids)
            outcome.events.append(("committed", event.canvas_index, ids))
        else:
            assert event.kind == 2 and not event.ids and not event.count
            outcome.events.append(("done", own))
        assert (own["finish_reason"] == "none") == (event.kind != 2)
        # As many bits as are left of a number that is not 0 count as a stop.
        return 0 if len(outcome.events) != stop_after else -(1 << 31)

    ids = np.array(prompt, dtype=np.int64)
    text = json.dumps(options) if isinstance(options, Mapping) else options
    given = Options(
        seed=seed, max_new_tokens=max_new_tokens, steps=steps, options=None if text is None else text.encode()
    )
    statistics = Statistics(finish_reason=-7, forwards=-7, seconds=-7)
    rest = ctypes.byref(given), ON_EVENT(on_event), 77, ctypes.byref(statistics)
    outcome.status = function(session)(session._handle, ids.ctypes.data, len(ids), *rest)
    assert seconds <= statistics.seconds <= time.monotonic() - called
    outcome.message = last_error(session) if outcome.status else ""
    outcome.stats, outcome.answer = plain(statistics), answer
    return outcome
