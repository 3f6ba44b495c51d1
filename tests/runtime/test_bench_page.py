"""docs/bench.md, run as it is written, and its table of members held against a report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.fake_endpoint import FakeEndpoint

from edgekit.tools.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")


def members(table: str) -> set[str]:
    """The names in the first column of a table."""
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_page_runs_and_names_every_member(shipped_bundle: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "tiny").symlink_to(shipped_bundle("tiny-gemma", "native"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    code = "\n".join([*blocks, "import json", "print(json.dumps(report))"])
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert all(line.endswith("bytes read") for line in lines[:3])
    assert "ProcessorProbe(" in run.stdout and "DiskProbe(" in run.stdout
    report: dict[str, Any] = json.loads(lines[-1])
    _, whole, test = re.split(r"\n\|---\|---\|\n", PAGE)
    assert set(report) == members(whole.split("\n\n", 1)[0])
    # One of them is in the text of another row.
    assert set(report["tests"][0]) - {"spans_left_out"} == members(test.split("\n\n", 1)[0])
    assert len(report["tests"]) == 3 and report["tests"][0]["spans"]["rows"]


def test_the_commands_of_the_page_run(
    shipped_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer runs; another device's report is one of this one. Models of the figures are not here."""
    (tmp_path / "tiny").symlink_to(shipped_bundle("tiny-gemma", "native"))
    monkeypatch.chdir(tmp_path)
    page = re.sub(r"## Figures from here\n.*?\n(?=## )", "", PAGE, flags=re.DOTALL)
    lines = re.findall(r"^\$ edgekit (bench .*?)(?: +#.*)?$", page, re.MULTILINE)
    runs = [line for line in lines if "--prompts" not in line]
    assert len(runs) == 8
    for line in runs:
        few = [] if "--merge" in line else ["-r", "1", "--warmups", "0", "--prompt", "What is 12 + 34?"]
        done = CliRunner().invoke(main, [*line.split(), *few])
        assert done.exit_code == 0, done.output
        if (report := tmp_path / "here.jsonl").exists():
            (tmp_path / "phone.json").write_bytes(report.read_bytes())
    assert done.stdout.count("tiny-gemma") == 2
    assert all((tmp_path / name).stat().st_size > 1e6 for name in ("here.html", "devices.html"))


def test_prompts_of_the_page_are_asked(
    shipped_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other bundle is the same one, and the endpoint knows no answer."""
    for name in ("tiny", "other"):
        (tmp_path / name).symlink_to(shipped_bundle("tiny-gemma", "native"))
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    (prompts,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.jsonl").write_text(prompts)
    lines = re.findall(r"^\$ edgekit (bench .*--prompts .*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    assert len(lines) == 4
    keys = set[str]()
    with FakeEndpoint() as server:
        for line in lines:
            words = line.replace("http://localhost:8080/v1", server.address).split()
            done = CliRunner().invoke(main, [*words, "--no-probe", "-o", "json"])
            assert done.exit_code == 0, done.output
            found = json.loads(done.stdout)
            assert found[-1]["score"] == 1 and found[-1]["requests"] == 2
            keys.update(*found)
    assert [row["score"] for row in found] == [0, 1] and found[0]["request_cost"] > 0
    (table,) = re.findall(
        r"\| line \| key in JSON and CSV \| is \|\n\|---\|---\|---\|\n(.*?)\n\n", PAGE, re.DOTALL
    )
    named = {name for row in table.splitlines() for name in re.findall(r"`([a-z]\w+)`", row.split("|")[2])}
    assert len(named) > 12 and named <= keys
