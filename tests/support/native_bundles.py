"""Bundles of the native format for tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from support.bundles import TILE_BYTES
from support.checkpoints import write_checkpoint
from support.role_heads import write_head


def native_bundle(
    folder: Path, family: str, scheme: Scheme, role_head: bool = False, **overrides: Any
) -> Path:
    """A random checkpoint in `folder`/checkpoint, with a role head if it is to have one, exported to the
    returned `folder`/bundle.
    """
    write_checkpoint(folder / "checkpoint", family, **overrides)
    if role_head:
        config = json.loads((folder / "checkpoint" / "config.json").read_text())
        write_head(folder / "checkpoint", config["hidden_size"])
    options = ExportOptions("native", scheme=scheme, tile_bytes=TILE_BYTES)
    export(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle"


def three_layers(factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes bundles of three layers, dense or with experts, by family, once each."""
    made: dict[str, Path] = {}

    def bundle(family: str) -> Path:
        if family not in made:
            layers = {"diffusion_gemma": "num_hidden_layers", "llada": "n_layers"}[family]
            folder = factory.mktemp(family)
            made[family] = native_bundle(folder, family, Scheme("mixed4", 16), **{layers: 3})
        return made[family]

    return bundle
