"""The native core for macOS on arm64, compiled by zig's Clang. Nothing of it runs here; `make build-macos`
also links it, with a C++ library that takes longer to build than the core.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from test_packaging import TOOLS

ROOT = Path(__file__).parents[2]
OBJECTS = ROOT / "build" / "macos-objects" / "CMakeFiles" / "edgekit_objects.dir"
MACH_O_64, ARM64 = 0xFEEDFACF, 0x0100000C


@pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None
    or not all(shutil.which(tool, path=TOOLS["PATH"]) for tool in ("make", "cmake")),
    reason="needs make, CMake and zig (pip: ziglang, of the extra dev)",
)
def test_every_source_compiles_without_warnings() -> None:
    subprocess.run(
        ["make", "--no-print-directory", "objects-macos", f"ZIG={sys.executable} -m ziglang"],
        cwd=ROOT, env=TOOLS, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    objects = {path.name.partition(".")[0]: path for path in OBJECTS.rglob("*.cpp.o")}
    assert {"gemm_dotprod", "gemm_i8mm", "attention_neon", "block_file_posix", "process"} <= set(objects)
    for path in objects.values():
        assert struct.unpack("<II", path.read_bytes()[:8]) == (MACH_O_64, ARM64), path
