"""What is said where Qualcomm's NPU cannot be had: needs nothing of Qualcomm's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from edgekit.export.errors import ExportError
from edgekit.export.formats.qnn.contexts import check_compiler
from edgekit.runtime.engine_registry import ENGINES
from edgekit.runtime.engines.qnn import executor
from edgekit.runtime.errors import EngineUnavailable


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    """As in a process that has not asked for the provider yet."""
    executor.provider.cache_clear()
    yield
    executor.provider.cache_clear()


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    said = "the qnn engine needs onnxruntime-qnn: pip install 'edgekit[qnn]'"
    with pytest.raises(EngineUnavailable) as caught:
        executor.QnnExecutor()
    assert str(caught.value) == said
    with pytest.raises(ExportError) as refused:
        check_compiler()
    assert str(refused.value) == f"--soc compiles with onnxruntime-qnn: {said}"


def test_a_row_without_its_package_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ENGINES.find("qnn")
    assert row is not None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EngineUnavailable, match=r"needs onnxruntime_qnn: pip install 'edgekit\[qnn\]'"):
        row.check_available()


@pytest.mark.parametrize("broken", [True, False])
def test_a_provider_that_finds_nothing(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    def register(name: str, path: str) -> None:
        if broken:
            raise RuntimeError("GLIBC_2.35 not found")

    ort = SimpleNamespace(register_execution_provider_library=register, get_ep_devices=list)
    module = SimpleNamespace(get_library_path=lambda: "none.so")
    monkeypatch.setattr(executor, "load_onnxruntime", lambda: ort)
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", module)
    said = "cannot be loaded: GLIBC_2.35 not found" if broken else "finds neither an NPU nor its emulation"
    with pytest.raises(EngineUnavailable, match=said):
        executor.QnnExecutor()
