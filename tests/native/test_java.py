"""The classes for Java and Kotlin over the core that Python uses: their own tests under JUnit, their events
beside Python's, and their texts beside those of `tokenizers`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import android_sample, arriving, canvas_text, native_generation
from support.bench_reports import bench, check_equal_counts
from support.kotlin import KOTLIN_JARS, kotlinc
from support.native_bundles import native_bundle
from support.native_sampler import OK
from support.range_server import EARLY_HINTS, NOTHING_OF_USE, Fault, RangeServer
from test_native_text import KINDS, of_bytes
from test_packaging import TOOLS
from tokenizers import Tokenizer

from edgekit.export.quantize import Scheme
from edgekit.flashload import bundle_set
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.flashload.manifest import MANIFEST_NAME, file_entry
from edgekit.runtime.bench import ProcessorProbe
from edgekit.runtime.generation import Generator
from edgekit.runtime.installed import folder_of
from edgekit.runtime.session import Session, SessionOptions
from edgekit.runtime.tokenizer.core_text import CoreText
from edgekit.targets import android_folder
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
    several = folder / "several"
    arriving.make(several / "npu", form="qnn")
    shutil.copytree(llada, several / "cpu")
    names = [f"{path}/{MANIFEST_NAME}" for path in ("npu", "cpu")]
    members = (Member("npu", "qnn", {}), Member("cpu", "native", {}))
    bundle_set.save(BundleSet(members, {n: file_entry(several / n) for n in names}), several)
    found = {
        "several": several,
        "pieces": with_tokenizer(folder / "pieces", KINDS["llama2"](), None),
        "bytes": with_tokenizer(folder / "bytes", of_bytes(), 260),
        "llada": llada,
        "gemma": shipped_bundle("tiny-gemma", "native"),
        "damaged": damaged,
        "bare": bare,
    }
    return [f"-Dbundle.{name}={path}" for name, path in found.items()]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Properties that FetchTest and its kin look up: a folder, and servers of it."""
    folder = tmp_path_factory.mktemp("served")
    arriving.make(folder, files={**arriving.FILES, "a folder/naive #1% &+;=@.txt": b"x"})
    with ExitStack() as stack:
        found = {"folder": str(folder)}
        for name, part_s in (("url", 0.0), ("slow", 0.01), ("stuck", 3600.0)):
            found[name] = stack.enter_context(RangeServer(folder, part_s=part_s)).url
        promising = RangeServer(folder, fault_of=lambda asked: NOTHING_OF_USE["promises"])
        found["promises"] = stack.enter_context(promising).url
        yield [f"-Dfetch.{name}={value}" for name, value in found.items()]


@pytest.fixture(scope="module")
def npu(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Properties that NpuTest and ChatOnNpuTest look up: none where the NPU's emulation is not installed."""
    folder = folder_of("onnxruntime_qnn")
    if folder is None:
        return []
    several, question = tmp_path_factory.mktemp("npu") / "set", "Copy this: red 7"
    edgekit, lengths = (sys.executable, "-m", "edgekit"), ("--lengths", "64")
    run(*edgekit, "export", "tiny-llada", "--target", "android", *lengths, "-o", several)
    bundle = several / "qnn"
    few = ("--max-new-tokens", "8", "--steps", "2")
    (library,) = Path(folder.parent, "onnxruntime", "capi").glob("libonnxruntime.so.*")
    found = {
        "set": several,
        "bundle": bundle,
        "question": question,
        "answer": run(*edgekit, "run", bundle, question, *few).removesuffix("\n"),
        "onnxruntime": library,
        "provider": folder / "libonnxruntime_providers_qnn.so",
        "backend": folder / "libQnnHtp.so",
    }
    assert found["answer"]
    return [f"-Dnpu.{name}={value}" for name, value in found.items()]


def test_the_readme_of_an_export_has_java_that_compiles(java: Java, tmp_path: Path) -> None:
    facts = {
        "model": "llada", "quantization": "mixed4", "format": "native", "download_bytes": 1, "tiers": [],
        "activation_bytes": 1, "prefix_bytes": 0,
    }  # fmt: skip
    each = [facts | {"path": "qnn", "format": "qnn", "packages": {}}, facts | {"path": "native"}]
    text = android_folder.readme("some-model", {"bundles": each}, ("sm8650",))
    assert "compiled for sm8650" in text
    (code,) = re.findall(r"```java\n(.*?)```", text, re.S)
    source = tmp_path / "Readme.java"
    source.write_text(
        "import io.edgekit.*;\nimport java.io.File;\nclass Readme {\n"
        "interface Context { File getFilesDir(); }\n"
        f"void run(Context context) {{\n{code}}}\n}}\n"
    )
    path = os.pathsep.join(map(str, java.classes))
    run("javac", "-Xlint:all", "-Werror", "-cp", path, "-d", tmp_path, source)


@pytest.mark.parametrize("name", sorted(path.stem for path in TESTS.glob("*Test.java")))
def test_in_java(
    java: Java, bundles: list[str], served: list[str], name: str, request: pytest.FixtureRequest
) -> None:
    further = request.getfixturevalue("npu") if name == "NpuTest" else []
    java.junit(name, [*bundles, *served, *further])


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
    own = CoreText((bundle / "tokenizer" / "tokenizer.json").read_bytes())
    texts = ["🦊 naïve\u0301", *(text.replace("\0", " ") for text in lines(11, 300) if text.strip("\0"))]
    (tmp_path / "lines").write_bytes("\0".join(texts).encode())
    count, *said = java.run("io.edgekit.TextLines", bundle, tmp_path / "lines").splitlines()
    assert len(said) == len(texts) and int(count) == own.count() == tokenizer.get_vocab_size()
    for text, found in zip(texts, said, strict=True):
        ids = tokenizer.encode(text).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False).encode().hex()
        assert found == f"{ids}|{own.encode_behind(text)}|{decoded}|{decoded}", text


