"""The sample application for iOS: its project, and that what it asks of the package is there. Nothing of it
has been compiled; tests/apple/test_swift.py parses its sources.
"""

from __future__ import annotations

import plistlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_swift import PACKAGE, parsed, text, walk
from tree_sitter import Node

APPLICATION = PACKAGE / "Examples" / "ChatApp"
SOURCES = sorted((APPLICATION / "Sources").glob("*.swift"))
PROJECT = APPLICATION / "ChatApp.xcodeproj" / "project.pbxproj"
#: What it takes of Apple's: types (what the parser takes for one among them), and members of their values.
SYSTEM_TYPES = frozenset(
    re.findall(
        r"\w+",
        """
    Any App Array AttributedString Bool Button CancellationError CaseIterable Color Data
    Double Environment Error FileManager ForEach HStack Identifiable Int LazyVStack MainActor NSObject
    Never Observable ObservationIgnored Picker ProgressView Result Scene ScrollView Sendable ShareLink
    Spacer State String Task Text TextField TimelineView UIApplication UIApplicationDelegate
    UIApplicationDelegateAdaptor UInt64 URL URLResourceValues VStack View Void WindowGroup async main
    unchecked
    """,
    )
)
SYSTEM_MEMBERS = frozenset(
    re.findall(
        r"\w+",
        """
    URL active allCases animation answer appending applicationSupportDirectory atomic autocapitalization
    autocorrectionDisabled body bold bottom cancel count createDirectory default defaultScrollAnchor
    disabled documentsDirectory easeOut enabled enumerated fileExists font fontWeight footnote
    foregroundColor foregroundStyle frame get gray green infinity isEmpty isExcludedFromBackup
    keyboardType leading lineLimit localizedDescription monospaced monospacedDigit never now offset
    onChange opacity padding path periodic rawValue red regular roundedBorder scenePhase secondary
    seconds self setResourceValues success system tag textFieldStyle textInputAutocapitalization
    textSelection trimmingCharacters utf8 vertical whitespaces write
    """,
    )
)


def below(path: Path) -> Iterator[Node]:
    yield from walk(parsed(path.read_bytes()))


def labels(node: Node) -> list[str]:
    """Labels that a declaration wants, `_` for none; those that may be left out end in `?`."""
    found = []
    for child in node.children:
        if child.type == "parameter":
            found.append(text(child.children[0]))
        elif child.type == "=" and found:
            found[-1] += "?"
    return found


def given(call: Node) -> list[str]:
    """Labels of a call's arguments in parentheses, and `{}` for a closure behind them."""
    found = []
    for suffix in call.children:
        if suffix.type != "call_suffix":
            continue
        for part in suffix.children:
            if part.type == "lambda_literal":
                found.append("{}")
            for argument in part.children if part.type == "value_arguments" else []:
                if argument.type == "value_argument":
                    label = [child for child in argument.children if child.type == "value_argument_label"]
                    found.append(text(label[0]) if label else "_")
    return found


def fits(said: list[str], declared: list[str]) -> bool:
    """Whether arguments come in the order of a declaration, and leave out only what has a default."""
    left = list(said)
    for index, name in enumerate(declared):
        closes = left == ["{}"] and index == len(declared) - 1
        if left and (left[0] == name.rstrip("?") or closes):
            left.pop(0)
        elif not name.endswith("?"):
            return False
    return not left


class Public:
    """What the package offers: types, members, and how functions and initializers are called."""

    def __init__(self) -> None:
        self.types: set[str] = set()
        self.members: set[str] = set()
        self.calls: dict[str, list[list[str]]] = defaultdict(list)
        for path in sorted((PACKAGE / "Sources" / "EdgeKit").rglob("*.swift")):
            for node in below(path):
                self._take(node)

    def _take(self, node: Node) -> None:
        if node.type == "enum_entry":  # as public as its enum
            self.members |= {text(child) for child in node.children if child.type == "simple_identifier"}
            return
        shown = node.children and node.children[0].type == "modifiers" and "public" in text(node.children[0])
        if not shown:
            return
        if node.type in ("class_declaration", "protocol_declaration"):
            self.types.add(text(node.child_by_field_name("name")))
        elif node.type == "property_declaration":
            self.members.update(re.findall(r"\b(?:let|var) (\w+)", text(node).split("{")[0]))
        elif node.type == "function_declaration":
            name = text(node.child_by_field_name("name"))
            self.members.add(name)
            self.calls[name].append(labels(node))
        elif node.type == "init_declaration":
            parent = node.parent
            while parent is not None and parent.type != "class_declaration":
                parent = parent.parent
            assert parent is not None
            self.calls[text(parent.child_by_field_name("name"))].append(labels(node))


