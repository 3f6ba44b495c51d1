"""The native core for Windows, cross-built by mingw-w64 and run under Wine: tokens, streaming, paths and
refusals are those of this system. `make test-windows` adds the core's own tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support import golden_tokens
from support.c_programs import HEADER, run
from support.golden_tokens import Case
from test_packaging import TOOLS

from edgekit.flashload import _native

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "windows"
COMPILER, OBJDUMP = (shutil.which(f"x86_64-w64-mingw32-{tool}") for tool in ("g++-posix", "objdump"))
#: Debian's wine64 puts no program on PATH: its package `wine` does.
WINE = shutil.which("wine64") or shutil.which("wine") or shutil.which("/usr/lib/wine/wine64")
MAKE, CMAKE = (shutil.which(tool, path=TOOLS["PATH"]) for tool in ("make", "cmake"))
OPEN_FAILED, TRUNCATED_FILE, CHECKSUM_MISMATCH, BUDGET_EXCEEDED = 4, 6, 8, 12
UNLIMITED = 2**64 - 1

pytestmark = pytest.mark.skipif(
    not (COMPILER and OBJDUMP and WINE and MAKE and CMAKE),
    reason="needs make, CMake, mingw-w64 and Wine (Debian: g++-mingw-w64-x86-64 wine64)",
)


@dataclass(frozen=True)
class Asked:
    """One generation of generate.c. `canvas` and `positions` matter under a memory budget alone."""

    bundle: str
    prompt: list[int]
    seed: int = 0
    max_new_tokens: int = 0
    steps: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    memory_bytes: int = 0
    resident_bytes: int = UNLIMITED
    positions: int = 64
    canvas: int = 256

    def lines(self) -> str:
        return (
            f"{self.bundle}\n2 {self.memory_bytes} {self.resident_bytes} {self.positions} {self.canvas}\n"
            f"{self.seed} {self.max_new_tokens} {self.steps}\n{json.dumps(self.options)}\n"
            f"{' '.join(map(str, self.prompt))}\n"
        )


@dataclass(frozen=True)
class Answer:
    """Tokens and statistics, or the status, text and enough memory of a refusal."""

    tokens: list[int]
    statistics: dict[str, str]
    status: int = 0
    enough_bytes: int = 0
    message: str = ""

    @classmethod
    def parse(cls, text: str) -> Answer:
        if text.startswith("error "):
            _, status, enough, message = text.split(" ", 3)
            return cls([], {}, int(status), int(enough), message)
        tokens, *rest = text.split("\n")
        return cls(list(map(int, tokens.split())), dict(line.split(" ", 1) for line in rest))


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
        output = self.run(self.program, "".join(each.lines() for each in asked))
        answers = [Answer.parse(part) for part in output.removesuffix("\n\n").split("\n\n")]
        assert len(answers) == len(asked)
        return answers


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
        "-I", HEADER.parent, Path(__file__).with_name("generate.c"), BUILD / "libedgekit_core.dll.a",
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
    assert needed <= {"kernel32.dll", "msvcrt.dll"}
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
    kept = json.loads(golden_tokens.KEPT.read_text(encoding="utf-8"))
    part = "" if "EDGEKIT_WINDOWS_TESTS" in os.environ else "-0-streamed"
    cases = [c for c in golden_tokens.cases() if not c.model.startswith("tiny-") and c.name.endswith(part)]
    assert {case.model for case in cases} == {"diffusion_gemma", "llada", "llada_moe", "dream"}
    bundles: dict[str, Path] = {}
    for model in dict.fromkeys(case.model for case in cases):
        (tmp_path / model).mkdir()
        bundles[model] = golden_tokens.family_bundle(tmp_path / model, model)

    def asked(case: Case) -> Asked:
        held = UNLIMITED if case.resident_bytes is None else case.resident_bytes
        return Asked(there(bundles[case.model]), golden_tokens.PROMPT, resident_bytes=held, **case.settings)

    answers = windows.generate([asked(case) for case in cases])
    assert {case.name: answer.tokens for case, answer in zip(cases, answers, strict=True)} == {
        case.name: kept[case.name] for case in cases
    }


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
    asked = Asked("Z:/tmp/?", [1]).lines().encode().replace(b"?", b"\xff")
    done = subprocess.run(
        [str(WINE), windows.program], input=asked, env=windows.environment, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == r"error 4 0 Z:/tmp/\xff: is not UTF-8; check the path"
