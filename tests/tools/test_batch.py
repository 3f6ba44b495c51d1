"""`edgekit batch`: the answers of single generations, in order, however often it was ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.terminal import CTRL_C, Terminal

import edgekit
from edgekit.export.checkpoint.hub import SHIPPED_MODELS
from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.sizes import parse_size
from edgekit.runtime import room
from edgekit.runtime.api.batch import Batch
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.generation import Generator
from edgekit.runtime.sampling import Lengths
from edgekit.runtime.session import Session
from edgekit.runtime.session.memory import MemoryPlan
from edgekit.tools.batch.output import Output
from edgekit.tools.bench.batch import main as bench
from edgekit.tools.cli import main

#: Lines of every kind, of lengths and settings that differ; those of `WRONG` get an error.
TASKS = ("What is 23 + 45?", "Copy this: red 7", "Sort: 9 4 7 1", "Repeat: red cat 42", "What is 7 + 8?")
LINES: tuple[Mapping[str, Any], ...] = (
    {"prompt": TASKS[0], "id": "sum", "seed": 3},
    {"prompt": TASKS[1], "id": 7, "max_new_tokens": 64, "steps": 12},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TASKS[2]}]},
    {"prompt": TASKS[3] * 5, "steps": 3},
    {"prompt": "", "id": "blank"},
    {"prompt": [5, 6, 7, 8], "max_new_tokens": 16},
    {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "m", "messages": [{"role": "user", "content": TASKS[4]}], "max_tokens": 20,
              "seed": 5}},
    {"prompt": "word " * 5000, "id": "long"},
    {"prompt": TASKS[4], "stpes": 3},
    {"prompt": TASKS[0], "seed": -1},
    {"prompt": [10**6]},
    {"prompt": TASKS[1], "seed": 2**64 - 1, "steps": 5},
)  # fmt: skip
WRONG = {
    5: "the prompt is empty",
    8: "positions",
    9: "stpes is not a sampling option of this model",
    10: "seed is -1; use an integer from 0",
    11: "token 1000000",
}


def batch(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["batch", *map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def refused(*words: object) -> str:
    """The one line on stderr."""
    done = batch(*words, code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("edgekit: error: ") and not done.stdout
    return line


def write(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of an output, without what differs from run to run."""
    found = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    assert [each["line"] for each in found] == list(range(1, len(found) + 1))
    for each in found:
        if "statistics" in each:
            assert each["statistics"].pop("seconds") > 0
    return found


def alone(bundle: Path, lines: Sequence[Mapping[str, Any]], **given: Any) -> dict[int, edgekit.Answer]:
    """What `Model.generate` answers to each line, one after the other, all weights in memory."""
    found = {}
    with edgekit.load(bundle) as model:
        for number, line in enumerate(lines, 1):
            if number in WRONG and lines is LINES:
                continue
            body = line.get("body", line)
            settings = {
                "max_new_tokens" if name == "max_tokens" else name: value
                for name, value in body.items()
                if name not in ("id", "custom_id", "prompt", "messages", "model")
            }
            prompt = body.get("prompt") or body["messages"]
            found[number] = model.generate(prompt, **{**given, **settings})
    return found


@pytest.fixture(scope="module")
def bundle(shipped_bundle: Callable[..., Path]) -> Path:
    return shipped_bundle("tiny-gemma", "native")


