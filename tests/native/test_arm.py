"""The native core for 64-bit ARM, cross-built and run by qemu: with the instructions of several processors it
gives the tokens of this one. `make test-arm` adds the core's own tests.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.c_programs import HEADER, run
from support.exported_elsewhere import export_elsewhere
from support.foreign_packages import installed
from support.generate_program import SOURCE, Answer, Asked, answers, check_golden_tokens, lines
from test_packaging import TOOLS

from edgekit.export.checkpoint.hub import resolve
from edgekit.export.pipeline import ExportOptions
from edgekit.export.quantize import Scheme
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import Committed

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "arm"
COMPILER, READELF = (shutil.which(f"aarch64-linux-gnu-{tool}") for tool in ("gcc", "readelf"))
QEMU = shutil.which("qemu-aarch64")
MAKE, CMAKE = (shutil.which(tool, path=TOOLS["PATH"]) for tool in ("make", "cmake"))
SYSTEM = "/usr/aarch64-linux-gnu"
#: Processors by what their integer products use: Raspberry Pi 4, Raspberry Pi 5 and Jetson Orin, and newer.
PROCESSORS = {"neither": "cortex-a72", "dotprod": "cortex-a76", "i8mm": "max"}
#: Pages of newer Android and Apple systems.
PAGE = 16384

pytestmark = pytest.mark.skipif(
    not (COMPILER and READELF and QEMU and MAKE and CMAKE),
    reason="needs make, CMake, a cross compiler and qemu (Debian: g++-aarch64-linux-gnu qemu-user)",
)


@dataclass(frozen=True)
class Arm:
    """Runs programs as a processor."""

    processor: str
    program: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, program: Path, text: str = "") -> str:
        variables = {"LD_LIBRARY_PATH": str(BUILD), **self.variables}
        given = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        done = subprocess.run(
            [str(QEMU), "-cpu", self.processor, "-L", SYSTEM, *given, program],
            input=text, text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"{program.name} ended with {done.returncode}: {done.stdout} {done.stderr}"
        )
        return done.stdout

    def generate(self, asked: list[Asked]) -> list[Answer]:
        return answers(self.run(self.program, lines(asked)), len(asked))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """generate.c, linked to the core."""
    subprocess.run(
        ["make", "--no-print-directory", "build-arm", "ARM_TARGETS=edgekit_core"],
        cwd=ROOT, env=TOOLS, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    made = tmp_path_factory.mktemp("arm") / "generate"
    assert COMPILER is not None
    run(COMPILER, "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I", HEADER.parent, SOURCE,
        BUILD / "libedgekit_core.so", "-o", made)  # fmt: skip
    return made


@pytest.fixture(params=PROCESSORS)
def arm(request: pytest.FixtureRequest, program: Path) -> Arm:
    return Arm(PROCESSORS[request.param], program)


def test_the_library_is_for_pages_of_every_size(program: Path) -> None:
    """Android refuses one whose segments are aligned to less than its pages."""
    listing = subprocess.run(
        [str(READELF), "-lW", BUILD / "libedgekit_core.so"], capture_output=True, text=True, check=True
    ).stdout
    aligned = [int(line.split()[-1], 16) for line in listing.splitlines() if line.split()[:1] == ["LOAD"]]
    assert aligned and all(each % PAGE == 0 for each in aligned)


def test_every_family_answers_with_the_golden_tokens(arm: Arm, tmp_path: Path) -> None:
    """Models of random weights: every bit of a score decides. One a family, by make test-arm all."""
    check_golden_tokens(arm.generate, tmp_path, every="EDGEKIT_ARM_TESTS" in os.environ)


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-llada"])
def test_whole_generations_give_the_tokens_of_this_processor(
    shipped_bundle: Callable[..., Path], program: Path, name: str
) -> None:
    bundle, prompt = shipped_bundle(name), [1, 17, 33, 2, 60, 81]
    with Generator(bundle) as generator:
        events = generator.generate(prompt, Settings(max_new_tokens=32, steps=8, seed=3))
        expected = [int(t) for event in events if isinstance(event, Committed) for t in event.ids]
    asked = Asked(str(bundle), prompt, seed=3, max_new_tokens=32, steps=8)
    found = [Arm(processor, program).generate([asked])[0].tokens for processor in PROCESSORS.values()]
    assert found == [expected] * len(PROCESSORS)


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-llada"])
def test_programs_of_tvm_give_the_tokens_of_this_processor(tmp_path: Path, program: Path, name: str) -> None:
    """Compiled for it, with the core's kernels, by TVM's own runtime for it."""
    pytest.importorskip("tvm", reason="tvm is not installed")
    packages = installed(
        Path(__file__).with_name("tvm_arm_requirements.txt"),
        "--platform", "manylinux_2_28_aarch64", "--only-binary=:all:",
    )  # fmt: skip
    libraries = {
        "EDGEKIT_TVM_FFI": str(packages / "tvm_ffi" / "lib" / "libtvm_ffi.so"),
        "EDGEKIT_TVM_RUNTIME": str(packages / "tvm" / "lib" / "libtvm_runtime.so"),
    }
    asked = Asked("", [1, 17, 33, 2, 60, 81], seed=3, max_new_tokens=32, steps=8)
    tokens = {}
    for device in ("aarch64", "x86-64"):
        bundle = tmp_path / device
        export_elsewhere(resolve(name), bundle, ExportOptions("tvm", scheme=Scheme("mixed4"), device=device))
        own = dataclasses.replace(asked, bundle=str(bundle))
        if device == "aarch64":
            tokens[device] = Arm("max", program, libraries).generate([own])[0].tokens
            continue
        with Generator(bundle, engine="tvm") as generator:
            events = generator.generate(own.prompt, Settings(max_new_tokens=32, steps=8, seed=3))
            tokens[device] = [int(t) for e in events if isinstance(e, Committed) for t in e.ids]
    assert tokens["aarch64"] == tokens["x86-64"] != []


@pytest.mark.skipif("EDGEKIT_ARM_TESTS" not in os.environ, reason="make test-arm builds them")
def test_the_cores_own_tests_pass(arm: Arm) -> None:
    output = arm.run(ROOT / os.environ["EDGEKIT_ARM_TESTS"])
    assert re.search(r"^[1-9]\d+ tests, 0 failed$", output, re.MULTILINE)
