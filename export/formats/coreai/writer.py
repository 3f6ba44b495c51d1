"""The `coreai` format: assets (.aimodel) with weights inside of them, for iOS and macOS 27.

What a bundle holds and what its manifest says of packages: see `packages.writer`. `coreai` in the section
is the version that wrote the assets.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import ExportError
from edgekit.export.formats.packages.cut import PackagePlan
from edgekit.export.formats.packages.writer import PackagedFormat
from edgekit.runtime.engines.coreai import version as coreai_version

try:
    from edgekit.export.formats.coreai.graph import CoreaiGraph
except ImportError as error:
    if coreai_version.complaint():  # other versions lack what this one has
        raise ExportError(coreai_version.complaint()) from error
    raise


class CoreaiFormat(PackagedFormat):
    """Layout `coreai-2`, see `packages.layout`."""

    SUFFIX = ".aimodel"
    # Apple's advice for assets on iOS.
    LIMIT_BYTES = 2_000_000_000

    @classmethod
    def check_versions(cls) -> None:
        """Refuse another version of coreai-core than the one that edgekit knows. Raises ExportError."""
        if complaint := coreai_version.complaint():
            raise ExportError(complaint)

    def graph(self, package: PackagePlan) -> CoreaiGraph:
        return CoreaiGraph(self.activations == "int8")

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "coreai": coreai_version.VERSION}
