"""`edgekit doctor`: what it finds, what it says of what is missing or broken, and what it keeps to itself."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgekit.export.errors import ExportError
from edgekit.export.formats.row import FormatRow
from edgekit.runtime.engine_registry import ENGINES, EngineRow
from edgekit.runtime.engines.coreai import version as coreai_version
from edgekit.targets import TARGETS
from edgekit.tools.cli import main
from edgekit.tools.doctor import engines, installation, machine, opening, targets
from edgekit.tools.doctor.finding import Finding

ROW = EngineRow("warp", format="warp", title="a test", factory="")


def doctor(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["doctor", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.stdout


def test_this_machine_is_examined_and_nobody_is_named(tmp_path: Path) -> None:
    said = doctor("--json", "--disk", tmp_path)
    assert str(tmp_path) not in said and str(Path.home()) not in said
    assert not re.search(rf"\b{re.escape(platform.node())}\b", said)
    found = {each["about"]: each for each in json.loads(said)["findings"]}
    assert {f"engine {name}" for name in ENGINES} | {f"target {name}" for name in TARGETS} <= set(found)
    assert found["edgekit"]["state"] == found["engine native"]["state"] == "works"
    assert found["processor"]["says"].count(" TOP/s") == 2
    assert found["processor"]["facts"]["int8_operations_per_second"] > 1e6
    assert found["disk"]["facts"]["bytes_per_second"] > 1e6
    assert found["disk"]["facts"]["io_mode"].split()[0] in ("direct", "nocache", "buffered")
    assert "native" in found["target host"]["facts"]["runs"]
    assert not list(tmp_path.iterdir()), "what was written for the disk is gone"


def test_people_read_a_line_for_each() -> None:
    said = doctor("--no-measure")
    lines = said.splitlines()
    assert lines[0].startswith("ok") and "edgekit" in lines[0] and not any(" disk " in line for line in lines)
    assert "broken" in lines[-1] and "not there" in lines[-1]


def test_a_disk_that_cannot_be_tried(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, says in (
        (["--disk", str(tmp_path / "nowhere")], "no such folder"),
        (["--disk", str(tmp_path / "file")], "is no folder"),
        (["--disk", str(tmp_path), "--no-measure"], "--no-measure times nothing"),
    ):
        done = CliRunner().invoke(main, ["doctor", *words])
        assert done.exit_code == 2 and says in done.output
    if Path("/proc/self").is_dir():
        (found,) = [
            each for each in machine.examine(Path("/proc/self"), measure=True) if each.about == "disk"
        ]
        assert found.state == "broken" and "/proc" not in found.says and found.mend


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Finding]]:
    """What is said where packages have other versions."""

    def examined(**versions: str) -> list[Finding]:
        real = importlib.metadata.version

        def version(name: str) -> str:
            return versions.get(name.replace("-", "_")) or real(name)

        monkeypatch.setattr(importlib.metadata, "version", version)
        return [each for each in installation.examine() if each.about == "packages"]

    return examined


def of(package: str, found: list[Finding]) -> Finding:
    (own,) = [each for each in found if each.facts.get("package") == package]
    return own


def test_versions_that_do_not_go_together_are_broken(installed: Callable[..., list[Finding]]) -> None:
    found = of("onnxruntime", installed(onnxruntime="1.2.0"))
    assert found.state == "note", "it may be there for something else"
    assert "onnxruntime 1.2.0" in found.says and "edgekit[onnx]" in found.says
    assert found.mend.startswith("pip install 'onnxruntime") and ">=1.30" in found.mend


def test_packages_that_overwrite_each_other_are_broken(installed: Callable[..., list[Finding]]) -> None:
    *_, found = installed(onnxruntime="1.31.1", onnxruntime_webgpu="1.27.0")
    assert found.state == "broken" and "overwrite" in found.says and "pip uninstall" in found.mend


def test_what_is_always_needed_is_looked_at_too(installed: Callable[..., list[Finding]]) -> None:
    found = of("click", installed(click="7.0"))
    assert found.state == "broken" and "edgekit takes" in found.says
    assert of("numpy", installed(numpy="my own build")).state == "broken"


@pytest.mark.parametrize(
    ("out", "errors", "state", "said"),
    [
        ('noise\n{"works": "on a GPU"}\n', "", "works", "on a GPU"),
        ('{"lacks": "it needs x: pip install \'edgekit[x]\'"}', "", "lacks", "needs x"),
        ('{"broken": "ImportError: no symbol"}', "", "broken", "no symbol"),
        ("", "first\nSegmentation fault\n", "broken", "Segmentation fault"),
        ("not JSON", "", "broken", "it says nothing"),
    ],
)
def test_what_an_engine_says_as_it_opens(
    monkeypatch: pytest.MonkeyPatch, out: str, errors: str, state: str, said: str
) -> None:
    def run(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], -11 if errors else 0, out, errors)

    monkeypatch.setattr(engines, "run_tidily", run)
    found = engines._opened(ROW)
    assert (found.about, found.state) == ("engine warp", state) and said in found.says
    assert found.mend == ("pip install 'edgekit[x]'" if state == "lacks" else "")


def test_an_engine_that_is_not_opened_says_so_and_its_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EngineRow, "check_available", lambda self: None)
    monkeypatch.setattr(coreai_version, "installed", lambda: "1.2")
    for name, says in (("coreai", "coreai-core 1.2; it is not opened here"), ("coreml", "not opened here")):
        opening.main(name)
        assert says in json.loads(capsys.readouterr().out)["works"]


def test_an_engine_that_never_answers_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("x", 120)

    monkeypatch.setattr(engines, "run_tidily", run)
    assert engines._opened(ROW).state == "broken"


def test_targets_say_what_brings_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: FormatRow, device: str | None = None) -> None:
        if self.name != "native":
            raise ExportError(f"format {self.name} {self.lacks('thing')}")

    monkeypatch.setattr(FormatRow, "check_installed", check)
    works = {name: Finding(f"engine {name}", "works", "") for name in ("native", "mlx")}
    found = {each.facts["target"]: each for each in targets.examine(works)}
    assert found["host"].state == "works" and found["host"].facts["runs"] == [
        "native",
    ]
    assert found["mac"].state == "lacks" and found["mac"].mend == "pip install 'edgekit[mac]'"
    assert found["ios"].state == "note" and found["ios"].facts["exports"] == ["native"]


def test_reports_have_no_folders() -> None:
    for text, told in (
        ("/home/ada/.venv/lib/libx.so: cannot open", ".../libx.so: cannot open"),
        ("in 'C:\\Users\\ada\\x.dll', gone", "in '.../x.dll', gone"),
        ("1.5 GB/s of 2 TOP/s and/or more", "1.5 GB/s of 2 TOP/s and/or more"),
    ):
        found = Finding("engine x", "broken", text, text).as_dict()
        assert found["says"] == found["mend"] == told


def test_the_exit_code_tells_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        installation, "examine", lambda: [Finding("edgekit", "broken", "all of it", "mend it")]
    )
    monkeypatch.setattr(engines, "examine", lambda: [])
    said = doctor("--no-measure", code=1)
    assert "BROKEN edgekit" in said and "mend: mend it" in said


@pytest.mark.skipif(os.name == "nt", reason="needs /proc")
def test_memory_that_a_group_limits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"memory_bytes": 512 << 20}
    monkeypatch.setattr(machine, "_meminfo", lambda name: 8 << 30)
    found = machine._memory(made)
    assert found.state == "note" and "control group" in found.says and "too little" in found.says
