"""Exports for Android: a set with the native bundle and that for the NPU, or the native bundle alone."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.checkpoints import write_checkpoint
from support.fake_hub import TOKEN, FakeHub

from edgekit import targets
from edgekit.export import formats, pipeline
from edgekit.export.errors import ExportError
from edgekit.export.formats.options import FormatOptions, Packaging, parse_lengths, parse_names
from edgekit.export.formats.qnn import writer
from edgekit.export.formats.row import FormatRow, shared_out
from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_set import Member
from edgekit.runtime.bundle import Bundle, model_card
from edgekit.runtime.bundle.choice import choose
from edgekit.runtime.bundle.golden import GOLDEN_FILE, loads
from edgekit.runtime.generation import Generator, Settings
from edgekit.tools.cli import main
from edgekit.tools.suggestion import suggested_run

pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def edgekit(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    folder = tmp_path_factory.mktemp("android") / "some-set"
    made = edgekit("export", "tiny-llada", "--target", "android", "--lengths", "64", "-o", folder)
    assert made.exit_code == 0 and "(native and qnn, mixed4)" in made.stderr, made.output
    assert f"next: edgekit run {folder}" in made.stdout
    said = (
        "the programs of format qnn have room for 32 new tokens behind a prompt of 32, a default answer has"
    )
    assert f"{said} 128: ask for fewer (--max-new-tokens 32), or export with longer --lengths" in made.stderr
    return folder


def test_the_npu_comes_first_where_it_runs(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle_set.load(several).members == (Member("qnn", "qnn", {}), Member("native", "native", {}))
    assert bundle_set.choose(several, ["native"]) == several / "native"
    assert bundle_set.choose(several, ["native", "qnn"]) == several / "qnn"
    for machine, engine, taken in (
        ("x86_64", None, "native"), ("aarch64", None, "qnn"), ("x86_64", "qnn", "qnn"),
    ):  # fmt: skip
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert choose(several, engine) == several / taken


def test_both_bundles_are_whole(several: Path) -> None:
    checked = edgekit("verify", several)
    assert checked.exit_code == 0, checked.output
    packages = Bundle.open(several / "qnn").packages
    assert packages is not None and [length[0] for length in packages.lengths()] == [64]
    assert Bundle.open(several / "native").packages is None


def test_verify_counts_the_bundles_of_a_set(several: Path, tmp_path: Path) -> None:
    assert "and 2 bundles, " in edgekit("verify", several).stdout
    copy = tmp_path / "copy"
    shutil.copytree(several, copy)
    listed = (copy / "bundles.json").read_text()
    (copy / "bundles.json").write_text(listed.replace('"path": "qnn"', '"path": "qnx"'))
    wrong = edgekit("verify", copy)
    count = sum(path.is_file() for path in (copy / "qnn").rglob("*"))
    assert "1 of 2 bundles is damaged" in wrong.stdout
    (line,) = [line for line in wrong.stderr.splitlines() if "part of the bundle" in line]
    assert line == f"note: {count - 1} files are not part of the bundle, all in qnn/; --json lists them"
    (copy / "bundles.json").write_text(listed)
    shutil.rmtree(copy / "qnn")
    gone = edgekit("verify", copy)
    assert re.search(r": 1 of \d+ files and 1 of 2 bundles are damaged; ", gone.stdout), gone.stdout


def test_files_beside_them_say_what_each_is_for(several: Path) -> None:
    facts = json.loads((several / "Info.json").read_text())
    assert [own["path"] for own in facts["bundles"]] == ["qnn", "native"]
    assert [tier["name"] for tier in facts["bundles"][0]["tiers"]] == [
        "6 GB phone",
        "8 GB phone",
        "12 GB phone",
        "16 GB phone",
    ]
    text = (several / "README.md").read_text()
    assert "# some-set\n" in text and text.count("| device |") == 2
    assert "- `qnn`: format qnn, for Snapdragon's NPU, " in text
    assert "- `native`: format native, for the processor of any phone, " in text
    assert "A phone fetches one of the bundles" in text and "compiled/" not in text
    assert {"README.md", "Info.json"} <= bundle_set.load(several).files.keys()
    # What it suggests has room in the programs.
    assert [own["canvas"] for own in facts["bundles"]] == [64, 256]
    answers = [own.get("answer") for own in facts["bundles"]]
    assert answers == [{"prompt_tokens": 32, "new_tokens": 32}, None]
    assert "new GenerationSettings().maxNewTokens(32), null," in text and "--max-new-tokens 16\n" in text
    assert "room for 32 new tokens behind a prompt of 32" in text
    # So do the model cards of the bundles.
    for name, words in (("qnn", " --max-new-tokens 32 "), ("native", " ")):
        card = (several / name / "README.md").read_text()
        assert f'hf:OWNER/NAME -p "Why is the sky blue?"{words}   # this' in card
    # Or they say that there is none.
    card = model_card.card(manifests.load(several / "qnn"), 0)
    none = (
        "no room for an answer behind a prompt of 32 tokens: answers take an export with\nlonger `--lengths`."
    )
    assert none in card and "$ edgekit run" not in card and "$ edgekit verify FOLDER" in card


@pytest.mark.parametrize("name", ["qnn", "native"])
def test_a_card_that_a_push_writes_is_the_one_of_the_export(
    several: Path, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(several / name, folder)
    exported = (folder / "README.md").read_text()
    (folder / "README.md").unlink()
    manifest = manifests.load(folder)
    files = {path: entry for path, entry in manifest.files.items() if path != "README.md"}
    manifests.save(replace(manifest, files=files), folder)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pushed = edgekit("push", folder, "owner/it")
    assert pushed.exit_code == 0, pushed.output
    assert hub.files("owner/it")["README.md"].decode() == exported
    again = edgekit("push", folder, "owner/it")
    assert "owner/it has this bundle already" in again.stderr


def test_a_set_names_the_chips_that_its_bundles_were_compiled_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(bundle: Path, packages: Any, socs: tuple[str, ...], *_: Any) -> dict[str, list[str]]:
        made = {}
        for soc in socs:
            file = bundle / "compiled" / soc / "package" / "function.bin"
            file.parent.mkdir(parents=True)
            file.write_text(soc)
            made[soc] = [file.relative_to(bundle).as_posix()]
        return made

    monkeypatch.setattr(writer, "check_compiler", lambda: None)
    monkeypatch.setattr(writer, "compiled_files", compiled)
    monkeypatch.setattr(writer, "COMPILERS", ())
    words = ["--lengths", "64", "--soc", "sm8650,sm8750", "-o", tmp_path / "set"]
    made = edgekit("export", "tiny-llada", "--target", "android", *words)
    assert made.exit_code == 0, made.output
    chips = ("sm8650", "sm8750")
    members = bundle_set.load(tmp_path / "set").members
    assert members == (Member("qnn", "qnn", {}, chips), Member("native", "native", {}))
    for engine in ("qnn", "native"):
        shown = edgekit("inspect", tmp_path / "set", "--engine", engine)
        assert "  one of qnn, compiled for sm8650 and sm8750; native\n" in shown.stdout
    found = json.loads(edgekit("inspect", tmp_path / "set", "--json").stdout)
    assert [own["chips"] for own in found["bundles"]] == [list(chips), []]
    assert "bundles" not in json.loads(edgekit("inspect", tmp_path / "set" / "qnn", "--json").stdout)
    text = (tmp_path / "set" / "README.md").read_text()
    assert (
        "compiled for sm8650, sm8750, and phones with such a chip open those. Other phones\ntake the" in text
    )


def test_provenance_has_the_versions_of_what_took_part(several: Path) -> None:
    names = {form: set(manifests.load(several / form).provenance["versions"]) for form in ("qnn", "native")}
    assert names == {"qnn": {"edgekit", "torch", "onnx", "onnxscript"}, "native": {"edgekit", "torch"}}


def test_inspect_shows_the_bundle_of_the_engine(several: Path) -> None:
    for engine, path in (("qnn", "qnn"), ("native", "native")):
        for memory in ([], ["--memory", "8GB"]):
            done = edgekit("inspect", several, "--engine", engine, "--json", *memory)
            found = json.loads(done.stdout)
            assert Path(found["bundle"]) == several / path and found["programs"]["format"] == engine
            assert ("plan" in found) == bool(memory)
    plan = json.loads(edgekit("inspect", several, "--engine", "qnn", "--memory", "8GB", "--json").stdout)[
        "plan"
    ]
    assert plan["prompt_tokens"] + plan["new_tokens"] <= 64 and plan["canvas"] == 64
    shown = edgekit("inspect", several, "--engine", "qnn", "--memory", "8GB").stdout
    assert (
        "for a prompt of 32 tokens and an answer of up to 32: a canvas of 64 positions; its programs" in shown
    )


def test_selftest_names_lengths_where_the_golden_passes_pass_them(
    several: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = loads((several / "qnn" / GOLDEN_FILE).read_bytes(), "golden")
    passes = [replace(each, canvas=3 * each.canvas) for each in known.passes]
    longer = replace(known, prompt=3 * known.prompt, passes=passes)
    monkeypatch.setattr("edgekit.tools.golden.read", lambda bundle: longer)
    result = edgekit("selftest", several, "--engine", "qnn", "--json")
    most = max(len(each.canvas) for each in longer.passes)
    assert result.exit_code == 2 and result.stderr.splitlines()[-1] == (
        f"edgekit: error: {several / 'qnn'}: the golden passes take up to {most} positions, its programs "
        "take at most 64 positions: export with longer --lengths"
    )


def test_what_a_command_suggests_has_room_in_the_programs(several: Path) -> None:
    too_long = edgekit("run", several / "qnn", "What is 23 + 45?", "--engine", "qnn")
    said = "take at most 64 positions: use --max-new-tokens 32 (max_new_tokens=32), shorten the prompt, or"
    assert too_long.exit_code == 2 and said in too_long.stderr
    measured = edgekit("bench", several, "--engine", "qnn", "--no-probe")
    said = (
        "take at most 64 positions: use --new-tokens 32, shorten the prompt, or export with longer --lengths"
    )
    assert measured.exit_code == 2 and said in measured.stderr and "max" not in measured.stderr.split(said)[1]
    assert shlex.split(suggested_run(several / "qnn")) == [
        "edgekit", "run", str(several / "qnn"), "What is 23 + 45?", "--max-new-tokens", "32", "--watch",
    ]  # fmt: skip
    assert "--max-new-tokens" not in suggested_run(several / "native")
    with Generator(several / "qnn") as generator:
        assert generator.shortfall(18) == (128, 32) and generator.shortfall(64) == (128, 0)
        assert generator.shortfall(18, Settings(max_new_tokens=32)) is None
        assert generator.shortfall(18, Settings(options={"block_length": 8})) == (128, 40)


def test_models_that_the_npu_does_not_take_are_native(tmp_path: Path) -> None:
    scheme, said = ["--quant", "bf16"], "has 16 bits; format qnn multiplies codes of 4 and 8 bits"
    write_checkpoint(tmp_path / "model", "llada_moe")
    words = ["export", tmp_path / "model", "--target", "android", *scheme, "-o"]
    made = edgekit(*words, tmp_path / "out")
    assert made.exit_code == 0, made.output
    (line,) = [line for line in made.stderr.splitlines() if line.startswith("note: for native alone: ")]
    assert said in line and "exports for" not in line and "--format native" not in line
    assert Bundle.open(tmp_path / "out").manifest.format == "native"
    text = (tmp_path / "out" / "README.md").read_text()
    assert "- format native, for the processor of any phone" in text and "qnn" not in text
    assert "A phone fetches" not in text
    # What only the NPU takes is not left out without a word.
    refused = edgekit(*words, tmp_path / "new", "--lengths", "24")
    assert refused.exit_code == 2 and said in refused.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changed", "words", "said"),
    [
        (
            {"n_heads": 1, "n_kv_heads": 1},
            ["--lengths", "16,24"],
            "layer 0 has one attention head: .*other --l",
        ),
        (
            {"mlp_hidden_size": 112},
            [],
            r"mlp\.down_proj: has groups of 16; .*: use --override '\*down_proj=8'$",
        ),
        (
            {},
            ["--group-size", "16"],
            r": has groups of 16; the NPU takes groups of 32 or 64: use --group-size 32$",
        ),
    ],
)
def test_what_the_npu_does_not_compute_is_refused(
    changed: dict[str, Any], words: list[str], said: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "model", "llada", **changed)
    fixed = ["export", tmp_path / "model", "--target", "android", "--format", "qnn", "-o"]
    refused = edgekit(*fixed, tmp_path / "out", *words)
    assert refused.exit_code == 2 and re.search(said, refused.stderr.strip()), refused.output
    other = {"--lengths": ["--lengths", "24"], "--group-size": []}.get(
        "".join(words[:1]), ["--override", "*down_proj=8"]
    )
    made = edgekit(*fixed, tmp_path / "out", *other)
    assert made.exit_code == 0, made.output


def test_inspect_tells_the_groups_that_a_bundle_has(tmp_path: Path) -> None:
    """192 columns divide by 64; 8 bits have no groups."""
    words = ["export", "tiny-llada", "--target", "android", "--format", "qnn", "--lengths", "24"]
    for name, how in (("grouped", ["--group-size", "128"]), ("whole", ["--quant", "int8"])):
        made = edgekit(*words, *how, "-o", tmp_path / name)
        assert made.exit_code == 0, made.output
    assert "\nquantization: mixed4, groups of 64\n" in edgekit("inspect", tmp_path / "grouped").stdout
    assert "\nquantization: int8\n" in edgekit("inspect", tmp_path / "whole").stdout
    found = json.loads(edgekit("inspect", tmp_path / "grouped", "--json").stdout)["quantization"]
    assert (found["group_sizes"], found["group_size"]) == ([64], 128)


def test_a_bundle_without_room_for_an_answer_stands_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = pipeline.short_of, []

    def short_of(*given: Any) -> tuple[int, int] | None:
        asked.append(given)
        return real(*given)

    monkeypatch.setattr(pipeline, "short_of", short_of)
    made = edgekit("export", "tiny-llada", "--target", "android", "--lengths", "8", "-o", tmp_path)
    assert made.exit_code == 0, made.output
    assert len(asked) == 1
    assert [member.path for member in bundle_set.load(tmp_path).members] == ["native", "qnn"]


def test_a_model_with_experts_is_for_both(tmp_path: Path) -> None:
    """Only the processor multiplies with experts: they may have any form, and the NPU's packages none."""
    write_checkpoint(tmp_path / "model", "llada_moe")
    words = ["--override", "*experts*=16", "--lengths", "24"]
    made = edgekit("export", tmp_path / "model", "--target", "android", *words, "-o", tmp_path / "out")
    assert made.exit_code == 0, made.output
    found = json.loads(edgekit("inspect", tmp_path / "out", "--engine", "qnn", "--json").stdout)
    experts = {role["role"]: role["bits"] for role in found["quantization"]["roles"]}
    assert experts["experts"] == 16 and experts["attention"] == 8
    own = Bundle.open(tmp_path / "out" / "qnn")
    assert own.packages is not None and all(layer.experts for layer in own.model.layers)
    weights = sum(own.runs[name].length for layer in own.model.layers for name in layer.experts)
    packages = sum(package.nbytes for package in own.packages.entries.values())
    assert weights > packages
    assert all(8 < package["bits_per_weight"] < 9 for package in found["programs"]["packages"][:-1])
    assert sum(layer["expert_bytes"] for layer in found["layers"]) == weights
    checked = edgekit("verify", tmp_path / "out")
    assert checked.exit_code == 0, checked.output


