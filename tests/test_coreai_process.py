"""How Core AI's event loop ends with its process. Needs no Core AI."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from edgekit.runtime.engines.coreai import _Ended, _Loop, _Model, _unsaid


class Work:
    """Takes as long as it is told to."""

    def __init__(self) -> None:
        self.begun, self.release, self.done = threading.Event(), threading.Event(), False

    async def __call__(self) -> str:
        self.begun.set()
        while not self.release.is_set():
            await asyncio.sleep(0.001)
        self.done = True
        return "done"


def stop_in_the_middle(loop: _Loop, work: Work) -> None:
    """`stop`, which can only return once the work is released."""
    work.begun.wait()
    threading.Timer(0.02, work.release.set).start()
    loop.stop()
    assert work.done


def test_what_a_thread_does_in_the_runtime_is_waited_for() -> None:
    loop, work, results = _Loop(), Work(), list[Any]()

    def call() -> None:
        with loop.use():
            results.append(loop.run(work()))

    thread = threading.Thread(target=call)
    thread.start()
    stop_in_the_middle(loop, work)
    thread.join()
    assert results == ["done"]


def test_work_whose_caller_was_interrupted_is_waited_for() -> None:
    """The runtime calls Python at its end all the same."""
    loop, work = _Loop(), Work()
    asyncio.run_coroutine_threadsafe(work(), loop._loop)
    stop_in_the_middle(loop, work)


def test_later_work_is_refused_and_closing_is_not() -> None:
    loop, closed = _Loop(), list[str]()

    class Manager:
        async def __aexit__(self, *_: object) -> None:
            closed.append("closed")

    models = [_Model(loop, None, None, Manager(), None) for _ in range(2)]  # type: ignore[arg-type]
    models[0].close()
    models[0].close()
    loop.stop()
    models[1].close()
    assert closed == ["closed"]
    with pytest.raises(_Ended, match="the process is ending"), loop.use():
        pass


def test_remarks_on_functions_are_left_out_and_all_else_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), _unsaid():
        os.write(2, b"ODIE [default]: Loading function 't128'\nerror: Loading function\n")
        raise KeyboardInterrupt
    with _unsaid():
        pass
    os.write(2, b"behind it\n")
    assert capfd.readouterr().err == "error: Loading function\nbehind it\n"
