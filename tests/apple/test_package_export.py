"""Exports of bundles with packages that are interrupted, go on, or take the place of others."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint
from support.interrupted_exports import Killed, all_files, record_steps
from support.package_bundles import SMALL, fitted, make_bundle, options

from edgekit.export import formats
from edgekit.export.formats.base import Format
from edgekit.export.formats.options import Packaging
from edgekit.export.formats.packages import cut as package_cut
from edgekit.export.formats.packages import store
from edgekit.export.formats.packages.stamp import Region, Stamped, Template
from edgekit.export.formats.packages.writer import PackagedFormat
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import ChecksumMismatch, LayoutError, ResumeMismatch, WriteFailed

LENGTHS = {"diffusion_gemma": (0, 32), "llada": (8, 13)}
CONFIGS = {**SMALL, "llada": SMALL["llada"] | {"n_layers": 2}}


@pytest.fixture(params=["coreml", "coreai"])
def form(request: pytest.FixtureRequest) -> str:
    """A format whose weights are in packages."""
    name = str(request.param)
    pytest.importorskip({"coreml": "coremltools"}.get(name, name))
    return name


def steps(patch: pytest.MonkeyPatch, kill_at: int | None) -> list[str]:
    """Record what an export does to packages and their journal; killed before step `kill_at`."""
    watched = [
        *((Stamped, name) for name in ("write", "sync", "seal", "_sync")),
        (Template, "create"),
        *((store.PackageStore, name) for name in ("_append", "_complete", "_start_over")),
        (store.os, "replace"),
    ]
    return record_steps(patch, watched, kill_at)


def converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exports of a test, which are alike, share what was converted: it takes most of their time."""
    real, made = formats.load, list[Format]()

    def load(name: str) -> Callable[..., Format]:
        def bind(*args: Any) -> Format:
            if not made:
                made.append(real(name)(*args))
            return made[0]

        return bind

    monkeypatch.setattr(formats, "load", load)


# --- exports that are interrupted -------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> int:
    with monkeypatch.context() as patch:
        seen = steps(patch, None)
        run()
    return len(seen)


@pytest.mark.parametrize(("family", "kills"), [("diffusion_gemma", 2), ("llada", 16)])
def test_an_interrupted_export_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, family: str, kills: int
) -> None:
    """Killed before and between writes, syncs, journal lines and renames, at many places."""
    monkeypatch.setattr(package_cut, "MOST_HEAD_ROWS", 150)
    converted_once(monkeypatch)
    cut = Packaging(LENGTHS[family], layers_per_chunk=2)
    expected = all_files(make_bundle(tmp_path, family, form, Scheme(), "float16", cut, **CONFIGS[family]))
    how = functools.partial(options, form, Scheme(), "float16", cut)
    count = counted(monkeypatch, lambda: export(tmp_path / "checkpoint", tmp_path / "again", how()))
    assert count > 60
    for kill_at in np.random.default_rng(3).choice(count, kills, replace=False).tolist():
        folder = tmp_path / f"killed{kill_at}"
        with monkeypatch.context() as patch:
            steps(patch, kill_at)
            with pytest.raises(Killed):
                export(tmp_path / "checkpoint", folder, how())
        assert not (folder / manifests.MANIFEST_NAME).exists()
        export(tmp_path / "checkpoint", folder, how(resume=True))
        assert all_files(folder) == expected, kill_at
        shutil.rmtree(folder)


def test_a_torn_journal_line_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    cut = Packaging((8,), layers_per_chunk=1)
    expected = all_files(make_bundle(tmp_path, "llada", form, Scheme(), "float16", cut, **SMALL["llada"]))
    how = functools.partial(options, form, Scheme(), "float16", cut)
    with monkeypatch.context() as patch:
        steps(patch, 40)
        with pytest.raises(Killed):
            export(tmp_path / "checkpoint", tmp_path / "torn", how())
    with open(tmp_path / "torn" / store.JOURNAL, "ab") as file:
        file.write(b'{"run":"layers.2","pla')
    export(tmp_path / "checkpoint", tmp_path / "torn", how(resume=True))
    assert all_files(tmp_path / "torn") == expected


