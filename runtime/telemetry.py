"""Libraries that report to their makers are told not to before they are loaded. onnxruntime is imported here
alone, huggingface_hub in `runtime/hub` alone, ray in `tools/cluster` alone.

ONNX Runtime 1.31 reports from the moment of its import: it makes a device identifier and a database in the
user's cache folder and uploads events. huggingface_hub tells its hub which other packages are installed.
The head of a Ray cluster reports every hour.
"""

from __future__ import annotations

import os
from types import ModuleType

# Read by the libraries when they are loaded. Processes that this one starts have them too.
_SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def switch_off() -> None:
    """Tell the libraries; to be called before one of them is imported."""
    os.environ.update(_SWITCHES)


def load_onnxruntime() -> ModuleType:
    """Raises ModuleNotFoundError."""
    switch_off()
    import onnxruntime

    # For a program that had loaded it before: the most that can still be switched off.
    onnxruntime.disable_telemetry_events()
    module: ModuleType = onnxruntime
    return module
