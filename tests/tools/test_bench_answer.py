"""Forwards of an answer are timed where they belong, and whole answers are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgekit.tools.bench import answer


@pytest.fixture(scope="module")
def bundle(shipped_bundle: Any) -> Path:
    found: Path = shipped_bundle("tiny-llada", "native")
    return found


def test_places_and_whole_answers_have_the_forwards_of_the_schedule(bundle: Path, tmp_path: Path) -> None:
    words = [str(bundle), "--prompt-tokens", "9", "--new-tokens", "96", "--forwards", "40", "--whole"]
    words += ["--only", "dual cache", "--resident", "0", "--json", str(tmp_path / "found.json")]
    result = CliRunner().invoke(answer.main, words)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found.json").read_text())
    for procedure in ("no cache", "dual cache"):
        places = found["places"][procedure]
        begins = {place: [row["begins"] for row in rows] for place, rows in places.items()}
        one = [1.0, *[0.0] * 31]
        assert begins == {"start": [*one, *one[:8]], "middle": [*one, *one[:8]], "end": one}
        assert all(row["seconds"] > 0 and row["bytes_read"] > 0 for rows in places.values() for row in rows)
        assert found["answers"][procedure]["forwards"] == found["answers"][procedure]["tokens"] == 96
    rows = {name: row["rows"] for name, row in found["answers"].items()}
    assert rows == {"no cache": 96 * 105, "dual cache": 3 * 105 + 93 * 32}
    assert "dual cache" in result.stdout and "speed-up" in result.stdout


def test_an_unknown_procedure_is_named(bundle: Path) -> None:
    result = CliRunner().invoke(answer.main, [str(bundle), "--only", "trial cache"])
    assert result.exit_code == 1 and "no procedure 'trial cache'; there are: no cache" in result.output


@pytest.mark.parametrize(("name", "forwards"), [("tiny-gemma", 49), ("tiny-block", 16)])
def test_families_with_a_prefix_run_every_step(
    shipped_bundle: Any, tmp_path: Path, name: str, forwards: int
) -> None:
    """The prompt is a pass, which gives a block its first token, and so is each of 48 steps, or of 15."""
    words = [str(shipped_bundle(name, "native")), "--prompt-tokens", "9", "--new-tokens", "16", "--whole"]
    result = CliRunner().invoke(answer.main, [*words, "--json", str(tmp_path / "found.json")])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found.json").read_text())
    (whole,) = found["answers"].values()
    assert whole["forwards"] == forwards
    (places,) = found["places"].values()
    most = min(16, forwards - 1)
    assert {place: len(rows) for place, rows in places.items()} == {
        "start": most,
        "middle": most,
        "end": most,
    }