def test_packages_have_their_names_when_all_of_them_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """What a power cut would leave behind of a renamed package: files as of their last sync."""
    synced: dict[int, tuple[int, int]] = {}
    fsync, replace, renamed = os.fsync, os.replace, []

    def state(found: os.stat_result) -> tuple[int, int]:
        return found.st_size, found.st_mtime_ns

    def watched_sync(fd: int) -> None:
        fsync(fd)
        synced[os.fstat(fd).st_ino] = state(os.fstat(fd))

    def watched_replace(source: Path, target: Path) -> None:
        for path in Path(source).rglob("*") if Path(source).is_dir() else ():
            found = path.stat()
            assert synced.get(found.st_ino) == state(found), f"{path.name} is not durable"
            renamed.append(path)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_replace)
    make_bundle(tmp_path, "llada", form, Scheme(), "float16", Packaging((8,)), **CONFIGS["llada"])
    assert len(renamed) > 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p.write_bytes(b""), "is missing or of another size|is not the checksum of main.mlirb"),
        (lambda p: p.unlink(), "is missing or of another size|is not the checksum of main.mlirb"),
        (
            lambda p: p.write_bytes(bytes([p.read_bytes()[0] ^ 1]) + p.read_bytes()[1:]),
            "reads back different|is not the checksum of main.mlirb",
        ),
    ],
    ids=["emptied", "missing", "changed"],
)
def test_packages_that_were_whole_are_read_back_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, change: Callable[[Path], object], said: str
) -> None:
    """Killed at the end; a file that holds no tensors is then not what was written."""
    cut = Packaging((8,), layers_per_chunk=1)
    write_checkpoint(tmp_path / "checkpoint", "llada", **CONFIGS["llada"])
    how = functools.partial(options, form, Scheme(), "float16", cut)
    converted_once(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(store.PackageStore, "finish", killed)
        with pytest.raises(Killed):
            export(tmp_path / "checkpoint", tmp_path / "bundle", how())
    names = {"coreml": ["Manifest.json", "model.mlmodel"], "coreai": ["main.hash", "metadata.json"]}[form]
    for name in names:
        (path,) = (tmp_path / "bundle" / "packages").glob(f"layers.1.*/**/{name}")
        before = path.read_bytes()
        change(path)
        with pytest.raises(ChecksumMismatch, match=rf"layers\.1\.\w+: .*({said}).* --overwrite"):
            export(tmp_path / "checkpoint", tmp_path / "bundle", how(resume=True))
        assert not (tmp_path / "bundle" / manifests.MANIFEST_NAME).exists()
        path.write_bytes(before)
    export(tmp_path / "checkpoint", tmp_path / "bundle", how(resume=True))


def killed(*_: object) -> None:
    raise Killed


def test_a_tensor_that_no_run_has_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Templates whose tensors are more, or larger, than what the runs bring."""
    write_checkpoint(tmp_path / "checkpoint", "llada", **CONFIGS["llada"])
    cut = Packaging((8,), layers_per_chunk=1)
    template = PackagedFormat.template

    def with_another(self: PackagedFormat, package: package_cut.PackagePlan) -> Template:
        real = template(self, package)
        if package.name != "layers.1":
            return real
        last = max(real.regions.values(), key=lambda r: (len(r.file), r.offset))
        end = last.offset + last.nbytes
        file = replace(real.files[last.file], size=end + 6)
        return replace(
            real,
            files={**real.files, last.file: file},
            regions={**real.regions, "0.extra": Region(last.file, end, 6)},
        )

    monkeypatch.setattr(PackagedFormat, "template", with_another)
    with pytest.raises(
        LayoutError, match=r"layers\.1\.\w+: byte 0 of the 6 of tensor 0\.extra is not written"
    ):
        export(tmp_path / "checkpoint", tmp_path / "bundle", options(form, Scheme(), None, cut))


def test_rows_of_the_head_that_no_run_has_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", **CONFIGS["llada"])
    places = store.PackageStore._places

    def without_rows(self: Any, *args: Any) -> Any:
        for place, data in places(self, *args):
            if place.tensor == "table.codes":
                place, data = replace(place, nbytes=place.nbytes - 64), data[:-1]
            yield place, data

    monkeypatch.setattr(store.PackageStore, "_places", without_rows)
    with pytest.raises(LayoutError, match=r"head\.0\.\w+: byte \d+ of the \d+ of tensor table\.codes is not"):
        export(tmp_path / "checkpoint", tmp_path / "bundle", options(form, Scheme(), None, Packaging((8,))))


def test_a_package_that_went_away_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", **CONFIGS["llada"])
    finish = store.PackageStore.finish

    def without_one(self: Any) -> Any:
        shutil.rmtree(self.path("layers.0-1"))
        return finish(self)

    monkeypatch.setattr(store.PackageStore, "finish", without_one)
    with pytest.raises(WriteFailed, match=r"packages: cannot be read back: No such file"):
        export(tmp_path / "checkpoint", tmp_path / "bundle", options(form, Scheme(), None, Packaging((8,))))


# --- exports over others ----------------------------------------------------------------------------------


def test_other_options_do_not_go_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", **SMALL["llada"])
    how = functools.partial(options, form, Scheme(), None)
    cut = Packaging((8,), layers_per_chunk=1)
    with monkeypatch.context() as patch:
        steps(patch, 40)
        with pytest.raises(Killed):
            export(tmp_path / "checkpoint", tmp_path / "bundle", how(cut))
    for other in (Packaging((9,), layers_per_chunk=1), Packaging((8,), layers_per_chunk=2)):
        with pytest.raises(ResumeMismatch):
            export(tmp_path / "checkpoint", tmp_path / "bundle", how(other, resume=True))
    export(tmp_path / "checkpoint", tmp_path / "bundle", how(Packaging((9,)), overwrite=True))
    assert not (tmp_path / "bundle" / store.JOURNAL).exists()
    listed = manifests.load(tmp_path / "bundle").files
    on_disk = {n for n in all_files(tmp_path / "bundle") if n.startswith("packages/")}
    assert on_disk == {n for n in listed if n.startswith("packages/")}


def test_another_format_takes_the_place_of_packages(tmp_path: Path, form: str) -> None:
    bundle = make_bundle(tmp_path, "llada", form, Scheme(), "float16", Packaging((8,)), **SMALL["llada"])
    export(tmp_path / "checkpoint", bundle, ExportOptions("native", overwrite=True))
    assert not (bundle / "packages").exists()


@pytest.mark.parametrize(("family", "experts"), [("diffusion_gemma", "all 4 experts"), ("llada", "")])
def test_that_all_experts_are_computed_is_noted(tmp_path: Path, form: str, family: str, experts: str) -> None:
    write_checkpoint(tmp_path, family, **SMALL[family])
    notes = fitted(form, tmp_path, Scheme(), "float16", Packaging(LENGTHS[family])).notes()
    assert len(notes) == bool(experts)
    assert all(f"{form} computes {experts} of a layer" in note for note in notes)