@pytest.mark.parametrize("model", SHIPPED_MODELS)
@pytest.mark.parametrize(
    "way", [("--sequences", 1), ("--sequences", 3, "--resident", 0), ("--sequences", 40), ()]
)
def test_each_line_has_the_answer_that_it_gets_alone(
    shipped_bundle: Callable[..., Path], tmp_path: Path, model: str, way: tuple[object, ...]
) -> None:
    bundle, source = shipped_bundle(model, "native"), write(tmp_path / "in", LINES)
    done = batch(bundle, source, tmp_path / "out", *way, "--ids", "--steps", 4, code=1)
    expected, found = alone(bundle, LINES, steps=4), read(tmp_path / "out")
    assert len(found) == len(LINES) and len({each["run"] for each in found}) == 1
    assert [each["id"] for each in found] == [line.get("id", line.get("custom_id")) for line in LINES]
    for each in found:
        if said := WRONG.get(each["line"]):
            assert said in each["error"] and set(each) == {"line", "run", "input", "id", "error"}
            continue
        answer = expected[each["line"]]
        statistics = answer.statistics
        assert (each["text"], each["token_ids"]) == (answer.text, list(answer.ids))
        assert each["finish_reason"] == statistics.finish_reason
        assert each["statistics"] == {
            name: getattr(statistics, name)
            for name in ("prompt_tokens", "tokens", "steps", "forwards", "rows")
        }
    assert [each["seed"] for each in found if "seed" in each] == [3, 0, 0, 0, 0, 5, 2**64 - 1]
    assert f"{len(WRONG)} of {len(LINES)} lines have an error" in done.stderr
    assert f"note: {len(WRONG)} lines cannot be used" in done.stderr and not done.stdout
    assert not [name for name in os.listdir(tmp_path) if name not in ("in", "out")]


