"""The archive for Android: libraries of a cross compiler for arm64 Linux, with a few sources of the core,
stand for those of the NDK.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from support.kotlin import KOTLIN_JARS, kotlinc
from test_packaging import TOOLS, project

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "runtime" / "java" / "assemble_aar.py"
COMPILER, READELF = (shutil.which(f"aarch64-linux-gnu-{tool}") for tool in ("g++", "readelf"))
#: What Linux has in place of Android's libraries.
OF_LINUX = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-aarch64.so.1"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("assemble_aar", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = COMPILER and READELF and shutil.which("javac") and shutil.which("cmake", path=TOOLS["PATH"])
    if not there and not os.environ.get("EDGEKIT_SYSTEM_PACKAGES"):
        pytest.skip(
            "needs CMake, a JDK and a cross compiler (Debian: openjdk-17-jdk-headless g++-aarch64-linux-gnu)"
        )
    folder = tmp_path_factory.mktemp("aar")
    system = [
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={COMPILER}",
    ]
    few = ["-DEDGEKIT_ONLY=flashload/native/src/abi", "-DEDGEKIT_JAVA=ON", "-DEDGEKIT_WERROR=ON"]
    linked = "-DCMAKE_SHARED_LINKER_FLAGS=-static-libstdc++ -static-libgcc -Wl,-z,max-page-size=16384"
    for command in (
        ["cmake", "-S", ROOT, "-B", folder, *system, *few, linked],
        [
            "cmake",
            "--build",
            folder,
            "--parallel",
            "2",
            "--target",
            "edgekit_core",
            "edgekit_jni",
            "edgekit_jar",
        ],
    ):
        done = subprocess.run(command, env=TOOLS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def readelf(option: str, path: Path) -> str:
    assert READELF is not None
    return subprocess.run([READELF, option, path], capture_output=True, text=True, check=True).stdout


def test_libraries_are_read_as_binutils_reads_them(script: ModuleType, built: Path) -> None:
    for name in script.LIBRARIES:
        path = built / name
        wanted = re.findall(r"\(NEEDED\) .*\[(.+)\]", readelf("-dW", path))
        assert wanted and script.needed(path.read_bytes()) == wanted
        loads = re.findall(r"^ +LOAD .* (0x[0-9a-f]+)$", readelf("-lW", path), re.MULTILINE)
        found = [
            alignment for kind, *_, alignment in script.segments(path.read_bytes()) if kind == script.LOAD
        ]
        assert found == [int(each, 16) for each in loads] == [16384] * len(loads)


def test_what_android_refuses_is_refused(script: ModuleType, built: Path, tmp_path: Path) -> None:
    library = built / "libedgekit_jni.so"
    with pytest.raises(script.Refused, match=r"needs .*libc\.so\.6.*statically$"):
        script.check_library(library)
    with pytest.raises(script.Refused, match="cannot be read"):
        script.check_library(tmp_path / "none.so")
    own = Path(sys.executable).resolve()
    with pytest.raises(script.Refused, match="no library for 64-bit ARM"):
        script.check_library(own)
    data = bytearray(library.read_bytes())
    table, size, count = struct.unpack_from("<Q14xHH", data, 32)
    for at in range(table, table + size * count, size):
        if struct.unpack_from("<I", data, at)[0] == script.LOAD:
            struct.pack_into("<Q", data, at + 48, 4096)
    narrow = tmp_path / "narrow.so"
    narrow.write_bytes(data)
    with pytest.raises(script.Refused, match=r"aligned to 4096 bytes.*max-page-size=16384"):
        script.check_library(narrow)


def test_the_archive_has_what_gradle_looks_for(
    script: ModuleType, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "OF_THE_SYSTEM", OF_LINUX)
    output = tmp_path / "edgekit.aar"
    monkeypatch.setattr(sys, "argv", ["assemble_aar.py", "--built", str(built), "-o", str(output)])
    assert script.main() == 0
    first = output.read_bytes()
    assert script.main() == 0 and output.read_bytes() == first and list(tmp_path.iterdir()) == [output]
    with zipfile.ZipFile(output) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = ElementTree.fromstring(files["AndroidManifest.xml"])
    (sdk,) = manifest.findall("uses-sdk")
    assert list(sdk.attrib.values()) == [str(script.API)] and manifest.get("package") == "io.edgekit"
    for name in script.LIBRARIES:
        assert files[f"jni/arm64-v8a/{name}"] == (built / name).read_bytes()
    with zipfile.ZipFile(io.BytesIO(files["classes.jar"])) as classes:
        names = set(classes.namelist())
        versions = {struct.unpack(">H", classes.read(name)[6:8])[0] for name in names}
    assert {f"io/edgekit/{name}.class" for name in ("Session", "BundleFetch", "Native$Sink")} <= names
    assert versions == {52}  # of Java 8
    for rule in re.findall(r"class (io\.edgekit\.[\w$]+)", files["proguard.txt"].decode()):
        assert f"{rule.replace('.', '/')}.class" in names, rule
    prefab = json.loads(files["prefab/prefab.json"])
    assert prefab["version"] == project()["version"]
    header = files["prefab/modules/edgekit/include/edgekit.h"]
    assert header == (ROOT / "flashload" / "native" / "include" / "edgekit.h").read_bytes()
    abi = json.loads(files["prefab/modules/edgekit/libs/android.arm64-v8a/abi.json"])
    assert abi["abi"] == "arm64-v8a" and abi["api"] == script.API
    assert set(script.OF_THE_SYSTEM) and "R.txt" in files


def test_the_flows_of_kotlin_are_packed_where_there_is_its_compiler(
    script: ModuleType, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "OF_THE_SYSTEM", OF_LINUX)
    compiler, output = shlex.join(kotlinc()), tmp_path / "edgekit.aar"
    path = os.pathsep.join(map(str, KOTLIN_JARS))
    options = ["--built", str(built), "--kotlinc", compiler, "--coroutines", path, "-o", str(output)]
    monkeypatch.setattr(sys, "argv", ["assemble_aar.py", *options])
    assert script.main() == 0
    with (
        zipfile.ZipFile(output) as archive,
        zipfile.ZipFile(io.BytesIO(archive.read("classes.jar"))) as classes,
    ):
        names = set(classes.namelist())
    assert {f"io/edgekit/{name}.class" for name in ("Generations", "Fetches", "Session")} <= names
    assert "io/edgekit/BundleFetchWorker.class" not in names  # it needs WorkManager


def test_it_says_what_it_lacks(tmp_path: Path) -> None:
    def said(*options: str | Path) -> str:
        command = [sys.executable, str(SCRIPT), *map(str, options)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr

    assert "as --ndk" in said()
    assert "android.toolchain.cmake: is not there" in said("--ndk", tmp_path)
    assert "go together" in said("--ndk", tmp_path, "--kotlinc", "kotlinc")
    assert "edgekit.jar: is no jar" in said("--built", tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_the_native_code_looks_up_is_kept_by_shrinkers() -> None:
    code = (ROOT / "runtime" / "java" / "native" / "jni_library.cpp").read_text()
    looked_up = {name.replace("/", ".") for name in re.findall(r'kept\(env, "(io/edgekit/[\w$]+)"', code)}
    rules = (ROOT / "runtime" / "java" / "android" / "consumer-rules.pro").read_text()
    assert len(looked_up) > 4 and looked_up <= set(re.findall(r"class (io\.edgekit\.[\w$]+)", rules))
