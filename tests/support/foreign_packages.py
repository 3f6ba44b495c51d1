"""Packages that are not among those of the tests, in folders of their own below `build`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.original_environment import ORIGINAL_ENVIRONMENT

ROOT = Path(__file__).parents[2]


def installed(requirements: Path, *options: str) -> Path:
    """The folder of packages that Python is given besides its own, made once for a file `x_requirements.txt`,
    with further `options` of pip. Skips the test where they cannot be had, but not in CI.
    """
    fcntl = pytest.importorskip("fcntl")
    what = requirements.name.partition("_requirements")[0].replace("_", "-")
    asked = requirements.read_bytes() + " ".join([sys.version, *options]).encode()
    name = hashlib.sha256(asked).hexdigest()[:16]
    folder = ROOT / "build" / f"{what}-{name}"
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test workers one installs
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial)]
            ended = subprocess.run(
                [sys.executable, *install, *options, "-r", str(requirements)],
                env=dict(ORIGINAL_ENVIRONMENT),
                capture_output=True,
                text=True,
            )
            if ended.returncode:
                assert not os.environ.get("CI"), ended.stderr
                pytest.skip(f"{what} cannot be installed here: {ended.stderr.strip()[-300:]}")
            partial.rename(folder)
    return folder
