"""The house rules that a machine can check: lint, types, and which part may import what."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgekit.tools.failures import extras_by_package

ROOT = Path(__file__).parents[1]
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


def modules(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, folders
    return found


def imported(path: Path) -> Iterator[str]:
    """Every absolute module name that the file imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


HUB_MODULES = ("answers", "client", "errors", "repository", "upload")


@pytest.mark.parametrize(
    ("folders", "banned", "exceptions"),
    [
        # A bundle runs where neither is installed.
        (("runtime", "flashload", "targets"), ("torch", "edgekit.export"), ("runtime/engines/torch.py",)),
        # The weights come straight from the files: no remote code, no second definition of a model.
        (FOLDERS, ("transformers",), ()),
        # They report to their makers unless they are told not to first.
        (
            FOLDERS,
            ("onnxruntime", "huggingface_hub"),
            ("runtime/telemetry.py", *(f"runtime/hub/{n}.py" for n in HUB_MODULES)),
        ),
        # Engines bring frameworks; everything around them works without.
        (
            ("flashload", "targets", "runtime/sampling"),
            ("onnxruntime", "onnx", "tokenizers", "click", "rich"),
            (),
        ),
    ],
    ids=[
        "runtime without torch",
        "no transformers in the product",
        "no telemetry",
        "no engine below the session",
    ],
)
def test_imports_stay_in_their_layer(
    folders: tuple[str, ...], banned: tuple[str, ...], exceptions: tuple[str, ...]
) -> None:
    offences = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(*folders)
        if path.relative_to(ROOT).as_posix() not in exceptions
        for name in imported(path)
        if any(name == entry or name.startswith(entry + ".") for entry in banned)
    ]
    assert not offences


@pytest.mark.parametrize(
    "module", ["edgekit", "edgekit.tools.cli", "edgekit.runtime", "edgekit.flashload", "edgekit.export"]
)
def test_importing_brings_in_no_framework(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({set(FRAMEWORKS)} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []
