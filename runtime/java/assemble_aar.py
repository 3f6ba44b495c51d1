#!/usr/bin/env python3
"""Build edgekit for Android, and write it as an AAR. Needs an NDK, a JDK, CMake, and of Python nothing more.

python assemble_aar.py --ndk $ANDROID_NDK_HOME -o edgekit.aar
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ABI = "arm64-v8a"
#: Android 9: the oldest system that has all functions of C that the core calls.
API = 28
LIBRARIES = ("libedgekit_core.so", "libedgekit_jni.so")
#: What applications may load of Android's own: https://developer.android.com/ndk/guides/stable_apis
OF_THE_SYSTEM = {"libc.so", "libm.so", "libdl.so", "liblog.so", "libandroid.so"}
#: Pages of newer devices: https://developer.android.com/guide/practices/page-sizes
PAGE = 16384
AARCH64, LOAD, DYNAMIC, NEEDED, STRING_TABLE = 183, 1, 2, 1, 5
#: Equal content makes equal archives. The format counts years from 1980.
DATE = (1980, 1, 1, 0, 0, 0)


class Refused(Exception):
    """Something that makes no AAR; its text is one line for the user."""


def segments(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Kind, offset, address, size in the file and alignment of an ELF library's segments."""
    table, size, count = struct.unpack_from("<Q14xHH", data, 32)
    for at in range(table, table + size * count, size):
        kind, _, offset, address, _, length, _, alignment = struct.unpack_from("<IIQQQQQQ", data, at)
        yield kind, offset, address, length, alignment


def needed(data: bytes) -> list[str]:
    """Libraries that an ELF library is linked with."""
    loaded = [(address, address + size, offset - address) for kind, offset, address, size, _ in segments(data)
              if kind == LOAD]  # fmt: skip
    entries = [
        struct.unpack_from("<QQ", data, at)
        for kind, offset, _, size, _ in segments(data)
        if kind == DYNAMIC
        for at in range(offset, offset + size, 16)
    ]
    (strings,) = [value for tag, value in entries if tag == STRING_TABLE]
    (shift,) = [moved for first, end, moved in loaded if first <= strings < end]
    names = (data[strings + shift + value :].split(b"\0", 1)[0] for tag, value in entries if tag == NEEDED)
    return [name.decode() for name in names]


def check_library(path: Path) -> None:
    """Raises Refused for a library that Android does not load."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror}); build it first") from None
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != AARCH64:
        raise Refused(f"{path}: is no library for 64-bit ARM; build it with the NDK's toolchain for {ABI}")
    for kind, _, address, _, alignment in segments(data):
        if kind == LOAD and alignment < PAGE:
            raise Refused(
                f"{path}: segment {address:#x} is aligned to {alignment} bytes, pages have up to {PAGE}; "
                f"link it with -Wl,-z,max-page-size={PAGE}"
            )
    if foreign := sorted({*needed(data)} - OF_THE_SYSTEM - {*LIBRARIES}):
        raise Refused(
            f"{path}: needs {', '.join(foreign)}, which Android does not have; link C++'s library statically"
        )


def run(command: Sequence[str | Path]) -> None:
    """Raises Refused where it fails or is not there."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, stdout=sys.stderr, check=False)
    except OSError as error:
        raise Refused(f"{words[0]}: cannot be started ({error.strerror}); install it") from None
    if done.returncode:
        raise Refused(f"{words[0]} ended with {done.returncode}; the lines above say why")


def build(ndk: Path, folder: Path) -> None:
    """Compiles the core, the JNI library and the classes into `folder`."""
    toolchain = ndk / "build" / "cmake" / "android.toolchain.cmake"
    if not toolchain.is_file():
        raise Refused(f"{toolchain}: is not there; give the folder of an NDK (r27 or newer) as --ndk")
    run(
        ["cmake", "-S", ROOT, "-B", folder, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-DANDROID_ABI={ABI}",
         f"-DANDROID_PLATFORM=android-{API}", "-DANDROID_STL=c++_static",
         "-DANDROID_SUPPORT_FLEXIBLE_PAGE_SIZES=ON", "-DCMAKE_BUILD_TYPE=Release", "-DEDGEKIT_JAVA=ON"]
    )  # fmt: skip
    run(["cmake", "--build", folder, "--parallel", "--target", "edgekit_core", "edgekit_jni", "edgekit_jar"])


