"""The files of a Core AI bundle: stamped assets against converted ones, stored codes against the quantizer's,
and what is refused.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support import sealing
from support.bundles import quantized_reference
from support.checkpoints import write_checkpoint
from support.package_bundles import (
    LENGTHS,
    SMALL,
    check_flipped_bits,
    check_left_over,
    check_stored,
    check_vectors,
    fitted,
    float_vectors,
    make_bundle,
    options,
    quantized_matrices,
)
from support.watched import run_watched

from edgekit import targets
from edgekit.export import formats
from edgekit.export.errors import ExportError
from edgekit.export.formats import floats
from edgekit.export.formats.options import Packaging
from edgekit.export.formats.packages import cut as package_cut
from edgekit.export.formats.packages import layout as package_layout
from edgekit.export.formats.packages.functions import Feature
from edgekit.export.formats.packages.layout import Constant
from edgekit.export.pipeline import export
from edgekit.export.quantize import Scheme
from edgekit.flashload import manifest as manifests
from edgekit.runtime.checks.mil.types import BY_NAME
from edgekit.runtime.engines.coreai import version as coreai_version
from edgekit.runtime.errors import EngineUnavailable, UnsupportedBundle
from edgekit.runtime.session import Session
from edgekit.tools.cli import main

pytest.importorskip("coreai", reason="coreai-core is not installed")

from coreai.authoring import AIModelAsset

# isort: split
from coreai._compiler.dialects import coreai
from coreai_audit import stored_matrices, stored_vectors

from edgekit.export.formats.coreai import bytecode as coreai_bytecode
from edgekit.export.formats.coreai.graph import PROGRAM_FILE, CoreaiGraph
from edgekit.export.formats.packages import content as package_content

# --- what is stored ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "preset", "precision"),
    [("diffusion_gemma", "mixed4", "float16"), ("llada", "int4", "float32"), ("dream", "bf16", "float16")],
)
def test_stamped_assets_equal_converted_ones(
    tmp_path: Path, written: list[bytes], family: str, preset: str, precision: str
) -> None:
    """Core AI is given the quantizer's codes themselves, and writes the file: every byte is the same."""
    scheme, cut = Scheme(preset, 32), Packaging(LENGTHS[family], layers_per_chunk=2)
    bundle = make_bundle(tmp_path, family, "coreai", scheme, precision, cut, **SMALL[family])
    form = fitted("coreai", tmp_path / "checkpoint", scheme, precision, cut)
    stored = tensors(tmp_path / "checkpoint", scheme, precision)
    for package in form.packages:
        units = [f"layers.{i}" for i in package.layers] or [package.name]

        class WithWeights(CoreaiGraph):
            def content(self, constant: Any, units: Any = units, package: Any = package) -> np.ndarray:
                parts = []
                for part in self.stored[constant.name].parts:
                    if package.kind == "head":
                        suffix = part.rpartition(".")[2]
                        rows = stored["head." + suffix][package.start : package.start + package.rows]
                        parts.append(rows)
                    elif package.kind == "layers":
                        slot, _, own = part.partition(".")
                        parts.append(stored[f"{units[int(slot)]}.{own}"])
                    else:
                        parts.append(stored[f"{units[0]}.{part}"])
                return np.concatenate([np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in parts])

        package_content.build(WithWeights(), form.programs, package, form.lengths, precision)
        ours = bundle / f"packages/{package.name}.aimodel" / PROGRAM_FILE
        assert ours.read_bytes() == written[-1]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every program that Core AI writes in a test, with whatever its constants hold."""
    programs: list[bytes] = []
    resized = coreai_bytecode.resized

    def keep(program: bytes, sizes: Any) -> Any:
        programs.append(program)
        return resized(program, sizes)

    monkeypatch.setattr(coreai_bytecode, "resized", keep)
    return programs


def tensors(checkpoint: Path, scheme: Scheme, precision: str) -> dict[str, np.ndarray]:
    """All stored tensors by the name that they have in runs."""
    vectors = float_vectors(checkpoint)
    out = {name: floats.numbers(name, values, precision) for name, values in vectors.items()}
    for name, q in quantized_matrices(checkpoint, scheme).items():
        role = "head" if name == "head" else "mlp"
        out |= package_layout.arrays(name, role, q, precision)
    return out


@pytest.mark.parametrize(
    ("family", "preset", "precision"),
    [("diffusion_gemma", "mixed4", "float16"), ("llada", "int8", "float16"), ("llada_moe", "int4", "float32"),
     ("dream", "bf16", "float32")],
)  # fmt: skip
def test_stored_codes_and_vectors_are_the_quantizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, preset: str, precision: str
) -> None:
    monkeypatch.setattr(package_cut, "MOST_HEAD_ROWS", 150)
    scheme, cut = Scheme(preset, 32), Packaging(LENGTHS[family], layers_per_chunk=2)
    bundle = make_bundle(tmp_path, family, "coreai", scheme, precision, cut, **SMALL[family])
    found = {matrix.name: matrix for matrix in stored_matrices(bundle)}
    check_stored(found, quantized_matrices(tmp_path / "checkpoint", scheme), precision)
    form = fitted("coreai", tmp_path / "checkpoint", scheme, precision, cut)
    check_vectors(bundle, form, stored_vectors)
    check_left_over(bundle, stored_matrices)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    scheme, cut = Scheme("mixed4", 32), Packaging((8,))
    bundle = make_bundle(tmp_path, "llada", "coreai", scheme, "float16", cut, **SMALL["llada"])
    form = fitted("coreai", tmp_path / "checkpoint", scheme, "float16", cut)
    check_flipped_bits(bundle, form, stored_matrices)


def test_functions_share_weights_which_are_stored_once_and_as_integers(tmp_path: Path) -> None:
    cut = Packaging((5, 8, 11, 20), layers_per_chunk=3)
    config = {"n_layers": 3, "d_model": 256, "mlp_hidden_size": 512}
    bundle = make_bundle(tmp_path, "llada", "coreai", Scheme("mixed4", 32), "float16", cut, **config)
    path = bundle / "packages/layers.0-2.aimodel"
    model = quantized_reference(tmp_path / "checkpoint", Scheme("mixed4", 32), "coreai")
    arrays = tensors(tmp_path / "checkpoint", Scheme("mixed4", 32), "float16")
    stored = sum(a.nbytes for n, a in arrays.items() if n.startswith("layers."))
    assert stored < (path / PROGRAM_FILE).stat().st_size < 1.1 * stored
    # Apple's own count of stored elements.
    counted = dict(AIModelAsset.load(path).summary().storage_types)
    mlp = sum(w.numel() * 2 for n, w in model.weights().items() if ".mlp." in n and n.endswith(".codes"))
    attention = sum(w.numel() for n, w in model.weights().items() if "attn." in n and n.endswith(".codes"))
    assert int(counted["Int4"]) >= mlp and int(counted["Int8"]) >= attention


def test_equal_exports_have_equal_bytes_and_valid_hashes(tmp_path: Path) -> None:
    cut = Packaging((0, 32), layers_per_chunk=1)
    first = make_bundle(tmp_path, "diffusion_gemma", "coreai", Scheme(), "float16", cut)
    how = options("coreai", Scheme(), "float16", cut)
    export(tmp_path / "checkpoint", tmp_path / "again", how)
    files = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert all((first / p).read_bytes() == (tmp_path / "again" / p).read_bytes() for p in files)
    programs = [p for p in first.rglob(PROGRAM_FILE)]
    assert programs and all(AIModelAsset.is_valid(p.parent) for p in programs)
    for program in programs:
        digest = hashlib.sha256(program.read_bytes()).digest()
        assert (program.parent / "main.hash").read_bytes() == digest
        assert b".py" not in program.read_bytes(), "a line of our sources is in the program"


# --- what is refused --------------------------------------------------------------------------------------


def test_a_damaged_program_is_told(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, "llada", "coreai", Scheme(), "float16", Packaging((8,)), n_layers=1)
    path = bundle / "packages/layers.0.aimodel" / PROGRAM_FILE
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    sizes = {name: nbytes for name, (_, nbytes) in coreai_bytecode.resources(path).items()}
    assert sizes and coreai_bytecode.resized(whole, sizes)[0].size == len(whole)
    for end in (0, 3, 4, 20, *rng.integers(21, len(whole), 40).tolist()):
        path.write_bytes(whole[:end])
        with pytest.raises(ExportError, match="is no MLIR bytecode"):
            coreai_bytecode.resources(path)
        with pytest.raises(ExportError, match="is no MLIR bytecode that edgekit can write"):
            coreai_bytecode.resized(whole[:end], sizes)
    for others in ({**sizes, "other": 3}, dict(list(sizes.items())[1:])):
        with pytest.raises(ExportError, match="is no MLIR bytecode that edgekit can write"):
            coreai_bytecode.resized(whole, others)
    path.write_bytes(b"PK" + whole[2:])
    with pytest.raises(ExportError, match="is no MLIR bytecode"):
        coreai_bytecode.resources(path)


@pytest.mark.parametrize("seed", range(6))
def test_files_of_placeholders_become_those_of_whole_constants(written: list[bytes], seed: int) -> None:
    """Sizes from nothing to megabytes, numbers of one to four bytes: the file is what MLIR itself writes."""
    rng = np.random.default_rng(seed)
    shapes = [(int(2 ** rng.uniform(0, 21)),) for _ in range(rng.integers(1, 12))]

    def graph(kind: type[CoreaiGraph]) -> CoreaiGraph:
        made = kind()

        def body(values: dict[str, Any]) -> dict[str, Any]:
            stored = [Constant(f"{i}.weight", BY_NAME["fp16"], s) for i, s in enumerate(shapes)]
            return {"x": values["x"]} | {f"y{i}": made.constant(c) for i, c in enumerate(stored)}

        for name in "abc"[: 1 + seed % 3]:
            made.add(name, [Feature("x", "float32", (2, 8))], body)
        return made

    data = {f"{i}.weight": rng.integers(0, 256, 2 * n, np.uint8) for i, (n,) in enumerate(shapes)}

    class Whole(CoreaiGraph):
        def content(self, stored: Constant) -> np.ndarray:
            return data[stored.name]

    templates = [graph(kind).finish() for kind in (CoreaiGraph, Whole)]
    small, whole = written
    assert len(small) < 4000 + 100 * len(shapes)
    for template in templates:
        frame = template.files[PROGRAM_FILE]
        made = bytearray(frame.size)
        for at, part in frame.fixed:
            made[at : at + len(part)] = part
        for name, region in template.regions.items():
            made[region.offset : region.offset + region.nbytes] = data[name].tobytes()
        assert bytes(made) == whole


GIANT = """
import json
from edgekit.export.formats.coreai.graph import CoreaiGraph
from edgekit.export.formats.packages.layout import Constant
from edgekit.export.formats.packages.functions import Feature
from edgekit.runtime.checks.mil.types import BY_NAME

