"""The lines that `edgekit batch` reads: what they ask for, and why others ask for nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.flashload.errors import OpenFailed
from edgekit.tools.batch import lines as module
from edgekit.tools.batch.lines import Entry, Input, Line, entry_of

CHAT = [{"role": "user", "content": "Copy this: red 7"}]


def read(path: Path, data: bytes) -> list[Line]:
    path.write_bytes(data)
    with Input(path) as lines:
        found = list(lines.lines())
        assert list(lines.lines()) == found, "it is read more than once"
    return found


def entry(table: Any) -> Entry:
    data = table if isinstance(table, bytes) else json.dumps(table).encode()
    return entry_of(Line(1, 0, data))


def test_lines_are_counted_and_told_apart(tmp_path: Path) -> None:
    found = read(
        tmp_path / "in", b'\xef\xbb\xbf{"prompt": "a"}\r\n\n{"prompt": "b"}\n{"prompt": "a"}\n \n\r\n'
    )
    assert [(each.number, each.data) for each in found] == [
        (1, b'{"prompt": "a"}'), (2, b""), (3, b'{"prompt": "b"}'), (4, b'{"prompt": "a"}'),
    ]  # fmt: skip
    one, blank, two, again = (each.digest for each in found)
    assert one == again and len({one, blank, two}) == 3
    assert read(tmp_path / "in", b'{"prompt": "a"}')[0].digest == one, "with or without a line end"
    assert not read(tmp_path / "in", b"") and not read(tmp_path / "in", b"\n\n")


def test_a_line_of_any_length_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PROMPT_BYTES", 20)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 8)
    longest, longer = b'{"prompt": "12345"}', b'{"prompt": "12345678"}'
    found = read(tmp_path / "in", b"\n".join([longest, longer, longer[:-3] + b"9999" * 9, longest]))
    assert [each.data for each in found] == [longest, None, None, longest]
    assert found[1].digest != found[2].digest and found[0].digest == found[3].digest
    assert "more than 20 B" in entry_of(found[1]).error
    ended, open_ended = (read(tmp_path / "in", longer * 3 + end)[0] for end in (b"\r\n", b""))
    assert ended.digest == open_ended.digest and ended.data is None


def test_what_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path(os.devnull)):
        with pytest.raises(OpenFailed, match="is no regular file, and it is read twice"):
            Input(path)
    with pytest.raises(
        OpenFailed, match="No such file or directory.; give a file with a JSON object on each"
    ):
        Input(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"prompt": "Hi"}, Entry(None, "Hi")),
        ({"prompt": [5, 6], "id": 7}, Entry(7, [5, 6])),
        ({"messages": CHAT, "id": "a", "seed": 3, "t_max": 0.9}, Entry("a", CHAT, {"seed": 3, "t_max": 0.9})),
        ({"custom_id": "a", "prompt": "Hi", "steps": None}, Entry("a", "Hi", {"steps": None})),
        ({"id": None, "prompt": "Hi"}, Entry(None, "Hi")),
        (
            {
                "custom_id": "a",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": "x", "messages": CHAT, "max_tokens": 9, "n": 1, "stream": False, "seed": 2,
                    "stop": None,
                },
            },
            Entry("a", CHAT, {"max_new_tokens": 9, "seed": 2}),
        ),
        (
            {"custom_id": "a", "url": "https://x/v1/completions", "body": {"prompt": "Hi", "t_max": 0.5}},
            Entry("a", "Hi", {"t_max": 0.5}),
        ),
        ({"body": {"messages": CHAT, "max_completion_tokens": 5}}, Entry(None, CHAT, {"max_new_tokens": 5})),
    ],
)  # fmt: skip
def test_forms_of_a_line(table: Any, expected: Entry) -> None:
    assert entry(table) == expected


@pytest.mark.parametrize(
    ("table", "found", "said"),
    [
        (b"nope", None, "the line: not valid JSON (Expecting value"),
        (b"", None, "the line is empty; write a JSON object"),
        (b'{"prompt": "\xff"}', None, "not valid JSON ('utf-8' codec"),
        (b'{"prompt": "a", "prompt": "b"}', None, "'prompt' appears twice; write one JSON object a line"),
        (b'{"prompt": NaN}', None, "NaN is not a JSON number"),
        (b"[" * 100_000, None, "write one JSON object a line"),
        ([1], None, "the line is [1]; write an object"),
        ({"id": "a"}, "a", 'the line has no prompt; give "prompt", or "messages"'),
        ({"id": "a", "prompt": "x", "messages": CHAT}, "a", "prompt and messages; leave one out"),
        ({"id": "a", "custom_id": "b", "prompt": "x"}, None, "id and custom_id; leave one out"),
        ({"id": [1], "prompt": "x"}, None, "the id is [1]; use text or an integer"),
        ({"id": True, "prompt": "x"}, None, "the id is True"),
        ({"id": 1.5, "prompt": "x"}, None, "the id is 1.5"),
        ({"prompt": 5}, None, "prompt is 5; give text, or token ids"),
        ({"prompt": CHAT}, None, "give text, or token ids"),
        ({"messages": "Hi"}, None, "messages is 'Hi'; give a list"),
        ({"messages": ["Hi"]}, None, "messages is ['Hi']; give a list"),
        ({"custom_id": "a", "body": [1]}, "a", "body is [1]"),
        ({"custom_id": "a", "body": {}}, "a", "the body has no messages, which '/v1/chat/completions' takes"),
        ({"custom_id": "a", "url": "/v1/embeddings", "body": {}}, "a", "only those ending in /chat/"),
        ({"url": 5, "body": {}}, None, "url is 5; only those"),
        ({"method": "GET", "body": {"messages": CHAT}}, None, "method is 'GET'; only POST"),
        ({"body": {"messages": CHAT, "n": 2}}, None, "n is 2; only 1 is supported"),
        ({"body": {"messages": CHAT, "stream": True}}, None, "stream is True; only False is supported"),
        ({"body": {"messages": CHAT, "max_tokens": 2, "max_new_tokens": 3}}, None, "max_new_tokens is given"),
        ({"seed": 1, "body": {"messages": CHAT}}, None, "unknown member 'seed' for a line with a body"),
    ],
)  # fmt: skip
def test_lines_that_ask_for_nothing_say_why(table: Any, found: Any, said: str) -> None:
    wrong = entry(table)
    assert said in wrong.error and wrong.id == found and len(wrong.error.splitlines()) == 1
    assert not wrong.prompt and not wrong.settings


def test_prompts_are_as_long_as_they_are(tmp_path: Path) -> None:
    """Nothing is read ahead of the line, so a prompt with separators of other kinds is one line."""
    prompt = "a\u2028b\x85c\x0bd"
    data = json.dumps({"prompt": prompt}, ensure_ascii=False).encode()
    (found,) = read(tmp_path / "in", data)
    assert entry_of(found).prompt == prompt


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = st.sampled_from([
    "prompt", "messages", "id", "custom_id", "body", "url", "method", "seed", "role", "n", "max_tokens",
])  # fmt: skip
OURS = st.dictionaries(
    MEMBERS, JSON | st.dictionaries(MEMBERS, JSON, max_size=4) | st.just(CHAT), max_size=5
).map(lambda table: json.dumps(table).encode())


@given(st.lists(st.binary(max_size=40) | JSON.map(lambda each: json.dumps(each).encode()) | OURS, max_size=6))
def test_any_file_gives_an_entry_for_each_line(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    data = b"\n".join(parts)
    found = read(path, data)
    expected = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    while expected and not expected[-1].strip():
        expected.pop()
    assert [each.number for each in found] == list(range(1, len(expected) + 1))
    assert [each.data for each in found] == [each.rstrip(b"\r") for each in expected]
    for line in found:
        each = entry_of(line)
        assert bool(each.error) != (each.prompt is not None and not each.error)
        assert each.id is None or type(each.id) in (str, int)
        json.dumps(dict(each.settings)), json.dumps(each.id)
