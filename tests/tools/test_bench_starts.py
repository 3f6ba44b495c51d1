"""Cold and warm starts: what is dropped from the page cache, and what is told where that is not possible."""

from __future__ import annotations

import json
import mmap
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgekit.tools.benchmark import page_cache
from edgekit.tools.benchmark.cases import Case
from edgekit.tools.benchmark.starts import starts
from edgekit.tools.benchmark.wanted import Wanted
from edgekit.tools.cli import main


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder whose files have a disk behind them."""
    if sys.platform != "linux":
        pytest.skip("Linux's page cache")
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{kind} lies in memory")
    return tmp_path


@pytest.fixture
def bundle(shipped_bundle: Callable[..., Path], disk: Path) -> Path:
    """A copy, which nobody else reads."""
    return Path(shutil.copytree(shipped_bundle("tiny-gemma", "native"), disk / "tiny"))


def bench(bundle: Path, folder: Path, *words: object) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The report, its row, and what was said."""
    file = folder / "report"
    given = [bundle, "--cold", "--no-probe", "--warmups", 0, "--report", file, "-o", "json", *words]
    done = CliRunner().invoke(main, ["bench", *map(str, given)])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    return json.loads(file.read_text()), row, done.stderr


def test_a_file_leaves_the_page_cache(disk: Path) -> None:
    file = disk / "file"
    file.write_bytes(bytes(300_000))
    assert page_cache.cached_bytes([file]) == -(-300_000 // mmap.PAGESIZE) * mmap.PAGESIZE
    page_cache.forget(file)
    assert page_cache.cached_bytes([file]) == 0
    file.open("rb").read(1)
    assert page_cache.cached_bytes([file]) > 0
    (disk / "empty").touch()
    assert page_cache.cached_bytes([disk / "empty"]) == 0


def test_cold_and_warm_starts_are_in_the_report_and_the_table(bundle: Path, tmp_path: Path) -> None:
    report, row, said = bench(bundle, tmp_path, "-r", 2, "--forwards", 1)
    found = report["about"]["starts"]
    assert found["cold_unknown"] == "" and "not known" not in said
    for kind, left in (("cold", 0), ("warm", None)):
        assert [each["left_bytes"] for each in found[kind]] == [left, left]
        for name in ("open_seconds", "first_draft_seconds"):
            assert row[f"{kind}_{name}_samples"] == [each[name] for each in found[kind]]
        assert all(0 < each["open_seconds"] < each["first_draft_seconds"] for each in found[kind])
    table = CliRunner().invoke(main, ["bench", "--merge", str(tmp_path / "report")]).stdout
    cold, warm = (row[f"{kind}_first_draft_seconds"] for kind in ("cold", "warm"))
    shown = table.splitlines()[-1].rstrip(" |").split("|")[-2:]
    assert [float(cell.split("±")[0]) for cell in shown] == pytest.approx([cold, warm], abs=0.006)
    assert "| cold start, s | warm start, s |" in table
    (tmp_path / "mine").write_text('{"prompt": "What is 12 + 34?", "answer": 46}')
    mine = ["bench", str(bundle), "--prompts", str(tmp_path / "mine"), "--cold", "--no-probe"]
    table = CliRunner().invoke(main, mine).stdout
    assert "| cold start, s " in table and "| warm start, s " in table


def test_pages_that_stay_make_no_cold_start(bundle: Path, tmp_path: Path) -> None:
    with (
        (bundle / "weights.safetensors").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        assert sum(mapped[:: mmap.PAGESIZE]) >= 0  # each is touched, and mapped from then on
        report, row, said = bench(bundle, tmp_path, "-r", 2, "--forwards", 1)
    found = report["about"]["starts"]
    assert found["cold"] == [] and len(found["warm"]) == 2
    assert "of the bundle stayed in the page cache" in found["cold_unknown"]
    assert f"cold starts are not known: {found['cold_unknown']}\n" in said
    assert "cold_open_seconds" not in row and row["warm_open_seconds"] > 0


def test_a_system_without_a_way_has_no_cold_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page_cache, "UNKNOWN", "there is no way")
    (tmp_path / "file").write_bytes(b"a")
    asked = list[str]()

    def measure(wanted: Wanted) -> dict[str, Any]:
        asked.append(wanted.start)
        return {"open_seconds": float(len(asked)), "first_draft_seconds": 2.0, "left_bytes": None}

    found = starts(Wanted(Case(str(tmp_path)), 2, 1), measure)
    assert asked == ["warm"] * 3 and found["cold"] == [] and found["cold_unknown"] == "there is no way"
    assert [each["open_seconds"] for each in found["warm"]] == [2.0, 3.0], "the first has the files read"
    page_cache.forget(tmp_path / "no such file")
