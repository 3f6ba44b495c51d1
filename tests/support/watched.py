"""A script in a process of its own, its memory watched from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def run_watched(script: str, bundle: Path, memory: int) -> tuple[dict[str, Any], int]:
    """The JSON that `script` prints, and its peak resident memory in bytes as the kernel reports it.

    The script gets the bundle and the memory budget (0: none) as arguments.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(bundle), str(memory)],
        stdout=subprocess.PIPE,
        env=dict(os.environ, OMP_NUM_THREADS="2"),
    )
    assert process.stdout is not None
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                return
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    peak = max(peak, int(line.split()[1]) * 1024)
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.stdout.read()
    assert process.wait(300) == 0
    watcher.join()
    return json.loads(output), peak