def kotlin_classes(
    kotlinc: Sequence[str], coroutines: Path, jar: Path, folder: Path
) -> Iterator[tuple[str, bytes]]:
    """Name and content of what the Kotlin sources compile to, in an empty `folder`."""
    sources = sorted((HERE / "kotlin").rglob("*.kt"))
    run([*kotlinc, "-jvm-target", "1.8", "-cp", f"{jar}{os.pathsep}{coroutines}", "-d", folder, *sources])
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def archive(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in sorted(files.items()):
            out.writestr(zipfile.ZipInfo(name, DATE), data, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def classes_of(jar: Path) -> dict[str, bytes]:
    """Raises Refused where it is no jar."""
    try:
        with zipfile.ZipFile(jar) as found:
            return {name: found.read(name) for name in found.namelist() if name.endswith(".class")}
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(f"{jar}: is no jar ({error}); build it first") from None


def content(libraries: Path, classes: Mapping[str, bytes]) -> dict[str, bytes]:
    """All files of the AAR, by name."""
    for name in LIBRARIES:
        check_library(libraries / name)
    android = HERE / "android"
    (version,) = re.findall(r'^version = "([^"]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    core, header = (
        (libraries / LIBRARIES[0]).read_bytes(),
        ROOT / "flashload" / "native" / "include" / "edgekit.h",
    )
    abi = {"abi": ABI, "api": API, "ndk": 27, "stl": "none", "static": False}
    package = {"schema_version": 2, "name": "edgekit", "version": version, "dependencies": []}
    return {
        "AndroidManifest.xml": (android / "AndroidManifest.xml").read_bytes(),
        "proguard.txt": (android / "consumer-rules.pro").read_bytes(),
        "R.txt": b"",
        "META-INF/com/android/build/gradle/aar-metadata.properties": (
            b"aarFormatVersion=1.0\naarMetadataVersion=1.0\nminCompileSdk=28\n"
        ),
        "classes.jar": archive(classes),
        **{f"jni/{ABI}/{name}": (libraries / name).read_bytes() for name in LIBRARIES},
        "prefab/prefab.json": json.dumps(package).encode(),
        "prefab/modules/edgekit/module.json": json.dumps(
            {"export_libraries": [], "library_name": "libedgekit_core"}
        ).encode(),
        "prefab/modules/edgekit/include/edgekit.h": header.read_bytes(),
        f"prefab/modules/edgekit/libs/android.{ABI}/abi.json": json.dumps(abi).encode(),
        f"prefab/modules/edgekit/libs/android.{ABI}/{LIBRARIES[0]}": core,
    }


def assemble(options: argparse.Namespace) -> Path:
    """Writes the AAR. Raises Refused."""
    if bool(options.kotlinc) != bool(options.coroutines):
        raise Refused(
            "--kotlinc and --coroutines go together: the compiler, and the jar of kotlinx-coroutines-core"
        )
    if not options.built and not options.ndk:
        raise Refused("there is nothing to build with; give the folder of an NDK as --ndk")
    with tempfile.TemporaryDirectory() as scratch:
        built = options.built or ROOT / "build" / "android"
        if not options.built:
            build(options.ndk, built)
        classes = classes_of(built / "edgekit.jar")
        if options.kotlinc:
            folder = Path(scratch) / "kotlin"
            classes |= kotlin_classes(options.kotlinc, options.coroutines, built / "edgekit.jar", folder)
        data = archive(content(built, classes))
        partial = options.output.with_name(options.output.name + ".partial")
        try:
            partial.write_bytes(data)
            shutil.move(partial, options.output)
        except OSError as error:
            raise Refused(f"{options.output}: cannot be written ({error.strerror})") from None
    return Path(options.output)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ndk", type=Path, help="folder of the NDK, r27 or newer")
    parser.add_argument(
        "--built", type=Path, help=f"pack {', '.join(LIBRARIES)} and edgekit.jar of this folder"
    )
    parser.add_argument("--kotlinc", type=shlex.split, help="Kotlin's compiler: its flows are packed, too")
    parser.add_argument(
        "--coroutines", type=Path, help="jar of kotlinx-coroutines-core that they compile against"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("edgekit.aar"), help="default: edgekit.aar")
    try:
        print(assemble(parser.parse_args()))
    except Refused as error:
        print(f"assemble_aar.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
