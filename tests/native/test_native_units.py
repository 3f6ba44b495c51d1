"""The native core's own tests, which the developers' build has compiled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FOUND = sorted((Path(__file__).parents[2] / "build").glob("py3-none-*/edgekit_native_tests"))


@pytest.mark.skipif(
    not FOUND and "CI" not in os.environ,
    reason="needs the developers' build of the native library: make venv",
)
def test_the_core_passes_its_own_tests() -> None:
    done = subprocess.run([FOUND[-1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, "\n".join(
        [line for line in done.stdout.splitlines() if not line.startswith("ok ")] + [done.stderr]
    )
