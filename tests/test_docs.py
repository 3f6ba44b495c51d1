"""docs/code.md tells the ways through the code as they are; what pages for developers name is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from click.testing import CliRunner
from support.checkpoints import write_checkpoint
from test_style import FOLDERS as FOLDERS_OF_EDGEKIT

import edgekit
from edgekit.flashload.sizes import parse_size
from edgekit.runtime.tokenizer.canvas_text import OPEN, SPECIAL
from edgekit.tools.cli import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
STEP = re.compile(r"`([\w/]+\.(?:py|cpp))` `([\w.]+)`")


def way(title: str) -> list[tuple[str, str]]:
    """Files and functions of a section, in its order."""
    section = TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return STEP.findall(section)


GENERATE, EXPORT = way("From `generate` to a kernel"), way("From `export MODEL` to the written file")


@contextmanager
def called(order: dict[tuple[str, str], int]) -> Iterator[None]:
    """Notes when functions of the product are called first, by file and qualified name."""

    seen: dict[int, CodeType] = {}  # which live on, so that no other has their number

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or id(frame.f_code) in seen:
            return
        seen[id(frame.f_code)] = frame.f_code
        file = Path(frame.f_code.co_filename).resolve()
        if file.is_relative_to(ROOT):
            name = file.relative_to(ROOT).as_posix(), frame.f_code.co_qualname
            order.setdefault(name, len(order))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def check(steps: list[tuple[str, str]], order: dict[tuple[str, str], int]) -> None:
    places = {step: order.get(step) for step in steps}
    assert not [step for step, place in places.items() if place is None], "is not called"
    assert list(places) == sorted(places, key=lambda step: places[step] or 0), "is called in another order"


def test_each_file_stands_once() -> None:
    for steps in (GENERATE, EXPORT):
        files = [file for file, _ in steps]
        assert len(files) > 10 and len(files) == len(set(files))
    for file, function in GENERATE + EXPORT:
        assert re.search(rf"\b{function.split('.')[-1]}\b", (ROOT / file).read_text(encoding="utf-8")), file


def test_generate_goes_this_way(shipped_bundle: Callable[..., Path]) -> None:
    order: dict[tuple[str, str], int] = {}
    bundle = shipped_bundle("tiny-llada", "native")
    with called(order):
        edgekit.load(bundle).generate("Copy this: cat", max_new_tokens=4)
    check([step for step in GENERATE if step[0].endswith(".py")], order)


def test_export_goes_this_way(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    order: dict[tuple[str, str], int] = {}
    with called(order):
        main(
            ["export", str(tmp_path / "checkpoint"), "--target", "host", "-o", str(tmp_path / "bundle")],
            standalone_mode=False,
        )
    check(EXPORT, order)


# --- pages for developers -----------------------------------------------------------------------------------

PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"])
#: Of files that are to be written by whoever follows the page.
EXAMPLE = re.compile(r"\bmy_")
FOLDERS = {*FOLDERS_OF_EDGEKIT, "edgekit", "tests", "docs", ".ci", ".github"}


def is_path(word: str) -> bool:
    """Whether a word can only be a path of the repository: it begins with a folder of its root."""
    return re.fullmatch(r"[\w./-]+", word) is not None and word.partition("/")[0] in FOLDERS and "/" in word


def paths(text: str) -> set[str]:
    """Paths of the repository in backticks, in commands, and in diffs, where added ones are examples."""
    words = [word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()]
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        lines = block.splitlines()
        words += [line.strip() for line in lines if kind == "diff" and line.startswith(" ")]
        words += [word for line in lines if kind == "console" for word in line.split()]
    return {word for word in words if is_path(word) and not EXAMPLE.search(word)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_pages_exist(page: Path) -> None:
    missing = sorted(path for path in paths(page.read_text(encoding="utf-8")) if not (ROOT / path).exists())
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_behind_a_file_are_in_it(page: Path) -> None:
    """`file.py` (`NAME`, ...), `NAME` (`file.py`), and `file.py`, `test_name`: they stand in the file."""
    text, file = " ".join(page.read_text(encoding="utf-8").split()), r"`([\w./-]+/[\w.-]+\.\w+)`"
    named = re.findall(rf"{file}, `(test_\w+)`", text)
    named += [(path, name) for name, path in re.findall(rf"`(\w+)` \({file}\)", text)]
    for path, inside in re.findall(rf"{file} \(([^()]*)\)", text):
        named += [(path, name) for name in re.findall(r"`(\w+)`", inside)]
    for path, name in named:
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8")), (path, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_goals_of_make_in_pages_exist(page: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    for module in re.findall(r"python -m edgekit\.([\w.]+\w)", text):
        file = ROOT / module.replace(".", "/")
        assert file.with_suffix(".py").is_file() or (file / "__main__.py").is_file(), module
    goals = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", text)) <= set(goals)


def test_pages_for_developers_name_what_is_checked() -> None:
    """The tests above look at something in each of them."""
    for name, least in {
        "docs/architecture.md": 40, "docs/add-a-family.md": 25, "docs/add-a-backend.md": 40,
        "docs/add-a-procedure.md": 30, "docs/release.md": 5, "CONTRIBUTING.md": 15, "SECURITY.md": 12,
    }.items():  # fmt: skip
        assert len(paths((ROOT / name).read_text(encoding="utf-8"))) >= least, name


def test_the_architecture_lists_the_contracts_of_imports() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", text.split("## Contracts of imports\n", 1)[1], re.MULTILINE)[1:]
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    assert len(rows) == len(contracts) > 5
    for row, contract in zip(rows, contracts, strict=True):
        assert contract["name"].startswith(row), row


# --- the front page -----------------------------------------------------------------------------------------

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_front_page_is_one_and_names_every_page() -> None:
    assert len(README.splitlines()) < 260
    named = set(re.findall(r"`((?:docs/)?[\w-]+\.md)`", README))
    assert named == {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert not [path for path in paths(README) if not (ROOT / path).exists()]


def test_the_front_page_answers_in_a_few_lines(
    shipped_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python runs; in other languages it has lines of the pages with the whole programs."""
    (tmp_path / "llada").symlink_to(shipped_bundle("tiny-llada", "native"), target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    said = subprocess.run(
        [sys.executable, "-c", code.replace("Why is the sky blue?", "Copy this: red 7")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout, said.stderr) == (0, "red 7", "")
    for language, page in {"c": "c", "swift": "c", "java": "java"}.items():
        whole = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        (shown,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
        assert 3 <= len(shown.splitlines()) <= 5
        assert not [line for line in shown.splitlines() if line.strip() not in whole]


def test_the_canvas_of_the_front_page_resolves_as_it_is_shown(shipped_bundle: Callable[..., Path]) -> None:
    (shown,) = re.findall(r"```\n(1  .*?)```", README, re.DOTALL)
    found = []
    with edgekit.load(shipped_bundle("tiny-llada", "native")) as model:
        prompt = "Write as JSON: name: Ada; age: 31; city: Rome"
        for event in model.events(prompt, steps=8, max_new_tokens=32):
            if isinstance(event, edgekit.Draft):
                seen = (OPEN if i == model.mask_id else model.decode([i]) or SPECIAL for i in event.ids)
                found.append(f"{event.step}  {''.join(seen)}")
    assert found == shown.splitlines()


def test_the_signs_of_a_canvas_are_everywhere_those_of_the_front_page() -> None:
    said = README.split("## What to expect", 1)[0]
    assert f"`{OPEN}` is a place that is open, `{SPECIAL}` a token without a text" in said
    java = (ROOT / "runtime" / "java" / "src" / "io" / "edgekit" / "CanvasText.java").read_text("utf-8")
    swift = (ROOT / "runtime" / "swift" / "Sources" / "EdgeKit" / "CanvasText.swift").read_text("utf-8")
    for name, sign in {"open": OPEN, "special": SPECIAL}.items():
        assert f'String {name.upper()} = "{sign}"' in java and f'static let {name} = "{sign}"' in swift


def test_the_plans_of_the_front_page_are_those_of_the_command() -> None:
    done = CliRunner().invoke(main, ["plan", "diffusion-gemma-26b", "--compare", "--json"])
    plans = {plan["name"]: plan for plan in json.loads(done.stdout)["plans"]}
    table = README.split("| device | memory |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    assert len(table) == 10
    for name, memory, read, seconds, limit, *speeds in (
        [cell.strip() for cell in row.strip("|").split("|")] for row in table
    ):
        plan = plans[name]
        assert size_of(memory) == pytest.approx(plan["memory_bytes"], rel=0.006)
        assert limit == plan["limit"] and (read == "nothing") == (plan["read_bytes"] == 0)
        assert read == "nothing" or size_of(read) == pytest.approx(plan["read_bytes"], rel=0.006)
        number, unit = seconds.split()
        assert float(number) / (1000 if unit == "ms" else 1) == pytest.approx(plan["seconds"], rel=0.006)
        expected = list(plan["tokens_per_second"].values())
        assert list(map(float, speeds)) == [pytest.approx(each, rel=0.006) for each in expected]


def size_of(text: str) -> int:
    return parse_size(text.replace(" ", ""))
