"""The output of `edgekit batch`: in order and whole, at whichever instruction its writer is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.interrupted_exports import Killed

from edgekit.flashload.errors import DiskFull, FileChanged, OpenFailed, WriteFailed
from edgekit.tools.batch import held_file as module
from edgekit.tools.batch.output import OtherOutput, Output

#: The order in which answers come: some before earlier ones.
ORDER = (3, 1, 2, 4, 8, 6, 5, 9, 7, 10)
WRONG = (2, 8)


def members(number: int) -> dict[str, Any]:
    return {"error": f"no {number}"} if number in WRONG else {"text": f'answer {number}\u2028, "error": '}


def write(
    path: Path, order: Iterator[int] | tuple[int, ...] = ORDER, run: str = "r", mended: bool = False
) -> tuple[int, int]:
    """Puts those that are missing, where lines with an error were `mended` these anew. Returns how many were
    there, and the errors at the end.
    """
    with Output(path, run) as output:
        digests = {number: 100 + number + 100 * (mended and number in WRONG) for number in range(1, 11)}
        for number, digest in digests.items():
            output.check(number, digest)
        there = output.there
        output.begin()
        for number in order:
            if not output.has(number):
                output.put(number, digests[number], {"text": "mended"} if mended else members(number))
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
    for name in ("ftruncate", "fsync", "replace"):
        watch(os, name)

    def close(self: Output) -> None:  # who is killed does no more than that
        for file in filter(None, (self._out, self._waiting)):
            file._close_fd()

    patch.setattr(Output, "close", close)
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


@pytest.mark.parametrize("part", [0, 0.5])
def test_errors_of_mended_lines_are_replaced_wherever_it_is_killed(
    tmp_path: Path, expected: bytes, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = expected.splitlines(keepends=True)
    for number in WRONG:
        answer = {"line": number, "run": "r", "input": f"{200 + number:016x}", "text": "mended"}
        lines[number - 1] = json.dumps(answer).encode() + b"\n"
    mended = b"".join(lines)
    for kill_at in range(100):
        path = tmp_path / f"killed {kill_at}"
        path.write_bytes(expected)
        path.chmod(0o640)
        with monkeypatch.context() as patch:
            seen = steps(patch, kill_at, part)
            with suppress(Killed):
                write(path, mended=True)
        assert path.read_bytes() in (expected, mended), "the one or the other, whole"
        there, errors = write(path, ORDER[::-1], mended=True)
        assert there >= 8 and not errors and path.read_bytes() == mended
        assert path.stat().st_mode & 0o777 == 0o640
        assert not [each for each in os.listdir(tmp_path) if each not in ("expected", path.name)]
        path.unlink()
        if len(seen) <= kill_at:
            break
    assert kill_at > 4


def test_only_errors_are_answered_again(tmp_path: Path, expected: bytes) -> None:
    path = tmp_path / "expected"
    with Output(path, "r") as output:
        output.check(2, 902)
        assert (output.again, output.there, output.has(2), output.has(3)) == (1, 9, False, True)
        with pytest.raises(OtherOutput, match="line 3 answers another line than the input has there now"):
            output.check(3, 903)
    assert path.read_bytes() == expected
    with Output(path, "r") as output:
        output.check(8, 908)
        output.begin()
        output.put(8, 908, {"error": "still none"})
        assert output.errors == 2
    lines = path.read_bytes().splitlines(keepends=True)
    assert (
        b"still none" in lines.pop(7)
        and lines == expected.splitlines(keepends=True)[:7] + (expected.splitlines(keepends=True)[8:])
    )


def test_an_early_answer_is_kept_for_its_turn(tmp_path: Path, expected: bytes) -> None:
    path = tmp_path / "out"
    with Output(path, "r") as output:
        output.begin()
        for number in (5, 3, 9):
            output.put(number, 100 + number, members(number))
        assert output.there == 3
    assert not path.read_bytes()
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


def ours(line: str, run: str, digest: str, text: str = "a") -> bytes:
    return f'{{"line": {line}, "run": "{run}", "input": "{digest}", "text": "{text}"}}\n'.encode()


FIRST = f"{101:016x}"
#: With what is said of it, and whether --overwrite replaces it.
FOREIGN = [
    (b"precious", "is no line of `edgekit batch`; give another name, or begin anew", False),
    (b"\x93\0\0\0precious\n", "is no line", False),
    (b'{\n "format": "native"\n}\n', "is no line", False),
    (b'{"text": "of another program"}\n', "is no line", True),
    (ours("true", "r", FIRST), "is no line", True),
    (ours("1", "r", FIRST[:-1] + "z"), "is no line", True),
    (ours("1", "r", FIRST[1:]), "is no line", True),
    (b'{"line": 1, "run": "r", "input": "%s"}\n' % FIRST.encode(), "is no line", True),
    (b'{"line": 1, "text": "mine"}', "is no line", True),
    (b'{"line": "mine"}', "is no line", True),
    (bytes(5000), "is no line", True),
    (ours("1", "other", FIRST), "was written with another bundle, other settings or other options", True),
    (ours("2", "r", f"{102:016x}"), "is not in its place", True),
    (ours("1", "r", f"{100:016x}"), "answers another line than the input has there now", True),
]


@pytest.mark.parametrize(("content", "said", "replaced"), FOREIGN)
def test_what_is_something_else_is_left_as_it_is(
    tmp_path: Path, content: bytes, said: str, replaced: bool
) -> None:
    path = tmp_path / "out"
    path.write_bytes(content)
    with pytest.raises(OtherOutput) as caught:
        write(path)
    assert f"{path}: line 1 {said}" in str(caught.value) and path.read_bytes() == content
    if replaced:
        with Output(path, "r", overwrite=True) as output:
            output.begin()
            output.put(1, 101, members(1))
        assert json.loads(path.read_bytes())["text"] == members(1)["text"]
    else:
        with pytest.raises(OtherOutput, match="is no file of JSON lines, which --overwrite does not replace"):
            Output(path, "r", overwrite=True)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("added", [b"[]\n{}\n", b"remember this", b'{"note": 1}\n'])
def test_what_others_have_added_is_not_cut_off(tmp_path: Path, added: bytes) -> None:
    path = tmp_path / "out"
    path.write_bytes(ours("1", "r", FIRST) + added)
    with pytest.raises(OtherOutput, match="line 2 is no line of"):
        write(path)
    assert path.read_bytes() == ours("1", "r", FIRST) + added


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "content", [b"precious", b"precious\n", b'{"text": "x"}\n', ours("1", "r", FIRST)], ids=range(4)
)
def test_a_file_that_only_has_the_name_of_lines_that_wait_is_never_touched(
    tmp_path: Path, content: bytes, overwrite: bool
) -> None:
    early = tmp_path / "out.early"
    early.write_bytes(content)
    with pytest.raises(OtherOutput, match="out.early: has no line that waits .* move it away, or give"):
        Output(tmp_path / "out", "r", overwrite=overwrite)
    assert os.listdir(tmp_path) == ["out.early"] and early.read_bytes() == content
    early.unlink()
    with Output(tmp_path / "out", "r", overwrite=overwrite) as output:
        output.begin()
        early.write_bytes(content)
        with pytest.raises(OpenFailed, match="out.early: was made by somebody else just now; move it away"):
            output.put(2, 102, members(1))
    assert early.read_bytes() == content


def with_early(path: Path) -> bytes:
    """What waits beside an output that is left without its first line."""
    with Output(path, "r") as output:
        output.begin()
        for number in (5, 3, 9):
            output.put(number, 100 + number, members(number))
    return path.with_name("out.early").read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "there"),
    [
        (b"answer 3", b"answer 4", 2),  # the checksum tells
        (b'"line": 3', b'"line": 4', 2),
        (b"answer 9", b"\0\0\0\0\0\0\0\0", 2),
        (b'"input": "0000000000000067"', b'"input": "0000000000000068"', 2),
        (b"answer 5", b"", 2),
        (b"}\n{", b"}{", 1),
    ],
)
def test_a_damaged_line_that_waits_is_answered_again(
    tmp_path: Path, expected: bytes, old: bytes, new: bytes, there: int
) -> None:
    whole = with_early(tmp_path / "out")
    assert old in whole
    (tmp_path / "out.early").write_bytes(whole.replace(old, new, 1))
    assert write(tmp_path / "out")[0] == there and (tmp_path / "out").read_bytes() == expected
    assert sorted(os.listdir(tmp_path)) == ["expected", "out"]


def test_a_line_that_is_damaged_while_it_waits_is_not_copied(tmp_path: Path, expected: bytes) -> None:
    path, early = tmp_path / "out", tmp_path / "out.early"
    whole = with_early(path)
    said = "out.early: .*, and the answer of line 3 is damaged"
    with pytest.raises(FileChanged, match=said), Output(path, "r") as output:
        output.begin()
        with early.open("r+b") as file:
            file.write(whole.replace(b"answer 3", b"answer 4"))
        for number in (1, 2):
            output.put(number, 100 + number, members(number))
    assert b"answer 4" not in path.read_bytes()
    assert write(path)[0] == 4 and path.read_bytes() == expected


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replace(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"precious\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Path.unlink, "was moved, removed or replaced meanwhile"),
        (move, "was moved, removed or replaced meanwhile"),
        (replace, "was moved, removed or replaced meanwhile"),
        (append, "was changed by somebody else meanwhile"),
        (lambda path: os.truncate(path, 9), "was changed by somebody else meanwhile"),
    ],
    ids=["removed", "moved", "replaced", "appended", "cut"],
)
@pytest.mark.parametrize("last", [None, 2, 4], ids=["at the end", "next", "early"])
def test_an_output_that_others_move_or_change_is_told_and_left(
    tmp_path: Path, change: Callable[[Path], None], said: str, last: int | None
) -> None:
    path = tmp_path / "out"
    left = dict[str, bytes]()
    with pytest.raises(FileChanged, match=f"out: {said}"), Output(path, "r") as output:
        output.begin()
        output.put(1, 101, members(1))
        output.put(3, 103, members(3))
        change(path)
        left = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
        if last is not None:
            output.put(last, 100 + last, members(last))
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == left and "out.early" in left


def test_another_batch_does_not_take_what_waits_of_one_whose_output_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(FileChanged), Output(path, "r") as output:
        output.begin()
        output.put(3, 103, members(3))
        path.unlink()
        with pytest.raises(WriteFailed, match="out.early: another batch is writing it"):
            Output(path, "r", overwrite=True)
    assert os.listdir(tmp_path) == ["out.early"]


def test_files_of_the_bundle_are_not_replaced(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "tokenizer.json").write_bytes(b'{"model": {}}\n')
    os.link(bundle / "tokenizer.json", tmp_path / "out")
    for path in (bundle / "tokenizer.json", tmp_path / "out"):
        with pytest.raises(OtherOutput, match="is tokenizer.json of the bundle, which --overwrite does not"):
            Output(path, "r", overwrite=True, bundle=bundle)
        assert path.read_bytes() == b'{"model": {}}\n'
    write(bundle / "out")
    with Output(bundle / "out", "other", overwrite=True, bundle=bundle) as output:
        output.begin()
    assert not (bundle / "out").read_bytes(), "an earlier output in its folder is none of its files"


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
    path.unlink()
    with pytest.raises(FileChanged), Output(path, "r") as output:
        path.write_bytes(b"precious")
        output.begin()
    assert path.read_bytes() == b"precious"


def test_one_process_writes(tmp_path: Path, expected: bytes) -> None:
    with (
        Output(tmp_path / "expected", "r") as first,
        pytest.raises(WriteFailed, match="another batch is writing it; wait for it to end"),
    ):
        Output(tmp_path / "expected", "r", overwrite=True)
    assert first.answered and (tmp_path / "expected").read_bytes() == expected


def test_no_file_of_another_kind_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("pipe", "link", "dangling", ".", os.devnull):
        for overwrite in (False, True):
            with pytest.raises(OpenFailed, match="is no regular file; give the name of another one"):
                Output(tmp_path / name, "r", overwrite=overwrite)
        (tmp_path / "out.early").symlink_to(name)
        with pytest.raises(
            OpenFailed, match="out.early: is a symbolic link, and is no regular file; move it"
        ):
            Output(tmp_path / "out", "r", overwrite=True)
        (tmp_path / "out.early").unlink()
    os.mkfifo(tmp_path / "out.early")
    with pytest.raises(
        OpenFailed, match="out.early: is there, and is no regular file; move it away, or give"
    ):
        Output(tmp_path / "out", "r")
    with pytest.raises(OpenFailed, match="No such file or directory"):
        Output(tmp_path / "no" / "out", "r")
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == ["dangling", "elsewhere", "link", "out.early", "pipe"]


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
