"""What is said where Qualcomm's NPU cannot be had: needs nothing of Qualcomm's."""

from __future__ import annotations

import _ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgekit.export.errors import ExportError
from edgekit.export.formats.qnn import provider
from edgekit.export.formats.qnn.contexts import check_compiler
from edgekit.runtime.engine_registry import ENGINES
from edgekit.runtime.engines.qnn import libraries
from edgekit.runtime.errors import EngineUnavailable

SAID = "the qnn engine needs onnxruntime-qnn: pip install 'edgekit[qnn]'"


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    """As in a process that has not asked for the provider yet."""
    provider.provider.cache_clear()
    yield
    provider.provider.cache_clear()


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    monkeypatch.setattr(libraries, "folder_of", lambda package: None)
    with pytest.raises(EngineUnavailable) as caught:
        libraries.load_runtime()
    assert str(caught.value) == SAID
    with pytest.raises(ExportError) as refused:
        check_compiler()
    said = SAID.replace("[qnn]", "[export-qnn]")
    assert str(refused.value) == f"--soc compiles with onnxruntime-qnn: {said}"


def test_a_row_without_its_package_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ENGINES.find("qnn")
    assert row is not None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EngineUnavailable, match=r"needs onnxruntime-qnn: pip install 'edgekit\[qnn\]'"):
        row.check_available()


@pytest.mark.parametrize("broken", [True, False])
def test_a_provider_that_finds_nothing(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    def register(name: str, path: str) -> None:
        if broken:
            raise RuntimeError("GLIBC_2.35 not found")

    ort = SimpleNamespace(register_execution_provider_library=register, get_ep_devices=list)
    module = SimpleNamespace(get_library_path=lambda: "none.so")
    monkeypatch.setattr(provider, "load_onnxruntime", lambda: ort)
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", module)
    said = "cannot be loaded: GLIBC_2.35 not found" if broken else "finds neither an NPU nor its emulation"
    with pytest.raises(EngineUnavailable, match=said):
        provider.provider()


#: In a process of its own: what is loaded stays.
LOADS = """
import sys
from pathlib import Path
from edgekit.runtime.engines.qnn import libraries
from edgekit.runtime.errors import EngineUnavailable

folder = Path(sys.argv[1])
libraries.folder_of = {"onnxruntime": folder / "ort", "onnxruntime_qnn": folder / "qnn"}.get
try:
    libraries.load_runtime()
except EngineUnavailable as error:
    print(error, end="")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="takes the names of Linux")
def test_libraries_that_are_others(tmp_path: Path) -> None:
    """The core says what is wrong with each."""
    (tmp_path / "ort/capi").mkdir(parents=True)
    (tmp_path / "qnn").mkdir()
    library = _ctypes.__file__
    for name in ("libQnnHtp.so", "libonnxruntime_providers_qnn.so"):
        shutil.copy(library, tmp_path / "qnn" / name)
    place = tmp_path / "ort/capi/libonnxruntime.so.1.22.0"
    place.write_bytes(b"no library")

    def said() -> str:
        return subprocess.run(
            [sys.executable, "-c", LOADS, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout

    assert re.search(r"cannot load its libraries: .* cannot be loaded: .*22\.0: ", said())
    shutil.copy(library, place)
    assert "libonnxruntime.so.1.22.0: is not ONNX Runtime" in said()
