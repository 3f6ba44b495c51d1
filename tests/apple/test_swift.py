"""The Swift package: what can be checked without its compiler, and with one, its own tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import swift_fixtures
import tree_sitter_swift
from support.c_programs import HEADER, compiler, run
from tree_sitter import Language, Node, Parser

from edgekit.flashload import _native
from edgekit.flashload import manifest as manifests

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "runtime" / "swift"
SOURCES = sorted(p for p in [ROOT / "Package.swift", *PACKAGE.rglob("*.swift")] if ".build" not in p.parts)
MODULE_MAP = PACKAGE / "Sources" / "CEdgeKit" / "module.modulemap"
SCRIPT = PACKAGE / "build-xcframework.sh"


def parsed(source: bytes) -> Node:
    return Parser(Language(tree_sitter_swift.language())).parse(source).root_node


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from walk(child)


def text(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode()


def mistakes(root: Node) -> list[str]:
    return [
        f"line {node.start_point[0] + 1}: {node.type} {text(node)[:60]!r}"
        for node in walk(root)
        if node.type == "ERROR" or node.is_missing
    ]


def test_there_is_a_package() -> None:
    names = {p.relative_to(PACKAGE).parts[0] for p in SOURCES if PACKAGE in p.parents}
    assert {"Sources", "Tests", "Examples"} <= names and len(SOURCES) > 20


def test_the_package_names_folders_that_are_there() -> None:
    """It stands in the root, where Xcode looks in a repository that it is given by its address."""
    manifest = (ROOT / "Package.swift").read_text()
    paths = re.findall(r'path: "([^"]+)"', manifest)
    assert len(paths) >= 6 and all((ROOT / path).is_dir() for path in paths)
    made = re.search(r'let made = "([^"]+)"', manifest)
    assert made is not None and (ROOT / made[1]).parent == SCRIPT.parent
    assert f"framework=$here/{Path(made[1]).name}" in SCRIPT.read_text()
    released = re.search(r"let released: .*\? = (.+)", manifest)
    assert released is not None
    address = r'\(url: "https://[^"]+/CEdgeKit\.xcframework\.zip", checksum: "[0-9a-f]{64}"\)'
    assert released[1] == "nil" or re.fullmatch(address, released[1])


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_source_parses(path: Path) -> None:
    assert not mistakes(parsed(path.read_bytes()))


def test_the_parser_sees_mistakes() -> None:
    assert mistakes(parsed(b"struct A { var x: Int = }"))


# --- the C header -------------------------------------------------------------------------------------------


def test_the_module_is_the_one_header() -> None:
    (named,) = re.findall(r'header "([^"]+)"', MODULE_MAP.read_text())
    assert (MODULE_MAP.parent / named).resolve() == HEADER.resolve()
    assert not list(PACKAGE.rglob("edgekit.h")), "a second definition of the C ABI"
    assert "flashload/native/include/edgekit.h" in SCRIPT.read_text()


def test_what_swift_uses_is_in_the_header(tmp_path: Path) -> None:
    used = {
        name
        for path in SOURCES
        for name in re.findall(r"\b(?:ek|EK)_\w+", path.read_text())
        if "import CEdgeKit" in path.read_text()
    }
    assert {
        "ek_session_open_engine",
        "ek_session_open_packages",
        "ek_generate",
        "EK_STOPPED",
        "EK_ENGINE_DONE",
        "ek_tile_call",
    } <= used
    header = HEADER.read_text()
    assert not [name for name in used if not re.search(rf"\b{name}\b", header)]
    source = tmp_path / "uses.c"
    constants = sorted(name for name in used if name.isupper())
    functions = sorted(n for n in used if f"{n}(" in header)
    source.write_text(
        f'#include "{os.path.relpath(HEADER, tmp_path)}"\n'
        f"long long constants[] = {{{', '.join(constants)}}};\n"
        "typedef void (*any)(void);\n"
        f"any functions[] = {{{', '.join(f'(any){n}' for n in functions)}}};\n"
    )
    run(
        compiler("cc", "gcc", "clang"),
        "-std=c99",
        "-Wall",
        "-Werror",
        "-c",
        source,
        "-o",
        tmp_path / "uses.o",
    )


# --- Codable keys -------------------------------------------------------------------------------------------


@dataclass
class Decoded:
    """A Swift type that a manifest is decoded into: key -> Swift type of the property."""

    keys: dict[str, str] = field(default_factory=dict)


def decoded_types() -> dict[str, Decoded]:
    """Every struct below Manifest/, by name, with the JSON keys of its stored properties."""
    found: dict[str, Decoded] = {}
    for path in sorted((PACKAGE / "Sources" / "EdgeKit" / "Manifest").glob("*.swift")):
        for node in walk(parsed(path.read_bytes())):
            if node.type != "class_declaration" or not text(node).removeprefix("public ").startswith(
                "struct"
            ):
                continue
            body = node.child_by_field_name("body")
            assert body is not None
            decoded, spelled = Decoded(), {}
            for child in body.children:
                match = re.match(r"(?:public )?var (\w+): ([^={]+)$", text(child).strip())
                if child.type == "property_declaration" and match:
                    decoded.keys[match[1]] = match[2].strip()
                if child.type == "class_declaration" and text(child).startswith("enum CodingKeys"):
                    spelled = dict(re.findall(r'case (\w+) = "(\w+)"', text(child)))
            decoded.keys = {spelled.get(name, name): kind for name, kind in decoded.keys.items()}
            found[text(node.child_by_field_name("name"))] = decoded
    return found


def mismatches(types: dict[str, Decoded], kind: str, value: Any, at: str) -> Iterator[str]:
    """Where a JSON value is not what Swift's decoder takes as `kind`, keys that it does not know included."""
    optional, kind = kind.endswith("?"), kind.rstrip("?").split(".")[-1]
    if value is None:
        if not optional:
            yield f"{at} is null, {kind} is not optional"
    elif listed := re.fullmatch(r"\[(?:String: )?(\w+|\[\w+\])\]", kind):
        items = value.items() if "String: " in kind else enumerate(value)
        for key, item in items:
            yield from mismatches(types, listed[1], item, f"{at}.{key}")
    elif kind in types:
        keys = types[kind].keys
        yield from (f"{at}.{key}: Swift's {kind} has no such key" for key in value.keys() - keys.keys())
        for key, wanted in keys.items():
            if key in value:
                yield from mismatches(types, wanted, value[key], f"{at}.{key}")
            elif not wanted.endswith("?"):
                yield f"{at}.{key} is missing, which {kind} needs"
    else:
        plain = {"String": str, "Int": int, "Int64": int, "Bool": bool, "Float": (int, float)}
        wrong = kind in plain and not isinstance(value, plain[kind])
        if wrong or (isinstance(value, bool) and kind not in ("Bool", "JSONValue")):
            yield f"{at} is {value!r}, not a {kind}"


