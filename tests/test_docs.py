"""docs/code.md tells the ways through the code as they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from support.checkpoints import write_checkpoint

import edgekit
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


def test_paths_of_additions_exist() -> None:
    additions = TEXT.split("## What an addition touches\n", 1)[1]
    paths = re.findall(r"^ ((?:[\w]+/)+[\w.]*)$", additions, re.MULTILINE)
    assert len(paths) > 6
    for path in paths:
        assert (ROOT / path).exists(), path
