"""Fixtures of every test: private user directories, few threads, repeatable random numbers."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from support import original_environment  # noqa: F401 - before anything changes it

if TYPE_CHECKING:
    from support.fake_hub import FakeHub

# Read by OpenMP (torch, numpy's BLAS) when it is first loaded, hence not in a fixture. Parallel test workers
# share the processor, and tests are too small to gain from more threads.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
# Read when huggingface_hub and transformers are imported: no test may ask the network for a model.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

# Shells start what goes on in the background with Ctrl-C ignored, and tests send it to processes of theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the first example pays for imports and compilation, and a shared machine stalls at any time.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session", autouse=True)
def private_user_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Points the home, cache and temporary directories at a temporary folder, for the tests and what they
    start: workers end without what libraries do at the end of a process, as coremltools with its packages.
    """
    home = tmp_path_factory.mktemp("home")
    temporary = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        for variable, folder in {
            "HOME": home,
            "USERPROFILE": home,
            "LOCALAPPDATA": home / "cache",
            "XDG_CACHE_HOME": home / "cache",
            "XDG_CONFIG_HOME": home / "config",
            "XDG_DATA_HOME": home / "data",
            "XDG_STATE_HOME": home / "state",
            "HF_HOME": home / "huggingface",
            "TMPDIR": temporary,
            "TEMP": temporary,
            "TMP": temporary,
        }.items():
            patch.setenv(variable, str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def programs_converted_once() -> Iterator[None]:
    """Has equal programs converted to ONNX once by a worker; see `support.remembered_conversions`."""
    from support.remembered_conversions import one_table, remembering

    with pytest.MonkeyPatch.context() as patch:
        one_table(patch)
        patch.setattr("edgekit.export.formats.onnx.writer.convert", remembering({}))
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that gives each test the same numbers on every run."""
    return np.random.default_rng(20260101)


@pytest.fixture
def hide_package(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """hide_package("onnx", "edgekit.runtime.engines.onnx") makes a package look as if it were not installed;
    modules whose names begin like the further arguments, which may have imported it, are imported anew.
    """

    def hide(package: str, *importers: str) -> None:
        real = builtins.__import__

        def without(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            return real(name, *args, **kwargs)

        for name in [n for n in sys.modules if importers and n.startswith(importers)]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(builtins, "__import__", without)

    return hide


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub on the loopback address that huggingface_hub talks to, with an empty cache and nobody logged
    in.
    """
    from huggingface_hub import constants
    from support.fake_hub import FakeHub

    with FakeHub() as server:
        for name, value in {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_CACHE": str(tmp_path / "hub-cache"),
            "HF_HUB_DISABLE_XET": True,  # its protocol is another one, with servers of its own
        }.items():
            monkeypatch.setattr(constants, name, value)
        for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
            monkeypatch.setenv(variable, str(tmp_path / "user-cache"))
        for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield server


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest bundle there is: a random llada. Read only; its checkpoint is beside it."""
    from support.bundles import make_bundle

    return make_bundle(tmp_path_factory.mktemp("tiny"), "llada", n_layers=2)


@pytest.fixture(scope="session")
def float_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As tiny_bundle, without integer products: ONNX Runtime runs it on every processor. Read only."""
    from support.bundles import make_bundle

    from edgekit.export.quantize import Scheme

    return make_bundle(tmp_path_factory.mktemp("float"), "llada", Scheme("bf16"), n_layers=1)


@pytest.fixture(scope="session")
def native_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the native engine."""
    from support.bundles import make_bundle

    return make_bundle(tmp_path_factory.mktemp("native"), "llada", program_format="native", n_layers=2)


@pytest.fixture(scope="session")
def gemma_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random bundle with experts, prefix KV and self-conditioning. Read only."""
    from support.bundles import make_bundle

    return make_bundle(tmp_path_factory.mktemp("gemma"), "diffusion_gemma")


@pytest.fixture(scope="session")
def shipped_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """shipped_bundle("tiny-gemma") is that model for the native engine, shipped_bundle("tiny-gemma", "mlx")
    in another format. Read only, exported once.
    """
    from support.bundles import shipped_model

    made: dict[tuple[str, str], Path] = {}

    def bundle(name: str, written: str = "native") -> Path:
        if (name, written) not in made:
            made[name, written] = shipped_model(tmp_path_factory.mktemp(name), name, written)
        return made[name, written]

    return bundle
