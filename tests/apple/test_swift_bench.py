"""The Swift package's benchmark: its calls, the members that it writes, and the same calls made from C."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.bench_reports import bench, check_equal_counts
from support.c_programs import HEADER, compiler, run
from test_swift import PACKAGE, SOURCES, mistakes, parsed, text, walk
from tree_sitter import Node

from edgekit.flashload import _native
from edgekit.runtime.generation import Generator
from edgekit.runtime.session import open_session
from edgekit.tools.benchmark.about import about
from edgekit.tools.benchmark.cases import Case
from edgekit.tools.benchmark.workload import Workload

PROGRAM = Path(__file__).parents[1] / "native" / "measure.c"
#: Of Benchmark.swift, beside the functions of its session.
CALLED = (
    "ek_bench_open", "ek_bench_begin", "ek_bench_tell", "ek_bench_end", "ek_bench_drop", "ek_bench_close",
    "ek_bench_get_report", "ek_describe_limits",
)  # fmt: skip
TOKENS, NEW_TOKENS, STEPS = 12, 24, 4


# --- calls of the C ABI -------------------------------------------------------------------------------------


def declared() -> dict[str, int]:
    """Functions of the header, with how many arguments they take."""
    header = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"EK_API\s+[^;(]*?\b(ek_\w+)\s*\(([^;]*?)\)\s*EK_NOEXCEPT", header, re.DOTALL)
    return {name: 0 if given.strip() == "void" else given.count(",") + 1 for name, given in found}


def calls(root: Node) -> Iterator[tuple[str, int, int]]:
    """Calls of C functions: name, arguments, line."""
    for node in walk(root):
        if node.type != "call_expression" or not text(node.children[0]).startswith("ek_"):
            continue
        given = [each for each in walk(node.children[1]) if each.type == "value_arguments"][0]
        count = sum(each.type == "value_argument" for each in given.children)
        yield text(node.children[0]), count, node.start_point[0] + 1


def test_c_functions_are_called_with_as_many_arguments_as_they_take() -> None:
    functions, seen = declared(), set[str]()
    assert functions["ek_bench_tell"] == 3 and functions["ek_version"] == 0
    for path in SOURCES:
        for name, count, line in calls(parsed(path.read_bytes())):
            if name in functions:
                seen.add(name)
                assert count == functions[name], f"{path.name}, line {line}: {name}"
    assert seen >= {*CALLED, "ek_generate", "ek_session_open"}


def test_a_call_with_an_argument_too_few_is_seen() -> None:
    assert list(calls(parsed(b"let a = f(ek_bench_tell(handle, 0), 1)"))) == [("ek_bench_tell", 2, 1)]


def test_members_of_c_structs_are_the_headers() -> None:
    header = HEADER.read_text(encoding="utf-8")
    for file, variable, struct in (("Recorder", "wanted", "ek_bench_options"),):
        source = (PACKAGE / f"Sources/EdgeKit/{file}.swift").read_text(encoding="utf-8")
        body = re.search(rf"typedef struct {struct} {{(.*?)}} {struct};", header, re.DOTALL)
        assert body is not None
        members = set(re.findall(r"\b(\w+);", re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)))
        used = set(re.findall(rf"\b{variable}\.(\w+)", source))
        assert len(used) > 2 and used <= members


def test_the_pages_code_parses() -> None:
    page = (PACKAGE.parents[1] / "docs/bench.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```swift\n(.*?)```", page, re.DOTALL)
    assert not mistakes(parsed(block.encode())) and "Benchmark.run(" in block


# --- what it writes itself ----------------------------------------------------------------------------------


def literal_keys(source: str, *, after: str) -> set[str]:
    """Names in the first dictionary literal, and what stands within it, behind a text."""
    start = source.index("[", source.index(after) + len(after))
    depth, at = 0, start
    while not at or depth or at == start:
        depth += {"[": 1, "]": -1}.get(source[at], 0)
        at += 1
    return set(re.findall(r'"(\w+)":', source[start:at]))


@pytest.fixture(scope="module")
def bundle(shipped_bundle: Callable[..., Path]) -> Path:
    return shipped_bundle("tiny-gemma", "native")


def test_members_that_swift_writes_are_those_of_python(bundle: Path) -> None:
    source = (PACKAGE / "Sources/EdgeKit/Benchmark.swift").read_text(encoding="utf-8")
    with open_session(bundle) as session:
        python = about(Case(str(bundle), tokens=TOKENS, new_tokens=NEW_TOKENS), NEW_TOKENS, session, None)
    outer = literal_keys(source, after="var facts: [String: JSONValue] = ") | set(
        re.findall(r'facts\["(\w+)"\]', source)
    )
    assert outer == {"case", "limits"} <= python.keys()
    case = literal_keys(source, after="var test: [String: JSONValue] = ") | set(
        re.findall(r'test\["(\w+)"\]', source)
    )
    assert case == python["case"].keys()


# --- the same calls from C ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    core, built = _native.load().path, tmp_path_factory.mktemp("measure") / "measure"
    run(compiler("cc", "gcc", "clang"), "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror",
        "-I", HEADER.parent, PROGRAM, core, f"-Wl,-rpath,{core.parent}", "-o", built)  # fmt: skip
    return built


@pytest.mark.parametrize("forwards", [0, 1])
def test_a_report_from_c_is_merged_and_counts_what_pythons_does(
    bundle: Path, program: Path, tmp_path: Path, forwards: int
) -> None:
    case = Case(str(bundle), tokens=TOKENS, new_tokens=NEW_TOKENS, settings={"steps": STEPS})
    with Generator(str(bundle)) as generator:
        workload = Workload(case, generator)
        (ids,), new_tokens = workload._prompts, workload.new_tokens
    told = json.dumps(
        {"case": {"new_tokens": new_tokens, "forwards": forwards, "settings": {"steps": STEPS}}}
    )
    done = subprocess.run(
        [program, bundle, told, "0", "1", "2", str(forwards), str(NEW_TOKENS), str(STEPS), *map(str, ids)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [tmp_path / "c.json", tmp_path / "python.jsonl"]
    files[0].write_text(done.stdout, encoding="utf-8")
    ends = ("--forwards", forwards) if forwards else ()
    bench(bundle, "--prompt-tokens", TOKENS, "-n", NEW_TOKENS, "--set", f"steps={STEPS}", "--resident", 0,
          "--warmups", 1, "-r", 2, *ends, "--no-probe", "--report", files[1])  # fmt: skip
    from_c, python = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    check_equal_counts(from_c, python, forwards)
    rows = json.loads(bench("--merge", files[0], "--merge", files[1], "-o", "json"))
    for name in ("test", "runs", "forwards", "weights_bytes", "streamed_bytes", "settings"):
        assert rows[0].get(name) == rows[1].get(name), name
