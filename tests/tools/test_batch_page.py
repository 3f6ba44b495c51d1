"""docs/batch.md, run as it is written, and its table of members held against an output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgekit.tools.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(shipped_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny").symlink_to(shipped_bundle("tiny-gemma", "native"))
    (lines,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "prompts.jsonl").write_text(lines, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_answer_the_lines_of_the_page(folder: Path) -> None:
    commands = re.findall(r"^\$ edgekit (batch .*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    commands = [line for line in commands if "--ray" not in line]  # in test_batch_on_ray.py
    assert len(commands) == 3
    members = set()
    for line in commands:
        # The budget is for a process of its own; this one holds what tests import.
        words = line.replace("--memory 150MB", "--memory 8GB").split()
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        found = [json.loads(each) for each in (folder / words[3]).read_text().splitlines()]
        assert [each["text"] for each in found] == ["68", "red 7", "blue 9"]
        assert [each["id"] for each in found] == ["sum", None, "sky"]
        members |= {*found[0], *found[0]["statistics"]}
    with (folder / "prompts.jsonl").open("a", encoding="utf-8") as file:
        file.write("{}\n")
    done = CliRunner().invoke(main, commands[0].split())
    assert done.exit_code == 1 and "going on: 3 of 4 answers are there" in done.stderr
    members |= {*json.loads((folder / "answers.jsonl").read_text().splitlines()[3])}
    table = PAGE.split("## The output\n")[1].split("\n\n| member | is |\n")[1].split("\n\n")[0]
    assert members == set(re.findall(r"`(\w+)`", table)) - {"eos", "length"}


def test_the_code_of_the_page_runs(folder: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    *answers, last = run.stdout.splitlines()
    assert sorted(answers) == ["0 68", "1 red 7", "2 blue 9"] and last.endswith("bytes read")
