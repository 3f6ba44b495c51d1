"""docs/fetch.md, run as it is written, with servers on this machine in place of those that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.arriving import contents
from support.range_server import RangeServer

from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.tools.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "fetch.md").read_text(encoding="utf-8")


def test_the_commands_and_the_program_of_the_page_run(
    shipped_bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle: Path = shipped_bundle("tiny-llada", "native")
    seal = (bundle / MANIFEST_NAME).read_bytes()[15:79].decode()
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ edgekit (.*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    program = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(commands) == 5 and program is not None
    with RangeServer(bundle) as server, RangeServer(bundle) as mirror:
        here = {
            "https://example.com/models/llada": server.url,
            "https://mirror.example.org/llada": mirror.url,
            "/media/stick/llada": str(bundle),
            "8d96...": seal,
            "1.5GB": "8GB",  # the worker of the tests is counted too
        }

        def as_here(text: str) -> str:
            for name, own in here.items():
                text = text.replace(name, own)
            return text

        said = []
        for line in commands:
            done = CliRunner().invoke(main, as_here(line).split())
            assert done.exit_code == 0, done.output
            said.append(done.stdout)
            assert contents(tmp_path / "llada") == contents(bundle)
        assert "every checksum is right" in said[0] and "has this bundle already" in said[1]
        assert "had not changed" in said[3]  # --repair
        exec(compile(as_here(program[1]), "fetch.md", "exec"), {})
    assert capfd.readouterr().out.strip()


def test_what_begins_a_manifest(shipped_bundle) -> None:
    """`head -c 79`: the digits are its last 64."""
    assert "head -c 79" in PAGE
    data = (shipped_bundle("tiny-llada", "native") / MANIFEST_NAME).read_bytes()[:79]
    assert re.fullmatch(rb'\{\n  "sha256": "[0-9a-f]{64}', data)
