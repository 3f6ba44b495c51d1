"""What users get: the sdist, the wheel built from it, and an installation in a clean environment.

The environment has no extra, so everything here runs without torch, transformers and onnxruntime.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pathspec
import pytest
from conftest import ORIGINAL_ENVIRONMENT

ROOT = Path(__file__).parents[1]
FOLDERS = ("export", "runtime", "flashload", "targets", "tools")
NATIVE_SUFFIXES = (".c", ".cpp", ".h", ".hpp", ".mm")
LIBRARIES = ("libedgekit_core.so", "libedgekit_core.dylib", "edgekit_core.dll")


def run(*command: str | Path, cwd: Path, environment: Mapping[str, str]) -> str:
    """Standard output of a command that must succeed, in an environment without paths to this tree."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "EDGEKIT_CORE_LIB", "MYPYPATH")
    clean = {name: value for name, value in environment.items() if name not in ours}
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path

    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The sdist of this tree and the wheel that is built from the unpacked sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        out,
        ROOT,
        cwd=out,
        environment=ORIGINAL_ENVIRONMENT,
    )
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Distributions(sdist, wheel)


@dataclass(frozen=True)
class Installation:
    """A clean environment with the wheel and no extra; commands run in an empty folder."""

    folder: Path
    empty: Path

    def python(self, code: str) -> str:
        return run(self._program("python"), "-c", code, cwd=self.empty, environment=os.environ)

    def edgekit(self, *arguments: str | Path) -> str:
        return run(self._program("edgekit"), *arguments, cwd=self.empty, environment=os.environ)

    def _program(self, name: str) -> Path:
        return self.folder / ("Scripts" if sys.platform == "win32" else "bin") / name


@pytest.fixture(scope="module")
def installation(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "venv", with_pip=False)
    result = Installation(folder / "venv", folder / "empty")
    result.empty.mkdir()
    # With the user's own pip settings: the package index may be configured there.
    # This interpreter's pip serves the other environment: quicker than giving that one a pip of its own.
    run(sys.executable, "-m", "pip", "--python", result._program("python"), "install", "--quiet",
        "-c", ROOT / "constraints.txt", distributions.wheel,
        cwd=result.empty, environment=ORIGINAL_ENVIRONMENT)  # fmt: skip
    return result


def source_files() -> Iterator[str]:
    """Paths of the files that git tracks or would track, relative to the root; found without git's help."""
    ignored = pathspec.GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text().splitlines())
    for folder, folders, files in os.walk(ROOT):
        here = Path(folder).relative_to(ROOT)
        folders[:] = [
            name for name in folders if name != ".git" and not ignored.match_file(f"{here / name}/")
        ]
        for name in files:
            path = (here / name).as_posix()
            if not ignored.match_file(path):
                yield path


def test_the_wheel_holds_exactly_the_packages_and_the_library(distributions: Distributions) -> None:
    expected = {name for name in source_files() if name.startswith("edgekit/")} | {
        f"edgekit/{name}"
        for name in source_files()
        if name.startswith(tuple(f"{folder}/" for folder in FOLDERS))
        and not name.endswith((*NATIVE_SUFFIXES, "CMakeLists.txt", "exports.map"))
        # It is built by Swift's own tools, from a checkout.
        and not name.startswith("runtime/swift/")
    }
    found = {name for name in distributions.wheel_names() if ".dist-info/" not in name and name[-1] != "/"}
    libraries = {name for name in found if name.startswith("edgekit/flashload/") and name.endswith(LIBRARIES)}
    assert len(libraries) == 1
    assert found - libraries == expected


def test_the_wheel_is_typed_and_serves_every_python_of_its_platform(distributions: Distributions) -> None:
    names = distributions.wheel_names()
    assert {f"edgekit/{folder}/py.typed" for folder in FOLDERS} | {"edgekit/py.typed"} <= names
    python, abi, platform = distributions.wheel.stem.split("-")[2:]
    assert (python, abi) == ("py3", "none") and platform != "any"


