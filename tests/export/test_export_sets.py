"""Exports in several formats side by side: what they write and when, interruption and replacement."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint
from support.interrupted_exports import Killed, all_files, record_steps
from support.package_bundles import options

from edgekit.export import output_folder, pipeline
from edgekit.export.errors import ExportError
from edgekit.export.formats.options import Packaging
from edgekit.export.formats.packages import store
from edgekit.export.formats.packages.stamp import Stamped
from edgekit.export.pipeline import ExportOptions, ExportResult, export, plan_export
from edgekit.export.quantize import Scheme
from edgekit.export.sets import plan_together, write_together
from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import EdgekitError, ResumeMismatch
from edgekit.runtime.bundle import Bundle

pytest.importorskip("coremltools", reason="coremltools is not installed")
pytest.importorskip("coreai.authoring", reason="coreai-core is not installed")

PLENTY = 10**9
NAMES = ("coreml", "coreai")
CUT = Packaging((8,), layers_per_chunk=1)


def each(cut: Packaging = CUT, **others: Any) -> list[ExportOptions]:
    return [options(name, Scheme(), None, cut, **others) for name in NAMES]


def export_both(checkpoint: Path, output: Path, cut: Packaging = CUT, **others: Any) -> list[ExportResult]:
    plans, why = plan_together(checkpoint, each(cut, **others), PLENTY)
    assert not why
    return write_together(plans, output, pipeline._Silent())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "checkpoint"
    write_checkpoint(folder, "llada", n_layers=2)
    return folder


@pytest.fixture(scope="module")
def both(checkpoint: Path) -> Path:
    """A set. Read only."""
    export_both(checkpoint, checkpoint.parent / "both")
    return checkpoint.parent / "both"


def test_each_bundle_is_what_an_export_for_it_alone_writes(
    both: Path, checkpoint: Path, tmp_path: Path
) -> None:
    for own in each():
        export(checkpoint, tmp_path / own.format, own)
    expected = all_files(tmp_path)
    found = all_files(both)
    assert found.keys() == {*expected, "bundles.json"}
    assert {name for name in expected if found[name] != expected[name]} == set()
    bundles = bundle_set.load(both)
    assert [m.path for m in bundles.members] == ["coreai", "coreml"]
    for member in bundles.members:
        programs = Bundle.open(both / member.path).manifest.programs
        assert (programs["format"], programs["minimum_os"]) == (member.format, member.minimum_os)
    assert bundles.files == {
        f"{m.path}/edgekit.json": manifests.file_entry(both / m.path / "edgekit.json")
        for m in bundles.members
    }


def test_every_weight_is_quantized_once(
    both: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []

    def counted(weight: Any, bits: int, group_size: int) -> Any:
        shapes.append(tuple(weight.shape))
        return real(weight, bits, group_size)

    real = pipeline.quantize_matrix
    monkeypatch.setattr(pipeline, "quantize_matrix", counted)
    export_both(checkpoint, tmp_path / "again")
    parameters = sum(int(np.prod(shape)) for shape in shapes)
    report = json.loads((both / "coreml" / "quantization.json").read_text())
    assert parameters == sum(int(np.prod(row["shape"])) for row in report)


def test_formats_that_store_other_arrays_are_written_one_by_one(checkpoint: Path, tmp_path: Path) -> None:
    half, full = each()
    plans, why = plan_together(checkpoint, [half, replace(full, precision="float32")], PLENTY)
    assert not why and not plans[1].alike(plans[0])
    first, second = write_together(plans, tmp_path / "out", pipeline._Silent())
    assert plans[1].weights_bytes > plans[0].weights_bytes and first.path != second.path
    precisions = {n: manifests.load(tmp_path / "out" / n).programs["precision"] for n in NAMES}
    assert precisions == {"coreml": "float16", "coreai": "float32"}


# --- when they fit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llada", "diffusion_gemma"])
def test_planned_bytes_are_those_of_all_tensors(tmp_path: Path, family: str) -> None:
    """Of the head's packages too, whose table is tied in one of the families."""
    layers = {"llada": {"n_layers": 1}, "diffusion_gemma": {"num_hidden_layers": 2}}[family]
    write_checkpoint(tmp_path / "checkpoint", family, **layers)
    cut = Packaging((8,) if family == "llada" else (0,))
    for own in each(cut):
        plan = plan_export(tmp_path / "checkpoint", own)
        flash = sum(t.nbytes for run in plan.runs if run.unit == "embedding" for t in run.spec.tensors)
        packages = [plan.format.template(package) for package in plan.format.packages]
        assert plan.weights_bytes == flash + sum(r.nbytes for t in packages for r in t.regions.values())


def test_what_does_not_fit_is_told_and_the_first_is_left(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, why = plan_together(checkpoint, each(), PLENTY)
    total = sum(plan.weights_bytes for plan in plans)
    assert [len(plan_together(checkpoint, each(), limit)[0]) for limit in (total + 1, total)] == [2, 1]
    assert plan_together(checkpoint, each()[:1], 0)[1] == ""
    plans, why = plan_together(checkpoint, each(), 1000)
    assert [plan.options.format for plan in plans] == ["coreml"]
    assert "coreml and coreai together have" in why and "an app has room for 1 kB" in why

    from edgekit.export.formats.coreai.writer import CoreaiFormat
    from edgekit.export.formats.coreml.writer import CoremlFormat

    monkeypatch.setattr(CoreaiFormat, "LIMIT_BYTES", 1000)
    plans, why = plan_together(checkpoint, each(), PLENTY)
    assert [plan.options.format for plan in plans] == ["coreml"] and "over the limit of 1 kB" in why
    monkeypatch.setattr(CoremlFormat, "LIMIT_BYTES", 1000)
    with pytest.raises(ExportError, match="over the limit of 1 kB"):
        plan_together(checkpoint, each(), PLENTY)


# --- interruption -----------------------------------------------------------------------------------------


def steps(patch: pytest.MonkeyPatch, kill_at: int | None) -> list[str]:
    """Record what an export does to the disk; killed before step `kill_at`."""
    watched = [
        (Stamped, "write"),
        (store.PackageStore, "_append"),
        (store.os, "replace"),  # of every rename
        (bundle_set, "save"),
        (pipeline, "write_manifest"),
    ]
    return record_steps(patch, watched, kill_at)


def killed(run: Callable[[], object], kill_at: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        steps(patch, kill_at)
        with pytest.raises(Killed):
            run()


def test_an_interrupted_export_goes_on_to_the_same_bytes(
    both: Path, checkpoint: Path, tmp_path: Path
) -> None:
    expected = all_files(both)
    with pytest.MonkeyPatch.context() as patch:
        seen = steps(patch, None)
        export_both(checkpoint, tmp_path / "whole")
    manifest = [i for i, name in enumerate(seen) if name == "write_manifest"]
    assert len(seen) > 40 and len(manifest) == 2
    # In the weights of both, between their manifests, and before bundles.json.
    for kill_at in (2, len(seen) // 2, manifest[1], len(seen) - 1):
        folder = tmp_path / str(kill_at)
        killed(functools.partial(export_both, checkpoint, folder), kill_at)
        assert not (folder / "bundles.json").exists() and not bundle_set.is_set(folder)
        with pytest.raises(EdgekitError, match="unfinished export, which --resume continues"):
            Bundle.open(folder)
        with pytest.raises(ExportError, match="holds an unfinished export; --resume continues it"):
            export_both(checkpoint, folder)
        export_both(checkpoint, folder, resume=True)
        assert all_files(folder) == expected, kill_at


def test_resuming_a_whole_set_changes_nothing(both: Path, checkpoint: Path) -> None:
    expected = all_files(both)
    results = export_both(checkpoint, both, resume=True)
    assert [r.path.name for r in results] == ["coreml", "coreai"] and all_files(both) == expected


def test_other_options_do_not_go_on_with_a_set(both: Path, checkpoint: Path, tmp_path: Path) -> None:
    expected = all_files(both)
    with pytest.raises(ResumeMismatch, match="of another export"):
        export_both(checkpoint, both, Packaging((9,), layers_per_chunk=1), resume=True)
    assert all_files(both) == expected
    killed(lambda: export_both(checkpoint, tmp_path / "out"), 20)
    with pytest.raises(ResumeMismatch):
        export_both(checkpoint, tmp_path / "out", Packaging((9,), layers_per_chunk=1), resume=True)


# --- folders that are in use ------------------------------------------------------------------------------


def test_a_folder_with_other_things_is_left_alone(both: Path, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="holds files that are not a bundle"):
        export_both(checkpoint, tmp_path, overwrite=True)
    with pytest.raises(ExportError, match="already holds bundles; --overwrite replaces them"):
        export_both(checkpoint, both)
    with pytest.raises(ExportError, match="notes.txt: is a file; give a folder"):
        export_both(checkpoint, tmp_path / "notes.txt")
    assert all_files(tmp_path) == {"notes.txt": b"mine"}


def test_a_set_and_a_bundle_take_each_others_place(checkpoint: Path, tmp_path: Path) -> None:
    """Nothing of the earlier one is left, and nothing that was not its own is gone."""
    out, alone = tmp_path / "out", options("coreml", Scheme(), None, CUT)
    mine = {"notes.txt": b"mine", "coreml/notes.txt": b"mine too"}

    def put_mine() -> None:
        for name, data in mine.items():
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_bytes(data)

    export(checkpoint, out, alone)
    put_mine()
    single = all_files(out)
    for change, said in (
        ({}, "already holds a bundle; --overwrite"),
        ({"resume": True}, "holds one bundle; say"),
    ):
        with pytest.raises(ExportError, match=said):
            export_both(checkpoint, out, **change)
    with pytest.raises(ExportError, match="coreml: holds files that are not a bundle"):
        export_both(checkpoint, out, overwrite=True)
    assert all_files(out) == single

    (out / "coreml/notes.txt").unlink()
    (out / "coreml").rmdir()
    export_both(checkpoint, out, overwrite=True)
    put_mine()
    paired = all_files(out)
    assert bundle_set.is_set(out) and not (single.keys() - mine.keys()) & paired.keys()
    for change, said in (
        ({}, "already holds bundles; --overwrite replaces them"),
        ({"resume": True}, "bundles for several formats; leave --format and --min-os out"),
    ):
        with pytest.raises(ExportError, match=said):
            export(checkpoint, out, replace(alone, **change))
    assert all_files(out) == paired
    export(checkpoint, out, replace(alone, overwrite=True))
    assert all_files(out) == single | mine


def test_an_overwrite_that_is_killed_looks_unfinished(checkpoint: Path, both: Path, tmp_path: Path) -> None:
    """At any place: neither the old set nor the new one is whole then."""
    out = tmp_path / "out"
    export_both(checkpoint, out)
    for kill_at in (1, 30):
        killed(lambda: export_both(checkpoint, out, overwrite=True), kill_at)
        assert not (out / "bundles.json").exists() and (out / "bundles.json.partial").exists()
        export_both(checkpoint, out, overwrite=True)
        assert all_files(out) == all_files(both)


def test_a_damaged_list_of_bundles_is_not_overwritten(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "bundles.json").write_text("{")
    with pytest.raises(ExportError, match="not valid JSON.*--overwrite needs it"):
        export_both(checkpoint, tmp_path, overwrite=True)
    assert all_files(tmp_path) == {"bundles.json": b"{"}


def test_files_behind_a_link_are_somebody_elses(checkpoint: Path, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    export(checkpoint, out, options("coreml", Scheme(), None, CUT))
    (out / "tokenizer").rename(elsewhere)
    (out / "tokenizer").symlink_to(elsewhere)
    names = sorted(p.name for p in elsewhere.iterdir())
    for flags in ({"resume": False, "overwrite": True}, {"resume": True, "overwrite": False}):
        with pytest.raises(
            ExportError, match="tokenizer: is a symbolic link, which exports neither write nor"
        ):
            output_folder.examine(out, "weights.safetensors", **flags)
    assert sorted(p.name for p in elsewhere.iterdir()) == names
    assert (out / "edgekit.json").exists() and (out / "packages").exists()


def test_a_manifest_is_read_once(
    both: Path, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found in a folder answers all that an export that goes on asks of it."""
    shutil.copytree(both, tmp_path / "set")
    export(checkpoint, tmp_path / "one", options("coreml", Scheme(), None, CUT))
    read: list[Path] = []
    load = manifests.load
    monkeypatch.setattr(manifests, "load", lambda folder: read.append(folder) or load(folder))
    export_both(checkpoint, tmp_path / "set", resume=True)
    assert len(read) == 2
    export(checkpoint, tmp_path / "one", options("coreml", Scheme(), None, CUT, resume=True))
    assert len(read) == 3
