"""Gives the core an executor in Python: the functions of `ek_executor` in `edgekit.h` over an `Executor`.

The core chooses packages and functions, and pads and cuts arrays (runtime/native/src/packages). It opens
packages on a thread of its own, ahead of their use, and calls them on the thread that called it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgekit.flashload.core_memory import array
from edgekit.flashload.names import shown
from edgekit.runtime.core_structs import EXECUTOR_FUNCTION_TYPES, ExecutorStruct
from edgekit.runtime.engines.base import Executor, OpenModel, output_of
from edgekit.runtime.engines.kept_errors import KeptErrors, told
from edgekit.runtime.errors import EngineFailed, one_line

T = TypeVar("T")
_DONE = 1  # EK_ENGINE_DONE
_DTYPES = {b"float32": np.dtype(np.float32), b"float16": np.dtype(np.float16), b"int32": np.dtype(np.int32)}


class ExecutorPlug:
    """The table of an executor, `struct`, and what it needs while a session uses it."""

    #: Nothing in Python computes but the executor: the rest is the core's.
    engine = None

    def __init__(self, executor: Executor) -> None:
        self._executor, self._name = executor, executor.name.encode()
        self._opened: dict[int, tuple[str, OpenModel]] = {}  # path and package, by what the core knows it by
        self._count, self._calls = 0, 0
        self._errors = KeptErrors()
        # What opening has raised, by the package's name: the core tells it when the package is wanted.
        self._of_opening: dict[str, BaseException] = {}
        self._opens_on: int | None = None  # the thread that is opening one
        self._leaving = False
        self._functions: dict[str, Any] = {
            "open": self._guarded("open", self._open),
            "call": self._guarded("call", self._call),
            "close": self._close,
        }
        self.struct = ExecutorStruct(
            name=self._name,
            **{name: kind(self._functions[name]) for name, kind in EXECUTOR_FUNCTION_TYPES.items()},
        )

    def raising(self, call: Callable[[], T]) -> T:
        """What a call into the core returns. Raises what the executor has raised within it."""
        return self._errors.within(call, self._raised_in_opening)

    def raise_later(self) -> None:
        """Raise what closing a package has raised, once."""
        self._errors.raise_later()

    def opens_here(self) -> bool:
        """Whether this thread is opening a package, for which the session would wait."""
        return self._opens_on == threading.get_ident()

    def leave(self) -> None:
        """Have what is under way in other threads end, without a word, at its next package."""
        self._leaving = True

    def close(self) -> None:
        """To be called once the session is closed. Raises what closing a package has raised."""
        for package in list(self._opened):  # whose closing a signal came before
            self._close(None, package)
        self.raise_later()

    def statistics(self) -> dict[str, Any]:
        """Counters, as those of an engine."""
        return {"engine": self._executor.name, "calls": self._calls}

    def _guarded(self, name: str, function: Callable[..., None]) -> Callable[..., int]:
        def call(user: object, *arguments: Any) -> int:
            *given, place, size = arguments
            try:
                if self._leaving:
                    raise SystemExit
                function(*given)
                return _DONE
            except BaseException as error:
                own = self._told(name, error)
                if name == "open":
                    self._of_opening[given[0].decode()] = own
                else:
                    self._errors.keep(own)
                words = one_line(own).replace("\0", " ").encode(errors="replace")[: size - 1]
                ctypes.memmove(place, words + b"\0", len(words) + 1)
                return 0

        return call

    def _raised_in_opening(self, told: Exception) -> BaseException | None:
        if not isinstance(told, EngineFailed):
            return None
        doing = f"{self._executor.name} failed in opening package "
        for unit, error in list(self._of_opening.items()):
            if f"{doing}{unit}: " in str(told):
                del self._of_opening[unit]
                return error
        return None

    def _told(self, function: str, error: BaseException) -> BaseException:
        return told(self._executor, function, error, "mend the executor")

    def _open(self, unit: bytes, path: bytes, functions: Any, count: int, out: Any) -> None:
        folder = Path(os.fsdecode(path))
        self._opens_on = threading.get_ident()
        try:
            opened = self._executor.open(folder, [functions[i].decode() for i in range(count)])
        finally:
            self._opens_on = None
        self._of_opening.pop(unit.decode(), None)
        self._count += 1  # null is no package
        self._opened[self._count] = str(folder), opened
        out[0] = self._count

    def _call(self, package: int, function: bytes, inputs: Any, taken: int, outputs: Any, given: int) -> None:
        path, opened = self._opened[package]
        name = function.decode()
        # Copies: Core ML's bindings take no array that is read-only, and Core ML may hold one for longer than
        # the call.
        feed = {own.name.decode(): _array(own).copy() for own in inputs[:taken]}
        found = opened.call(name, feed)
        self._calls += 1
        for own in outputs[:given]:
            place = _array(own)
            _put(place, found, own.name.decode(), f"{path}: function {name}")

    def _close(self, user: object, package: int) -> None:
        try:
            self._opened.pop(package)[1].close()
        except BaseException as error:
            self._errors.keep_for_later(self._told("close", error))


def _array(given: Any) -> np.ndarray:
    return array(given.data, tuple(given.shape[: given.rank]), _DTYPES[given.dtype])


def _put(place: np.ndarray, found: Mapping[str, Any], name: str, at: str) -> None:
    """Raises EngineFailed for what is not of the place's shape, or no numbers that it holds."""
    if not isinstance(found, Mapping):
        raise EngineFailed(f"{at} gives {shown(found)}, not arrays by name; mend the executor")
    own = output_of(found, name, place.shape, at)
    if own.dtype.kind not in "fiu":
        raise EngineFailed(f"{at} gives {own.dtype} for output {name}, not {place.dtype}; mend the executor")
    with np.errstate(over="ignore", invalid="ignore"):  # becomes infinity, or is refused
        place[...] = own
        if place.dtype.kind == "i" and not np.array_equal(place, own):
            raise EngineFailed(
                f"{at} gives numbers for output {name} that {place.dtype} does not hold; mend the executor"
            )
