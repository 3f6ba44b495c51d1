"""Whether Core AI can parse a program. Its runtime ends the process over one that it cannot, so a process of
its own is asked first: once for all programs that differ in their weights alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from edgekit.runtime.child_process import run_tidily
from edgekit.runtime.engines.coreai import mlir_bytecode
from edgekit.runtime.errors import EngineFailed, one_line

PROGRAM_FILE = "main.mlirb"
#: Seconds after which a process that still parses is given up.
PATIENCE = 120
_CALL = "from edgekit.runtime.engines.coreai.probe import main; main()"


class Probe:
    """Remembers what was asked: under a memory budget packages are opened in every step."""

    def __init__(self) -> None:
        self._checked: set[Path] = set()
        self._parsed: set[bytes] = set()

    def check(self, package: Path) -> None:
        """Raises EngineFailed for a package that would end the process."""
        if package in self._checked:
            return
        try:
            structure = mlir_bytecode.structure(package / PROGRAM_FILE)
        except (OSError, mlir_bytecode.NotBytecode) as error:
            raise EngineFailed(f"{package}: Core AI cannot load it: {one_line(error)}") from error
        if structure not in self._parsed:
            _ask(package)
            self._parsed.add(structure)
        self._checked.add(package)


def _ask(package: Path) -> None:
    # In an application that is one file, that file is what sys.executable names.
    if not sys.executable or getattr(sys, "frozen", False):
        return
    path = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        done = run_tidily(
            [sys.executable, "-P", "-c", _CALL, str(package)],
            env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EngineFailed(
            f"{package}: Core AI does not come to an end with its program; export the bundle again"
        ) from None
    # Other failures are errors that Core AI reports to this process as well.
    if done.returncode < 0 and done.returncode != -signal.SIGINT:
        raise EngineFailed(
            f"{package}: Core AI cannot parse its program, and would end this process over it "
            f"({signal.Signals(-done.returncode).name}); export the bundle again, or download it again"
        )


def main() -> None:
    """Parse the package that the command line names; the process ends without the runtime's threads."""
    from coreai.authoring import AIModelAsset

    async def load() -> None:
        async with AIModelAsset.load(Path(sys.argv[1])).executable() as model:
            for name in model.function_names:
                model.load_function(name)
            os._exit(0)

    asyncio.run(load())
