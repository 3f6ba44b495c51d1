"""What computes bundles: engines, each with the format that it runs and the device that it runs on here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from support.bundles import int8_activations
from support.foreign_packages import installed

#: Vulkan without a GPU, as Debian's package chromium-common brings it.
SOFTWARE_VULKAN = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
_TESTS = Path(__file__).parents[1]

Environment = dict[str, str]


@dataclass(frozen=True)
class Provider:
    """An engine on a device. `rounds`: it rounds activations to int8 before matrices of 4 and 8 bits;
    `device`: what its programs are compiled for. `environment` makes the variables of a process that has it,
    and skips a test where there is none; `prepared` is entered there.
    """

    engine: str
    format: str
    rounds: bool
    precision: str | None = None
    device: str | None = None
    environment: Callable[[], Environment] = dict
    prepared: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext

    def activations(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the reference treats activations as the provider does."""
        return int8_activations() if self.rounds else contextlib.nullcontext()


def webgpu() -> Environment:
    """ONNX Runtime with WebGPU, on a Vulkan device in software."""
    if not SOFTWARE_VULKAN.exists():
        assert not os.environ.get("EDGEKIT_SYSTEM_PACKAGES"), "the packages of .ci/packages are there"
        pytest.skip("no Vulkan in software: apt-get install chromium-common libvulkan1")
    packages = installed(_TESTS / "runtime" / "webgpu_requirements.txt")
    return {
        "PYTHONPATH": os.pathsep.join([str(packages), str(_TESTS)]),
        "VK_ICD_FILENAMES": str(SOFTWARE_VULKAN),
    }


def triton() -> Environment:
    """The kernels of the torch engine, in Triton's interpreter."""
    pytest.importorskip("triton", reason="triton is not installed")
    return {"TRITON_INTERPRET": "1"}


@contextlib.contextmanager
def _with_kernels() -> Iterator[None]:
    """Has the torch engine use them on the processor."""
    from edgekit.runtime.engines.torch import products, triton_products

    with mock.patch.object(products, "_kernels", lambda device: triton_products):
        yield


def tvm() -> Environment:
    """TVM's runtime, and its compiler."""
    pytest.importorskip("tvm", reason="tvm is not installed")
    return {}


@contextlib.contextmanager
def _with_runtime() -> Iterator[None]:
    """Has the testing library load TVM too."""
    from edgekit.runtime.engines import tvm as engine
    from support.native_testing import library

    with mock.patch.object(engine._native, "functions", lambda _: library()):
        engine.load_runtime()
    yield


PROVIDERS = {
    "native": Provider("native", "native", rounds=True),
    "onnx": Provider("onnx", "onnx", rounds=True),
    "webgpu": Provider("onnx-gpu", "onnx-gpu", rounds=False, environment=webgpu),
    "torch": Provider("torch", "native", rounds=True),
    "triton": Provider("torch", "native", rounds=True, environment=triton, prepared=_with_kernels),
    "tvm": Provider("tvm", "tvm", rounds=True, environment=tvm, prepared=_with_runtime),
    "tvm compiled": Provider(
        "tvm", "tvm", rounds=True, device="x86-64-compiled", environment=tvm, prepared=_with_runtime
    ),
    "mlx": Provider("mlx", "mlx", rounds=False, precision="float32"),
}
