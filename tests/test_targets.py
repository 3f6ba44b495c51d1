"""What targets bring besides a bundle."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tree_sitter
import tree_sitter_swift
from bundles import make_bundle

from edgekit import targets
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.memory import units
from edgekit.targets import ios, ios_folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("ios"), "diffusion_gemma", program_format="native")


def test_info_has_the_plan_of_every_tier(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Bundle.open(bundle)
    with opened.open_weights() as file:
        step, looked_up = units(opened.model, file)
    total = sum(u.nbytes for u in (*step, *looked_up))

    def tiers(*budgets: int) -> list[dict[str, Any]]:
        made_up = tuple(ios.Tier(f"{b} bytes", b, "made up") for b in budgets)
        monkeypatch.setattr(ios_folder, "TIERS", made_up)
        found: list[dict[str, Any]] = ios_folder.info(opened)["tiers"]
        return found

    needed = tiers(1000)[0]["needed_bytes"]
    none, some, everything = tiers(needed - 1, needed + 65536, 10**9)
    assert not none["runs"] and none["source"] == "made up"
    assert some["runs"] and 0 < some["bytes_per_step"] < total
    assert some["resident_bytes"] + some["bytes_per_step"] == sum(u.nbytes for u in step)
    assert (everything["resident_bytes"], everything["bytes_per_step"]) == (total, 0)
    text = ios_folder.readme("name", ios_folder.info(opened))
    assert "does not run: needs" in text and "| nothing |" in text


@pytest.mark.parametrize("program_format", ["native", "coreml", "coreai"])
def test_the_readme_of_a_bundle_has_swift_that_parses(bundle: Path, program_format: str) -> None:
    facts = ios_folder.info(Bundle.open(bundle)) | {"format": program_format}
    text = ios_folder.readme("some-model", facts)
    (code,) = re.findall(r"```swift\n(.*?)```", text, re.S)
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))
    assert not parser.parse(code.encode()).root_node.has_error, code
    assert '"some-model"' in code and "session.generate(" in code
    assert ("CoreMLPackages(" in code) == (program_format == "coreml")
    assert ("YourPackageExecutor(" in code) == (program_format == "coreai")
    assert ("the application's" in text) == (program_format == "coreai")


def test_a_finished_export_for_ios_has_both_files(bundle: Path) -> None:
    targets.get("ios").finish(bundle)
    assert json.loads((bundle / "Info.json").read_text())["tiers"]
    assert (bundle / "README.md").read_text().startswith("# bundle\n")
    assert {"Info.json", "README.md"} <= Bundle.open(bundle).manifest.files.keys()
    facts = (bundle / "Info.json").read_text()
    targets.get("ios").finish(bundle)
    assert (bundle / "Info.json").read_text() == facts
    targets.get("host").finish(bundle)
