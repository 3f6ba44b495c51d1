"""Packages that are installed, without importing them."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path


def folder_of(package: str) -> Path | None:
    """The folder of a package, None where it is not installed."""
    spec = None
    with contextlib.suppress(ImportError):
        spec = importlib.util.find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return Path(folders[0]) if folders else None
