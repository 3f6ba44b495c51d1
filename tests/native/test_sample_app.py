"""Android's sample application: what of it can be checked without a compiler. tests/native/test_java.py
compiles it, and runs what is not its screen.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.android_sample import FOLDER, MAIN, MANIFEST, MODEL, NAMESPACE, RESOURCES, SOURCES

PACKAGE = FOLDER.parents[1]
ANDROID = "{http://schemas.android.com/apk/res/android}"
XML = sorted(MAIN.rglob("*.xml"))
KOTLIN = sorted(SOURCES.rglob("*.kt"))


def catalog() -> dict[str, dict[str, object]]:
    return tomllib.loads((FOLDER / "gradle" / "libs.versions.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", XML, ids=lambda p: p.relative_to(MAIN).as_posix())
def test_every_resource_is_well_formed(path: Path) -> None:
    ElementTree.parse(path)


def test_the_manifest_names_classes_that_are_there() -> None:
    root = ElementTree.parse(MANIFEST).getroot()
    assert "package" not in root.attrib, "Gradle takes it from the namespace"
    asked = {node.attrib[f"{ANDROID}name"] for node in root.iter("uses-permission")}
    assert asked == {"android.permission.INTERNET"}
    for kind in ("application", "activity"):
        (node,) = root.iter(kind)
        folder, _, name = node.attrib[f"{ANDROID}name"].rpartition(".")
        source = SOURCES / folder.replace(".", "/") / f"{name}.kt"
        assert re.search(rf"^class {name}\b.*: {kind.title()}\(\)", source.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", KOTLIN, ids=lambda p: p.name)
def test_sources_are_where_their_package_says(path: Path) -> None:
    (package,) = re.findall(r"^package ([\w.]+)$", path.read_text(), re.MULTILINE)
    assert path.parent == SOURCES / package.replace(".", "/")
    assert package in (NAMESPACE, f"{NAMESPACE}.model")


def test_what_it_does_needs_no_android() -> None:
    assert len([*MODEL.glob("*.kt")]) >= 2
    for path in MODEL.glob("*.kt"):
        assert not re.search(r"\bandroid[x]?\.|\bR\.", path.read_text()), path


def test_every_resource_is_used() -> None:
    said = "\n".join(path.read_text() for path in [*XML, *KOTLIN])
    named = {(kind, name) for kind, name in re.findall(r"@(string|color|id|style|xml|layout)/(\w+)", said)}
    named |= set(re.findall(r"\bR\.(string|color|id|style|xml|layout)\.(\w+)", said))
    values = [ElementTree.parse(path).getroot() for path in (RESOURCES / "values").glob("*.xml")]
    there = {(node.tag, node.attrib["name"]) for root in values for node in root}
    assert len(there) > 20 and there <= named, there - named
    ids = set(re.findall(r"@\+id/(\w+)", said))
    assert len(ids) > 10 and ids == {name for kind, name in named if kind == "id"}


def test_versions_stand_in_one_place() -> None:
    versions = catalog()["versions"]
    named = {"android", "kotlin", "coroutines", "onnxruntime", "onnxruntime-qnn", "compile-sdk", "min-sdk"}
    assert named == versions.keys()
    asked = ElementTree.parse(PACKAGE / "android" / "AndroidManifest.xml").getroot().find("uses-sdk")
    assert asked is not None and versions["min-sdk"] == asked.attrib[f"{ANDROID}minSdkVersion"]
    scripts = {path.relative_to(FOLDER).as_posix(): path.read_text() for path in FOLDER.rglob("*.kts")}
    assert scripts.keys() == {"settings.gradle.kts", "build.gradle.kts", "app/build.gradle.kts"}
    for name, said in scripts.items():
        assert not re.search(r"\d+\.\d+\.\d+", said), name
    used = {part.replace(".", "-") for said in scripts.values()
            for part in re.findall(r"libs\.plugins\.([\w.]+)\)", said)}  # fmt: skip
    assert used == catalog()["plugins"].keys()
    sizes = re.findall(r"libs\.versions\.([\w.]+)\.get\(\)", scripts["app/build.gradle.kts"])
    assert {name.replace(".", "-") for name in sizes} == {"compile-sdk", "min-sdk"}
    libraries = re.findall(r"implementation\(libs\.([\w.]+)\)", scripts["app/build.gradle.kts"])
    assert {name.replace(".", "-") for name in libraries} == catalog()["libraries"].keys()


def test_it_has_what_the_npu_takes() -> None:
    """As the page for Java says it."""
    page = (PACKAGE.parents[1] / "docs" / "java.md").read_text(encoding="utf-8")
    libraries: dict[str, Any] = catalog()["libraries"]
    for library in (libraries["onnxruntime-android"], libraries["onnxruntime-qnn"]):
        version = catalog()["versions"][library["version"]["ref"]]
        assert f'implementation("{library["module"]}:{version}")' in page
    (asked,) = ElementTree.parse(MANIFEST).getroot().iter("uses-native-library")
    said = {key.removeprefix(ANDROID): value for key, value in asked.attrib.items()}
    assert said == {"name": "libcdsprpc.so", "required": "false"}
    assert '<uses-native-library android:name="libcdsprpc.so" android:required="false" />' in page
    (folder,) = re.findall(r"packaging \{ .* \}", (FOLDER / "app" / "build.gradle.kts").read_text())
    assert f"(`{folder}`)" in page


def test_the_build_names_what_is_there() -> None:
    script = (FOLDER / "app" / "build.gradle.kts").read_text()
    assert f'namespace = "{NAMESPACE}"' in script
    (flows,) = re.findall(r'kotlin\.srcDir\("([^"]+)"\)', script)
    assert (FOLDER / "app" / flows).resolve() == PACKAGE / "kotlin"
    (archive,) = re.findall(r'files\("([^"]+)"\)', script)
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"-o runtime/java/android/sample/app/{archive}" in readme
    assert "not built with Gradle, not run on a device" in readme
    (port,) = re.findall(r">http://localhost:(\d+)<", (RESOURCES / "values" / "strings.xml").read_text())
    assert f"adb reverse tcp:{port} tcp:{port}" in readme
    domains = ElementTree.parse(RESOURCES / "xml" / "network.xml").getroot().iter("domain")
    assert [node.text for node in domains] == ["localhost"]
