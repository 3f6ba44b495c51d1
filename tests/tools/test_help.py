"""Help pages fit one screen, and what they and the commands suggest works as it stands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import sealing

from edgekit.targets import TARGETS
from edgekit.tools.cli import COMMANDS, EXAMPLES, main
from edgekit.tools.command_pages import reference
from edgekit.tools.commands.demo import TASKS
from edgekit.tools.help import Command

#: A page in a terminal of 100 columns; one of 80 wraps a little more.
SCREEN = {100: 37, 80: 40}
#: Commands that download.
ONLINE = "GSAI-ML/"


def shell(line: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """What a shell does with a line, where `edgekit` is installed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        line, shell=True, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        input=stdin,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done


def examples_of(command: str) -> tuple[str, ...]:
    found = main.get_command(main.make_context("edgekit", [command]), command)
    assert isinstance(found, Command)
    return found.examples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of somebody who follows the pages."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def exported(folder: Path) -> str:
    """What the first example of `export` printed; its bundle is what other pages go on with."""
    (line, *_) = examples_of("export")
    return shell(line, folder).stdout


@pytest.fixture(scope="module")
def demonstrated(folder: Path) -> str:
    (line,) = examples_of("demo")
    return shell(line, folder).stdout


@pytest.mark.parametrize("columns", SCREEN)
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_a_page_is_one_screen_with_examples(command: str, columns: int) -> None:
    words = [command, "--help"] if command else ["--help"]
    lines = CliRunner().invoke(main, words, terminal_width=columns).stdout.splitlines()
    assert len(lines) <= SCREEN[columns]
    assert max(map(len, lines)) <= columns
    shown = lines[lines.index("Examples:") + 1 :]
    for example in examples_of(command) if command else EXAMPLES:
        assert f"  {example}" in shown


def test_rare_options_have_a_page() -> None:
    short, full = (CliRunner().invoke(main, ["export", flag]).stdout for flag in ("--help", "--help-all"))
    assert "--layers-per-chunk" in full and "--layers-per-chunk" not in short and "--help-all" in short
    assert set(re.findall(r"--[a-z-]+", short)) < set(re.findall(r"--[a-z-]+", full))


def test_without_rare_options_the_full_page_is_the_usual_one() -> None:
    for name in ("doctor", "sweep", "targets"):
        short, full = (CliRunner().invoke(main, [name, flag]) for flag in ("--help", "--help-all"))
        assert full.exit_code == 0 and full.stdout == short.stdout and "--help-all" not in short.stdout


def test_the_reference_holds_every_page_as_it_is() -> None:
    written = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference(), "run `python -m edgekit.tools.command_pages > docs/cli.md`"
    for name in COMMANDS:
        assert f"\n## edgekit {name}\n" in written and f"Usage: edgekit {name} " in written


def test_sizes_of_groups_are_those_of_the_targets() -> None:
    page = " ".join(CliRunner().invoke(main, ["export", "--help-all"]).stdout.split())
    sizes = {name: target.group_size for name in TARGETS if (target := TARGETS.find(name)) is not None}
    others = [f"{name}: {size}" for name, size in sizes.items() if size != sizes["host"]]
    assert f"Default: the target's ({'; '.join([str(sizes['host']), *others])})." in page
    presets = {target.preset for target in TARGETS.working()}
    assert f"Default: the target's ({' '.join(presets)})." in page


def test_every_option_is_explained_on_the_full_page() -> None:
    context = main.make_context("edgekit", ["run"])
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        rare = any("--help-all" in p.opts for p in command.params)
        page = CliRunner().invoke(main, [name, "--help-all" if rare else "--help"]).stdout
        for param in command.params:
            if param.param_type_name == "option" and not getattr(param, "hidden", False):
                assert max(param.opts, key=len) in page


def test_the_demo_gets_right_answers_and_suggests_what_works(folder: Path, demonstrated: str) -> None:
    assert re.findall(r"^(right|wrong.*)$", demonstrated, re.MULTILINE) == ["right"] * len(TASKS)
    for said in (
        "1. Export", "bits each, scales included", "> ", "Every step read", "0 B stayed in memory",
        "Peak memory of the process", "of the 256 MB allowed",
    ):  # fmt: skip
        assert said in demonstrated
    assert "\x1b" not in demonstrated
    suggested = [line.strip() for line in demonstrated.split("Next:\n")[1].splitlines()]
    assert [shlex.split(line)[1] for line in suggested] == ["run", "run", "inspect", "verify", "export"]
    for line in suggested:
        if ONLINE not in line:
            answers(line, folder)
    sealing.edit(folder / "edgekit-demo", lambda table: table["provenance"].update(checkpoint="something"))
    another = CliRunner().invoke(main, ["demo", "-o", str(folder / "edgekit-demo")])
    assert another.exit_code == 2 and "give another folder" in another.stderr


def test_the_end_of_an_export_suggests_what_works(folder: Path, exported: str) -> None:
    (line,) = re.findall(r"^next: (.*)$", exported, re.MULTILINE)
    answers(line, folder)


def answers(line: str, folder: Path) -> None:
    """The line works; where it is a prompt, with the right answer to it."""
    out = shell(line, folder, "What is 23 + 45?\n").stdout
    if "edgekit chat" in line:
        assert out == "68\n"
        return
    if "edgekit run" not in line:
        assert out.strip()
        return
    text = out
    if "--json" in line:
        found = json.loads(out)
        text = found["text"]
        # The canvas has 128 tokens: those behind the end of the answer are padding, and no part of it.
        assert 0 not in found["token_ids"] and len(found["token_ids"]) < 20
        assert found["statistics"]["committed_tokens"] == len(found["token_ids"])
    (right,) = [answer for prompt, answer in RIGHT.items() if prompt in line]
    assert text.strip() == right


#: The prompts that pages and commands suggest.
RIGHT = {
    "What is 23 + 45?": "68",
    "Repeat: red cat 42": "red cat 42",
}


def test_examples_of_batch_answer_in_order(folder: Path, exported: str) -> None:
    for line in examples_of("batch"):
        shell(line, folder)
    for name in ("out", "small"):
        found = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        assert [each["text"] for each in found] == ["68", "67"]


@pytest.mark.parametrize("command", ["", "run", "chat", "options", "inspect", "verify"])
def test_examples_run_and_answer(folder: Path, exported: str, command: str) -> None:
    for line in examples_of(command) if command else EXAMPLES:
        if not line.startswith(("edgekit demo", "edgekit export")):  # which the fixtures have run
            answers(line, folder)


def test_the_readme_begins_with_what_works_in_a_checkout() -> None:
    """No release is on an index: `pip install edgekit` would find nothing, or something else."""
    root = Path(__file__).parents[2]
    before, _, after = (root / "README.md").read_text(encoding="utf-8").partition("```console\n$ ")
    first = shlex.split(after.partition("\n")[0])
    assert "No release is on the package index" in before and "checkout" in before
    assert first[:2] == ["pip", "install"]
    extra = re.fullmatch(r"\.\[(\w+)\]", first[2])
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extra and extra[1] in project["optional-dependencies"]
