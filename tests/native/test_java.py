"""The classes for Java and Kotlin over the core that Python uses: their own tests under JUnit, their events
beside Python's, and their texts beside those of `tokenizers`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import native_generation
from support.bench_reports import bench, check_equal_counts
from support.kotlin import KOTLIN_JARS, kotlinc
from support.native_bundles import native_bundle
from support.native_sampler import OK
from test_packaging import TOOLS
from tokenizers import Tokenizer

from edgekit.export.quantize import Scheme
from edgekit.runtime.bench import ProcessorProbe
from edgekit.runtime.generation import Generator
from edgekit.runtime.session import Session, SessionOptions
from edgekit.tools.bench.mixed_text import lines
from edgekit.tools.benchmark.cases import Case
from edgekit.tools.benchmark.limits import of_processor
from edgekit.tools.benchmark.workload import Workload

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "runtime" / "java"
TESTS = PACKAGE / "tests" / "io" / "edgekit"
#: Debian's junit4.
JARS = [Path("/usr/share/java") / name for name in ("junit4.jar", "hamcrest.jar")]
#: Family, and settings of a generation.
GENERATIONS: list[tuple[str, dict[str, Any]]] = [
    ("diffusion_gemma", {"seed": 5, "max_new_tokens": 33, "steps": 4, "options": {"entropy_bound": 2.0}}),
    ("llada", {"seed": 2**64 - 3, "max_new_tokens": 21, "steps": 5, "options": {"temperature": 0.9}}),
    ("dream", {"seed": 9, "max_new_tokens": 24, "steps": 6, "options": {"top_p": 0.9, "temperature": 0.8}}),
]
PROMPT = [7, 3, 300, 21, 5]
REASONS = {"eos": "END_TOKEN", "length": "LENGTH"}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Standard output of a command that must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=TOOLS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Java:
    """Where the library and the classes are, tests among them."""

    folder: Path
    classes: tuple[Path, ...]

    def run(self, name: str, *arguments: str | Path, options: Sequence[str] = ()) -> str:
        """What a class prints. JNI's own checks are on, and print too."""
        path = os.pathsep.join(map(str, self.classes))
        library = f"-Djava.library.path={self.folder}"
        return run("java", "-Xcheck:jni", "-Xmx256m", library, *options, "-cp", path, name, *arguments)

    def junit(self, name: str, bundles: Sequence[str]) -> None:
        said = self.run("org.junit.runner.JUnitCore", f"io.edgekit.{name}", options=bundles)
        assert re.search(r"^OK \(\d+ tests?\)$", said, re.MULTILINE) and "WARNING" not in said, said


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Java:
    there = (
        shutil.which("javac") and shutil.which("cmake", path=TOOLS["PATH"]) and all(j.is_file() for j in JARS)
    )
    if not there and not os.environ.get("EDGEKIT_SYSTEM_PACKAGES"):
        pytest.skip("needs a JDK, CMake and JUnit (Debian: openjdk-17-jdk-headless junit4)")
    build, tests = tmp_path_factory.mktemp("java"), tmp_path_factory.mktemp("java-tests")
    description = run(sys.executable, "-m", "edgekit", "config", "--cmake-dir").strip()
    run("cmake", "-S", PACKAGE, "-B", build, f"-Dedgekit_DIR={description}", "-DEDGEKIT_WERROR=ON")
    run("cmake", "--build", build)
    classes = (build / "edgekit.jar", tests, *JARS)
    run(
        "javac",
        "-Xlint:all",
        "-Werror",
        "-cp",
        os.pathsep.join(map(str, classes)),
        "-d",
        tests,
        *TESTS.glob("*.java"),
    )
    return Java(build, classes)


