"""The export pipeline: what a bundle holds, interruption and resumption, refusals, and bounded memory."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.bundles import TILE_BYTES
from support.checkpoints import SPECIAL_TOKENS, write_checkpoint
from support.digests import digests

from edgekit.export import pipeline
from edgekit.export.checkpoint.provenance import legal_files
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.formats.base import WrittenPrograms
from edgekit.export.formats.options import Packaging
from edgekit.export.output_folder import examine, told_apart
from edgekit.export.pipeline import ExportOptions, export, plan_export
from edgekit.export.quantize import Override, Scheme
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import DiskFull, EdgekitError, ResumeMismatch
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.tokenizer import TokenizerError

OPTIONS = ExportOptions(tile_bytes=TILE_BYTES)
#: Where scripts find this module and the tests' support.
PATHS = [str(folder) for folder in Path(__file__).parents[:2]]


class NoPrograms:
    """Replaces program conversion, which takes seconds and has its own tests."""

    def __enter__(self) -> None:
        from edgekit.export.formats.onnx.writer import OnnxFormat

        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(OnnxFormat, "write_programs", lambda *_: WrittenPrograms({}))

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


def test_two_exports_are_the_same_bytes_programs_included(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    for name in ("a", "b"):
        export(tmp_path / "checkpoint", tmp_path / name, OPTIONS)
    first = digests(tmp_path / "a")
    assert first == digests(tmp_path / "b")
    assert {"edgekit.json", "weights.safetensors", "quantization.json", "tokenizer/tokenizer.json"} <= set(
        first
    )
    assert not [n for n in first if n.endswith((".partial", ".journal", ".report"))]


def test_report_counts_every_parameter_and_bit(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    write_checkpoint(tmp_path / "checkpoint", "llada_moe")
    stored = load_file(tmp_path / "checkpoint" / "model.safetensors")
    with NoPrograms():
        report = export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS).report
    assert report.parameters == sum(t.size for t in stored.values())
    flash = load_file(tmp_path / "out" / "weights.safetensors")
    assert report.stored_bytes == sum(t.nbytes for n, t in flash.items() if not n.startswith("__pad__"))
    written = json.loads((tmp_path / "out" / "quantization.json").read_text())
    assert len(written) == len(report.tensors) == len({t["name"] for t in written})
    errors = {t["name"]: t["relative_error"] for t in written}
    assert 0 < errors["layers.0.self_attn.q_proj"] < 0.01 < errors["layers.0.experts.3.down"] < 0.2


def test_a_bundle_opens_and_lists_its_layers(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "diffusion_gemma")
    with NoPrograms():
        result = export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)
    bundle = Bundle.open(tmp_path / "out")
    assert [x.window for x in bundle.model.layers] == [8, 8, 8, 8, 8, None]
    assert len(bundle.model.embedding.runs) > 1 and bundle.model.head is None
    with bundle.open_weights() as file:
        assert set(bundle.model.layers[0].experts) <= set(file.runs)
    assert any("vision tower" in n for n in result.notes)
    assert any("16 columns do not divide" in n for n in result.notes)


@pytest.mark.parametrize(
    ("family", "named", "limit"),
    [
        ("llada", {"mask_token_id": "<|mdm_mask|>", "eot_token_id": "<|eot_id|>"}, 512),
        ("llada_moe", {"mask_token_id": "<|mask|>", "eot_token_id": None}, 512),
        ("llada2_moe", {"mask_token_id": "<|mask|>"}, 512),
        ("dream", {"mask_token_id": "<|mask|>", "eot_token_id": None}, 512),
        ("diffusion_gemma", {"mask_token_id": None, "eot_token_id": None}, 1024),
    ],
)
def test_a_manifest_has_what_a_generation_needs(
    tmp_path: Path, family: str, named: dict[str, str | None], limit: int
) -> None:
    """Token ids that only the tokenizer names, and how long a text may be."""
    write_checkpoint(tmp_path / "checkpoint", family)
    for name in ("config.json", "generation_config.json"):
        path = tmp_path / "checkpoint" / name
        config = json.loads(path.read_text())
        if family in ("llada_moe", "llada2_moe", "dream"):  # their tokenizers have a mask token
            config.pop("mask_token_id", None)
        path.write_text(json.dumps(config))
    with NoPrograms():
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)
    bundle = Bundle.open(tmp_path / "out")
    found, special = bundle.manifest.sampler["config"], SPECIAL_TOKENS[family]
    ids = {name: None if token is None else special.index(token) for name, token in named.items()}
    assert {name: found.get(name) for name in named} == ids
    assert bundle.model.max_positions == limit


def test_ids_of_the_checkpoint_win_over_those_of_the_tokenizer(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada_moe")
    given = {"mask_id": 77, "eot_token_id": [78, 79]}
    (tmp_path / "checkpoint" / "generation_config.json").write_text(json.dumps(given))
    with NoPrograms():
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)
    config = Bundle.open(tmp_path / "out").manifest.sampler["config"]
    assert given.items() <= config.items()


SCRIPT = """
import sys
from pathlib import Path
from typing import Any
sys.path[:0] = {paths!r}
from test_export import NoPrograms, OPTIONS
from edgekit.export.pipeline import export
import dataclasses
print("ready", flush=True)
with NoPrograms():
    export(Path({checkpoint!r}), Path({out!r}), dataclasses.replace(OPTIONS, resume=True))
