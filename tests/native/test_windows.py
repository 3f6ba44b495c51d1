"""The native core for Windows, cross-built by mingw-w64 and run under Wine: tokens, streaming, paths and
refusals are those of this system. `make test-windows` adds the core's own tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.c_programs import HEADER, run
from support.generate_program import SOURCE, Answer, Asked, answers, check_golden_tokens, lines
from test_packaging import TOOLS

from edgekit.flashload import _native

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "windows"
COMPILER, OBJDUMP = (shutil.which(f"x86_64-w64-mingw32-{tool}") for tool in ("g++-posix", "objdump"))
#: Debian's wine64 puts no program on PATH: its package `wine` does.
WINE = shutil.which("wine64") or shutil.which("wine") or shutil.which("/usr/lib/wine/wine64")
MAKE, CMAKE = (shutil.which(tool, path=TOOLS["PATH"]) for tool in ("make", "cmake"))
OPEN_FAILED, TRUNCATED_FILE, CHECKSUM_MISMATCH, BUDGET_EXCEEDED = 4, 6, 8, 12

pytestmark = pytest.mark.skipif(
    not (COMPILER and OBJDUMP and WINE and MAKE and CMAKE),
    reason="needs make, CMake, mingw-w64 and Wine (Debian: g++-mingw-w64-x86-64 wine64)",
)


@dataclass(frozen=True)
class Windows:
    """Runs programs under Wine, in a private prefix."""

    environment: dict[str, str]
    program: Path

    def run(self, program: Path, text: str = "") -> str:
        assert WINE is not None
        done = subprocess.run(
            [WINE, program], input=text.encode(), env=self.environment, capture_output=True, check=False
        )
        output = done.stdout.decode().replace("\r\n", "\n")
        assert done.returncode == 0, f"{program.name} ended with {done.returncode}: {output} {done.stderr!r}"
        return output

    def generate(self, asked: list[Asked]) -> list[Answer]:
        return answers(self.run(self.program, lines(asked)), len(asked))


def there(path: Path) -> str:
    """A path as programs under Wine see it: its drive Z is the root."""
    return f"Z:{path}"


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Windows]:
    folder = tmp_path_factory.mktemp("windows")
    subprocess.run(
        ["make", "--no-print-directory", "build-windows", "WINDOWS_TARGETS=edgekit_core"],
        cwd=ROOT, env=TOOLS, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    shutil.copy(BUILD / "edgekit_core.dll", folder)
    program = folder / "generate.exe"
    assert COMPILER is not None
    run(COMPILER.replace("g++", "gcc"), "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror",
        "-I", HEADER.parent, SOURCE, BUILD / "libedgekit_core.dll.a",
        "-o", program)  # fmt: skip
    # The prefix takes several seconds and 700 MB to make. Without a UTF-8 locale Wine finds only ASCII names.
    environment = {
        **os.environ,
        "WINEPREFIX": str(ROOT / "build" / "wine"),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree=;mshtml=",
        "LC_ALL": "C.UTF-8",
        "DISPLAY": "",
    }
    yield Windows(environment, program)


@pytest.fixture(scope="module")
def gemma(shipped_bundle: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-gemma below a folder whose name has letters of two and three bytes."""
    folder = tmp_path_factory.mktemp("paths") / "Gerät 文"
    return Path(shutil.copytree(shipped_bundle("tiny-gemma"), folder))


# --- the library --------------------------------------------------------------------------------------------


