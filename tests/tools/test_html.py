"""Pages of `bench --html` and `plan --html`: what is in them, and what is not."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edgekit.export.quantize import Scheme
from edgekit.targets.devices import devices
from edgekit.tools.benchmark import rows, tables
from edgekit.tools.cli import main
from edgekit.tools.html import charts, measured, theme
from edgekit.tools.html.page import Section, Table, render
from edgekit.tools.planning.model import planned
from edgekit.tools.planning.predict import Request, predict
from edgekit.tools.planning.rates import of_device
from edgekit.tools.planning.source import configuration

#: Attributes by which a page brings in something else.
REFERRING = {
    "src",
    "href",
    "srcset",
    "data",
    "action",
    "poster",
    "background",
    "formaction",
    "ping",
    "manifest",
}
#: Elements without an end.
EMPTY = {"meta", "br", "img", "link", "input"}


class Page(HTMLParser):
    """A page as a browser takes it: elements, the text that is seen, tables, and what scripts hold."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self._open: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))
        self.close()
        assert not self._open, "every element ends"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self._open.append(tag)
        match tag:
            case "table":
                self.tables.append([])
            case "tr":
                self.tables[-1].append([])
            case "td" | "th":
                self.tables[-1][-1].append("")
            case "script":
                self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inner = self._open[-1] if self._open else ""
        if inner == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = attributes, before + data
        elif inner == "style":
            self.styles.append(data)
        elif data.strip():
            self.texts.append(data)
            if inner in ("td", "th"):
                self.tables[-1][-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    @property
    def figures(self) -> dict[str, Any]:
        """By title; of two with the same the last."""
        (given,) = [text for attributes, text in self.scripts if attributes.get("id") == "figures"]
        titles = [attributes["aria-label"] for _, attributes in self.elements if "data-figure" in attributes]
        return {str(title): figure for title, figure in zip(titles, json.loads(given), strict=True)}


def run(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done


def trace(figure: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in figure["data"] if each.get("name") == name]
    return found


@pytest.fixture(scope="module")
def measured_files(
    shipped_bundle: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, str]:
    """A page, the reports that it is of, and what was printed: weights streamed, and all in memory."""
    folder = tmp_path_factory.mktemp("html")
    page, file = folder / "page.html", folder / "reports.jsonl"
    done = run(
        "bench", shipped_bundle("tiny-gemma", "native"), "--prompt", "What is 12 + 34?", "-r", 2,
        "--memory", "200MB", "--resident", "0,all", "--html", page, "--report", file,
    )  # fmt: skip
    return page, file, done.stdout


def reports(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def merged(folder: Path, given: Sequence[dict[str, Any]], code: int = 0) -> tuple[Path, Result]:
    """The page of reports, by way of a file."""
    file, page = folder / "given.jsonl", folder / "page.html"
    file.write_text("".join(json.dumps(report) + "\n" for report in given))
    return page, run("bench", "--merge", file, "--html", page, code=code)


# ------------------------------------------------------------------ of bench


def test_a_page_asks_nobody_for_anything(measured_files: tuple[Path, Path, str]) -> None:
    page = Page(measured_files[0])
    assert not [(tag, names) for tag, names in page.elements if REFERRING & set(names)]
    assert not {tag for tag, _ in page.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    }
    assert not re.search(r"url\(|@import", " ".join(page.styles))
    (policy,) = [names["content"] for _, names in page.elements if "http-equiv" in names]
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy
    before = [tag for tag, _ in page.elements]
    assert before.index("meta") < before.index("script"), "what it allows is said first"
    assert len([text for _, text in page.scripts if "plotly.js v" in text[:2000]]) == 1


def test_the_table_is_the_one_that_is_printed(measured_files: tuple[Path, Path, str]) -> None:
    page, printed = Page(measured_files[0]), measured_files[2]
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    del cells[1]
    assert page.tables[0] == cells
    assert printed.splitlines()[0] in page.text, "the machine"


def test_the_figures_are_those_of_the_reports(measured_files: tuple[Path, Path, str]) -> None:
    page, given = Page(measured_files[0]), reports(measured_files[1])
    found = [rows.row(report) for report in given]
    for title, name in (("Tokens a second", "tokens_per_second"), ("A denoising pass", "forward_ms")):
        bars = trace(page.figures[title], title)
        assert bars["x"] == [row[name] for row in found]
        assert bars["error_x"]["array"] == [row[f"{name}_stddev"] for row in found]
    roofline = page.figures["Roofline"]["data"]
    points = [each for each in roofline if each.get("mode") == "markers+text"]
    assert [len(each["x"]) for each in points] == [2, 1], "one of them reads nothing"
    assert [each["text"] for each in points] == [["1", "2"], ["1"]], "runs are told apart"
    assert re.search(r" 1: .+; 2: .+\.", page.text)
    (per_byte,), (rate,) = points[1]["x"], points[1]["y"]
    passes = [each for test in given[0]["tests"] for each in rows.rows_of(test["passes"])]
    assert rate / per_byte == pytest.approx(
        sum(each["bytes_read"] for each in passes) / sum(test["pass_seconds"] for test in given[0]["tests"])
    )
    memory = page.figures["Memory over time"]["data"]
    assert memory[0]["name"] == "anonymous" and memory[-1]["name"] == "budget 200 MB"
    assert memory[-1]["y"] == [200, 200]
    seen = [row["anonymous"] for t in given[1]["tests"] for row in rows.rows_of(t["memory"]["over_time"])]
    assert max(memory[0]["y"]) == pytest.approx(max(seen) / 1e6)


def test_a_pass_is_shown_with_its_reads_and_products(measured_files: tuple[Path, Path, str]) -> None:
    report = reports(measured_files[1])[0]
    found = measured.whole_pass(report)
    assert found is not None and found.number == 1
    denoised = [p for p in rows.rows_of(report["tests"][-1]["passes"]) if p["kind"] == "denoise"]
    assert found.seconds == pytest.approx(denoised[1]["ended"] - denoised[1]["begun"])
    assert [name for name in found.lanes if name.startswith("layers.")] == [f"layers.{i}" for i in range(6)]
    computed = [bar for bar in found.bars if bar.kind == "compute"]
    assert {bar.lane for bar in computed} == set(range(len(found.lanes))), (
        "reads of experts are their layer's"
    )
    assert {"read", "compute"} <= {bar.kind for bar in found.bars}
    assert sum(bar.ended - bar.begun for bar in computed) <= found.seconds * 1.001
    assert measured.whole_pass(reports(measured_files[1])[1]) is not None


def test_spans_that_end_within_a_pass_do_not_show_it(measured_files: tuple[Path, Path, str]) -> None:
    report = copy.deepcopy(reports(measured_files[1])[0])
    for test in report["tests"]:
        first = next(p for p in rows.rows_of(test["passes"]) if p["kind"] == "denoise")
        kept = [row for row in test["spans"]["rows"] if row[3] <= first["ended"]]
        test["spans"]["rows"], test["spans_left_out"] = kept, 1
    assert measured.whole_pass(report) is None
    report["tests"][-1]["spans"]["rows"].append(["use", "final", first["ended"], first["ended"]])
    one = measured.whole_pass(report)
    assert one is not None and one.number == 0


def test_what_a_report_does_not_have_is_told(measured_files: tuple[Path, Path, str], tmp_path: Path) -> None:
    report = copy.deepcopy(reports(measured_files[1])[0])
    report["about"]["limits"] = None
    for test in report["tests"]:
        test["spans"]["rows"], test["memory"]["over_time"]["rows"] = [], []
    file, _ = merged(tmp_path, [report])
    page = Page(file)
    for said in ("leave --no-probe out", "no samples", "measure with --spans"):
        assert said in page.text
    assert not [names for _, names in page.elements if "data-figure" in names]
    assert not page.scripts, "no chart, no library"
    report["about"] = {}
    del report["bundle"]["model"]
    page = Page(merged(tmp_path, [report])[0])
    assert page.tables[0][1][0] == report["bundle"]["digest"][:12]
    report = copy.deepcopy(reports(measured_files[1])[0])
    report["about"]["costs"] = None
    assert "what its passes compute" in Page(merged(tmp_path, [report])[0]).text
    report = copy.deepcopy(reports(measured_files[1])[0])
    report["about"]["engine"]["on_processor"] = False
    assert "this engine computes elsewhere" in Page(merged(tmp_path, [report])[0]).text


def test_what_a_strangers_report_says_is_text(measured_files: tuple[Path, Path, str], tmp_path: Path) -> None:
    clean, other = copy.deepcopy(reports(measured_files[1]))
    file, _ = merged(tmp_path, [clean, other])
    usual = Page(file)
    evil = "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\x1b[2J"
    link = "<a href='http://evil.example'>x</a>"
    other["bundle"]["model"] |= {"name": evil, "preset": evil}
    other["about"]["case"]["settings"] = {evil: evil}
    other["machine"] |= {"device": evil, "processor": link, "system": evil}
    other["about"]["date"] = evil
    for test in other["tests"]:
        test["spans"]["rows"] = [[k, f"{link}{n}", b, e] for k, n, b, e in test["spans"]["rows"]]
    file, _ = merged(tmp_path, [clean, other])
    page = Page(file)
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in usual.elements}
    assert len(page.scripts) == len(usual.scripts)
    assert not [(tag, names) for tag, names in page.elements if REFERRING & set(names)]
    assert "<script>alert(1)</script>" in page.text and "\x1b" not in file.read_text(encoding="utf-8")
    (figures,) = [text for names, text in page.scripts if names.get("id") == "figures"]
    assert "<" not in figures, "nothing in them ends their script"
    shown = json.dumps(page.figures)
    assert "&lt;" in shown, "plotly reads tags in what it shows"
    assert not re.search(r"<(?!br>|extra>|/extra>)", shown.encode().decode("unicode_escape"))


def test_a_roofline_that_cannot_be_drawn_is_one_line(
    measured_files: tuple[Path, Path, str], tmp_path: Path
) -> None:
    report = copy.deepcopy(reports(measured_files[1])[0])
    report["about"]["limits"] |= {"memory_bytes_per_second": 1e-320}
    _, done = merged(tmp_path, [report], code=2)
    assert "lacks what charts show" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("limit", [-1e9, "fast", True, [1], 1e300])
def test_limits_that_are_no_rates_are_one_line(
    measured_files: tuple[Path, Path, str], tmp_path: Path, limit: object
) -> None:
    report = copy.deepcopy(reports(measured_files[1])[0])
    report["about"]["limits"] |= {"memory_bytes_per_second": limit}
    _, done = merged(tmp_path, [report], code=2)
    assert "limits" in done.stderr and "damaged" in done.stderr and done.stderr.count("\n") == 1


def test_a_page_takes_the_place_of_pages_alone(
    measured_files: tuple[Path, Path, str], tmp_path: Path
) -> None:
    report, page = tmp_path / "report", tmp_path / "page.html"
    report.write_bytes(measured_files[1].read_bytes())
    done = run("bench", "--merge", report, "--html", report, code=2)
    assert f"{report}: is there, and is no page of edgekit" in done.stderr
    assert report.read_bytes() == measured_files[1].read_bytes()
    done = run("plan", "tiny-gemma", "--device", "mac-m4-16-512", "--html", os.devnull, code=2)
    assert "is no regular file" in done.stderr
    page.touch()
    for _ in range(2):
        run("bench", "--merge", report, "--html", page)
    assert page.stat().st_size > 1e6


def test_a_page_of_bench_needs_no_framework() -> None:
    code = "import sys, edgekit.tools.html.bench_page; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    "changes",
    [
        {"spans": {"columns": ["kind", "name"], "rows": [["use", "x"]]}},
        {"spans": {"columns": ["kind", "name", "begun", "ended"], "rows": [["jump", "x", 0, 9]]}},
        {"spans": {"columns": ["kind", "name", "begun", "ended"], "rows": [["use", "x", "soon", 9]]}},
        {"spans": 3},
        {"memory": {"peak_anonymous": 1, "peak_file": 1, "over_time": {"columns": [], "rows": [[1]]}}},
    ],
)
def test_a_damaged_report_is_one_line(
    measured_files: tuple[Path, Path, str], tmp_path: Path, changes: dict[str, Any]
) -> None:
    report = copy.deepcopy(reports(measured_files[1])[0])
    for test in report["tests"]:
        test |= changes
    page, done = merged(tmp_path, [report], code=2)
    assert "lacks what charts show" in done.stderr and done.stderr.count("\n") == 1
    assert not page.exists()


def test_without_the_package_nothing_is_measured(
    shipped_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("plotly", "edgekit.tools.html"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    started = list[Any]()
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **_: started.append(words))
    page = tmp_path / "page.html"
    for words in (
        ("bench", shipped_bundle("tiny-gemma", "native")),
        ("plan", "llada-8b", "--compare"),
    ):
        done = run(*words, "--html", page, code=2)
        assert done.stderr.count("\n") == 1 and "pip install 'edgekit[report]'" in done.stderr
    assert not started and not page.exists()


def test_a_file_without_a_folder_is_refused_before_anything(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "page.html"
    for words in (("bench", "--merge", "no-such-file"), ("plan", "no-such-model")):
        assert "there is no folder" in run(*words, "--html", nowhere, code=2).stderr
    assert "--html is for plans" in run("plan", "--list", "--html", tmp_path / "page.html", code=2).stderr


def test_what_could_not_be_measured_is_on_the_page(
    shipped_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.touch()
    run(
        "bench", shipped_bundle("tiny-gemma", "native"), "-r", 1, "--warmups", 0, "--forwards", 1,
        "--no-probe", "--memory", "1MB,all", "--html", page, code=1,
    )  # fmt: skip
    found = Page(page)
    assert "memory 1 MB: " in found.text and len(found.tables[0]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_titles_tell_rows_apart(measured_files: tuple[Path, Path, str]) -> None:
    first, second = (rows.row(report) for report in reports(measured_files[1]))
    assert tables.titles([first]) == ["tiny-gemma"]
    assert tables.titles([first, second]) == ["memory 200 MB, 0 B resident", "memory 200 MB"]
    assert tables.titles([first, first]) == ["tiny-gemma (1)", "tiny-gemma (2)"]
    other = {**second, "model": "other"}
    assert tables.titles([first, other]) == [
        "tiny-gemma, memory 200 MB, 0 B resident",
        "other, memory 200 MB",
    ]


# ------------------------------------------------------------------ of plan


def test_one_device_is_shown_with_its_step_and_its_sources(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    words = ("--device", "pixel-9-pro", "--steps", "8,16", "--memory", "2GB", "--html", file)
    run("plan", "llada-8b", *words)
    page, device = Page(file), devices()["pixel-9-pro"]
    with planned(configuration("llada-8b"), Scheme("mixed4")) as model:
        step = predict(model, replace(of_device(device), budget=2_000_000_000), Request())
    assert page.tables[0][1][0] == device.name
    for name in ("flash_read_gbps", "compute_tflops_fp16"):
        assert device.figures[name].source in page.text
    figures = page.figures
    compute, read = (trace(figures["Reads and products"], name) for name in ("compute", "read"))
    ends = [base + long for base, long in zip(compute["base"], compute["x"], strict=True)]
    assert max(ends) == pytest.approx(step.seconds, rel=1e-4)
    assert sum(read["x"]) > 0.9 * min(sum(compute["x"]), sum(read["x"]))
    split = figures["Where the time goes"]["data"]
    assert sum(each["x"][2] or 0 for each in split) == pytest.approx(step.seconds)
    assert sum(each["x"][1] or 0 for each in split) == pytest.approx(step.compute_seconds)
    assert trace(figures["Where the time goes"], "read")["x"] == [step.read_seconds, None, None]
    line, marks = figures["Tokens a second"]["data"]
    assert marks["x"] == [8, 16] and marks["y"] == [step.tokens_per_second(8), step.tokens_per_second(16)]
    assert line["x"] == list(range(1, step.canvas_tokens + 1))


def test_devices_are_shown_beside_each_other(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    printed = run("plan", "llada-8b", "--compare", "--json", "--steps", "8", "--html", file).stdout
    page, found = Page(file), json.loads(printed)["plans"]
    assert [row[0] for row in page.tables[0][1:]] == [each["name"] for each in found]
    bars = trace(page.figures["Tokens a second"], "8 steps")
    assert bars["x"] == [each["tokens_per_second"]["8"] for each in found if each["fits"] != "no"]
    assert len([tag for tag, _ in page.elements if tag == "details"]) == len(found)
    for device in devices().values():
        assert device.figures["flash_read_gbps"].source in page.text
    run("plan", "llada-8b", "--compare", "--memory", "1MB", "--html", file)
    assert "None of them has the memory" in Page(file).text


def test_a_model_in_memory_has_nothing_to_read(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    run("plan", "tiny-llada", "--device", "pixel-9-pro", "--html", file)
    page = Page(file)
    assert "Nothing is read: all weights are in memory" in page.text
    assert [each["name"] for each in page.figures["Reads and products"]["data"]] == ["compute"]
    run("plan", "llada-8b", "--device", "pixel-9-pro", "--memory", "1MB", "--html", file)
    page = Page(file)
    assert "the least is" in page.text and not page.scripts


def test_what_reports_measured_stands_beside_what_is_predicted(
    measured_files: tuple[Path, Path, str], tmp_path: Path
) -> None:
    """Of machines with one name, each with its own."""
    file, given = tmp_path / "page.html", reports(measured_files[1])
    given[0]["session"]["resident_bytes"] = None
    source = tmp_path / "reports.jsonl"
    source.write_text("".join(json.dumps(report) + "\n" for report in given))
    run("plan", "tiny-gemma", "--bench", source, "--html", file)
    shown = trace(Page(file).figures["Seconds of a step"], "measured, a step")["x"]
    assert shown == pytest.approx([rows.row(report)["forward_ms"] / 1000 for report in given])


# ------------------------------------------------------------------ charts


def test_spans_that_follow_each_other_are_one() -> None:
    def spans(long: float) -> list[charts.Bar]:
        several = [charts.Bar(0, "read", at, at + long, f"e{at}") for at in range(5)]
        return [*several, charts.Bar(1, "read", 0, 1, "x"), charts.Bar(0, "compute", 0, 1, "x")]

    assert len(charts.merged(spans(0.98), 0.01)) == 7, "gaps that are seen"
    assert len(charts.merged(spans(0.9), 0.11)) == 7, "too little of it would be reads"
    joined = charts.merged(spans(0.98), 0.03)
    assert len(joined) == 3
    (first,) = [bar for bar in joined if (bar.lane, bar.kind) == (0, "read")]
    assert (first.begun, first.ended, first.name) == (0, 4.98, "e0 ...")


def test_waits_for_experts_are_as_long_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    run("plan", "diffusion-gemma-26b", "--device", "iphone-17-pro-256", "--html", file)
    with planned(configuration("diffusion-gemma-26b"), Scheme("mixed4")) as model:
        step = predict(model, of_device(devices()["iphone-17-pro-256"]), Request())
    figure = Page(file).figures["Reads and products"]
    assert step.waiting_seconds > step.compute_seconds > 0 and len(figure["data"][0]["x"]) < 100
    for name, seconds in (("wait", step.waiting_seconds), ("compute", step.compute_seconds)):
        assert sum(trace(figure, name)["x"]) == pytest.approx(seconds, rel=0.02)


def test_long_names_are_cut_between_words() -> None:
    name = "Jetson Orin Nano Super developer kit, 8 GB, NVMe on PCIe Gen3 x4"
    chart = charts.bars("t", "", "s", [name, "x" * 80, "short name"], {"a": [1.0, 2.0, 3.0]})
    labels = json.loads(chart.figure)["layout"]["yaxis"]["ticktext"]
    long, word, short = (label.replace("<br>", " ") for label in labels)
    assert long == "Jetson Orin Nano Super developer ... on PCIe Gen3 x4"
    assert word.count("x") > 40 and short == "short name"


def test_dense_models_are_not_said_to_have_experts(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    for model, experts in (("llada-8b", False), ("diffusion-gemma-26b", True)):
        run("plan", model, "--device", "iphone-17-pro-256", "--memory", "3GB", "--html", file)
        assert (" of experts" in Page(file).text) == experts


def test_waits_for_experts_are_told_where_there_are_some(
    measured_files: tuple[Path, Path, str], tmp_path: Path
) -> None:
    report = copy.deepcopy(reports(measured_files[1])[0])
    told = "A layer waits for its streamed experts"
    page, _ = merged(tmp_path, [report])
    assert told in Page(page).text
    for test in report["tests"]:
        for row in test["spans"]["rows"]:
            row[1] = "head.0" if ".experts" in row[1] else row[1]
    page, _ = merged(tmp_path, [report])
    assert told not in Page(page).text, "tiles of the vocabulary are none"


def test_axes_have_one_name_for_seconds(measured_files: tuple[Path, Path, str], tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    run("plan", "llada-8b", "--device", "iphone-17-pro-256", "--memory", "2GB", "--html", file)
    for page in (Page(file), Page(measured_files[0])):
        for figure in page.figures.values():
            for axis in ("xaxis", "yaxis"):
                assert figure["layout"][axis]["title"]["text"] != "seconds"


def test_more_steps_than_a_canvas_takes_are_told(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    run("plan", "nemotron-3b", "--compare", "--steps", "8,48,64", "--html", file)
    page = Page(file)
    assert "32 steps in place of 48, 64" in page.text
    assert {each["name"] for each in page.figures["Tokens a second"]["data"]} == {"8 steps", "32 steps"}


def test_a_chart_of_many_lanes_labels_some() -> None:
    lanes = [f"layers.{number}" for number in range(300)]
    bars = [charts.Bar(number, "read", number, number + 1, name) for number, name in enumerate(lanes)]
    chart = charts.timeline("t", "", lanes, bars, {"read": theme.BLUE}, 300.0)
    labelled = json.loads(chart.figure)["layout"]["yaxis"]["ticktext"]
    assert 100 <= len(labelled) < 300 and chart.height < 2000


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_draws_every_chart(measured_files: tuple[Path, Path, str], tmp_path: Path) -> None:
    """All of the page within the window, since charts are drawn when they are near it."""
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
         f"--user-data-dir={tmp_path / 'home'}", "--virtual-time-budget=30000", "--window-size=1280,9000",
         "--enable-logging=stderr", "--dump-dom", measured_files[0].as_uri()],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    charts_there = len([names for _, names in Page(measured_files[0]).elements if "data-figure" in names])
    drawn = re.findall(r'<div class="chart[^"]*js-plotly-plot"', done.stdout)
    assert len(drawn) == charts_there == 7
    assert not re.search(r"CONSOLE.*(Error|Refused)", done.stderr), done.stderr


def test_a_page_of_text_is_whole() -> None:
    data = render("a <b>", [Section("s & t", ["x < y", Table(["n", "v"], [["<td>", "1"]])])]).decode()
    assert "<title>a &lt;b&gt;</title>" in data and "x &lt; y" in data
    assert "<td class=left>&lt;td&gt;</td><td>1</td>" in data and "<script" not in data
