"""The `coreai` format: assets (.aimodel) with weights inside of them, for iOS and macOS 27.

What a bundle holds and what its manifest says of packages: see `packaged_format`. `coreai` in the section
is the version that wrote the assets.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import ExportError
from edgekit.export.formats.packaged_format import Packaged, System
from edgekit.runtime import coreai_version

try:
    from edgekit.export.formats.coreai_graph import CoreaiGraph
except ImportError as error:
    if coreai_version.complaint():  # other versions lack what this one has
        raise ExportError(coreai_version.complaint()) from error
    raise

SYSTEM = System(
    name="coreai",
    layout="coreai-2",
    suffix=".aimodel",
    versions={"27": "27"},
    # Apple's advice for assets on iOS.
    limit_bytes=2_000_000_000,
    graph=CoreaiGraph,
    facts={"coreai": coreai_version.VERSION},
)


def variant(*options: Any) -> Packaged:
    """See `System.variant`.

    Raises:
        ExportError: also for another version of coreai-core than the one that edgekit knows.
    """
    if complaint := coreai_version.complaint():
        raise ExportError(complaint)
    return SYSTEM.variant(*options)
