"""Files that targets add to a bundle."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import tree_sitter
import tree_sitter_swift
import yaml
from support import sealing
from support.bundles import make_bundle

from edgekit import targets
from edgekit.export.formats import FORMATS
from edgekit.flashload import bundle_set
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.runtime import engine_registry
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.session import plan_session
from edgekit.runtime.session.memory import NEXT_PROCESS_BYTES
from edgekit.targets import android_folder, ios, ios_folder
from edgekit.targets.devices import devices
from edgekit.targets.own_files import info
from edgekit.targets.tier import Tier
from edgekit.tools.suggestion import next_step
from edgekit.tools.versions import installed_version


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("ios"), "diffusion_gemma", program_format="native")


def front_matter_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_info_has_the_plan_of_every_tier(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    units = plan_session(opened).units
    total = sum(u.nbytes for u in units)

    def tiers(*budgets: int) -> list[dict[str, Any]]:
        made_up = tuple(Tier(f"{b} bytes", b, "made up") for b in budgets)
        found: list[dict[str, Any]] = info(opened, made_up)["tiers"]
        return found

    needed = tiers(1000)[0]["needed_bytes"] - NEXT_PROCESS_BYTES
    none, some, everything = tiers(needed - 1, needed + 65536, 10**9)
    assert not none["runs"] and none["source"] == "made up"
    assert some["runs"] and 0 < some["bytes_per_step"] < total
    step = [u.nbytes for u in units if u.group != "embedding"]
    assert some["resident_bytes"] + some["bytes_per_step"] == sum(step)
    assert (everything["resident_bytes"], everything["bytes_per_step"]) == (total, 0)
    both = (Tier("little", needed - 1, "made up"), Tier("much", 10**9, "made up"))
    text = ios_folder.readme("name", info(opened, both))
    assert "does not run: needs" in text and "| nothing |" in text


@pytest.mark.parametrize("formats", [["native"], ["coreml"], ["coreai"], ["coreai", "coreml"]])
def test_the_readme_has_swift_that_parses(bundle: Path, formats: list[str]) -> None:
    each = [info(Bundle.open(bundle), ios.TIERS) | {"format": name} for name in formats]
    facts = each[0] if len(each) == 1 else {"bundles": [own | {"path": own["format"]} for own in each]}
    text = ios_folder.readme("some-model", facts)
    (code,) = re.findall(r"```swift\n(.*?)```", text, re.S)
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))
    assert not parser.parse(code.encode()).root_node.has_error, code
    assert '"some-model"' in code and "session.answer(" in code
    assert text.count("| device |") == len(formats)
    runtimes = {"coreml": "Core ML", "coreai": "Core AI"}
    if formats == ["native"]:
        assert "The native core runs all of it." in text and "computes the passes" not in text
    else:
        assert " or ".join(runtimes[name] for name in formats) + " computes the passes" in text
    assert ("newest bundle" in text) == (len(formats) > 1)


@pytest.mark.parametrize("new_tokens", [None, 32, 0])
def test_the_readmes_of_both_systems_say_what_programs_have_room_for(
    bundle: Path, new_tokens: int | None
) -> None:
    facts = info(Bundle.open(bundle), ios.TIERS) | {"packages": {}}
    if new_tokens is not None:
        facts["answer"] = {"prompt_tokens": 32, "new_tokens": new_tokens}
    for_ios = ios_folder.readme("name", facts | {"format": "coreml"})
    for_android = android_folder.readme("name", facts | {"format": "qnn"}, ())
    for text, length in ((for_ios, "(maxNewTokens: 32)"), (for_android, ".maxNewTokens(32)")):
        said = " ".join(text.split())
        assert (length in text) == (new_tokens == 32)
        room = "Its programs have room for 32 new tokens behind a prompt of 32, less than a default answer:"
        assert (f"{room} longer ones take an export with longer `--lengths`." in said) == (new_tokens == 32)
        none = "Its programs have no room for an answer behind a prompt of 32 tokens: answers take an export"
        assert (f"{none} with longer `--lengths`." in said) == (new_tokens == 0)
        assert "\n\n\n" not in text
    # No command is shown that nothing would come of.
    asked = re.findall(r"--max-new-tokens (\d+)\n", for_android)
    assert asked == ([] if new_tokens == 0 else ["16"]) and ("```console" in for_android) == bool(asked)


def test_a_finished_set_for_ios_has_both_files(bundle: Path, tmp_path: Path) -> None:
    for name in ("new", "old"):
        shutil.copytree(bundle, tmp_path / "set" / name)
    members = [
        Member(name, name, {"ios": ios_version, "macos": "15"})
        for name, ios_version in (("new", "27"), ("old", "18"))
    ]
    bundle_set.save(BundleSet(tuple(members)), tmp_path / "set")
    targets.get("ios").finish(tmp_path / "set")
    facts = json.loads((tmp_path / "set" / "Info.json").read_text())
    assert [own["path"] for own in facts["bundles"]] == ["new", "old"]
    assert facts["download_bytes"] == 2 * info(Bundle.open(bundle), ios.TIERS)["download_bytes"]
    text = (tmp_path / "set" / "README.md").read_text()
    assert front_matter_of(text)["library_name"] == "edgekit"
    assert "\n---\n\n# set\n" in text and "- `new`: format native" in text
    bundles = bundle_set.load(tmp_path / "set")
    assert bundles.members == tuple(members) and bundles.files.keys() == {"Info.json", "README.md"}
    # The bundles themselves, whose manifests the set lists, are not changed.
    assert (tmp_path / "set" / "new" / "README.md").read_bytes() == (bundle / "README.md").read_bytes()


def test_both_formats_are_for_those_who_ask_for_none() -> None:
    target = targets.get("ios")
    assert target.formats_for() == ("coreml", "coreai")
    for system, expected in (("18", "coreml"), ("26", "coreml"), ("26.4", "coreml"), ("27", "coreai")):
        assert target.formats_for(minimum_os=system) == (expected,)
    for name in target.formats:
        assert target.formats_for(name) == (name,)
    assert targets.get("host").formats_for() == ("native",)
    with pytest.raises(targets.UnknownTarget, match="does not run format 'mlx'"):
        target.formats_for("mlx")
    assert target.together_bytes == ios.APP_BYTES - ios.REST_BYTES


def test_a_finished_export_for_ios_has_both_files(bundle: Path) -> None:
    targets.get("ios").finish(bundle)
    told = json.loads((bundle / "Info.json").read_text())
    assert told["tiers"] and told["version"] == 1 and told["edgekit"] == installed_version()
    assert told["source"] == Bundle.open(bundle).manifest.provenance["checkpoint"]
    assert told["tokenizer"] == {
        "file": "tokenizer/tokenizer.json", "chat_form": (bundle / "tokenizer" / "chat.json").exists(),
    }  # fmt: skip
    text = (bundle / "README.md").read_text()
    assert front_matter_of(text)["pipeline_tag"] == "text-generation" and "\n---\n\n# bundle\n" in text
    assert {"Info.json", "README.md"} <= Bundle.open(bundle).manifest.files.keys()
    facts = (bundle / "Info.json").read_text()
    targets.get("ios").finish(bundle)
    assert (bundle / "Info.json").read_text() == facts
    targets.get("host").finish(bundle)


@pytest.mark.parametrize("name", ["rtx", "jetson", "rpi"])
def test_a_bundle_for_computers_says_how_it_is_run(tmp_path: Path, name: str) -> None:
    """Its commands are those of the command line; the figures, those of a plan."""
    from click.testing import CliRunner

    from edgekit.tools.cli import main

    folder = tmp_path / "some-bundle"
    made = CliRunner().invoke(main, ["export", "tiny-llada", "--target", name, "-o", str(folder)])
    assert made.exit_code == 0, made.output
    target, text = targets.get(name), (folder / "README.md").read_text()
    assert front_matter_of(text)["library_name"] == "edgekit" and "\n---\n\n# some-bundle\n" in text
    (line,) = re.findall(r"^\$ edgekit (run some-bundle .*)$", text, re.M)
    words = shlex.split(line.removesuffix(" --watch").replace("some-bundle", str(folder)))
    ran = CliRunner().invoke(main, [*words, "--steps", "1", "--max-new-tokens", "4", "--json"])
    assert ran.exit_code == 0, ran.output
    assert ("--engine torch" in line) == ("torch" in target.engines.values()) == (name != "rpi")
    facts = json.loads((folder / "Info.json").read_text())
    assert [tier["name"] for tier in facts["tiers"]] == [tier.name for tier in target.tiers]
    assert all(f"| {tier.name} |" in text for tier in target.tiers) and target.checked["native"] in text
    assert CliRunner().invoke(main, ["verify", str(folder)]).exit_code == 0


@pytest.mark.parametrize("name", ["ios", "android"])
def test_tiers_have_the_budgets_of_the_devices_that_plans_know(name: str) -> None:
    tiers = {tier.name: tier.budget_bytes for tier in targets.get(name).tiers}
    known = [device for device in devices().values() if device.target == name]
    assert known
    for device in known:
        kind = next((word for word in ("iPhone", "iPad") if word in device.name), "phone")
        budget = round(1e9 * device.figures["app_budget_gb"].value)
        assert tiers[f"{device.figures['ram_gb'].value:.0f} GB {kind}"] == budget, device.id


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (t.name, f)
        for t in targets.TARGETS.working()
        if t.describe and t.tiers
        for f in t.formats[1:]
        if t.name not in ("ios", "android")
    ],
)
def test_other_formats_of_a_target_are_described_on_any_machine(
    tmp_path: Path, name: str, written: str
) -> None:
    """Where neither a GPU nor the engine's library is; figures are those of a plan."""
    from click.testing import CliRunner

    from edgekit.tools.cli import main

    folder, target = tmp_path / "some-bundle", targets.get(name)
    words = ["export", "tiny-llada", "--target", name, "--format", written, "-o", str(folder)]
    device = ["--device", "opencl" if name == "rtx" else "opencl-aarch64"] if written == "tvm" else []
    made = CliRunner().invoke(main, [*words, *device])
    assert made.exit_code == 0, made.output
    engine, text = target.engines.get(written), (folder / "README.md").read_text()
    assert ("" if engine is None else f"--engine {engine} ") + "--memory" in text
    facts = json.loads((folder / "Info.json").read_text())
    if written == "tvm":
        summary = FORMATS.own["tvm"].devices[device[1]].summary
        assert (facts["device"], facts["device_summary"]) == (device[1], summary)
        assert f"Programs for {device[1]}: {summary}. Running them takes a TVM runtime built with" in text
        assert f"\nprograms for {device[1]}: {summary}\n" in made.stdout
        shown = CliRunner().invoke(main, ["inspect", str(folder)])
        assert f"\n  programs for {device[1]}: {summary}\n" in shown.stdout
        programs = json.loads(CliRunner().invoke(main, ["inspect", str(folder), "--json"]).stdout)["programs"]
        assert (programs["device"], programs["device_summary"]) == (device[1], summary)
    else:
        assert "device" not in facts and "rograms for" not in text + made.stdout
    assert facts["format"] == written and all(tier["runs"] for tier in facts["tiers"])
    assert CliRunner().invoke(main, ["verify", str(folder)]).exit_code == 0


