"""A child of fork gets one line for what its parent opened, ends cleanly, and harms nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")

# The child's exit code says what happened there: 0 for one line per call and a clean end.
FORK = """
import os, signal, sys
import numpy as np
from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.reader import FlashFile
from edgekit.runtime.session import open_session
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import SessionOptions

def refused(call):
    try:
        call()
    except InvalidRequest as error:
        assert "opened before fork()" in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError("the child got an answer")

def in_child(*calls, end):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a hang is a failure
        for call in calls:
            refused(call)
        end()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
"""
SESSION = """
session = open_session(sys.argv[1], SessionOptions(resident_bytes=0, threads=2))
ids = np.arange(8)
before = session.denoise(ids, HeadRequest(logits=True)).logits
passes = lambda: session.denoise(ids, HeadRequest()), lambda: session.project(HeadRequest())
in_child(*passes, session.idle, session.reset, session.statistics, end=session.close)
in_child(session.idle, end=lambda: None)  # closed by the end of the process alone
after = session.denoise(ids, HeadRequest(logits=True)).logits
assert np.array_equal(before, after)
session.close()
print("done")
"""
FILE = """
file = FlashFile(sys.argv[1])
name = next(iter(file.runs))
from edgekit.flashload.buffers import AlignedBuffer
buffer = AlignedBuffer(file.run(name).length).view
file.read_into(name, buffer)
in_child(lambda: file.read_into(name, buffer), end=file.close)
file.read_into(name, buffer)
file.close()
print("done")
"""


def run(code: str, path: Path) -> None:
    words = [sys.executable, "-W", "ignore", "-c", FORK + code, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("fixture", ["float_bundle", "native_bundle"])
def test_a_session_belongs_to_the_process_that_opened_it(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    run(SESSION, request.getfixturevalue(fixture))


def test_a_flash_file_belongs_to_the_process_that_opened_it(native_bundle: Path) -> None:
    (weights,) = native_bundle.glob("*.safetensors")
    run(FILE, weights)
