"""Packages compiled for chips ahead of time: Qualcomm's context binaries, which a device loads in place of
compiling the package itself.

    <bundle>/compiled/SOC/PACKAGE/FUNCTION.ctx.onnx    an ONNX model of one node, which names the binary
                                  *.bin                the binary, with the graphs of all functions

The functions of a package share their weights in it. A process of its own compiles each package: the compiler
keeps memory, and writes to the streams of its process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from edgekit.export.errors import ExportError
from edgekit.export.formats.base import Stages
from edgekit.export.formats.packages.cut import COMPILED_FOLDER
from edgekit.export.formats.qnn.provider import provider
from edgekit.flashload.errors import DiskFull
from edgekit.flashload.files import free_bytes, fsync_directory
from edgekit.flashload.sizes import size
from edgekit.runtime.child_process import run_tidily
from edgekit.runtime.engines.qnn.programs import model_file
from edgekit.runtime.engines.qnn.socs import SOCS
from edgekit.runtime.errors import EngineUnavailable, one_line

_CALL = "from edgekit.export.formats.qnn.contexts import main; main()"
_FATAL = 4  # of ONNX Runtime's log
#: Of a layer in a function, without weights: it was 76 kB for a layer of 192 columns, 86 kB for one of 64.
_GRAPH_BYTES = 128 << 10
_KILLED = -9  # how a process ends that the system ends


def binary_bytes(stored: int, layers: int, functions: int) -> int:
    """An estimate of the binaries for a chip of packages with so many layers of `stored` bytes, and so many
    functions each: beside the weights, a graph; others that share them take up to half as much again.
    """
    weights = stored if functions == 1 else stored + stored // 2
    return weights + layers * functions * _GRAPH_BYTES


def check_compiler() -> None:
    """Refuse to compile where the compiler is not installed. Raises ExportError."""
    try:
        provider()
    except EngineUnavailable as error:
        raise ExportError(f"--soc compiles with onnxruntime-qnn: {error}") from error


def compile_package(
    package: Path, functions: Sequence[str], soc: str, target: Path, limit_bytes: int
) -> list[Path]:
    """Compile functions of a package for a chip into the folder `target`, unless that is there; returns its
    files.

    Raises:
        ExportError: the compiler fails, or its binary has more than `limit_bytes`.
        DiskFull: the compiler fails where there is no room for its binary.
    """
    if not target.exists():
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            _compile(package, functions, soc, partial)
        except ExportError as error:
            # The compiler does not say why it cannot write.
            stored = sum(file.stat().st_size for file in package.iterdir())
            free, needed = free_bytes(partial), binary_bytes(stored, 1, len(functions))
            shutil.rmtree(partial, ignore_errors=True)
            if free >= needed:
                raise
            raise DiskFull(
                f"{target}: the compiled package takes about {size(needed)}, and the disk has {size(free)} "
                "left; delete or move other files on it"
            ) from error
        os.replace(partial, target)
        fsync_directory(target.parent)
    files = sorted(target.iterdir())
    for file in files:
        if (nbytes := file.stat().st_size) > limit_bytes:
            raise ExportError(
                f"{package.stem} compiled for {soc} has {size(nbytes)}, over the limit of "
                f"{size(limit_bytes)} that leaves an NPU room for the next one; use fewer "
                "--layers-per-chunk, or fewer --lengths"
            )
    return files


def _compile(package: Path, functions: Sequence[str], soc: str, target: Path) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = run_tidily(
        [sys.executable, "-P", "-c", _CALL, str(package), str(target), str(SOCS[soc].model), *functions],
        env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    if done.returncode or not any(target.iterdir()):
        said = [line for line in done.stderr.splitlines() if line.strip()]
        why = said[-1] if said else f"the compiler ended with {done.returncode}"
        if done.returncode == _KILLED:
            why = (
                "the system ended the compiler, as it does where memory is short; use fewer "
                "--layers-per-chunk or --lengths"
            )
        raise ExportError(f"{package}: QNN cannot compile it for {soc}: {why}")


def main() -> None:
    """Compile the package that the command line names; the last line of stderr says why it cannot."""
    source, target, model, *functions = sys.argv[1:]
    ort, qnn, devices = provider()
    settings = {
        "backend_path": qnn.get_qnn_htp_path(),
        "soc_model": model,
        "enable_htp_prepare_only": "1",
    }
    if len(functions) > 1:
        settings["enable_htp_weight_sharing"] = "1"
    try:
        for function in functions:
            options = ort.SessionOptions()
            options.log_severity_level = _FATAL
            entries = {
                "session.disable_cpu_ep_fallback": "1",
                "ep.context_enable": "1",
                "ep.context_embed_mode": "0",
                "ep.context_file_path": str(Path(target, f"{function}.ctx.onnx")),
            }
            if len(functions) > 1:
                entries["ep.share_ep_contexts"] = "1"
            if len(functions) > 1 and function == functions[-1]:
                entries["ep.stop_share_ep_contexts"] = "1"
            for key, value in entries.items():
                options.add_session_config_entry(key, value)
            options.add_provider_for_devices(devices, settings)
            # What the functions share stays when their sessions go.
            ort.InferenceSession(str(Path(source, model_file(function, "npu"))), options)
    except Exception as error:
        sys.exit(one_line(error))


def compiled_files(
    bundle: Path,
    packages: Sequence[tuple[Path, Sequence[str]]],
    socs: Sequence[str],
    limit_bytes: int,
    progress: Stages,
) -> dict[str, list[str]]:
    """Compile packages, each with its functions, for chips: the files by chip, relative to the bundle.

    Raises:
        ExportError and DiskFull: as `compile_package` does.
    """
    out: dict[str, list[str]] = {}
    for soc in socs:
        out[soc] = []
        progress.stage(f"compiling for {soc}", len(packages))
        for package, functions in packages:
            progress.advance(0, package.stem)
            target = bundle / COMPILED_FOLDER / soc / package.stem
            made = compile_package(package, functions, soc, target, limit_bytes)
            out[soc] += [file.relative_to(bundle).as_posix() for file in made]
            progress.advance(1, package.stem)
    return out
