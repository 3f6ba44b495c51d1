"""Bundles of the native format for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from support.bundles import TILE_BYTES
from support.checkpoints import write_checkpoint


def native_bundle(folder: Path, family: str, scheme: Scheme, **overrides: Any) -> Path:
    """A random checkpoint in `folder`/checkpoint, exported to the returned `folder`/bundle."""
    write_checkpoint(folder / "checkpoint", family, **overrides)
    options = ExportOptions("native", scheme=scheme, tile_bytes=TILE_BYTES)
    export(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle"
