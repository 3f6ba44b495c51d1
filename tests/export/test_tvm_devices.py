"""Programs compiled by TVM for every device: libraries of its kind, and kernels that other compilers take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.bundles import make_bundle
from support.checkpoints import write_checkpoint
from support.foreign_packages import installed

from edgekit.export import formats
from edgekit.export.errors import ExportError
from edgekit.export.formats.options import FormatOptions
from edgekit.export.formats.tvm.devices import DEVICES, here
from edgekit.export.models import architecture
from edgekit.export.quantize import Scheme
from edgekit.targets import TARGETS

pytest.importorskip("tvm", reason="tvm is not installed")
#: Wide enough for the schedules of products, with experts, windows and both lengths of attention.
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 192, "moe_intermediate_size": 64}
CUDA = [name for name in DEVICES if name.startswith("cuda")]
#: Machines of ELF by what devices' libraries are for.
ELF = {"x86_64": 62, "aarch64": 183}
MACH_O = bytes.fromhex("cffaedfe")
_TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("device", [name for name in DEVICES if name not in CUDA])
def test_libraries_are_for_the_device(tmp_path: Path, device: str) -> None:
    bundle = make_bundle(
        tmp_path, "diffusion_gemma", Scheme("mixed4", 32), program_format="tvm", device=device, **SIZES
    )
    programs = json.loads((bundle / "edgekit.json").read_text(encoding="utf-8"))["programs"]
    assert (
        programs["device"] == device and programs["kernels"] == "core" if DEVICES[device].core else "compiled"
    )
    library, system = bundle / programs["library"], DEVICES[device].linker
    if system is None:
        with tarfile.open(library) as archive:
            assert [name for name in archive.getnames() if name.endswith(".o")]
        return
    head = library.read_bytes()[:20]
    if "macos" in system:
        assert head[:4] == MACH_O
    else:
        assert head[:4] == b"\x7fELF" and head[18] == ELF[system.partition("-")[0]]


def in_process(code: str, packages: Path, **variables: str) -> str:
    """What code prints in a process that has these packages too."""
    path = os.pathsep.join([str(packages), str(_TESTS)])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=900,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


MODULE = f"""
import sys, tempfile
from pathlib import Path
import tvm
from edgekit.export import formats
from edgekit.export.formats.options import FormatOptions
from edgekit.export.formats.tvm import compilation, writer
from edgekit.export.formats.tvm.devices import DEVICES
from edgekit.export.models import architecture
from edgekit.export.quantize import Scheme
from support.checkpoints import write_checkpoint

folder = Path(tempfile.mkdtemp())
arch = architecture(write_checkpoint(folder, "diffusion_gemma", **{SIZES!r}))
def files(device):
    form = formats.load("tvm")(arch, Scheme("mixed4", 32), FormatOptions(device=device))
    form.write_programs(folder, lambda name: None)
    return folder / "programs"
"""


def test_kernels_for_nvidia_gpus_are_machine_code(tmp_path: Path) -> None:
    """Of every compute capability, by NVRTC."""
    packages = installed(Path(__file__).with_name("tvm_cuda_requirements.txt"))
    code = f"""{MODULE}
for device in {CUDA!r}:
    made = files(device)
    assert (made / "programs.so").read_bytes()[:4] == b"\\x7fELF"
    cubin = (made / "programs.cubin").read_bytes()
    assert cubin[:4] == b"\\x7fELF" and cubin[18] == 190, cubin[:20]  # EM_CUDA
    print(device, len(cubin))
"""
    libraries = str(packages / "nvidia" / "cu13" / "lib")
    output = in_process(code, packages, LD_LIBRARY_PATH=libraries)
    assert [line.split()[0] for line in output.splitlines()] == CUDA


def test_without_nvrtc_the_extra_is_named(tmp_path: Path) -> None:
    arch = architecture(write_checkpoint(tmp_path, "llada", n_layers=1))
    form = formats.load("tvm")(arch, Scheme("int8"), FormatOptions(device="cuda-sm_80"))
    with pytest.raises(ExportError, match=r"needs cuda-bindings: pip install 'edgekit\[export-tvm-cuda\]'"):
        form.write_programs(tmp_path, lambda name: None)


def test_kernels_for_opencl_are_compiled_by_pocl() -> None:
    packages = installed(Path(__file__).with_name("pocl_requirements.txt"))
    code = f"""{MODULE}
import pyopencl
sources = []
kept = compilation.kernel_source
compile = tvm.compile
def compiled(*args, **options):
    made = compile(*args, **options)
    sources.append(kept(made.mod, "opencl"))
    return made
tvm.compile = compiled
files("opencl")
device = pyopencl.get_platforms()[0].get_devices()[0]
built = pyopencl.Program(pyopencl.Context([device]), sources[0]).build()
print(len(built.all_kernels()), device.platform.name)
"""
    count, name = in_process(code, packages).split(maxsplit=1)
    assert int(count) > 20 and name.startswith("Portable Computing Language")


# --- options ------------------------------------------------------------------------------------------------


def test_devices_of_targets_are_devices() -> None:
    for target in TARGETS.working():
        assert set(target.devices) <= set(target.formats) and set(target.devices.values()) <= set(DEVICES)
    assert here() in DEVICES


@pytest.mark.parametrize(
    ("written", "device", "said"),
    [
        ("native", "aarch64", "format native compiles for no device; leave --device out"),
        (
            "tvm",
            "cuda-sm_99",
            "unknown device 'cuda-sm_99' for format tvm; did you mean cuda-sm_89 or cuda-sm_90?",
        ),
    ],
)
def test_devices_are_checked(tmp_path: Path, written: str, device: str, said: str) -> None:
    arch = architecture(write_checkpoint(tmp_path, "llada", n_layers=1))
    with pytest.raises(ExportError, match=said.replace("?", r"\?")):
        formats.load(written)(arch, Scheme("int8"), FormatOptions(device=device))
