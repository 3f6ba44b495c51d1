"""One model on every provider; `python -m support.provider_matrix` makes the table of all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import provider_matrix
from support.providers import PROVIDERS


@pytest.mark.parametrize("provider", PROVIDERS)
def test_layers_and_a_pass_equal_the_reference(tmp_path: Path, provider: str) -> None:
    """Of the smallest model. The tests of each engine have those with experts and self-conditioning."""
    lines = dict(provider_matrix.model(tmp_path, "llada", "mixed4", [provider]))
    if not lines:
        pytest.skip(f"{provider} is not there; its own tests say why")
    errors = {name.rpartition(", ")[2]: found[provider] for name, found in lines.items()}
    assert set(errors) == {"dense", "whole pass"}
    assert all(error < provider_matrix.most(provider, what) for what, error in errors.items())
