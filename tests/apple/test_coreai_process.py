"""The end of Core AI's event loop with its process. Needs no Core AI."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from edgekit.runtime.engines.coreai import probe as coreai_probe
from edgekit.runtime.engines.coreai.executor import _REMARK, _Ended, _Loop, _Model
from edgekit.runtime.engines.coreai.probe import Probe
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.remarks import unsaid


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
    with pytest.raises(KeyboardInterrupt), unsaid(2, _REMARK):
        os.write(2, b"ODIE [default]: Loading function 't128'\nerror: Loading function\n")
        raise KeyboardInterrupt
    with unsaid(2, _REMARK):
        pass
    os.write(2, b"behind it\n")
    assert capfd.readouterr().err == "error: Loading function\nbehind it\n"


def package(folder: Path, program: bytes) -> Path:
    folder.mkdir()
    (folder / "main.mlirb").write_bytes(program)
    return folder


@pytest.mark.parametrize("program", [b"", b"ML", b"ML\xefR\x0dMLIR\0\x85\x01\0"])
def test_what_is_no_bytecode_is_refused(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(EngineFailed, match="is no MLIR bytecode"):
        Probe().check(package(tmp_path / "a.aimodel", program))


def test_a_program_that_ends_the_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in place of Core AI's, which tells of itself in a file."""
    told, probe = tmp_path / "told", Probe()
    empty = b"ML\xefR\x0dMLIR\0"

    def ending(call: str) -> None:
        line = f"import os; open({str(told)!r}, 'a').write('.'); {call}"
        monkeypatch.setattr(coreai_probe, "_CALL", line)

    ending("os.abort()")
    with pytest.raises(EngineFailed, match=r"a\.aimodel: Core AI cannot parse its program.*SIGABRT"):
        probe.check(package(tmp_path / "a.aimodel", empty))
    ending("os._exit(0)")
    for name in "bcd":
        probe.check(package(tmp_path / f"{name}.aimodel", empty))
    assert told.read_text() == "..", "programs that are parsed alike are tried once"
    ending("import time; time.sleep(60)")
    monkeypatch.setattr(coreai_probe, "PATIENCE", 0.5)
    with pytest.raises(EngineFailed, match="does not come to an end"):
        Probe().check(package(tmp_path / "e.aimodel", empty))


@pytest.mark.parametrize("end", ["os._exit(0)", "os.abort()", "time.sleep(60)"])
def test_a_process_leaves_no_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Core AI unpacks a program into a temporary folder, which it removes where it comes to its own end."""
    told = tmp_path / "told"
    made = f"open({str(told)!r}, 'w').write(tempfile.mkdtemp(suffix='.aimodelx'))"
    monkeypatch.setattr(coreai_probe, "_CALL", f"import os, tempfile, time; {made}; {end}")
    monkeypatch.setattr(coreai_probe, "PATIENCE", 2)
    with nullcontext() if "exit" in end else pytest.raises(EngineFailed):
        Probe().check(package(tmp_path / "a.aimodel", b"ML\xefR\x0dMLIR\0"))
    assert told.read_text().endswith(".aimodelx") and not Path(told.read_text()).exists()