@pytest.mark.parametrize(("target", "device"), [("mac", None), ("host", "x86-64"), ("host", "android")])
def test_other_bundles_of_machine_code_say_how_they_are_run(
    tmp_path: Path, target: str, device: str | None
) -> None:
    """With the engine's name, without which none is run; an archive is for an application alone."""
    from click.testing import CliRunner

    from edgekit.tools.cli import main

    pytest.importorskip("tvm", reason="tvm is not installed")
    folder = tmp_path / "some-bundle"
    words = ["export", "tiny-llada", "--target", target, "--format", "tvm", "-o", str(folder)]
    made = CliRunner().invoke(main, words + (["--device", device] if device else []))
    assert made.exit_code == 0, made.output
    text, row = (folder / "README.md").read_text(), FORMATS.own["tvm"]
    name = device or "metal"
    assert f"| programs for | {name}: {row.devices[name].summary} |" in text
    (suggested,) = re.findall(r"^next: (.*)$", made.stdout, re.M)
    lines = re.findall(r"^\$ edgekit (run .*?)(?: +#.*)?$", text, re.M)
    if name == "android":
        assert lines == [] and not re.search(r"edgekit run\b", suggested + text)
        assert all(
            part in suggested for part in ("edgekit verify", "programs/programs.tar", "runs no linked")
        )
        assert "`programs/programs.tar`" in text and "does not run\nlinked ones yet" in text
        return
    assert "--engine tvm" in suggested and "--engine tvm" in lines[0]
    assert ("TVM's runtime for Metal" in text) == (name == "metal")
    if name == "x86-64":
        words = shlex.split(lines[0].replace("hf:OWNER/NAME", str(folder)))
        ran = CliRunner().invoke(main, [*words, "--steps", "1", "--max-new-tokens", "4", "--json"])
        assert ran.exit_code == 0, ran.output


def test_rows_of_engines_name_a_target_where_the_default_one_lacks_their_format() -> None:
    for row in engine_registry.OWN:
        assert bool(row.target) == (row.format not in targets.get("host").formats)
        assert not row.target or row.format in targets.get(row.target).formats


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"provenance": {"target": "ios"}}, "edgekit verify x; its README.md says how an app uses it"),
        ({"programs": {"format": "coreml"}}, "edgekit verify x; no engine here runs it"),
        ({"programs": {"format": "crate"}}, "edgekit verify x; no engine here runs it"),
        (
            {"programs": {"format": "tvm", "device": "ios", "library": "programs.tar"}},
            "edgekit verify x; programs.tar holds objects for an application's linker, and edgekit runs no "
            "linked ones yet: --format native is what runs there",
        ),
        ({"provenance": {"target": "rtx"}}, "edgekit run x 'Why is the sky blue?' --engine torch --watch"),
        ({}, "edgekit run x 'Why is the sky blue?' --watch"),
    ],
)
def test_what_comes_next_is_what_can_be_done_here(
    changes: dict[str, Any], said: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    shutil.copytree(bundle, "x")
    sealing.edit(Path("x"), lambda table: table.update(changes))
    assert next_step(Path("x")) == said
