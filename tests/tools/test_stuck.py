"""Ctrl-C while the main thread is inside of a call that does not end."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from support.terminal import CTRL_C, PROMPT, Terminal

#: A denoising pass that computes for minutes without the interpreter lock, as the engines do.
STUCK = """
import hashlib, sys
from edgekit.runtime.session import Session
from edgekit.tools import stuck
stuck.PATIENCE_S = 0.3
def denoise(self, ids, request, soft=None):
    if sys.argv[-1] == "--watch":
        import time
        time.sleep(0.5)
    open(MARK, "w").close()
    hashlib.pbkdf2_hmac("sha256", b"x", b"x", 2**31 - 1)
Session.denoise = denoise
from edgekit.__main__ import main
main()
"""
NOTICED = """
import os, signal, time
from edgekit.tools import stuck
from edgekit.tools.interrupts import Interrupts
stuck.PATIENCE_S = 0.3
def ask():
    try:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        print("noticed", flush=True)
with stuck.ending_if_stuck():
    ask()
    time.sleep(1)
    with Interrupts():
        ask()
    time.sleep(1)
ask()
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


#: A Ctrl-C that answers what is said of the first one before anything else runs.
ANSWERED = """
import hashlib, os, signal, threading
from edgekit.tools import stuck
stuck.PATIENCE_S = 0.3
def answer():
    os.kill(os.getpid(), signal.SIGINT)
with stuck.ending_if_stuck(first=answer):
    threading.Timer(0.1, answer).start()
    hashlib.pbkdf2_hmac("sha256", b"x", b"x", 2**31 - 1)
"""
#: One pass that computes for a while without the interpreter lock, once a file is there.
LONG = """
import hashlib, os
from edgekit.runtime.session import Session
from edgekit.tools import stuck
stuck.PATIENCE_S = 0.3
denoise = Session.denoise
def computes_long(self, *given, **named):
    if os.path.exists(MARK):
        os.remove(MARK)
        hashlib.pbkdf2_hmac("sha256", b"x", b"x", ROUNDS)
    return denoise(self, *given, **named)
Session.denoise = computes_long
"""
#: Rounds for some seconds, and for minutes.
SECONDS, MINUTES = 2**23, 2**31 - 1


def begun(mark: Path) -> None:
    end = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def child(bundle: Path, mark: Path, *words: str, **streams: int) -> subprocess.Popen[bytes]:
    code = STUCK.replace("MARK", repr(str(mark)))
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, "run", str(bundle), "Hello", *words],
        env={**os.environ, "TERM": "xterm-256color"}, start_new_session=True, **streams,
    )  # fmt: skip


def test_a_pass_that_does_not_end_is_interrupted(native_bundle: Path, tmp_path: Path) -> None:
    started = child(
        native_bundle, tmp_path / "mark", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        begun(tmp_path / "mark")
        started.send_signal(signal.SIGINT)
        out, said = started.communicate(timeout=20)
    finally:
        started.kill()
    assert (started.returncode, out, said) == (130, b"", b"edgekit: interrupted\n")


@pytest.mark.parametrize("words", [[], ["--watch"]])
def test_the_terminal_is_as_before(words: list[str], native_bundle: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    started = child(native_bundle, tmp_path / "mark", *words, stdin=slave, stdout=slave, stderr=slave)
    received = b""
    try:
        begun(tmp_path / "mark")
        started.send_signal(signal.SIGINT)
        end = time.monotonic() + 20
        while started.poll() is None or select.select([master], [], [], 0)[0]:
            assert time.monotonic() < end
            if select.select([master], [], [], 0.1)[0]:
                received += os.read(master, 65536)
        assert termios.tcgetattr(slave) == before
    finally:
        started.kill()
        os.close(master)
        os.close(slave)
    assert started.returncode == 130
    text = received.decode(errors="replace")
    assert text.endswith("\r\nedgekit: interrupted\r\n")
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    assert text.rfind("\x1b[?7h") > text.rfind("\x1b[?7l")


@pytest.mark.parametrize("rounds", [SECONDS, MINUTES])
def test_a_conversation_outlives_ctrl_c_in_a_long_pass(
    rounds: int, native_bundle: Path, tmp_path: Path
) -> None:
    mark, patch = tmp_path / "mark", tmp_path / "sitecustomize.py"
    patch.write_text(LONG.replace("MARK", repr(str(mark))).replace("ROUNDS", str(rounds)))
    with Terminal("chat", native_bundle, PYTHONPATH=str(tmp_path)) as terminal:
        terminal.wait_for(PROMPT)
        terminal.press("one\n")
        terminal.wait_for(PROMPT)
        mark.touch()
        terminal.press("two\n")
        terminal.wait_for("reading")
        while mark.exists():
            time.sleep(0.02)
        terminal.press(CTRL_C)
        terminal.wait_for("stops after this pass; Ctrl-C again ends")
        if rounds == SECONDS:
            terminal.wait_for("stopped: this turn is taken back")
            terminal.wait_for(PROMPT)
            terminal.press("/stats\n")
            terminal.wait_for("last answer: ")
            return
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 130
        assert terminal.received.endswith("\r\nedgekit: interrupted\r\n") and terminal.echoes


def test_what_is_noticed_ends_nothing() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", NOTICED], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("noticed\n" * 3 + "True\n", "", 0)


def test_an_answer_that_comes_at_once_counts() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", ANSWERED], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("", "edgekit: interrupted\n", 130)
