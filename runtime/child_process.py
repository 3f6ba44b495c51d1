"""Processes that are started and waited for, and that leave no temporary files."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any


def run_tidily(
    command: Sequence[str], env: Mapping[str, str], **options: Any
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with a folder for temporary files that is removed with what is in it, however the
    process ends: a library cleans up behind itself only where it comes to its own end.
    """
    with tempfile.TemporaryDirectory(prefix="edgekit-", ignore_cleanup_errors=True) as folder:
        own = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder)
        return subprocess.run(command, env={**env, **own}, check=False, **options)
