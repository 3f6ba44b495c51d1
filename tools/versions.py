"""The version of edgekit, without importing what takes time."""

from __future__ import annotations

import importlib.metadata


def installed_version() -> str:
    """As it was installed."""
    try:
        return importlib.metadata.version("edgekit")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed: run from a source tree)"
