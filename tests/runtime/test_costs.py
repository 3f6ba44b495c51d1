"""Operations of a pass against those that PyTorch counts in transformers' model of the same checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import load_oracle
from support.native_bundles import native_bundle
from torch.utils.flop_counter import FlopCounterMode

from edgekit.export.quantize import Scheme
from edgekit.runtime.bench import Bench
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.costs import of_bundle
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session

ROWS = 24


@pytest.mark.parametrize(
    "family", ["llada", "llada_moe", "llada2_moe", "dream", "sdar", "sdar_moe", "nemotron_labs_diffusion"]
)
@torch.no_grad()
def test_a_pass_costs_what_transformers_computes(tmp_path: Path, family: str) -> None:
    bundle = Bundle.open(native_bundle(tmp_path, family, Scheme("int8")))
    ids = np.random.default_rng(0).integers(5, 300, ROWS)
    with Session(bundle) as session, Bench(session) as bench:
        with bench.test({}):
            session.denoise(ids, HeadRequest())
        (test,) = bench.report()["tests"]
    each: dict[str, Any] = dict(zip(test["passes"]["columns"], test["passes"]["rows"][0], strict=True))
    assert each["rows"] == each["head_rows"] == ROWS and each["attended"] == ROWS * ROWS

    oracle = load_oracle(tmp_path / "checkpoint")
    if any(layer["experts"] for layer in bundle.manifest.layers):
        oracle.set_experts_implementation("eager")  # one product after the other, which the counter knows
    mask = torch.zeros(1, 1, ROWS, ROWS)
    with FlopCounterMode(display=False) as counter:
        oracle(torch.from_numpy(ids)[None], attention_mask=mask, use_cache=False)
    # Tables of rotations are products to PyTorch as well: a thousandth of the rest.
    assert of_bundle(bundle).of_pass(each) == pytest.approx(counter.get_total_flops(), rel=3e-3)
