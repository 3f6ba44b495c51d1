"""The flash file and the manifest: layout, writing, verified reading."""

from __future__ import annotations

from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.errors import BudgetExceeded, BundleError, EdgekitError
from edgekit.flashload.format import Layout, Run, RunSpec, TensorSlot, TensorSpec, layout
from edgekit.flashload.manifest import Manifest
from edgekit.flashload.reader import FlashFile, tensor_views
from edgekit.flashload.writer import FileDigest, FlashWriter

__all__ = [
    "AlignedBuffer",
    "BudgetExceeded",
    "BundleError",
    "EdgekitError",
    "FileDigest",
    "FlashFile",
    "FlashWriter",
    "Layout",
    "Manifest",
    "Run",
    "RunSpec",
    "TensorSlot",
    "TensorSpec",
    "layout",
    "tensor_views",
]