def test_the_dll_stands_alone_and_exports_the_c_functions(windows: Windows) -> None:
    assert OBJDUMP is not None
    listing = subprocess.run(
        [OBJDUMP, "-p", BUILD / "edgekit_core.dll"], capture_output=True, text=True, check=True
    ).stdout
    needed = {name.lower() for name in re.findall(r"DLL Name: (\S+)", listing)}
    assert needed <= {"advapi32.dll", "kernel32.dll", "msvcrt.dll"}
    (names,) = re.findall(r"\[Ordinal/Name Pointer\] Table.*?\n(.*?)\n\n", listing, re.DOTALL)
    declared = set(re.findall(r"\b(ek_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)))
    assert {line.split()[-1] for line in names.splitlines()} == declared


def test_the_dll_has_the_name_that_python_looks_for(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert (BUILD / _native.library_name()).is_file()


@pytest.mark.skipif("EDGEKIT_WINDOWS_TESTS" not in os.environ, reason="make test-windows builds them")
def test_the_cores_own_tests_pass(windows: Windows) -> None:
    output = windows.run(ROOT / os.environ["EDGEKIT_WINDOWS_TESTS"])
    assert re.search(r"^[1-9]\d+ tests, 0 failed$", output, re.MULTILINE)


# --- generations --------------------------------------------------------------------------------------------


def test_every_family_answers_with_the_golden_tokens(windows: Windows, tmp_path: Path) -> None:
    """Models of random weights: every bit of a score decides. One a family, by make test-windows all."""
    check_golden_tokens(windows.generate, tmp_path, there, every="EDGEKIT_WINDOWS_TESTS" in os.environ)


def test_a_budget_streams_by_direct_reads_and_changes_no_token(windows: Windows, gemma: Path) -> None:
    whole = Asked(there(gemma), [1, 17, 33, 2, 60, 81], seed=3, max_new_tokens=128, steps=4, canvas=128)
    resident, refused = windows.generate([whole, replace(whole, memory_bytes=1000)])
    assert int(resident.statistics["streamed_bytes_per_step"]) == 0 and len(resident.tokens) == 128
    assert refused.status == BUDGET_EXCEEDED and "is too small" in refused.message
    # What Wine counts for a process differs by more than all of these weights.
    enough = replace(whole, memory_bytes=refused.enough_bytes + (8 << 20))
    named, streamed = windows.generate([enough, replace(enough, resident_bytes=0)])
    assert named.tokens == streamed.tokens == resident.tokens
    found = streamed.statistics
    assert found["io_mode"].startswith("direct") and int(found["ring_bytes"]) > 0
    assert int(found["bytes_read"]) > int(found["streamed_bytes_per_step"]) > 0


def test_refusals_are_one_line_each(windows: Windows, gemma: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(gemma, tmp_path / name))

    def weights(name: str) -> Path:
        return copy(name) / "weights.safetensors"

    missing = tmp_path / "fehlt é"
    weights("without").unlink()
    with weights("cut").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 4096)
    with weights("damaged").open("r+b") as file:
        file.seek(900_000)
        file.write(b"edgekit")
    outside = weights("linked").rename(tmp_path / "outside.safetensors")
    (tmp_path / "linked" / "weights.safetensors").symlink_to(outside)
    expected = {
        missing: (OPEN_FAILED, "fehlt é: cannot open (No such file or directory); give the path"),
        tmp_path / "without": (OPEN_FAILED, "weights.safetensors: is missing; copy or export"),
        tmp_path / "cut": (TRUNCATED_FILE, "export or copy it again"),
        tmp_path / "damaged": (CHECKSUM_MISMATCH, "the file is damaged"),
        tmp_path / "linked": (OPEN_FAILED, "is a link that leaves the bundle"),
        outside: (OPEN_FAILED, "is a file; give the folder of a bundle"),
        tmp_path: (OPEN_FAILED, "has no edgekit.json"),
    }
    asked = [Asked(there(path), [1, 17], max_new_tokens=128, steps=2) for path in expected]
    for answer, (status, words) in zip(windows.generate(asked), expected.values(), strict=True):
        assert answer.status == status and words in answer.message and "\n" not in answer.message


def test_a_path_that_is_not_utf8_is_refused(windows: Windows) -> None:
    asked = lines([Asked("Z:/tmp/?", [1])]).encode().replace(b"?", b"\xff")
    done = subprocess.run(
        [str(WINE), windows.program], input=asked, env=windows.environment, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == r"error 4 0 Z:/tmp/\xff: is not UTF-8; check the path"
