"""What others keep busy is seen, and an idle thread is not taken for work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edgekit.tools.benchmark import busy

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="the system does not say")


def test_a_program_at_work_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as program:
        try:
            found = busy.busy_cores(0.5)
        finally:
            program.kill()
    assert found is not None and 0.5 < found <= (os.cpu_count() or 1)


def test_shares_are_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([(100, 1000), (150, 1200)])
    monkeypatch.setattr(busy, "_ticks", lambda: next(ticks))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert busy.busy_cores(0.0) == pytest.approx(6.0)
    monkeypatch.setattr(busy, "_ticks", lambda: None)
    assert busy.busy_cores(0.0) is None
