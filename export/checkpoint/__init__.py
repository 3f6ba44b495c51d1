"""Checkpoints: the hub's directory layout, getting one from the hub, and the tokenizer files beside it."""

from __future__ import annotations

from edgekit.export.checkpoint.hub import Source, locate, resolve
from edgekit.export.checkpoint.safetensors_dir import Checkpoint, Coverage
from edgekit.export.checkpoint.tokenizer_files import read_tokenizer

__all__ = ["Checkpoint", "Coverage", "Source", "locate", "read_tokenizer", "resolve"]