def test_the_wheel_ships_the_tiny_models_and_the_license(distributions: Distributions) -> None:
    names = distributions.wheel_names()
    for model in ("tiny-gemma", "tiny-llada"):
        for file in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
            assert f"edgekit/tools/tiny/{model}/{file}" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_sdist_can_be_built_and_tested_elsewhere(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "LICENSE", "Makefile", "README.md", "constraints.txt"} <= names
    assert "flashload/native/include/edgekit.h" in names and "tests/test_packaging.py" in names
    assert {"runtime/swift/Package.swift", "runtime/swift/Sources/CEdgeKit/module.modulemap"} <= names
    assert not [name for name in names if name.startswith((".venv", "build/", "dist/", ".git/"))]


def test_the_runtime_installs_without_training_frameworks(installation: Installation) -> None:
    code = (
        "from importlib.util import find_spec\n"
        "names = ('torch', 'transformers', 'onnx', 'onnxscript', 'onnxruntime')\n"
        "print(*[name for name in names if find_spec(name)])\n"
    )
    assert installation.python(code).split() == []


def test_every_subpackage_and_the_library_load(installation: Installation) -> None:
    code = (
        "import importlib, importlib.metadata, json, pkgutil, edgekit\n"
        "assert edgekit.__version__ == importlib.metadata.version('edgekit')\n"
        f"folders = {FOLDERS!r}\n"
        "for folder in folders:\n"
        "    package = importlib.import_module('edgekit.' + folder)\n"
        "for folder in ('runtime', 'flashload', 'targets'):\n"
        "    package = importlib.import_module('edgekit.' + folder)\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        # Torch's engine needs torch; the native library has an extension module's file name, but is none.
        "        if module.name.rpartition('.')[2] not in ('torch', 'libedgekit_core', 'edgekit_core'):\n"
        "            importlib.import_module(module.name)\n"
        "from edgekit.flashload import _native\n"
        "core = _native.load()\n"
        "print(json.dumps([str(core.path), core.version, importlib.metadata.version('edgekit')]))\n"
    )
    path, native_version, version = json.loads(installation.python(code))
    assert Path(path).is_relative_to(installation.folder)
    assert native_version == version


def test_every_command_explains_itself(installation: Installation) -> None:
    assert installation.edgekit("--help").startswith("Usage: edgekit")
    code = (
        "import click\n"
        "from edgekit.tools.cli import main\n"
        "def walk(command, context, path):\n"
        "    if isinstance(command, click.Group):\n"
        "        for name in command.list_commands(context):\n"
        "            print(*path, name)\n"
        "            child = command.get_command(context, name)\n"
        "            walk(child, click.Context(child, parent=context, info_name=name), [*path, name])\n"
        "walk(main, click.Context(main, info_name='edgekit'), [])\n"
    )
    commands = installation.python(code).splitlines()
    assert {"demo", "export", "run", "inspect", "verify"} <= set(commands)
    for command in commands:
        text = installation.edgekit(*command.split(), "--help")
        # The usage line and a description: click prints the description between it and the options.
        assert text.startswith(f"Usage: edgekit {command}")
        description = text.split("\n\n")[1].strip()
        assert description and not description.startswith("Options:"), command


def test_a_bundle_runs_without_any_extra(installation: Installation, native_bundle: Path) -> None:
    output = installation.edgekit("run", native_bundle, "-p", "copy: abc", "--seed", "1", "--json")
    result = json.loads(output.splitlines()[-1])
    assert isinstance(result["text"], str) and result["text"]


