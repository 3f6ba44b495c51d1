"""The layers of the shipped models in Core ML packages, against the reference holding the same codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from coreml_bundles import CoremlPrograms, options
from support.bundles import quantized_reference
from support.package_bundles import check_layers

from edgekit.export.checkpoint.hub import resolve
from edgekit.export.formats.options import Packaging
from edgekit.export.pipeline import export
from edgekit.export.quantize import Scheme

pytest.importorskip("coremltools", reason="coremltools is not installed")


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-llada"])
@pytest.mark.parametrize(("precision", "least"), [("float32", None), ("float16", 60)])
def test_layers_of_the_shipped_models(tmp_path: Path, name: str, precision: str, least: float | None) -> None:
    scheme, lengths = Scheme("mixed4", 32), (0, 160) if name == "tiny-gemma" else (24,)
    checkpoint = resolve(name)
    export(
        checkpoint, tmp_path / "bundle", options(scheme, precision, Packaging(lengths, layers_per_chunk=1))
    )
    model = quantized_reference(checkpoint, scheme, "coreml")
    count = check_layers(CoremlPrograms(tmp_path / "bundle"), model, 3, least)
    assert count == len(lengths) * len(model.architecture.layers)
