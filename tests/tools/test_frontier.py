"""The frontier of procedures: intervals against published figures, answers as those of a prompt alone."""

from __future__ import annotations

import json
import math
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.role_heads import write_head

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import Committed, Done
from edgekit.tools.bench import frontier
from edgekit.tools.intervals import mcnemar, paired_difference, wilson
from edgekit.tools.tiny import tokenizer
from edgekit.tools.tiny.tasks import examples


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_the_interval_of_published_tables(right: int, count: int, low: float, high: float) -> None:
    """Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998),
    table I, method 3."""
    assert wilson(right, count) == pytest.approx((low, high), abs=5e-5)
    assert wilson(count - right, count) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize("confidence", [0.9, 0.95])
@pytest.mark.parametrize(("gain", "loss"), [(0.05, 0.05), (0.2, 0.1), (0.02, 0.15), (0.3, 0.3)])
def test_paired_intervals_cover_as_often_as_they_say(confidence: float, gain: float, loss: float) -> None:
    count, covered = 60, 0.0
    for gained, lost in product(range(count + 1), repeat=2):
        if gained + lost > count:
            continue
        ways = math.comb(count, gained) * math.comb(count - gained, lost)
        chance = ways * gain**gained * loss**lost * (1 - gain - loss) ** (count - gained - lost)
        low, high = paired_difference(gained, lost, count, confidence)
        covered += chance if low <= gain - loss <= high else 0
    assert confidence - 0.015 < covered < confidence + 0.04


def test_mcnemar_is_the_two_sided_binomial_test() -> None:
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(5, 0) == mcnemar(0, 5) == 2 / 32
    assert mcnemar(1, 9) == pytest.approx(2 * 11 / 1024)


PROCEDURES = {"default": {}, "sure": {"threshold": 0.9}}


def measure(bundle: Path, folder: Path, *more: str) -> Result:
    (folder / "procedures.json").write_text(json.dumps(PROCEDURES))
    words = [str(bundle), "--task", "copying", "--task", "addition-2", "--per-task", "3", "--at-once", "2"]
    words += ["--procedures", str(folder / "procedures.json"), "--answers", str(folder / "answers.jsonl")]
    return CliRunner().invoke(frontier.main, [*words, "--json", str(folder / "rows.json"), *more])


@pytest.fixture(scope="module")
def bundle(shipped_bundle: Any) -> Path:
    found: Path = shipped_bundle("tiny-llada", "native")
    return found


