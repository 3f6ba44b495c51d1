"""The flash file: layout, writing, verified reading, residency planning and the streaming ring."""

from __future__ import annotations

from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.errors import BudgetExceeded, BundleError, EdgekitError
from edgekit.flashload.format import Layout, Run, RunSpec, TensorSlot, TensorSpec, layout, tensor_views
from edgekit.flashload.manifest import Manifest
from edgekit.flashload.plan import Plan, Unit, plan
from edgekit.flashload.reader import FlashFile, PendingRead
from edgekit.flashload.ring import Loaded, Ring, RingStats
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
    "Loaded",
    "Manifest",
    "PendingRead",
    "Plan",
    "Ring",
    "RingStats",
    "Run",
    "RunSpec",
    "TensorSlot",
    "TensorSpec",
    "Unit",
    "layout",
    "plan",
    "tensor_views",
]
