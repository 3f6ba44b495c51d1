"""Engines: a row each, named as on the command line. Importing it imports no engine."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

from edgekit.flashload.registry import Registry, resolve
from edgekit.runtime.errors import EngineUnavailable, UnsupportedBundle


@dataclass(frozen=True)
class EngineRow:
    """An engine. `format` is that of the bundles that it runs, and `title` what to call it in sentences.

    `factory`, as `module:attribute`, opens what `gives` says: an "engine" (`engines.base.Engine`, called with
    folder, manifest and threads), an "executor" of functions of packages (`engines.base.Executor`, called
    with nothing; `bundle.packages` says what the format's bundles are then), or nothing, where the core runs
    it itself: then it is empty, or called with nothing before the core opens a bundle, and `in_packages` says
    whether its weights lie in packages. `needs` is the module
    without which it cannot be, which `extra` of the distribution `package` brings; `probe`, where it is
    cheap, is called to find out whether the engine works on this system, and raises what is wrong. `threads`
    tells whether it takes as many threads as it is given; the others' systems decide for themselves.
    `by_name`: it runs machine code of the bundle's, so it is used where it is asked for by name alone.
    `machines` are those, as `platform.machine` names them, that it is made for; it emulates them elsewhere,
    where of several bundles of a model others are taken first. `systems` are those, as `platform.system`
    names them, that it can be had for. Empty: it is made for all. `target` is one of `edgekit export` that
    has its format, where the default one has not.
    """

    name: str
    format: str
    title: str
    factory: str
    gives: Literal["engine", "executor", "core"] = "engine"
    in_packages: bool = False
    needs: str = ""
    extra: str = ""
    package: str = "edgekit"
    probe: str = ""
    threads: bool = False
    by_name: bool = False
    machines: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    target: str = ""

    @property
    def packaged(self) -> bool:
        """Whether the weights of its bundles lie in packages."""
        return self.gives == "executor" or self.in_packages

    def is_for(self, machine: str, system: str | None) -> bool:
        """Whether it is made for a machine and a system, as `platform` names them; None: for any system."""
        elsewhere = system is not None and self.systems and system not in self.systems
        return not elsewhere and (machine in self.machines or not self.machines)

    @property
    def install(self) -> str:
        """The requirement for `pip install`."""
        return f"{self.package}[{self.extra}]" if self.extra else self.package

    def check_available(self) -> None:
        """Refuse an engine whose library is not installed, or not made for this system.

        Raises:
            EngineUnavailable or NativeError: what is missing.
        """
        if self.probe:
            resolve(self.probe)()
        elif self.needs and not _installed(self.needs):
            package = self.needs.partition(".")[0].replace("_", "-")
            raise EngineUnavailable(f"the {self.name} engine needs {package}: pip install '{self.install}'")

    def check_asked(self, name: str | None, bundle: object) -> None:
        """Refuse an engine that is used by name alone, where another `name` or none was given for a bundle.

        Raises:
            UnsupportedBundle: what it would run, and how to ask for it.
        """
        if self.by_name and name != self.name:
            raise UnsupportedBundle(
                f"{bundle}: its programs are machine code, which can do whatever you can do; if you trust "
                f"whoever made it, ask for the engine by name: --engine {self.name} "
                f"(in Python engine={self.name!r})"
            )

    def load(self) -> Any:
        """The factory, imported. Raises what its module does."""
        return resolve(self.factory)


_COREML = "edgekit.runtime.engines.coreml:CoremlExecutor"
_COREAI = "edgekit.runtime.engines.coreai.executor:CoreaiExecutor"
#: Those that come with edgekit.
OWN = (
    EngineRow(
        "native",
        format="native",
        title="the native core",
        factory="",
        gives="core",
        probe="edgekit.flashload._native:load",
        threads=True,
    ),
    EngineRow(
        "torch",
        format="native",
        title="PyTorch",
        factory="edgekit.runtime.engines.torch.engine:TorchEngine",
        needs="torch",
        extra="torch",
        threads=True,
    ),
    EngineRow(
        "onnx",
        format="onnx",
        title="ONNX Runtime",
        factory="edgekit.runtime.engines.onnx.engine:OnnxEngine",
        needs="onnxruntime",
        extra="onnx",
        threads=True,
    ),
    EngineRow(
        "onnx-gpu",
        format="onnx-gpu",
        title="ONNX Runtime on a GPU",
        factory="edgekit.runtime.engines.onnx.gpu_engine:OnnxGpuEngine",
        needs="onnxruntime",
        extra="onnx-gpu",
        threads=True,
    ),
    EngineRow(
        "tvm",
        format="tvm",
        title="TVM",
        factory="edgekit.runtime.engines.tvm:load_runtime",
        gives="core",
        needs="tvm",
        extra="tvm",
        threads=True,
        by_name=True,
    ),
    EngineRow(
        "mlx",
        format="mlx",
        title="MLX",
        factory="edgekit.runtime.engines.mlx.engine:MlxEngine",
        needs="mlx.core",
        extra="mlx",
        systems=("Darwin", "Linux"),
        target="mac",
    ),
    EngineRow(
        "coreml",
        format="coreml",
        title="Core ML",
        factory=_COREML,
        gives="executor",
        needs="coremltools",
        extra="coreml",
        probe=_COREML,
        systems=("Darwin",),
        target="ios",
    ),
    EngineRow(
        "coreai",
        format="coreai",
        title="Core AI",
        factory=_COREAI,
        gives="executor",
        needs="coreai",
        extra="coreai",
        probe=_COREAI,
        systems=("Darwin", "Linux"),
        target="ios",
    ),
    EngineRow(
        "qnn",
        format="qnn",
        title="ONNX Runtime on Qualcomm's NPU",
        factory="edgekit.runtime.engines.qnn.libraries:load_runtime",
        gives="core",
        in_packages=True,
        needs="onnxruntime_qnn",
        extra="qnn",
        machines=("aarch64", "arm64", "ARM64"),
        target="android",
    ),
)
ENGINES = Registry("engine", "edgekit.engines", EngineRow, {row.name: row for row in OWN})


def running(program_format: str, name: str | None = None) -> EngineRow | None:
    """The engine of that name for bundles of a format; without a name that of the format's own name before
    others. None if there is none.

    Raises:
        BrokenPlugin: a distribution promises the engine of that name and cannot give it.
    """
    if name is not None:
        row = ENGINES.find(name)
        return row if row is not None and row.format == program_format else None
    row = ENGINES.find(program_format)
    if row is not None and row.format == program_format:
        return row
    return next((row for row in ENGINES.working() if row.format == program_format), None)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def exporting(program_format: str) -> str:
    """The options of `edgekit export` that write a format. Raises as `running` does."""
    row = running(program_format)
    target = f"--target {row.target} " if row is not None and row.target else ""
    return f"{target}--format {program_format}"
