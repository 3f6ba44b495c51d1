"""What the commands say of bundles in packages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundles import TILE_BYTES
from checkpoints import write_checkpoint
from click.testing import CliRunner, Result

from edgekit.export.formats.packaging import Packaging
from edgekit.export.pipeline import ExportOptions, export
from edgekit.runtime.errors import EngineUnavailable
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
    shown = edgekit("inspect", bundle, "--memory", "2GB")
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
    assert list(found) == [name] and "has SHA-256" in found[name]


def test_verify_names_what_a_package_does_not_have(copy: Path) -> None:
    """The manifest says something else than the packages."""
    manifest = json.loads((copy / "edgekit.json").read_text())
    packages = manifest["programs"]["packages"]
    functions = packages["layers.2"]["functions"]
    functions["other"] = functions.pop("t16_p0")
    next(iter(packages["final"]["functions"].values()))["inputs"][0]["name"] = "z"
    head = next(f for f in packages["head.0"]["functions"].values() if f["t"] == 16)
    head["outputs"][0]["dtype"] = "float16"
    (copy / "edgekit.json").write_text(json.dumps(manifest))
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

    monkeypatch.setattr("edgekit.runtime.package_checks.damage", missing)
    result = edgekit("verify", bundle)
    assert result.exit_code == 0
    assert "functions of packages were not checked: something is not installed" in result.stderr


def test_run_refuses_what_the_bundle_was_not_exported_for(bundle: Path) -> None:
    result = edgekit("run", bundle, "-p", "a", "--max-new-tokens", "64")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "its programs take at most 32 positions: shorten the text or export with longer --lengths" in line
