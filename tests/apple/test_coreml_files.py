"""The files of a Core ML bundle: stamped packages against converted ones, stored codes against the
quantizer's, interrupted exports, and what is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from coreml_bundles import SMALL, make_bundle, options
from support.checkpoints import write_checkpoint
from support.package_bundles import (
    check_flipped_bits,
    check_left_over,
    check_stored,
    check_vectors,
    fitted,
    quantized_matrices,
)

from edgekit.export import formats
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.formats.options import Packaging
from edgekit.export.formats.packages import cut as package_cut
from edgekit.export.formats.packages.stamp import Stamped
from edgekit.export.pipeline import export
from edgekit.export.quantize import Override, Scheme
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import ChecksumMismatch, EdgekitError
from edgekit.runtime.checks.mil import Constant, Package
from edgekit.tools.cli import main

ct = pytest.importorskip("coremltools", reason="coremltools is not installed")
from coreml_audit import stored_matrices, stored_vectors  # noqa: E402
from coremltools.converters.mil.converter import mil_convert  # noqa: E402
from coremltools.converters.mil.mil.types import nptype_from_builtin, string_to_builtin  # noqa: E402

from edgekit.export.formats.coreml.graph import CoremlGraph  # noqa: E402
from edgekit.export.formats.coreml.writer import CoremlFormat  # noqa: E402
from edgekit.export.formats.packages import content as package_content  # noqa: E402

LENGTHS = {"diffusion_gemma": (0, 32), "llada": (8, 13), "llada_moe": (11,), "dream": (7,)}


# --- what is stored ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "preset", "precision", "activations"),
    [
        ("diffusion_gemma", "mixed4", "float16", None), ("llada", "int4", "float32", None),
        ("dream", "bf16", "float16", None), ("dream", "int8", "float16", "int8"),
    ],
)  # fmt: skip
def test_stamped_packages_equal_converted_ones(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    preset: str,
    precision: str,
    activations: str | None,
) -> None:
    """coremltools converts the same programs with the weights as constants, and writes its own weight file:
    operations, constants and descriptions are to be the same.
    """
    scheme, cut = Scheme(preset, 32), Packaging(LENGTHS[family], layers_per_chunk=2)
    bundle = make_bundle(tmp_path, family, scheme, precision, cut, activations=activations, **SMALL[family])
    form = fitted("coreml", tmp_path / "checkpoint", scheme, precision, cut, activations)
    packages = [Stamped(bundle / f"packages/{p.name}.mlpackage", form.template(p)) for p in form.packages]
    made: list[CoremlGraph] = []

    class WithWeights(CoremlGraph):
        def __init__(self) -> None:
            super().__init__(activations == "int8")
            made.append(self)

        def values(self, stored: Any) -> np.ndarray:
            kind = np.dtype(nptype_from_builtin(string_to_builtin(stored.dtype.name)))
            parts = self.stored[stored.name].parts
            if not parts:
                return np.zeros(stored.shape, kind)
            data = np.concatenate([packages[len(made) - 1].read(part) for part in parts])
            if stored.dtype.bits == 4:
                low, high = (data << 4).view(np.int8) >> 4, data.view(np.int8) >> 4
                data = np.stack([low, high], -1).reshape(-1)
            return data.view(kind.newbyteorder("=")).reshape(stored.shape).astype(kind)

    for package, stamped in zip(form.packages, packages, strict=True):
        package_content.build(WithWeights(), form.programs, package, form.lengths, precision)
        program = made[-1].program
        program.skip_all_passes = program.export_as_multifunction = True
        converted = mil_convert(
            program, "milinternal", "mlprogram", ct.ComputeUnit.CPU_ONLY,
            specification_version=9, skip_model_load=True,
        )  # fmt: skip
        converted.save(str(tmp_path / "converted.mlpackage"))
        ours, theirs = Package(stamped.path), Package(tmp_path / "converted.mlpackage")
        assert ours.specification_version == theirs.specification_version
        assert dict(ours.functions) == dict(theirs.functions)
        assert ours.default_function == theirs.default_function
        for name in ours.functions:
            for what, own in described(ours, name).items():
                assert own == described(theirs, name)[what], what
        # coremltools reads our weight file.
        spec = ct.utils.load_spec(str(stamped.path))
        weights = stamped.path / "Data/com.apple.CoreML/weights"
        ct.converters.mil.frontend.milproto.load.load(spec, spec.specificationVersion, str(weights))


def described(package: Package, name: str) -> dict[str, Any]:
    """A function with the values of its constants."""
    function = package.function(name)

    def value(binding: Any) -> Any:
        if not isinstance(binding, Constant):
            return binding.name
        return (
            str(binding.type),
            binding.text() if binding.dtype.name == "string" else binding.all().tobytes(),
        )

    return {
        "opset": function.opset,
        "inputs": function.inputs,
        "outputs": function.outputs,
        **{f"constant {n}": value(c) for n, c in function.constants.items()},
        "operations": [
            (o.type, o.name, o.outputs, {k: [value(b) for b in v] for k, v in o.inputs.items()})
            for o in function.operations
        ],
    }


@pytest.mark.parametrize(
    ("family", "preset", "precision"),
    [("diffusion_gemma", "mixed4", "float16"), ("llada", "int8", "float16"), ("llada_moe", "int4", "float32"),
     ("dream", "bf16", "float32")],
)  # fmt: skip
def test_stored_codes_and_vectors_are_the_quantizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, preset: str, precision: str
) -> None:
    monkeypatch.setattr(package_cut, "MOST_HEAD_ROWS", 150)
    scheme = Scheme(preset, 32)
    cut = Packaging(LENGTHS[family], layers_per_chunk=2)
    bundle = make_bundle(tmp_path, family, scheme, precision, cut, **SMALL[family])
    found = {matrix.name: matrix for matrix in stored_matrices(bundle)}
    check_stored(found, quantized_matrices(tmp_path / "checkpoint", scheme), precision)
    form = fitted("coreml", tmp_path / "checkpoint", scheme, precision, cut)
    check_vectors(bundle, form, stored_vectors)
    check_left_over(bundle, stored_matrices)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    scheme, cut = Scheme("mixed4", 32), Packaging((8,))
    bundle = make_bundle(tmp_path, "llada", scheme, "float16", cut, **SMALL["llada"])
    form = fitted("coreml", tmp_path / "checkpoint", scheme, "float16", cut)
    check_flipped_bits(bundle, form, stored_matrices)


def test_a_disk_that_returns_something_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Stamped.write

    def forgetful(self: Stamped, name: str, data: np.ndarray, start: int = 0) -> None:
        flipped = data.copy()
        if name == "1.mlp.down_proj.codes":
            flipped.reshape(-1).view(np.uint8)[5] ^= 1
        write(self, name, flipped, start)

    monkeypatch.setattr(Stamped, "write", forgetful)
    with pytest.raises(ChecksumMismatch, match=r"run layers\.1 reads back different.*layers\.0-2"):
        make_bundle(tmp_path, "llada", Scheme(), "float16", Packaging((8,)), **SMALL["llada"])
    assert not (tmp_path / "bundle" / manifests.MANIFEST_NAME).exists()


# --- what is refused --------------------------------------------------------------------------------------


def test_a_chunk_too_large_says_what_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    write_checkpoint(tmp_path / "c", "llada", n_layers=5)
    monkeypatch.setattr(CoremlFormat, "LIMIT_BYTES", 70_000)
    with pytest.raises(ExportError, match=r"package layers\.0-3 .* use --layers-per-chunk 2$"):
        export(tmp_path / "c", tmp_path / "b", options(Scheme(), None, Packaging((8,), layers_per_chunk=4)))
    export(tmp_path / "c", tmp_path / "b", options(Scheme(), None, Packaging((8,))))
    packages = manifests.load(tmp_path / "b").programs["packages"]
    assert [n for n in packages if n.startswith("layers")] == ["layers.0-1", "layers.2-3", "layers.4"]
    assert all(p["bytes"] < 110_000 for p in packages.values())
    monkeypatch.setattr(CoremlFormat, "LIMIT_BYTES", 20_000)
    with pytest.raises(ExportError, match=r"package layers\.0 .* use fewer bits"):
        export(tmp_path / "c", tmp_path / "d", options(Scheme(), None, Packaging((8,))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "ios", "--precision", "bfloat16"], "unknown precision 'bfloat16' for format coreml"),
        (
            ["--target", "ios", "--min-os", "17"],
            "'17' is no iOS that target ios is for; give 18 (coreml), 26 (coreml) or 27 (coreai)",
        ),
        (
            ["--target", "ios", "--min-os", "iOS18"],
            "--min-os 'iOS18' is no iOS that target ios is for",
        ),
        (
            ["--target", "ios", "--format", "coreml", "--min-os", "27"],
            "--min-os '27' is no iOS that format coreml is for; give 18 (coreml) or 26 (coreml)",
        ),
        (
            ["--target", "android", "--min-os", "27", "--lengths", "64"],
            "target android is for no version of iOS; leave --min-os out",
        ),
        (["--target", "ios", "--lengths", "8,x"], "lengths '8,x' are not numbers"),
        (["--target", "ios", "--lengths", "0"], "--lengths 0: 0 positions are not possible; give 1 or more"),
        (["--target", "ios", "--max-positions", "100000"], "the model was made for at most 512"),
        (["--target", "ios", "--max-positions", "0"], "--max-positions 0 is not possible"),
        (["--target", "ios", "--lengths", "64,513"], "513 positions are not possible"),
        (["--target", "ios", "--lengths", "64", "--max-positions", "64"], "exclude each other"),
        (["--target", "ios", "--layers-per-chunk", "0"], "must be at least 1"),
        (["--target", "ios", "--quant", "int2"], "unknown preset 'int2'"),
        (["--target", "host", "--lengths", "8"], "has no packages"),
        (["--target", "ios", "--format", "onnx"], "does not run format 'onnx'"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, arguments: list[str], message: str) -> None:
    write_checkpoint(tmp_path / "c", "llada", n_layers=1)
    command = ["export", str(tmp_path / "c"), "-o", str(tmp_path / "b"), *arguments]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "b").exists()


def test_experts_of_a_layer_must_be_alike(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", "llada_moe", num_hidden_layers=1)
    scheme = Scheme("mixed4", 32, (Override("layers.0.experts.3.*", 8),))
    with pytest.raises(QuantizationError, match=r"experts\.3\..*in format coreml the experts"):
        export(tmp_path / "c", tmp_path / "b", options(scheme))


def test_without_coremltools_the_extra_is_named(hide_package: Callable[..., None]) -> None:
    hide_package("coremltools", "edgekit.export.formats.coreml")
    with pytest.raises(EdgekitError, match=r"needs the package coremltools: pip install 'edgekit\[ios"):
        formats.load("coreml")
