"""`edgekit plan`: what it predicts, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import EdgekitError
from edgekit.targets.devices import FLAGS, devices
from edgekit.tools.benchmark import rows
from edgekit.tools.benchmark.asked import Asked, as_table
from edgekit.tools.cli import main
from edgekit.tools.digits import digits
from edgekit.tools.durations import in_seconds
from edgekit.tools.planning import plan, show
from edgekit.tools.planning.model import PlannedModel, planned
from edgekit.tools.planning.pipeline import Span, Stage, simulate, waiting_seconds
from edgekit.tools.planning.predict import BLOCK_STEPS, Request, predict
from edgekit.tools.planning.rates import NotKnown, Rates, of_device, of_limits
from edgekit.tools.planning.source import configuration

LIMITS = {
    "disk_bytes_per_second": 2e9,
    "product_operations_per_second": 1e12,
    "few_row_operations_per_second": 7e11,
    "attention_operations_per_second": 1e11,
    "float_operations_per_second": 2e11,
    "memory_bytes_per_second": 3e10,
}


def run(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["plan", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


def machine(budget: int | None = None, **limits: float) -> Rates:
    return of_limits("a machine", LIMITS | limits, budget, "a test")


# ------------------------------------------------------------------ reads beside products

STAGES = st.lists(
    st.builds(
        Stage,
        st.just("unit"),
        st.just("layer"),
        st.one_of(st.just(0.0), st.floats(1, 100)),
        st.floats(0, 10),
    ),
    min_size=1,
    max_size=12,
)


@given(STAGES, st.floats(100, 500), st.floats(0.5, 50))
def test_a_step_is_a_schedule_that_a_ring_allows(stages: list[Stage], ring: float, rate: float) -> None:
    spans = simulate(stages, ring, rate)
    reading, computing = sum(s.read_bytes for s in stages) / rate, sum(s.seconds for s in stages)
    length, little = spans[-1].ended, 1e-6 * (1 + reading + computing)
    assert max(reading, computing) - little <= length <= reading + computing + little
    assert waiting_seconds(spans) == pytest.approx(length - computing, abs=little)
    read = [span for span in spans if span.stage.read_bytes]
    for span in spans:
        assert span.ended - span.began == pytest.approx(span.stage.seconds, abs=little)
        assert span.read_ended <= span.began + little
    for before, after in zip(spans, spans[1:], strict=False):
        assert before.ended <= after.began + little
    for before, after in zip(read, read[1:], strict=False):
        assert before.read_ended <= after.read_began + little
    if read:
        assert _most_held(read, length) <= ring * (1 + 1e-9)
    if not read:
        assert length == pytest.approx(computing, abs=little)


def _most_held(read: list[Span], length: float) -> float:
    """Bytes at a time in the ring, while equal steps follow each other: counted at the begin of each read."""
    changes = []
    for span in read:
        for step in range(4):
            changes.append((span.read_began + step * length, span.stage.read_bytes))
            changes.append((span.ended + step * length - 1e-7 * (1 + length), -span.stage.read_bytes))
    held, most = 0.0, 0.0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


def test_what_a_small_ring_costs_is_waiting() -> None:
    """Two units alternate: one that is long to read, one that is long to compute."""
    stages = [Stage("a", "layer", 10.0, 0.0), Stage("b", "layer", 0.0, 10.0)] * 3
    assert simulate(stages, 10.0, 1.0)[-1].ended == pytest.approx(30.0), "read while the others compute"
    stages = [Stage("a", "layer", 10.0, 9.0)] * 4
    assert simulate(stages, 10.0, 1.0)[-1].ended == pytest.approx(76.0), "no room to read ahead"
    assert simulate(stages, 20.0, 1.0)[-1].ended == pytest.approx(40.0)


# ------------------------------------------------------------------ models


@pytest.fixture(scope="module")
def gemma() -> Iterator[PlannedModel]:
    with planned(configuration("tiny-gemma"), Scheme("mixed4")) as model:
        yield model


@pytest.fixture(scope="module")
def big() -> Iterator[PlannedModel]:
    with planned(configuration("llada2.2-mini"), Scheme("mixed4")) as model:
        yield model


@pytest.fixture(scope="module")
def dense() -> Iterator[PlannedModel]:
    with planned(configuration("nemotron-3b"), Scheme("mixed4")) as model:
        yield model


def test_the_expected_share_of_experts_is_that_of_even_routers(big: PlannedModel) -> None:
    """Beside rows whose experts are drawn: of all for two sequences of other blocks, each of its capacity."""
    rng, rows_each = np.random.default_rng(1), 4
    assert (big.experts, big.top_k, big.capacity, big.expert_layers) == (256, 8, 48, 19)
    found = []
    for _ in range(400):
        touched: set[int] = set()
        for _ in range(2):
            allowed = rng.choice(256, 48, replace=False)
            for _ in range(rows_each):
                touched |= set(rng.choice(allowed, 8, replace=False).tolist())
        found.append(len(touched) / 256)
    error = np.std(found) / math.sqrt(len(found))
    assert abs(big.touched(2 * rows_each, 2) - np.mean(found)) < 5 * error
    assert big.touched(10_000) == pytest.approx(48 / 256)


def test_a_model_is_what_its_configuration_says(gemma: PlannedModel) -> None:
    config = configuration("tiny-gemma").config["text_config"]
    assert gemma.experts == gemma.capacity == config["num_experts"]
    assert gemma.top_k == config["top_k_experts"]
    assert gemma.expert_layers == config["num_hidden_layers"]
    assert gemma.softens


def test_bytes_of_a_step_are_those_that_a_session_reads(
    shipped_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    """Measured by `bench`: of a dense model to the byte but for what is read ahead at a run's end."""
    file, bundle = tmp_path / "reports.jsonl", shipped_bundle("tiny-llada")
    done = CliRunner().invoke(
        main,
        ["bench", str(bundle), "--resident", "0", "-r", "1", "-n", "32", "-p", "32", "--report", str(file)],
    )
    assert done.exit_code == 0, done.output
    (report,) = [json.loads(line) for line in file.read_text().splitlines()]
    measured = rows.figures(report)["bytes_per_forward"].mean
    with planned(configuration("tiny-llada"), Scheme("mixed4")) as model:
        asked = Request(32, 32)
        least = predict(model, machine(), asked).plan.least_memory_bytes
        step = predict(model, machine(least), asked)
    streamed = sum(unit.nbytes for unit in step.plan.units if unit.group != "embedding")
    assert streamed == step.read_bytes + sum(
        u.nbytes for u in step.plan.units if u.pinned and u.group != "embedding"
    )
    assert measured == pytest.approx(streamed, rel=0.05)