def test_without_its_packages_the_native_bundle_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(self: FormatRow, device: str | None = None) -> None:
        if self.name == "qnn":
            raise ExportError(f"format {self.name} {self.lacks('onnxscript')}")

    monkeypatch.setattr(FormatRow, "check_installed", missing)
    words = ["export", "tiny-llada", "--target", "android", "-o"]
    made = edgekit(*words, tmp_path / "out")
    assert made.exit_code == 0, made.output
    said = "format qnn needs the package onnxscript: pip install 'edgekit[export-qnn]'"
    assert f"note: for native alone: {said}\n" in made.stderr
    refused = edgekit(*words, tmp_path / "new", "--soc", "sm8650")
    assert refused.exit_code == 2 and said in refused.stderr


def test_one_format_is_for_those_who_ask_for_it() -> None:
    target = targets.get("android")
    assert target.formats_for() == ("native", "qnn") and target.together_bytes is None
    for name in target.formats:
        assert target.formats_for(name) == (name,)


def test_options_go_to_the_formats_that_offer_them() -> None:
    native, qnn, coreml = map(formats.get, ("native", "qnn", "coreml"))
    cut: dict[str, Any] = {"packaging": Packaging((24,)), "socs": ("sm8650",)}
    forms, asked = shared_out([native, qnn], FormatOptions(**cut))
    assert forms == [FormatOptions(), FormatOptions(**cut)] and asked == ["qnn"]
    assert shared_out([native, qnn], FormatOptions()) == ([FormatOptions()] * 2, [])
    both = FormatOptions(packaging=Packaging((24,)))
    assert shared_out([coreml, formats.get("coreai")], both) == ([both, both], [])
    with pytest.raises(ExportError, match="format native compiles for no device; leave --device out"):
        shared_out([native, qnn], FormatOptions(device="cuda"))
    with pytest.raises(ExportError, match="unknown chip 'sm1' for format qnn"):
        shared_out([native, qnn], FormatOptions(socs=("sm1",)))
    with pytest.raises(ExportError, match="--soc is 'sm8650,'; separate names by single commas"):
        parse_names("sm8650,")
    with pytest.raises(ExportError, match="--lengths 64,-1: -1 positions are not possible"):
        parse_lengths("64,-1")
    with pytest.raises(ExportError, match="format native compiles for no chips; leave --soc out"):
        shared_out([native], FormatOptions(socs=("sm8650",)))
