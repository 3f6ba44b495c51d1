"""The display of the command line: sizes, text that a terminal would obey, tables, and the canvas."""

from __future__ import annotations

import contextlib
import io
import re
import signal
import unicodedata
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from edgekit import Answer, Draft, Statistics
from edgekit.flashload.sizes import exact_size, parse_size, size, size_up
from edgekit.runtime.errors import RunsOnProcessor
from edgekit.runtime.tokenizer import Tokenizer
from edgekit.runtime.tokenizer.canvas_text import OPEN, SPECIAL
from edgekit.tools.answer_display import remark, summary
from edgekit.tools.console import Steps, grouped, remarks, table
from edgekit.tools.terminal_text import visible
from edgekit.tools.watch import Canvas


def test_what_the_runtime_warns_of_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    def twice() -> None:
        for _ in range(2):
            warnings.warn("program a: left to the processor", RunsOnProcessor, stacklevel=1)

    with remarks():
        twice()
    assert capsys.readouterr().err == "note: program a: left to the processor\n"
    with pytest.warns(UserWarning, match="another"), remarks():
        warnings.warn("another", UserWarning, stacklevel=1)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0), ("1GB", 10**9), ("512MB", 512 * 10**6), ("512 mb", 512 * 10**6), ("1.5GiB", 3 << 29),
        ("800_000_000", 800_000_000), ("3kB", 3000), ("0.5KiB", 512), ("7B", 7), ("2TB", 2 * 10**12),
        ("1e9", 10**9), ("1.5E9", 1_500_000_000), ("1.25e+3 MB", 1_250_000_000), ("1e-3GB", 10**6),
        ("9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_sizes_are_parsed(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *[(t, "is not understood; write 1GB, 512MB") for t in (
            "", "GB", "1GiB2", "-1", "e9", "1e", "1e9.5", "1,5GB", "1__0", "_1", ".5GB", "1 G B", "٣GB",
            "1parsec",
        )],
        ("1G", "did you mean 1GB?"),
        ("2.5g", "did you mean 2.5GB?"),
        ("1GiBb", "did you mean 1GiB?"),
        ("1GBps", "did you mean 1GB?"),
        ("999PB", "write 1GB, 512MB or 1.5GiB"),
        ("10", "has no unit: 10 bytes? write 10GB or 10MB"),
        ("1.5", "has no unit: 1.5 bytes? write 1.5GB or 1.5MB"),
        ("999_999", "has no unit"),
        ("1.5B", "only whole bytes"),
        ("1234567.5", "only whole bytes"),
        ("1.23456789e6", "only whole bytes"),
        ("1e3", "has no unit"),
        ("1e999", "beyond what any computer has"),
        ("9223372036854775808", "beyond what any computer has"),
    ],
)  # fmt: skip
def test_other_sizes_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_size(text)


@given(st.integers(0, 10**15))
def test_what_is_needed_is_never_rounded_down_and_what_was_given_not_at_all(count: int) -> None:
    assert count <= parse_size(size_up(count)) <= 1.01 * count + 1
    assert count == pytest.approx(parse_size(exact_size(count)), rel=1e-8)


@given(st.integers(0, 10**15))
def test_a_size_is_shown_with_three_digits(count: int) -> None:
    shown = size(count)
    number, unit = shown.split(" ")
    assert parse_size(shown) == pytest.approx(count, rel=0.006)
    assert len(number.replace(".", "")) <= 4 and unit in ("B", "kB", "MB", "GB", "TB")


@given(st.text())
def test_visible_text_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = visible(text, keep="\n")
    bad = [
        c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\u200d"
    ]
    assert not bad
    if text.isprintable():
        assert shown == text


def test_visible_names_what_it_replaces() -> None:
    assert visible("a\x1b[31mb\x7f\x9b\u202e\n") == "a␛[31mb␡<U+009B><U+202E>␊"
    assert visible("a\nb", keep="\n") == "a\nb"


def test_a_table_without_a_terminal_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    name = "layers.0." + "x" * 300
    table(["name", "bits"], [[name, "4"], ["[b]short", "16"]])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["name", "bits"], [name, "4"], ["[b]short", "16"]]
    assert len({len(line) for line in lines}) == 1


def test_notes_of_many_tensors_are_one_line() -> None:
    notes = [
        "the tower is left out: text only",
        "layers.0.up: groups of 16",
        "layers.1.up: groups of 16",
        "other",
    ]
    assert grouped(notes) == [
        "the tower is left out: text only", "layers.0.up and 1 more: groups of 16", "other",
    ]  # fmt: skip


def test_one_token_is_not_tokens() -> None:
    said = summary(Statistics(1, 1, 0, 1, 1, 1, 0, 1, "eos", 1.0, 1.0, 0.0, 0, 0, 0, 0, None))
    assert said.startswith("1 token in 1 denoising step, ")


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [(" \n", "eos", "ended its answer at once"), ("", "length", "with blanks"), ("68", "eos", "")],
)
def test_an_empty_answer_is_remarked_upon(text: str, reason: Any, said: str) -> None:
    statistics = Statistics(1, 1, 0, 1, 1, 1, 0, 1, reason, 1.0, 1.0, 0.0, 0, 0, 0, 0, None)
    found = remark(Answer(text, (6,), (1,), statistics))
    assert said in found and bool(found) == bool(said)


# --- the canvas ---------------------------------------------------------------------------------------------

