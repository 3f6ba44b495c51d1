"""A session under a memory budget measured from outside, and generation equal to transformers end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.bundles import make_bundle
from support.checkpoints import load_oracle, write_checkpoint
from support.philox_torch import drawing
from support.reference_denoiser import ReferenceDenoiser
from support.watched import run_watched

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.models import architecture
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights
from edgekit.flashload.errors import BudgetExceeded
from edgekit.runtime.sampling import Committed, generate
from edgekit.runtime.session import Session, SessionOptions

RUN = """
import json, sys
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import Committed
memory = int(sys.argv[2]) or None
with Generator(sys.argv[1], memory_bytes=memory) as generator:
    ids, stats = [], None
    for event in generator.generate("x", Settings(max_new_tokens=64, steps=3)):
        if isinstance(event, Committed):
            ids += event.ids.tolist()
    stats = event.stats.to_dict()
print(json.dumps({"ids": ids, "engine": stats["engine"]}))
"""


@pytest.fixture(scope="module")
def large_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """110 MB of 8-bit weights."""
    return make_bundle(
        tmp_path_factory.mktemp("large"), "llada", Scheme("int8"), dtype="bfloat16",
        d_model=1024, n_heads=8, mlp_hidden_size=2816, n_layers=8, vocab_size=2048,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_the_budget_holds_and_the_answer_is_the_same(large_bundle: Path) -> None:
    resident, resident_peak = run_watched(RUN, large_bundle, 0)
    assert resident["engine"]["streamed_bytes_per_step"] == 0
    with pytest.raises(BudgetExceeded) as refused:
        Session(large_bundle, SessionOptions(memory_bytes=1, positions=0, canvas=128))
    # This test's own process is larger than a fresh one; what the budget must hold besides is the same.
    with Session(large_bundle, SessionOptions(positions=0, canvas=128)) as session:
        needs = session.plan
    fresh = resident["engine"]["process_bytes"]
    budget = refused.value.needed_bytes - needs.process + fresh + (30 << 20)
    assert budget < resident_peak, "the budget must be one that the resident run does not keep"
    streamed, peak = run_watched(RUN, large_bundle, budget)
    assert 0 < streamed["engine"]["streamed_bytes_per_step"] < 110_000_000
    assert streamed["ids"] == resident["ids"]
    assert peak <= budget, f"{peak / 1e6:.0f} MB used of {budget / 1e6:.0f} MB"


def test_too_small_a_budget_says_what_would_do(large_bundle: Path) -> None:
    with pytest.raises(
        BudgetExceeded, match=r"budget of 1 MB is too small; .* at least \d+ MB \(process"
    ) as refused:
        Session(large_bundle, SessionOptions(memory_bytes=1_000_000))
    with Session(
        large_bundle, SessionOptions(memory_bytes=refused.value.needed_bytes + (16 << 20))
    ) as session:
        assert session.plan.streamed


@pytest.mark.parametrize("seed", [0, 1, 2])
@torch.no_grad()
def test_diffusion_gemma_generates_what_transformers_generates(tmp_path: Path, seed: int) -> None:
    """Import, architecture and sampler together: tokens over three canvases equal those of `generate`, fed
    the same random numbers. Random weights amplify rounding tenfold a step through self-conditioning: weights
    that differ by 2e-7 give the same tokens after two steps and others after three. The sampler's own tests
    run more, over transformers' logits.
    """
    config = write_checkpoint(tmp_path, "diffusion_gemma", seed)
    source = Checkpoint.open(tmp_path)
    arch = architecture(source.config)
    model = ReferenceModel(arch, load_float_weights(arch, source)).eval()
    oracle = load_oracle(tmp_path)
    prompt = np.random.default_rng(seed).integers(13, arch.vocab_size, 19)
    length = config["canvas_length"]
    with drawing(seed):
        expected = oracle.generate(
            torch.from_numpy(prompt)[None], max_new_tokens=3 * length, max_denoising_steps=2
        )
    section = {"name": "diffusion_gemma", "config": source.generation_config}
    options = {"canvas_length": length, "max_new_tokens": 3 * length}
    events = generate(ReferenceDenoiser(model), section, prompt, seed=seed, steps=2, options=options)
    ids = np.concatenate([e.ids for e in events if isinstance(e, Committed)])
    sequences = getattr(expected, "sequences", expected)[0, len(prompt) :].numpy()
    np.testing.assert_array_equal(ids, sequences[: len(ids)])
    assert (sequences[len(ids) :] == source.generation_config["pad_token_id"]).all()
