"""Factors for queries by position: beside transformers' Ministral 3, and in every format and engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import sealing
from support.bundles import passes, quantized_reference
from support.checkpoints import write_checkpoint
from support.query_scales import SCALE, use_query_scales

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import MalformedFile
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.onnx import gpu_engine
from edgekit.runtime.errors import EdgekitError
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session, open_session

FAMILIES = ["llada", "diffusion_gemma"]


def test_factors_are_those_of_ministral() -> None:
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    positions = torch.tensor([0, 1, 16383, 16384, 40000, 262143])
    for beta, period in ((0.1, 16384), (0.7, 4)):
        expected = get_llama_4_attn_scale(positions[None], beta, period)[0, 0]
        own = type(SCALE)(beta, period).factors(positions)
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=0)
    assert type(SCALE)(0.1, 16384).factors(positions[:3]).tolist() == [[1.0]] * 3


@pytest.mark.parametrize("causal", [False, True])
def test_layers_with_factors_are_those_of_ministral(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    """LLaDA's layers are Llama's, as Ministral's are but for the factors."""
    from transformers.models.ministral3.configuration_ministral3 import Ministral3Config
    from transformers.models.ministral3.modeling_ministral3 import Ministral3Model

    use_query_scales(monkeypatch)
    write_checkpoint(tmp_path, "llada")
    model = quantized_reference(tmp_path, Scheme("bf16"), "native")
    arch, unit, config = model.architecture, model._unit, json.loads((tmp_path / "config.json").read_text())
    layer = arch.layers[0]
    theirs = Ministral3Model(
        Ministral3Config(
            vocab_size=arch.vocab_size, hidden_size=arch.hidden_size, num_hidden_layers=len(arch.layers),
            intermediate_size=layer.weights[-1].shape[1], num_attention_heads=config["n_heads"],
            num_key_value_heads=layer.kv_heads, head_dim=layer.head_dim, rms_norm_eps=arch.norm_eps,
            attn_implementation="eager", original_max_position_embeddings=SCALE.positions,
            rope_parameters={
                "rope_type": "default", "rope_theta": config["rope_theta"],
                "llama_4_scaling_beta": SCALE.beta, "original_max_position_embeddings": SCALE.positions,
            },
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        state = {"embed_tokens.weight": model.embedding, "norm.weight": unit("norm.")["weight"]}
        for i in range(len(arch.layers)):
            state |= {f"layers.{i}.{name}": value for name, value in unit(f"layers.{i}.").items()}
        theirs.load_state_dict(state)
        ids = torch.from_numpy(np.random.default_rng(1).integers(0, arch.vocab_size, (2, 19)))
        hidden = torch.full((19, 19), -1e30).triu(1) if causal else torch.zeros(19, 19)
        expected = theirs(inputs_embeds=model.embed(ids), attention_mask=hidden.expand(2, 1, 19, 19))
        found = model.hidden(ids, mask=hidden)
    torch.testing.assert_close(found, expected.last_hidden_state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("engine", "family"),
    [
        *((engine, family) for engine in ("native", "torch") for family in FAMILIES),
        *((engine, "llada") for engine in ("onnx", "onnx-gpu", "tvm", "mlx")),
    ],
)
def test_engines_scale_queries_as_the_reference(
    tmp_path: Path, engine: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a prefix where the family has one."""
    written = "native" if engine == "torch" else engine
    monkeypatch.setattr(gpu_engine, "PROVIDERS", {"CPUExecutionProvider": "cpu"})
    write_checkpoint(tmp_path / "checkpoint", family)
    without = quantized_reference(tmp_path / "checkpoint", Scheme("bf16"), written)
    use_query_scales(monkeypatch)
    how = ExportOptions(written, "mac" if written == "mlx" else "host", Scheme("bf16"))
    export(tmp_path / "checkpoint", tmp_path / "bundle", how)
    model = quantized_reference(tmp_path / "checkpoint", Scheme("bf16"), written)
    with open_session(tmp_path / "bundle", engine=engine) as session:
        found, expected = passes(session, model)
        plain = passes(session, without)[1].numpy()
    assert found.logits is not None
    wanted = expected.numpy()
    np.testing.assert_allclose(found.logits, wanted, rtol=0, atol=1e-4 * float(np.abs(wanted).max()))
    assert np.abs(found.logits - plain).max() > 1e-2 * np.abs(plain).max(), "the factors make a difference"


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_query_scales(monkeypatch)
    write_checkpoint(tmp_path / "checkpoint", "llada")
    export(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions("native", "host", Scheme("bf16")))
    return tmp_path / "bundle"


@pytest.mark.parametrize(
    "own",
    [
        {"beta": 0, "positions": 4}, {"beta": "x", "positions": 4}, {"beta": 0.5}, {"positions": 4}, [], 3,
        {"beta": 0.5, "positions": 0}, {"beta": 1e300, "positions": 4}, {"beta": -1, "positions": 4},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_factors_are_refused(bundle: Path, own: Any) -> None:
    sealing.edit(bundle, lambda manifest: manifest["model"]["query_scales"].update(full=own))
    with pytest.raises(MalformedFile, match="query scale"):
        Bundle.open(bundle)
    with pytest.raises(EdgekitError):
        Session(bundle)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_program_that_takes_factors_of_a_rope_without_is_refused(bundle: Path, engine: str) -> None:
    sealing.edit(bundle, lambda manifest: manifest["model"].pop("query_scales"))
    with pytest.raises(EdgekitError, match="query_scale"), open_session(bundle, engine=engine) as session:
        session.denoise(np.zeros(4, np.int64), HeadRequest())
