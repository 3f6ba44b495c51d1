"""`edgekit bench`: what it measures, tabulates and refuses."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.interrupted_bench import interrupted

from edgekit.flashload.manifest import seal
from edgekit.runtime.bundle.costs import Costs
from edgekit.tools.benchmark import rows
from edgekit.tools.benchmark.cases import Case, Sweep
from edgekit.tools.benchmark.limits import in_words, lines
from edgekit.tools.benchmark.tables import FORMATS, columns
from edgekit.tools.cli import main

ASK = ("--prompt", "What is 12 + 34?", "--no-probe")
#: Properties that compare-llama-bench.py reads of each row.
COMPARED = (
    "build_commit", "test_time", "avg_ts", "cpu_info", "gpu_info", "backends", "n_gpu_layers", "n_cpu_moe",
    "tensor_buft_overrides", "model_filename", "model_type", "n_batch", "n_ubatch", "embeddings", "cpu_mask",
    "cpu_strict", "poll", "n_threads", "type_k", "type_v", "load_mode", "no_kv_offload", "split_mode",
    "main_gpu", "tensor_split", "flash_attn", "n_prompt", "n_gen", "n_depth", "fit_target", "fit_min_ctx",
)  # fmt: skip


@pytest.fixture(scope="module")
def bundle(shipped_bundle: Callable[..., Path]) -> Path:
    return shipped_bundle("tiny-gemma", "native")


def bench(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["bench", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def swept(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of four configurations, with two runs each."""
    file = tmp_path_factory.mktemp("bench") / "reports.jsonl"
    bench(bundle, *ASK, "-r", 2, "--resident", "0,all", "--sequences", "1,3", "--report", file)
    return file