graph = CoreaiGraph()
shape = (1 << 20, 5 << 10)
body = lambda values: {"x": values["x"], "y": graph.constant(Constant("w.codes", BY_NAME["int8"], shape))}
graph.add("f", [Feature("x", "float32", (2, 8))], body)
template = graph.finish()
print(json.dumps({"bytes": template.nbytes, "region": template.regions["w.codes"].nbytes}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_template_of_any_size_takes_no_more_memory_than_its_graph(tmp_path: Path) -> None:
    found, peak = run_watched(GIANT, tmp_path, 0)
    assert found["region"] == 5 << 30 and found["bytes"] > 5 << 30
    assert peak < 1 << 30  # torch and Core AI


def test_a_program_that_core_ai_changes_is_refused() -> None:
    """Weights are found by name: one that was folded into another constant is an error, not a zero."""
    graph = CoreaiGraph()

    def body(values: dict[str, Any]) -> dict[str, Any]:
        weight = graph.constant(Constant("n.weight", BY_NAME["fp16"], (8,)))
        return {"y": coreai.broadcasting_mul(values["x"], coreai.cast(weight, np.float32))}

    graph.add("f", [Feature("x", "float32", (2, 8))], body)
    with pytest.raises(ExportError, match="has folded n.weight into other constants in function f"):
        graph.finish()


def test_a_node_without_a_form_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {k: v for k, v in CoreaiGraph.NODES.items() if "rope" not in str(k)}
    monkeypatch.setattr(CoreaiGraph, "NODES", nodes)
    with pytest.raises(ExportError, match="edgekit.rope.*has no form in Core AI; format coreai cannot"):
        make_bundle(tmp_path, "llada", "coreai", Scheme(), "float16", Packaging((8,)), n_layers=1)


def test_versions_and_precisions_that_there_are_not(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llada", n_layers=1)
    with pytest.raises(ExportError, match="--min-os '18' is no iOS that format coreai is for; give 27"):
        fitted("coreai", tmp_path, Scheme(), None, Packaging(minimum_os="18"))
    with pytest.raises(ExportError, match="unknown precision 'float64' for format coreai"):
        fitted("coreai", tmp_path, Scheme(), "float64", Packaging())
    assert fitted("coreai", tmp_path, Scheme(), None, Packaging()).precision == "float16"


def test_the_oldest_system_decides_between_the_formats_of_ios(tmp_path: Path) -> None:
    target = targets.get("ios")
    chosen = {version: target.format(None, version) for version in (None, "18", "26", "27", "28.1", "x")}
    assert chosen.pop("27") == chosen.pop("28.1") == "coreai" and set(chosen.values()) == {"coreml"}
    assert target.format("coreai", None) == "coreai"
    write_checkpoint(tmp_path / "c", "llada", n_layers=1)
    arguments = [
        "export",
        str(tmp_path / "c"),
        "-o",
        str(tmp_path / "b"),
        "--target",
        "ios",
        "--lengths",
        "8",
    ]
    result = CliRunner().invoke(main, [*arguments, "--min-os", "27"])
    assert result.exit_code == 0, result.output
    programs = manifests.load(tmp_path / "b").programs
    assert programs["format"] == "coreai" and programs["minimum_os"] == {"ios": "27", "macos": "27"}
    result = CliRunner().invoke(main, [*arguments, "--overwrite", "--min-os", "28"])
    assert result.exit_code == 2 and "that target ios is for; give 18 (coreml)," in result.output


def test_another_version_of_core_ai_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which versions read which assets is nowhere said; what it cannot parse ends the runtime's process."""
    bundle = make_bundle(tmp_path, "llada", "coreai", Scheme(), "float16", Packaging((8,)), n_layers=1)
    said = r"coreai-core 1\.0\.0b4 is installed, edgekit knows 1\.0\.0b3 alone; pip install 'coreai-core==1"
    with monkeypatch.context() as patch:
        patch.setattr(coreai_version, "installed", lambda: "1.0.0b4")
        with pytest.raises(ExportError, match=said):
            export(tmp_path / "checkpoint", tmp_path / "other", options("coreai", Scheme()))
        assert not (tmp_path / "other").exists()
        with pytest.raises(EngineUnavailable, match=said):
            Session(bundle)
        result = CliRunner().invoke(main, ["verify", str(bundle)])
        assert result.exit_code == 0 and "1.0.0b4 is installed" in " ".join(result.stderr.split())
    for version, named in (("1.0.0b2", "1.0.0b2"), (None, "an unknown version")):
        sealing.edit(bundle, lambda table, version=version: table["programs"].update(coreai=version))
        with pytest.raises(UnsupportedBundle, match=f"written by coreai-core {named}, .*export the bundle"):
            Session(bundle)
        result = CliRunner().invoke(main, ["verify", str(bundle)])
        assert result.exit_code == 0 and f"written by coreai-core {named}" in " ".join(result.stderr.split())


def test_a_version_that_lacks_what_is_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "edgekit.export.formats.coreai.writer")
    monkeypatch.setitem(sys.modules, "edgekit.export.formats.coreai.graph", None)
    monkeypatch.setattr(coreai_version, "installed", lambda: "2.0")
    with pytest.raises(ExportError, match=r"^coreai-core 2\.0 is installed, edgekit knows 1\.0\.0b3 alone"):
        formats.load("coreai")


def test_the_version_is_the_one_that_the_extra_installs() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert f'"""{coreai_version.REQUIREMENT};' in project.read_text()


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, hide_package: Callable[..., None]
) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada")
    hide_package("coreai", "edgekit.export.formats.coreai")
    with pytest.raises(ExportError) as caught:
        export(tmp_path / "checkpoint", tmp_path / "bundle", options("coreai", Scheme()))
    assert str(caught.value) == "format coreai needs the package coreai: pip install 'edgekit[ios]'"
