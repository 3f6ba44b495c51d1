"""The product as users get it: the sdist, the wheel built from it, and an installation in a clean
environment.

The environment has no extra, so everything here runs without torch, transformers and onnxruntime.
"""

from __future__ import annotations

import ast
import email.message
import email.policy
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pathspec
import pytest
from markdown_it import MarkdownIt
from support.original_environment import ORIGINAL_ENVIRONMENT

from edgekit.export.checkpoint.hub import SHIPPED_MODELS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FOLDERS = ("export", "runtime", "flashload", "targets", "tools")
# C++, Java and Swift are built by tools of their own, from a checkout or the sdist.
NOT_IN_THE_WHEEL = (
    "flashload/native/",
    "runtime/java/",
    "runtime/native/",
    "runtime/swift/",
    "tools/optimum/",
)
#: Where optimum looks for commands of other packages.
REGISTERED = "optimum/commands/register/register_edgekit.py"
#: For C and C++ programs, beside the packages.
DEVELOPMENT = {
    "edgekit/include/edgekit.h",
    *(f"edgekit/lib/cmake/edgekit/edgekit{name}.cmake"
      for name in ("Config", "ConfigVersion", "Targets", "Targets-release")),
    "edgekit/lib/pkgconfig/edgekit.pc",
}  # fmt: skip
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
        and not name.startswith(NOT_IN_THE_WHEEL)
    }
    found = {name for name in distributions.wheel_names() if ".dist-info/" not in name and name[-1] != "/"}
    libraries = {name for name in found if name.startswith("edgekit/flashload/") and name.endswith(LIBRARIES)}
    assert len(libraries) == 1
    assert found - libraries == expected | DEVELOPMENT | {REGISTERED}


def test_the_wheel_is_typed_and_serves_every_python_of_its_platform(distributions: Distributions) -> None:
    names = distributions.wheel_names()
    assert {f"edgekit/{folder}/py.typed" for folder in FOLDERS} | {"edgekit/py.typed"} <= names
    python, abi, platform = distributions.wheel.stem.split("-")[2:]
    assert (python, abi) == ("py3", "none") and platform != "any"


def test_the_wheel_ships_the_tiny_models_and_the_license(distributions: Distributions) -> None:
    names = distributions.wheel_names()
    for model in SHIPPED_MODELS:
        for file in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
            assert f"edgekit/tools/tiny/{model}/{file}" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_sdist_can_be_built_and_tested_elsewhere(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "LICENSE", "Makefile", "README.md", "constraints.txt"} <= names
    assert "flashload/native/include/edgekit.h" in names and "tests/test_packaging.py" in names
    assert {"Package.swift", "runtime/swift/Sources/CEdgeKit/module.modulemap"} <= names
    assert {"runtime/java/CMakeLists.txt", "runtime/java/src/io/edgekit/Session.java"} <= names
    assert not [name for name in names if name.startswith((".venv", "build/", "dist/", ".git/"))]


def test_the_runtime_installs_without_training_frameworks(installation: Installation) -> None:
    code = (
        "from importlib.util import find_spec\n"
        "names = ('torch', 'transformers', 'tokenizers', 'huggingface_hub', 'onnx', 'onnxscript',"
        " 'onnxruntime')\n"
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
        # Torch's engine needs torch, the hub's client the extra `hub`; the native library has an extension
        # module's file name, but is none.
        "        names = module.name.split('.')\n"
        "        if names[-2:] == ['hub', 'client']: continue\n"
        "        if not {'torch', 'libedgekit_core', 'edgekit_core'} & set(names):\n"
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
    assert {"demo", "export", "run", "inspect", "verify", "config"} <= set(commands)
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


# --- for C and C++ ------------------------------------------------------------------------------------------

CMAKE_LISTS = """
cmake_minimum_required(VERSION 3.20)
project(answer LANGUAGES C)
find_package(edgekit 0.1 REQUIRED)
add_executable(answer answer.c)
target_link_libraries(answer PRIVATE edgekit::edgekit)
"""
#: What the editable environment's own programs do not find: CMake may be one of its packages.
TOOLS = {
    **ORIGINAL_ENVIRONMENT,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), ORIGINAL_ENVIRONMENT.get("PATH", "")]),
}


