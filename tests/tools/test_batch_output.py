"""The output of `edgekit batch`: in order and whole, at whichever instruction its writer is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.interrupted_exports import Killed

from edgekit.flashload.errors import DiskFull, OpenFailed, WriteFailed
from edgekit.tools.batch import output as module
from edgekit.tools.batch.output import OtherOutput, Output

#: The order in which answers come: some before earlier ones.
ORDER = (3, 1, 2, 4, 8, 6, 5, 9, 7, 10)
WRONG = (2, 8)


def members(number: int) -> dict[str, Any]:
    return {"error": f"no {number}"} if number in WRONG else {"text": f'answer {number}\u2028, "error": '}


def write(path: Path, order: Iterator[int] | tuple[int, ...] = ORDER, run: str = "r") -> tuple[int, int]:
    """Puts those that are missing. Returns how many were there, and the errors at the end."""
    with Output(path, run) as output:
        for number in range(1, 11):
            output.check(number, 100 + number)
        there = output.there
        output.begin()
        for number in order:
            if not output.has(number):
                output.put(number, 100 + number, members(number))
        return there, output.errors


@pytest.fixture
def expected(tmp_path: Path) -> bytes:
    write(tmp_path / "expected")
    return (tmp_path / "expected").read_bytes()


def test_lines_stand_in_the_order_of_the_input(tmp_path: Path, expected: bytes) -> None:
    found = [json.loads(line) for line in expected.decode().splitlines()]
    assert found == [{"line": n, "run": "r", "input": f"{100 + n:016x}", **members(n)} for n in range(1, 11)]
    assert os.listdir(tmp_path) == ["expected"], "nothing waits any more"
    assert (
        write(tmp_path / "expected") == (10, len(WRONG)) and (tmp_path / "expected").read_bytes() == expected
    )


def steps(patch: pytest.MonkeyPatch, kill_at: int, part: float) -> list[str]:
    """Every call that changes a file; killed in call `kill_at`, of which a write has done a part."""
    seen: list[str] = []

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def step(*arguments: Any) -> Any:
            seen.append(name)
            if len(seen) > kill_at:
                if name == "write_all" and part:
                    fd, data, position = arguments
                    real(fd, data[: max(1, int(part * len(data)))], position)
                raise Killed
            return real(*arguments)

        patch.setattr(owner, name, step)

    watch(module, "write_all")
    for name in ("ftruncate", "fsync"):
        watch(os, name)
    patch.setattr(Output, "close", lambda self: os.close(self._fd))  # who is killed closes nothing
    return seen


@pytest.mark.parametrize("part", [0, 0.5, 1])
@pytest.mark.parametrize("sync", [0.0, 1e9], ids=["synced", "unsynced"])
def test_who_is_killed_anywhere_loses_and_doubles_nothing(
    tmp_path: Path, expected: bytes, part: float, sync: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SYNC_S", sync)
    kills = 0
    for kill_at in range(100):
        path = tmp_path / f"killed {kill_at}"
        for again in range(8):  # killed at the same step again and again, and most times further on
            with monkeypatch.context() as patch:
                seen = steps(patch, kill_at, part)
                with suppress(Killed):
                    write(path, ORDER if again % 2 else ORDER[::-1])
                    break
            kills += 1
            head, end, _ = path.read_bytes().rpartition(b"\n")
            assert expected.startswith(head + end), "never anything but the beginning"
        there, errors = write(path, ORDER[::-1])
        assert path.read_bytes() == expected and errors == len(WRONG) and there <= 10
        assert not path.with_name(f"{path.name}.early").exists()
        if len(seen) <= kill_at:
            break
    else:
        pytest.fail("there is no end of its steps")
    assert kills > 20


def test_an_early_answer_is_kept_for_its_turn(tmp_path: Path, expected: bytes) -> None:
    path = tmp_path / "out"
    with Output(path, "r") as output:
        output.begin()
        for number in (5, 3, 9):
            output.put(number, 100 + number, members(number))
        assert output.there == 3 and not path.read_bytes()
    assert len((tmp_path / "out.early").read_bytes().splitlines()) == 3
    assert write(path) == (3, len(WRONG)) and path.read_bytes() == expected


def test_an_early_answer_of_a_changed_line_is_forgotten(tmp_path: Path, expected: bytes) -> None:
    path = tmp_path / "out"
    with Output(path, "r") as output:
        output.begin()
        output.put(3, 7, {"text": "of another line"})
        output.put(5, 105, members(5))
    assert write(path) == (1, len(WRONG)) and path.read_bytes() == expected


def test_an_early_answer_behind_the_end_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with Output(path, "r") as output:
        output.begin()
        output.put(1, 101, members(1))
        output.put(5, 105, members(5))
    with Output(path, "r") as output:
        output.check(1, 101)
        output.check_end(1)
        assert output.there == 1
        output.begin()
    assert os.listdir(tmp_path) == ["out"] and len(path.read_bytes().splitlines()) == 1


@pytest.mark.parametrize("cut", [1, 5, 12, 60])
def test_a_half_line_is_answered_again(tmp_path: Path, expected: bytes, cut: int) -> None:
    path = tmp_path / "out"
    path.write_bytes(expected[:-cut])
    assert write(path)[0] == 9 and path.read_bytes() == expected
    first = expected.index(b"\n")
    path.write_bytes(expected[: max(1, first - cut)])
    assert write(path)[0] == 0 and path.read_bytes() == expected
    # A power cut may leave the line end and not what stands before it.
    path.write_bytes(expected[:-9] + b"\0" * 8 + b"\n")
    assert write(path)[0] == 9 and path.read_bytes() == expected


def ours(line: str, run: str, digest: str) -> bytes:
    return f'{{"line": {line}, "run": "{run}", "input": "{digest}"}}\n'.encode()


FIRST = f"{101:016x}"
#: In either file, and where lines have their places.
FOREIGN = [
    (b"precious", "line 1 is no line of `edgekit batch`; give another name, or begin anew with --overwrite"),
    (b"precious\n", "line 1 is no line"),
    (b"precious\nand more\n", "line 1 is no line"),
    (b'{"text": "of another program"}\n', "line 1 is no line"),
    (ours("true", "r", FIRST), "line 1 is no line"),
    (ours("1", "r", FIRST[:-1] + "z"), "line 1 is no line"),
    (ours("1", "r", FIRST[1:]), "line 1 is no line"),
    (ours("1", "other", FIRST), "line 1 was written with another bundle or other settings"),
    (ours("1", "r", FIRST) + b"[]\n{}\n", "line 2 is no line"),
]
MISPLACED = [
    (ours("2", "r", f"{102:016x}"), "line 1 is not in its place"),
    (ours("1", "r", f"{100:016x}"), "line 1 answers another line than the input has there now"),
]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("out", *case) for case in FOREIGN + MISPLACED] + [("out.early", *case) for case in FOREIGN],
)
def test_what_is_something_else_is_left_as_it_is(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    path = tmp_path / "out"
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(OtherOutput) as caught:
        write(path)
    assert f"{file}: {said}" in str(caught.value)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {file.name: content}
    with Output(path, "r", overwrite=True) as output:
        output.begin()
        output.put(1, 101, members(1))
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert json.loads(path.read_bytes())["text"] == members(1)["text"]


def test_more_answers_than_lines_are_refused(tmp_path: Path, expected: bytes) -> None:
    with (
        Output(tmp_path / "expected", "r") as output,
        pytest.raises(OtherOutput, match="line 8 answers no line: the"),
    ):
        output.check_end(7)


def test_nothing_changes_before_work_begins(tmp_path: Path, expected: bytes) -> None:
    path = tmp_path / "out"
    with Output(path, "r"):
        pass
    assert not path.exists(), "an empty one is not left behind"
    path.write_bytes(expected[:-3])
    for overwrite in (False, True):
        with Output(path, "r", overwrite=overwrite):
            pass
        assert path.read_bytes() == expected[:-3]


def test_one_process_writes(tmp_path: Path, expected: bytes) -> None:
    with (
        Output(tmp_path / "expected", "r") as first,
        pytest.raises(WriteFailed, match="another batch is writing it; wait for it to end"),
    ):
        Output(tmp_path / "expected", "r", overwrite=True)
    assert first.answered and (tmp_path / "expected").read_bytes() == expected


def test_no_file_of_another_kind_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path(os.devnull)):
        with pytest.raises(OpenFailed, match="is no regular file; give the name of another one"):
            Output(path, "r")
    with pytest.raises(OpenFailed, match="No such file or directory"):
        Output(tmp_path / "nowhere" / "out", "r")
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "out.early").symlink_to(tmp_path / "elsewhere")
    with (
        Output(tmp_path / "out", "r", overwrite=True) as output,
        pytest.raises(WriteFailed, match="cannot write"),
    ):
        output.begin()
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: bytes) -> None:
    def full(fd: int, data: memoryview, position: int | None) -> None:
        os.write(fd, data[:10])
        raise OSError(28, "No space left on device")

    path = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_all", full)
        with pytest.raises(DiskFull, match="the disk is full"):
            write(path, (1,))
    assert write(path)[0] == 0 and path.read_bytes() == expected
