"""docs/sampling.md: its examples run, and it names every option of the rules."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from edgekit.runtime.sampling import declared

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"
ADA = '{"name": "Ada", "age": 31, "city": "Rome"}'


def test_the_page_runs(shipped_bundle: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("gemma", "llada", "block"):
        (tmp_path / name).symlink_to(shipped_bundle(f"tiny-{name}", "native"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 8
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    cached = [line.rsplit(" ", 2) for line in lines[3:7]]
    assert [text for text, _, _ in cached] == [ADA] * 4
    rows = [int(row) for _, _, row in cached]
    assert rows[0] > rows[1] > rows[2] and rows[0] > rows[3]
    assert int(lines[7]) > 0
    verified = [line.rsplit(" ", 2) for line in lines[8:11]]
    assert [text for text, _, _ in verified] == [ADA] * 3
    one_a_pass, afterwards, ahead = (int(forwards) for _, forwards, _ in verified)
    assert one_a_pass > afterwards > ahead
    drafted = [line.rsplit(" ", 3) for line in lines[11:13]]
    assert [text for text, *_ in drafted] == [ADA] * 2
    (steps, one, few), (same, many, more) = ([int(n) for n in numbers] for _, *numbers in drafted)
    assert steps == same == one > many and few < more
    lines = lines[:3] + lines[13:]
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines[:5]]
    assert [line.rsplit(" ", 1)[0] for line in lines[:5]] == [ADA] * 5
    assert counts[1] < counts[0] / 4 and counts[2] < counts[0] / 4
    assert lines[5:] == [ADA, "red 5 green", ADA, "red 5 green", "red 7", ADA, "2"]


def test_the_page_names_every_option_that_its_families_share() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rules = {o.name for o in declared("llada")} & {o.name for o in declared("dream")}
    general = {"mask_token_id", "eos_token_ids", "temperature", "stop_at_eos", "logits_budget_bytes"}
    for name in rules - general:
        assert f"`{name}`" in text, name
