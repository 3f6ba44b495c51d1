"""docs/plan.md, run as it is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgekit.tools.cli import main
from edgekit.tools.planning import released

PAGE = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_run(
    shipped_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").symlink_to(shipped_bundle("tiny-llada", "native"))
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ edgekit (.*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    assert len(commands) == 7
    said = ""
    for line in commands:
        few = ["-r", "1", "--warmups", "0", "-n", "32"] if line.startswith("bench") else []
        done = CliRunner().invoke(main, [*line.split(), *few])
        assert done.exit_code == 0, done.output
        said += done.stdout
    names = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert len(names) == 9 and not [name for name in names if name not in said]


def test_the_help_names_every_model_that_is_known() -> None:
    text = " ".join(CliRunner().invoke(main, ["plan", "--help"]).output.split())
    assert all(name in text for name in released.MODELS)
