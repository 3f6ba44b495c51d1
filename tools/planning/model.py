"""A model as plans know it: its units of weights, and what its passes compute."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.export import skeleton
from edgekit.export.models import architecture as architecture_of
from edgekit.export.pipeline import Progress
from edgekit.export.quantize import Scheme
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.costs import Costs, of_bundle


@dataclass(frozen=True)
class PlannedModel:
    """`bundle` has no weights; it lives as long as the block that opened it. Of layers with experts,
    `experts` are how many each has, and `top_k` how many a row goes to; both 0 without any.
    """

    bundle: Bundle
    costs: Costs
    experts: int
    top_k: int
    expert_layers: int
    parameters: int

    @property
    def expert_rows(self) -> int:
        """Rows of experts, over all layers, for a row of the pass."""
        return self.top_k * self.expert_layers

    def touched(self, rows: int) -> float:
        """The share of a layer's experts that so many rows are expected to go to, each to any `top_k`."""
        return 1.0 if not self.experts else 1 - (1 - self.top_k / self.experts) ** rows


@contextmanager
def planned(config: dict[str, Any], scheme: Scheme, progress: Progress | None = None) -> Iterator[PlannedModel]:
    """The model of a config.json. Raises EdgekitError where it is not supported."""
    layers = architecture_of(config, "bfloat16").layers
    mixed = [layer for layer in layers if layer.experts]
    with tempfile.TemporaryDirectory(prefix="edgekit-plan-") as folder:
        skeleton.write(Path(folder) / "bundle", config, scheme, progress=progress)
        bundle = Bundle.open(Path(folder) / "bundle")
        yield PlannedModel(
            bundle,
            of_bundle(bundle),
            max((len(layer.experts) for layer in mixed), default=0),
            max((int(getattr(layer.module, "top_k", 0)) for layer in mixed), default=0),
            len(mixed),
            int(bundle.manifest.quantization["parameters"]),
        )


def read_config(path: Path) -> dict[str, Any]:
    """A config.json, or that of a folder."""
    file = path / "config.json" if path.is_dir() else path
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