@pytest.fixture(scope="module")
def measured(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("frontier")
    return folder, measure(bundle, folder, "--resident", "0", "--streamed", "1")


def answers(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()[1:]]


def test_answers_and_their_counts_are_those_of_a_prompt_alone(
    bundle: Path, measured: tuple[Path, Result]
) -> None:
    folder, result = measured
    assert result.exit_code == 0, result.stderr
    lines = answers(folder)
    assert len(lines) == 2 * 2 * 3 + 2 * 2 * 1
    with Generator(bundle) as generator:
        for line in lines:
            key, found = line["key"], line["answer"]
            example = examples(key["task"], 3)[key["index"]]
            prompt = generator.encode(example.prompt)
            settings = Settings(seed=key["index"], options=json.loads(key["options"]))
            ids: list[int] = []
            for event in generator.generate(prompt, settings):
                if isinstance(event, Committed):
                    ids += event.ids.tolist()
                elif isinstance(event, Done):
                    assert found["forwards"] == event.stats.forwards
            text = generator.tokenizer.decode(ids)
            assert (found["text"], found["right"]) == (text, example.check(text))
            assert found["rows"] == found["forwards"] * (len(prompt) + 128)
            assert (found["read"] > 0) == (key["resident"] is not None)


def test_rows_are_means_over_answers(measured: tuple[Path, Result]) -> None:
    folder, result = measured
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    assert [(row["procedure"], row["task"]) for row in rows] == [
        (procedure, task) for task in ("copying", "addition-2", "all") for procedure in PROCEDURES
    ]
    own = [line["answer"] for line in answers(folder) if line["key"]["resident"] is None]
    sure = [a for a, line in zip(own, answers(folder), strict=False) if "threshold" in line["key"]["options"]]
    last = rows[-1]
    assert last["count"] == len(sure) == 6
    assert last["forwards"] == sum(a["forwards"] for a in sure) / 6
    assert last["exact"] == sum(a["right"] for a in sure) / 6
    assert last["forwards"] < rows[-2]["forwards"] / 4
    assert last["read"] / last["forwards"] == pytest.approx(rows[-2]["read"] / rows[-2]["forwards"], rel=0.5)
    assert rows[-2]["difference"] is None and last["difference"][0] < 0 < last["difference"][1]
    assert "| sure |" in result.stdout and "all, 6 prompts" in result.stdout
    assert "| procedure | copying | addition-2 | all |" in result.stdout
    assert result.stdout.rstrip().endswith(f"| {last['exact']:.1%} in {last['forwards']:.1f} |")


def test_what_is_there_is_not_computed_again(
    bundle: Path, measured: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, first = measured
    file = folder / "answers.jsonl"
    monkeypatch.setattr(frontier.Bench, "session", lambda *_, **__: pytest.fail("everything is there"))
    again = measure(bundle, folder, "--resident", "0", "--streamed", "1")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    monkeypatch.undo()
    whole, rows = file.read_text(), (folder / "rows.json").read_text()
    # Two answers are gone, one of them in the middle.
    file.write_text(whole[: whole.rindex("\n", 0, -1) - 30])
    assert measure(bundle, folder, "--resident", "0", "--streamed", "1").exit_code == 0
    # What is read ahead between two answers is counted with either.
    assert without_reads(json.loads((folder / "rows.json").read_text())) == without_reads(json.loads(rows))
    assert {json.dumps(line["key"]) for line in answers_again(file)} == {
        json.dumps(json.loads(line)["key"]) for line in whole.splitlines()[1:]
    }


def without_reads(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "read"} for row in found["rows"]]


def answers_again(file: Path) -> list[dict[str, Any]]:
    found = []
    for line in file.read_text().splitlines()[1:]:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def test_wrong_files_and_names_are_one_line(bundle: Path, measured: tuple[Path, Result]) -> None:
    folder, _ = measured
    for more, message in (
        (["--seed", "5"], "has answers of another seed; name another file with --answers, or remove it"),
        (["--only", "faster"], "no procedure 'faster'; there are: default, sure"),
    ):
        result = measure(bundle, folder, *more)
        assert result.exit_code == 1 and message in result.stderr and result.stderr.count("\n") == 1


def compare_orders(bundle: Path, folder: Path, *more: str) -> Result:
    words = [str(bundle), "--compare", "orders", "--per-task", "1", "--answers", str(folder / "orders.jsonl")]
    return CliRunner().invoke(frontier.main, [*words, *more])


def test_orders_are_compared_on_chains_and_sorting(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(Path(tokenizer.__file__).parent / "tiny-llada", folder)
    write_head(folder, 192)
    export(folder, tmp_path / "bundle", ExportOptions("native", scheme=Scheme("mixed4")))
    chosen = "logic, one block, a quarter of the steps"
    result = compare_orders(tmp_path / "bundle", tmp_path, "--only", chosen)
    assert result.exit_code == 0, result.stderr
    assert f"| {chosen} |" in result.stdout and "| confidence, blocks of 32 |" in result.stdout
    assert "chain, 1 prompts:" in result.stdout and "sorting, 1 prompts:" in result.stdout
    found = [json.loads(line)["answer"] for line in (tmp_path / "orders.jsonl").read_text().splitlines()[1:]]
    assert len(found) == 4 and all(0 < answer["forwards"] <= 128 for answer in found)


def test_orders_need_a_role_head(bundle: Path, tmp_path: Path) -> None:
    result = compare_orders(bundle, tmp_path)
    assert result.exit_code == 1 and "order logic needs a role head" in result.stderr
    assert result.stderr.count("\n") == 1
