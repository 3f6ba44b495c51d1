"""The Core AI bundle: every function of its assets, run by Core AI, against the reference holding the same
codes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bundles import quantized_reference
from coreai_bundles import CoreaiPrograms
from package_bundles import (
    LENGTHS,
    SMALL,
    check_around,
    check_layers,
    decibels,
    layer_results,
    layer_values,
    make_bundle,
    random,
)

from edgekit.export.formats import packaging
from edgekit.export.formats.packaging import Packaging
from edgekit.export.quantize import Scheme

CASES = [
    ("diffusion_gemma", "mixed4", 3), ("diffusion_gemma", "bf16", 1), ("llada", "int4", 2),
    ("llada", "int8", 3), ("llada_moe", "mixed4", 2), ("llada_moe", "int8", 1), ("dream", "int4", 3),
    ("dream", "bf16", 2),
]  # fmt: skip


@pytest.mark.parametrize(("family", "preset", "chunk"), CASES)
def test_layers_equal_the_reference(tmp_path: Path, family: str, preset: str, chunk: int) -> None:
    scheme, cut = Scheme(preset, 32), Packaging(LENGTHS[family], layers_per_chunk=chunk)
    bundle = make_bundle(tmp_path, family, "coreai", scheme, "float32", cut, **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreai")
    with CoreaiPrograms(bundle) as programs:
        count = check_layers(programs, model, 1, None)
    assert count == -(-len(model.architecture.layers) // chunk) * len(LENGTHS[family])


@pytest.mark.parametrize("family", SMALL)
def test_float16_layers_are_close_to_the_reference(tmp_path: Path, family: str) -> None:
    scheme, cut = Scheme("mixed4", 32), Packaging(LENGTHS[family], layers_per_chunk=1)
    bundle = make_bundle(tmp_path, family, "coreai", scheme, "float16", cut, **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreai")
    with CoreaiPrograms(bundle) as programs:
        check_layers(programs, model, 1, 60)


@pytest.mark.parametrize(
    ("family", "preset"), [("diffusion_gemma", "mixed4"), ("llada", "int8"), ("dream", "bf16")]
)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_what_is_around_the_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, preset: str, precision: str
) -> None:
    """Norm, self-conditioning and all forms of the head, which is cut into four packages."""
    monkeypatch.setattr(packaging, "MOST_HEAD_ROWS", 100)
    scheme, cut = Scheme(preset, 32), Packaging(LENGTHS[family][-1:])
    bundle = make_bundle(tmp_path, family, "coreai", scheme, precision, cut, **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreai")
    with CoreaiPrograms(bundle) as programs:
        check_around(programs, model, precision)


def test_half_precision_survives_large_rows_and_empty_ones(tmp_path: Path) -> None:
    """Squares of 300 do not fit float16; the mean square of zeros is not divided by."""
    cut = Packaging((9,), layers_per_chunk=3)
    bundle = make_bundle(tmp_path, "llada", "coreai", Scheme("int8", 32), "float16", cut)
    model = quantized_reference(tmp_path / "checkpoint", Scheme("int8", 32), "coreai")
    rng = np.random.default_rng(0)
    with CoreaiPrograms(bundle) as programs:
        package = next(iter(n for n in programs.entries if n.startswith("layers")))
        function = programs.entries[package]["functions"]["t9_p0"]
        layers = [i for i, own in enumerate(programs.manifest.layers) if own["package"] == package]
        values = layer_values(rng, model, function)
        values["mask.full"][:] = 0.0
        for scale, least in ((3e4, 60), (1e-3, 60)):
            values["x"] = random(rng, 1, 9, model.architecture.hidden_size, scale=scale / 4)
            got = programs.run(package, "t9_p0", values)
            expected = layer_results(model, layers, values, values["x"])
            assert decibels(got["k.0"], expected["k.0"]) > least
        values["x"][0, 4:] = 0.0
        out = programs.run(package, "t9_p0", values)
        assert all(np.isfinite(array).all() for array in out.values())
