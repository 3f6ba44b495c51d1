"""The `coreml` format: packages (.mlpackage) with weights inside of them, for the Neural Engine and GPU.

What a bundle holds and what its manifest says of packages: see `packages.writer`.
"""

from __future__ import annotations

from edgekit.export.formats.coreml.graph import CoremlGraph
from edgekit.export.formats.packages.cut import PackagePlan
from edgekit.export.formats.packages.writer import PackagedFormat


class CoremlFormat(PackagedFormat):
    """Layout `coreml-2`, see `packages.layout`."""

    SUFFIX = ".mlpackage"
    # What a chunk may have for the Neural Engine; larger ones run elsewhere without a word.
    LIMIT_BYTES = 1_000_000_000

    def graph(self, package: PackagePlan) -> CoremlGraph:
        return CoremlGraph(self.activations == "int8")
