"""`edgekit bench --prompts`: a user's own prompts on a bundle, and on what it is compared with."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.fake_endpoint import FIRST_S, Answering, FakeEndpoint
from support.interrupted_bench import interrupted

import edgekit
from edgekit.flashload.errors import OpenFailed, WriteFailed
from edgekit.flashload.files import write_atomic
from edgekit.runtime.search import VerifierFailed
from edgekit.tools.benchmark import asking, comparison, tables
from edgekit.tools.benchmark.asked import Asked, as_table, of_table
from edgekit.tools.benchmark.prompts_file import digest, read_questions
from edgekit.tools.benchmark.question import Question
from edgekit.tools.benchmark.scoring import loaded, score_of
from edgekit.tools.cli import main
from edgekit.tools.intervals import paired_difference, wilson
from edgekit.tools.output_file import ReportFile

TOO_LONG = "red " * 60_000
#: The third answer is wrong, the fourth has none to be compared with.
LINES: list[dict[str, Any]] = [
    {"prompt": "What is 12 + 34?", "answer": 46, "id": "ours"},
    {"messages": [{"role": "user", "content": "Repeat: red cat 42"}], "answer": " red  cat\n42 "},
    {"prompt": "What is 23 + 45?", "answer": "69"},
    {"prompt": "Copy this: red 7"},
]


@pytest.fixture(scope="module")
def bundle(shipped_bundle: Callable[..., Path]) -> Path:
    return shipped_bundle("tiny-gemma", "native")


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    """It adds, and it repeats."""

    def answer(text: str) -> str:
        numbers = re.findall(r"\d+", text)
        return str(sum(map(int, numbers))) if "+" in text else text.partition(": ")[2]

    with FakeEndpoint(answer, key="sk-mine") as made:
        yield made


@pytest.fixture(autouse=True)
def no_proxy_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy", "openai_api_key"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines or LINES))
    return file


def bench(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["bench", *map(str, words), "--no-probe"])
    assert done.exit_code == code, done.output
    return done


def rows(*words: object, code: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(bench(*words, "-o", "json", code=code).stdout)
    return found


def test_a_bundle_answers_as_it_does_alone(bundle: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    (row,) = rows(bundle, "--prompts", written(tmp_path), "--report", report)
    (line,) = report.read_text().splitlines()
    found = of_table(json.loads(line)["about"]["workload"]["asked"])
    with edgekit.load(bundle) as model:
        answers = [model.generate(each.get("prompt", each.get("messages"))) for each in LINES]
    assert [each.text for each in found] == [answer.text for answer in answers]
    assert [each.tokens for each in found] == [answer.statistics.tokens for answer in answers]
    assert [each.prompt_tokens for each in found] == [answer.statistics.prompt_tokens for answer in answers]
    assert [each.line for each in found] == [1, 2, 3, 4]
    assert [each.score for each in found] == [1.0, 1.0, 0.0, None]
    assert (row["scored"], row["score"], row["failed"], row["requests"]) == (3, 2 / 3, 0, 4)
    assert (row["score_low"], row["score_high"]) == wilson(2, 3)
    for each in found:
        assert each.first_draft_seconds and each.first_text_seconds and each.seconds
        assert 0 < each.first_draft_seconds < each.first_text_seconds <= each.seconds
    # Which tests of the core's recorder they are.
    tests = json.loads(line)["tests"]
    assert [test["label"] for test in tests] == [{"line": each.line} for each in found]
    for each, test in zip(found, tests, strict=True):
        assert 0.9 * (each.seconds or 0) <= test["seconds"] and each.prompt_tokens == test["prompt_tokens"]


def test_percentiles_and_rates_are_of_the_samples(bundle: Path, tmp_path: Path) -> None:
    (row,) = rows(bundle, "--prompts", written(tmp_path), "--warmups", 0)
    for name in ("request_seconds", "request_first_draft_seconds", "request_first_text_seconds"):
        samples = row[f"{name}_samples"]
        assert len(samples) == 4 and row[f"{name}_mean"] == fmean(samples)
        for part in (50, 90, 99):
            assert row[f"{name}_p{part}"] == np.percentile(samples, part)
    tokens = row["request_tokens"] * 4
    assert row["request_tokens_per_second"] == pytest.approx(tokens / sum(row["request_seconds_samples"]))


def test_against_an_endpoint(
    bundle: Path, server: FakeEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which adds right and does not know one of the prompts."""
    monkeypatch.setenv("MY_KEY", "sk-mine")
    server.instead["Copy this: red 7"] = lambda request: request.error(500, "out of memory")
    lines = [*LINES[:3], {**LINES[3], "answer": "red 7"}, {"prompt": "What is 50 + 30?", "answer": 80}]
    report = tmp_path / "report"
    words = (
        bundle, "--prompts", written(tmp_path, *lines), "--against", server.address, "--model", "adder",
        "--api-key", "MY_KEY", "--price", "1,10", "-n", 64, "--request", "temperature=0",
    )  # fmt: skip
    done = bench(*words, "--report", report)
    host = server.address.split("/")[2]
    assert f" adder at {host} |" in done.stdout.splitlines()[2]
    assert (
        "1 of 5 requests failed: " in done.stderr
        and "500 Internal Server Error: out of memory" in done.stderr
    )
    assert len(server.bodies) == 6, "one to warm up"
    assert all((b["model"], b["max_tokens"], b["temperature"]) == ("adder", 64, 0) for b in server.bodies)
    assert server.bodies[2]["messages"] == lines[1]["messages"]

    first, own = (json.loads(line) for line in report.read_text().splitlines())
    assert "sk-mine" not in report.read_text()
    assert first["about"]["endpoint"] == {
        "host": host, "model": "adder", "body": {"max_tokens": 64, "temperature": 0},
    }  # fmt: skip
    assert [each.score for each in of_table(first["about"]["workload"]["asked"])] == [1, 1, 0, 0, 1]
    assert [each.score for each in of_table(own["about"]["workload"]["asked"])] == [1, 1, 0, 1, 1]

    endpoint, row = json.loads(bench("--merge", report, "-o", "json").stdout)
    assert (endpoint["failed"], endpoint["requests"], endpoint["score"]) == (1, 5, 0.6)
    assert "score_change" not in endpoint and row["gained"] == 1 and row["lost"] == 0
    assert (row["score_change_low"], row["score_change_high"]) == paired_difference(1, 0, 5)
    assert row["score_change"] == pytest.approx(0.2)
    assert min(endpoint["request_first_text_seconds_samples"]) >= FIRST_S
    assert "request_first_draft_seconds_mean" not in endpoint
    counted = [(16, 2), (18, 10), (16, 2), (16, 2)]
    assert endpoint["request_cost"] == pytest.approx(fmean(a + 10 * b for a, b in counted) / 1e6)
    assert "request_cost" not in row
    table = bench("--merge", report).stdout
    assert table == done.stdout
    shown = {line.split("|")[1].strip(): line.split("|")[2:4] for line in table.splitlines() if "|" in line}
    assert shown["right"][0].strip() == "60.0 % (23.1..88.2)" and shown["failed"][0].strip() == "1 of 5"
    low, high = paired_difference(1, 0, 5)
    assert shown["difference"][1].strip() == f"+20.0 ({100 * low:+.1f}..{100 * high:+.1f})"
    assert shown["cost of 1000"][0].strip() == f"{1000 * endpoint['request_cost']:.4g}"
    cells = list(csv.DictReader(io.StringIO(bench("--merge", report, "-o", "csv").stdout)))
    assert [float(cell["score"]) for cell in cells] == [0.6, 0.8]
    done = bench(*words[:-8], "--api-key", "NO_SUCH_KEY", code=2)
    assert "there is no environment variable NO_SUCH_KEY" in done.stderr


