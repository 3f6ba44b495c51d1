"""The file of `edgekit export --calibrate`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from edgekit.export.calibrate.texts import Text
from edgekit.flashload.errors import OpenFailed
from edgekit.tools.benchmark.prompts_file import NoPrompts
from edgekit.tools.calibration_file import NoTexts, read_texts
from edgekit.tools.failures import Failure


def test_a_file_of_text_is_one_text_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("\ufeffOne.\n\nZwei: ü.\n", encoding="utf-8")
    found = read_texts(file)
    assert found.each == [Text("One.\n\nZwei: ü.", raw=True)] and found.name == "mine.txt"
    assert found.digest == hashlib.sha256(file.read_bytes()).hexdigest()


def test_lines_are_those_of_bench(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    lines = [{"prompt": "2+2?", "answer": "4"}, {"messages": chat}, {"prompt": "3?", "answer": 3}]
    file = tmp_path / "mine"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert read_texts(file).each == [Text("2+2?", "4"), Text(chat), Text("3?")]


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (b"", NoTexts, "has no text; give a file of texts"),
        (b" \n\n", NoTexts, "has no text"),
        (b'{"prompt": ""}', NoPrompts, "line 1: the prompt is empty"),
        (b'{"text": "x"}', NoPrompts, 'line 1 has neither of "prompt" and "messages"'),
        (b"abc \xff", Failure, "is not UTF-8: byte 0xff at 4"),
    ],
)
def test_files_without_texts_are_one_line(
    tmp_path: Path, data: bytes, kind: type[Exception], said: str
) -> None:
    file = tmp_path / "mine"
    file.write_bytes(data)
    with pytest.raises(kind, match=f"^{file}: ?.*{said}|^{file} {said}"):
        read_texts(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OpenFailed, match="give a file of texts"):
        read_texts(tmp_path / "mine")
