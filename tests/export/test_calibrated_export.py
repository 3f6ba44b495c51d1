"""Exports whose ranges of activations come from texts: what manifests say, what is refused, and what an
interrupted one goes on with.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.checkpoints import write_checkpoint
from support.digests import digests

from edgekit.export import pipeline
from edgekit.export.calibrate.texts import Texts
from edgekit.export.errors import ExportError
from edgekit.export.formats.options import Packaging
from edgekit.export.pipeline import ExportOptions, export, plan_export
from edgekit.export.quantize import Scheme
from edgekit.export.sets import check_folder, plan_together, write_together
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import ResumeMismatch
from edgekit.tools.cli import main

pytest.importorskip("onnx", reason="onnx is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

OPTIONS = ExportOptions("qnn", "android", Scheme("int4", 32), packaging=Packaging((24,), layers_per_chunk=1))
SKY = Texts.of("sky.txt", ["The sky is blue because air scatters light of short waves. " * 9])
SEA = Texts.of("sea.txt", ["The sea is salt since rivers carry what rain takes from stones. " * 9])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    write_checkpoint(folder, "llada", n_layers=2)
    return folder


@pytest.fixture(scope="module")
def bundles(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By where ranges came from."""
    folder = tmp_path_factory.mktemp("bundles")
    for name, texts in (("random", None), ("sky", SKY), ("sea", SEA)):
        export(checkpoint, folder / name, replace(OPTIONS, calibrate=texts))
    return {name: folder / name for name in ("random", "sky", "sea")}


def test_ranges_are_those_of_the_texts(bundles: dict[str, Path]) -> None:
    weights = {
        name: (folder / "packages/layers.0.qnn/weights.bin").read_bytes() for name, folder in bundles.items()
    }
    assert len(set(weights.values())) == 3
    assert len({len(data) for data in weights.values()}) == 1, "scales differ, and nothing else"


def test_a_manifest_says_where_ranges_came_from(bundles: dict[str, Path]) -> None:
    made_of = {name: manifests.load(folder).provenance for name, folder in bundles.items()}
    told = made_of["sky"]["calibration"]
    assert told == {"file": "sky.txt", "sha256": SKY.digest, "texts": 1, "tokens": told["tokens"]}
    assert told["tokens"] % 96 == 0 and told["tokens"] > 0
    (said,) = (note for note in made_of["sky"]["notes"] if "ranges" in note)
    assert said == f"ranges of activations came from {told['tokens']} tokens of a text of sky.txt"
    assert "calibration" not in made_of["random"]
    (said,) = (note for note in made_of["random"]["notes"] if "ranges" in note)
    assert said.startswith("ranges of activations came from random tokens") and "--calibrate FILE" in said


class Stopped(Exception):
    """An export is interrupted."""


def interrupted(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, folder: Path, options: ExportOptions
) -> None:
    """An export that ends after its first layer."""
    whole: Callable[..., None] = pipeline._Sink.write_run

    def write_run(sink: Any, name: str, *others: Any) -> None:
        whole(sink, name, *others)
        if name == "layers.0":
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(pipeline._Sink, "write_run", write_run)
        with pytest.raises(Stopped):
            export(checkpoint, folder, options)


def test_an_export_goes_on_with_its_own_texts_alone(
    checkpoint: Path, bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, own = tmp_path / "out", replace(OPTIONS, calibrate=SKY)
    interrupted(monkeypatch, checkpoint, out, own)
    for other in (SEA, None):
        with pytest.raises(ResumeMismatch, match="--calibrate sky.txt"):
            export(checkpoint, out, replace(OPTIONS, calibrate=other, resume=True))
    export(checkpoint, out, replace(own, resume=True))
    assert digests(out) == digests(bundles["sky"])
    with pytest.raises(ResumeMismatch, match="holds the bundle of another export"):
        export(checkpoint, out, replace(OPTIONS, calibrate=SEA, resume=True))


class Unheard:
    """Progress that nobody looks at."""

    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...


def test_a_set_goes_on_with_its_own_texts_alone(
    checkpoint: Path, bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was interrupted before the bundle that takes them was begun, too."""

    def plans(texts: Texts | None, **others: Any) -> list[pipeline.ExportPlan]:
        native = ExportOptions("native", "android", OPTIONS.scheme, together=True, **others)
        qnn = replace(OPTIONS, calibrate=texts, together=True, **others)
        return plan_together(checkpoint, [native, qnn], None)[0]

    def stops(*_: Any) -> None:
        raise Stopped

    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(pipeline._Sink, "write_run", stops)
        write_together(plans(SKY), out, Unheard())
    begun = "it was begun with --target android --quant int4 .*--calibrate sky.txt .*; this one has"
    for other, said in ((SEA, f"{begun} --calibrate sea.txt"), (None, f"{begun} no --calibrate")):
        with pytest.raises(ResumeMismatch, match=said):
            check_folder(plans(other, resume=True), out)
    check_folder(plans(SKY, resume=True), out)
    write_together(plans(SKY, resume=True), out, Unheard())
    assert (out / "qnn/packages/layers.0.qnn/weights.bin").read_bytes() == (
        bundles["sky"] / "packages/layers.0.qnn/weights.bin"
    ).read_bytes()


def test_what_was_compiled_for_other_ranges_is_not_taken(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled package is not made again where it is there; no manifest lists those of half an export."""
    out = tmp_path / "out"
    interrupted(monkeypatch, checkpoint, out, replace(OPTIONS, calibrate=SKY))
    old = out / "compiled/sm8650/layers.0/t24_p0.ctx_qnn.bin"
    old.parent.mkdir(parents=True)
    old.write_text("of the sky")
    export(checkpoint, out, replace(OPTIONS, calibrate=SEA, overwrite=True))
    assert not (out / "compiled").exists()


def test_texts_that_cannot_be_used_are_refused_before_anything_is_written(
    checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ExportError, match="^format native takes no ranges of activations; leave --calibrate out"
    ):
        plan_export(checkpoint, ExportOptions("native", calibrate=SKY))
    with pytest.raises(ExportError, match="^few: has .* tokens, and ranges of activations take at least 96"):
        plan_export(checkpoint, replace(OPTIONS, calibrate=Texts.of("few", ["Hi"])))
    file, out = tmp_path / "mine.jsonl", tmp_path / "out"
    words = ["export", str(checkpoint), "-o", str(out), "--calibrate", str(file)]
    for text, target, said in (
        ('{"prompt": "Hi"}', "android", "mine.jsonl: has"),
        ("", "android", "mine.jsonl: has no text"),
        ('{"prompt": "Hi"}', "host", "format native takes no ranges"),
    ):
        file.write_text(text)
        done = CliRunner().invoke(main, [*words, "--target", target])
        assert said in done.stderr and done.exit_code != 0 and not out.exists()
    (checkpoint / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    try:
        file.write_text(json.dumps({"prompt": "The sky is blue. " * 50}))
        done = CliRunner().invoke(main, [*words, "--target", "android"])
    finally:
        (tmp_path / "tokenizer.json").rename(checkpoint / "tokenizer.json")
    assert "has no tokenizer.json" in done.stderr and "Traceback" not in done.stderr and not out.exists()
