"""Completion in the shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from edgekit import targets
from edgekit.export.formats import FORMATS
from edgekit.export.presets import PRESETS
from edgekit.runtime.bundle.choice import ENGINES
from edgekit.runtime.engines.qnn.socs import SOCS
from edgekit.tools.cli import COMMANDS, main


def complete(*words: str, incomplete: str = "") -> list[str]:
    found = ShellComplete(main, {}, "edgekit", "_EDGEKIT_COMPLETE").get_completions(list(words), incomplete)
    return [f"<{item.type}>" if item.type != "plain" else item.value for item in found]


def test_names_that_a_command_knows() -> None:
    assert complete() == list(COMMANDS)
    assert complete("export", "m", "--target") == list(targets.TARGETS)
    assert complete("export", "m", "--target", incomplete="i") == ["ios"]
    assert complete("export", "m", "--format") == ["native", "onnx", "onnx-gpu", "tvm"]
    assert complete("export", "m", "--target", "mac", "--format") == ["mlx", "tvm"]
    assert complete("export", "m", "--target", "nope", "--format") == list(FORMATS)
    assert complete("export", "m", "--quant") == list(PRESETS)
    assert complete("export", "m", "--quant", incomplete="int") == ["int8", "int4"]
    assert complete("export", "m", "--precision") == ["float16", "float32"]
    assert complete("export", "m", "--activations") == ["float", "int8"]
    assert complete("export", "m", "--soc") == list(SOCS)
    assert complete("export", "m", "--soc", incomplete="sm8650,sm85") == ["sm8650,sm8550"]
    assert complete("export", "m", "--soc", incomplete="sm8550,sm85") == []
    assert complete("run", "b", "--engine") == list(ENGINES)
    assert "--memory" in complete("run", "b", incomplete="--m")


def test_settings_of_the_bundle_on_the_line(native_bundle: Path, gemma_bundle: Path, tmp_path: Path) -> None:
    for command in ("run", "chat"):
        assert complete(command, str(native_bundle), "--set", incomplete="bl") == ["block_length="]
        assert complete(command, str(gemma_bundle), "--set", incomplete="t_") == ["t_min=", "t_max="]
        for other in (tmp_path, tmp_path / "missing"):
            assert complete(command, str(other), "--set") == []
    listed = complete("run", str(native_bundle), "--set")
    assert {"max_new_tokens=", "steps=", "seed=", "temperature="} < set(listed)


def test_an_unknown_command_completes_to_nothing() -> None:
    assert complete("exprot", incomplete="x") == []


def test_folders_that_hold_something(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bundle, "deep/llada-bundle")
    shutil.copytree(tiny_bundle, "llada-a")
    for folder, file in (("llada-set", "bundles.json"), ("llada-model", "config.json"), ("llada-empty", "x")):
        Path(folder).mkdir()
        Path(folder, file).write_text("{}")
    Path("llada-file").write_text("")
    for command in ("run", "chat", "options", "inspect", "verify"):
        assert complete(command, incomplete="lla") == ["llada-a", "llada-set"]
    assert complete("run", incomplete="deep/") == [os.path.join("deep", "llada-bundle")]
    assert complete("run", incomplete=f"{tmp_path}/deep/l") == [f"{tmp_path}/deep/llada-bundle"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert complete("run", incomplete="~/deep/l") == ["~/deep/llada-bundle"]
    # On the way to one the shell shows folders.
    assert complete("run", incomplete="dee") == complete("run", incomplete="no/such/") == ["<dir>"]
    assert complete("export") == ["tiny-gemma", "tiny-llada", "tiny-block", "llada-model"]
    assert complete("export", incomplete="llada") == ["llada-model"]
    assert complete("export", "m", "-o") == ["<dir>"]


def asked(shell: str, words: str, count: int) -> str:
    """What `edgekit` answers to the shell's question, and what it imported for that."""
    code = (
        "import sys\n"
        "from edgekit.tools.cli import main\n"
        "try: main(prog_name='edgekit')\n"
        "finally: print('IMPORTED', *sorted({'torch', 'tokenizers', 'rich', 'onnx'} & set(sys.modules)))"
    )
    question = {"_EDGEKIT_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **question}, capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("shell", "words", "count", "value"),
    [("bash", "edgekit export m --quant mi", 4, "mixed4"), ("zsh", "edgekit export tiny-l", 2, "tiny-llada")],
)
def test_shells_get_their_answer_without_frameworks(shell: str, words: str, count: int, value: str) -> None:
    answer, imported = asked(shell, words, count).split("IMPORTED")
    assert value in answer and imported.split() == []


def test_settings_come_without_frameworks(native_bundle: Path) -> None:
    answer, imported = asked("zsh", f"edgekit run {native_bundle} --set temp", 4).split("IMPORTED")
    assert "temperature=" in answer and imported.split() == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script_that_the_help_names(shell: str) -> None:
    assert f"_EDGEKIT_COMPLETE={shell}_source edgekit" in main.get_help(main.make_context("edgekit", ["run"]))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_as_the_help_says(tmp_path: Path) -> None:
    script = (
        'eval "$(_EDGEKIT_COMPLETE=bash_source edgekit)"\n'
        "COMP_WORDS=(edgekit export m --quant mi) COMP_CWORD=4\n"
        "_edgekit_completion edgekit mi --quant\n"
        'echo "${COMPREPLY[@]}"'
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["mixed4"], done.stderr
