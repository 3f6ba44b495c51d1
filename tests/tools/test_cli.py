"""The command line: what each command prints, and what it says when it cannot do its work."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support import sealing

from edgekit.export.formats import FORMATS
from edgekit.flashload.errors import OutOfMemory
from edgekit.flashload.reader import FlashFile
from edgekit.targets import TARGETS
from edgekit.tools.cli import COMMANDS, main


def edgekit(*words: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words], input=stdin)


def process(*words: str | Path, cwd: Path | None = None, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "edgekit", *(str(w) for w in words)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, cwd=cwd, text=True, **streams)


def refused(result: Result, *said: str, code: int = 2) -> None:
    """One line on stderr with all of `said`, nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("edgekit: error: ")
    for text in said:
        assert text in line


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


# --- the group ----------------------------------------------------------------------------------------------


def test_help_shows_a_first_use_and_every_command() -> None:
    result = edgekit("--help")
    assert result.exit_code == 0 and "edgekit demo" in result.stdout
    for name in COMMANDS:
        page = edgekit(name, "--help")
        assert page.exit_code == 0
        assert re.search(rf"^  {name} +\S", result.stdout, re.MULTILINE)


def test_help_imports_no_framework() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from edgekit.tools.cli import COMMANDS, main\n"
        "for words in ['--help'], *([name, '--help'] for name in COMMANDS):\n"
        "    assert CliRunner().invoke(main, words).exit_code == 0\n"
        "heavy = {'torch', 'onnxruntime', 'onnx', 'tokenizers', 'rich'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == []


def test_export_help_lists_what_the_exporter_knows() -> None:
    from edgekit import targets
    from edgekit.export.formats import FORMATS
    from edgekit.export.quantize import PRESETS

    text = edgekit("export", "--help").stdout
    for name in (*PRESETS, *FORMATS, *targets.TARGETS):
        assert name in text


def test_version() -> None:
    assert edgekit("--version").stdout.startswith("edgekit ")


def test_without_a_command_the_help_is_shown() -> None:
    result = edgekit()
    assert result.exit_code == 2 and "Commands:" in result.stderr


def test_an_unknown_command_suggests_the_nearest() -> None:
    refused(edgekit("exprot", "x"), "unknown command 'exprot'", "did you mean export?")
    refused(edgekit("zzz"), f"unknown command 'zzz'; supported: {', '.join(COMMANDS)}")