def test_against_another_bundle_and_settings(
    bundle: Path, shipped_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    other = shipped_bundle("tiny-llada", "native")
    file = written(tmp_path)
    found = rows(bundle, "--prompts", file, "--against", other, "--limit", 2)
    assert [(row["model"], row["requests"]) for row in found] == [("tiny-llada", 2), ("tiny-gemma", 2)]
    assert "score_change" in found[1] and "score_change" not in found[0]
    found = rows(bundle, "--prompts", file, "--set", "steps=1,8")
    assert [row["settings"] for row in found] == [{"steps": 1}, {"steps": 8}]
    assert found[0]["score"] <= found[1]["score"]
    assert found[0]["request_seconds_mean"] > 0 and "score_change" in found[1]


def test_a_prompt_that_no_model_can_take_has_failed_alone(bundle: Path, tmp_path: Path) -> None:
    file = written(tmp_path, LINES[0], {"prompt": TOO_LONG, "answer": "x"}, LINES[1])
    done = bench(bundle, "--prompts", file, "-o", "json")
    (row,) = json.loads(done.stdout)
    assert (row["failed"], row["scored"], row["score"]) == (1, 3, 2 / 3)
    assert "1 of 3 requests failed: " in done.stderr and "prompt tokens" in done.stderr
    done = bench(bundle, "--prompts", written(tmp_path, {"prompt": TOO_LONG}), code=2)
    assert "none of 1 prompt has an answer: " in done.stderr and done.stderr.count("\n") == 1


def test_a_function_scores_and_what_it_cannot_score_is_told(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("LONGEST = 100\n")
    (tmp_path / "check.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import beside\n"
        "@dataclass\n"
        "class Found:\n    value: float\n"
        "def length(prompt, answer, expected):\n"
        "    if isinstance(prompt, list):\n        raise KeyError('messages')\n"
        "    return Found(len(answer) / beside.LONGEST).value\n"
        "def right(prompt, answer, expected):\n    return answer == str(expected)\n"
    )
    file = written(tmp_path)
    done = bench(bundle, "--prompts", file, "--score", f"{tmp_path}/check.py:length", "-o", "json", code=1)
    (row,) = json.loads(done.stdout)
    said = "1 answer could not be scored; line 2: the score check.py:length raised KeyError: 'messages'"
    assert said in done.stderr
    assert row["scored_by"] == "check.py:length" and row["scored"] == 3 and not row["score_is_share"]
    assert row["score"] == pytest.approx((0.02 + 0.02 + 0.05) / 3)
    (row,) = rows(bundle, "--prompts", file, "--score", f"{tmp_path}/check.py:right", "--limit", 3)
    assert row["score_is_share"] and row["score"] == pytest.approx(1 / 3)


def test_a_function_is_found_or_told_why_not(tmp_path: Path) -> None:
    def said(name: str, text: str | None = None) -> str:
        if text is not None:
            (tmp_path / "score.py").write_text(text)
        with pytest.raises(edgekit.EdgekitError) as caught:
            loaded(name.replace("score", f"{tmp_path}/score"))
        return str(caught.value)

    assert "name a function of a file: FILE.py:NAME" in said("right")
    assert "name a function of a file" in said("score.txt:right")
    assert "there is no file" in said("score.py:right")
    assert "cannot be imported: SyntaxError" in said("score.py:right", "def")
    assert "cannot be imported: SystemExit: 3" in said("score.py:right", "raise SystemExit(3)")
    assert "has no attribute 'right'" in said("score.py:right", "")
    assert "is 3; name a function of (prompt, answer, expected)" in said("score.py:right", "right = 3")
    (tmp_path / "score.py").write_text("def right(prompt, answer, expected):\n    return 'yes'\n")
    with pytest.raises(VerifierFailed, match="score.py:right returned 'yes'"):
        loaded(f"{tmp_path}/score.py:right").of(Question(1, "a"), "b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no prompts"),
        ("\n \n", "has no prompts"),
        ("{", "line 1: not valid JSON"),
        ('{"prompt": "a"}\n[1]', "line 2 is [1]; write an object"),
        ('{"prompt": "a", "prompt": "b"}', "appears twice"),
        ("{}", 'neither of "prompt" and "messages"'),
        ('{"prompt": "a", "messages": []}', 'both of "prompt" and "messages"'),
        ('{"prompt": 3}', "the prompt is 3; give text"),
        ('{"prompt": " "}', "the prompt is empty"),
        ('{"messages": "a"}', "give a list of messages"),
        ('{"messages": []}', "the prompt is empty"),
        ('{"messages": [3]}', "no objects with a role"),
        ('{"messages": [{"role": "king", "content": "a"}]}', "unknown role 'king'"),
        ('{"messages": [{"role": "user"}]}', 'has no "content"'),
        ('{"prompt": "a", "answer": NaN}', "NaN is not a JSON number; write one JSON object a line"),
        ('{"prompt": "a", "answer": ["b"]}', "the answer in line 1 is ['b']; give text or a number"),
        ('{"prompt": "\\ud800"}', "surrogate"),
    ],
)
def test_files_that_hold_no_prompts(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(text)
    done = bench(tmp_path, "--prompts", file, code=2)
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_more_of_a_prompts_file(tmp_path: Path) -> None:
    file = written(tmp_path)
    assert [each.line for each in read_questions(file, 2)] == [1, 2]
    file.write_bytes(b'\n{"prompt": "a"}\r\n\n{"prompt": "b"}')
    assert [(each.line, each.prompt) for each in read_questions(file)] == [(2, "a"), (4, "b")]
    file.write_bytes(b"\xff")
    with pytest.raises(Exception, match="line 1 is not UTF-8"):
        read_questions(file)
    with pytest.raises(OpenFailed, match="No such file"):
        read_questions(tmp_path / "other")
    with pytest.raises(OpenFailed, match="is not a regular file"):
        read_questions(Path(os.devnull))
    same = [Question(1, "a", "b"), Question(2, "a", "b")]
    assert digest(same[:1]) == digest(same[1:]) != digest([Question(1, "a", "c")])
    score = score_of(None, same)
    assert (
        score.of(same[0], " b\n") == 1 and score.of(same[0], "B") == 0 and not score.wants(Question(1, "a"))
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "x"), "--against is for prompts of your own; name their file by --prompts"),
        (("--score", "x.py:y"), "--score is for prompts"),
        (("--limit", "3"), "--limit is for prompts"),
        (("--model", "m"), "--model is for an endpoint; give its address by --against"),
        (("FILE", "--price", "1,2"), "--price is for an endpoint"),
        (("FILE", "--request", "a=1"), "--request is for an endpoint"),
        (("FILE", "--against", "http://h/v1"), "name one by --model"),
        (("FILE", "--against", "http://h:x/v1", "--model", "m"), "is no address"),
        (("FILE", "--against", "http://h", "--model", "m", "--price", "1"), "use IN,OUT"),
        (("FILE", "--against", "http://h", "--model", "m", "--price", "1,-1"), "at least 0"),
        (("FILE", "--against", "http://h", "--model", "m", "--timeout", "0"), "above 0"),
        (("FILE", "--against", "tiny-gemma"), "export it first"),
        (("FILE", "--against", "BUNDLE"), "is the bundle that is measured"),
        (("FILE", "--prompt", "a"), "--prompts and --prompt exclude each other"),
        (("FILE", "-p", "3"), "--prompts and --prompt-tokens exclude each other"),
        (("FILE", "-r", "3"), "--prompts and --runs exclude each other"),
        (("FILE", "--sequences", "2"), "--prompts and --sequences exclude each other"),
        (("FILE", "--forwards", "2"), "--prompts and --forwards exclude each other"),
        (("FILE", "--merge", "x"), "not both"),
        (("FILE", "--score", "x.py:y"), "there is no file x.py"),
        (("FILE", "--set", "nothing=1"), "not a sampling option"),
    ],
)
def test_wrong_words_are_one_line(bundle: Path, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    file = written(tmp_path)
    given = [str(bundle) if word == "BUNDLE" else word for word in words if word != "FILE"]
    asked = ["--prompts", file] if "FILE" in words else []
    done = bench(bundle, *asked, *given, code=2)
    assert said in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


def test_a_report_takes_the_place_of_reports_alone(bundle: Path, tmp_path: Path) -> None:
    file, other = written(tmp_path), tmp_path / "other.jsonl"
    before = Path(file).read_bytes()
    done = bench(bundle, "-r", 1, "--report", file, code=2)
    assert f"{file}: is there, and is no file of reports; name another file" in done.stderr
    assert Path(file).read_bytes() == before
    other.touch()
    for _ in range(2):
        bench(bundle, "-r", 1, "-n", 4, "--forwards", 1, "--no-probe", "--report", other)
    assert len(other.read_text(encoding="utf-8").splitlines()) == 1


def test_a_file_that_somebody_writes_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "report"
    file = ReportFile(path, "file of reports", lambda _: True)
    for text in ("a", "b"):
        file.write(lambda path, text=text: write_atomic(path, text.encode()))  # type: ignore[misc]
    path.write_text("notes")
    with pytest.raises(WriteFailed, match="was written by somebody else meanwhile"):
        file.write(lambda path: write_atomic(path, b"c"))
    assert path.read_text() == "notes"
    path.unlink()
    with pytest.raises(WriteFailed, match="somebody else"):
        file.write(lambda path: write_atomic(path, b"c"))


def test_an_endpoint_that_cannot_answer_ends_it_at_once(
    bundle: Path, server: FakeEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (bundle, "--prompts", written(tmp_path), "--against", server.address, "--model", "m")
    done = bench(*words, code=2)
    assert "401 Unauthorized" in done.stderr and done.stderr.count("\n") == 1 and len(server.bodies) == 1
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    for each in LINES[:3]:
        asked = each.get("prompt") or each["messages"][0]["content"]
        server.instead[asked] = lambda request: request.error(404, "no such model")
    done = bench(*words, "--warmups", 0, "--limit", 3, code=2)
    assert "404 Not Found" in done.stderr and len(server.bodies) == 2
    del server.instead[LINES[0]["prompt"]]
    endpoint, _ = rows(*words)
    assert (endpoint["failed"], endpoint["requests"]) == (2, 4), "one that has answered goes on"
    monkeypatch.setenv("OPENAI_API_KEY", "sk\u2013mine")
    assert "characters that no API key has" in bench(*words, code=2).stderr


def test_no_side_of_a_comparison_is_asked_before_all_can_be(
    bundle: Path, server: FakeEndpoint, shipped_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    other, report = shipped_bundle("tiny-llada", "native"), tmp_path / "report"
    endpoint = ("--against", server.address, "--model", "adder")
    for words, said in (
        (("--against", other, "--set", "t_min=0.25"), f"{other.name}, t_min=0.25: none of 4"),
        (("--against", other, "--set", "factor=3"), f"{bundle.name}, factor=3: none of 4 prompts"),
        ((*endpoint, "--memory", "1MB"), f"{bundle.name}, memory 1 MB: "),
        ((*endpoint, "--set", "steps=0"), "steps"),
        (("--set", "steps=8,0"), f"{bundle.name}, steps=0: none of 4 prompts"),
    ):
        done = bench(bundle, "--prompts", written(tmp_path), *words, "--report", report, code=2)
        assert said in done.stderr and done.stderr.count("\n") == 1 and not done.stdout, done.stderr
    assert not server.bodies and not report.exists()


def test_reports_that_lack_what_a_table_shows(bundle: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    bench(bundle, "--prompts", written(tmp_path), "--limit", 1, "--report", report)
    whole = json.loads(report.read_text())
    workload = whole["about"]["workload"]
    for change, said in (
        ({"workload": {}}, "'digest'"),
        ({"workload": workload | {"asked": ...}}, "'asked'"),
        ({"workload": workload | {"asked": {"columns": ["line"], "rows": [[1, 2]]}}}, "zip()"),
        ({"workload": workload | {"asked": {"columns": ["king"], "rows": [[1]]}}}, "'king'"),
        ({"endpoint": {}}, "'model'"),
        ({"endpoint": 3}, "lacks what its row shows"),
    ):
        about = whole["about"] | change
        about["workload"] = {name: each for name, each in about["workload"].items() if each is not ...}
        report.write_text(json.dumps(whole | {"about": about}))
        done = bench("--merge", report, code=2)
        assert said in done.stderr and done.stderr.count("\n") == 1
    report.write_text(json.dumps({**whole, "about": {"endpoint": {"model": "m", "host": "h", "body": {}}}}))
    assert "lacks what its row shows" in bench("--merge", report, code=2).stderr


def told(line: int, score: float | None, seconds: float = 1.0) -> Asked:
    return Asked(line, "x", None, score, seconds, None, None, 10, 5)


def report_of(*asked: Asked, digest: str = "a") -> dict[str, Any]:
    workload = {"asked": as_table(asked), "digest": digest, "scored_by": "answer"}
    return {"about": {"endpoint": {"host": "h", "model": "m", "body": {}}, "workload": workload}}


def test_differences_are_of_the_prompts_that_both_have_scores_of() -> None:
    base = report_of(told(1, 1.0), told(2, 0.0), told(3, None), told(4, 0.0))
    own = report_of(told(1, 0.0), told(2, 1.0), told(3, 1.0), told(4, 1.0))
    _, row = comparison.compared([base, own])
    assert (row["gained"], row["lost"], row["score_change"]) == (2, 1, pytest.approx(1 / 3))
    assert (row["score_change_low"], row["score_change_high"]) == paired_difference(2, 1, 3)
    graded = report_of(told(1, 0.5), told(2, 0.25), told(4, 1.0))
    _, row = comparison.compared([base, graded])
    assert row["score_change"] == pytest.approx(0.25) and "gained" not in row
    apart = report_of(told(1, 1.0), digest="b")
    found = comparison.compared([base, apart, own])
    assert ["score_change" in row for row in found] == [False, False, True]
    assert len(comparison.tables(found)) == 2
    elsewhere = report_of(told(2, 1.0), told(3, 0.0), told(4, None), told(5, 0.0))
    _, row = comparison.compared([base, elsewhere])
    assert (row["gained"], row["lost"]) == (0, 0), "the same prompts, in a file with an empty line"
    other = copy.deepcopy(base)
    other["about"]["workload"]["scored_by"] = "mine.py:other"
    assert "score_change" not in comparison.compared([base, other])[1]


def test_reports_keep_as_many_tests_as_their_reader_takes() -> None:
    table = {"rows": [[0]] * 4000}
    tests = [{"passes": table, "spans": {"rows": []}, "memory": {"over_time": table}} for _ in range(9)]
    asking._shorten(tests)
    assert len(tests) == 2
    large = [{"passes": {"rows": [[0]] * 30_000}, "spans": {"rows": []}, "memory": {"over_time": table}}]
    asking._shorten(large)
    assert len(large) == 1


@pytest.mark.parametrize("value", ["1e308", "-1e13", "float('inf')", "float('nan')"])
def test_a_score_that_cannot_be_added_up_is_none(tmp_path: Path, value: str) -> None:
    (tmp_path / "odd.py").write_text(f"def odd(prompt, answer, expected):\n    return {value}\n")
    with pytest.raises(VerifierFailed, match="odd returned"):
        loaded(f"{tmp_path}/odd.py:odd").of(Question(1, "a"), "b")


@pytest.mark.parametrize(
    "given",
    [
        {"score": 1e308}, {"score": True}, {"seconds": -1.0}, {"seconds": "1"}, {"tokens": -3},
        {"tokens": 2.5}, {"prompt_tokens": 10**400}, {"text": 3}, {"line": -1},
    ],
)  # fmt: skip
def test_what_no_request_has_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="line"):
        Asked(**{"line": 1, **given})


def test_text_that_is_no_utf8_is_shown_in_csv() -> None:
    assert tables.as_csv([{"a": "x\ud800", "b": "\x1b"}]).encode() == b"a,b\nx\\ud800,\x1b"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_who_interrupts_keeps_the_answers_until_then(bundle: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    prompts = tmp_path / "prompts"
    prompts.write_text("".join(f'{{"prompt": "What is {n} + 1?", "answer": {n + 1}}}\n' for n in range(5000)))
    words = ["bench", str(bundle), "--prompts", str(prompts), "--no-probe", "--report", str(report)]
    shown, said = interrupted(words, report)
    asked = of_table(json.loads(report.read_text())["about"]["workload"]["asked"])
    assert 0 < len(asked) < 5000 and all(each.score is not None for each in asked)
    assert re.search(r"\d+ prompts? of the last configuration (is|are) kept", said)
    assert f"0 of {len(asked)} |" in shown


def test_a_warm_up_that_fails_is_no_failure(server: FakeEndpoint, bundle: Path, tmp_path: Path) -> None:
    def once(request: Answering) -> None:
        del server.instead["1 + 1"]
        request.error(429, "rate limit")

    server.instead["1 + 1"] = once
    prompts = tmp_path / "prompts"
    prompts.write_text('{"prompt": "1 + 1", "answer": 2}\n')
    done = CliRunner(env={"OPENAI_API_KEY": "sk-mine"}).invoke(
        main, ["bench", str(bundle), "--prompts", str(prompts), "--no-probe", "--against", server.address,
               "--model", "m"],
    )  # fmt: skip
    assert done.exit_code == 0 and "0 of 1" in done.stdout, done.output


def test_what_a_function_prints_is_no_part_of_the_table(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "score.py").write_text(
        "print('imported')\n"
        "class Odd(float):\n    def __float__(self): raise RuntimeError('odd')\n"
        "def loud(prompt, answer, expected):\n    print('noise'); return 1\n"
        "def odd(prompt, answer, expected): return Odd(1)\n"
        "def base(prompt, answer, expected): raise BaseException('own')\n"
    )
    question = Question(1, "a")
    assert loaded(f"{tmp_path / 'score.py'}:loud").of(question, "b") == 1
    told = capfd.readouterr()
    assert not told.out and "noise" in told.err and "imported" in told.err
    for name, said in (("odd", "use a finite number"), ("base", "raised BaseException: own")):
        with pytest.raises(VerifierFailed, match=said):
            loaded(f"{tmp_path / 'score.py'}:{name}").of(question, "b")


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path: Path) -> None:
    (tmp_path / "prompts").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert [each.prompt for each in read_questions(tmp_path / "prompts")] == ["a"]
