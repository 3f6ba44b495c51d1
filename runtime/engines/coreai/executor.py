"""Core AI, by Apple's runtime for Python: on macOS, and with a processor's kernels on Linux."""

from __future__ import annotations

import asyncio
import atexit
import functools
import re
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgekit.runtime.engines.base import Arrays
from edgekit.runtime.engines.coreai import version as coreai_version
from edgekit.runtime.engines.coreai.probe import Probe
from edgekit.runtime.errors import EngineFailed, EngineUnavailable, one_line
from edgekit.runtime.remarks import unsaid

T = TypeVar("T")

_REMARK = re.compile(rb"^ODIE \[default\]: Loading function .*\n?", re.MULTILINE)


class CoreaiExecutor:
    """Opens and calls `.aimodel` folders. The runtime is asynchronous: it lives in a thread of its own.

    Raises:
        EngineUnavailable: coreai-core is missing, of another version than the one that edgekit knows, or
            there is none for this system.
    """

    name = "coreai"

    def __init__(self) -> None:
        if complaint := coreai_version.complaint():
            raise EngineUnavailable(complaint)
        try:
            from coreai.authoring import AIModelAsset
            from coreai.runtime import NDArray
        except ImportError as error:
            raise EngineUnavailable(
                "the coreai engine needs coreai-core, which there is for macOS and Linux: "
                f"pip install 'edgekit[coreai]' ({error})"
            ) from error
        self._asset, self._array, self._loop = AIModelAsset, NDArray, _loop()
        self._probe = Probe()

    def open(self, path: Path, functions: Sequence[str]) -> _Model:
        """Raises EngineFailed."""
        self._probe.check(path)
        try:
            with self._loop.use():
                manager = self._asset.load(path).executable()
                model = self._loop.run(manager.__aenter__())
        except Exception as error:
            raise EngineFailed(f"{path}: Core AI cannot load it: {one_line(error)}") from error
        return _Model(self._loop, self._array, path, manager, model)


class _Ended(Exception):
    """The interpreter is about to end."""


class _Loop:
    """An event loop in a thread, and the end of everything that is under way in the runtime.

    The runtime's threads call Python when a function is done. A thread that does so while the interpreter
    ends is ended by unwinding it, as is any other thread inside of the runtime; the frames of Swift abort the
    process for that. So the interpreter must not end before the runtime is idle.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="edgekit-coreai", daemon=True)
        self._thread.start()
        self._changed = threading.Condition()
        self._users, self._ended = 0, False

    @contextmanager
    def use(self) -> Iterator[None]:
        """Inside, the calling thread may be in the runtime. Raises _Ended from `stop` on."""
        with self._changed:
            if self._ended:
                raise _Ended("the process is ending")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            # Interrupted, a call goes on: nothing may close what it computes with before it is done.
            wait([future])

    def stop(self) -> None:
        """Wait for what is under way, and refuse what comes later."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._users)
        self.run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        """Wait for work whose caller has left, as one that is interrupted does."""
        own = asyncio.current_task()
        await asyncio.gather(*(t for t in asyncio.all_tasks() if t is not own), return_exceptions=True)


@functools.cache
def _loop() -> _Loop:
    """The loop of this process."""
    loop = _Loop()
    atexit.register(loop.stop)
    return loop


class _Model:
    """A loaded package."""

    def __init__(self, loop: _Loop, array: Any, path: Path, manager: Any, model: Any) -> None:
        self._loop, self._array, self._path = loop, array, path
        self._manager, self._model = manager, model
        self._functions: dict[str, Any] = {}

    def call(self, function: str, inputs: Arrays) -> Mapping[str, np.ndarray]:
        try:
            with self._loop.use():
                if function not in self._functions:
                    with unsaid(2, _REMARK):
                        self._functions[function] = self._model.load_function(function)
                feed = {name: self._array(array) for name, array in inputs.items()}
                outputs = self._loop.run(self._functions[function](feed))
                # What the runtime gives lies in its own memory.
                return {name: np.array(value.numpy()) for name, value in outputs.items()}
        except Exception as error:
            raise EngineFailed(
                f"{self._path}: Core AI failed in function {function}: {one_line(error)}"
            ) from error

    def close(self) -> None:
        manager, self._manager = self._manager, None
        with suppress(_Ended), self._loop.use():
            self._functions.clear()
            self._model = None
            if manager is not None:
                self._loop.run(manager.__aexit__(None, None, None))
