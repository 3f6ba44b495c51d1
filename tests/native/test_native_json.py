"""The native core's JSON reader: the values that Python's reader gives, and the same refusals."""

from __future__ import annotations

import json
import locale
import random
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import native_parsing as native
from support.native_parsing import PIECES, as_native, damaged, same

from edgekit.flashload.errors import MalformedFile
from edgekit.flashload.strictjson import loads_strict

SEEDS = st.integers(0, 2**32)


def check_json(text: bytes) -> None:
    try:
        expected = loads_strict(text, "text")
    except MalformedFile as error:
        try:
            found = native.parse_json(text)
        except native.Refused as refused:
            assert refused.status == native.MALFORMED
        else:  # the core refuses such a number where one is asked for
            assert "is too large" in str(error) and has_too_large(found), text
    else:
        assert same(native.parse_json(text), as_native(expected)), text


def has_too_large(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_too_large, value.values()))
    return any(map(has_too_large, value)) if isinstance(value, list) else bool(value == "too large")


ANY_TEXT = st.text(st.characters(codec=None))  # lone surrogates too
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**65), 2**65) | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(ANY_TEXT, inner, max_size=12),
    max_leaves=40,
)


@given(DOCUMENTS, st.booleans(), st.sampled_from([None, 0, 3]))
def test_documents_parse_as_python_parses_them(value: Any, escape: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=escape, indent=indent)
    check_json(text.encode("utf-8", "surrogatepass"))


@settings(max_examples=40)
@given(DOCUMENTS, st.booleans(), SEEDS)
def test_damaged_documents_are_refused_or_parsed_as_python_does(value: Any, escape: bool, seed: int) -> None:
    rng = random.Random(seed)
    text = json.dumps(value, ensure_ascii=escape).encode("utf-8", "surrogatepass")
    for _ in range(20):
        check_json(damaged(text, rng))


def test_pieces_of_json_are_refused_or_parsed_as_python_does(rng: np.random.Generator) -> None:
    for count in rng.integers(1, 10, 2000):
        text = b"".join(PIECES[i] for i in rng.integers(0, len(PIECES), count))
        check_json(text)
        check_json(b'"' + text + b'"')


def test_numbers_are_those_of_python(rng: np.random.Generator) -> None:
    def digits(most: int) -> str:
        return "".join(str(digit) for digit in rng.integers(0, 10, rng.integers(1, most)))

    for _ in range(1000):
        text = ("" if rng.integers(2) else "-") + digits(26)
        text += "." + digits(26) if rng.integers(2) else ""
        text += str(rng.choice(["e", "E", "e-", "E+"])) + digits(5) if rng.integers(2) else ""
        check_json(text.encode())
    for bits in rng.integers(0, 2**64, 1000, dtype=np.uint64):  # every magnitude, and NaN
        check_json(repr(float(bits.view(np.float64))).encode())


@pytest.mark.parametrize(
    "text",
    [
        "9" * 4300, "9" * 4301, "-" + "9" * 4300, "-" + "9" * 4301, "0." + "9" * 5000, "1e400", "-1e400",
        "1" + "0" * 400 + ".0", "1e-400", "2.2250738585072011e-308", "4.9e-324", "2.4e-324", "-0", "-0.0",
        "1.7976931348623157e308", "1.7976931348623159e308", "9007199254740993", "9007199254740993.0",
        "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
        "NaN", "Infinity", "-Infinity", "-NaN", "01", "-", "1.", ".1", "1e", "0x10", "1_000", "",
    ],
)  # fmt: skip
def test_extreme_numbers(text: str) -> None:
    check_json(text.encode())
    check_json(b"[" + text.encode() + b"]")


@pytest.mark.parametrize("text", ["1e999", "-1e999", "9" * 309, "1." + "9" * 400 + "e308"])
def test_numbers_past_a_float_are_refused(text: str) -> None:
    for whole in (text, f'{{"a": [{text}]}}'):
        with pytest.raises(MalformedFile) as refused:
            loads_strict(whole.encode(), "text")
        (line,) = str(refused.value).splitlines()
        shown = text if len(text) <= 20 else text[:20] + "..."
        assert line == f"text: the number {shown} is too large; export the file again"


def test_a_comma_as_decimal_point_changes_nothing() -> None:
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        for name in ("de_DE.UTF-8", "fr_FR.UTF-8", ""):
            try:
                locale.setlocale(locale.LC_NUMERIC, name)
            except locale.Error:
                continue
            assert native.parse_json(b"[1.5]") == [1.5]
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_deep_nesting_is_refused_without_a_crash(opening: bytes) -> None:
    closing = opening.replace(b"[", b"]").replace(b'{"a":', b"}")[::-1]
    per_level = opening.count(b"[") + opening.count(b"{")

    def nested(count: int) -> bytes:
        return opening * count + b"1" + closing * count

    check_json(nested(100))
    native.parse_json(nested(500 // per_level), value=False)
    for count in (500 // per_level + 1, 100_000):
        with pytest.raises(native.Refused, match="nested too deeply"):
            native.parse_json(nested(count))
    check_json(opening * 100_000)


@given(st.lists(ANY_TEXT, min_size=1, max_size=30, unique=True), st.data())
def test_names_that_appear_twice_are_refused(names: list[str], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(names))
    names.insert(data.draw(st.integers(0, len(names))), again)
    body = ", ".join(f"{json.dumps(name)}: 0" for name in names)
    with pytest.raises(native.Refused, match="appears twice"):
        native.parse_json(f"[{{{body}}}]".encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1,\n "b" 2}', "text: not valid JSON (a colon is expected: line 2, byte 6); export"),
        (b'{"a\\n": 1, "a\\u000a": 2}', r"text: the name 'a\x0a' appears twice"),
        (b"\xff", "bytes that are not UTF-8: line 1, byte 1"),
    ],
)
def test_messages_say_what_is_wrong_and_where(text: bytes, message: str) -> None:
    with pytest.raises(native.Refused) as refused:
        native.parse_json(text)
    assert message in str(refused.value)


def test_what_can_be_printed_is_what_python_prints() -> None:
    for code_point in range(0x110000):
        letter = chr(code_point)
        # Python refuses what its Unicode version has not assigned; a later one may have.
        if letter.isprintable() or unicodedata.category(letter) != "Cn":
            assert native.is_printable(code_point) == letter.isprintable(), hex(code_point)
