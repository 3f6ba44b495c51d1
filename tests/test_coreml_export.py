"""Exports of Core ML bundles that are interrupted, go on, or take the place of others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_checkpoint
from package_bundles import SMALL, make_bundle, options

from edgekit.export.formats import package_store, packaging
from edgekit.export.formats.packaging import Packaging
from edgekit.export.formats.stamp import Stamped, Template
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import ResumeMismatch

pytest.importorskip("coremltools", reason="coremltools is not installed")

LENGTHS = {"diffusion_gemma": (0, 32), "llada": (8, 13)}


# --- exports that are interrupted -------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a signal: nothing may catch it."""


def all_files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("family", "kills"), [("diffusion_gemma", 2), ("llada", 5)])
def test_an_interrupted_export_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, kills: int
) -> None:
    """Killed before and in the middle of writes, syncs, journal lines and renames, at many places."""
    monkeypatch.setattr(packaging, "MOST_HEAD_ROWS", 150)
    cut = Packaging(LENGTHS[family], layers_per_chunk=2)
    whole = make_bundle(tmp_path, family, "coreml", Scheme(), "float16", cut, **SMALL[family])
    expected = all_files(whole)
    export_again = functools.partial(
        export, tmp_path / "checkpoint", tmp_path / "again", options("coreml", Scheme(), "float16", cut)
    )
    count = counted(monkeypatch, export_again)
    assert count > 60
    for kill_at in np.random.default_rng(3).choice(count, kills, replace=False).tolist():
        folder = tmp_path / f"killed{kill_at}"
        with monkeypatch.context() as patch:
            steps(patch, kill_at)
            with pytest.raises(Killed):
                export(tmp_path / "checkpoint", folder, options("coreml", Scheme(), "float16", cut))
        assert not (folder / manifests.MANIFEST_NAME).exists()
        export(tmp_path / "checkpoint", folder, options("coreml", Scheme(), "float16", cut, resume=True))
        assert all_files(folder) == expected, kill_at


def counted(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> int:
    with monkeypatch.context() as patch:
        seen = steps(patch, None)
        run()
    return len(seen)


def steps(patch: pytest.MonkeyPatch, kill_at: int | None) -> list[str]:
    """Record what an export does to packages and their journal; killed before step `kill_at`."""
    seen: list[str] = []

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            if kill_at is not None and len(seen) >= kill_at:
                raise Killed
            seen.append(name)
            return real(*args, **kwargs)

        patch.setattr(owner, name, step)

    for name in ("write", "sync"):
        watch(Stamped, name)
    watch(Template, "create")
    for name in ("_append", "_complete", "_start_over"):
        watch(package_store.PackageStore, name)
    watch(package_store.os, "replace")
    return seen


def test_a_torn_journal_line_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Packaging((8,), layers_per_chunk=1)
    expected = all_files(make_bundle(tmp_path, "llada", "coreml", Scheme(), "float16", cut, **SMALL["llada"]))
    with monkeypatch.context() as patch:
        steps(patch, 40)
        with pytest.raises(Killed):
            export(tmp_path / "checkpoint", tmp_path / "torn", options("coreml", Scheme(), "float16", cut))
    with open(tmp_path / "torn" / package_store.JOURNAL, "ab") as file:
        file.write(b'{"run":"layers.2","pla')
    export(
        tmp_path / "checkpoint", tmp_path / "torn", options("coreml", Scheme(), "float16", cut, resume=True)
    )
    assert all_files(tmp_path / "torn") == expected


def test_other_options_do_not_go_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", **SMALL["llada"])
    cut = Packaging((8,), layers_per_chunk=1)
    with monkeypatch.context() as patch:
        steps(patch, 40)
        with pytest.raises(Killed):
            export(tmp_path / "checkpoint", tmp_path / "bundle", options("coreml", Scheme(), None, cut))
    for other in (Packaging((9,), layers_per_chunk=1), Packaging((8,), layers_per_chunk=2)):
        with pytest.raises(ResumeMismatch):
            export(
                tmp_path / "checkpoint",
                tmp_path / "bundle",
                options("coreml", Scheme(), None, other, resume=True),
            )
    again = options("coreml", Scheme(), None, Packaging((9,)), overwrite=True)
    export(tmp_path / "checkpoint", tmp_path / "bundle", again)
    assert not (tmp_path / "bundle" / package_store.JOURNAL).exists()
    listed = manifests.load(tmp_path / "bundle").files
    on_disk = {n for n in all_files(tmp_path / "bundle") if n.startswith("packages/")}
    assert on_disk == {n for n in listed if n.startswith("packages/")}


def test_another_format_takes_the_place_of_packages(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, "llada", "coreml", Scheme(), "float16", Packaging((8,)), **SMALL["llada"])
    export(tmp_path / "checkpoint", bundle, ExportOptions("native", overwrite=True))
    assert not (bundle / "packages").exists()
