"""Files of the sample application for Android, and what Debian has to compile its resources with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "runtime" / "java" / "android" / "sample"
MAIN = FOLDER / "app" / "src" / "main"
MANIFEST = MAIN / "AndroidManifest.xml"
RESOURCES = MAIN / "res"
SOURCES = MAIN / "kotlin"
#: What it does, without classes of Android's.
MODEL = SOURCES / "io" / "edgekit" / "sample" / "model"
NAMESPACE = "io.edgekit.sample"
_FRAMEWORK = Path("/usr/share/android-framework-res/framework-res.apk")


def framework() -> Path:
    """Android's own resources, beside `aapt` that reads them."""
    there = shutil.which("aapt") and _FRAMEWORK.is_file()
    if not there and not os.environ.get("EDGEKIT_SYSTEM_PACKAGES"):
        pytest.skip("needs the compiler of Android's resources (Debian: aapt android-framework-res)")
    return _FRAMEWORK


def with_package(copy: Path) -> Path:
    """A copy of the manifest with the package that Gradle writes into it."""
    said = MANIFEST.read_text(encoding="utf-8")
    assert said.count("<manifest ") == 1
    copy.write_text(said.replace("<manifest ", f'<manifest package="{NAMESPACE}" '), encoding="utf-8")
    return copy
