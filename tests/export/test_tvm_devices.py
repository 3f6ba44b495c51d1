"""Programs compiled by TVM for every device: libraries of its kind, and kernels that other compilers take."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support import sealing
from support.bundles import make_bundle
from support.c_programs import compiler, run
from support.checkpoints import write_checkpoint
from support.foreign_packages import installed

from edgekit import targets
from edgekit.export import formats
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.formats.options import FormatOptions
from edgekit.export.formats.tvm import nvrtc
from edgekit.export.formats.tvm.devices import DEVICES, here
from edgekit.export.models import architecture
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Override, Scheme
from edgekit.targets import TARGETS

tvm = pytest.importorskip("tvm", reason="tvm is not installed")
#: Wide enough for the schedules of products, with experts, windows and both lengths of attention.
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 192, "moe_intermediate_size": 64}
CUDA = [name for name in DEVICES if name.startswith("cuda")]
#: Machines of ELF by what devices' libraries are for.
ELF = {"x86_64": 62, "aarch64": 183}
MACH_O = bytes.fromhex("cffaedfe")
_TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("device", [name for name in DEVICES if name not in CUDA])
def test_libraries_are_for_the_device(tmp_path: Path, device: str) -> None:
    # Others differ from these in the host alone.
    whole = device in ("x86-64", "x86-64-compiled", "opencl", "metal")
    family, sizes = ("diffusion_gemma", SIZES) if whole else ("llada", {"n_layers": 1})
    bundle = make_bundle(tmp_path, family, Scheme("mixed4", 32), program_format="tvm", device=device, **sizes)
    programs = json.loads((bundle / "edgekit.json").read_text(encoding="utf-8"))["programs"]
    assert programs["device"] == device
    assert programs["kernels"] == ("core" if DEVICES[device].core else "compiled")
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


def test_experts_that_are_unlike_are_refused_where_kernels_are_compiled(tmp_path: Path) -> None:
    """One function takes all of a layer. The core's kernels take each as it is."""
    arch = architecture(write_checkpoint(tmp_path, "llada_moe"))
    unlike = Scheme("mixed4", 32, (Override("layers.0.experts.1.*", 8),))
    said = "in format tvm for opencl the experts of a layer must be alike; widen the override's pattern"
    with pytest.raises(QuantizationError, match=f"^layers.0.experts.1.*{said}$"):
        formats.load("tvm")(arch, unlike, FormatOptions(device="opencl"))
    formats.load("tvm")(arch, unlike, FormatOptions(device="x86-64"))


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
    """Of every compute capability, by NVRTC; or PTX of the oldest for all. Their source is the same."""
    packages = installed(Path(__file__).with_name("tvm_cuda_requirements.txt"))
    code = f"""{MODULE}
sources, compiled = [], compilation._compiled
def noted(code, device):
    sources.append(code)
    return compiled(code, device)
compilation._compiled = noted
for device in {CUDA!r}:
    if device in ("cuda", "cuda-sm_87"):
        made = files(device)
        assert (made / "programs.so").read_bytes()[:4] == b"\\x7fELF"
        kernels = (made / DEVICES[device].kernels).read_bytes()
    else:
        kernels = compiled(sources[0], DEVICES[device])
    if device == "cuda":
        text = kernels.removesuffix(b"\\0").decode("ascii")
        # As TVM tells it from a cubin, and as the driver finds its end.
        assert text.startswith("//") and "\\0" not in text and kernels.endswith(b"\\0")
        assert "\\n.version 9.0\\n.target sm_75\\n" in text and text.count(".entry") > 20
        Path({str(tmp_path / "kernels.ptx")!r}).write_text(text)
    else:
        assert kernels[:4] == b"\\x7fELF" and kernels[18] == 190, kernels[:20]  # EM_CUDA
    print(device, len(kernels))
assert len(sources) == 2 and sources[0] == sources[1]
"""
    libraries = str(packages / "nvidia" / "cu13" / "lib")
    output = in_process(code, packages, LD_LIBRARY_PATH=libraries)
    assert [line.split()[0] for line in output.splitlines()] == CUDA
    triton = importlib.util.find_spec("triton")  # brings the assembler that is in drivers too
    folder = Path((triton and triton.origin) or "/nowhere/").parent / "backends" / "nvidia" / "bin"
    for assembler in folder.glob("ptxas-*"):
        for arch in ("sm_75", "sm_90", "sm_120"):
            line = [assembler, f"--gpu-name={arch}", "--output-file=/dev/null", tmp_path / "kernels.ptx"]
            done = subprocess.run(line, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr


LOADED = """
import os, sys
from edgekit.runtime.session import open_session
try:
    open_session(os.environ["BUNDLE"], engine="tvm").close()
except Exception as error:
    print(error)
with open("/proc/self/maps") as maps:
    print(*{line.split()[-1] for line in maps if "cudart" in line or "runtime_cuda" in line}, sep="\\n")
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="libraries are listed in /proc")
def test_the_engine_loads_the_library_for_cuda_where_there_is_a_driver(tmp_path: Path) -> None:
    """With the CUDA of the packages; without a driver it does without."""
    packages = installed(Path(__file__).with_name("tvm_cuda_requirements.txt"))
    own = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    names = subprocess.run(["nm", "-D", "-u", own], capture_output=True, text=True, check=True).stdout.split()
    driver = [f"int {name}(void) {{ return 100; }}" for name in names if re.fullmatch("cu[A-Z]\\w+", name)]
    (tmp_path / "driver.c").write_text("\n".join(driver))
    for folder in ("none", "some"):
        (tmp_path / folder).mkdir()
    run(
        compiler("cc", "gcc", "clang"), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1",
        tmp_path / "driver.c", "-o", tmp_path / "some" / "libcuda.so.1",
    )  # fmt: skip
    # For a GPU as far as its manifest goes.
    bundle = make_bundle(
        tmp_path / "llada",
        "llada",
        Scheme("int8"),
        program_format="tvm",
        device="x86-64-compiled",
        n_layers=1,
    )
    sealing.edit(bundle, lambda t: t["programs"].update(device="cuda", cubin=t["programs"]["library"]))

    def loaded(folder: str) -> str:
        # Libraries are searched in this folder first: the driver that it has is the one that is found.
        return in_process(LOADED, packages, LD_LIBRARY_PATH=str(tmp_path / folder), BUNDLE=str(bundle))

    found = loaded("some")
    assert {Path(line).name for line in found.split()} >= {own.name, "libcudart.so.13"}
    assert str(packages) in found and "has no cuda" not in found
    (tmp_path / "none" / "libcuda.so.1").write_text("no library")
    found = loaded("none")
    assert re.search(r"are for cuda, and TVM's runtime here has no cuda \(.*libcuda\.so\.1", found)
    assert own.name not in {Path(line).name for line in found.split()}


@pytest.mark.parametrize("lacking", ["cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "tvm"])
def test_what_nvidia_gpus_take_is_looked_for_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """Nothing is written then; other devices do without."""
    place = tmp_path / "site"
    files = {
        "cuda-bindings": "cuda/bindings/nvrtc.py",
        "nvidia-cuda-nvrtc": "nvidia/cu13/lib/libnvrtc.so.13",
        "nvidia-cuda-runtime": "nvidia/cu13/include/cuda_runtime.h",
    }
    for name in files.keys() - {lacking}:
        (place / files[name]).parent.mkdir(parents=True, exist_ok=True)
        (place / files[name]).touch()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("cuda", "nvidia")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    if lacking == "tvm":
        monkeypatch.setitem(sys.modules, "tvm", None)
    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    said = rf"needs the package {lacking}: pip install 'edgekit\[export-tvm-cuda\]'$"
    with pytest.raises(ExportError, match=said):
        export(tmp_path / "checkpoint", tmp_path / "out", ExportOptions("tvm", device="cuda-sm_80"))
    assert not (tmp_path / "out").exists()
    if lacking != "tvm":
        formats.get("tvm").check_installed("opencl")


def test_nvrtc_may_be_that_of_a_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda" / "bindings").mkdir(parents=True)
    (tmp_path / "cuda" / "bindings" / "nvrtc.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(nvrtc, "folder", lambda: None)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    assert nvrtc.lacking() == ""
    monkeypatch.delenv("CUDA_PATH")
    assert nvrtc.lacking() == "nvidia-cuda-nvrtc"


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
        assert set(target.devices) <= set(target.formats)
        assert all(set(devices) <= set(DEVICES) for devices in target.devices.values())
    assert here() in DEVICES


def test_targets_refuse_devices_that_are_not_theirs() -> None:
    rtx = targets.get("rtx")
    assert rtx.device("tvm") == "cuda" and rtx.device("tvm", "cuda-sm_90") == "cuda-sm_90"
    assert rtx.device("native") is None and targets.get("host").device("tvm", "metal-ios") == "metal-ios"
    said = "target rtx is not for device 'aarch64'; did you mean --target jetson or rpi? supported: cuda, "
    with pytest.raises(targets.UnknownTarget, match=said.replace("?", r"\?")):
        rtx.device("tvm", "aarch64")
    with pytest.raises(
        targets.UnknownTarget, match="target mac is not for device 'ios'; supported: metal, macos$"
    ):
        targets.get("mac").device("tvm", "ios")


@pytest.mark.parametrize(
    ("written", "device", "said"),
    [
        ("native", "aarch64", "format native compiles for no device; leave --device out"),
        (
            "tvm",
            "cuda-sm_99",
            "unknown device 'cuda-sm_99' for format tvm; cuda is for any NVIDIA GPU from",
        ),
        ("tvm", "aarch46", "unknown device 'aarch46' for format tvm; did you mean aarch64?"),
        ("tvm", "Vulkan", "unknown device 'Vulkan' for format tvm; none is for Vulkan: --format onnx-gpu"),
        ("tvm", "windows", "unknown device 'windows' for format tvm; none is for Windows: "),
    ],
)
def test_devices_are_checked(tmp_path: Path, written: str, device: str, said: str) -> None:
    arch = architecture(write_checkpoint(tmp_path, "llada", n_layers=1))
    with pytest.raises(ExportError, match=said.replace("?", r"\?")):
        formats.load(written)(arch, Scheme("int8"), FormatOptions(device=device))
