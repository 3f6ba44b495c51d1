"""The library that shows the tests what the native core keeps to itself (`ekt_*` functions)."""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import os
from pathlib import Path

from edgekit.flashload import _native


@functools.cache
def library() -> ctypes.CDLL:
    """The testing library: the path in EDGEKIT_TESTING_LIB, else beside the installed core.

    Its absence fails the tests: `make test` builds it.
    """
    override = os.environ.get("EDGEKIT_TESTING_LIB")
    name = _native.library_name().replace("core", "testing")
    path = Path(override) if override else Path(str(importlib.resources.files("edgekit.flashload") / name))
    assert path.is_file(), f"{path}: missing; configure with -DEDGEKIT_TESTING=ON, as make test does"
    return ctypes.CDLL(str(path))