@pytest.fixture
def answer(tmp_path: Path) -> Path:
    """A folder with the program of docs/c.md."""
    page = (ROOT / "docs" / "c.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    program = program.replace("Why is the sky blue?", "Copy this: red 7")
    (tmp_path / "answer.c").write_text(program, encoding="utf-8")
    return tmp_path


def answers(program: Path, bundle: Path, folder: Path) -> str:
    """What the page's program prints."""
    (folder / "llada").symlink_to(bundle)
    return run(program, cwd=folder, environment=os.environ)


@pytest.mark.skipif(sys.platform == "win32", reason="compilers there do not take pkg-config's flags")
def test_a_c_program_finds_the_wheel_by_pkg_config(
    installation: Installation, answer: Path, shipped_bundle: Callable[..., Path]
) -> None:
    if not shutil.which("pkg-config"):
        pytest.skip("needs pkg-config")
    folder = installation.edgekit("config", "--pkgconfig-dir").strip()
    assert Path(folder).is_relative_to(installation.folder)
    environment = {**TOOLS, "PKG_CONFIG_PATH": folder}
    asked = run("pkg-config", "--modversion", "edgekit", cwd=answer, environment=environment)
    assert asked.strip() == project()["version"]
    flags = run("pkg-config", "--cflags", "--libs", "edgekit", cwd=answer, environment=environment).split()
    run("cc", "answer.c", *flags, "-o", "answer", cwd=answer, environment=environment)
    assert answers(answer / "answer", shipped_bundle("tiny-llada", "native"), answer) == "red 7\n"


def test_a_c_program_finds_the_wheel_by_cmake(
    installation: Installation, answer: Path, shipped_bundle: Callable[..., Path]
) -> None:
    (answer / "CMakeLists.txt").write_text(CMAKE_LISTS)
    folder = installation.edgekit("config", "--cmake-dir").strip()
    run("cmake", "-S", ".", "-B", "build", f"-Dedgekit_DIR={folder}", cwd=answer, environment=TOOLS)
    run("cmake", "--build", "build", cwd=answer, environment=TOOLS)
    program = answer / "build" / "answer"
    assert answers(program, shipped_bundle("tiny-llada", "native"), answer) == "red 7\n"


def test_cmake_installs_the_same_below_a_prefix_without_python(tmp_path: Path) -> None:
    """With the few sources that `ek_version` takes; the prefix is moved before it is used."""
    build, prefix = tmp_path / "build", tmp_path / "prefix"
    few = "-DEDGEKIT_ONLY=flashload/native/src/abi"
    run("cmake", "-S", ROOT, "-B", build, few, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_INSTALL_LIBDIR=lib",
        cwd=tmp_path, environment=TOOLS)  # fmt: skip
    run("cmake", "--build", build, "--config", "Release", "--parallel", "2", cwd=tmp_path, environment=TOOLS)
    run("cmake", "--install", build, "--prefix", prefix, cwd=tmp_path, environment=TOOLS)
    prefix = prefix.rename(tmp_path / "moved")
    installed = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file()}
    libraries = {name for name in installed if name.endswith((*LIBRARIES, ".lib", ".dll.a"))}
    assert libraries and installed - libraries == {name.removeprefix("edgekit/") for name in DEVELOPMENT}
    (tmp_path / "answer.c").write_text(
        '#include <stdio.h>\n#include "edgekit.h"\nint main(void) { return puts(ek_version()) < 0; }\n'
    )
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_LISTS)
    run("cmake", "-S", ".", "-B", "own", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=tmp_path, environment=TOOLS)
    run("cmake", "--build", "own", cwd=tmp_path, environment=TOOLS)
    version = project()["version"]
    assert run(tmp_path / "own" / "answer", cwd=tmp_path, environment=os.environ).strip() == version
    if sys.platform == "win32" or not shutil.which("pkg-config"):
        return
    environment = {**TOOLS, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "edgekit", cwd=tmp_path, environment=environment).split()
    run("cc", "answer.c", *flags, "-o", "answer", cwd=tmp_path, environment=environment)
    assert run(tmp_path / "answer", cwd=tmp_path, environment=os.environ).strip() == version


# --- without a C++ compiler ---------------------------------------------------------------------------------


