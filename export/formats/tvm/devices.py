"""What programs are compiled for: a device each, with the machine of its host, in TVM's words."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: A group of threads and its memory where nobody tells more: what OpenCL 1.2 devices and Apple's GPUs have.
_GROUP = {"max_threads_per_block": 256, "max_shared_memory_per_block": 32768, "thread_warp_size": 32}


@dataclass(frozen=True)
class Device:
    """A device by name. `host` is the processor's target, `gpu` that of a GPU, empty where the processor
    computes; `linker` is zig's name of the host's system, None where applications link the objects. `core`
    tells whether products, attention and experts are the core's kernels, which processors have. `ptx`: what
    runs on NVIDIA GPUs is PTX, which their driver compiles for the one that is there.
    """

    name: str
    summary: str
    host: Mapping[str, Any]
    linker: str | None
    gpu: Mapping[str, Any] = field(default_factory=dict)
    core: bool = False
    ptx: bool = False

    @property
    def library(self) -> str:
        """The name of its library's file."""
        return "programs.tar" if self.linker is None else "programs.so"

    @property
    def cuda(self) -> bool:
        """Whether it is an NVIDIA GPU."""
        return self.gpu.get("kind") == "cuda"

    @property
    def kernels(self) -> str:
        """The name of the file of kernels for NVIDIA GPUs."""
        return "programs.ptx" if self.ptx else "programs.cubin"


# The core's kernels choose instructions when they run; what is compiled is the rest, for any processor.
_X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v2"}
_ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}
_ANDROID = {"kind": "llvm", "mtriple": "aarch64-linux-android", "mattr": ["+neon"]}
_MAC = {"kind": "llvm", "mtriple": "arm64-apple-macos14.0"}
_IOS = {"kind": "llvm", "mtriple": "arm64-apple-ios18.0"}


def _cuda(capability: int) -> dict[str, Any]:
    shared = 49152  # what a block has without asking
    return {
        "kind": "cuda", "arch": f"sm_{capability}", "max_threads_per_block": 1024, "thread_warp_size": 32,
        "max_shared_memory_per_block": shared,
    }  # fmt: skip


_X86_SYSTEM, _ARM_SYSTEM = "x86_64-linux-gnu.2.28", "aarch64-linux-gnu.2.28"
_ALL = (
    Device("x86-64", "processors, Linux", _X86, _X86_SYSTEM, core=True),
    Device("x86-64-compiled", "the same with the kernels that GPUs run, to compare: slow", _X86, _X86_SYSTEM),
    Device("aarch64", "64-bit ARM processors, Linux", _ARM, _ARM_SYSTEM, core=True),
    Device("android", "64-bit ARM processors, Android", _ANDROID, None, core=True),
    Device("macos", "Apple silicon's processors, macOS", _MAC, "aarch64-macos.14.0", core=True),
    Device("ios", "Apple silicon's processors, iOS", _IOS, None, core=True),
    Device("opencl", "GPUs with OpenCL, Linux on x86-64", _X86, _X86_SYSTEM, {"kind": "opencl", **_GROUP}),
    Device(
        "opencl-aarch64",
        "GPUs with OpenCL, Linux on 64-bit ARM",
        _ARM,
        _ARM_SYSTEM,
        {"kind": "opencl", **_GROUP},
    ),
    Device("opencl-android", "Adreno and Mali", _ANDROID, None, {"kind": "opencl", **_GROUP}),
    Device("metal", "Apple's GPUs, macOS", _MAC, "aarch64-macos.14.0", {"kind": "metal", **_GROUP}),
    Device("metal-ios", "Apple's GPUs, iOS", _IOS, None, {"kind": "metal", **_GROUP}),
    Device(
        "cuda",
        "NVIDIA GPUs from compute capability 7.5 on, Linux on x86-64",
        _X86,
        _X86_SYSTEM,
        _cuda(75),
        ptx=True,
    ),
    *(
        Device(
            f"cuda-sm_{n}",
            f"NVIDIA GPUs of compute capability {n // 10}.{n % 10}, Linux on x86-64",
            _X86,
            _X86_SYSTEM,
            _cuda(n),
        )
        for n in (75, 80, 86, 89, 90, 120)
    ),
    Device("cuda-sm_87", "Jetson Orin, Linux", _ARM, _ARM_SYSTEM, _cuda(87)),
)
#: All devices by name.
DEVICES = {device.name: device for device in _ALL}
#: What is said to those who ask for a device that there is not, by a part of its name.
ADVICE = {
    "cuda": "cuda is for any NVIDIA GPU from compute capability 7.5 on",
    "sm_": "cuda is for any NVIDIA GPU from compute capability 7.5 on",
    "vulkan": "none is for Vulkan: --format onnx-gpu runs over it, opencl on many of its GPUs",
    "webgpu": "none is for WebGPU: --format onnx-gpu runs over it",
    "windows": "none is for Windows: --format onnx-gpu and native run there",
    "directx": "none is for Direct3D: --format onnx-gpu runs over it",
    "d3d12": "none is for Direct3D: --format onnx-gpu runs over it",
    "rocm": "none is for ROCm: opencl is for AMD's GPUs",
}


def here() -> str:
    """The name of this machine's processor among them, of Linux's where TVM has none for the system."""
    system, machine = platform.system(), platform.machine().lower()
    if system == "Darwin":
        return "macos"
    return "aarch64" if machine in ("aarch64", "arm64") else "x86-64"