def with_tokenizer(folder: Path, tokenizer: Tokenizer, mask: int | None) -> Path:
    """A bundle of which the tokenizer alone is of use; `mask`: of open places."""
    sampler = {} if mask is None else {"name": "llada", "config": {"mask_token_id": mask}}
    files = {"tokenizer/tokenizer.json": tokenizer.to_str().encode()}
    return arriving.make(folder, (100,), files, sampler=sampler)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gemma", "llama2"])
def test_a_canvas_is_drawn_as_plain_loops_draw_it(
    java: Java, tmp_path: Path, kind: str, masked: bool
) -> None:
    tokenizer = KINDS[kind]()
    drawing = canvas_text.Drawing(tokenizer, tokenizer.token_to_id("<s>") if masked else None)
    bundle = with_tokenizer(tmp_path / "bundle", tokenizer, drawing.mask)
    lines, wanted = list[str](), []
    for seed in range(60):
        lines.append("new")
        events = canvas_text.random_events(seed, drawing)
        for count, event in enumerate(events, 1):
            ids = ",".join(map(str, event.tokens))
            accepted = "".join("1" if flag else "0" for flag in event.accepted)
            lines.append(f"{event.kind} {event.canvas} {event.step} {event.start} {ids} {accepted}".strip())
            drawn = drawing.cells(events[:count])
            parts = " ".join(f"{text.encode().hex()}:{state}" for text, state in drawing.parts(drawn))
            step = event.step if event.kind != "done" else 0
            wanted.append(f"{step}|{' '.join(':'.join(map(str, cell)) for cell in drawn)}|{parts}")
    (tmp_path / "events").write_text("\n".join(lines))
    said = java.run("io.edgekit.CanvasLines", bundle, tmp_path / "events").splitlines()
    assert len(said) > 200 and said == wanted


# --- bundles that arrive ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fetched:
    """What FetchLines printed: how it ended, bytes, and lines about answers that failed."""

    ended: str
    total: int
    whole: int
    fetched: int
    copied: int
    found: int
    damaged: int
    current: bool
    kept_format: bool
    chosen: str | None
    trouble: list[str]


def fetch_lines(java: Java, folder: Path, *arguments: str | Path) -> tuple[str, list[str]]:
    *trouble, last = java.run("io.edgekit.FetchLines", folder, *arguments).splitlines()
    assert all(line.startswith("trouble ") for line in trouble), trouble
    return last, trouble


def fetched(java: Java, folder: Path, *arguments: str | Path) -> Fetched:
    last, trouble = fetch_lines(java, folder, *arguments)
    ended, *numbers, current, kept, chosen = last.split(" ")
    assert ended in ("here", "ended"), last
    total, whole, given, copied, found, damaged = map(int, numbers)
    said = current == "true", kept == "true", None if chosen == "null" else chosen
    return Fetched(ended, total, whole, given, copied, found, damaged, *said, trouble)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return arriving.make(tmp_path / "served", files={**arriving.FILES, "a b/naive #1% &+;=@.txt": b"x"})


