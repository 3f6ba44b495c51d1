"""`optimum-cli export edgekit` in the real optimum."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optimum.commands", reason="optimum is not installed")

#: Python code behind which nothing of edgekit can be imported.
BROKEN = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "edgekit":
            raise ImportError("broken")
sys.meta_path.insert(0, Finder())
"""


def optimum(*words: str | Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """`optimum-cli` with these words, behind some Python code."""
    code = f"{before}\nfrom optimum.commands.optimum_cli import main; main()"
    line = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=600)


def test_the_command_is_among_its_exports_and_shows_the_page_of_edgekit() -> None:
    listed = optimum("export", "--help")
    assert listed.returncode == 0 and "edgekit" in listed.stdout, listed.stderr
    page = optimum("export", "edgekit", "--help")
    assert page.returncode == 0 and page.stdout.startswith(
        "Usage: optimum-cli export edgekit [OPTIONS] OUTPUT"
    )
    assert "-m, --model MODEL" in page.stdout and "--target NAME" in page.stdout


def test_it_writes_what_edgekit_writes(tmp_path: Path) -> None:
    words = ("export", "edgekit", "-m", "tiny-llada", "--quant", "int8", "--json", tmp_path / "theirs")
    done = optimum(*words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bundle"] == str(tmp_path / "theirs")
    own = [sys.executable, "-m", "edgekit", "export", "tiny-llada", "--quant", "int8", "-o", tmp_path / "own"]
    subprocess.run(own, check=True, capture_output=True)
    listed = [sorted(p.relative_to(f) for p in f.rglob("*")) for f in (tmp_path / "theirs", tmp_path / "own")]
    assert listed[0] == listed[1]
    assert all(
        (tmp_path / "theirs" / name).read_bytes() == (tmp_path / "own" / name).read_bytes()
        for name in listed[0]
        if (tmp_path / "own" / name).is_file()
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "missing/folder/", "out"], "missing/folder/"),
        (["out"], "missing option '-m' / '--model'; see optimum-cli export edgekit --help"),
        (
            ["-m", "tiny-llada", "--targt", "ios", "out"],
            "unknown option '--targt'; did you mean --target? see",
        ),
    ],
)
def test_bad_words_are_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = optimum("export", "edgekit", *words)
    lines = [line for line in done.stderr.splitlines() if line.startswith("edgekit: error: ")]
    assert len(lines) == 1 and said in lines[0], done.stderr
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr


def test_no_option_is_advised_that_it_has_not(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "edgekit.json").write_text("{}")
    done = optimum("export", "edgekit", "-m", "tiny-llada", tmp_path / "out")
    assert done.returncode == 2 and done.stderr.rstrip().endswith("; or give another folder"), done.stderr
    assert " -o" not in done.stderr


def test_a_broken_edgekit_breaks_its_own_command_alone(tmp_path: Path) -> None:
    assert optimum("export", "--help", before=BROKEN).returncode == 0
    done = optimum("export", "edgekit", "-m", "tiny-llada", tmp_path / "out", before=BROKEN)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("ImportError: broken")