def test_experts_that_stay_for_a_block_are_read_by_one_of_its_steps(big: PlannedModel) -> None:
    """Here where a budget holds 48 of a layer's."""
    for budget, share in ((2_500_000_000, 1.0), (5_000_000_000, 1 / BLOCK_STEPS)):
        step = predict(big, machine(budget), Request(128, 32))
        read = sum(span.stage.read_bytes for span in step.spans if span.stage.part == "experts")
        streamed = sum(u.nbytes for u in step.plan.units if u.group == "expert" and not u.pinned)
        assert read == pytest.approx(share * big.touched(step.lengths.canvas) * streamed)
        assert streamed and all(u.pinned for u in step.plan.units if u.group not in ("expert", "embedding"))


# ------------------------------------------------------------------ steps


def test_a_step_gets_shorter_with_all_that_makes_it_so(gemma: PlannedModel) -> None:
    request = Request(32)
    least = predict(gemma, machine(), request).plan.least_memory_bytes
    small = predict(gemma, machine(least), request)
    assert small.limit == "flash" or small.waiting_seconds >= 0
    longer = small.seconds
    for budget in (least + 500_000, least + 2_000_000, None):
        seconds = predict(gemma, machine(budget), request).seconds
        assert seconds <= longer * 1.0001
        longer = seconds
    for name in LIMITS:
        faster = predict(gemma, machine(least, **{name: 2 * LIMITS[name]}), request)
        assert faster.seconds <= small.seconds
    slow = predict(gemma, machine(least, disk_bytes_per_second=1e6), request)
    assert slow.limit == "flash"
    assert slow.seconds == pytest.approx(slow.read_bytes / 1e6, rel=0.2)
    resident = predict(gemma, machine(None), request)
    assert resident.resident and not resident.read_bytes
    assert resident.seconds == pytest.approx(resident.compute_seconds)
    assert resident.tokens_per_second(8) == pytest.approx(resident.canvas_tokens / 8 / resident.seconds)
    assert resident.tokens_per_second(10**6) == pytest.approx(1 / resident.seconds)


