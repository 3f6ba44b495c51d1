"""A small model with a causal prefix, windows and experts, which tests of sessions share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.native_bundles import native_bundle

from edgekit.export.quantize import Scheme
from edgekit.runtime.session import Session, SessionOptions


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_layers")
    return native_bundle(folder, "diffusion_gemma", Scheme("mixed4", 16), num_hidden_layers=2)


@pytest.fixture
def session(bundle: Path) -> Iterator[Session]:
    with Session(bundle, SessionOptions(sequences=4)) as opened:
        yield opened
