"""A Relax module becomes a library: passes, schedules, code of the devices, linking."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import Schedule, dlight
from tvm.support import nvcc

from edgekit.export.errors import ExportError
from edgekit.export.formats.tvm.devices import Device
from edgekit.runtime.errors import one_line

#: Values that a thread of a processor computes at a time, and vectors of them.
_LANES = 8
_LINK_SECONDS = 300
#: Of an axis of a block: not one that is summed over.
_SPATIAL = tvm.tirx.IterVar.DataPar


def compile_library(module: tvm.IRModule, device: Device) -> bytes:
    """The library of a module for a device; an archive of objects where only an application's own tools can
    link for the system.

    Raises:
        ExportError: TVM or the linker fails.
    """
    if device.gpu.get("kind") == "cuda":
        _use_nvrtc(str(device.gpu["arch"]))
    try:
        executable = tvm.compile(_lowered(module, device), _target(device), relax_pipeline=_finished)
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / device.library
            linking = {} if device.linker is None else {"fcompile": _linker(device.linker)}
            executable.export_library(str(made), **linking)
            return made.read_bytes()
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"tvm cannot compile for {device.name}: {one_line(error)}") from error


def _use_nvrtc(arch: str) -> None:
    """Have TVM make machine code of CUDA: where it cannot, it would keep the source, which nothing runs."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        raise ExportError(
            "compiling for NVIDIA GPUs needs the package cuda-bindings: pip install 'edgekit[export-tvm-cuda]'"
        )

    def cubin(code: str) -> bytes:
        return bytes(nvcc.compile_cuda(code, "cubin", arch, compiler="nvrtc"))

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", cubin, override=True)


def _target(device: Device) -> Any:
    host = dict(device.host)
    if not device.gpu:
        return tvm.target.Target(host)
    return tvm.target.Target(dict(device.gpu), host=host)


def _lowered(module: tvm.IRModule, device: Device) -> tvm.IRModule:
    """Operators as loops, with a schedule each."""
    target, step = _target(device), relax.transform
    passes = [
        step.LegalizeOps(), step.AnnotateTIROpPattern(), step.FoldConstant(), step.FuseOps(), step.FuseTIR(),
    ]  # fmt: skip
    with target:
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
    """Loops over elements in vectors, and over rows by several threads: dlight has no rules for that."""
    for name, function in list(module.functions.items()):
        if isinstance(function, tvm.tirx.PrimFunc):
            module.update_func(name, _in_vectors(function))
    return module


def _in_vectors(function: Any) -> Any:
    schedule = Schedule(function)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loops = schedule.get_loops(block)
        axes = schedule.get(block).iter_vars
        if not loops or len(axes) != len(loops) or any(axis.iter_type != _SPATIAL for axis in axes):
            continue
        extent = schedule.get(loops[-1]).extent
        lanes = math.gcd(_LANES, extent.value) if isinstance(extent, tvm.tirx.IntImm) else 1
        if lanes > 1:
            schedule.vectorize(schedule.split(loops[-1], [None, lanes])[1])
    return schedule.mod["main"]


def _linker(system: str) -> Any:
    """A function that links objects for a system, as TVM's `export_library` takes it."""

    def link(output: str, objects: list[str], **_: Any) -> None:
        command = [sys.executable, "-m", "ziglang", "cc", "-target", system, "-shared", "-fPIC"]
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