def test_sequences_that_ride_lengthen_a_step_by_less_than_a_tenth(dense: PlannedModel) -> None:
    fast = {"product_operations_per_second": 1e13, "few_row_operations_per_second": 1e13}
    rates, request = machine(1_500_000_000, **fast), Request()
    made = plan.make("it", dense, rates, request)
    assert made.step is not None and made.riding > 0
    all_of_them = predict(dense, rates, replace(request, sequences=1 + made.riding))
    assert all_of_them.seconds <= 1.1 * made.step.seconds
    one_more = plan.make("it", dense, rates, replace(request, sequences=2 + made.riding))
    assert one_more.step is None or one_more.step.seconds > 1.1 * made.step.seconds
    assert any(line.startswith("all weights in memory") for line in made.helps)


def test_a_budget_that_is_too_small_is_told_with_what_is_needed(gemma: PlannedModel) -> None:
    made = plan.make("it", gemma, machine(20_000_000), Request(32))
    assert made.step is None
    assert plan.make("it", gemma, machine(made.needed_bytes), Request(32)).step is not None


# ------------------------------------------------------------------ devices


def test_every_device_has_a_source_for_each_figure_and_a_plan(big: PlannedModel) -> None:
    assert len(devices()) > 20
    for device in devices().values():
        assert device.target, device.id
        for name, figure in device.figures.items():
            assert figure.flag in FLAGS and len(figure.source) > 3, (device.id, name)
            assert figure.low is None or figure.low <= figure.value, (device.id, name)
            assert figure.high is None or figure.value <= figure.high, (device.id, name)
            # A plan of one device shows no other's sources.
            referring = re.search(
                r"^(as|same)\b|\bsame (page|report|PR|pro\w+|scaling)\b|^17 ", figure.source
            )
            assert not referring, (device.id, name)
        made = plan.make(device.id, big, of_device(device), Request())
        assert made.step is not None, device.id
        assert 1e-4 < made.step.seconds < 600, device.id


def test_a_device_without_a_figure_that_a_plan_needs_is_refused() -> None:
    device = devices()["pixel-9-pro"]
    figures = {name: f for name, f in device.figures.items() if name != "flash_read_gbps"}
    with pytest.raises(NotKnown, match="flash_read_gbps is not known"):
        of_device(replace(device, figures=figures))


# ------------------------------------------------------------------ the command


def test_one_device_is_told_with_where_its_figures_are_from() -> None:
    done = run("llada-8b", "--device", "pixel-9-pro", "--steps", "8,16")
    device = devices()["pixel-9-pro"]
    assert "8.02 billion parameters" in done.stdout and device.name in done.stdout
    for name in ("flash_read_gbps", "app_budget_gb", "compute_tflops_fp16"):
        assert device.figures[name].source in done.stdout
    assert "in 8 steps" in done.stdout and "48 steps" not in done.stdout


def test_all_devices_are_compared_in_a_table_and_as_json() -> None:
    done = run("llada-8b", "--compare")
    assert all(device.name in done.stdout for device in devices().values())
    found = json.loads(run("llada-8b", "--compare", "--json", "--steps", "4").stdout)
    assert [each["device"] for each in found["plans"]] == list(devices())
    assert found["model"]["parameters"] == 8_015_581_184
    for each in found["plans"]:
        assert each["seconds"] >= max(each["read_seconds"], each["compute_seconds"]) * 0.999
        assert each["tokens_per_second"] == {"4": pytest.approx(128 / 4 / each["seconds"])}
        assert all(figure["source"] for figure in each["figures"].values())


def test_numbers_are_written_without_exponents() -> None:
    assert [digits(value) for value in (1008.0, 999.7, 12.345, 0.5, 0.00001234)] == [
        "1,008", "1,000", "12.3", "0.5", "0.0000123",
    ]  # fmt: skip
    assert in_seconds(1234.5) == "1,234 s"
    assert "memory            1,008 GB/s (spec" in run("llada-8b", "--device", "rtx-4090-24").stdout


def test_the_seconds_of_a_step_add_up(dense: PlannedModel) -> None:
    made = plan.make("it", dense, machine(1_500_000_000), Request())
    assert made.step is not None and made.step.waiting_seconds > 0.01 * made.step.seconds
    said = dict(show.lines(made, [8]))["a step"]
    whole, computing, waiting = (
        in_seconds(s) for s in (made.step.seconds, made.step.compute_seconds, made.step.waiting_seconds)
    )
    assert said.startswith(f"{whole}: computing {computing} (") and f"and waiting {waiting} for reads" in said
    assert made.step.compute_seconds + made.step.waiting_seconds == pytest.approx(made.step.seconds)


