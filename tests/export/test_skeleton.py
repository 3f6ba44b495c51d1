"""Bundles without weights: what they say is what the exported ones say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import dense_checkpoints
from support.checkpoints import FAMILIES, write_checkpoint

from edgekit.export import skeleton
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.models import complete
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import BudgetExceeded, ChecksumMismatch
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.costs import of_bundle
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import SessionOptions, open_session
from edgekit.runtime.session.session import plan_session
from edgekit.tools.planning import released

PROCESS = 50_000_000


def _known(value: Any) -> Any:
    """What can be known of a report before anything is quantized."""
    if isinstance(value, dict):
        return {name: _known(v) for name, v in value.items() if "error" not in name}
    return [_known(v) for v in value] if isinstance(value, list) else value


def _lengths(sampler: dict[str, Any]) -> dict[str, Any]:
    """Without tokens: some are those of the tokenizer."""
    options = {name: v for name, v in sampler["config"].items() if not name.endswith(("_id", "_ids"))}
    return sampler | {"config": options}


@pytest.mark.parametrize(
    ("family", "preset"),
    [(family, "mixed4") for family in FAMILIES + dense_checkpoints.FAMILIES] + [("diffusion_gemma", "bf16")],
)
def test_a_bundle_without_weights_plans_as_the_exported_one(family: str, preset: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", family, 5)
    checkpoint, scheme = Checkpoint.open(tmp_path / "checkpoint"), Scheme(preset)
    config, given = complete(checkpoint.config, checkpoint.names), checkpoint.generation_config
    export(tmp_path / "checkpoint", tmp_path / "real", ExportOptions("native", scheme=scheme))
    skeleton.write(tmp_path / "planned", config, scheme, generation_config=given)
    real, planned = Bundle.open(tmp_path / "real"), Bundle.open(tmp_path / "planned")

    assert planned.model == real.model
    assert planned.manifest.layers == real.manifest.layers
    assert _lengths(planned.manifest.sampler) == _lengths(real.manifest.sampler)
    assert planned.manifest.weights.size == real.manifest.weights.size
    assert planned.weights_path.stat().st_size == real.weights_path.stat().st_size
    assert of_bundle(planned) == of_bundle(real)
    assert _known(planned.manifest.quantization) == _known(real.manifest.quantization)

    options = SessionOptions(positions=64, cached=0 if real.model.causal_prefix else 64, canvas=48)
    whole = plan_session(real, options, process_bytes=PROCESS)
    assert plan_session(planned, options, process_bytes=PROCESS) == whole
    least = whole.least_memory_bytes
    for budget in (least, least + 40_000, least + 300_000):
        limited = replace(options, memory_bytes=budget)
        found = plan_session(real, limited, process_bytes=PROCESS)
        assert plan_session(planned, limited, process_bytes=PROCESS) == found
    with pytest.raises(BudgetExceeded):
        plan_session(planned, replace(options, memory_bytes=least - 3_000_000), process_bytes=PROCESS)


def test_nobody_computes_with_weights_that_are_not_there(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada", 5)
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    skeleton.write(tmp_path / "planned", config, Scheme())
    with (
        pytest.raises(ChecksumMismatch),
        open_session(tmp_path / "planned", SessionOptions(canvas=16)) as session,
    ):
        session.denoise([1] * 16, HeadRequest())


def test_it_takes_no_room_on_the_disk(tmp_path: Path) -> None:
    skeleton.write(tmp_path / "planned", released.config("llada-8b"), Scheme())
    weights = (tmp_path / "planned" / "weights.safetensors").stat()
    assert weights.st_size > 5e9
    if hasattr(weights, "st_blocks"):
        assert 512 * weights.st_blocks < 20e6
