"""`edgekit run --verify`: a search on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edgekit.tools.cli import main

JSON = "Write as JSON: name: Ada; age: 31"


def run(bundle: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["run", str(bundle), JSON, *words])


@pytest.fixture
def gemma(shipped_bundle: Callable[..., Path]) -> Path:
    return shipped_bundle("tiny-gemma", "native")


def test_the_best_answer_goes_to_stdout_and_the_branches_to_stderr(gemma: Path) -> None:
    result = run(gemma, "--verify", "json", "--branches", "3", "--share", "0.5", "--seed", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout == '{"name": "Ada", "age": 31}\n'
    lines = result.stderr.splitlines()
    assert lines[0] == "branch 0: score 1 after 2 steps, best"
    assert lines[1:3] == [f"branch {n}, from branch 0 at step 1: score 1 after 2 steps" for n in (1, 2)]
    assert re.match(
        r"3 branches in 4 passes of \d+ rows, 1 step shared, \d+\.\d\d s; all weights in m", lines[3]
    )
    assert lines[3].endswith(", no budget") and len(lines) == 4


def test_json_has_every_branch(gemma: Path) -> None:
    result = run(gemma, "--verify", "regex:Ada", "--branches", "2", "--method", "back", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["text"] == '{"name": "Ada", "age": 31}' and (found["score"], found["best"]) == (1.0, 0)
    assert [branch["score"] for branch in found["branches"]] == [1.0, 1.0]
    assert found["search"]["passes"] >= found["statistics"]["forwards"]
    assert found["plan"]["pinned_bytes"] > 0 and result.stderr == ""


def test_a_function_of_the_current_folder(
    gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_rules.py").write_text("def last(attempt):\n    return attempt.branch\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    result = run(gemma, "--verify", "python:my_rules.last", "--branches", "2", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["best"] == 1
    (tmp_path / "my_bugs.py").write_text("def bug(attempt):\n    return attempt.nothing\n")
    result = run(gemma, "--verify", "python:my_bugs.bug", "--branches", "2")
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 2 and "the verifier python:my_bugs.bug raised AttributeError" in line


@pytest.mark.parametrize(
    "words,said",
    [
        (["--branches", "2"], "--branches is for a search; say by --verify"),
        (["--share", "0.5"], "--share is for a search"),
        (["--verify", "json", "--watch"], "--watch and --verify exclude each other"),
        (["--verify", "json", "--infill", "[[3]]"], "--infill and --verify exclude each other"),
        (["--verify", "json", "--infill", ""], "--infill and --verify exclude each other"),
        (["--verify", "json", "--deadline", "3"], "--deadline and --verify exclude each other"),
        (["--verify", "xml"], "the verifier is 'xml'; use json, regex:PATTERN"),
        (["--verify", "json", "--branches", "65"], "--branches is 65"),
        (["--verify", "json", "--share", "1"], "1"),
        (["--verify", "likelihood"], "has no likelihood of an answer; use confidence"),
    ],
)
def test_what_is_no_search_is_one_line(gemma: Path, words: list[str], said: str) -> None:
    result = run(gemma, *words)
    assert result.exit_code == 2 and result.stdout == ""
    assert said in result.stderr
    assert len(result.stderr.splitlines()) <= 2


def test_a_model_that_draws_nothing_is_refused(shipped_bundle: Callable[..., Path]) -> None:
    result = run(shipped_bundle("tiny-llada", "native"), "--verify", "json")
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 2 and "set temperature above 0" in line


def test_numbers_that_mean_nothing_are_refused_in_one_line(gemma: Path) -> None:
    for words, said in (
        (("--verify", "json", "--share", "1"), "--share is '1'; use a number at least 0 and below 1"),
        (("--deadline", "soon"), "--deadline is 'soon'; use a number of seconds, above 0"),
        (("--deadline", "-1"), "--deadline is '-1'; use a number of seconds, above 0"),
        (("--set", "canvas=1,2"), "canvas is '1,2'; use a list of integers"),
    ):
        result = run(gemma, *words)
        (line,) = result.stderr.splitlines()
        assert result.exit_code == 2 and said in line
