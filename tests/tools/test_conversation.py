"""`edgekit chat`: turns, commands, transcripts, and a terminal with somebody at it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.terminal import CTRL_C, CTRL_D, PROMPT, UP, Terminal

import edgekit
from edgekit.export.checkpoint.hub import SHIPPED_MODELS
from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.api import Chat
from edgekit.runtime.session import read_saved
from edgekit.tools import console
from edgekit.tools.answer_display import write_text
from edgekit.tools.bench import rounded_kv
from edgekit.tools.cli import main
from edgekit.tools.conversation import COMMANDS
from edgekit.tools.line_input import history_file
from edgekit.tools.transcript import Transcripts

SUM, WORDS = "What is 23 + 45?", "Repeat: red cat 42"


@pytest.fixture(scope="module")
def gemma(shipped_bundle: Callable[[str], Path]) -> Path:
    return shipped_bundle("tiny-gemma")


def chat(bundle: Path, *lines: str, options: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(main, ["chat", str(bundle), *options], input="".join(f"{x}\n" for x in lines))


def saved(bundle: Path, folder: Path, *lines: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """The transcript at the end of a conversation."""
    file = folder / "talk.json"
    file.unlink(missing_ok=True)
    result = chat(bundle, *lines, f"/save {file}", options=options)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


# --- turns --------------------------------------------------------------------------------------------------


def test_each_line_of_a_pipe_is_a_turn_of_one_conversation(gemma: Path, tmp_path: Path) -> None:
    with edgekit.load(gemma) as model:
        talk = model.chat(system="Be brief.")
        answers = [talk.generate(prompt, seed=3) for prompt in (SUM, WORDS, "/x")]
    options = ("--system", "Be brief.", "--seed", "3")
    result = chat(gemma, SUM, "", WORDS, "//x", options=options)
    assert result.exit_code == 0 and "error" not in result.stderr
    assert result.stdout == "".join(f"{answer.text}\n" for answer in answers)
    found = saved(gemma, tmp_path, SUM, WORDS, "//x", options=options)
    assert found["messages"] == talk.messages
    turns = found["turns"]
    assert [tuple(turn["answer_ids"]) for turn in turns] == [answer.ids for answer in answers]
    assert sum((turn["prompt_ids"] + turn["answer_ids"] for turn in turns), []) == list(talk.ids)


def test_weights_may_stream_meanwhile(gemma: Path, tmp_path: Path) -> None:
    found = saved(gemma, tmp_path, SUM, WORDS, options=("--memory", "8GB", "--resident", "0"))
    assert [message["content"] for message in found["messages"]] == [SUM, "68", WORDS, "red cat 42"]
    assert all(turn["statistics"]["bytes_read"] > 0 for turn in found["turns"])


def test_a_budget_without_room_for_any_session_is_refused_before_a_line(gemma: Path) -> None:
    result = chat(gemma, options=("--memory", "1MB"))
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert (
        line.startswith("edgekit: error: --memory 1MB: ") and "a memory budget of 1 MB is too small" in line
    )
    needed = re.search(r"need at least (\d+) MB", line)
    assert needed is not None
    enough = chat(gemma, options=("--memory", f"{int(needed[1]) + 20}MB"))  # this process grows
    assert (enough.exit_code, enough.stdout, enough.stderr) == (0, "", "")


def test_what_a_first_line_may_still_change_is_no_matter_of_the_budget(gemma: Path) -> None:
    options = ("--memory", "8GB", "--max-new-tokens", "4096")
    assert chat(gemma, options=options).exit_code == 0
    assert chat(gemma, "/set max_new_tokens=32", SUM, options=options).stdout == "68\n"


def test_a_line_that_is_refused_is_one_line_and_the_conversation_goes_on(
    gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Chat.events

    def events(self: Chat, prompt: Any, **settings: Any) -> Any:
        if prompt == "break":
            raise EdgekitError("weights.safetensors: cannot read")
        return real(self, prompt, **settings)

    monkeypatch.setattr(Chat, "events", events)
    many = "red cat " * 900
    file = tmp_path / "x.json"
    result = CliRunner().invoke(
        main, ["chat", str(gemma)], input=f"{SUM}\n{many}\nbreak\n".encode() + f"\xff\n{SUM}\n/save {file}"
        .encode("latin-1"),
    )  # fmt: skip
    assert result.exit_code == 2
    too_long, unread, coded, done = result.stderr.splitlines()
    assert "pass the model's 1024 positions" in too_long and "/new begins another" in too_long
    assert unread == "edgekit: error: weights.safetensors: cannot read"
    assert coded.startswith("edgekit: error: line 4 on stdin is not UTF-8: byte 0xff at 0")
    assert done == f"2 turns saved in {file}"
    assert result.stdout.startswith("68\n") and len(json.loads(file.read_text())["messages"]) == 4


def test_without_a_chat_template_the_way_out_is_named(gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgekit.runtime.tokenizer.tokenizer._chat_templates", lambda *_: {})
    result = chat(gemma, SUM)
    assert result.exit_code == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "has no chat template, so it knows no turns; with --raw it goes on" in line
    assert chat(gemma, SUM, "again", options=("--raw",)).exit_code == 0


def test_an_answer_without_text_has_its_line_and_a_remark(gemma: Path) -> None:
    result = chat(gemma, "hello", "/undo", SUM)
    assert (result.exit_code, result.stdout) == (0, "\n68\n")
    said, _ = result.stderr.splitlines()
    assert said.startswith("note: the model ended its answer at once") and said.endswith("with /set")


def test_an_answer_that_was_cut_is_remarked_upon(shipped_bundle: Any) -> None:
    result = chat(shipped_bundle("tiny-llada"), SUM, "/set max_new_tokens=1", "/set block_length=1", SUM)
    assert result.exit_code == 0 and result.stdout == "68\n6\n"
    assert "as long as it may be; /set max_new_tokens=N" in result.stderr


# --- commands -----------------------------------------------------------------------------------------------


def test_every_command_is_explained_and_does_something(gemma: Path) -> None:
    page = chat(gemma, "/help").stderr
    assert all(name in page for name in COMMANDS)
    result = chat(gemma, *COMMANDS)
    for line in result.stderr.splitlines():
        assert "internal" not in line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/sve", "unknown command '/sve'; did you mean /save? supported: /system,"),
        ("/", "unknown command '/'; supported:"),
        ("/quit now", "/quit takes nothing behind it"),
        ("/set stps", "stps is not a sampling option of this model; did you mean steps?"),
        ("/set =3", "'=3' is not name=value (example: steps=8)"),
        ("/set steps=1e999", "steps is '1e999', which is beyond all numbers"),
        ("/set stps=3", "stps is not a sampling option"),
        ("/set seed=-1", "seed is -1; use an integer"),
        ("/set prompt=x", "prompt is not a sampling option"),
        ("/set steps=", "steps has not been set here"),
        ("/save", "/save takes the name of a file"),
        ("/retry", "unknown command '/retry'; supported: /system,"),
        ("/save /", "/: is a folder; give a file, such as /talk.json"),
        ("/save .", ".: is a folder; give a file, such as talk.json"),
        ("/save none/", "none/: is a folder; give a file, such as none/talk.json"),
        ("/save talk.txt", "a transcript is JSON; write talk.json"),
        ("/save /no/such/folder/x", "/no/such/folder/x.json: No such file or directory"),
    ],
)
def test_wrong_commands_are_refused_in_one_line(gemma: Path, line: str, said: str) -> None:
    result = chat(gemma, line)
    assert (result.exit_code, result.stdout) == (2, "")
    (shown,) = result.stderr.splitlines()
    assert shown.startswith("edgekit: error: ") and said in shown


def test_turns_are_taken_back(gemma: Path, tmp_path: Path) -> None:
    plain = saved(gemma, tmp_path, SUM, WORDS)
    again = saved(gemma, tmp_path, SUM, "Sort: 3 1 2", "/undo", WORDS)
    for key in ("messages", "settings"):
        assert again[key] == plain[key]
    ids = [[(t["prompt_ids"], t["answer_ids"]) for t in found["turns"]] for found in (plain, again)]
    assert ids[0] == ids[1]
    said = chat(gemma, SUM, "/undo", "/undo").stderr.splitlines()
    assert said == [f"taken back: {SUM}", "there is no turn to take back"]


def test_a_new_beginning_can_be_taken_back(gemma: Path, tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    lines = (SUM, "/system  Be brief. ")
    assert saved(gemma, tmp_path, *lines)["messages"] == [system]
    assert saved(gemma, tmp_path, *lines, "/new", WORDS)["messages"][:2] == [
        system, {"role": "user", "content": WORDS},
    ]  # fmt: skip
    assert saved(gemma, tmp_path, *lines, WORDS, "/undo", "/undo")["messages"][0]["content"] == SUM
    said = chat(gemma, *lines, "/system", "/undo").stderr.splitlines()
    assert said[0].endswith("with this system message; /undo goes back to the one of 1 turn")
    assert said[1:] == ["system message: Be brief.", "back to the conversation of 1 turn"]


def test_settings_hold_from_the_next_turn_on(gemma: Path, tmp_path: Path) -> None:
    found = saved(gemma, tmp_path, SUM, "/set steps=1", SUM, "/set t_max=0.9", "/set steps=", SUM)
    assert [turn["settings"] for turn in found["turns"]] == [{}, {"steps": 1}, {"t_max": 0.9}]
    assert found["turns"][1]["statistics"]["steps"] == 1 and found["settings"] == {"t_max": 0.9}
    listed = chat(gemma, "/set t_max=0.9", "/set seed=7", "/options").stderr.splitlines()
    values = {line.split()[0]: line.split()[1] for line in listed}
    assert (values["t_max"], values["seed"]) == ("0.9", "7")


def test_set_shows_what_is_set(gemma: Path) -> None:
    lines = (
        "/set",
        "/set steps",
        "/set steps=8",
        "/set steps",
        "/set",
        "/set steps=",
        "/set seed",
        "/set t_max",
    )
    result = chat(gemma, *lines)
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stderr.split())
    for expected in (
        "nothing is set, so all is as the bundle says; /options lists it, /set steps=8 sets",
        "steps is 48, as the bundle says; it may be: integer from 1 to 4194304. ",
        "steps is 8 steps is 8; it may be: integer from 1 to 4194304. ",
        "steps is 8 steps is as the bundle says seed is 0, as the bundle says; it may be: integer from 0 to "
        "18446744073709551615. ",
        "t_max is 0.8, as the bundle says; it may be: number from 1e-06 to 1000000. Temperature",
    ):
        assert expected in said
    page = " ".join(chat(gemma, "/help").stderr.split())
    assert "NAME= takes that back, NAME alone shows it" in page


def test_a_wrong_command_says_nothing_else(gemma: Path) -> None:
    assert "invalid value" not in chat(gemma, "/set =3").stderr.lower()


def test_statistics_are_of_the_answer_and_of_the_conversation(gemma: Path) -> None:
    assert "there is no answer yet" in chat(gemma, "/stats").stderr
    last, all_ = chat(gemma, SUM, WORDS, "/stats").stderr.splitlines()
    assert last.startswith("last answer: 5 tokens in ") and "peak memory" in last
    assert all_.startswith("conversation: 2 turns, 40 tokens; 8 tokens answered in ")


def test_quit_ends_it(gemma: Path) -> None:
    for line in ("/quit", "/exit"):
        result = chat(gemma, line, SUM)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_file_name_may_stand_in_quotes(gemma: Path, tmp_path: Path) -> None:
    result = chat(gemma, f'/save "{tmp_path}/my talk"')
    assert result.exit_code == 0 and [p.name for p in tmp_path.iterdir()] == ["my talk.json"]


# --- transcripts --------------------------------------------------------------------------------------------


def save(transcripts: Transcripts, name: str, content: dict[str, Any]) -> Path:
    return transcripts.save(name, lambda: content, lambda path: pytest.fail(f"{path} is JSON"))


def test_a_transcript_replaces_none_but_its_own(tmp_path: Path) -> None:
    ours, others = Transcripts(), Transcripts()
    path = save(ours, str(tmp_path / "talk"), {"messages": ["é\udcff"]})
    assert path == tmp_path / "talk.json" == ours.last
    assert json.loads(path.read_text(encoding="utf-8")) == {"messages": ["é\udcff"]}
    save(ours, str(path), {"messages": [], "turns": [1, 2]})
    with pytest.raises(EdgekitError, match="is there already, and not from this chat"):
        save(others, str(path), {})
    assert json.loads(path.read_text()) == {"messages": [], "turns": [1, 2]}
    path.write_text("mine")
    with pytest.raises(EdgekitError, match="was changed since"):
        save(ours, str(path), {})
    assert path.read_text() == "mine"
    path.unlink()
    assert save(ours, str(path), {}) == path
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EdgekitError, match="was changed since|is there already"):
        save(ours, str(path), {})
    assert not (tmp_path / "elsewhere").exists()


def test_a_transcript_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    ours = Transcripts()
    path = save(ours, str(tmp_path / "old.json"), {"turns": []})
    monkeypatch.setattr("os.fsync", full)
    for name in ("old.json", "new.json"):
        with pytest.raises(EdgekitError, match="the disk is full"):
            save(ours, str(tmp_path / name), {"turns": [1]})
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"]
    assert json.loads(path.read_text()) == {"turns": []}


# --- conversations that go on -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED_MODELS)
def test_a_conversation_goes_on_from_its_file(shipped_bundle: Any, tmp_path: Path, name: str) -> None:
    bundle, file, read = shipped_bundle(name), tmp_path / "talk.kv", tmp_path / "talk.json"
    whole = chat(bundle, SUM, WORDS, f"/save {read}", options=("--system", "Be brief."))
    expected = json.loads(read.read_text())
    first = chat(bundle, SUM, f"/save {file}", options=("--system", "Be brief."))
    assert (first.exit_code, first.stderr) == (0, f"1 turn saved in {file}\n")
    again = tmp_path / "again.json"
    lines = ("/system", WORDS, "/save", f"/save {again}")
    second = chat(bundle, *lines, options=("--resume", str(file)))
    assert second.exit_code == 0 and first.stdout + second.stdout == whole.stdout
    system, *said = second.stderr.splitlines()
    assert system == "system message: Be brief."
    assert said == [f"2 turns saved in {path}" for path in (file, again)]
    found = json.loads(again.read_text())
    assert found["messages"] == expected["messages"] and found["resumed_turns"] == 1
    ((turn,), last) = found["turns"], expected["turns"][1]
    assert (turn["prompt_ids"], turn["answer_ids"]) == (last["prompt_ids"], last["answer_ids"])
    assert turn["statistics"]["reused_tokens"] == last["statistics"]["reused_tokens"]
    assert (turn["statistics"]["reused_tokens"] > 0) == (name != "tiny-llada")


def test_turns_of_a_file_can_be_taken_back(gemma: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.kv"
    chat(gemma, SUM, WORDS, f"/save {file}")
    lines = ("/stats", "/undo", "/undo", "/undo", SUM, "/new", "/undo", "/undo", SUM)
    result = chat(gemma, *lines, options=("--resume", str(file)))
    assert (result.exit_code, result.stdout) == (0, "68\n68\n")
    assert result.stderr.splitlines() == [
        "there is no answer yet",
        f"taken back: {WORDS}",
        f"taken back: {SUM}",
        "there is no turn to take back",
        "a new conversation; /undo goes back to the one of 1 turn",
        "back to the conversation of 1 turn",
        f"taken back: {SUM}",
    ]


def test_a_file_of_somebody_else_is_not_replaced(gemma: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.kv"
    chat(gemma, SUM, f"/save {file}")
    before = file.read_bytes()
    result = chat(gemma, SUM, f"/save {file}")
    assert result.exit_code == 2 and "is there already, and not from this chat" in result.stderr
    assert file.read_bytes() == before
    smaller = tmp_path / "int8.kv"
    assert chat(gemma, SUM, f"/save {smaller}", options=("--kv", "int8")).exit_code == 0
    assert len(smaller.read_bytes()) < len(before) / 2
    assert chat(gemma, WORDS, options=("--resume", str(smaller))).stdout == "red cat 42\n"


def test_what_cannot_be_resumed_is_refused_in_one_line(
    gemma: Path, shipped_bundle: Any, tmp_path: Path
) -> None:
    file = tmp_path / "talk.kv"
    chat(gemma, SUM, f"/save {file}")
    whole = file.read_bytes()

    def refused(bundle: Path, *options: str, says: str) -> None:
        result = chat(bundle, WORDS, options=("--resume", str(file), *options))
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr.splitlines()[-1], result.stderr
        assert result.stderr.count("edgekit: error") == 1

    refused(shipped_bundle("tiny-llada"), says="talk.kv: belongs to another bundle than")
    for option in (("--raw",), ("--system", "x")):
        refused(
            gemma, *option, says=f"a conversation that is resumed goes on as it began; leave {option[0]} out"
        )
    for data, says in (
        (whole[:-5], f"talk.kv: has {len(whole) - 5} bytes of {len(whole)}"),
        (whole[:40] + b"?" + whole[41:], "talk.kv: is not as it was written"),
        (b'{"messages": []}\n', "talk.kv: is no saved sequence; give a file that Chat.save, or /save N"),
        (b"", "talk.kv: is no saved sequence"),
    ):
        file.write_bytes(data)
        refused(gemma, says=says)
    file.unlink()
    refused(gemma, says="talk.kv: ")
    file.mkdir()
    refused(gemma, says="talk.kv: is a directory; give the path of a file")


def test_damaged_keys_and_values_cost_a_pass_and_no_turn(gemma: Path, tmp_path: Path) -> None:
    file, damaged = tmp_path / "talk.kv", tmp_path / "damaged.kv"
    chat(gemma, SUM, f"/save {file}")
    whole = file.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    expected = chat(gemma, WORDS, "/stats", options=("--resume", str(file)))
    found = chat(gemma, WORDS, WORDS, "/stats", options=("--resume", str(damaged)))
    assert found.stdout == expected.stdout * 2
    said = [line for line in found.stderr.splitlines() if line.startswith("note:")]
    assert said == [
        f"note: {damaged}: keys and values are not as they were written; the text is encoded again"
    ]


def test_a_conversation_that_is_resumed_keeps_the_bits_of_its_file(gemma: Path, tmp_path: Path) -> None:
    file, wide = tmp_path / "talk.kv", tmp_path / "wide.kv"
    chat(gemma, SUM, f"/save {file}", options=("--kv", "int8"))
    assert read_saved(file).bits == 8
    chat(gemma, WORDS, "/save", options=("--resume", str(file)))
    assert read_saved(file).bits == 8 and edgekit.load(gemma).chat(resume=file).turns == 2
    chat(gemma, f"/save {wide}", options=("--resume", str(file), "--kv", "float32"))
    assert read_saved(wide).bits == 32


def test_a_file_that_is_there_is_not_taken_for_a_name_without_a_suffix(gemma: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    result = chat(gemma, SUM, f"/save {tmp_path / 'notes'}")
    assert result.exit_code == 2 and "notes: is there already, and not from this chat" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_what_eight_bits_change_is_counted(gemma: Path, shipped_bundle: Any, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    options = ["--per-task", "2", "--task", "copying", "--json", str(file)]
    assert CliRunner().invoke(rounded_kv.main, [str(gemma), *options]).exit_code == 0
    found = json.loads(file.read_text())["copying"]
    assert (found["count"], found["same"], found["right_32"], found["right_8"]) == (2, 2, 2, 2)
    assert 0 < found["nats"] < 0.1 and found["other_best"] < 0.1
    assert 0.25 < found["bytes_8"] / found["bytes_32"] < 0.35
    refused = CliRunner().invoke(rounded_kv.main, [str(shipped_bundle("tiny-llada")), *options])
    assert "keeps no text between passes" in str(refused.exception)


# --- terminals ----------------------------------------------------------------------------------------------


def test_what_a_model_writes_is_visible_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "on_terminal", lambda stream: True)
    write_text("a\x1b[31mb\nc\u202e")
    assert capsys.readouterr().out == "a␛[31mb\nc<U+202E>\n"


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(shipped_bundle: Any, tmp_path: Path) -> None:
    words = ("--max-new-tokens", "256", "--set", "stop_at_eos=false")
    with Terminal("chat", shipped_bundle("tiny-llada"), *words) as terminal:
        terminal.wait_for(PROMPT)
        terminal.press(f"{WORDS}\n")
        terminal.wait_for("block 1/8, step")
        terminal.press(CTRL_C)
        terminal.wait_for("stopped: this turn is taken back")
        shown = terminal.received
        for on, off in (("\x1b[?25h", "\x1b[?25l"), ("\x1b[?7h", "\x1b[?7l")):
            assert shown.rfind(on) > shown.rfind(off) >= 0
        for line in ("/set stop_at_eos=true", SUM, f"/save {tmp_path}/talk"):
            terminal.wait_for(PROMPT)
            terminal.press(f"{line}\n")
        terminal.wait_for("1 turn saved in")
        terminal.wait_for(PROMPT)
        terminal.interrupt()
        terminal.wait_for("Ctrl-C again ends the conversation")
        terminal.wait_for(PROMPT)
        terminal.interrupt()
        assert terminal.exit_code() == 130
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [m["content"] for m in messages] == [SUM, "68"]


def test_what_is_typed_while_a_canvas_is_shown_is_the_next_line(shipped_bundle: Any) -> None:
    words = ("--max-new-tokens", "256", "--set", "stop_at_eos=false")
    with Terminal("chat", shipped_bundle("tiny-llada"), *words) as terminal:
        terminal.wait_for(PROMPT)
        terminal.press(f"{WORDS}\n")
        terminal.wait_for("block 1/8, step")
        terminal.press("/sta")
        terminal.wait_for("block 2/8, step")
        terminal.press("ts\n")
        terminal.wait_for(PROMPT)
        drawn = terminal.received.index("block 1/8")
        assert "/sta" not in terminal.received[drawn : terminal.received.index(PROMPT, drawn)]
        terminal.wait_for("last answer: ")
        terminal.wait_for(PROMPT)
        terminal.press("/quit\n")
        assert terminal.exit_code() == 0 and terminal.echoes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_canvas_that_is_cut_off_leaves_a_terminal_that_echoes(
    shipped_bundle: Any, number: signal.Signals, code: int
) -> None:
    words = ("--watch", "--max-new-tokens", "256", "--set", "stop_at_eos=false")
    with Terminal("run", shipped_bundle("tiny-llada"), WORDS, *words) as terminal:
        assert terminal.echoes
        terminal.wait_for("block 1/8, step")
        assert not terminal.echoes
        terminal.kill(number)
        assert terminal.exit_code() == code and terminal.echoes


def test_lines_of_earlier_conversations_come_back(gemma: Path) -> None:
    pytest.importorskip("readline")
    with Terminal("chat", gemma, NO_COLOR="1") as terminal:
        terminal.wait_for("\n> ")
        terminal.press("/he\t\n")
        terminal.wait_for("\n> ")
        assert "list the commands" in terminal.received
        terminal.press(CTRL_D)
        assert terminal.exit_code() == 0
        assert "\x1b[3" not in terminal.received
    assert history_file().read_text().splitlines()[-1] == "/help"
    assert history_file().stat().st_mode & 0o077 == 0
    with Terminal("chat", gemma) as terminal:
        terminal.wait_for(PROMPT)
        terminal.press(f"{UP}\n")
        terminal.wait_for(PROMPT)
        assert "list the commands" in terminal.received
        terminal.press("/quit\n")
        assert terminal.exit_code() == 0
