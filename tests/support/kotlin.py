"""Kotlin's compiler, and the coroutines that its jar has inside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "build" / "kotlin"
_NAMES = ("kotlin-compiler", "kotlin-stdlib", "kotlin-reflect", "kotlin-script-runtime", "annotations")
KOTLIN_JARS = [_FOLDER / f"{name}.jar" for name in _NAMES]


def kotlinc() -> list[str]:
    """The compiler's command; its class path has to name what it would add by itself."""
    if not KOTLIN_JARS[0].is_file() and not os.environ.get("EDGEKIT_KOTLIN"):
        pytest.skip("needs what .ci/kotlin fetches")
    path = os.pathsep.join(map(str, KOTLIN_JARS))
    return ["java", "-cp", path, "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", "-no-stdlib", "-no-reflect"]