def test_without_a_compiler_the_build_says_what_is_missing(
    distributions: Distributions, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cmake", "ninja"):
        found = shutil.which(name, path=TOOLS["PATH"])
        if found:  # else they are Python packages, which the build finds by itself
            (tools / name).symlink_to(found)
    environment = {**ORIGINAL_ENVIRONMENT, "PATH": str(tools)}
    for variable in ("CC", "CXX", "CMAKE_ARGS", "CMAKE_TOOLCHAIN_FILE", "CMAKE_CXX_COMPILER_LAUNCHER"):
        environment.pop(variable, None)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index",
         "--no-build-isolation", "--no-deps", "-w", str(tmp_path), str(distributions.sdist)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and not list(tmp_path.glob("*.whl"))
    assert "edgekit's native library was not built. It takes a C++17 compiler" in done.stdout + done.stderr


# --- extras and the page of the package ---------------------------------------------------------------------


def project() -> dict[str, Any]:
    """The section of pyproject.toml."""
    section: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return section


def required(*extras: str) -> set[str]:
    """Names of the packages that an installation with these extras asks for, as the Makefile asks."""
    listed = run(sys.executable, ROOT / ".ci" / "requirements.py", *extras, cwd=ROOT, environment=os.environ)
    return {re.split(r"[^A-Za-z0-9_-]", line)[0].replace("-", "_") for line in listed.splitlines()}


EXPORTING = {"torch", "safetensors", "tokenizers", "huggingface_hub"}


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("export", EXPORTING),
        ("export-onnx", EXPORTING | {"onnx", "onnxscript", "onnxruntime"}),
        ("mac", EXPORTING | {"mlx"}),
        ("ios", EXPORTING | {"coremltools", "coreai_core"}),
        ("report", {"plotly"}),
        ("ray", {"ray"}),
    ],
)
def test_an_extra_names_all_it_needs(extra: str, packages: set[str]) -> None:
    assert required(extra) - required() == packages
    assert required() == {"numpy", "jinja2", "click", "rich", "xxhash", "packaging"}


#: Packages that are imported under another name than they are installed by, or that another one brings.
BROUGHT_BY = {
    "coreai": "coreai_core", "cuda": "cuda_bindings", "httpx2": "huggingface_hub", "triton": "torch",
    "tvm": "apache_tvm", "tvm_ffi": "apache_tvm_ffi",
}  # fmt: skip


def test_what_edgekit_imports_comes_with_an_installation_or_an_extra() -> None:
    """Not with that of developers alone, whose environment has more."""
    extras = set(project()["optional-dependencies"]) - {"dev"}
    known = {*sys.stdlib_module_names, "edgekit", *required(*extras)}
    unknown: dict[str, str] = {}
    for name in source_files():
        # optimum imports that one itself.
        if not name.endswith(".py") or not name.startswith(FOLDERS) or name.startswith("tools/optimum/"):
            continue
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            found = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found = [node.module]
            for package in (each.partition(".")[0] for each in found):
                if BROUGHT_BY.get(package, package) not in known:
                    unknown[package] = name
    assert unknown == {}


def test_messages_and_the_readme_name_extras_that_there_are() -> None:
    named = {"README.md": set[str]()}
    for name in source_files():
        if name == "README.md" or (name.endswith(".py") and name.startswith(FOLDERS)):
            text = (ROOT / name).read_text(encoding="utf-8")
            named[name] = {
                e.strip() for each in re.findall(r"edgekit\[([\w, -]+)\]", text) for e in each.split(",")
            }
    from edgekit.export.formats import ROWS
    from edgekit.runtime.engine_registry import OWN
    from edgekit.tools.failures import extras_by_package

    named["formats"], named["engines"] = {row.extra for row in ROWS}, {row.extra for row in OWN} - {""}
    named["failures"] = set(extras_by_package().values())
    extras = set(project()["optional-dependencies"])
    assert {name: e - extras for name, e in named.items() if e - extras} == {}
    assert {"export", "mac", "ios"} <= named["README.md"]


def test_the_readme_has_no_links_that_a_package_page_breaks(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name), policy=email.policy.default)
    assert metadata["Description-Content-Type"] == "text/markdown"
    tokens = MarkdownIt().parse(str(metadata.get_payload()))
    every = [child for token in tokens for child in [token, *(token.children or ())]]
    links = [str(token.attrs.get("href", token.attrs.get("src", ""))) for token in every
             if token.type in ("link_open", "image")]  # fmt: skip
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    assert any(token.type == "heading_open" for token in every)


def test_auditwheel_gives_the_wheel_a_tag_of_manylinux(distributions: Distributions) -> None:
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    if sys.platform != "linux":
        pytest.skip("for wheels of Linux")
    shown = run(sys.executable, "-m", "auditwheel", "show", distributions.wheel, cwd=ROOT,
                environment=ORIGINAL_ENVIRONMENT)  # fmt: skip
    assert re.search(r'tag:\s+"manylinux_2_\d+_', shown), shown


def test_the_readme_shows_every_top_level_folder() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    folders = {name.split("/")[0] for name in source_files() if "/" in name and not name.startswith(".")}
    assert folders >= {*FOLDERS, "tests"}
    entries = {line.lstrip("├└─│ ").split("/")[0] for line in lines if "/" in line}
    missing = sorted(folders - entries)
    assert not missing, f"the README's folder tree lacks {missing}"