@pytest.mark.parametrize(
    "words",
    [
        ["--nope"],
        ["run"],
        ["run", "x", "--nope"],
        ["run", "x", "-p", "a", "--steps", "0"],
        ["verify", "x", "y"],
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(words: list[str]) -> None:
    refused(edgekit(*words), "--help")


@pytest.mark.parametrize("words", [["--debug", "run"], ["run", "--debug"]])
def test_debug_adds_the_traceback(words: list[str], tmp_path: Path) -> None:
    result = edgekit(*words, tmp_path / "missing", "-p", "a")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr and "OpenFailed" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("edgekit: error: ")


def test_a_bug_is_one_line_with_its_own_exit_code(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> None:
    from edgekit.runtime.bundle import Bundle

    def broken(*given: object) -> None:
        raise KeyError("layers")

    monkeypatch.setattr(Bundle, "open", broken)
    result = edgekit("inspect", tiny_bundle)
    assert result.exit_code == 70
    assert result.stderr == "edgekit: internal error: KeyError: 'layers' (--debug shows where)\n"
    assert "Traceback" in edgekit("inspect", tiny_bundle, "--debug").stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory; close other programs{} or choose a smaller model"),
        (
            ImportError("libx.so: failed to map segment from shared object"),
            "out of memory (libx.so: failed to map segment from shared object); close other programs{} or "
            "choose a smaller model",
        ),
    ],
)
def test_what_lacks_memory_names_the_options_that_the_command_has(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path
) -> None:
    def failing(*given: object, **named: object) -> None:
        raise error

    monkeypatch.setattr("edgekit.runtime.bundle.Bundle.open", failing)
    monkeypatch.setattr("edgekit.targets.get", failing)
    for words, ways in (
        (["run", tiny_bundle, "a"], ", give a smaller --memory, fewer --threads"),
        (["inspect", tiny_bundle], ", give a smaller --memory"),
        (["export", tiny_bundle], ""),
    ):
        refused(edgekit(*words), f"edgekit: error: {said.format(ways)}")


def test_a_system_that_starts_no_threads_has_options_named(
    monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path
) -> None:
    def failing(*given: object, **named: object) -> None:
        raise OutOfMemory("the system refuses to start 2 threads; use fewer")

    monkeypatch.setattr("edgekit.runtime.bundle.Bundle.open", failing)
    refused(edgekit("run", tiny_bundle, "a"), "threads; use fewer; see --memory and --threads")
    refused(edgekit("inspect", tiny_bundle), "threads; use fewer; see --memory")


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("torch", ["export", "anything", "-o", "out"], "export"),
        ("onnxscript", ["export", "CHECKPOINT", "--format", "onnx", "-o", "out"], "export-onnx"),
        ("onnxruntime", ["run", "BUNDLE", "-p", "a"], "onnx"),
    ],
)
def test_a_missing_package_names_its_extra(
    package: str, words: list[str], extra: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    places = {"BUNDLE": str(tiny_bundle), "CHECKPOINT": str(tiny_bundle.parent / "checkpoint")}
    words = [places.get(w, w) for w in words]
    code = f"import sys; sys.modules[{package!r}] = None; from edgekit.tools.cli import main; main({words!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = [text for text in done.stderr.splitlines() if not text.startswith("exporting ")]
    assert package in line and f"pip install 'edgekit[{extra}]'" in line


def test_a_reader_that_goes_away_ends_the_command_quietly(tiny_bundle: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    started = process("inspect", tiny_bundle, "--runs", stdout=write)
    os.close(write)
    assert (started.communicate()[1], started.returncode) == ("", 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["config"], ["plan", "--list"]])
def test_a_full_disk_behind_stdout_is_named(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = process(*words, stdout=full)
        said = ended.communicate()[1]
    assert (said, ended.returncode) == ("edgekit: error: stdout: No space left on device\n", 2)


@pytest.mark.parametrize("module", ["click", "numpy", "edgekit.tools.commands.config"])
def test_ctrl_c_during_the_imports_is_one_line(module: str) -> None:
    code = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv[1:] = ['config']\n"
        "from edgekit.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "edgekit: interrupted\n", 130)


def test_the_script_begins_where_ctrl_c_is_awaited() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"edgekit": "edgekit.__main__:main"}


def test_an_interrupt_inside_of_evaluated_text_has_the_exit_code_of_every_other(tmp_path: Path) -> None:
    (tmp_path / "interrupted_in_text.py").write_text(
        "from edgekit.__main__ import main\n"
        "from edgekit.tools.commands import targets\n"
        "targets.command.callback = lambda **_: exec('raise KeyboardInterrupt')\n"
        "main()\n"
    )
    words = [sys.executable, "-m", "interrupted_in_text", "targets"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("", "edgekit: interrupted\n", 130)


def test_a_demo_that_is_interrupted_as_it_begins_says_so_once(tmp_path: Path) -> None:
    begun = process("demo", cwd=tmp_path, start_new_session=True)
    assert begun.stdout is not None
    while not begun.stdout.readline().startswith("1. Export"):
        assert begun.poll() is None
    os.killpg(begun.pid, signal.SIGINT)  # as a terminal does: the process that exports is just starting
    assert begun.communicate()[1].startswith("edgekit: interrupted") and begun.returncode == 130


def test_error_lines_have_a_bounded_length() -> None:
    result = edgekit("run", "x" * 5000, "-p", "a")
    refused(result, "xxx ... xxx")
    assert len(result.stderr) < 640


def test_stdin_that_is_not_utf8_is_refused() -> None:
    refused(
        CliRunner().invoke(main, ["run", "x", "-p", "-"], input=b"caf\xe9"),
        "the prompt on stdin is not UTF-8",
        "byte 0xe9 at 3",
    )


def test_config_answers_one_question() -> None:
    shown = dict(line.split(maxsplit=1) for line in edgekit("config").stdout.splitlines())
    for option, name in (("--include-dir", "include"), ("--library", "library"), ("--cmake-dir", "cmake")):
        assert edgekit("config", option).stdout.strip() == shown[name]
    refused(edgekit("config", "--library", "--include-dir"), "each option asks for one path; give one")


def test_targets_says_what_was_tried_of_each() -> None:
    rows = json.loads(edgekit("targets", "--json").stdout)
    text = edgekit("targets").stdout.splitlines()
    assert [row["name"] for row in rows] == list(TARGETS)
    for row in rows:
        target = TARGETS.find(row["name"])
        assert target is not None and [form["name"] for form in row["formats"]] == list(target.formats)
        place = text.index(f"{row['name']:8}{row['summary']}")
        after = text[place + 1 :]
        lines = [line for line in after if not line.startswith(" " * 10)][: len(row["formats"])]
        for line, form in zip(lines, row["formats"], strict=True):
            devices = form.get("devices", [])
            own = target.devices.get(form["name"]) or tuple(FORMATS.own[form["name"]].devices)
            assert [device["name"] for device in devices] == list(own)
            begun = after[after.index(line) + 1 :]
            for said, device in zip(begun, devices, strict=False):
                assert said.strip() == f"--device {device['name']}: {device['summary']}"
                needs = re.search("driver for CUDA|USE_OPENCL=ON|Metal|USE_METAL=ON", device["needs"])
                assert bool(needs) == device["name"].startswith(("cuda", "opencl", "metal"))
                assert not needs or f": {device['needs']}" in "\n".join(begun)
                cuda = device["name"].startswith("cuda")
                assert device["install"] == "pip install 'edgekit[tvm]'" + " nvidia-cuda-runtime" * cuda
            assert form["checked"] == target.checked[form["name"]], "a target of ours says what was tried"
            assert line.strip().startswith(form["name"]) and line.endswith(form["checked"])
            others = form["name"] == "native" and row["name"] in ("rtx", "jetson")
            assert ("engine torch" in line) == others


# --- run ----------------------------------------------------------------------------------------------------


def run_json(bundle: Path, *words: str) -> dict[str, Any]:
    result = edgekit("run", bundle, "-p", "Hello", "--json", *words)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_run_prints_text_on_stdout_and_one_line_of_statistics_on_stderr(tiny_bundle: Path) -> None:
    result = edgekit("run", tiny_bundle, "-p", "Hello", "--max-new-tokens", "8")
    assert result.exit_code == 0
    assert result.stdout.endswith("\n")
    (line,) = result.stderr.splitlines()
    for said in ("tokens in 8 denoising steps", "tokens per forward", "tokens/s", "computing", "peak memory"):
        assert said in line


def test_run_json_has_text_tokens_statistics_and_plan(tiny_bundle: Path) -> None:
    from edgekit.runtime.tokenizer import Tokenizer

    found = run_json(tiny_bundle, "--max-new-tokens", "8", "--steps", "4")
    assert found["text"] == Tokenizer(tiny_bundle / "tokenizer").decode(found["token_ids"])
    assert found["statistics"]["denoising_steps"] == 4
    assert found["statistics"]["committed_tokens"] == len(found["token_ids"])
    assert found["plan"]["streamed_runs"] == 0 and found["plan"]["memory_bytes"] is None
    text = edgekit("run", tiny_bundle, "-p", "Hello", "--max-new-tokens", "8", "--steps", "4").stdout
    assert text.rstrip("\n") == found["text"].rstrip("\n")


@pytest.mark.parametrize("bundle", ["tiny_bundle", "gemma_bundle"])
def test_streamed_weights_give_the_same_answer(bundle: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(bundle)
    resident = run_json(path, "--max-new-tokens", "16")
    streamed = run_json(path, "--max-new-tokens", "16", "--memory", "8GB", "--resident", "0")
    assert streamed["token_ids"] == resident["token_ids"]
    assert streamed["plan"]["pinned_bytes"] == 0 and streamed["plan"]["memory_bytes"] == 8 * 10**9
    steps = streamed["statistics"]["denoising_steps"]
    assert streamed["statistics"]["engine"]["bytes_read"] >= steps * streamed["plan"]["streamed_bytes"] > 0
    assert resident["statistics"]["engine"]["bytes_read"] == 0


def test_seeds_and_options_reach_the_sampler(tiny_bundle: Path) -> None:
    words = ["--max-new-tokens", "16", "--set", "temperature=1.5"]
    first, again = (run_json(tiny_bundle, *words, "--seed", "3")["token_ids"] for _ in range(2))
    other = run_json(tiny_bundle, *words, "--seed", "4")["token_ids"]
    assert first == again != other


def test_a_prompt_stands_by_itself_or_behind_p_or_is_piped_in(native_bundle: Path) -> None:
    prompt = "Why is the sky blue?"
    ways: list[tuple[list[str], str | None]] = [
        (["-p", prompt], None), ([prompt], None), ([prompt], "not looked at"), ([], f"{prompt}\n"),
        (["-"], prompt), (["-p", "-"], f"{prompt}\r\n"),
    ]  # fmt: skip
    answers = []
    for words, stdin in ways:
        result = edgekit("run", native_bundle, "--json", "--max-new-tokens", "8", *words, stdin=stdin)
        answers.append(json.loads(result.stdout)["token_ids"])
    assert answers == answers[:1] * len(ways)


@pytest.mark.parametrize(
    ("stdin", "said"),
    [(b"", "the prompt is empty"), (b" \n", "the prompt is empty"),
     (b"caf\xe9", "the prompt on stdin is not UTF-8: byte 0xe9 at 3")],
)  # fmt: skip
def test_what_is_piped_in_has_to_be_text(native_bundle: Path, stdin: bytes, said: str) -> None:
    refused(CliRunner().invoke(main, ["run", str(native_bundle)], input=stdin), said)


def test_without_a_prompt_on_a_terminal_one_is_asked_for(native_bundle: Path) -> None:
    code, received = on_terminal("run", native_bundle)
    assert code == 2 and "there is no prompt; give one: edgekit run" in " ".join(received.split())
    assert all(len(line) <= 80 or " " not in line for line in received.splitlines())


def test_raw_and_system_change_what_the_model_sees(tiny_bundle: Path) -> None:
    def prompt_tokens(*words: str) -> int:
        found = run_json(tiny_bundle, "--max-new-tokens", "8", *words)
        return int(found["statistics"]["engine"]["prompt_tokens"])

    assert prompt_tokens("--raw") < prompt_tokens() < prompt_tokens("--system", "Be brief.")


def test_a_prompt_that_begins_with_a_dash_stands_behind_p(native_bundle: Path) -> None:
    prompt = "-5 + 3"
    refused(edgekit("run", native_bundle, prompt), "unknown option '-5'; a prompt that begins with - stands")
    for words in (["-p", prompt], ["--", prompt]):
        result = edgekit("run", native_bundle, "--max-new-tokens", "8", "--json", *words)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["run", "options", "inspect", "verify"])
def test_a_shipped_model_has_to_be_exported_first(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["hi"] if command == "run" else []
    refused(edgekit(command, "tiny-gemma", *words), "export it first with edgekit export tiny-gemma")
    refused(edgekit(command, "", *words), "BUNDLE is empty; name a folder")
    (tmp_path / "tiny-gemma").mkdir()
    refused(edgekit(command, "tiny-gemma", *words), "tiny-gemma: has no edgekit.json")


def test_watch_without_a_terminal_is_plain_text_and_says_so(tiny_bundle: Path) -> None:
    words = ["run", tiny_bundle, "-p", "Hello", "--max-new-tokens", "8"]
    watched = edgekit(*words, "--watch")
    assert watched.stdout == edgekit(*words).stdout
    assert "--watch needs a terminal" in watched.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory", "1MB"], "--memory 1MB: "),
        (["--memory", "10G"], "size '10G' is not understood; did you mean 10GB? see "),
        (["--memory", "0"], "size '0' is too small"),
        (["--memory", "10"], "--memory: size '10' has no unit: 10 bytes? write 10GB or 10MB; see "),
        (["--memory", "0.5MB"], "--memory 0.5MB: "),
        (["--memory", "0.5MB"], "a memory budget of 500 kB is too small; this model and length need"),
        (["--memroy", "1GB"], "unknown option '--memroy'; did you mean --memory? see "),
        (
            ["--engine", "natve"],
            "unknown engine 'natve'; did you mean native? supported: native, torch, onnx, onnx-gpu",
        ),
        (["--steps", "0"], "--steps is 0; use an integer, at least 1; see "),
        (["--max-new-tokens", "many"], "--max-new-tokens is 'many'; use an integer, at least 1; see "),
        (["--threads", "0"], "--threads is 0; use an integer from 1 to 1024; see "),
        (["--threads", "10000"], "--threads is 10000; use an integer from 1 to 1024; see "),
        (["--memory", "99PB"], "size '99PB' is not understood; write 1GB, 512MB or 1.5GiB; see "),
        (["--set", "t_max=1e400"], "--set: t_max is '1e400', which is beyond all numbers"),
        (["--set", "t_max"], "is not name=value (example: steps=8)"),
        (["-5"], "unknown option '-5'; a prompt that begins with - stands behind -p; see "),
        (["again"], "the prompt is given twice, by itself and with -p; leave one out"),
        (["so", "on"], "the prompt has 2 parts; put it in quotes: edgekit run"),
        (["--resident", "-1"], "size '-1' is not understood"),
        (["--set", "temprature=1"], "did you mean temperature?"),
        (["--set", "temperature=hot"], "temperature is 'hot'; use a number"),
        (["--set", "temperature"], "is not name=value"),
        (["--set", "prompt=x"], "prompt is not a sampling option of this model"),
        (["--set", "self=x"], "self is not a sampling option of this model"),
        (["--set", "seed=-1"], "seed is -1; use an integer from 0 to 18446744073709551615"),
        (["--set", "seed=4", "--set", "seed=5"], "seed is given twice, by two --set; leave one out"),
        (["--set", "steps=4", "--steps", "5"], "steps is given twice, by --steps and --set; leave one out"),
        (["--option", "temperature=1"], "unknown option '--option'"),
        (["--max-new-tokens", "600"], "pass the model's 512 positions"),
        (["--watch", "--json"], "--watch and --json exclude each other"),
        (["--raw", "--system", "x"], "no place for --system"),
        (["-p", ""], "the prompt is empty"),
    ],
)
def test_run_refuses_in_one_line(words: list[str], said: str, native_bundle: Path) -> None:
    refused(edgekit("run", native_bundle, "-p", "Hello", *words), said)


def test_a_budget_that_the_message_names_is_enough(native_bundle: Path) -> None:
    words = ["run", native_bundle, "-p", "Hello", "--max-new-tokens", "8", "--memory"]
    needed = re.search(r"need at least (\d+) MB", edgekit(*words, "1MB").stderr)
    assert needed is not None
    # This process has grown since: it has opened a session.
    assert edgekit(*words, f"{int(needed[1]) + 20}MB").exit_code == 0


def test_a_budget_that_the_message_names_is_enough_and_hardly_more_than_that(native_bundle: Path) -> None:
    """In processes of their own, as a user tries one after the other; what is planned there decides."""

    def run(memory: str) -> tuple[int, str]:
        started = process("run", native_bundle, "Hello", "--max-new-tokens", "8", "--memory", memory)
        return (started.communicate()[1], started.returncode)[::-1]

    code, said = run("1MB")
    named = re.search(r"need at least (\d+) MB", said)
    assert code == 2 and named is not None, said
    code, said = run(f"{named[1]}MB")
    assert code == 0, said
    code, said = run(f"{int(int(named[1]) * 1e6 / 1.05)}")
    assert code == 2 and "is too small" in said, said


@pytest.mark.parametrize("command", [["run", "-p", "a"], ["inspect"], ["verify"]], ids=lambda c: c[0])
def test_what_is_no_bundle_is_refused(command: list[str], tmp_path: Path) -> None:
    file, empty = tmp_path / "file", tmp_path / "empty"
    file.write_text("{}")
    empty.mkdir()
    refused(
        edgekit(*command, tmp_path / "missing"), "missing: cannot open", "give the path of an exported bundle"
    )
    (tmp_path / "llada-int4").mkdir()
    (tmp_path / "llada-int4" / "edgekit.json").write_text("{}")
    refused(edgekit(*command, tmp_path / "lada-int4"), "cannot open", "did you mean llada-int4?")
    refused(edgekit(*command, file), "is a file; give the folder of a bundle")
    refused(edgekit(*command, empty), "has no edgekit.json", "--resume")


@pytest.mark.parametrize("command", [["run", "-p", "a"], ["inspect"], ["verify"]], ids=lambda c: c[0])
def test_bundles_in_and_around_what_is_none_are_named(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", "d", "set"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("bundles.json" if name == "set" else "edgekit.json")).write_text("{}")
    said = f"--resume continues; did you mean {tmp_path}/a, {tmp_path}/b, {tmp_path}/c or 2 more?"
    refused(edgekit(*command, tmp_path), said)
    (tmp_path / "a" / "packages" / "final").mkdir(parents=True)
    for below in ("packages", "packages/final"):
        refused(edgekit(*command, tmp_path / "a" / below), f"did you mean {tmp_path}/a?")
    refused(edgekit(*command, tmp_path / "a" / "edgekit.json"), "is a file", f"did you mean {tmp_path}/a?")
    monkeypatch.chdir(tmp_path)
    refused(edgekit(*command, "a/packages"), "a/packages: has no edgekit.json", "did you mean a?")
    monkeypatch.chdir("a/packages")
    refused(edgekit(*command, "."), f"did you mean {tmp_path}/a?")


def test_run_refuses_damaged_weights(copy: Path) -> None:
    weights = copy / "weights.safetensors"
    with FlashFile(weights) as file:
        run = file.run("layers.1")
    flip(weights, run.offset + 100)
    refused(edgekit("run", copy, "-p", "a"), "weights.safetensors: run layers.1 has xxh3")
    os.truncate(weights, run.offset)
    refused(edgekit("run", copy, "-p", "a"), "weights.safetensors")


def test_a_finished_answer_is_not_lost_with_the_weights(
    native_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgekit.tools import answer_display as answers

    copy = Path(shutil.copytree(native_bundle, tmp_path / "copy"))
    real = answers.answer

    def then_gone(*arguments: Any) -> Any:
        result = real(*arguments)
        (copy / "weights.safetensors").unlink()
        return result

    monkeypatch.setattr(answers, "answer", then_gone)
    result = edgekit("run", copy, "-p", "Hello", "--max-new-tokens", "8", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["token_ids"] and printed["plan"]["pinned_runs"] > 0


# --- inspect ------------------------------------------------------------------------------------------------


def test_inspect_shows_what_is_in_a_bundle(gemma_bundle: Path) -> None:
    result = edgekit("inspect", gemma_bundle, "--memory", "8GB", "--runs", "--tensors")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for said in (
        "diffusion_gemma",
        "6 layers with 4 experts",
        "self-conditioning",
        "quantization: mixed4, groups of 16 and 32",
        "programs: onnx (onnx-3)",
        "memory of 8 GB",
        "layers.0.experts.3",
        "layers.5.self_attn.q_proj",
        "the vision tower is left out",
        "entropy_bound",
        "written with",
    ):
        assert said in result.stdout
    assert max(map(len, result.stdout.splitlines())) < 500 and "\x1b" not in result.stdout


def test_what_a_manifest_says_does_not_reach_the_terminal_as_commands(copy: Path) -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\x9b\u202e"

    def change(table: dict[str, Any]) -> None:
        table["programs"] |= {"format": hostile, "layout": hostile}
        table["quantization"] |= {
            "preset": hostile,
            "overrides": [{"pattern": hostile, "bits": 8}],
            "notes": [hostile],
        }
        table["quantization"]["roles"][0]["role"] = hostile
        table["sampler"] |= {"name": hostile}
        table["provenance"] |= {
            "checkpoint": hostile, "target": hostile, "notes": [hostile], "versions": {hostile: hostile},
        }  # fmt: skip

    sealing.edit(copy, change)
    hidden = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
    for words in ["inspect", "--tensors", "--runs"], ["verify"], ["options"], ["run", "-p", "a"]:
        result = edgekit(words[0], copy, *words[1:])
        assert not hidden.search(result.output), (words, result.output)
        if words[0] == "inspect":
            assert result.exit_code == 0
            assert "override ␛]0;title␇␛[2J<U+009B><U+202E> = 8 bits" in result.stdout


def test_inspect_json_agrees_with_the_flash_file(tiny_bundle: Path) -> None:
    result = edgekit("inspect", tiny_bundle, "--memory", "8GB", "--runs", "--tensors", "--json")
    found = json.loads(result.stdout)
    with FlashFile(tiny_bundle / "weights.safetensors") as file:
        assert [(r["name"], r["bytes"], r["xxh3"]) for r in found["runs"]] == [
            (r.name, r.length, r.xxh3) for r in file.layout.runs
        ]
    assert found["sizes"]["weights"] == (tiny_bundle / "weights.safetensors").stat().st_size
    roles = {(t["role"], t["bits"]) for t in found["tensors"]}
    assert roles == {(r["role"], r["bits"]) for r in found["quantization"]["roles"]}
    assert found["plan"]["streamed_bytes"] == 0 and found["plan"]["pinned_bytes"] > 0
    assert "plan" not in json.loads(edgekit("inspect", tiny_bundle, "--json").stdout)


def test_inspect_says_when_a_budget_is_too_small(tiny_bundle: Path) -> None:
    refused(edgekit("inspect", tiny_bundle, "--memory", "1MB"), "a memory budget of 1 MB is too small")


def test_inspect_plans_for_an_engine(shipped_bundle: Callable[..., Path]) -> None:
    bundle = shipped_bundle("tiny-gemma", "native")
    plans = [
        json.loads(edgekit("inspect", bundle, "--memory", "8GB", "--json", *engine).stdout)["plan"]
        for engine in ((), ("--engine", "torch"))
    ]
    assert plans[0]["activation_bytes"] < plans[1]["activation_bytes"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process counts for nothing")
@pytest.mark.parametrize("written", ["native", "onnx"])
def test_run_takes_the_budget_that_inspect_takes(written: str, shipped_bundle: Callable[..., Path]) -> None:
    """Both are processes of their own, and run's is the larger one."""
    bundle = shipped_bundle("tiny-gemma", written)

    def said(*words: str) -> tuple[int, str]:
        started = process(*words, stdin=subprocess.DEVNULL)
        stdout, stderr = started.communicate(timeout=60)
        return started.returncode, stdout + stderr

    def named(*words: str) -> int:
        code, text = said(*words, "--memory", "1MB")
        found = re.search(r"need at least (\d+) MB", " ".join(text.split()))
        assert code == 2 and found, text
        return int(found[1])

    inspect, run = ["inspect", str(bundle)], ["run", str(bundle), "What is 23 + 45?"]
    enough, needed = named(*inspect), named(*run)
    assert needed <= enough <= 1.05 * needed
    for words in (inspect, run):
        code, text = said(*words, "--memory", f"{enough}MB")
        assert code == 0, text


# --- verify -------------------------------------------------------------------------------------------------


def test_verify_passes_a_whole_bundle(tiny_bundle: Path) -> None:
    result = edgekit("verify", tiny_bundle)
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(edgekit("verify", tiny_bundle, "--json").stdout)
    kinds = Counter(item["kind"] for item in found["items"])
    with FlashFile(tiny_bundle / "weights.safetensors") as file:
        assert kinds["run"] == len(file.runs)
    said = f"all is as it was written: {kinds['file']} files and {kinds['run']} runs, "
    assert set(kinds) == {"file", "run"} and said in result.stdout
    assert found["ok"] and found["surplus"] == []
    names = {item["name"] for item in found["items"]}
    assert {"edgekit.json", "weights.safetensors", "weights.safetensors run layers.0"} <= names
    files = {p.relative_to(tiny_bundle).as_posix() for p in tiny_bundle.rglob("*") if p.is_file()}
    assert files <= names and kinds["file"] == len(files)


def damaged(bundle: Path) -> list[str]:
    """Names of the damaged items; both outputs agree on them."""
    result, found = edgekit("verify", bundle), json.loads(edgekit("verify", bundle, "--json").stdout)
    names = [item["name"] for item in found["items"] if item["damage"]]
    assert result.exit_code == edgekit("verify", bundle, "--json").exit_code == (1 if names else 0)
    assert found["ok"] is not bool(names)
    # What is wrong with a header is said once.
    told = [line.split(": ")[1] for line in result.stdout.splitlines()[:-1]]
    twice = {"weights.safetensors", "weights.safetensors header"}
    merged = len(told) == len(names) - 1 and twice <= set(names) and len(twice & set(told)) == 1
    assert told == (names if not merged else [name for name in names if name in told])
    assert "; copy" not in "".join(result.stdout.splitlines()[:-1])
    return names


def test_verify_names_the_run_and_the_file_of_a_flipped_byte(copy: Path) -> None:
    with FlashFile(copy / "weights.safetensors") as file:
        run = file.run("layers.1")
    flip(copy / "weights.safetensors", run.offset + run.length - 1)  # padding counts too
    assert damaged(copy) == ["weights.safetensors run layers.1", "weights.safetensors"]
    last = edgekit("verify", copy).stdout.splitlines()[-1]
    files, runs = sum(p.is_file() for p in copy.rglob("*")), len(file.runs)
    assert f"1 of {files} files and 1 of {runs} runs are damaged; copy or export it again" in last


def test_verify_tells_a_damaged_header_and_a_missing_file_once(copy: Path) -> None:
    flip(copy / "weights.safetensors", 20)
    assert damaged(copy) == ["weights.safetensors header", "weights.safetensors"]
    header, last = edgekit("verify", copy).stdout.splitlines()
    assert header.startswith("damaged: weights.safetensors header: its header is not the one that")
    assert "; copy or export it again" in last
    flip(copy / "weights.safetensors", 20)
    nbytes = (copy / "weights.safetensors").stat().st_size
    os.truncate(copy / "weights.safetensors", nbytes - 1)
    short, _ = edgekit("verify", copy).stdout.splitlines()
    assert short == f"damaged: weights.safetensors: has {nbytes - 1} of {nbytes} bytes"
    (copy / "weights.safetensors").unlink()
    missing, _ = edgekit("verify", copy).stdout.splitlines()
    assert missing == "damaged: weights.safetensors: is missing"


def test_verify_says_how_what_was_fetched_is_mended(copy: Path, tiny_bundle: Path) -> None:
    flip(copy / "weights.safetensors", -1)
    last = edgekit("verify", copy).stdout.splitlines()[-1]
    words = ["edgekit", "fetch", "SOURCE", str(copy), "--repair"]
    assert last.endswith(f"copy or export it again, or bring the damaged parts: {shlex.join(words)}")
    mended = edgekit(*(tiny_bundle if word == "SOURCE" else word for word in words[1:]))
    assert mended.exit_code == 0, mended.output
    assert edgekit("verify", copy).exit_code == 0


def test_verify_finds_a_flipped_byte_in_every_other_file(copy: Path) -> None:
    files = [
        p for p in copy.rglob("*") if p.is_file() and p.name not in ("edgekit.json", "weights.safetensors")
    ]
    assert {p.suffix for p in files} >= {".json", ".onnx"}
    for path in files:
        whole = path.read_bytes()
        flip(path, len(whole) // 2)
        assert damaged(copy) == [path.relative_to(copy).as_posix()]
        path.write_bytes(whole)
    assert damaged(copy) == []


def test_verify_finds_damage_in_the_header_and_the_manifest(copy: Path) -> None:
    weights = copy / "weights.safetensors"
    with FlashFile(weights) as file:
        padding = file.layout.data_start - 1
    flip(weights, padding)
    assert "weights.safetensors" in damaged(copy)
    flip(weights, padding)
    flip(copy / "edgekit.json", 0)
    assert damaged(copy) == ["edgekit.json"]
    assert edgekit("verify", copy).stdout.endswith("1 of 1 file is damaged; copy or export it again\n")


def test_verify_finds_short_long_and_missing_files(copy: Path) -> None:
    program = next((copy / "programs").iterdir())
    weights = copy / "weights.safetensors"
    program.unlink()
    with open(copy / "quantization.json", "ab") as file:
        file.write(b" ")
    os.truncate(weights, weights.stat().st_size - 1)
    assert set(damaged(copy)) >= {f"programs/{program.name}", "quantization.json", "weights.safetensors"}
    result = edgekit("verify", copy)
    assert f"programs/{program.name}: is missing" in result.stdout


@pytest.mark.parametrize("name", ["weights.safetensors", "quantization.json"])
def test_verify_does_not_call_a_file_damaged_that_may_not_be_read(
    name: str, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access
    # Tests may run as root, who may read everything.
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != name and real(path, mode))
    refused(edgekit("verify", tiny_bundle), f"{name}: cannot be read (Permission denied)")


def test_verify_names_no_file_surplus_where_the_manifest_cannot_be_read(copy: Path) -> None:
    (copy / "edgekit.json").write_text("{")
    result = edgekit("verify", copy)
    assert result.exit_code == 1 and "damaged: edgekit.json" in result.stdout
    assert "is not part of the bundle" not in result.stderr


def test_verify_mentions_files_that_are_not_part_of_the_bundle(copy: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    result = edgekit("verify", copy)
    assert result.exit_code == 0 and "notes.txt is not part of the bundle" in result.stderr


# --- export -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quant", "int3"], "unknown preset 'int3'; did you mean int8 or int4? supported: bf16,"),
        (["--quant", "mixd4"], "unknown preset 'mixd4'; did you mean mixed4? supported: bf16, int8, mixed4"),
        (["--format", "mlx"], "does not run format 'mlx'; did you mean --target mac? supported: native"),
        (["--format", "natve"], "does not run format 'natve'; did you mean native? supported: native, onnx"),
        (["--target", "ios17"], "unknown target 'ios17'; did you mean ios? supported: host, mac, ios"),
        (["--format", "gguf"], "target host does not run format 'gguf'; supported: native, onnx"),
        (["--group-size", "48"], "group size 48 is not supported"),
        (["--override", "layers.*"], "override 'layers.*' is not PATTERN=BITS"),
        (["--override", "layer.*=8"], "override 'layer.*' matches no weight"),
        (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
    ],
)
def test_export_refuses_in_one_line(words: list[str], said: str, tiny_bundle: Path, tmp_path: Path) -> None:
    result = edgekit("export", tiny_bundle.parent / "checkpoint", "-o", tmp_path / "out", "--json", *words)
    refused(result, said)
    assert not (tmp_path / "out").exists()


def test_export_refuses_folders_that_are_in_use(tiny_bundle: Path, tmp_path: Path) -> None:
    checkpoint = tiny_bundle.parent / "checkpoint"
    (tmp_path / "mine").write_text("")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "weights.safetensors.partial").write_text("")
    refused(edgekit("export", checkpoint, "--json", "-o", tiny_bundle), "already holds a bundle; --overwrite")
    held = "(format onnx, preset mixed4); or give another folder"
    refused(edgekit("export", checkpoint, "--json", "-o", tiny_bundle), held)
    refused(edgekit("export", checkpoint, "--json", "-o", tmp_path), "holds files that are not a bundle")
    refused(edgekit("export", checkpoint, "--json", "-o", tmp_path / "mine"), "is a file; give a folder")
    refused(edgekit("export", checkpoint, "--json", "-o", ""), "--output is empty; name a folder")
    refused(edgekit("export", checkpoint, "--json", "--max-positions", "x"), "--max-positions is 'x'; use an")
    refused(
        edgekit("export", checkpoint, "--json", "-o", unfinished), "unfinished export; --resume continues"
    )


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], "checkpoint-host-mixed4"),
        (["--format", "native"], "checkpoint-host-mixed4"),
        (["--format", "onnx"], "checkpoint-host-onnx-mixed4"),
        (["--format", "onnx", "--quant", "int8"], "checkpoint-host-onnx-int8"),
        (["--target", "mac"], "checkpoint-mac-mixed4"),
        (["--target", "ios"], "checkpoint-ios-mixed4"),
        (["--target", "ios", "--format", "coreml"], "checkpoint-ios-coreml-mixed4"),
        (["--target", "ios", "--min-os", "27"], "checkpoint-ios-coreai-mixed4"),
    ],
)
def test_every_format_has_a_default_folder_of_its_own(
    words: list[str], folder: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("host", "mac", "ios", "host-onnx", "ios-coreml", "ios-coreai"):
        for preset in ("mixed4", "int8"):
            held = tmp_path / f"checkpoint-{name}-{preset}"
            held.mkdir()
            (held / "diary").touch()
    result = edgekit("export", tiny_bundle.parent / "checkpoint", "--json", *words)
    refused(result, f" {folder}: holds files that are not a bundle")


def test_a_folder_that_cannot_be_written_to_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgekit.export.errors import ExportError
    from edgekit.export.output_folder import examine

    monkeypatch.setattr("os.access", lambda *_: False)
    below = tmp_path / "x"
    for output, said in ((tmp_path, f"{tmp_path}: cannot"), (below, f"{below}: {tmp_path} cannot")):
        with pytest.raises(ExportError) as caught:
            examine(output, "weights.safetensors", resume=False, overwrite=False)
        assert str(caught.value) == f"{said} be written to; give another folder"


def test_a_file_system_without_room_for_files_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgekit.export.errors import ExportError
    from edgekit.export.output_folder import check_space

    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))
    with pytest.raises(ExportError, match=f"{tmp_path} cannot be written to; give another folder$"):
        check_space(tmp_path / "x", 1)


