"""docs/sessions.md, run as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "sessions.md"


def test_the_page_runs(shipped_bundle: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "gemma").symlink_to(shipped_bundle("tiny-gemma", "native"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 8
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines[0] == "4 5" and {"length", "eos"} & set(lines)
    assert lines[-3:] == ["1", "68", "68"], "a copy goes on to the same tokens"
    assert any(line.startswith("7 [") for line in lines)
    assert "0 red 7" in lines and "1 68" in lines
