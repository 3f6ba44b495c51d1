"""Nothing is sent and nothing is written for others: a run in a home of its own leaves that as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# No command line: what it imports is a part of what is watched. The engine is opened as `run` opens it.
RUN = """
import os, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(event) if event.startswith("socket.") else None)
from edgekit.tools.cli import main
try:
    main(["run", sys.argv[1], "-p", "Hello", "--raw", "--json", "--max-new-tokens", "8", "--steps", "1"])
except SystemExit as error:
    assert not error.code, error.code
if os.path.isdir("/proc/self/fd"):
    for fd in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # that of the list, or one that a thread has closed
            continue
        if link.startswith("socket:"):
            opened.append(link)
assert not opened, opened
"""


def environment(home: Path) -> dict[str, str]:
    home.mkdir()
    names = ("HOME", "USERPROFILE", "LOCALAPPDATA", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    unset = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return kept | {name: str(home) for name in names} | {"PYTHONDONTWRITEBYTECODE": "1"}


def test_running_an_onnx_bundle_writes_nothing_at_home_and_opens_no_socket(
    float_bundle: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", RUN, float_bundle], env=environment(home), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert '"token_ids"' in done.stdout
    assert sorted(home.rglob("*")) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to see what native threads do")
def test_no_thread_of_a_run_asks_the_system_for_a_socket(float_bundle: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-qq", "-e", "trace=socket,connect,sendto", "-o", trace]
    done = subprocess.run(
        [*strace, sys.executable, "-c", RUN, float_bundle],
        env=environment(tmp_path / "home"), capture_output=True, text=True,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr or "ptrace" in done.stderr:
        pytest.skip("strace may not watch processes here")
    assert done.returncode == 0, done.stderr
    assert [line for line in trace.read_text().splitlines() if "(" in line and "SIG" not in line] == []


def test_the_hub_is_not_told_which_packages_are_installed() -> None:
    pytest.importorskip("huggingface_hub")
    code = (
        "import edgekit.runtime.hub.repository\n"
        "from huggingface_hub import constants\n"
        "from huggingface_hub.utils import build_hf_headers\n"
        "assert constants.HF_HUB_DISABLE_TELEMETRY\n"
        "assert 'torch' not in build_hf_headers()['user-agent']"
    )
    kept = {name: value for name, value in os.environ.items() if name != "HF_HUB_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
