"""The house rules that a machine can check: lint, types, and which part may import what."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.tools.failures import extras_by_package

ROOT = Path(__file__).parents[1]
IMPORT_CONTRACTS = Path(__file__).parent / "support" / "import_contracts.py"
FOLDERS = ("export", "runtime", "flashload", "targets", "tools")
#: What engines and formats bring, and the library that models come from.
FRAMEWORKS = ("transformers", *(extras_by_package().keys() - {"huggingface_hub"}))


def tool(*command: str, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff_finds_nothing() -> None:
    tool("ruff", "check", "--no-cache")


def test_ruff_would_format_nothing() -> None:
    tool("ruff", "format", "--check", "--no-cache")


def test_mypy_finds_nothing() -> None:
    # The folders and the links that `make lint` uses, so that both share one cache.
    links = ROOT / "build" / "links" / "edgekit"
    links.mkdir(parents=True, exist_ok=True)
    own = [Path("edgekit", path.name) for path in (ROOT / "edgekit").iterdir() if path.is_file()]
    for target in (*map(Path, FOLDERS), *own):
        link = links / target.name
        if not link.is_symlink():
            link.symlink_to(Path("..", "..", "..", target))
    tool("mypy", "--explicit-package-bases", "-p", "edgekit", MYPYPATH="build/links")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with edgekit's Python files, as an installation has them."""
    folder = tmp_path_factory.mktemp("copied")
    for part in (*FOLDERS, "edgekit"):
        below = folder / "edgekit" if part == "edgekit" else folder / "edgekit" / part
        for path in (ROOT / part).rglob("*.py"):
            copy = below / path.relative_to(ROOT / part)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    return folder


def check_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, IMPORT_CONTRACTS, ROOT / "pyproject.toml"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_imports_keep_the_contracts_and_form_no_circle(copied: Path) -> None:
    result = check_imports(copied)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "found"),
    [
        (
            "flashload/sizes.py",
            "from edgekit.runtime.errors import EngineFailed",
            r"edgekit\.flashload\.sizes -> edgekit\.runtime\.errors",
        ),
        (
            "runtime/bundle/sections.py",
            "def late() -> None:\n    import edgekit.runtime.session.memory",
            r"edgekit\.runtime\.bundle\.sections -> edgekit\.runtime\.session\.memory",
        ),
        (
            "export/ops.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from edgekit.export import programs",
            r"No cycles are allowed in edgekit\.export\.",
        ),
        (
            "runtime/tokenizer/errors.py",
            "from edgekit.runtime.tokenizer import Tokenizer",
            r"in a circle: .*edgekit\.runtime\.tokenizer\.errors -> edgekit\.runtime\.tokenizer\b",
        ),
        ("runtime/process.py", "import torch", r"edgekit\.runtime\.process -> torch"),
        ("runtime/prompt_text.py", "import tokenizers", r"edgekit\.runtime\.prompt_text -> tokenizers"),
        ("export/weights.py", "def f(): import transformers", r"edgekit\.export\.weights -> transformers"),
        ("targets/mac.py", "import onnxruntime", r"edgekit\.targets\.mac -> onnxruntime"),
        ("targets/host.py", "import rich.table", r"edgekit\.targets\.host -> rich"),
        ("runtime/added.py", "", r"edgekit\.runtime\.added"),
    ],
    ids=["upwards", "in a function", "for types", "a package's file", "torch", "texts", "transformers",
         "reports", "framework", "module without a place"],
)  # fmt: skip
def test_an_import_that_breaks_a_contract_is_named(
    copied: Path, tmp_path: Path, module: str, line: str, found: str
) -> None:
    shutil.copytree(copied / "edgekit", tmp_path / "edgekit")
    with (tmp_path / "edgekit" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{line}\n")
    result = check_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(found, result.stdout), result.stdout


@pytest.mark.parametrize(
    "module", ["edgekit", "edgekit.tools.cli", "edgekit.runtime", "edgekit.flashload", "edgekit.export"]
)
def test_importing_brings_in_no_framework(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({set(FRAMEWORKS)} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_the_flash_part_of_the_core_includes_nothing_of_the_rest() -> None:
    flash, rest = (ROOT / part / "native" / "src" for part in ("flashload", "runtime"))
    included = [
        (path.name, name)
        for path in sorted(flash.rglob("*.*"))
        for name in re.findall(r'^#include "(.+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert included
    assert not [(file, name) for file, name in included if (rest / name).exists()]