def test_none_and_one_are_said_well(dense: PlannedModel) -> None:
    made = plan.make("it", dense, machine(1_500_000_000), Request())
    for more, says in ((0, "no more answers: "), (1, "1 more answer in "), (2, "2 more answers in ")):
        assert dict(show.lines(replace(made, riding=more), [1]))["riding"].startswith(says)
    done = run("llada-8b", "--device", "mac-m2-8", "-n", "1", "--steps", "1").stdout
    assert "1 token in 1 step " in done


def test_more_steps_than_tokens_are_told_and_make_one_column() -> None:
    done = run("nemotron-3b", "--device", "mac-m2-8", "--steps", "8,1000").stdout
    assert "32 tokens in 8 steps" in done and "32 steps in place of 1000" in done
    done = run("nemotron-3b", "--compare", "--steps", "8,48,64").stdout
    assert "tok/s, 32" in done and "tok/s, 48" not in done and "32 steps in place of 48, 64" in done


def test_a_budget_is_told_as_given() -> None:
    done = run("llada-8b", "--device", "iphone-air", "--memory", "2.5GB").stdout
    assert "2.5 GB (given: --memory, in place of 7 GB)" in done
    done = run("llada-8b", "--compare", "--memory", "8.1GB", "--steps", "8")
    assert "left out, with less memory than 8.1 GB: iphone-15-pro-256, " in done.stderr
    assert "iPhone 15 Pro" not in done.stdout and "iPhone Air" in done.stdout


def test_answers_together_are_said_to_be() -> None:
    words = ("llada-8b", "--device", "mac-m5-16", "--steps", "8")
    one, four = (run(*words, *more).stdout for more in ((), ("--sequences", "4")))
    assert "4 answers together" in four and "together" not in one


def test_devices_are_listed() -> None:
    listed = run("--list").stdout
    assert all(name in listed for name in devices())
    heading, first = listed.splitlines()[:2]
    assert heading.split("  ")[-1].strip() == "flash" and "memory of an app" in heading
    assert first.rstrip().endswith("5 GB   1.45 GB/s")
    found = json.loads(run("--list", "--json").stdout)["devices"]
    assert [each["id"] for each in found] == list(devices())


def test_this_machine_is_measured(tmp_path: Path) -> None:
    found = json.loads(run("tiny-llada", "--json", "--disk", tmp_path).stdout)
    (each,) = found["plans"]
    assert each["device"] == "this" and each["fits"] == "memory"
    flags = {name: figure["flag"] for name, figure in each["figures"].items()}
    assert flags.pop("app_budget_gb") == "estimate" and set(flags.values()) == {"measured"}
    assert not list(tmp_path.iterdir()), "what was written there is removed"
    least = each["needed_bytes"]
    (each,) = json.loads(run("tiny-llada", "--json", "--disk", tmp_path, "--memory", least).stdout)["plans"]
    assert each["memory_bytes"] == least and each["fits"] == "streamed"