@pytest.mark.parametrize(
    ("words", "missing", "said"),
    [
        (["tiny-gemma", "--target", "mac"], "mlx", "needs the package mlx: pip install 'edgekit[mac]'"),
        (["no/such"], "huggingface_hub", "needs huggingface_hub: pip install 'edgekit[hub]'"),
        (["no-such"], "none", "no-such: no such directory"),
    ],
)
def test_export_refuses_before_it_loads_pytorch(words: list[str], missing: str, said: str) -> None:
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "from edgekit.tools.cli import main\n"
        "try:\n"
        f"    main(['export', *{words!r}, '--json'])\n"
        "finally:\n"
        "    print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "False\n") and said in done.stderr


def test_a_demo_refuses_before_it_exports(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "out"
    refused(edgekit("demo", "-o", out, "--memory", "10MB"), "--memory 10MB: ", "the process alone takes")
    assert not out.exists()
    ended = process("demo", "-o", "file", cwd=tmp_path)
    assert ended.communicate()[1] == "edgekit: error: file: is a file; give a folder\n"
    assert ended.returncode == 2


def test_export_refuses_what_is_no_model(tmp_path: Path) -> None:
    refused(edgekit("export", "no-such-model", "--json"), "no-such-model: no such directory", "tiny-gemma")
    refused(edgekit("export", "tiny-gema", "--json"), "tiny-gema: no such", "did you mean tiny-gemma?")
    refused(edgekit("export", tmp_path, "--json", "-o", tmp_path / "out"), "config.json")


def wait_for(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    while not condition():
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)


def test_resume_says_where_there_is_nothing_to_go_on_with(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgekit.export.errors import ExportError

    def stopping(*given: object) -> None:
        raise ExportError("that is all")

    monkeypatch.setattr("edgekit.export.pipeline.write", stopping)
    words = ["export", tiny_bundle.parent / "checkpoint", "-o", tmp_path / "new"]
    said = f"note: {tmp_path / 'new'} has nothing to go on with; the export begins anew"
    assert said in edgekit(*words, "--resume").stderr.splitlines()
    assert said not in edgekit(*words).stderr.splitlines()


def test_an_interrupted_export_goes_on_with_resume(tiny_bundle: Path, tmp_path: Path) -> None:
    checkpoint = tiny_bundle.parent / "checkpoint"
    out = tmp_path / "checkpoint-host-mixed4"  # the default folder
    begun = process("export", checkpoint, "--json", cwd=tmp_path)
    # Programs are compiled for seconds after the weights are in place.
    wait_for((out / "weights.safetensors").exists, begun)
    begun.send_signal(signal.SIGINT)
    stdout, stderr = begun.communicate()
    assert (begun.returncode, stdout) == (130, "")
    assert stderr.splitlines() == [
        f"edgekit: interrupted; the same command with --resume goes on where it stopped in {out.name}"
    ]
    refused(edgekit("run", out, "-p", "a"), "has no edgekit.json", "--resume")

    resumed = process("export", checkpoint, "--resume", cwd=tmp_path)
    stdout, stderr = resumed.communicate()
    assert resumed.returncode == 0, stderr
    assert f"next: edgekit run {out.name} 'Why is the sky blue?'" in stdout and "mlp" in stdout
    assert "\x1b" not in stderr and len(stderr.splitlines()) < 10
    assert edgekit("verify", out).exit_code == 0
    manifest = json.loads((out / "edgekit.json").read_text())
    assert manifest["provenance"]["checkpoint"] == "checkpoint"
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    again = json.loads(edgekit("export", checkpoint, "-o", out, "--resume", "--json").stdout)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    assert again["quantization"].items() <= manifest["quantization"].items()
    ours, theirs = (run_json(b, "--max-new-tokens", "8")["token_ids"] for b in (out, tiny_bundle))
    assert ours == theirs


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "; the same command with --resume goes on where it stopped in OUT"),
        (["--resume"], "; the same command goes on where it stopped in OUT"),
        (["--overwrite"], "; the same command with --resume in place of --overwrite goes on where it "
                          "stopped in OUT"),
        (["--if-interrupted", "run the same command again"], "; run the same command again"),
    ],
)  # fmt: skip
def test_how_an_interrupted_export_goes_on(
    words: list[str], hint: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgekit.export import pipeline

    def interrupted(plan: Any, folder: Path, steps: Any) -> None:
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "write", interrupted)
    out = tmp_path / "out"
    result = edgekit("export", tiny_bundle.parent / "checkpoint", "-o", out, "--json", *words)
    assert result.exit_code == 130
    assert result.stderr == f"edgekit: interrupted{hint.replace('OUT', str(out))}\n"