@pytest.fixture(scope="module")
def bundles(shipped_bundle: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Properties that the tests in Java look up."""
    folder = tmp_path_factory.mktemp("bundles")
    llada = shipped_bundle("tiny-llada", "native")
    damaged = Path(shutil.copytree(llada, folder / "damaged"))
    weights = damaged / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    bare = Path(shutil.copytree(llada, folder / "bare"))
    shutil.rmtree(bare / "tokenizer")
    found = {
        "llada": llada,
        "gemma": shipped_bundle("tiny-gemma", "native"),
        "damaged": damaged,
        "bare": bare,
    }
    return [f"-Dbundle.{name}={path}" for name, path in found.items()]


@pytest.mark.parametrize("name", sorted(path.stem for path in TESTS.glob("*Test.java")))
def test_in_java(java: Java, bundles: list[str], name: str) -> None:
    java.junit(name, bundles)


def test_every_native_method_is_registered() -> None:
    """One that is not would fail when it is called; a wrong signature fails when the library is loaded."""
    declared = re.findall(
        r"static native [\w\[\]]+ (\w+)\(", (PACKAGE / "src/io/edgekit/Native.java").read_text()
    )
    registered = [
        name
        for path in sorted((PACKAGE / "native").glob("*.cpp"))
        for name in re.findall(r'method\("(\w+)"', path.read_text())
    ]
    assert len(declared) > 20 and sorted(declared) == sorted(registered)


def expected(bundle: Path, settings: dict[str, Any]) -> list[str]:
    """Events of ek_generate as EventLines prints them."""
    with Session(bundle, SessionOptions(threads=2)) as session:
        outcome = native_generation.generate(session, PROMPT, **settings)
    assert outcome.status == OK and outcome.stats is not None, outcome.message
    names = ("denoising_steps", "forwards", "projections", "prefills", "committed_tokens", "canvases")
    counters = " ".join(
        [REASONS[outcome.stats["finish_reason"]], *(str(outcome.stats[name]) for name in names)]
    )
    said, committed = [], 0
    for event in outcome.events:
        if event[0] == "draft":
            _, canvas, step, start, ids, accepted = event
            said.append(f"draft {canvas} {step} {start} {ids} {''.join(map(str, accepted))}")
        elif event[0] == "committed":
            said.append(f"committed {event[1]} {committed} {event[2]}")
            committed += len(event[2])
        else:
            said.append(f"done {counters}")
    return [*said, f"returned {counters}"]


@pytest.mark.parametrize(("family", "settings"), GENERATIONS, ids=[family for family, _ in GENERATIONS])
def test_events_are_those_of_the_core(
    java: Java, tmp_path: Path, family: str, settings: dict[str, Any]
) -> None:
    layers = {"n_layers" if family == "llada" else "num_hidden_layers": 2}
    bundle = native_bundle(tmp_path, family, Scheme("mixed4", 16), **layers)
    options = [f"{name}={value}" for name, value in settings["options"].items()]
    numbers = (settings["seed"], settings["max_new_tokens"], settings["steps"])
    said = java.run("io.edgekit.EventLines", bundle, ",".join(map(str, PROMPT)), *map(str, numbers), *options)
    wanted = expected(bundle, settings)
    assert len(wanted) > 4 and said.splitlines() == wanted


@pytest.mark.parametrize("model", ["tiny-llada", "tiny-gemma"])
def test_texts_are_what_the_library_makes_of_them(
    java: Java, shipped_bundle: Callable[..., Path], tmp_path: Path, model: str
) -> None:
    bundle = shipped_bundle(model, "native")
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer" / "tokenizer.json"))
    texts = ["🦊 naïve\u0301", *(text.replace("\0", " ") for text in lines(11, 300) if text.strip("\0"))]
    (tmp_path / "lines").write_bytes("\0".join(texts).encode())
    said = java.run("io.edgekit.TextLines", bundle, tmp_path / "lines").splitlines()
    assert len(said) == len(texts)
    for text, found in zip(texts, said, strict=True):
        ids = tokenizer.encode(text).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False).encode().hex()
        assert found == f"{ids}|{decoded}|{decoded}", text


# --- the benchmark ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forwards", [0, 1])
def test_a_report_is_merged_and_counts_what_pythons_does(
    java: Java, shipped_bundle: Callable[..., Path], tmp_path: Path, forwards: int
) -> None:
    bundle, tokens, new_tokens, steps = shipped_bundle("tiny-gemma", "native"), 12, 24, 4
    with Generator(str(bundle)) as generator:
        (ids,) = Workload(Case(str(bundle), tokens=tokens, new_tokens=new_tokens), generator)._prompts
    numbers = (0, 1, 2, forwards, new_tokens, steps, ",".join(map(str, ids)))
    files = [tmp_path / "java.json", tmp_path / "python.jsonl"]
    files[0].write_text(java.run("io.edgekit.BenchReport", bundle, *map(str, numbers)))
    ends = ("--forwards", forwards) if forwards else ()
    bench(bundle, "--prompt-tokens", tokens, "-n", new_tokens, "--set", f"steps={steps}", "--resident", 0,
          "--warmups", 1, "-r", 2, *ends, "--no-probe", "--report", files[1])  # fmt: skip
    own, python = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    check_equal_counts(own, python, forwards)
    assert own["about"]["limits"].keys() == of_processor(
        ProcessorProbe(1, 1, 1, 1, "", "", 1, 1, 1)
    ).keys() | {"disk_bytes_per_second"}
    assert [test["label"] for test in own["tests"]] == [{"run": n, "battery": 0.8} for n in range(2)]
    assert own["tests"][0]["spans"]["rows"]
    rows = json.loads(bench("--merge", files[0], "--merge", files[1], "-o", "json"))
    for name in (
        "model",
        "preset",
        "test",
        "runs",
        "forwards",
        "weights_bytes",
        "streamed_bytes",
        "settings",
    ):
        assert rows[0].get(name) == rows[1].get(name), name


# --- Kotlin -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kotlin(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Java:
    made = tmp_path_factory.mktemp("kotlin")
    compiler = kotlinc()
    found = Java(java.folder, (*java.classes, made, *KOTLIN_JARS))
    path = os.pathsep.join(map(str, found.classes))
    run(*compiler, "-Werror", "-jvm-target", "1.8", "-cp", path, "-d", made,
        *(PACKAGE / "kotlin").rglob("*.kt"), *TESTS.glob("*.kt"))  # fmt: skip
    return found


def test_in_kotlin(kotlin: Java, bundles: list[str]) -> None:
    kotlin.junit("FlowTest", bundles)


# --- the page -----------------------------------------------------------------------------------------------


def test_the_page(java: Java, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "java.md").read_text(encoding="utf-8")
    program, turns, report = re.findall(r"```java\n(.*?)```", page, re.DOTALL)
    (commands,) = [
        block for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) if "Answer" in block
    ]
    (tmp_path / "Answer.java").write_text(program.replace("Why is the sky blue?", "Copy this: red 7"))
    (tmp_path / "runtime").symlink_to(ROOT / "runtime")
    said = [run("bash", "-c", line.removeprefix("$ "), cwd=tmp_path) for line in commands.splitlines()]
    assert said[-1] == "red 7\n"
    (tmp_path / "More.java").write_text(
        "import io.edgekit.*;\nimport java.util.*;\n\npublic class More {\n"
        "  static void show(String draft) { System.out.println(draft); }\n\n"
        "  public static void main(String[] arguments) throws Exception {\n"
        f'    try (Session session = Session.open("llada")) {{\n{turns}\n'
        f"      System.out.println(turns);\n{report}\n      System.out.println(report);\n    }}\n  }}\n}}\n"
    )
    command = shlex.split(commands.splitlines()[-1].removeprefix("$ ").replace("Answer", "More"))
    *drafts, chat, measured = run(*command, cwd=tmp_path).splitlines()
    assert len(drafts) > 2 and chat.endswith('assistant: {"name": "Ada", "age": 31, "city": "Rome"}]')
    assert json.loads(measured)["edgekit_bench"] == 1
