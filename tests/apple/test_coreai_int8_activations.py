"""Core AI's assets with int8 activations, run by its runtime, against the reference that rounds by the same
rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from coreai_bundles import CoreaiPrograms
from support.bundles import int8_activations, quantized_reference
from support.package_bundles import LENGTHS, SMALL, Programs, layer_results, layer_values, make_bundle

from edgekit.export.formats.options import Packaging
from edgekit.export.quantize import Scheme

INT8 = Scheme("int8", 32)


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_layers_equal_the_reference_that_rounds(tmp_path: Path, family: str, precision: str) -> None:
    """By position: where a rounding falls the other way, one activation moves by a step. In float16 many do,
    and change a layer by what rounding changes it anyway, but not by more.
    """
    cut = Packaging(LENGTHS[family][-1:], layers_per_chunk=1)
    bundle = make_bundle(tmp_path, family, "coreai", INT8, precision, cut, "int8", **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", INT8, "coreai")
    rng = np.random.default_rng(1)
    errors: dict[str, list[np.ndarray]] = {"y": [], "k": [], "v": []}
    steps: dict[str, list[np.ndarray]] = {"y": [], "k": [], "v": []}
    with CoreaiPrograms(bundle) as programs:
        for package, name, i in layer_functions(programs):
            values = layer_values(rng, model, programs.entries[package]["functions"][name])
            got = programs.run(package, name, values)
            plain = layer_results(model, [i], values, values["x"])
            with int8_activations():
                expected = layer_results(model, [i], values, values["x"])
            for role, array in got.items():
                errors[role[0]].append(distances(array, expected[role]))
                steps[role[0]].append(distances(expected[role], plain[role]))
    for kind in errors:
        error, step = np.concatenate(errors[kind]), np.concatenate(steps[kind])
        assert 1e-3 < np.median(step) < 0.03
        if precision == "float32":
            assert np.median(error) < 1e-6 and (error < 1e-4).mean() > 0.95
        else:
            assert np.median(error) < 1.2 * np.median(step)
        assert kind == "y" or error.max() < 0.02  # in y a router may choose another expert


def distances(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """By row, relative to its norm."""
    error = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return np.asarray(error.reshape(-1))


def layer_functions(programs: Programs) -> Iterator[tuple[str, str, int]]:
    """Package, function and layer, of bundles with one layer to a package."""
    for i, layer in enumerate(programs.manifest.layers):
        for name in programs.entries[layer["package"]]["functions"]:
            yield layer["package"], name, i