print("done", flush=True)
"""


def test_killed_at_any_point_resume_gives_the_same_bytes(tmp_path: Path) -> None:
    """Exports are killed when random parts of their report are written, each continuing the last, until one
    finishes.
    """
    write_checkpoint(tmp_path / "checkpoint", "llada_moe", num_hidden_layers=4, num_experts=12)
    code = SCRIPT.format(paths=PATHS, checkpoint=str(tmp_path / "checkpoint"), out=str(tmp_path / "out"))
    whole = SCRIPT.format(paths=PATHS, checkpoint=str(tmp_path / "checkpoint"), out=str(tmp_path / "whole"))

    def start(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    def written() -> int:
        """Bytes of the report, which grows with every matrix and goes when the export is whole."""
        with suppress(FileNotFoundError):
            return (tmp_path / "out" / "weights.safetensors.report").stat().st_size
        return 0

    assert start(whole).wait(120) == 0
    rng, kills = random.Random(7), 0
    while True:
        stop = written() + rng.uniform(1, 3000 + 1000 * kills)  # later attempts live longer
        process = start(code)
        while process.poll() is None and written() < stop:
            time.sleep(0.001)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
            kills += 1
            if not (tmp_path / "out" / "edgekit.json").exists():
                continue
            # The manifest is written last: from then on the export is whole, whether or not it could say so.
            break
        assert process.returncode == 0
        break
    assert kills > 1, "nothing was interrupted"
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_an_unfinished_export_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada")

    written = []
    real = pipeline.quantize_matrix

    def fails(weight: object, bits: int, group: int) -> object:
        written.append(bits)
        if len(written) == 12:
            raise KeyboardInterrupt
        return real(weight, bits, group)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "quantize_matrix", fails)
    with NoPrograms(), pytest.raises(KeyboardInterrupt):
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)
    monkeypatch.undo()
    with pytest.raises(EdgekitError, match="unfinished export, which --resume continues"):
        Bundle.open(tmp_path / "out")
    begun = f"begun with --target host --format onnx --quant {OPTIONS.scheme.preset} --group-size 32"
    with pytest.raises(ExportError, match=f"unfinished export; --resume continues it.*{begun}"):
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)
    with (
        NoPrograms(),
        pytest.raises(
            ResumeMismatch, match=f"another export.*with --overwrite.*{begun}; this one has --quant int8"
        ),
    ):
        other = ExportOptions(tile_bytes=TILE_BYTES, scheme=Scheme("int8"), resume=True)
        export(tmp_path / "checkpoint", tmp_path / "out", other)
    with NoPrograms():
        export(tmp_path / "checkpoint", tmp_path / "out", ExportOptions(tile_bytes=TILE_BYTES, resume=True))
        export(tmp_path / "checkpoint", tmp_path / "whole", OPTIONS)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_all_that_decides_about_the_bytes_is_among_the_words() -> None:
    scheme = Scheme("int4", 64, (Override("layers.0.*", 8),))
    packaging = Packaging((16, 32), 64, 2, "26")
    options = ExportOptions(
        "coreml", scheme=scheme, precision="float32", packaging=packaging, activations="float"
    )
    assert options.as_words() == (
        "--target host --format coreml --quant int4 --group-size 64 --precision float32 --activations float "
        "--min-os 26 --lengths 16,32 --max-positions 64 --layers-per-chunk 2 --override 'layers.0.*=8'"
    )


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("--lengths 64 --soc sm8650", "--lengths 96", "; this one has --lengths 96, no --soc)"),
        ("--target android", "--target android --calibrate a.txt", "; this one has --calibrate a.txt)"),
        ("--override a=8 --override b=8", "--override b=8", "; this one has no --override)"),
        ("--lengths 64", "--lengths 64", "texts of --calibrate or versions differ)"),
        ("'", "--lengths 64", " (it was begun with ')"),
    ],
)
def test_options_of_another_export_are_told_apart(tmp_path: Path, before: str, now: str, said: str) -> None:
    (tmp_path / "journal").write_text(json.dumps({"options": before}) + "\n")
    assert told_apart(tmp_path / "journal", now).endswith(said)


@pytest.mark.parametrize(
    "line", ["", "{", "[]", '{"options": null}', '{"tensors": []}', '{"options": 1' * 9999]
)
def test_a_journal_that_says_nothing(tmp_path: Path, line: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights.safetensors.report").write_text(line)
    assert not told_apart(tmp_path / "out" / "weights.safetensors.report", "--quant int8")
    with pytest.raises(ExportError, match="unfinished export") as error:
        examine(tmp_path / "out", "weights.safetensors", resume=False, overwrite=False)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("flag", ["resume", "overwrite"])
@pytest.mark.parametrize("name", ["weights.safetensors.partial", "weights.safetensors.journal", "programs/x"])
def test_planted_links_are_refused(tmp_path: Path, name: str, flag: str) -> None:
    """A folder from a stranger may hold what looks like an interrupted export."""
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    out, victim = tmp_path / "out", tmp_path / "victim"
    (out / "programs").mkdir(parents=True)
    (out / "weights.safetensors.report").write_text("")
    victim.write_bytes(b"precious")
    for plant in (lambda path: path.symlink_to(victim), os.mkfifo):
        plant(out / name)
        with pytest.raises(
            ExportError, match=rf"{name}: is (a symbolic link|not a regular file), which exports"
        ):
            export(tmp_path / "checkpoint", out, replace(OPTIONS, **{flag: True}))
        (out / name).unlink()
    assert victim.read_bytes() == b"precious"


def test_existing_folders_are_not_overwritten(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("keep")
    with pytest.raises(ExportError, match="holds files that are not a bundle"):
        export(tmp_path / "checkpoint", tmp_path / "notes", ExportOptions(overwrite=True))
    with pytest.raises(ExportError, match="is a file"):
        export(tmp_path / "checkpoint", tmp_path / "notes" / "diary.txt", OPTIONS)
    with NoPrograms():
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)
        held = rf"format onnx, preset {OPTIONS.scheme.preset}\); or give another folder"
        with pytest.raises(ExportError, match=rf"already holds a bundle; --overwrite replaces it \({held}"):
            export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)
        int8 = ExportOptions(tile_bytes=TILE_BYTES, scheme=Scheme("int8"), overwrite=True)
        export(tmp_path / "checkpoint", tmp_path / "out", int8)
        before = digests(tmp_path / "out")
        with pytest.raises(ResumeMismatch, match="holds the bundle of another export"):
            export(tmp_path / "checkpoint", tmp_path / "out", replace(OPTIONS, resume=True))
        assert digests(tmp_path / "out") == before
        assert manifests.load(tmp_path / "out").quantization["preset"] == "int8"
        (tmp_path / "out" / "edgekit.json").write_text("{")
        export(tmp_path / "checkpoint", tmp_path / "out", int8)
        assert digests(tmp_path / "out") == before
    assert (tmp_path / "notes" / "diary.txt").read_text() == "keep"


def test_damaged_weights_name_file_and_tensor(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    write_checkpoint(tmp_path / "checkpoint", "llada")
    tensors = load_file(tmp_path / "checkpoint" / "model.safetensors")
    tensors["model.transformer.blocks.1.ff_out.weight"][3, 4] = float("nan")
    save_file(tensors, tmp_path / "checkpoint" / "model.safetensors")
    with pytest.raises(
        QuantizationError, match=r"checkpoint: model\.transformer\.blocks\.1\.ff_out\.weight: .*NaN"
    ):
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "name",
    ["model.transformer.blocks.1.attn_norm.weight", "model.transformer.ln_f.weight"],
)
def test_damaged_norms_name_file_and_tensor(tmp_path: Path, name: str, value: float) -> None:
    """A bundle with such a norm would be whole and could never run."""
    from safetensors.torch import load_file, save_file

    write_checkpoint(tmp_path / "checkpoint", "llada", dtype="bfloat16")
    tensors = load_file(tmp_path / "checkpoint" / "model.safetensors")
    tensors[name][3] = value
    save_file(tensors, tmp_path / "checkpoint" / "model.safetensors")
    with (
        NoPrograms(),
        pytest.raises(QuantizationError, match=rf"checkpoint: {name}: .*holds NaN or infinity"),
    ):
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)


@pytest.mark.parametrize("preset", ["bf16", "int8", "int4"])
def test_weights_of_no_model_are_refused(tmp_path: Path, preset: str) -> None:
    """Their error, in the report, would be no number: nothing could read the bundle."""
    from safetensors.torch import load_file, save_file

    write_checkpoint(tmp_path / "checkpoint", "llada")
    tensors = load_file(tmp_path / "checkpoint" / "model.safetensors")
    tensors["model.transformer.blocks.1.ff_out.weight"][3, 4] = 3.4e38
    save_file(tensors, tmp_path / "checkpoint" / "model.safetensors")
    with NoPrograms(), pytest.raises(QuantizationError, match=r"ff_out\.weight: .*squares pass float32"):
        export(tmp_path / "checkpoint", tmp_path / "out", replace(OPTIONS, scheme=Scheme(preset)))


def test_the_tokenizer_that_was_checked_is_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    write_checkpoint(tmp_path / "checkpoint", "llada_moe", num_hidden_layers=1)
    tokenizer = tmp_path / "checkpoint" / "tokenizer.json"
    content, real = tokenizer.read_bytes(), pipeline.quantize_matrix

    def replaces(*arguments: Any) -> Any:
        tokenizer.write_text("{}")
        return real(*arguments)

    monkeypatch.setattr(pipeline, "quantize_matrix", replaces)
    with NoPrograms():
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)
    assert tokenizer.read_text() == "{}"
    assert (tmp_path / "out" / "tokenizer" / "tokenizer.json").read_bytes() == content
    assert Bundle.open(tmp_path / "out").tokenizer().mask_id == SPECIAL_TOKENS["llada_moe"].index("<|mask|>")


@pytest.mark.parametrize("key", ["bos_token", "mask_token", "chat_template"])
def test_special_tokens_and_templates_that_are_no_text_are_refused(tmp_path: Path, key: str) -> None:
    """Every run of such a bundle would blame the prompt."""
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    (tmp_path / "checkpoint" / "chat_template.jinja").unlink(missing_ok=True)
    config = tmp_path / "checkpoint" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: "a\ud800"}))
    with pytest.raises(TokenizerError, match=rf"checkpoint: {key.replace('_', '.')}.*a lone surrogate"):
        plan_export(tmp_path / "checkpoint", OPTIONS)


def test_the_space_that_is_asked_for_is_what_the_folder_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada")
    (tmp_path / "checkpoint" / "LICENSE").write_bytes(b"x" * 3_000_000)
    options = replace(OPTIONS, format="native")
    plan = plan_export(tmp_path / "checkpoint", options)
    free = [plan.output_bytes - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, free[0]))
    with pytest.raises(ExportError, match="left; free some space"):
        export(tmp_path / "checkpoint", tmp_path / "out", options)
    free[0] += 1
    export(tmp_path / "checkpoint", tmp_path / "out", options)
    taken = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert taken <= plan.output_bytes < taken + (1 << 20)


@pytest.mark.parametrize(
    "name",
    [
        "weights.safetensors.partial", "weights.safetensors.report", "tokenizer.json", "LICENSE",
        "quantization.json", "edgekit.json",
    ],
)  # fmt: skip
def test_a_full_disk_names_the_file_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    (tmp_path / "checkpoint" / "LICENSE").write_text("free")
    out, real = tmp_path / "out", os.fsync

    def full(fd: int) -> None:
        target = os.readlink(f"/proc/self/fd/{fd}")
        if name in target:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    with NoPrograms(), monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull) as error:
            export(tmp_path / "checkpoint", out, OPTIONS)
    said = str(error.value)
    assert name.removesuffix(".partial") in said and "\n" not in said
    assert said.count("the disk is full; delete or move other files") == said.count("--resume goes on") == 1
    with NoPrograms():
        export(tmp_path / "checkpoint", out, replace(OPTIONS, resume=True))
        export(tmp_path / "checkpoint", tmp_path / "whole", OPTIONS)
    assert digests(out) == digests(tmp_path / "whole")


@pytest.mark.parametrize("when", ["runs", "programs", "rest"])
@pytest.mark.parametrize("instead", ["link", "folder", "nothing"])
def test_nothing_is_written_to_another_folder_that_comes_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, instead: str
) -> None:
    from edgekit.export.formats.onnx.writer import OnnxFormat

    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    out, victim = tmp_path / "out", tmp_path / "victim"
    victim.mkdir()

    def move(*_: Any) -> None:
        if victim.exists() and not (tmp_path / "moved").exists():
            out.rename(tmp_path / "moved")
            if instead == "link":
                out.symlink_to(victim)
            elif instead == "folder":
                victim.rename(out)

    def first(real: Any) -> Any:
        return lambda *arguments: (move(), real(*arguments))[1]

    def programs(form: Any, folder: Path, progress: Any) -> WrittenPrograms:
        if when == "programs":
            move()
            progress("dense")
            (folder / "program").write_text("")
        return WrittenPrograms({})

    monkeypatch.setattr(OnnxFormat, "write_programs", programs)
    if when == "runs":
        monkeypatch.setattr(pipeline, "quantize_matrix", first(pipeline.quantize_matrix))
    elif when == "rest":
        monkeypatch.setattr(pipeline, "provenance", first(pipeline.provenance))
    with pytest.raises(ExportError, match="was moved away or replaced during the export"):
        export(tmp_path / "checkpoint", out, OPTIONS)
    other = out if instead == "folder" else victim
    assert list(other.iterdir()) == []
    if out.is_symlink():
        out.unlink()
    elif out.exists():
        out.rmdir()
    monkeypatch.undo()
    (tmp_path / "moved").rename(out)
    with NoPrograms():
        export(tmp_path / "checkpoint", out, replace(OPTIONS, resume=True))
        export(tmp_path / "checkpoint", tmp_path / "whole", OPTIONS)
    assert digests(out) == digests(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["torn", "emptied", "a run is missing", "a matrix is missing"])
def test_a_damaged_report_is_made_again(tmp_path: Path, damage: str) -> None:
    """Of weights that are all written; files that were half written go."""
    checkpoint, out, whole = (tmp_path / name for name in ("checkpoint", "out", "whole"))
    write_checkpoint(checkpoint, "llada", n_layers=2)

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    with NoPrograms():
        export(checkpoint, whole, OPTIONS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "_complete", fails)
            with pytest.raises(KeyboardInterrupt):
                export(checkpoint, out, OPTIONS)
        (report,) = out.glob("*.report")
        (out / ".notes.json.4711.tmp").write_text("half")
        lines = report.read_text().splitlines()
        if damage == "torn":
            report.write_text("[")
        elif damage == "emptied":
            report.write_text("")
        elif damage == "a run is missing":
            report.write_text("\n".join(line for line in lines if "layers.1" not in line))
        else:
            record = json.loads(lines[-1])
            record["tensors"].pop()
            report.write_text("\n".join([*lines[:-1], json.dumps(record)]))
        export(checkpoint, out, replace(OPTIONS, resume=True))
    assert digests(out) == digests(whole)


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ("README.md", "is missing from the finished export"),
        ("tokenizer/tokenizer.json", "is missing from the finished export"),
        ("quantization.json", "is missing from the finished export"),
        ("weights.safetensors", "its SHA-256 differs from the manifest's"),
        ("NOTICE", "its SHA-256 differs from the manifest's"),
        ("edgekit.json", r"holds a finished export that is damaged \(.*\)"),
    ],
)
def test_a_finished_export_is_looked_at_before_it_is_called_done(
    tmp_path: Path, damaged: str, said: str
) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    write_checkpoint(checkpoint, "llada", n_layers=1)
    (checkpoint / "NOTICE").write_text("legal")
    with NoPrograms():
        first = export(checkpoint, out, OPTIONS)
        assert export(checkpoint, out, replace(OPTIONS, resume=True)) == first
        file = out / damaged
        if "missing" in said:
            file.unlink()
        else:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1 if damaged != "edgekit.json" else 255
            file.write_bytes(content)
        with pytest.raises(EdgekitError, match=f"{said}; --overwrite writes it anew$"):
            export(checkpoint, out, replace(OPTIONS, resume=True))
        assert export(checkpoint, out, replace(OPTIONS, overwrite=True)) == first


def test_legal_files_with_names_that_not_every_system_takes_are_left_out(tmp_path: Path) -> None:
    """At the end of an export the manifest would refuse them."""
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    for name in ("LICENSE", "LICENSE.", "LICENSE-\u00fc.txt", "NOTICE.txt", "NOTICE.TXT", "COPYING?"):
        (tmp_path / "checkpoint" / name).write_text("legal")
    assert {*legal_files(tmp_path / "checkpoint")} == {"LICENSE", "NOTICE.TXT"}


def test_experts_of_a_layer_share_their_form(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada_moe")
    scheme = Scheme("mixed4", 32, (Override("layers.0.experts.1.*", 16),))
    with pytest.raises(QuantizationError, match="experts of a layer must all be float"):
        export(tmp_path / "checkpoint", tmp_path / "out", ExportOptions(scheme=scheme))


MEASURE = """
import resource, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from typing import Any
from test_export import NoPrograms
from edgekit.export.formats.base import WrittenPrograms
from edgekit.export.formats.options import Packaging
from edgekit.export.output_folder import examine, told_apart
from edgekit.export.pipeline import ExportOptions, export, plan_export
import torch
torch.zeros(8, 8) @ torch.zeros(8, 8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with NoPrograms():
    export(Path({checkpoint!r}), Path({out!r}), ExportOptions())
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_of_an_export_is_a_layer_not_the_model(tmp_path: Path) -> None:
    """16 layers of 20 MB in float32 and tables of 67 MB: the whole would be 454 MB above the start."""
    write_checkpoint(
        tmp_path / "checkpoint", "llada", dtype="bfloat16",
        d_model=512, n_heads=8, mlp_hidden_size=2560, n_layers=16, vocab_size=32768,
    )  # fmt: skip
    code = MEASURE.format(paths=PATHS, checkpoint=str(tmp_path / "checkpoint"), out=str(tmp_path / "out"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, peak = (int(x) * 1024 for x in done.stdout.split()[-2:])
    layer = 4 * (4 * 512 * 512 + 3 * 512 * 2560)
    assert peak - before < 2 * layer + (100 << 20), f"{(peak - before) / 1e6:.0f} MB above the start"