def test_an_export_that_wrote_nothing_has_nothing_to_go_on_with(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgekit.export import sets

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sets, "plan_together", interrupted)
    result = edgekit("export", tiny_bundle.parent / "checkpoint", "-o", tmp_path / "out", "--json")
    assert (result.exit_code, result.stderr) == (130, "edgekit: interrupted\n")


# --- terminals ----------------------------------------------------------------------------------------------


def on_terminal(
    *words: str | Path, interrupt_after: str | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit code and everything that a terminal of 80 x 24 receives."""
    master, slave = pty.openpty()
    variables = {
        **os.environ,
        "TERM": "xterm-256color",
        "COLUMNS": "80",
        "LINES": "24",
        **(environment or {}),
    }
    started = process(*words, stdin=slave, stdout=slave, stderr=slave, env=variables, start_new_session=True)
    os.close(slave)
    received = b""
    while True:
        ready, _, _ = select.select([master], [], [], 0.1)
        if not ready and started.poll() is not None:
            break
        if ready:
            try:
                received += os.read(master, 65536)
            except OSError:  # Linux says so when the other side is closed
                break
        if interrupt_after is not None and interrupt_after in received.decode(errors="replace"):
            started.send_signal(signal.SIGINT)
            interrupt_after = None
    os.close(master)
    return started.wait(), received.decode(errors="replace")


def assert_clean(received: str) -> None:
    """The cursor is visible, lines wrap, colours are off at the end."""
    for on, off in (("\x1b[?25h", "\x1b[?25l"), ("\x1b[?7h", "\x1b[?7l")):
        assert received.rfind(on) > received.rfind(off)


def test_watch_draws_the_canvas_and_leaves_the_terminal_clean(gemma_bundle: Path) -> None:
    code, received = on_terminal("run", gemma_bundle, "-p", "Hello", "--watch", "--resident", "0")
    assert code == 0
    assert "╭" in received and "╰" in received
    assert re.search(r"step \d/8 · \d+% accepted · [\d.]+ [kM]B read", received)
    assert_clean(received)
    # The panel is erased; what stays is the text and one line of statistics.
    last = received[received.rfind("\x1b[?7h") :]
    assert "╭" not in last and "denoising steps" in last


def test_an_interrupted_watch_leaves_the_terminal_clean(tiny_bundle: Path) -> None:
    words = [
        "run",
        tiny_bundle,
        "-p",
        "Hello",
        "--watch",
        "--max-new-tokens",
        "400",
        "--set",
        "stop_at_eos=false",
    ]
    code, received = on_terminal(*words, interrupt_after="/13, step")
    assert code == 130, received[-1000:]
    assert received.rstrip().endswith("edgekit: interrupted")
    assert_clean(received)


def test_progress_stands_behind_the_text_and_is_erased(tiny_bundle: Path) -> None:
    words = ["run", tiny_bundle, "-p", "Hello", "--max-new-tokens", "128", "--set", "stop_at_eos=false"]
    code, received = on_terminal(*words)
    assert code == 0 and re.search(r"block \d/4, step \d+/32", received)
    # Every remark is written after the cursor was saved, and the cursor goes back before anything else.
    assert received.count("\x1b7") >= received.count("\x1b8") >= 1
    last = received[received.rfind("\x1b8\x1b[K") :]
    assert "block" not in last and "denoising steps" in last
    assert_clean(received + "\x1b[?25h")


def test_names_of_settings_are_not_split_in_a_narrow_terminal(native_bundle: Path) -> None:
    code, received = on_terminal("options", native_bundle, environment={"COLUMNS": "40"})
    assert code == 0 and "max_new_tokens" in received


def test_a_dumb_terminal_gets_plain_text(tiny_bundle: Path) -> None:
    words = ["run", tiny_bundle, "-p", "Hello", "--max-new-tokens", "8", "--watch"]
    code, received = on_terminal(*words, environment={"TERM": "dumb"})
    assert code == 0 and "\x1b[" not in received and "needs a terminal" in received


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX closes descriptors so")
@pytest.mark.parametrize("closed", [0, 1, 2])
@pytest.mark.parametrize(
    "words", [("inspect",), ("verify",), ("run", "Copy this: red 7")], ids=lambda w: w[0]
)
def test_closed_streams_are_nowhere(tiny_bundle: Path, words: tuple[str, ...], closed: int) -> None:
    command, *rest = words
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}{"<" if closed == 0 else ">"}&-', "sh",
         sys.executable, "-m", "edgekit", command, str(tiny_bundle), *rest],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout or closed == 1
    assert "rror" not in done.stderr


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_pipe_without_end_is_refused(tiny_bundle: Path, command: str) -> None:
    with Path("/dev/zero").open("rb") as endless:
        done = subprocess.run(
            [sys.executable, "-m", "edgekit", command, str(tiny_bundle)],
            stdin=endless,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2 and "on stdin has more than 16 MB; give less" in done.stderr
