"""Commands on bundles in packages: their output and their errors."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support import sealing
from support.bundles import TILE_BYTES
from support.checkpoints import write_checkpoint

from edgekit.export.formats.options import Packaging
from edgekit.export.pipeline import ExportOptions, export
from edgekit.flashload.errors import ChecksumMismatch, TruncatedFile
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.checks import evaluation
from edgekit.runtime.checks.evaluation import distinct, evaluate
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.checks.package_functions import MASKED
from edgekit.runtime.errors import EngineUnavailable
from edgekit.runtime.session import Session
from edgekit.tools.cli import main


def edgekit(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words])


@pytest.fixture(scope="module", params=["coreml", "coreai"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip({"coreml": "coremltools", "coreai": "coreai.authoring"}[request.param])
    folder = tmp_path_factory.mktemp("commands")
    write_checkpoint(folder / "checkpoint", "llada", n_layers=3)
    packaging = Packaging((16, 32), layers_per_chunk=2)
    options = ExportOptions(request.param, "ios", tile_bytes=TILE_BYTES, packaging=packaging)
    export(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle"


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def entries(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "edgekit.json").read_text())["programs"]["packages"]
    return found


def test_inspect_lists_packages(bundle: Path) -> None:
    found = json.loads(edgekit("inspect", bundle, "--json").stdout)
    packages = {p["name"]: p for p in found["programs"]["packages"]}
    assert {n: p["layers"] for n, p in packages.items() if p["layers"]} == {
        "layers.0-1": [0, 1],
        "layers.2": [2],
    }
    for name, package in packages.items():
        folder = bundle / entries(bundle)[name]["path"]
        assert package["bytes"] == sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    head = packages["head.0"]
    assert head["rows"] == found["model"]["vocab_size"] and not found["model"]["tied_head"]
    # Eight bits and a scale for every row of the table.
    assert 8 < head["bits_per_weight"] < 9 and packages["final"]["bits_per_weight"] is None
    assert {(f["t"], f["p"]) for f in packages["layers.2"]["functions"]} == {(16, 0), (32, 0)}
    shown = edgekit("inspect", bundle, "--memory", "8GB")
    assert shown.exit_code == 0, shown.output
    assert "layers.0-1" in shown.stdout and "canvas of 32 positions" in shown.stdout


def test_verify_reads_every_package(bundle: Path) -> None:
    found = json.loads(edgekit("verify", bundle, "--json").stdout)
    assert found["ok"] and not found["surplus"] and not found["notes"]
    names = [i["name"] for i in found["items"]]
    assert {f"package {name}" for name in entries(bundle)} <= set(names)
    assert {f for entry in entries(bundle).values() for f in entry["files"]} <= set(names)


def damaged(bundle: Path) -> dict[str, str]:
    result = edgekit("verify", bundle, "--json")
    assert result.exit_code == 1
    return {i["name"]: i["damage"] for i in json.loads(result.stdout)["items"] if i["damage"]}


def test_verify_names_a_damaged_file_and_leaves_its_package_alone(copy: Path) -> None:
    name = max(entries(copy)["layers.2"]["files"], key=lambda n: (copy / n).stat().st_size)
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 4
    (copy / name).write_bytes(data)
    found = damaged(copy)
    assert list(found) == [name] and "has xxh3" in found[name]


def test_verify_names_what_a_package_does_not_have(copy: Path) -> None:
    """The manifest says something else than the packages."""
    manifest = json.loads((copy / "edgekit.json").read_text())
    packages = manifest["programs"]["packages"]
    functions = packages["layers.2"]["functions"]
    functions["other"] = functions.pop("t16_p0")
    next(iter(packages["final"]["functions"].values()))["inputs"][0]["name"] = "z"
    head = next(f for f in packages["head.0"]["functions"].values() if f["t"] == 16)
    head["outputs"][0]["dtype"] = "float16"
    sealing.write(copy, manifest)
    found = damaged(copy)
    assert found.keys() == {"package layers.2", "package final", "package head.0"}
    assert found["package layers.2"] == (
        "has the functions t16_p0, t32_p0, the manifest declares other, t32_p0"
    )
    assert "has the inputs x, the manifest declares z" in found["package final"]
    assert "output max is float32 [16], declared float16 [16]" in found["package head.0"]


def test_verify_says_what_it_could_not_check(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any) -> str:
        raise EngineUnavailable("something is not installed")

    monkeypatch.setattr("edgekit.runtime.checks.declarations.damage", missing)
    result = edgekit("verify", bundle)
    assert result.exit_code == 0
    assert "functions of packages were not checked: something is not installed" in result.stderr


def test_run_refuses_what_the_bundle_was_not_exported_for(bundle: Path) -> None:
    result = edgekit("run", bundle, "-p", "a", "--max-new-tokens", "64")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    fewer = r"(ask for fewer new tokens|use --max-new-tokens \d+ \(max_new_tokens=\d+\))"
    said = f"its programs take at most 32 positions: {fewer}, shorten the prompt, or export with longer"
    assert re.search(said, line)


def test_verify_computes_with_packages_on_request(bundle: Path) -> None:
    found = json.loads(edgekit("verify", bundle, "--evaluate", "--json").stdout)
    names = [i["name"] for i in found["items"] if i["name"].endswith("computed")]
    assert found["ok"]
    if "mlpackage" in entries(bundle)["final"]["path"]:
        assert names == [f"package {n} computed" for n in ("layers.0-1", "layers.2", "final", "head.0")]
        assert "layers were compared with themselves" in found["notes"][0]
    else:
        assert not names and "--evaluate is for Core ML packages" in found["notes"][0]


# --- bundles for several formats --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "model"
    write_checkpoint(folder, "llada", n_layers=1)
    return folder


@pytest.fixture(scope="module")
def several(checkpoint: Path) -> tuple[Path, dict[str, Any]]:
    """A set, and what the export said of it."""
    for module in ("coremltools", "coreai.authoring"):
        pytest.importorskip(module)
    words = ["--target", "ios", "--lengths", "16", "--json", "-o", checkpoint.parent / "set"]
    result = edgekit("export", checkpoint, *words)
    assert result.exit_code == 0, result.output
    return checkpoint.parent / "set", json.loads(result.stdout)


def test_export_for_ios_describes_both_bundles(several: tuple[Path, dict[str, Any]]) -> None:
    folder, said = several
    assert said["bundle"] == str(folder)
    assert [(b["bundle"], b["format"]) for b in said["bundles"]] == [
        (str(folder / name), name) for name in ("coreml", "coreai")
    ]
    for found in said["bundles"]:
        packages = entries(Path(found["bundle"])).values()
        flash = Path(found["bundle"], "weights.safetensors").stat().st_size
        assert found["weights_bytes"] == flash + sum(package["bytes"] for package in packages)
    assert (folder / "README.md").exists() and (folder / "Info.json").exists()


def test_verify_reads_every_bundle_of_a_set(several: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(several[0], tmp_path / "set"))
    found = json.loads(edgekit("verify", folder, "--json").stdout)
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    names = [item["name"] for item in found["items"]]
    assert found["ok"] and not found["surplus"] and files <= set(names) and len(names) == len(set(names))
    (folder / "coreml" / "notes.txt").write_text("mine")
    (folder / "README.md").write_text("other")
    (folder / "coreai" / "quantization.json").unlink()
    assert damaged(folder).keys() == {"README.md", "coreai/quantization.json"}
    assert "coreml/notes.txt is not part of the bundle" in edgekit("verify", folder).stderr
    shutil.rmtree(folder / "coreai")
    assert {"coreai", "README.md"} <= damaged(folder).keys()
    (folder / "bundles.json").write_text("{}")
    (line,) = damaged(folder).items()
    assert line[0] == "bundles.json" and "has no schema_version" in line[1]


def test_run_and_inspect_say_which_bundle_they_take(several: tuple[Path, dict[str, Any]]) -> None:
    folder = several[0]
    said = f"{folder} has bundles for several formats; taking {folder / 'coreai'}"
    shown = edgekit("inspect", folder)
    assert shown.exit_code == 0 and shown.stderr.splitlines() == [said]
    assert json.loads(edgekit("inspect", folder, "--json").stdout)["programs"]["format"] == "coreai"
    words = ["--max-new-tokens", "4", "--steps", "1", "--set", "block_length=4"]
    ran = edgekit("run", folder, "-p", "a", "--raw", *words)
    assert ran.exit_code == 0, ran.output
    assert ran.stderr.splitlines()[0] == said and "tokens in 1 denoising step," in ran.stderr
    refused = edgekit("run", folder, "-p", "a", "--engine", "cuda")
    assert refused.exit_code == 2 and "unknown engine 'cuda'; supported: native, torch," in refused.stderr
    refused = edgekit("run", folder, "-p", "a", "--engine", "native")
    assert (
        refused.exit_code == 2
        and "has bundles for 'coreai' and 'coreml', not for native; export" in refused.stderr
    )
    refused = edgekit("run", folder, "-p", "a", "--engine", "coreml", "--raw", *words)
    assert refused.exit_code == 2 and "Core ML runs on macOS and iOS only" in refused.stderr


def test_without_an_extra_one_format_is_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one line says so, and how to get the other."""
    pytest.importorskip("coremltools")
    for name in [n for n in sys.modules if n.startswith(("coreai.", "edgekit.export.formats.coreai"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "coreai", None)
    words = ["export", checkpoint, "--target", "ios", "--lengths", "16", "-o"]
    result = edgekit(*words, tmp_path / "out")
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("note: for coreml alone")]
    assert line == (
        "note: for coreml alone: format coreai needs the package coreai: "
        "pip install 'edgekit[ios]'; --min-os 27 exports for coreai"
    )
    assert entries(tmp_path / "out")["final"]["path"].endswith(".mlpackage")
    said = json.loads(edgekit(*words, tmp_path / "again", "--json").stdout)
    assert said["format"] == "coreml" and line == f"note: {said['notes'][-1]}"
    # Asked for, it is an error.
    assert edgekit(*words, tmp_path / "new", "--min-os", "27").exit_code == 2


# --- what packages compute --------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["float16", "float32"])
def gemma(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A tied head of several tiles, and prefixes."""
    pytest.importorskip("coremltools")
    folder = tmp_path_factory.mktemp("gemma")
    write_checkpoint(folder / "checkpoint", "diffusion_gemma", num_hidden_layers=3)
    options = ExportOptions(
        "coreml", "ios", precision=request.param, packaging=Packaging((40,), layers_per_chunk=2)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgekit.export.formats.packages.cut.MOST_HEAD_ROWS", 100)
        export(folder / "checkpoint", folder / "bundle", options)
    return Bundle.open(folder / "bundle")


def test_packages_of_every_kind_compute_what_they_should(gemma: Bundle) -> None:
    names = distinct(gemma)
    assert names == ["self_conditioning", "layers.0-1", "layers.2", "final", "head.0", "head.3"]
    assert [evaluate(gemma, name, seed) for name in names for seed in (0, 1)] == [""] * 12


def test_a_tile_with_the_rows_of_another_is_found(gemma: Bundle, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(gemma.path, tmp_path / "copy"))
    manifest = json.loads((copy / "edgekit.json").read_text())
    packages = manifest["programs"]["packages"]
    packages["head.1"] |= {key: packages["head.2"][key] for key in ("path", "files", "bytes")}
    sealing.write(copy, manifest)
    assert evaluate(Bundle.open(copy), "head.1").startswith("the scores are not the table's: z is off by")


def test_a_prefix_that_is_not_seen_is_found(gemma: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    real = evaluation._mask

    def hidden(seen: Any, prefix: int, length: int) -> Any:
        mask = real(seen, prefix, length)
        mask[:, :prefix] = MASKED
        return mask

    monkeypatch.setattr(evaluation, "_mask", hidden)
    assert "behind a prefix and t16_p0 at once disagree: y is off by" in evaluate(gemma, "layers.0-1")


def test_overflow_of_what_is_declared_is_found(gemma: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(rng: np.random.Generator, *shape: int) -> Any:
        return np.full(shape, 6e4, np.float32)

    monkeypatch.setattr("edgekit.runtime.checks.evaluation._random", large)
    found = evaluate(gemma, "layers.0-1")
    assert gemma.packages is not None
    if gemma.packages.precision == "float16":
        assert "rounded as declared: " in found and "is not finite" in found
    else:
        assert not found


def test_files_are_compared_with_their_checksums_before_they_are_opened(
    gemma: Bundle, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(gemma.path, tmp_path / "copy"))
    assert gemma.packages is not None
    weights = max((copy / f for f in gemma.packages["layers.2"].files), key=lambda p: p.stat().st_size)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    for content, error, said in (
        (data, ChecksumMismatch, "has xxh3"),
        (data[:-5], TruncatedFile, "copy it again"),
    ):
        weights.write_bytes(content)
        match = f"{re.escape(weights.name)}: .*{said}"
        with pytest.raises(error, match=match), Session(copy, executor=MilExecutor()) as session:
            session.prefill(np.arange(3))


def test_layers_that_depend_on_padding_are_found(gemma: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that hides nothing: the longer function then sees what it should not."""

    def open_mask(seen: Any, prefix: int, length: int) -> Any:
        return np.zeros((length, prefix + length), np.float32)

    monkeypatch.setattr(evaluation, "_mask", open_mask)
    assert re.match(r"functions t16_p0 and t16_p40 disagree: y is off by", evaluate(gemma, "layers.0-1"))
