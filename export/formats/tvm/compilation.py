"""A Relax module becomes a library: passes, schedules, code of the devices, linking."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import Schedule, dlight
from tvm.support import nvcc

from edgekit.export.errors import ExportError
from edgekit.export.formats.tvm import nvrtc
from edgekit.export.formats.tvm.devices import Device
from edgekit.runtime.errors import one_line

#: Values that a thread of a processor computes at a time, and vectors of them.
_LANES = 8
#: Sums that are made side by side.
_MOST_SUMS = 16
_LINK_SECONDS = 300
#: That of CUDA 13.0, which TVM's runtime for CUDA takes.
_PTX_VERSION = b"9.0"
#: Of an axis of a block: not one that is summed over.
_SPATIAL = tvm.tirx.IterVar.DataPar


def compile_library(module: tvm.IRModule, device: Device) -> dict[str, bytes]:
    """The files of a module for a device by name. Its library comes first: an archive of objects where only
    an application's own tools can link for the system. For NVIDIA GPUs their kernels follow, as machine code
    or PTX: TVM itself would keep the source, and compile it where it runs.

    Raises:
        ExportError: TVM, NVRTC or the linker fails.
    """
    try:
        executable = tvm.compile(_lowered(module, device), _target(device), relax_pipeline=_finished)
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / device.library
            linking = {} if device.linker is None else {"fcompile": _linker(device.linker)}
            executable.export_library(str(made), **linking)
            files = {device.library: made.read_bytes()}
        if device.cuda:
            files[device.kernels] = _compiled(kernel_source(executable.mod, "cuda"), device)
        return files
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"tvm cannot compile for {device.name}: {one_line(error)}") from error


def kernel_source(module: Any, kind: str) -> str:
    """The source of the kernels among what a compiled module imports."""
    if module.kind == kind:
        return str(module.inspect_source())
    return "".join(kernel_source(each, kind) for each in module.imports)


def _compiled(code: str, device: Device) -> bytes:
    """What NVRTC makes of CUDA, with the headers that came with it."""
    if (own := nvrtc.folder()) is not None:
        os.environ.setdefault("CUDA_PATH", str(own))  # where TVM looks
    headers = Path(os.environ.get("CUDA_PATH", "")) / "include" / "cccl"
    options = [f"-I{headers}"] if headers.is_dir() else []
    wanted = "ptx" if device.ptx else "cubin"
    made = bytes(nvcc.compile_cuda(code, wanted, str(device.gpu["arch"]), options, compiler="nvrtc"))
    return _for_all_drivers(made) if device.ptx else made


def _for_all_drivers(ptx: bytes) -> bytes:
    """PTX for drivers as old as TVM's runtime takes, which refuse what says that it is newer than they are:
    what is compiled for the oldest GPUs uses nothing newer. Drivers read up to a zero.
    """
    return re.sub(rb"(?m)^\.version .*$", b".version " + _PTX_VERSION, ptx.rstrip(b"\0"), count=1) + b"\0"


def _target(device: Device) -> Any:
    host = dict(device.host)
    if not device.gpu:
        return tvm.target.Target(host)
    return tvm.target.Target(dict(device.gpu), host=host)


def _scheduled_for(device: Device) -> Any:
    """The target that schedules look at. In TVM 0.27 the rules for tensor cores end the process (Tensorize of
    wmma_load, for int8 and float16 alike): they leave older GPUs alone.
    """
    if not device.cuda:
        return _target(device)
    return tvm.target.Target(dict(device.gpu) | {"arch": "sm_60"}, host=dict(device.host))


def _lowered(module: tvm.IRModule, device: Device) -> tvm.IRModule:
    """Operators as loops, with a schedule each."""
    step = relax.transform
    passes = [
        step.LegalizeOps(), step.AnnotateTIROpPattern(), step.FoldConstant(), step.FuseOps(), step.FuseTIR(),
    ]  # fmt: skip
    with _scheduled_for(device):
        module = tvm.transform.Sequential(passes)(module)
        if not device.gpu:
            return _for_processors(module)
        # The rule for products ends TVM's process over Metal; its last resort does without.
        products = [] if device.gpu["kind"] == "metal" else [dlight.gpu.Matmul()]
        rules = [
            *products, dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(),
            dlight.gpu.Fallback(),
        ]  # fmt: skip
        return dlight.ApplyDefaultSchedule(*rules)(module)


@tvm.transform.module_pass(opt_level=0)
def _finished(module: tvm.IRModule, _: Any) -> tvm.IRModule:
    """Calls as TVM's virtual machine makes them. Arrays are made when they are needed and given back behind
    their last use: what is alive at a time is what the engine counts.
    """
    step = relax.transform
    return tvm.transform.Sequential(
        [
            step.RewriteDataflowReshape(), step.ToNonDataflow(), step.RemovePurityChecking(),
            step.CallTIRRewrite(), step.LowerAllocTensor(), step.KillAfterLastUse(),
            step.LowerRuntimeBuiltin(), step.ComputePrimValue(), step.VMShapeLower(),
            step.AttachGlobalSymbol(),
        ]
    )(module)  # fmt: skip


def _for_processors(module: tvm.IRModule) -> tvm.IRModule:
    """Loops over elements in vectors, for which dlight has no rules."""
    for name, function in list(module.functions.items()):
        if isinstance(function, tvm.tirx.PrimFunc):
            module.update_func(name, _in_vectors(function))
    return module


def _in_vectors(function: Any) -> Any:
    schedule = Schedule(function)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loops = schedule.get_loops(block)
        spatial = [axis.iter_type == _SPATIAL for axis in schedule.get(block).iter_vars]
        if len(spatial) != len(loops) or sum(spatial) < 1 or not all(spatial[: sum(spatial)]):
            continue
        inner = loops[sum(spatial) - 1]  # sums go on outside of it
        extent = schedule.get(inner).extent
        lanes = math.gcd(_LANES, extent.value) if isinstance(extent, tvm.tirx.IntImm) else 1
        if lanes < 2 or (not all(spatial) and extent.value > _MOST_SUMS):
            continue
        outer, vector = schedule.split(inner, [None, lanes])
        if not all(spatial):
            schedule.reorder(*loops[sum(spatial) :], outer, vector)
        schedule.vectorize(vector)
        if not all(spatial):
            schedule.decompose_reduction(block, loops[sum(spatial)])
    return schedule.mod["main"]


def _linker(system: str) -> Any:
    """A function that links objects for a system, as TVM's `export_library` takes it."""

    def link(output: str, objects: list[str], **_: Any) -> None:
        command = [sys.executable, "-m", "ziglang", "cc", "-target", system, "-shared", "-fPIC", "-s"]
        if "macos" in system:  # the runtime's functions are found when the library is loaded
            command.append("-Wl,-undefined,dynamic_lookup")
        try:
            done = subprocess.run(
                [*command, "-o", output, *objects],
                capture_output=True, text=True, timeout=_LINK_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ExportError(f"the linker for {system} cannot be run: {one_line(error)}") from error
        if done.returncode != 0:
            said = " ".join(done.stderr.split())[-300:]
            raise ExportError(f"the linker for {system} failed: {said}")

    link.output_format = "so"  # type: ignore[attr-defined]
    return link
