"""The `coreai` format: assets (.aimodel) with weights inside of them, for iOS and macOS 27.

What a bundle holds and what its manifest says of packages: see `packaged_format`. `coreai` in the section
is the version that wrote the assets.
"""

from __future__ import annotations

import importlib.metadata

from edgekit.export.formats.coreai_graph import CoreaiGraph
from edgekit.export.formats.packaged_format import System

SYSTEM = System(
    name="coreai",
    layout="coreai-1",
    suffix=".aimodel",
    versions={"27": "27"},
    # Apple's advice for assets on iOS.
    limit_bytes=2_000_000_000,
    graph=CoreaiGraph,
    facts={"coreai": importlib.metadata.version("coreai-core")},
)
variant = SYSTEM.variant