TEXT = "Größe, 你好 🙂 and été\nthe  quick fox"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    from support.checkpoints import write_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, "llada", 384)
    return Tokenizer(folder)


def draft(
    ids: list[int],
    accepted: list[int],
    *,
    start: int = 0,
    step: int = 1,
    canvas: int = 0,
    canvases: int = 1,
    read: int = 0,
) -> Draft:
    """The state after a step of 8."""
    now = tuple(i in accepted for i in range(len(ids)))
    return Draft(canvas, canvases, step, 8, start, tuple(ids), now, read)


def render(canvas: Canvas, width: int = 60, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(canvas.render(console))
    return capture.get().splitlines()


def test_tokens_read_as_in_the_whole_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special=False)
    canvas = Canvas("tiny", tokenizer.canvas_text(tokenizer.token_id("<|mdm_mask|>")), "canvas")
    canvas.draft(draft(ids, []))
    assert canvas.text().plain == TEXT


def test_masks_are_dots_and_special_tokens_have_a_sign(tokenizer: Tokenizer) -> None:
    mask, end = tokenizer.token_id("<|mdm_mask|>"), tokenizer.token_id("<|endoftext|>")
    assert mask is not None and end is not None
    (a,) = tokenizer.encode("a", add_special=False)
    canvas = Canvas("tiny", tokenizer.canvas_text(mask), "canvas")
    canvas.draft(draft([a, mask, mask, a, end, 100_000], [3]))
    text = canvas.text()
    assert text.plain == f"a{OPEN}{OPEN}a {SPECIAL}{SPECIAL}"
    shown = [(text.plain[s.start : s.end], str(s.style)) for s in text.spans]
    assert shown == [
        ("a", "bold"), (OPEN * 2, "dim"), ("a", "bold green"), (" ", "bold"), (SPECIAL * 2, "dim"),
    ]  # fmt: skip
    assert "67% accepted" in render(canvas)[-1]


def test_padding_does_not_tear_the_answer_apart(tokenizer: Tokenizer) -> None:
    end = tokenizer.token_id("<|endoftext|>")
    assert end is not None
    canvas = Canvas("tiny", tokenizer.canvas_text(None), "canvas")
    canvas.draft(draft(tokenizer.encode("red cat 42", add_special=False) + [end] * 120, []))
    assert "red cat 42 " in render(canvas)[1]


def test_half_a_character_takes_the_lower_state_of_its_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\u0939", add_special=False)
    assert len(ids) > 1
    canvas = Canvas("tiny", tokenizer.canvas_text(None), "canvas")
    canvas.draft(draft(ids, [0]))
    assert canvas.text().plain == "\u0939"
    assert [str(s.style) for s in canvas.text().spans] == ["dim"]


def test_a_full_guess_shows_what_was_accepted(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abcd", add_special=False)
    canvas = Canvas("tiny", tokenizer.canvas_text(None), "canvas")
    canvas.draft(draft(ids, [0], step=2, canvases=2, read=3_000_000))
    footer = render(canvas, width=80)[-1]
    assert "canvas 1/2, step 2/8 · 25% accepted · 3 MB read" in footer
    canvas.commit(ids)
    canvas.draft(draft(ids[:1], [], start=len(ids), canvas=1, canvases=2))
    assert canvas.text().plain == "abcd" + tokenizer.decode(ids[:1])


@pytest.mark.parametrize("width", [20, 40, 200])
@pytest.mark.parametrize("height", [3, 10, 50])
def test_the_panel_fits_every_terminal_and_does_not_shrink(
    tokenizer: Tokenizer, width: int, height: int
) -> None:
    canvas = Canvas("a model with a long name\x1b[2J", tokenizer.canvas_text(None), "canvas")
    heights = []
    for text in ("x", "wide 世界 \x1b[2J\r\x07 " * 30, "line\n" * 90, "x"):
        canvas.draft(draft(tokenizer.encode(text), [0], canvases=4, read=10**9))
        lines = render(canvas, width, height)
        heights.append(len(lines))
        assert len(lines) <= max(3, height - 1)
        assert all(cell_len(line) <= width for line in lines)
        assert all(line.isprintable() for line in lines)
    assert heights == sorted(heights)


def test_long_answers_show_the_place_that_changes(tokenizer: Tokenizer) -> None:
    mask = tokenizer.token_id("<|mdm_mask|>")
    assert mask is not None
    (a,) = tokenizer.encode("a", add_special=False)
    canvas = Canvas("tiny", tokenizer.canvas_text(mask), "canvas")
    ids = [mask] * 4000
    ids[10] = a
    canvas.draft(draft(ids, [10]))
    assert any("a" in line for line in render(canvas)[1:-1])


# --- progress -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["stage", "advance"])
def test_an_interrupt_that_a_library_swallowed_is_raised_at_the_next_step(step: str) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Steps("begin", quiet=True) as steps:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        if step == "stage":
            steps.stage("next", 0)
        else:
            steps.advance(1, "next")
    assert signal.getsignal(signal.SIGINT) is before


def test_quiet_progress_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Steps("begin", quiet=True) as steps:
        steps.stage("weights", 10)
        steps.advance(10, "layers.0")
        steps.note("a note")
    with Steps("begin") as steps:  # stderr is no terminal here
        steps.stage("weights", 10)
        steps.note("another\x1b[2J")
    assert capsys.readouterr() == ("", "another␛[2J\n")