@pytest.fixture(scope="module")
def public() -> Public:
    return Public()


def own_names() -> set[str]:
    """What the application itself declares, cases of enums among it."""
    said = "\n".join(path.read_text() for path in SOURCES)
    cases = re.findall(r"\bcase (\w+(?:, \w+)*)(?: = \w+)?(?: \}|$)", said, re.MULTILINE)
    declared = re.findall(r"\b(?:let|var|func|class|struct|enum) (\w+)", said)
    return {*declared, *(name for line in cases for name in line.split(", "))}


def strange(sources: dict[str, bytes], public: Public) -> list[str]:
    """Types, members and calls that neither the package, the application nor the system has."""
    own, found = own_names(), []
    known = public.members | own | SYSTEM_MEMBERS
    for name, source in sources.items():
        code = re.sub(r"//.*", "", source.decode())
        short = re.findall(
            r"(?:^|[\s(\[,:])\.([a-z]\w*)", code, re.MULTILINE
        )  # members of a type that is not named
        found += [f"{name}: member {member}" for member in short if member not in known]
        for node in walk(parsed(source)):
            if node.type == "type_identifier" and text(node) not in public.types | own | SYSTEM_TYPES:
                found.append(f"{name}: type {text(node)}")
            if node.type == "navigation_suffix":
                member = text(node.children[-1])
                of_package = node.parent is not None and text(node.parent.children[0]) == "EdgeKit"
                if member not in (public.types if of_package else known):
                    found.append(f"{name}: member {member}")
            if node.type == "call_expression":
                callee = text(node.children[0]).rsplit(".", 1)[-1].strip()
                ways = public.calls.get(callee, []) if callee not in own else []
                if ways and callee not in SYSTEM_MEMBERS and not any(fits(given(node), way) for way in ways):
                    found.append(f"{name}: {callee}({given(node)}), not as {ways}")
    return found


def test_what_it_asks_of_the_package_is_there(public: Public) -> None:
    assert {"Session", "BundleFetch", "BackgroundTransport", "CanvasText", "ProcessMemory"} <= public.types
    assert {"generate", "finish", "fold", "statistics", "handleEvents"} <= public.members
    assert not strange({path.name: path.read_bytes() for path in SOURCES}, public)


@pytest.mark.parametrize(
    "wrong",
    [
        "let a = Sessions(path: b)\nlet c: Sessions = a",
        "let a = session.canvasses",
        "if case .drafted(let a) = event { show(a) }",
        "let a = try await Session(options: b, path: c)",
        "try await fetch.run(over: b, onto: c)",
        "let a = try Tokenizer(path: b)",
        "let a = EdgeKit.Bundles.exists(at: b)",
        "let a = EdgeKit.Bundle.exists(path: b)",
    ],
)
def test_what_is_not_there_is_noticed(public: Public, wrong: str) -> None:
    assert strange({"wrong": wrong.encode()}, public)


def test_the_canvas_needs_nothing_of_the_application() -> None:
    said = (APPLICATION / "Sources" / "CanvasView.swift").read_text()
    others = {name for path in SOURCES if path.stem != "CanvasView"
              for name in re.findall(r"\b(?:class|struct|enum) ([A-Z]\w+)", path.read_text())}  # fmt: skip
    assert len(others) >= 5 and not [name for name in others if re.search(rf"\b{name}\b", said)]


# --- the project --------------------------------------------------------------------------------------------