def test_passes_are_full_and_read_once_for_all(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": TASKS[i % 2], "seed": i} for i in range(12)])
    told = {}
    for count in (1, 4):
        options = ("--sequences", count, "--resident", 0, "--json", "--set", "stability_threshold=null")
        done = batch(bundle, source, tmp_path / f"out{count}", *options, "--steps", 6)
        told[count] = json.loads(done.stdout)
        assert not done.stderr
    one, four = told[1], told[4]
    assert one["answers"] == four["answers"] == one["lines"] == 12 and not one["errors"]
    assert one["tokens"] == four["tokens"] and one["sequences"] == 1 and four["sequences"] == 4
    assert one["rows_per_pass"] * one["passes"] == pytest.approx(four["rows_per_pass"] * four["passes"])
    # Answers here end after 6 steps, or sooner: passes of four are hardly more than a quarter.
    assert four["passes"] < 0.35 * one["passes"]
    assert four["bytes_read_per_answer"] < 0.4 * one["bytes_read_per_answer"] > 0


def test_the_measuring_of_batches(bundle: Path) -> None:
    done = CliRunner().invoke(
        bench, [str(bundle), "--resident", "0", "--sequences", "1,3", "--prompts", "6", "--new-tokens", "32"]
    )
    assert done.exit_code == 0, done.output
    one, three = json.loads(done.stdout.splitlines()[-1])
    assert "answers are the same" in done.stdout and one["texts"] == three["texts"]
    assert (one["sequences"], three["sequences"], one["answers"]) == (1, 3, 6)
    assert 0 < three["bytes_per_answer"] < one["bytes_per_answer"] and three["passes"] < one["passes"]


def test_the_summary_says_what_it_took(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": TASKS[0]}, {"prompt": TASKS[1]}])
    said = batch(bundle, source, tmp_path / "out").stderr
    assert "2 answers in " in said and " 2 at a time: " in said and " passes of " in said
    assert "all weights in memory" in said
    assert "MB read per answer" in batch(bundle, source, tmp_path / "out2", "--resident", 0).stderr
    assert (
        batch(bundle, source, tmp_path / "out").stderr
        == "nothing to answer: 2 of 2 lines were answered before\n"
    )


# --- what is refused before anything runs -------------------------------------------------------------------


def test_equal_ids_are_refused_with_both_lines(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": "a", "id": "x"}, {"prompt": "b"}, {"id": "x", "prompt": 5}])
    assert 'lines 1 and 3 have the same id, "x"; give each its own' in refused(
        bundle, source, tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()
    write(source, [{"prompt": TASKS[0], "id": "1"}, {"prompt": TASKS[1], "id": 1}])
    batch(bundle, source, tmp_path / "out")  # text and a number are not the same


def test_inputs_and_outputs_that_cannot_be(bundle: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", [{"prompt": "a"}]), tmp_path / "out"
    assert "nothing: cannot open (No such file or directory); give a file with a JSON object" in refused(
        bundle, tmp_path / "nothing", out
    )
    assert "-: a pipe cannot be used, as the lines are read twice; give the name" in refused(bundle, "-", out)
    assert "-: a pipe cannot be used, as an interrupted batch goes on from it" in refused(bundle, source, "-")
    assert "is no regular file; give the name of another one" in refused(bundle, source, "")
    assert "there is no line in it" in refused(bundle, write(tmp_path / "empty", []), out)
    assert "No such file or directory" in refused(bundle, source, tmp_path / "a" / "b")
    assert "is no regular file" in refused(bundle, source, tmp_path)
    assert "is no regular file, and it is read twice" in refused(bundle, tmp_path, out)
    assert "stpes is not a sampling option" in refused(bundle, source, out, "--set", "stpes=3")
    assert "--memory 1MB: the memory budget of 1 MB" in refused(bundle, source, out, "--memory", "1MB")
    said = refused(
        bundle, write(source, [{"prompt": TASKS[0]}] * 3), out, "--memory", "1MB", "--sequences", 3
    )
    assert "no room for a sequence of these lengths; give " in said
    assert sorted(os.listdir(tmp_path)) == ["empty", "in"]


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_the_input_and_the_bundle_are_never_written_to(
    bundle: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    source = write(tmp_path / "out.early", [{"prompt": TASKS[0]}])
    os.link(source, tmp_path / "linked")
    os.link(source, tmp_path / "other.early")
    for target in (source, tmp_path / "out", tmp_path / "linked", tmp_path / "other"):
        assert "is the input, and would be written to" in refused(bundle, source, target, *options)
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    before = {each: each.read_bytes() for each in copy.rglob("*") if each.is_file()}
    for file in before:
        said = refused(copy, source, file, *options)
        assert "of the bundle" in said if options else "line 1 is no line of `edgekit batch`" in said
    os.link(Bundle.open(copy).weights_path, tmp_path / "weights")
    said = refused(copy, source, tmp_path / "weights", *options)
    assert "of the bundle, which" in said if options else "is no line" in said
    assert before == {each: each.read_bytes() for each in copy.rglob("*") if each.is_file()}
    assert json.loads(source.read_text()) == {"prompt": TASKS[0]}


def test_a_second_process_is_refused(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": "a"}])
    with Output(tmp_path / "out", "r"):
        assert "another batch is writing it" in refused(bundle, source, tmp_path / "out")


def test_lines_that_cannot_be_used_are_told_with_their_reasons(bundle: Path, tmp_path: Path) -> None:
    source = write(
        tmp_path / "in", [{"id": "a"}, {"prompt": TASKS[0]}, 5, {"prompt": "a", "x\u2028": 1}, 6, 7]
    )
    _, first, third, fourth, more, *_ = batch(bundle, source, tmp_path / "out", code=1).stderr.splitlines()
    assert first == 'line 1: the line has no prompt; give "prompt", or "messages" of a chat'
    assert third.startswith("line 3: the line is 5; write an object, such as")
    assert (
        fourth.startswith("line 4: 'x\\u2028' is not a sampling option of this model") and len(fourth) <= 300
    )
    assert more == f"and 2 more; {tmp_path / 'out'} has every error"


def test_a_mended_line_is_answered_again_and_the_others_are_kept(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines: list[Any] = [{"prompt": TASKS[0]}, {"promt": TASKS[1]}, {"prompt": TASKS[4]}, {"prompt": ""}]
    batch(bundle, write(tmp_path / "in", lines), out, code=1)
    before = out.read_bytes().splitlines()
    source = write(tmp_path / "in", [lines[0], {"prompt": TASKS[1]}, *lines[2:]])
    assert (
        "note: answering again 1 changed line that had an error" in batch(bundle, source, out, code=1).stderr
    )
    after = out.read_bytes().splitlines()
    assert json.loads(after[1])["text"] == "red 7" and after[:1] + after[2:] == before[:1] + before[2:]
    # What was wrong with the last line may not have been its own fault: a blank more makes it another one.
    with source.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b" \n")
    assert "note: 1 line cannot be used; it gets an error" in batch(bundle, source, out, code=1).stderr
    assert "line 1 answers another line" in refused(bundle, write(source, [lines[2], *lines[1:]]), out)


@pytest.mark.parametrize("wrong", [False, True], ids=["answers", "an error"])
def test_an_output_that_is_removed_meanwhile_is_no_success(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    real, out = Session.run_pass, tmp_path / "out"

    def run_pass(self: Session, *arguments: Any) -> Any:
        out.unlink(missing_ok=True)
        return real(self, *arguments)

    monkeypatch.setattr(Session, "run_pass", run_pass)
    source = write(tmp_path / "in", [{"prompt": TASKS[0], "seed": i} for i in range(4)] + [5] * wrong)
    said = batch(bundle, source, out, "--sequences", 1, code=2).stderr.splitlines()[-1]
    assert f"{out}: was moved, removed or replaced meanwhile; put it back where it was" in said
    assert os.listdir(tmp_path) == ["in"]


def test_values_that_no_setting_has_are_errors_of_their_lines(bundle: Path, tmp_path: Path) -> None:
    huge = "1" + "0" * 400
    settings = ("seed", "steps", "max_new_tokens", "t_max", "canvas", "eos_token_ids")
    values = (huge, f"-{huge}", f"[{huge}]", "1e400", '"\\ud800"', "[[]]")
    lines = [f'{{"prompt": "a", "{name}": {value}}}' for name in settings for value in values]
    lines += [f'{{"prompt": [{huge}]}}', r'{"prompt": "a\ud800"}', r'{"prompt": "a", "\ud800": 1}']
    lines += [r'{"messages": [{"role": "user", "content": "\udc00"}], "id": "\ud800"}']
    lines += [f'{{"body": {{"messages": [], "n": {huge}}}}}', f'{{"prompt": 1{huge * 12}}}', "[" * 10_000]
    (tmp_path / "in").write_text("\n".join(lines), encoding="ascii")
    batch(bundle, tmp_path / "in", tmp_path / "out", code=1)
    found = read(tmp_path / "out")
    assert len(found) == len(lines) and all("error" in each for each in found)


def test_only_wrong_lines_need_no_session(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "run_pass", None)
    source = write(tmp_path / "in", [{"id": "a"}, 5])
    done = batch(bundle, source, tmp_path / "out", code=1)
    assert "2 of 2 lines have an error" in done.stderr and "note: 2 lines cannot be used; they" in done.stderr
    assert [each["error"][:8] for each in read(tmp_path / "out")] == ["the line", "the line"]


def test_a_prompt_beyond_the_budget_fails_alone(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget with room for 400 positions, in the eyes of the plan."""
    real = room.planned

    def planned(generator: Generator, lengths: Lengths, count: int, beside: int = 0) -> MemoryPlan:
        if lengths.prefix > 400:
            raise BudgetExceeded("too small", 1 << 40)
        return real(generator, lengths, count, beside)

    monkeypatch.setattr(room, "planned", planned)
    lines = [{"prompt": TASKS[0]}, {"prompt": "red cat " * 400, "id": "long"}, {"prompt": TASKS[1]}]
    source = write(tmp_path / "in", lines)
    batch(bundle, source, tmp_path / "out", "--memory", "8GB", code=1)
    found = read(tmp_path / "out")
    assert [each.get("text") for each in found] == ["68", None, "red 7"]
    assert "the memory budget of 8 GB has room for 128 after " in found[1]["error"]
    said = refused(bundle, write(source, lines[1:2]), tmp_path / "out", "--memory", "8GB", "--overwrite")
    assert "--memory 8GB: the memory budget of 8 GB has no room for a sequence of these lengths" in said


@pytest.mark.parametrize("memory", ["90MB", "1GB"])
def test_the_budget_says_how_many_and_is_kept(bundle: Path, tmp_path: Path, memory: str) -> None:
    """In a process of its own, whose memory the budget is for. The least is some 78 MB."""
    source = write(tmp_path / "in", [{"prompt": TASKS[0], "seed": i, "steps": 2} for i in range(80)])
    code = (
        "import sys\n"
        "from edgekit.runtime.process import peak_bytes\n"
        "from edgekit.tools.cli import main\n"
        "main(standalone_mode=False)\n"
        "print(peak_bytes())\n"
    )
    words = ["batch", bundle, source, tmp_path / "out", "--memory", memory, "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told, peak = map(json.loads, done.stdout.splitlines())
    assert peak < parse_size(memory) and told["answers"] == 80 and not told["errors"]
    if memory == "1GB":
        assert told["sequences"] == 64 and not told["bytes_read"]
    else:
        assert 1 < told["sequences"] < 8


# --- going on -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty lines whose answers take different times, one of them wrong."""
    lines: list[Any] = [{"prompt": TASKS[i % 5], "seed": i, "steps": 2 + 7 * i % 11} for i in range(20)]
    lines[6] = "wrong"
    return write(tmp_path_factory.mktemp("many") / "in.jsonl", lines)


#: Each of these takes its time, so that there is some to be killed in.
SLOW = ("--resident", "0", "--sequences", "3", "--set", "stability_threshold=null")


@pytest.fixture(scope="module")
def whole(bundle: Path, many: Path) -> list[dict[str, Any]]:
    """What an uninterrupted run writes."""
    out = many.with_name("whole.jsonl")
    batch(bundle, many, out, *SLOW, code=1)
    return read(out)


def begun(*words: object) -> subprocess.Popen[str]:
    """Passes that take a twentieth of a second longer, in a process of its own."""
    code = (
        "import time\n"
        "from edgekit.runtime.session import Session\n"
        "real = Session.run_pass\n"
        "def run_pass(self, segments):\n"
        "    time.sleep(0.05)\n"
        "    return real(self, segments)\n"
        "Session.run_pass = run_pass\n"
        "from edgekit.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "batch", *map(str, words)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(out: Path, lines: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not out.exists() or out.read_bytes().count(b"\n") < lines:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.01)


def test_who_is_killed_several_times_loses_and_doubles_nothing(
    bundle: Path, many: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for lines in (1, 5, 8, 13):
        with begun(bundle, many, out, *SLOW) as process:
            wait_for(out, lines, process)
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        whole_lines = out.read_bytes().rpartition(b"\n")[0].decode().splitlines()
        assert [json.loads(line)["line"] for line in whole_lines] == list(range(1, len(whole_lines) + 1))
        assert len(whole_lines) < len(whole)
    done = batch(bundle, many, out, *SLOW, code=1)
    assert "of 20 answers are there" in done.stderr
    assert read(out) == whole and os.listdir(tmp_path) == ["out"]


def test_ctrl_c_says_how_to_go_on(
    bundle: Path, many: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with begun(bundle, many, out, *SLOW) as process:
        wait_for(out, 2, process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 130 and not stdout
    last = stderr.splitlines()[-1]
    assert last == f"edgekit: interrupted; the same command goes on behind what is in {out}"
    there = len(read(out))
    assert 2 <= there < len(whole) and read(out) == whole[:there]
    batch(bundle, many, out, *SLOW, code=1)
    assert read(out) == whole


def test_a_pass_that_does_not_end_is_interrupted_with_the_same_words(
    bundle: Path, many: Path, tmp_path: Path
) -> None:
    code = (
        "import hashlib\n"
        "from edgekit.runtime.session import Session\n"
        "from edgekit.tools import stuck\n"
        "stuck.PATIENCE_S = 0.3\n"
        "def run_pass(self, segments):\n"
        f"    open({str(tmp_path / 'mark')!r}, 'w').close()\n"
        "    hashlib.pbkdf2_hmac('sha256', b'x', b'x', 2**31 - 1)\n"
        "Session.run_pass = run_pass\n"
        "from edgekit.__main__ import main\n"
        "main()\n"
    )
    out = tmp_path / "out"
    words = [sys.executable, "-c", code, "batch", str(bundle), str(many), str(out)]
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 120
        while not (tmp_path / "mark").exists():
            assert process.poll() is None and time.monotonic() < end, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    said = f"edgekit: interrupted; the same command goes on behind what is in {out}"
    assert stderr.splitlines()[-1] == said


def test_the_bar_shows_what_is_done(
    bundle: Path, many: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.write_bytes(many.with_name("whole.jsonl").read_bytes().splitlines(keepends=True)[0])
    with Terminal("batch", bundle, many, out, *SLOW) as terminal:
        terminal.wait_for(f"going on: 1 of {len(whole)} answers are there")
        terminal.wait_for("answering, 3 at a time")
        terminal.wait_for("tokens/s")
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 130
        shown = " ".join(terminal.received.split())
    assert "interrupted; the same command goes on behind what is in" in shown


def test_another_run_goes_on_with_other_sequences_and_threads(
    bundle: Path, many: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    lines = many.with_name("whole.jsonl").read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:9]) + lines[9][:30])
    options = ("--sequences", "7", "--threads", "1", "--set", "stability_threshold=null")
    done = batch(bundle, many, out, *options, "--json", code=1)
    assert read(out) == whole
    told = json.loads(done.stdout)
    assert (told["there"], told["answers"], told["errors"], told["lines"]) == (9, 11, 1, 20)


def test_the_input_may_grow_and_change_where_it_is_not_answered(bundle: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    first: list[Any] = [{"prompt": TASKS[0]}, {"prompt": TASKS[1]}]
    batch(bundle, write(source, first), out)
    before = out.read_bytes()
    batch(bundle, write(source, [*first, {"prompt": TASKS[4], "id": "new"}]), out)
    assert out.read_bytes().startswith(before) and [each["text"] for each in read(out)] == [
        "68",
        "red 7",
        "15",
    ]
    changed = [first[0], {"prompt": TASKS[4]}, {"prompt": TASKS[4], "id": "new"}]
    after = out.read_bytes()
    said = refused(bundle, write(source, changed), out)
    assert f"{out}: line 2 answers another line than the input has there now; give another name" in said
    assert "line 1 answers no line: the input has" not in said
    assert "line 3 answers no line: the input has 2;" in refused(bundle, write(source, first), out)
    for options in (("--steps", 3), ("--system", "Be brief."), ("--raw",), ("--ids",)):
        said = refused(bundle, write(source, first), out, *options)
        assert "line 1 was written with another bundle, other settings or other options" in said
    assert out.read_bytes() == after
    batch(bundle, write(source, changed[:2]), out, "--overwrite")
    assert [each["text"] for each in read(out)] == ["68", "15"]


def test_another_bundle_is_refused(bundle: Path, shipped_bundle: Callable[..., Path], tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", [{"prompt": TASKS[0]}]), tmp_path / "out"
    batch(bundle, source, out)
    other = shipped_bundle("tiny-llada", "native")
    assert "another bundle, other settings or other options" in refused(other, source, out)


def test_an_input_that_changes_meanwhile_is_noticed(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    lines = [{"prompt": TASKS[0], "seed": i} for i in range(6)]
    for changed, said in (
        ([*lines[:5], {"prompt": TASKS[1]}], "line 6 was changed meanwhile; begin again"),
        (lines[:4], "was shortened meanwhile; begin again"),
    ):
        write(source, lines)
        real = Batch.run

        def run(self: Batch, *arguments: Any, changed: list[Any] = changed, real: Any = real) -> Any:
            write(source, changed)
            return real(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Batch, "run", run)
            assert said in refused(bundle, source, out, "--sequences", 1, "--overwrite")
        there = len(read(out))
        assert 0 < there < 6
        batch(bundle, write(source, lines), out)
        assert len(read(out)) == 6


def test_a_program_error_is_no_answer(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with edgekit itself must not be written down as what is wrong with a line."""
    from edgekit.runtime.sampling import CoreSampler

    def broken(self: CoreSampler, answer: object = None) -> object:
        raise RuntimeError("a bug")

    monkeypatch.setattr(CoreSampler, "next", broken)
    source = write(tmp_path / "in", [{"prompt": TASKS[0]}])
    done = batch(bundle, source, tmp_path / "out", code=70)
    assert "internal error: RuntimeError: a bug" in done.stderr and not (tmp_path / "out").exists()
