"""Segments that look at what a sequence keeps while another one of the pass makes room behind it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.native_bundles import native_bundle

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Segment, Session, SessionOptions


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native_bundle(
        tmp_path_factory.mktemp("room"), "diffusion_gemma", Scheme("mixed4", 16), num_hidden_layers=3
    )


@pytest.mark.parametrize("positions", [4, 60, 600])
@pytest.mark.parametrize("back", [0, 20])
def test_what_is_kept_may_move_under_those_who_look(bundle: Path, positions: int, back: int) -> None:
    """By growing, and to the front where layers have a window: who needs what went with that is told."""
    refused = 0
    with Session(bundle, SessionOptions(positions=positions, canvas=9)) as session:
        session.prefill(np.arange(30))
        for _ in range(30):
            length = session.prefix_length
            places = np.arange(7) + length - back
            looks = Segment(session.sequence, np.arange(7), HeadRequest(logits=True), positions=places)
            keeps = Segment(session.sequence, np.arange(9), causal=True, keep_at=length)
            try:
                (alone,) = session.run_pass([looks])
                (both, _) = session.run_pass([looks, keeps])
            except InvalidRequest as error:
                assert "too far back" in str(error)
                refused += 1
                session.run_pass([keeps])
                continue
            assert alone is not None and both is not None and alone.logits is not None
            np.testing.assert_array_equal(both.logits, alone.logits)
    assert (refused > 0) == (back > 0)