def project() -> dict[str, Any]:
    """Xcode's file: an old form of property lists."""
    first, _, said = PROJECT.read_text().partition("\n")
    assert first == "// !$*UTF8*$!"
    said = re.sub(r"/\*.*?\*/", "", said)
    word = re.compile(r'"(?:[^"\\]|\\.)*"|[{}()=;,]|[\w./]+')
    assert not word.sub("", said).strip()
    words = word.findall(said)
    at = 0

    def take(expected: str = "") -> str:
        nonlocal at
        at += 1
        assert not expected or words[at - 1] == expected, f"{words[at - 1]} stands where {expected} has to"
        return words[at - 1].strip('"')

    def value() -> Any:
        first = take()
        if first == "{":
            members = {}
            while words[at] != "}":
                name = take()
                take("=")
                assert name not in members, name
                members[name] = value()
                take(";")
            take("}")
            return members
        if first == "(":
            items = []
            while words[at] != ")":
                items.append(value())
                take(",")
            take(")")
            return items
        assert first not in ("}", ")", "=", ";", ","), first
        return first

    found = value()
    assert at == len(words) and isinstance(found, dict)
    return found


def test_objects_of_the_project_refer_to_each_other() -> None:
    objects = project()["objects"]
    said = re.findall(r"\bED0{18}\w{4}\b", PROJECT.read_text())
    assert {*said} == objects.keys() and all(said.count(name) > 1 for name in objects)
    kinds = {name: members["isa"] for name, members in objects.items()}
    assert kinds[project()["rootObject"]] == "PBXProject"
    (target,) = [members for members in objects.values() if members["isa"] == "PBXNativeTarget"]
    (sources,) = [objects[name] for name in target["fileSystemSynchronizedGroups"]]
    assert (APPLICATION / sources["path"]).is_dir() and len(SOURCES) >= 4
    (product,) = [objects[name] for name in target["packageProductDependencies"]]
    assert product == {"isa": "XCSwiftPackageProductDependency", "productName": "EdgeKit"}
    (package,) = [objects[name] for name in objects[project()["rootObject"]]["packageReferences"]]
    manifest = (APPLICATION / package["relativePath"] / "Package.swift").resolve()
    assert manifest == PACKAGE.parents[1] / "Package.swift"
    assert '.library(name: "EdgeKit"' in manifest.read_text()
    (version,) = re.findall(r"\.iOS\(\.v(\d+)\)", manifest.read_text())
    settings = [members["buildSettings"] for members in objects.values() if "buildSettings" in members]
    wanted = {each["IPHONEOS_DEPLOYMENT_TARGET"] for each in settings if "SDKROOT" in each}
    assert wanted == {f"{version}.0"}
    own = [each for each in settings if "INFOPLIST_FILE" in each]
    assert len(own) == 2 and own[0] == own[1]
    for name in ("INFOPLIST_FILE", "CODE_SIGN_ENTITLEMENTS"):
        assert (APPLICATION / own[0][name]).is_file()
    assert own[0]["PRODUCT_BUNDLE_IDENTIFIER"].startswith("org.example.")


def test_the_scheme_builds_the_target() -> None:
    objects = project()["objects"]
    (name,) = [name for name, members in objects.items() if members["isa"] == "PBXNativeTarget"]
    (scheme,) = (PROJECT.parent / "xcshareddata" / "xcschemes").glob("*.xcscheme")
    built = list(ElementTree.parse(scheme).getroot().iter("BuildableReference"))
    assert len(built) == 2 and {each.attrib["BlueprintIdentifier"] for each in built} == {name}
    assert {each.attrib["ReferencedContainer"] for each in built} == {f"container:{PROJECT.parent.name}"}
    readme = (APPLICATION / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ xcodebuild .*", readme, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert f"-project {PROJECT.parent.name} -scheme {scheme.stem} " in command


def test_the_entitlement_is_the_one_of_the_readme() -> None:
    asked = plistlib.loads((APPLICATION / "ChatApp.entitlements").read_bytes())
    name = "com.apple.developer.kernel.increased-memory-limit"
    assert asked == {name: True} and name in (PACKAGE / "README.md").read_text()
    facts = plistlib.loads((APPLICATION / "Info.plist").read_bytes())
    assert facts["NSAppTransportSecurity"] == {"NSAllowsLocalNetworking": True}
    assert facts["NSLocalNetworkUsageDescription"]


def test_its_readme_says_what_has_not_been_done() -> None:
    readme = (APPLICATION / "README.md").read_text(encoding="utf-8")
    assert "not built with Xcode, not run on a device" in readme
    for path in SOURCES:
        assert f"`{path.stem}`" in readme, path.name
