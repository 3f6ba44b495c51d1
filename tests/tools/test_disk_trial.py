"""A trial of the disk leaves nothing behind, and says how much room it takes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgekit.tools import disk_trial
from edgekit.tools.cli import main
from edgekit.tools.doctor import machine


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_who_is_ended_leaves_nothing(tmp_path: Path, number: str) -> None:
    code = "import sys, pathlib, edgekit.tools.disk_trial as d; d.try_disk(pathlib.Path(sys.argv[1]), 5)"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stderr=subprocess.DEVNULL) as process:
        for _ in range(3000):
            if list(tmp_path.glob("*/weights.safetensors")):
                break
            time.sleep(0.01)
        assert list(tmp_path.iterdir())
        process.send_signal(getattr(signal, number))
    assert process.returncode not in (0, None) and not list(tmp_path.iterdir())


def test_a_disk_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disk_trial.shutil, "disk_usage", lambda folder: usage._replace(free=100_000_000))
    done = CliRunner().invoke(main, ["plan", "tiny-gemma", "--disk", str(tmp_path)])
    assert (
        done.exit_code == 2
        and f"{tmp_path}: has 100 MB free, and a trial of the disk writes 268 MB" in done.stderr
    )
    assert machine.on_disk(tmp_path).says.endswith("where --disk says: there is not so much free")
