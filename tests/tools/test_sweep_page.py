"""docs/sweep.md: its commands run as written, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from edgekit.tools.sweep.keys import KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text(encoding="utf-8")


def test_the_page_lists_every_key() -> None:
    table = PAGE.split("| keys | of |", 1)[1].split("\n\n", 1)[0]
    first = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    assert set(re.findall(r"`([\w-]+)`", first)) == set(KEYS)


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    (file,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    quick = file.replace("runs = 3", "runs = 1\nwarmups = 0\nprobe = false").replace('"mixed4", ', "")
    (tmp_path / "tiny.toml").write_text(quick)
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    out = []
    for line in block.replace("$ ", "").splitlines():
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        out.append(done.stdout)
    planned, table, csv, merged = out
    assert "6 of 6 steps left, in tiny" in planned
    assert len([line for line in table.splitlines() if line.startswith("| tiny-gemma-host-")]) == 4
    assert len(csv.splitlines()) == 5 and len(re.findall(r"^\| tiny-gemma ", merged, re.MULTILINE)) == 4
