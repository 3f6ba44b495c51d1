"""docs/search.md: its examples run, and it names every method and verifier."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "search.md"


def test_the_page_runs(shipped_bundle: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("gemma", "llada"):
        (tmp_path / name).symlink_to(shipped_bundle(f"tiny-{name}", "native"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines[0] == "1409 1"
    assert [line.split()[:2] for line in lines[1:5]] == [["0", "None"], *([str(n), "0"] for n in (1, 2, 3))]
    assert lines[-2] == "True"
    assert re.fullmatch(r"the memory budget of 200 MB has room for \d+ branches of .*, not 64; .*", lines[-1])