def programs_kind(types: dict[str, Decoded], programs: dict[str, Any]) -> str:
    """The type that Programs.swift decodes a format's section into."""
    return {"mlx": "MLXPrograms", "coreml": "PackagePrograms", "coreai": "PackagePrograms"}.get(
        programs["format"], "JSONValue"
    )


def mlx_entries(programs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, entry in programs["entries"].items():
        parts = [entry] if "inputs" in entry else [entry["before"], entry["expert"], entry["after"]]
        yield from ((f"{name}.{i}", part) for i, part in enumerate(parts))


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swift")
    swift_fixtures.write(folder)
    return folder


def test_keys_of_real_manifests_are_those_of_swift(fixtures: Path) -> None:
    types = decoded_types()
    assert {
        "Manifest",
        "Model",
        "Table",
        "Layer",
        "MLXPrograms",
        "PackagePrograms",
        "Feature",
    } <= types.keys()
    assert types["Model"].keys["hidden_size"] == "Int" and types["Layer"].keys["window"] == "Int?"
    bundles = json.loads((fixtures / "bundles.json").read_text())
    assert {"native", "mlx", "onnx"} <= bundles.keys()
    native = json.loads((Path(bundles["native"]) / "edgekit.json").read_text())
    assert native["model"]["role_head"].keys() == types["RoleHead"].keys.keys()
    for path in bundles.values():
        manifest = json.loads((Path(path) / "edgekit.json").read_text())
        programs = manifest["programs"]
        types["Manifest"].keys["programs"] = programs_kind(types, programs)
        assert not list(mismatches(types, "Manifest", manifest, "manifest"))
        if programs["format"] == "mlx":
            for name, part in mlx_entries(programs):
                # `Function` is the name of two types; MLX's has files.
                assert part.keys() == {"inputs", "outputs", "gpu", "cpu"}, name
                for argument in (*part["inputs"], *part["outputs"]):
                    assert not list(mismatches(types, "Argument", argument, name))


def test_a_key_that_swift_does_not_know_is_noticed(fixtures: Path) -> None:
    types = decoded_types()
    path = json.loads((fixtures / "bundles.json").read_text())["native"]
    manifest = json.loads((Path(path) / "edgekit.json").read_text())
    types["Manifest"].keys["programs"] = "JSONValue"
    manifest["model"]["surprise"] = 1
    del manifest["layers"][0]["kv_heads"]
    manifest["weights"]["size"] = "7"
    found = list(mismatches(types, "Manifest", manifest, "m"))
    assert len(found) == 3 and any("surprise" in f for f in found) and any("kv_heads" in f for f in found)


# --- scripts and documents ----------------------------------------------------------------------------------


def test_the_build_script_is_sound() -> None:
    run(compiler("bash"), "-n", SCRIPT)
    if shutil.which("shellcheck"):
        run("shellcheck", SCRIPT)
    assert os.access(SCRIPT, os.X_OK)
    assert "CMAKE_SYSTEM_PROCESSOR=arm64" in SCRIPT.read_text()


@pytest.mark.skipif(sys.platform == "darwin", reason="it would build there")
def test_the_build_script_says_where_it_runs() -> None:
    result = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("build-xcframework.sh: error: ") and "Mac" in line


@pytest.mark.parametrize("folder", [PACKAGE, PACKAGE.parents[1]], ids=["package", "repository"])
def test_code_in_the_readmes_parses(folder: Path) -> None:
    readme = (folder / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```swift\n(.*?)```", readme, re.DOTALL)
    assert blocks
    for block in blocks:
        assert not mistakes(parsed(block.encode())), block


def test_the_readme_names_what_there_is() -> None:
    readme = (PACKAGE / "README.md").read_text(encoding="utf-8")
    sources = "\n".join(path.read_text() for path in SOURCES if "Sources" in path.parts)
    public = set(re.findall(r"public (?:final class|struct|enum|protocol|actor) (\w+)", sources))
    assert {"Session", "SessionOptions", "GenerationSettings", "Segments", "CoreMLPackages"} <= public
    for block in re.findall(r"```swift\n(.*?)```", readme, re.DOTALL):
        assert set(re.findall(r"\b([A-Z]\w+)\(", block)) <= public
    named = set(re.findall(r"`([A-Z]\w+)`", readme))
    assert {"Session", "CanvasText", "ManualMemoryPressure", "MLXFunctions"} <= named & public


# --- with a compiler ----------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("swiftc") is None, reason="swiftc is not on PATH")
@pytest.mark.skipif(sys.platform == "darwin", reason="there Core AI is the system's")
def test_core_ai_is_used_as_documented(tmp_path: Path) -> None:
    """The sources compile against a module with the documented interface, and not against another one."""
    stub = (PACKAGE / "Tests" / "Stubs" / "CoreAI.swift").read_text()
    sources = [p for p in SOURCES if "Sources" in p.parts]
    for name, text, fits in (("own", stub, True), ("other", stub.replace("loadFunction", "load"), False)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "CoreAI.swift").write_text(text)
        options = ["-swift-version", "6", "-parse-as-library"]
        module = ["-emit-module", "-module-name", "CoreAI", "CoreAI.swift", "-o", "CoreAI.swiftmodule"]
        subprocess.run(["swiftc", *options, *module], cwd=folder, check=True, capture_output=True)
        result = subprocess.run(
            ["swiftc", *options, "-typecheck", "-warnings-as-errors", "-I", folder, "-I", MODULE_MAP.parent,
             *sources],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (result.returncode == 0) == fits, result.stderr[-4000:]
        assert fits or "loadFunction" in result.stderr


@pytest.mark.skipif(shutil.which("swift") is None, reason="swift is not on PATH")
@pytest.mark.skipif(sys.platform == "darwin", reason="there the package takes an XCFramework; run swift test")
def test_the_package_builds_and_passes_its_tests(fixtures: Path, tmp_path: Path) -> None:
    folder = _native.library_path().parent
    result = subprocess.run(
        ["swift", "test", "--scratch-path", str(tmp_path / "build"), "-Xlinker", f"-L{folder}",
         # The library's own needs are those of the system that built it.
         "-Xlinker", "--allow-shlib-undefined"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "EDGEKIT_SWIFT_FIXTURES": str(fixtures)},
    )  # fmt: skip
    assert result.returncode == 0, (result.stdout + result.stderr)[-8000:]
    executed = re.findall(
        r"Executed (\d+) tests?, with (?:(\d+) tests? skipped and )?0 failures", result.stdout
    )
    assert executed and int(executed[-1][0]) > 50 and executed[-1][1] in ("", "0")
    check_example(fixtures, tmp_path / "build", folder)


def check_example(fixtures: Path, build: Path, library: Path) -> None:
    """edgekit-generate gives the events of the C ABI, or one line for a format that it does not execute."""

    def example(*arguments: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["swift", "run", "--skip-build", "--scratch-path", str(build), "edgekit-generate",
             *map(str, arguments)],
            cwd=ROOT, capture_output=True, text=True, check=False,
            env={**os.environ, "LD_LIBRARY_PATH": str(library)},
        )  # fmt: skip

    recorded = json.loads((fixtures / "generations.json").read_text())[0]
    for name, value in recorded["options"].items():
        recorded["prompt"] += ["--option", f"{name}={json.dumps(value)}"]
    lengths = ["--new-tokens", recorded["max_new_tokens"], "--steps", recorded["steps"]]
    result = example(recorded["bundle"], "--seed", recorded["seed"], *lengths, *recorded["prompt"])
    assert result.returncode == 0, result.stderr
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["event"] for e in events] == [e["kind"] for e in recorded["events"]]
    assert [e.get("ids", []) for e in events] == [e["ids"] for e in recorded["events"]]
    packages = json.loads((fixtures / "bundles.json").read_text())["coreml"]
    result = example(packages, 5)
    assert result.returncode == 2 and result.stdout == ""
    line = result.stderr.splitlines()[-1]
    assert (
        line.startswith("edgekit-generate: error: ")
        and "Core ML" in line
        and "this build runs native" in line
    )


def test_the_manifest_that_swift_tests_write_is_sealed(tmp_path: Path) -> None:
    """The native library refuses it otherwise, and no Swift compiler is needed to see that."""
    source = (PACKAGE / "Tests" / "EdgeKitTests" / "FakeEngine.swift").read_text(encoding="utf-8")
    (text,) = re.findall(r'let minimalManifest = """\n(.*?)\n  """', source, re.DOTALL)
    lines = [line.removeprefix("  ") for line in text.splitlines()]
    (tmp_path / "edgekit.json").write_text("\n".join(lines), encoding="utf-8")
    assert manifests.load(tmp_path).schema_version == manifests.SCHEMA_VERSION
    said = (PACKAGE / "Sources" / "EdgeKit" / "Manifest" / "Manifest.swift").read_text(encoding="utf-8")
    assert f"static let schemaVersion = {manifests.SCHEMA_VERSION}\n" in said
