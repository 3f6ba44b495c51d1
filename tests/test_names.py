"""Messages about a name that nobody knows."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.flashload.names import nearest, shown, unknown


@pytest.mark.parametrize(
    ("given_name", "known", "close"),
    [
        ("IOS", ("host", "mac", "ios"), "ios"),
        ("int3", ("bf16", "int8", "mixed4", "int4"), "int8 or int4"),
        ("gguf", ("native", "onnx"), ""),
        ("/retry", ("/set", "/options"), ""),
        ("/foo", ("/set", "/options"), ""),
        ("/sve", ("/set", "/save"), "/save"),
        ("--memroy", ("--memory", "--engine"), "--memory"),
        ("ggml", ("native", "mlx"), ""),
        ("", ("native", "onnx"), ""),
        (None, ("native", "onnx"), ""),
        ("x", (), ""),
    ],
)
def test_the_nearest_name(given_name: object, known: tuple[str, ...], close: str) -> None:
    assert nearest(given_name, known) == close


@pytest.mark.parametrize(("given_name", "meant"), [("macos", "mac"), ("ios17", "ios"), ("isos", "ios")])
def test_a_name_that_goes_on_is_understood(given_name: str, meant: str) -> None:
    said = unknown("target", given_name, ("host", "mac", "ios"))
    assert f"did you mean {meant}? supported: host, mac, ios" in said


def test_the_line_says_what_was_meant_and_what_there_is() -> None:
    assert unknown("engine", "natve", ("native", "onnx")) == (
        "unknown engine 'natve'; did you mean native? supported: native, onnx"
    )
    assert unknown("precision", 16, ("float16",), of="format mlx") == (
        "unknown precision 16 for format mlx; supported: float16"
    )


@given(st.text(max_size=30))
def test_any_name_gets_one_line(name: str) -> None:
    line = unknown("target", name, ("host", "mac", "ios"))
    assert line.startswith("unknown target ") and line.endswith("supported: host, mac, ios")
    assert len(line.splitlines()) == 1


class Odd:
    def __init__(self, text: str | None = None) -> None:
        self.text = text

    def __repr__(self) -> str:
        if self.text is None:
            raise RuntimeError("no words")
        return self.text


ENDLESS: list[object] = []
for _ in range(10_000):
    ENDLESS = [ENDLESS]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(10**5000, "a value of type int", id="digits"),
        ([Odd()], "a value of type list"),
        pytest.param(ENDLESS, "a value of type list", id="endless"),
        (Odd("a\nb\u2028"), r"a\nb\u2028"),
        (b"\n", r"b'\n'"),
    ],
)
def test_any_value_can_be_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_long_name_is_cut_and_costs_nothing() -> None:
    started = time.process_time()
    assert len(unknown("target", "ios" * 1_000_000, ("host", "mac", "ios"))) < 150
    assert time.process_time() - started < 5


def test_a_name_that_is_cut_short_is_meant_before_one_that_is_alike() -> None:
    known = ["steps", "temperature", "t_min", "alg", "alg_temp"]
    assert nearest("temp", known) == "temperature" and nearest("alg_", known) == "alg_temp"
    assert nearest("stepz", known) == "steps"
    assert nearest("ste", iter(known)) == "steps"