def reports(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_combination_is_measured_as_often_as_asked(swept: Path) -> None:
    found = reports(swept)
    alone, together = ([r["plan"]["head"] for r in found if r["session"]["sequences"] == n] for n in (1, 3))
    assert max(together) <= 3 * min(alone), "each has rows of its own, and they are counted once"
    assert [(r["session"]["resident_bytes"], r["session"]["sequences"]) for r in found] == [
        (0, 1), (0, 3), (None, 1), (None, 3),
    ]  # fmt: skip
    for report in found:
        assert len(report["tests"]) == 2
        for test in report["tests"]:
            assert len(test["sequences"]) == report["session"]["sequences"]
            assert all(each["done"] and each["committed_tokens"] > 0 for each in test["sequences"])
    alone, together = found[:2]
    read = [rows.figures(report)["bytes_per_forward"].mean for report in (alone, together)]
    assert read[0] > 3e6 and read[1] < 1.3 * read[0], "three answers share what one reads"
    assert not rows.figures(found[2])["bytes_per_forward"].mean


def test_all_formats_say_the_same(swept: Path) -> None:
    texts = {name: bench("--merge", swept, "-o", name).stdout for name in FORMATS}
    as_json = json.loads(texts["json"])
    assert [json.loads(line) for line in texts["jsonl"].splitlines()] == as_json
    as_csv = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert len(as_csv) == len(as_json) == 4
    for plain, row in zip(as_csv, as_json, strict=True):
        assert float(plain["tokens_per_second"]) == row["tokens_per_second"]
        assert json.loads(plain["settings"]) == row["settings"] == {}
        assert plain["memory_bytes"] == ""
    head, rule, *lines = [line for line in texts["md"].splitlines() if line.startswith("|")]
    assert len(lines) == 4 and len({len(line) for line in (head, rule, *lines)}) == 1
    names = [name.strip() for name in head.strip("|").split("|")]
    assert names[0] == "model" and {"memory", "at once", "tok/s", "read/forward"} <= set(names)
    assert not {"settings", "engine", "threads", "J/token"} & set(names), "they are the same, or not known"
    shown = [line.strip("|").split("|")[names.index("tok/s")].strip() for line in lines]
    for text, row in zip(shown, as_json, strict=True):
        mean, deviation = map(float, text.split(" ± "))
        assert mean == pytest.approx(row["tokens_per_second"], abs=0.06)
        assert deviation == pytest.approx(row["tokens_per_second_stddev"], abs=0.06)


def test_rows_have_samples_their_spread_and_what_other_programs_read(swept: Path) -> None:
    for report in reports(swept):
        row = rows.row(report)
        samples = [test["committed_tokens"] / test["seconds"] for test in report["tests"]]
        assert row["tokens_per_second_samples"] == row["samples_ts"] == samples
        assert row["tokens_per_second"] == row["avg_ts"] == pytest.approx(statistics.fmean(samples))
        assert row["tokens_per_second_stddev"] == pytest.approx(statistics.stdev(samples))
        assert not set(COMPARED) - set(row)
        assert row["samples_ns"] == [round(1e9 * test["seconds"]) for test in report["tests"]]
        assert row["test"] == "dg128 @ p17" and row["n_gen"] == 128


def test_a_run_may_end_after_a_few_forwards(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "report"
    done = bench(
        bundle, "--prompt-tokens", 40, "--forwards", 3, "-n", 256, "--set", "steps=16", "-r", 1,
        "--no-probe", "--report", file, "--sequences", "1,2", "--set", "stability_threshold=null",
    )  # fmt: skip
    assert "fw3 @ p40" in done.stdout and "±" not in done.stdout, "of one run"
    for report in reports(file):
        (test,) = report["tests"]
        row = rows.row(report)
        assert test["denoise_passes"] == row["forwards"] == 3
        assert row["forward_ms"] > 0 and row["forward_ms"] == pytest.approx(
            row["denoise_ms"] + row["head_ms"]
        )
        assert not {"tokens_per_second", "tokens_per_forward", "committed_tokens"} & set(row), (
            "no answer ended"
        )


def test_what_an_engine_remarks_is_a_note(bundle: Path) -> None:
    done = bench(bundle, "--engine", "torch", "--forwards", 1, "-r", 1, "--warmups", 0, "--no-probe")
    if "cuda" not in done.stdout:
        (said,) = [line for line in done.stderr.splitlines() if "processor" in line]
        assert said.startswith("note: PyTorch") and ".py" not in done.stderr


def test_limits_of_the_machine_stand_above_the_table_and_beside_what_was_reached(
    bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "report"
    done = bench(bundle, "--resident", 0, "-r", 1, "--prompt", "What is 12 + 34?", "--report", file)
    (report,) = reports(file)
    limits, row = report["about"]["limits"], rows.row(report)
    assert limits["disk_bytes_per_second"] > 0 and limits["int8_operations_per_second"] > 0
    assert done.stdout.splitlines()[0] == in_words(report)
    assert limits["int8_instructions"] in done.stdout
    slower = json.loads(json.dumps(report))
    slower["about"]["limits"]["int8_operations_per_second"] /= 2
    assert lines([slower, report, slower]) == [in_words(report)], "what was reached once can be reached"
    assert len(lines([report, {**slower, "machine": slower["machine"] | {"device": "another"}}])) == 2
    report["about"]["limits"]["busy_cores"] = 1.26
    assert in_words(report).endswith(", other programs kept 1.3 cores busy")
    report["about"]["limits"]["busy_cores"] = 0.1
    assert "busy" not in in_words(report)
    operations = [
        Costs(**report["about"]["costs"]).of_pass(each) for each in rows.rows_of(report["tests"][0]["passes"])
    ]
    assert len(operations) > 1 and min(operations) > 1e7
    assert row["operations_per_second"] == sum(operations) / report["tests"][0]["pass_seconds"]
    assert 0 < row["share_of_int8"] < 1 and "TOP/s" in columns([row])
    share = row["read_bytes_per_second"] / limits["disk_bytes_per_second"]
    assert row["share_of_disk"] == pytest.approx(share) and "of disk" in columns([row])


def test_settings_take_several_values(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "report"
    bench(
        bundle, "-r", 1, "--no-probe", "--warmups", 0, "--forwards", 1, "--set", "steps=2,3",
        "--set", "t_min=0.25", "--set", "stability_threshold=null,2", "--report", file,
    )  # fmt: skip
    assert [r["about"]["case"]["settings"] for r in reports(file)] == [
        {"steps": steps, "t_min": 0.25, "stability_threshold": threshold}
        for steps in (2, 3)
        for threshold in (None, 2)
    ]


def test_what_cannot_be_measured_is_told_and_the_rest_is_measured(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "report"
    done = bench(bundle, *ASK, "-r", 1, "--memory", "1MB,all", "--forwards", 1, "--report", file, code=1)
    assert "memory 1 MB: " in done.stderr and "is too small" in done.stderr
    assert len(reports(file)) == 1 and "tiny-gemma" in done.stdout
    done = bench(bundle, *ASK, "--memory", "1MB", code=2)
    assert done.stderr.count("\n") == 1 and "is too small" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name bundles to measure"),
        (("BUNDLE", "--merge", "x"), "not both"),
        (("BUNDLE", "--memory", "1GB,,2GB"), "single commas"),
        (("BUNDLE", "--threads", "1,1"), "twice"),
        (("BUNDLE", "--threads", "0"), "from 1"),
        (("BUNDLE", "--sequences", "none"), "integer"),
        (("BUNDLE", "--set", "steps=1", "--set", "steps=2"), "separate its values"),
        (("BUNDLE", "--set", "nothing=1"), "not a sampling option"),
        (("BUNDLE", "--set", "stps=4"), "stps is not a sampling option of any model; did you mean steps?"),
        (("BUNDLE", "--set", "steps=0"), "steps"),
        (("BUNDLE", "--prompt", "a", "--prompt-tokens", "3"), "exclude each other"),
        (("BUNDLE", "--engine", "warp"), "warp"),
        (("BUNDLE", "--report", "nowhere/report"), "there is no folder"),
        (("BUNDLE", "--report", "x", "--html", "./x"), "--report and --html both name x; name two files"),
        (("--merge", "x", "--report", "y"), "--merge writes none"),
        (("no-such-folder",), "no-such-folder"),
        (("tiny-gemma",), "export it first"),
        (("--merge", "no-such-file"), "cannot open (No such file"),
    ],
)
def test_wrong_words_are_one_line(bundle: Path, words: tuple[str, ...], said: str) -> None:
    done = bench(*[str(bundle) if word == "BUNDLE" else word for word in words], "--no-probe", code=2)
    assert said in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="shells there close nothing")
def test_a_process_without_stderr_measures(bundle: Path, tmp_path: Path) -> None:
    words = (sys.executable, "-m", "edgekit", "bench", bundle, "--forwards", "1", "-r", "1", "--no-probe")
    line = " ".join(map(shlex.quote, map(str, words)))
    done = subprocess.run(
        f"{line} 2>&-", shell=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0 and "tiny-gemma" in done.stdout


def damaged(report: dict[str, Any], **changes: Any) -> str:
    other = copy.deepcopy(report) | changes
    return json.dumps(_without(other))


def _without(value: Any) -> Any:
    """What is there of a value in which Ellipsis stands for nothing."""
    if not isinstance(value, dict):
        return value
    return {name: _without(each) for name, each in value.items() if each is not ...}


def test_files_that_hold_no_reports_are_refused(swept: Path, tmp_path: Path) -> None:
    first = reports(swept)[0]
    file = tmp_path / "file"
    for text, said in (
        ("", "no reports"),
        ("{", "not valid JSON"),
        (json.dumps(first) + "\n{", "line 2: not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        (damaged(first, machine=first["machine"] | {"cores": ...}), "'cores'"),
        (json.dumps(first).replace('"seconds": ', '"seconds": NaN, "x": ', 1), "NaN"),
        ("[1]", "report 1 is none of edgekit's"),
        (damaged(first, edgekit_bench=2), "version 2"),
        (damaged(first, tests=...), '"tests"'),
        (damaged(first, tests=[]), "no tests"),
        (damaged(first, machine=3), '"machine"'),
        (damaged(first, tests=[{}]), "'sequences'"),
        (damaged(first, tests=[[]]), "damaged"),
        (damaged(first, session={}), "'threads'"),
        (damaged(first, about={"model": 3}), "damaged"),
    ):
        file.write_text(text)
        assert said in bench("--merge", file, code=2).stderr, said
    file.write_bytes(b"\xff\xfe")
    assert "no text" in bench("--merge", file, code=2).stderr


def test_reports_of_applications_are_merged_as_they_are(swept: Path, tmp_path: Path) -> None:
    """The core's report alone, as a phone writes it: nothing in "about", another device. Older ones told
    nothing of the model.
    """
    plain = reports(swept)[0]
    del plain["bundle"]["model"]
    plain["about"], plain["machine"]["device"] = {}, "iPhone17,1"
    file = tmp_path / "phone.json"
    file.write_text(json.dumps(plain, indent=2))
    done = bench("--merge", file, "--merge", swept)
    assert done.stdout.splitlines()[0].startswith("iPhone17,1")
    assert plain["bundle"]["digest"][:12] in done.stdout and "| device" in done.stdout


def made(seconds: float, ends: list[float], joules: float | None = None) -> dict[str, Any]:
    """A test of one answer of 20 tokens, with passes that end then."""
    passes = [["prefill", 0.0, 0.5, 0.5, 9, 1, 0, 81, 0, 0.0, 0]]
    passes += [["denoise", end - 0.2, end - 0.1, end, 9, 1, 9, 81, 0, 0.0, 100] for end in ends]
    names = [
        "kind",
        "begun",
        "headed",
        "ended",
        "rows",
        "segments",
        "head_rows",
        "attended",
        "expert_rows",
        "waited",
        "bytes_read",
    ]
    return {
        "label": {}, "seconds": seconds, "prompt_tokens": 9, "committed_tokens": 20, "canvas_tokens": 32,
        "sequences": [{
            "first_draft_seconds": 1.0, "first_block_seconds": 2.0, "forwards": len(ends), "done": True,
            "committed_tokens": 20,
        }],
        "prefill_passes": 1, "denoise_passes": len(ends), "head_passes": 0, "prefill_seconds": 0.5,
        "denoise_seconds": 0.1 * len(ends), "head_seconds": 0.1 * len(ends), "pass_seconds": 1.0,
        "bytes_read": 400, "io_seconds": 2.0, "io_wait_seconds": 0.25,
        "memory": {"peak_anonymous": 1000, "peak_file": 10},
        "energy": [
            {"meter": name, "joules": value} for name, value in (("rapl", joules), ("own", None)) if joules
        ],
        "passes": {"columns": names, "rows": passes},
    }  # fmt: skip


def test_figures_are_what_they_say() -> None:
    report = {"tests": [made(4.0, [1.0, 2.0, 3.0, 4.0], 8.0), made(5.0, [1.0, 2.0, 3.0, 4.0], 10.0)]}
    found = {name: spread.mean for name, spread in rows.figures(report).items()}
    assert found == pytest.approx(
        {
            "tokens_per_second": 4.5, "seconds": 4.5, "first_draft_seconds": 1.0, "first_block_seconds": 2.0,
            "canvas_tokens_per_second": 7.2, "committed_tokens": 20, "forwards": 4, "tokens_per_forward": 5,
            "prefill_ms": 500, "denoise_ms": 100, "head_ms": 100, "forward_ms": 200, "bytes_per_forward": 100,
            "bytes_per_token": 20, "read_bytes_per_second": 200, "io_wait_share": 0.25,
            "peak_anonymous_bytes": 1000, "peak_file_bytes": 10, "joules_per_token": 0.45, "watts": 2.0,
        }
    )  # fmt: skip
    spread = rows.figures(report)["seconds"]
    assert spread.samples == (4.0, 5.0) and spread.deviation == pytest.approx(0.5**0.5)
    assert "watts" not in rows.figures({"tests": [made(4.0, [1.0])]})


def test_heads_without_rows_are_part_of_their_step() -> None:
    test = made(4.0, [1.0, 2.0]) | {"head_passes": 4, "head_seconds": 0.6}
    found = {name: spread.mean for name, spread in rows.figures({"tests": [test]}).items()}
    assert found["head_ms"] == pytest.approx(300) and found["forward_ms"] == pytest.approx(400)


def test_what_a_strangers_report_says_reaches_no_terminal(swept: Path, tmp_path: Path) -> None:
    report = reports(swept)[0]
    report["bundle"]["model"]["name"] = "a\x1b[2Jb\nc|d"
    file = tmp_path / "file"
    file.write_text(json.dumps(report))
    said = bench("--merge", file).stdout
    assert "\x1b" not in said and said.count("\n|") == 3


@pytest.mark.parametrize(("code", "said"), [(-9, "--memory"), (-11, "signal 11"), (3, "exit code 3")])
def test_a_process_that_ends_without_a_word(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    ends = (
        f"import os, sys; sys.stdout.write('half'); os.kill(os.getpid(), {-code})"
        if code < 0
        else f"exit({code})"
    )
    real = subprocess.Popen

    def other(command: list[str], **options: Any) -> Any:
        return real([sys.executable, "-c", ends], **options)

    monkeypatch.setattr(subprocess, "Popen", other)
    done = bench(bundle, *ASK, code=2)
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_the_last_minute_is_held_against_the_first() -> None:
    quick = made(100.0, [float(second) for second in range(1, 101)])
    slow = made(100.0, [2.0 * second for second in range(1, 51)])
    assert rows.sustained_ratio({"tests": [quick, slow]}) == pytest.approx(30 / 60)
    assert rows.sustained_ratio({"tests": [quick]}) is None


def test_a_sweep_is_all_combinations_and_titles_tell_them_apart() -> None:
    sweep = Sweep(["a", "b"], [None, 10**9], threads=[1, 2], settings={"steps": [4, 8], "x": [None, "y"]})
    cases = list(sweep.cases())
    assert len(cases) == 32 and len({case.title for case in cases}) == 32
    assert all(Case.of(json.loads(json.dumps(case.as_dict()))) == case for case in cases)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_who_interrupts_keeps_what_was_measured(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "report"
    command = [
        sys.executable, "-m", "edgekit", "bench", str(bundle), *ASK, "-r", "1", "--set",
        "t_min=0.1,0.11,0.12,0.13,0.14,0.15,0.16,0.17,0.18,0.19", "--report", str(file),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    kept = len(reports(file))
    assert 1 <= kept < 10
    assert len(re.findall(r"^\| tiny", bench("--merge", file).stdout, re.MULTILINE)) == kept


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_who_interrupts_keeps_the_runs_until_then(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "report"
    words = ["bench", str(bundle), *ASK, "-r", "5000", "--no-probe", "--report", str(file)]
    shown, said = interrupted(words, file)
    assert "ending after this pass" in said
    (report,) = reports(file)
    runs = len(report["tests"])
    assert 0 < runs < 5000 and f"{runs} runs of the last configuration are kept" in said
    assert shown.splitlines()[-1].startswith("| tiny-gemma")


def test_random_prompts_need_no_tokenizer(tmp_path: Path) -> None:
    from edgekit.export.quantize import Scheme
    from edgekit.tools.bench import random_bundle
    from edgekit.tools.planning import released

    small = {"d_model": 64, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 96}
    words = {
        "vocab_size": 300,
        "embedding_size": 300,
        "mask_token_id": 299,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    random_bundle.write(tmp_path / "bundle", released.llada_8b(1) | small | words, Scheme())
    asked = ("-p", 12, "-n", 32, "--forwards", 2, "-r", 1, "--no-probe")
    assert "fw2 @ p12" in bench(tmp_path / "bundle", *asked).stdout
    assert "tokenizer" in bench(tmp_path / "bundle", *ASK, code=2).output


def test_bundles_of_one_model_and_preset_are_told_apart(
    shipped_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "wide").mkdir()
    for name in ("narrow-one", "wide/wide-one"):
        shutil.copytree(shipped_bundle("tiny-gemma", "native"), tmp_path / name)
    other = tmp_path / "wide" / "wide-one" / "edgekit.json"
    sealed = seal(other.read_bytes().replace(b'"tiny-gemma"', b'"tiny-gemma" '))
    other.write_bytes(sealed)
    report = tmp_path / "report"
    words = ["-r", "1", "--forwards", "1", "--warmups", "0", "--no-probe"]
    shown = bench(tmp_path / "narrow-one", tmp_path / "wide" / "wide-one", *words, "--report", report).stdout
    assert [line.split("|")[3].strip() for line in shown.splitlines()[-2:]] == ["narrow-one", "wide-one"]
    assert "narrow-one" not in report.read_text() and "wide-one" not in report.read_text()
    merged = bench("--merge", report).stdout.splitlines()[-2:]
    assert len({line.split("|")[3] for line in merged}) == 2
    assert json.loads(sealed)["sha256"][:8] in merged[1]
    one = bench(tmp_path / "narrow-one", *words).stdout
    assert "bundle" not in one


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-p", "99999999999999999999999"), "--prompt-tokens is"),
        (("-p", "300000"), "passes the model's 1,024 positions"),
        (("--prompt", "a", "--prompt", "b"), "give --sequences 2"),
    ],
)
def test_prompts_that_cannot_be_asked_are_told(bundle: Path, words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, ["bench", str(bundle), "-r", "1", "--no-probe", *words])
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.stderr, done.output


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("about", "engine", "engine"), "x" * 100_000),
        (("about", "engine", "engine"), "@"),
        (("plan", "streamed"), "@"),
        (("about", "case", "new_tokens"), "x"),
        (("about", "case", "new_tokens"), -1e308),
    ],
)
def test_a_report_is_refused_for_what_a_row_would_show(
    bundle: Path, tmp_path: Path, path: tuple[str, ...], value: Any
) -> None:
    file = tmp_path / "report"
    bench(bundle, "-r", 1, "--forwards", 1, "--warmups", 0, "--no-probe", "--report", file)
    (report,) = reports(file)
    at = report
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    file.write_text(json.dumps(report).replace('"@"', "1e999"))
    done = CliRunner().invoke(main, ["bench", "--merge", str(file), "-o", "json"])
    said = "the number 1e999 is too large" if value == "@" else "damaged"
    assert done.exit_code == 2 and said in done.stderr and not done.stdout, done.output