# --- without a C++ compiler ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uncompiled:
    """An installation where no compiler was found, with what this environment has of other packages."""

    wheel: Path
    site: Path
    empty: Path

    def edgekit(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        code = (
            "import sys\n"
            # An editable install's finder goes before every path entry, hence it is removed.
            "sys.meta_path = [f for f in sys.meta_path if 'ScikitBuild' not in str(type(f))]\n"
            "from edgekit.tools import cli\n"
            f"assert cli.__file__.startswith({str(self.site)!r}), cli.__file__\n"
            "cli.main()\n"
        )
        command = [sys.executable, "-c", code, *(str(word) for word in words)]
        environment = {**os.environ, "PYTHONPATH": str(self.site)}
        environment.pop("EDGEKIT_CORE_LIB", None)
        return subprocess.run(
            command, cwd=self.empty, env=environment, capture_output=True, text=True, check=False
        )

    def refused(self, *words: str | Path) -> str:
        """The one line of an error."""
        result = self.edgekit(*words)
        assert result.returncode == 2 and result.stdout == "", result
        (line,) = result.stderr.splitlines()
        assert line.startswith("edgekit: error: ")
        return line


@pytest.fixture(scope="module")
def uncompiled(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Uncompiled:
    """The sdist built with CMake and Ninja on the path, and nothing else."""
    folder = tmp_path_factory.mktemp("uncompiled")
    tools, empty = folder / "tools", folder / "empty"
    tools.mkdir()
    empty.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), ORIGINAL_ENVIRONMENT.get("PATH", "")])
    for name in ("cmake", "ninja"):
        found = shutil.which(name, path=path)
        if found:  # else they are Python packages, which the build finds by itself
            (tools / name).symlink_to(found)
    environment = {**ORIGINAL_ENVIRONMENT, "PATH": str(tools)}
    for variable in ("CC", "CXX", "CMAKE_ARGS", "CMAKE_TOOLCHAIN_FILE"):
        environment.pop(variable, None)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-index", "--no-build-isolation", "--no-deps", "-w", folder,
        distributions.sdist, cwd=empty, environment=environment)  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--target", folder / "site", wheel,
        cwd=empty, environment=environment)  # fmt: skip
    return Uncompiled(wheel, folder / "site", empty)


def test_without_a_compiler_the_wheel_has_everything_but_the_library(
    distributions: Distributions, uncompiled: Uncompiled
) -> None:
    with zipfile.ZipFile(uncompiled.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    compiled = {name for name in distributions.wheel_names() if ".dist-info/" not in name}
    assert len(compiled - names) == 1 and all(name.endswith(LIBRARIES) for name in compiled - names)
    assert names <= compiled
    assert uncompiled.wheel.name.endswith("-py3-none-any.whl")


def test_without_a_compiler_exports_are_for_onnx_and_say_so(uncompiled: Uncompiled) -> None:
    exported = uncompiled.edgekit("export", "tiny-llada", "--target", "host", "-o", "bundle")
    assert exported.returncode == 0, exported.stderr
    (said,) = (line for line in exported.stderr.splitlines() if "native" in line)
    assert said.startswith("note: exporting for onnx instead of native: ") and "C++17 compiler" in said
    bundle = uncompiled.empty / "bundle"
    assert json.loads((bundle / "edgekit.json").read_text())["programs"]["format"] == "onnx"
    answered = uncompiled.edgekit("run", bundle, "-p", "copy: abc", "--max-new-tokens", "16", "--json")
    assert answered.returncode == 0 and answered.stderr == ""
    assert json.loads(answered.stdout)["statistics"]["engine"]["engine"] == "onnx"
    assert "was exported for the onnx engine, not native" in uncompiled.refused(
        "run", bundle, "-p", "Hello", "--engine", "native"
    )


def test_without_a_compiler_a_native_bundle_says_what_to_do(
    uncompiled: Uncompiled, native_bundle: Path
) -> None:
    for words in ([], ["--engine", "native"]):
        line = uncompiled.refused("run", native_bundle, "-p", "Hello", *words)
        assert "without its native library" in line and "install a C++17 compiler and reinstall" in line


def test_the_readme_shows_every_top_level_folder() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    folders = {name.split("/")[0] for name in source_files() if "/" in name and not name.startswith(".")}
    assert folders >= {*FOLDERS, "tests"}
    entries = {line.lstrip("├└─│ ").split("/")[0] for line in lines if "/" in line}
    missing = sorted(folders - entries)
    assert not missing, f"the README's folder tree lacks {missing}"
