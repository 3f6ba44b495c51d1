"""Gives the core an executor in Python: the functions of `ek_executor` in `edgekit.h` over an `Executor`.

The core chooses packages and functions, and pads and cuts arrays (runtime/native/src/packages). It opens
packages on a thread of its own, ahead of their use, and calls them on the thread that called it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgekit.flashload.core_memory import array
from edgekit.runtime.core_structs import EXECUTOR_FUNCTION_TYPES, ExecutorStruct
from edgekit.runtime.engines.base import Executor, OpenModel
from edgekit.runtime.engines.kept_errors import ENDS, KeptErrors
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
        # What opening has raised, by what the core is told of it: it tells it when the package is wanted.
        self._of_opening: dict[str, BaseException] = {}
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

    def close(self) -> None:
        """To be called once the session is closed. Raises what closing a package has raised."""
        self.raise_later()

    def statistics(self) -> dict[str, Any]:
        """Counters, as those of an engine."""
        return {"engine": self._executor.name, "calls": self._calls}

    def _guarded(self, name: str, function: Callable[..., None]) -> Callable[..., int]:
        def call(user: object, *arguments: Any) -> int:
            *given, place, size = arguments
            try:
                function(*given)
                return _DONE
            except BaseException as error:
                own = self._told(name, error)
                text = one_line(own) or type(own).__name__
                words = text.encode(errors="replace")[: size - 1].decode(errors="ignore")
                ctypes.memmove(place, words.encode() + b"\0", len(words.encode()) + 1)
                if name == "open":
                    self._of_opening[words] = own
                else:
                    self._errors.keep(own)
                return 0

        return call

    def _raised_in_opening(self, told: Exception) -> BaseException | None:
        own = next((error for text, error in self._of_opening.items() if text in str(told)), None)
        self._of_opening.clear()
        return own

    def _told(self, function: str, error: BaseException) -> BaseException:
        if isinstance(error, ENDS):
            raised = f"{type(self._executor).__name__}.{function} raised {type(error).__name__}"
            return EngineFailed(f"{raised}, which ends loops; mend the executor")
        return error

    def _open(self, unit: bytes, path: bytes, functions: Any, count: int, out: Any) -> None:
        folder = Path(os.fsdecode(path))
        opened = self._executor.open(folder, [functions[i].decode() for i in range(count)])
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
            place[...] = _checked(found, own.name.decode(), place.shape, f"{path}: function {name}")

    def _close(self, user: object, package: int) -> None:
        try:
            self._opened.pop(package)[1].close()
        except BaseException as error:
            self._errors.keep_for_later(self._told("close", error))


def _array(given: Any) -> np.ndarray:
    return array(given.data, tuple(given.shape[: given.rank]), _DTYPES[given.dtype])


def _checked(found: Mapping[str, Any], name: str, shape: tuple[int, ...], at: str) -> np.ndarray:
    own = found.get(name)
    if own is None or np.shape(own) != shape:
        what = "nothing" if own is None else f"shape {list(np.shape(own))}"
        raise EngineFailed(
            f"{at} gives {what} for output {name}, the manifest says {list(shape)}; copy or export the "
            "bundle again"
        )
    return np.asarray(own)
