"""The layers of the shipped models in Core AI assets, against the reference holding the same codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from coreai_bundles import CoreaiPrograms
from support.bundles import quantized_reference
from support.package_bundles import check_layers, options

import edgekit
from edgekit.export.checkpoint.hub import resolve
from edgekit.export.formats.options import Packaging
from edgekit.export.pipeline import export
from edgekit.export.quantize import Scheme


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-llada"])
@pytest.mark.parametrize(("precision", "least"), [("float32", None), ("float16", 60)])
def test_layers_of_the_shipped_models(tmp_path: Path, name: str, precision: str, least: float | None) -> None:
    prefixes = (0, 160) if precision == "float32" else (0,)
    scheme, lengths = Scheme("mixed4", 32), prefixes if name == "tiny-gemma" else (24,)
    checkpoint = resolve(name)
    how = options("coreai", scheme, precision, Packaging(lengths, layers_per_chunk=1))
    export(checkpoint, tmp_path / "bundle", how)
    model = quantized_reference(checkpoint, scheme, "coreai")
    with CoreaiPrograms(tmp_path / "bundle") as programs:
        count = check_layers(programs, model, 3, least)
    assert count == len(lengths) * len(model.architecture.layers)


def test_the_runtime_says_nothing_while_an_answer_is_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    how = options("coreai", Scheme("mixed4", 32), "float16", Packaging((64,)))
    export(resolve("tiny-llada"), tmp_path / "bundle", how)
    capfd.readouterr()
    with edgekit.load(tmp_path / "bundle") as model:
        assert model.generate("Repeat: red", max_new_tokens=8, steps=1).ids
    assert capfd.readouterr() == ("", "")
