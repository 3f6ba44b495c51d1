"""Opens an engine for a moment, in a process of its own: libraries may end theirs.

    python -m edgekit.tools.doctor.opening NAME

prints {"works": "on what it computes"} or {"lacks": "what is missing"} as the last line.
"""

from __future__ import annotations

import json
import sys

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.engine_registry import ENGINES


def native() -> str:
    from edgekit.flashload import _native
    from edgekit.runtime.bench import probe_processor

    probe = probe_processor(1, 0.01)
    return f"library {_native.load().version}, {probe.int8_instructions}"


def onnx() -> str:
    from edgekit.runtime.engines.onnx.integer_product import identity_model
    from edgekit.runtime.telemetry import load_onnxruntime

    ort = load_onnxruntime()
    ort.InferenceSession(identity_model(1), providers=["CPUExecutionProvider"])
    return f"ONNX Runtime {ort.__version__}, processor"


def onnx_gpu() -> str:
    from edgekit.runtime.engines.onnx.gpu_engine import working_provider
    from edgekit.runtime.telemetry import load_onnxruntime

    ort = load_onnxruntime()
    return f"ONNX Runtime {ort.__version__}, {working_provider(ort)}"


def torch() -> str:
    import torch

    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__}, processor: it finds no GPU"
    major, minor = torch.cuda.get_device_capability()
    float(torch.ones(4, device="cuda").sum())
    return f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, compute capability {major}.{minor}"


def tvm() -> str:
    import importlib.metadata

    from edgekit.runtime.engines.tvm import load_runtime

    load_runtime()
    return f"TVM {importlib.metadata.version('apache-tvm')}"


def mlx() -> str:
    import mlx.core as mx

    from edgekit.runtime.engines.mlx import version

    found = version.installed()
    if not version.reads(found):
        raise EdgekitError(
            f"mlx {found} reads other function files than edgekit's; pip install '{version.REQUIREMENT}'"
        )
    mx.eval(mx.ones(4).sum())
    return f"mlx {found}, {mx.default_device()}"


def coreai() -> str:
    from edgekit.runtime.engines.coreai import version

    return f"coreai-core {version.installed()}; it is not opened here"


OPENINGS = {
    "native": native,
    "onnx": onnx,
    "onnx-gpu": onnx_gpu,
    "torch": torch,
    "tvm": tvm,
    "mlx": mlx,
    "coreai": coreai,
}


def main(name: str) -> None:
    row = ENGINES.find(name)
    assert row is not None, "the caller has listed it"
    try:
        row.check_available()
        found = {"works": OPENINGS[name]() if name in OPENINGS else "it is installed; it is not opened here"}
    except EdgekitError as error:
        found = {"lacks": str(error)}
    except Exception as error:
        found = {"broken": f"{type(error).__name__}: {error}".splitlines()[0]}
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