def test_reports_are_planned_with_their_own_budgets_and_what_they_measured(
    shipped_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "reports.jsonl"
    done = CliRunner().invoke(
        main,
        ["bench", str(shipped_bundle("tiny-llada")), "--memory", "90MB,all", "--report", str(file), "-r", "1",
         "-n", "32", "-p", "40"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    reports = [json.loads(line) for line in file.read_text().splitlines()]
    found = json.loads(run("tiny-llada", "--bench", file, "--json").stdout)["plans"]
    assert [each["memory_bytes"] for each in found] == [90_000_000, None]
    for each, report in zip(found, reports, strict=True):
        row = rows.row(report)
        assert each["measured_seconds"] == pytest.approx(row["forward_ms"] / 1000)
        assert each["canvas_tokens"] == 32 and each["rows"] == 72
    text = run("tiny-llada", "--bench", file).stdout
    assert "measured" in text and "error" in text
    least = min(report["plan"]["least_memory"] for report in reports)
    assert found[0]["needed_bytes"] == pytest.approx(least, abs=2 << 20), "the process is as large as there"
    other = json.loads(run("tiny-gemma", "--bench", file, "--json").stdout)["plans"]
    assert [each["measured_seconds"] for each in other] == [None], "the machine alone is theirs, once"
    assert all(each["name"].endswith(", measured with tiny-llada") for each in other)
    (budget,) = (each["figures"]["app_budget_gb"] for each in other)
    granted = reports[0]["machine"]["memory_bytes"]
    assert budget["value"] == pytest.approx(0.75 * granted / 1e9), "as of --device this"
    assert other[0]["memory_bytes"] == round(0.75 * granted)
    for report in reports:
        report["about"]["limits"] = None
    file.write_text("".join(json.dumps(report) + "\n" for report in reports))
    said = run("tiny-llada", "--bench", file, code=2).output
    assert f"{file}: has no limits of " in said and "--no-probe" in said
    report = {**report, "about": report["about"] | {"endpoint": {"host": "h", "model": "m", "body": {}}}}
    report["about"]["workload"] = {
        "asked": as_table([Asked(1, "a", seconds=1.0)]), "scored_by": "answer", "digest": "",
    }  # fmt: skip
    file.write_text(json.dumps(report))
    assert f"{file}: is of an endpoint" in run("tiny-llada", "--bench", file, code=2).output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name a model to plan, or --list to see what is known; see main"),
        (["tiny-llada", "--list"], "not both"),
        (["tiny-llada", "--device", "pixel-9"], "did you mean"),
        (
            ["tiny-llada", "--device", "toaster"],
            "unknown device 'toaster'; edgekit plan --list shows those that are known",
        ),
        (["tiny-llada", "--compare", "--device", "pixel-9-pro"], "leave --device out"),
        (["tiny-llada", "--quant", "int5", "--device", "pixel-9-pro"], "int5"),
        (["no-such", "--device", "pixel-9-pro"], "no such directory"),
        (["tiny-llada", "-p", "100000", "--device", "pixel-9-pro"], "positions"),
        (["tiny-llada", "--disk", "nowhere"], "nowhere"),
        (["tiny-llada", "--device", "iphone-air", "--disk", "."], "--disk is for the machine here"),
        (["tiny-llada", "--bench", "some.jsonl", "--memory", "1GB"], "a report has its own"),
        (["--list", "--device", "iphone-air"], "--device is for plans, not for --list"),
        (["--list", "--html", "page.html"], "--html is for plans, not for --list"),
        (
            ["tiny-llada", "--device", "iphone-air", "--memory", "100GB"],
            "more than the 12 GB that iphone-air has",
        ),
        (["tiny-llada", "--memory", "900TB"], "that this process may have"),
        (["tiny-llada", "--compare", "--memory", "900TB"], "no device of --list has as much"),
        (["tiny-llada", "--bench", "nowhere"], "cannot open (No such file"),
    ],
)
def test_bad_input_gets_one_line(words: list[str], says: str) -> None:
    done = run(*words, code=2)
    assert says in done.output
    assert "Traceback" not in done.output


def test_a_bundle_is_told_from_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "edgekit.json").write_text("{}")
    said = run(tmp_path, code=2).output
    assert f"{tmp_path}: is a bundle; plan takes the checkpoint that it was made of, and for this" in said
    assert f"edgekit inspect {tmp_path} --memory SIZE shows" in said


def test_what_is_proposed_for_a_bundle_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its name looks like an option."""
    monkeypatch.chdir(tmp_path)
    Path("-my bundle").mkdir()
    Path("-my bundle", "edgekit.json").write_text("{}")
    said = run("--", "-my bundle", code=2).output
    assert "edgekit inspect './-my bundle' --memory SIZE shows" in said


def test_a_configuration_is_taken_from_a_file_a_folder_or_a_name(tmp_path: Path) -> None:
    shipped = configuration("tiny-gemma")
    file = tmp_path / "mine" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(shipped.config))
    assert configuration(str(file)).name == configuration(str(file.parent)).name == "mine"
    assert configuration(str(file)).config == configuration(str(file.parent)).config == shipped.config
    assert configuration("llada-8b").config["n_layers"] == 32
    for text, says in (("{", "not valid JSON"), ("[]", "a list where"), ('{"model_type": "bert"}', "bert")):
        file.write_text(text)
        assert says in run(file, "--device", "pixel-9-pro", code=2).output
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        said = run(tmp_path / "pipe", "--device", "pixel-9-pro", code=2).output
        assert "is not a regular file" in said
    (tmp_path / "empty").mkdir()
    assert "config.json" in run(tmp_path / "empty", code=2).output


def test_a_plan_names_its_errors() -> None:
    made: Any = plan.Plan("it", machine(), None, 5)
    assert made.error is None
    with planned(configuration("tiny-llada"), Scheme()) as model:
        with pytest.raises(EdgekitError):
            plan.make("it", model, machine(), Request(10**6))
        made = plan.make("it", model, machine(), Request(8))
    assert replace(made, measured_seconds=2 * made.step.seconds).error == pytest.approx(-0.5)
