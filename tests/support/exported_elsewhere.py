"""An export in a process of its own: what it loads goes with it, and TVM's compiler takes 350 MB.

python -m support.exported_elsewhere CHECKPOINT OUT    # its options, pickled, on standard input
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from edgekit.export.pipeline import ExportOptions, export


def export_elsewhere(checkpoint: Path, out: Path, options: ExportOptions) -> None:
    """As `export`. What a test has patched does not hold there."""
    done = subprocess.run(
        [sys.executable, "-m", "support.exported_elsewhere", checkpoint, out],
        input=pickle.dumps(options), cwd=Path(__file__).parents[1], capture_output=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-3000:]


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]), pickle.loads(sys.stdin.buffer.read()))