def test_java_fetches_a_bundle(java: Java, bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with RangeServer(bundle) as server:
        found = fetched(java, target, server.url + "/")
        again = fetched(java, target, server.url)
    assert arriving.contents(target) == arriving.contents(bundle)
    assert (found.ended, found.whole, found.copied, found.damaged) == ("here", found.total, 0, 0)
    assert not found.trouble and sum(asked.range is not None for asked in server.log) > 4
    assert again.current and again.fetched == (bundle / "edgekit.json").stat().st_size
    assert not (tmp_path / "bundle.arriving").exists()


FAULTS = {
    "cut": Fault(cut=70_000),
    "cut at once": Fault(cut=0),
    "another range": Fault(said="bytes 5-9/*"),
    "no range": Fault(said="here"),
    "a bit": Fault(flip=5000),
    "shifted": Fault(shift=1),
    "not ready": Fault(status=503),
    "whole": Fault(whole=True),
    "surplus": Fault(surplus=b"x" * 100_000),
    "coded": Fault(coding="gzip"),
    "silent": Fault(silent=True),
    "redirect": Fault(redirect="{path}"),
}
#: That an application hears of. Where nothing is answered Java asks again; others are short or damaged.
TOLD = {
    "another range": "was asked for bytes",
    "no range": "Content-Range",
    "not ready": "HTTP status 503",
    "coded": "coding",
    "cut at once": "gave 0 of ",
}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_faults_of_a_server_are_mended(java: Java, bundle: Path, tmp_path: Path, name: str) -> None:
    """Twice: what comes damaged a third time is taken for the bundle's own fault."""
    target = tmp_path / "bundle"
    times = iter([None, None, None, *[FAULTS[name], None] * 2])
    with RangeServer(bundle, faults=times) as server:
        found = fetched(java, target, server.url)
    assert found.ended == "here" and arriving.contents(target) == arriving.contents(bundle)
    assert (found.damaged > 0) == (name in ("a bit", "shifted"))
    assert any(TOLD[name] in line for line in found.trouble) if name in TOLD else True
    assert all(line.startswith(f"trouble {server.url}: ") for line in found.trouble), found.trouble


def test_a_server_without_ranges_is_taken_as_such(java: Java, bundle: Path, tmp_path: Path) -> None:
    with RangeServer(bundle, without_ranges=True) as server:
        found = fetched(java, tmp_path / "bundle", server.url)
    assert arriving.contents(tmp_path / "bundle") == arriving.contents(bundle) and found.damaged == 0


@pytest.mark.parametrize("elsewhere", [False, True])
def test_hints_before_an_answer_are_passed_over(
    java: Java, bundle: Path, tmp_path: Path, elsewhere: bool
) -> None:
    before = EARLY_HINTS + b"HTTP/1.1 102 Processing\r\n\r\n" + EARLY_HINTS
    with RangeServer(bundle) as server, RangeServer(bundle) as front:
        server.fault_of = lambda asked: Fault(before=before)
        front.fault_of = lambda asked: Fault(before=before, redirect=server.url + "{path}")
        found = fetched(java, tmp_path / "bundle", front.url if elsewhere else server.url)
    assert arriving.contents(tmp_path / "bundle") == arriving.contents(bundle)
    assert found.damaged == 0 and found.trouble == []


def test_java_goes_on_with_what_was_cancelled(java: Java, bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with RangeServer(bundle, part_s=0.01) as slow:
        first = fetched(java, target, "until=1500000", slow.url)
    assert first.ended == "ended" and not target.exists()
    assert first.whole + first.fetched >= 1_500_000 and first.whole < first.total
    with RangeServer(bundle) as server:
        second = fetched(java, target, server.url)
    assert arriving.contents(target) == arriving.contents(bundle)
    assert second.found > 1_000_000 and server.sent < second.total - 1_000_000


def test_an_update_asks_for_runs_that_changed(java: Java, bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    shutil.copytree(bundle, target)
    newer = arriving.make(tmp_path / "newer", others={3: 1})
    with RangeServer(newer) as server:
        found = fetched(java, target, server.url)
    assert arriving.contents(target) == arriving.contents(newer)
    assert found.copied > 3_000_000 and arriving.SIZES[3] < server.sent < arriving.SIZES[3] + 200_000


def test_of_several_bundles_java_takes_the_one_that_it_runs(java: Java, tmp_path: Path) -> None:
    several = arriving.make_set(tmp_path / "several", {"a": ("coreml", "18"), "b": ("native", "18")})
    with RangeServer(several) as server:
        found = fetched(java, tmp_path / "bundle", server.url)
    assert (found.ended, found.chosen, found.kept_format) == ("here", "b", False)
    assert arriving.contents(tmp_path / "bundle") == arriving.contents(several / "b")


def test_java_keeps_the_format_of_the_bundle_that_is_there(java: Java, tmp_path: Path) -> None:
    target = arriving.make(tmp_path / "bundle", form="coreml")
    several = arriving.make_set(tmp_path / "several", {"a": ("native", ""), "b": ("coreml", "")})
    with RangeServer(several) as server:
        kept = fetched(java, target, "keep=true", server.url)
        assert (kept.ended, kept.chosen, kept.kept_format) == ("here", "b", True)
        assert arriving.contents(target) == arriving.contents(several / "b")
        anew = fetched(java, target, server.url)
        assert (anew.chosen, anew.kept_format) == ("a", False)
    assert arriving.contents(target) == arriving.contents(several / "a")


def damage(folder: Path, copy: Path, run: int) -> Path:
    """A copy with a bit of a run changed."""
    weights = Path(shutil.copytree(folder, copy)) / arriving.WEIGHTS
    data = bytearray(weights.read_bytes())
    wanted = (folder / arriving.WEIGHTS).read_bytes()
    data[len(data) - sum(arriving.SIZES[run:]) // 2] ^= 1
    assert data != wanted
    weights.write_bytes(data)
    return Path(copy)


def test_a_damaged_source_beside_a_good_one(java: Java, bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with RangeServer(damage(bundle, tmp_path / "damaged", 1)) as bad, RangeServer(bundle) as good:
        found = fetched(java, target, bad.url, good.url)
        assert {*bad.paths()} and {*good.paths()}
    assert arriving.contents(target) == arriving.contents(bundle)
    assert found.damaged <= 2  # of both sources mixed, and of the damaged one


@pytest.mark.parametrize("before", [False, True], ids=["first", "update"])
def test_what_stays_damaged_is_an_exception_and_changes_nothing(
    java: Java, bundle: Path, tmp_path: Path, before: bool
) -> None:
    target = tmp_path / "bundle"
    if before:
        arriving.make(target, seed=5)
    there = arriving.contents(target)
    with RangeServer(damage(bundle, tmp_path / "damaged", 1)) as bad:
        last, _ = fetch_lines(java, target, bad.url)
    assert re.match(r"CHECKSUM_MISMATCH run 'r1' of weights\.safetensors: came 3 times", last), last
    assert arriving.contents(target) == there and target.exists() == before


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(status=404), "FETCH_FAILED .*has neither edgekit.json nor bundles.json"),
        (Fault(status=403), "FETCH_FAILED .*does not allow it"),
        (Fault(silent=True), "FETCH_FAILED .*cannot be reached"),
        (Fault(redirect="ftp://elsewhere{path}"), "FETCH_FAILED .*leads to an address of another kind"),
        (Fault(redirect="http://host:99999{path}"), "FETCH_FAILED .*leads to what is no address"),
        (Fault(redirect="http://127.0.0.1:-1{path}"), "FETCH_FAILED .*leads to what is no address"),
        (Fault(redirect="http://127.0.0.1:0{path}"), "FETCH_FAILED .*leads to what is no address"),
        (Fault(redirect="http://[::1]:+80{path}"), "FETCH_FAILED .*leads to what is no address"),
        (Fault(redirect="{path}"), "FETCH_FAILED .*without an end"),
        (Fault(lengths=("many",)), 'FETCH_FAILED .*Content-Length "many", which is no number of bytes'),
        (Fault(lengths=("-5",)), 'FETCH_FAILED .*Content-Length "-5", which is no number of bytes'),
        (Fault(lengths=("5", "9")), 'FETCH_FAILED .*different lengths, Content-Length "5" and "9"'),
    ],
    ids=[
        "404",
        "403",
        "silent",
        "ftp",
        "port",
        "port -1",
        "port 0",
        "port +80",
        "circle",
        "no length",
        "negative length",
        "two lengths",
    ],
)
def test_where_no_source_gives_it(java: Java, bundle: Path, tmp_path: Path, fault: Fault, said: str) -> None:
    with RangeServer(bundle, fault_of=lambda asked: fault) as server:
        last, _ = fetch_lines(java, tmp_path / "bundle", server.url)
    assert re.match(said, last), last
    assert not (tmp_path / "bundle").exists()


def test_a_program_of_one_file_shows_why_a_fetch_failed(java: Java, tmp_path: Path) -> None:
    """Java's launcher of source files cuts its own frames off a stack, and fails itself where it has none."""
    page = (ROOT / "docs" / "java.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```java\n([^`]*class Fetch .*?)```", page, re.DOTALL)
    with RangeServer(arriving.make(tmp_path / "served")) as server:
        nowhere = server.url + "/nowhere"
        (tmp_path / "Fetch.java").write_text(program.replace("https://models.example/llada", nowhere))
        command = ["java", "-cp", str(java.classes[0]), f"-Djava.library.path={java.folder}", "Fetch.java"]
        done = subprocess.run(
            command, cwd=tmp_path, env=TOOLS, capture_output=True, text=True, timeout=60, check=False
        )
    said = rf"EdgeKitException: .*{re.escape(nowhere)}.* has neither edgekit\.json nor bundles\.json"
    assert done.returncode == 1 and re.search(said, done.stderr), done.stderr
    assert "at Fetch.main(Fetch.java:" in done.stderr


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a server and Java take for TLS on "localhost"."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("certificate")
    own = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", folder / "key.pem", "-out", folder / "certificate.pem")
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *own, *files)
    run("keytool", "-importcert", "-noprompt", "-alias", "own", "-storepass", "no secret", "-keystore",
        folder / "store", "-file", folder / "certificate.pem")  # fmt: skip
    return folder


@pytest.mark.parametrize("way", ["https", "to https", "to http"])
def test_redirects_keep_encryption(
    java: Java, bundle: Path, tmp_path: Path, certificate: Path, way: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    target = tmp_path / "bundle"
    with RangeServer(bundle) as plain, RangeServer(bundle) as other:
        safe, plain_url = other.serve_encrypted(context), plain.url
        if way == "to https":
            plain.fault_of = lambda asked: Fault(redirect=safe + "{path}")
        if way == "to http":
            other.fault_of = lambda asked: Fault(redirect=plain_url + "{path}")
        store = {"": certificate / "store", "Password": "no secret"}
        options = [f"-Djavax.net.ssl.trustStore{name}={value}" for name, value in store.items()]
        source = plain_url if way == "to https" else safe
        *_, last = java.run("io.edgekit.FetchLines", target, source, options=options).splitlines()
        if way == "to http":
            assert re.match("FETCH_FAILED .*leads to an address without encryption", last) and not plain.log
        else:
            assert last.startswith("here ") and arriving.contents(target) == arriving.contents(bundle)
    assert target.exists() == (way != "to http")


def test_an_unknown_certificate_is_refused(
    java: Java, bundle: Path, tmp_path: Path, certificate: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    with RangeServer(bundle) as server:
        last, _ = fetch_lines(java, tmp_path / "bundle", server.serve_encrypted(context))
    assert re.match("FETCH_FAILED .*cannot be reached .*certification path", last) and not server.log


@pytest.mark.parametrize("name", ["edgekit.json", arriving.WEIGHTS])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(drips=True),
        Fault(redirect="{path}", endless=True, drips=True),
        Fault(instead=(b"HTTP/1.1 302 \r\nLocation: /\r\nTransfer-Encoding: chunked\r\n\r\n1", b";a")),
        *NOTHING_OF_USE.values(),
    ],
    ids=["drips", "drips elsewhere", "chunk elsewhere", *NOTHING_OF_USE],
)
def test_a_source_that_gives_nearly_nothing_is_left(
    java: Java, bundle: Path, tmp_path: Path, name: str, fault: Fault
) -> None:
    with RangeServer(bundle) as slow, RangeServer(bundle) as good:
        slow.fault_of = lambda asked: fault if asked.path == name else None
        found = fetched(java, tmp_path / "bundle", "patience=0.02", slow.url, good.url)
        assert any(
            re.search(r"gave (\d+ bytes|no bytes|no answer) in 1 seconds", line) for line in found.trouble
        )
        assert arriving.contents(tmp_path / "bundle") == arriving.contents(bundle)
        if name == arriving.WEIGHTS:  # of a source that has given something it takes a minute
            return
        last, _ = fetch_lines(java, tmp_path / "alone", "patience=0.02", slow.url)
    assert re.match(
        r"FETCH_FAILED .*gave ((\d+ bytes|no bytes|no answer) in 1 seconds|nothing in time)", last
    ), last


def test_a_server_that_keeps_threads_waiting_is_given_no_more(
    java: Java, bundle: Path, tmp_path: Path
) -> None:
    """Java's own reading of chunks cannot be ended while something comes."""
    with RangeServer(bundle, fault_of=lambda asked: NOTHING_OF_USE["size of a chunk"]) as slow:
        last, _ = fetch_lines(java, tmp_path / "bundle", "patience=0.02", slow.url)
        assert len(slow.log) == 1
    assert re.match("FETCH_FAILED .*gave nothing in time, and its answer has no end", last), last


@pytest.mark.parametrize(
    "fault",
    [Fault(said="bytes 0-16383/50000000"), Fault(said="bytes 0-16383/100"), Fault(status=416)],
    ids=["another size", "a size within the range", "416"],
)
def test_a_file_of_another_size_is_told_at_once(
    java: Java, bundle: Path, tmp_path: Path, fault: Fault
) -> None:
    with RangeServer(bundle) as stale:
        stale.fault_of = lambda asked: fault if asked.path == arriving.WEIGHTS else None
        last, _ = fetch_lines(java, tmp_path / "bundle", stale.url)
        assert stale.paths().count(arriving.WEIGHTS) == 1
    assert re.match(r"FETCH_FAILED .* in weights.safetensors: the bundle there was replaced", last), last


def test_a_bundle_of_another_digest_is_refused(java: Java, bundle: Path, tmp_path: Path) -> None:
    with RangeServer(bundle) as server:
        last, _ = fetch_lines(java, tmp_path / "bundle", "sha256=" + "0" * 64, server.url)
    assert last.startswith("CHECKSUM_MISMATCH ") and "expected 0000" in last


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


def compile_kotlin(found: Java, made: Path, folders: Sequence[Path]) -> None:
    path = os.pathsep.join(map(str, found.classes))
    sources = [path for folder in folders for path in folder.rglob("*.kt")]
    run(*kotlinc(), "-Werror", "-jvm-target", "1.8", "-cp", path, "-d", made, *sources)


@pytest.fixture(scope="module")
def kotlin(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Java:
    kotlinc()  # skips before anything is compiled
    stands_in, made = tmp_path_factory.mktemp("android"), tmp_path_factory.mktemp("kotlin")
    found = Java(java.folder, (*java.classes, stands_in, made, *KOTLIN_JARS))
    run("javac", "-Xlint:all", "-Werror", "-d", stands_in, *(PACKAGE / "tests" / "android").rglob("*.java"))
    folders = [PACKAGE / "kotlin", PACKAGE / "android" / "kotlin", PACKAGE / "tests", android_sample.MODEL]
    compile_kotlin(found, made, folders)
    return found


@pytest.mark.parametrize("name", sorted(path.stem for path in TESTS.glob("*Test.kt")))
def test_in_kotlin(
    kotlin: Java, bundles: list[str], served: list[str], name: str, request: pytest.FixtureRequest
) -> None:
    """Android's worker among them, over stand-ins for WorkManager's classes, and what its sample does."""
    further = request.getfixturevalue("npu") if name in ("ChatOnNpuTest", "ChatBesideNpuTest") else []
    with ExitStack() as stack:
        sets = [each.removeprefix("-Dnpu.set=") for each in further if each.startswith("-Dnpu.set=")]
        urls = [f"-Dnpu.url={stack.enter_context(RangeServer(Path(path))).url}" for path in sets]
        kotlin.junit(name, [*bundles, *served, *further, *urls])


def test_the_sample_application_compiles(kotlin: Java, tmp_path: Path) -> None:
    """Its screen too, over stand-ins for Android's classes, and with the names that its resources get."""
    resources, classes, made = (tmp_path / name for name in ("resources", "classes", "made"))
    for folder in (resources, classes, made):
        folder.mkdir()
    manifest = android_sample.with_package(tmp_path / "AndroidManifest.xml")
    run("aapt", "package", "-f", "-m", "-M", manifest, "-S", android_sample.RESOURCES, "-I",
        android_sample.framework(), "-J", resources)  # fmt: skip
    run("javac", "-d", classes, *resources.rglob("*.java"))
    found = Java(kotlin.folder, (*kotlin.classes, classes))
    compile_kotlin(found, made, [android_sample.SOURCES])
    assert (made / "io" / "edgekit" / "sample" / "ChatActivity.class").is_file()


# --- the page -----------------------------------------------------------------------------------------------


def test_the_page(java: Java, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "java.md").read_text(encoding="utf-8")
    program, turns, report, fetching, on_npu, _ = re.findall(r"```java\n(.*?)```", page, re.DOTALL)
    (commands,) = [
        block for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) if "Answer" in block
    ]
    (tmp_path / "Answer.java").write_text(program.replace("Why is the sky blue?", "Copy this: red 7"))
    (tmp_path / "runtime").symlink_to(ROOT / "runtime")
    said = [run("bash", "-c", line.removeprefix("$ "), cwd=tmp_path) for line in commands.splitlines()]
    assert said[-1] == "red 7\n"
    (tmp_path / "More.java").write_text(
        "import io.edgekit.*;\nimport java.util.*;\n\npublic class More {\n"
        f"  static void show(String draft) {{ System.out.println(draft); }}\n\n{report}\n"
        "  public static void main(String[] arguments) throws InterruptedException {\n"
        f'    try (Session session = Session.open("llada")) {{\n{turns}\n'
        "      System.out.println(turns);\n      System.out.println(measured(prompt));\n    }\n  }\n}\n"
    )
    command = shlex.split(commands.splitlines()[-1].removeprefix("$ ").replace("Answer", "More"))
    *drafts, chat, measured = run(*command, cwd=tmp_path).splitlines()
    assert len(drafts) > 2 and chat.endswith('assistant: {"name": "Ada", "age": 31, "city": "Rome"}]')
    assert json.loads(measured)["edgekit_bench"] == 1
    command = command[:-1] + ["Fetch.java"]
    newer = arriving.make(tmp_path / "newer")
    with RangeServer(newer) as server:
        (tmp_path / "Fetch.java").write_text(fetching.replace("https://models.example/llada", server.url))
        *told, last = run(*command, cwd=tmp_path).splitlines()
    total = sum(
        path.stat().st_size for path in newer.rglob("*") if path.name != "edgekit.json" and path.is_file()
    )
    assert last == "llada is here" and told[-1] == f"{total} of {total} bytes"
    assert arriving.contents(tmp_path / "llada") == arriving.contents(newer)
    (tmp_path / "OnNpu.java").write_text(
        "import android.system.*;\nimport io.edgekit.*;\n\npublic class OnNpu {\n"
        "  static class Info { String nativeLibraryDir; }\n"
        "  static Info getApplicationInfo() { return new Info(); }\n\n"
        f"  static void run() {{\n{on_npu}\n  }}\n}}\n"
    )
    stand_ins = (PACKAGE / "tests" / "android" / "system").glob("*.java")
    run("javac", "-cp", java.classes[0], "-d", tmp_path / "on-npu", "OnNpu.java", *stand_ins, cwd=tmp_path)


def test_the_page_has_an_answer_of_the_emulated_npu(java: Java, npu: list[str], tmp_path: Path) -> None:
    """The program and its command as they stand, over the set that the page's export makes."""
    if not npu:
        pytest.skip("needs Qualcomm's emulation (pip extra export-qnn)")
    given = dict(each.removeprefix("-Dnpu.").split("=", 1) for each in npu)
    page = (ROOT / "docs" / "java.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```java\n([^`]*class Emulated .*?)```", page, re.DOTALL)
    (block,) = re.findall(r"```console\n([^`]*Emulated\.java.*?)```", page, re.DOTALL)
    install, export, *commands = [line.removeprefix("$ ") for line in block.splitlines()]
    assert install == "pip install '.[export-qnn]'"
    assert export == "edgekit export tiny-llada --target android --lengths 64 -o llada-npu"
    assert f'"{given["question"]}"' in program
    (tmp_path / "Emulated.java").write_text(program)
    (tmp_path / "llada-npu").symlink_to(given["set"])
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "java").symlink_to(java.folder)
    said = run("bash", "-ec", "\n".join(commands), cwd=tmp_path)
    assert given["answer"] in [line for line in said.splitlines() if "LIBNATIVE" not in line]
