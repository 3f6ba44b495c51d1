"""The native core: its header, its loader and what it says about the processor."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.c_programs import HEADER, compiler, run

from edgekit.flashload import _native, bundle_set

X86_FEATURES = {
    "sse4_2", "avx2", "fma", "f16c", "avx_vnni",
    "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_int8",
    "sha_ni",
}  # fmt: skip


@pytest.fixture(scope="module")
def core() -> _native.NativeCore:
    """The installed library. Its absence fails the tests: an installation without it is for users only."""
    return _native.load()


def build_library(folder: Path, source: str) -> Path:
    code = folder / "library.c"
    code.write_text(source)
    library = folder / "library.so"
    run(compiler("cc", "gcc", "clang"), "-shared", "-fPIC", "-o", library, code)
    return library


def test_the_library_is_installed_and_has_the_version_of_the_package(core: _native.NativeCore) -> None:
    assert core.path.name == _native.library_name()
    assert core.version == importlib.metadata.version("edgekit")


def test_python_and_header_agree_on_the_constants() -> None:
    text = HEADER.read_text()
    abi = re.search(r"#define EK_ABI_VERSION (\d+)u", text)
    too_small = re.search(r"#define EK_BUFFER_TOO_SMALL \(\(ek_status\)(\d+)\)", text)
    size = re.search(r"#define EK_CPU_FEATURES_SIZE (\d+)", text)
    several = re.search(r"#define EK_FOLDER_BUNDLES \(\(int32_t\)(\d+)\)", text)
    assert abi and too_small and size and several
    assert int(several[1]) == bundle_set._SET
    assert int(abi[1]) == _native.ABI_VERSION
    assert int(too_small[1]) == _native._BUFFER_TOO_SMALL
    assert int(size[1]) == _native._FEATURES_SIZE


@pytest.mark.parametrize(
    ("tool", "standard", "suffix"), [("cc gcc clang", "c99", ".c"), ("c++ g++ clang++", "c++11", ".cpp")]
)
def test_the_header_compiles_without_warnings_and_links(
    tmp_path: Path, core: _native.NativeCore, tool: str, standard: str, suffix: str
) -> None:
    source = tmp_path / f"caller{suffix}"
    source.write_text(
        '#include "edgekit.h"\n'
        '#include "edgekit.h"\n'  # twice: the include guard
        "int main(void) {\n"
        "  char names[EK_CPU_FEATURES_SIZE];\n"
        "  if (ek_abi_version() != EK_ABI_VERSION || ek_version()[0] == 0) return 1;\n"
        "  return ek_cpu_features(names, sizeof names) == EK_OK ? 0 : 2;\n"
        "}\n"
    )
    program = tmp_path / "caller"
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wstrict-prototypes", "-pedantic", "-Werror"]
    if suffix == ".cpp":
        flags.remove("-Wstrict-prototypes")  # C only
    run(compiler(*tool.split()), *flags, "-I", HEADER.parent, source, core.path,
        f"-Wl,-rpath,{core.path.parent}", "-o", program)  # fmt: skip
    run(program)


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"), reason="reads Linux's x86 flags"
)
def test_features_are_those_the_kernel_reports(core: _native.NativeCore) -> None:
    line = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    assert set(core.cpu_features()) == X86_FEATURES & set(line.split(":")[1].split())


@pytest.mark.skipif(platform.machine() not in ("aarch64", "arm64"), reason="for 64-bit Arm processors")
def test_features_of_arm_processors_include_neon(core: _native.NativeCore) -> None:
    assert "neon" in core.cpu_features()
    assert set(core.cpu_features()) <= {"neon", "dotprod", "i8mm", "sve", "sha2"}


def test_buffer_sizes_are_respected(core: _native.NativeCore) -> None:
    text = " ".join(core.cpu_features()).encode()
    function = core.library.ek_cpu_features

    exact = ctypes.create_string_buffer(b"x" * (len(text) + 2), len(text) + 2)
    assert function(exact, len(text) + 1) == 0
    assert exact.raw == text + b"\0x"  # the byte behind the buffer is untouched

    for size in range(1, len(text) + 1):
        short = ctypes.create_string_buffer(b"x" * (size + 1), size + 1)
        assert function(short, size) == _native._BUFFER_TOO_SMALL
        assert short.raw[:1] == b"\0" and short.raw[size:] == b"x"


def test_bad_arguments_are_refused(core: _native.NativeCore) -> None:
    function = core.library.ek_cpu_features
    untouched = ctypes.create_string_buffer(b"x", 1)
    invalid = function(None, 100)
    assert invalid not in (0, _native._BUFFER_TOO_SMALL)
    assert function(untouched, 0) == invalid and untouched.raw == b"x"


def test_every_status_has_its_own_message_and_unknown_ones_have_one_too(core: _native.NativeCore) -> None:
    messages = [core.status_message(status) for status in (0, 1, 2, 12345)]
    assert all(messages) and len(set(messages)) == 4
    assert core.status_message(-1) == core.status_message(12345)


@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF symbol table")
def test_only_the_c_functions_are_exported(core: _native.NativeCore) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(core.path)], capture_output=True, text=True, check=True
    ).stdout
    declared = set(re.findall(r"\b(ek_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)))
    assert {line.split()[-1] for line in listing.splitlines()} == declared


def test_a_path_in_the_environment_is_preferred(
    tmp_path: Path, core: _native.NativeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "elsewhere" / "core.bin"
    copy.parent.mkdir()
    shutil.copy(core.path, copy)
    monkeypatch.setenv(_native.LIBRARY_VARIABLE, str(copy))
    assert _native.load().path == copy
    assert _native.load().cpu_features() == core.cpu_features()


def test_a_wrong_path_in_the_environment_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_native.LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(_native.NativeMissing, match=_native.LIBRARY_VARIABLE):
        _native.load()


def test_a_missing_library_says_how_to_get_one(tmp_path: Path) -> None:
    """What a user sees of a copy of the package that has no library, such as a source tree."""
    package = tmp_path / "edgekit" / "flashload"
    package.mkdir(parents=True)
    for module in (HEADER.parents[2]).glob("*.py"):
        shutil.copy(module, package)
    code = (
        "from edgekit.flashload import _native\n"
        "try:\n"
        "    _native.load()\n"
        "except _native.NativeMissing as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop(_native.LIBRARY_VARIABLE, None)
    # An editable install's finder goes before every path entry, hence it is removed.
    remove = "import sys\nsys.meta_path = [f for f in sys.meta_path if 'ScikitBuild' not in str(type(f))]\n"
    output = subprocess.run(
        [sys.executable, "-c", remove + code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert _native.library_name() in output and "compiler" in output


def test_a_file_that_is_no_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = tmp_path / "garbage.so"
    garbage.write_bytes(b"not a library")
    monkeypatch.setenv(_native.LIBRARY_VARIABLE, str(garbage))
    with pytest.raises(_native.NativeUnloadable, match="garbage.so"):
        _native.load()


@pytest.mark.skipif(sys.platform == "win32", reason="builds with a Unix compiler driver")
@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("unsigned ek_abi_version(void) { return 99; }", _native.NativeAbiMismatch, "99"),
        ("int another_library(void) { return 0; }", _native.NativeUnloadable, "ek_abi_version"),
        (
            f"unsigned ek_abi_version(void) {{ return {_native.ABI_VERSION}; }}",
            _native.NativeUnloadable,
            "incomplete",
        ),
    ],
    ids=["another ABI", "another library", "functions missing"],
)
def test_a_library_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, error: type[Exception], words: str
) -> None:
    monkeypatch.setenv(_native.LIBRARY_VARIABLE, str(build_library(tmp_path, source)))
    with pytest.raises(error, match=words):
        _native.load()
