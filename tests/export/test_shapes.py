"""Shapes at the edges of what export accepts: no engine dies of them, and each answers as the reference does.

Every engine works in a process of its own, since what it calls may end the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.bundles import quantized_reference
from support.checkpoints import write_checkpoint
from support.signal_to_noise import decibels

from edgekit.export.formats.options import Packaging
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.runtime.sampling import PhiloxNoise

#: One of everything: experts, of which all or one are chosen, heads, layers, rows of the last tile; windows
#: that see the position alone; sizes that no group and no vector divides.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "one expert": (
        "diffusion_gemma",
        {
            "num_experts": 1, "top_k_experts": 1, "num_hidden_layers": 1, "sliding_window": 2,
            "num_attention_heads": 1, "num_key_value_heads": 1, "num_global_key_value_heads": 1,
            "vocab_size": 385,
        },
    ),
    "one of three experts": (
        "diffusion_gemma",
        {
            "num_experts": 3, "top_k_experts": 1, "num_hidden_layers": 2, "sliding_window": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "num_global_key_value_heads": 3,
            "hidden_size": 50, "intermediate_size": 34, "moe_intermediate_size": 18, "vocab_size": 391,
        },
    ),
    "all experts": (
        "diffusion_gemma", {"num_experts": 5, "top_k_experts": 5, "num_hidden_layers": 2, "hidden_size": 96}
    ),
    "dense": (
        "llada",
        {
            "d_model": 42, "n_heads": 3, "n_kv_heads": 1, "n_layers": 1, "mlp_hidden_size": 70,
            "vocab_size": 385,
        },
    ),
    "one of one": (
        "llada_moe", {"num_experts": 1, "num_experts_per_tok": 1, "num_hidden_layers": 1, "vocab_size": 385}
    ),
    "one head": (
        "dream",
        {
            "hidden_size": 30, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1,
            "intermediate_size": 62, "vocab_size": 391,
        },
    ),
}  # fmt: skip
#: Exports to ONNX take 20 s each, hence few.
FEW = ("one of three experts", "dense")
#: Prompts in chunks and a canvas, of lengths.
PASSES = {"short": ((1,), 1), "long": ((3, 1), 5)}

RUN = """
import json, sys
from pathlib import Path
import numpy as np
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.sampling import HeadRequest, PhiloxNoise
from edgekit.runtime.session import open_session

for folder in map(Path, sys.argv[1:]):
    print("opens", folder.parent.name, file=sys.stderr, flush=True)
    manifest = json.loads((folder / "edgekit.json").read_text())
    model = manifest["model"]
    executor = MilExecutor() if manifest["programs"]["format"] == "coreml" else None
    out = {}
    with open_session(folder, executor=executor) as session:
        for name, (prompt, canvas) in json.loads((folder.parent / "passes.json").read_text()).items():
            session.reset()
            soft = None
            if model["causal_prefix"]:
                for part in prompt:
                    session.prefill(np.array(part))
                soft = session.denoise(np.array(canvas), HeadRequest(soft=True)).soft
            noise = PhiloxNoise(1).gumbel(len(canvas), model["vocab_size"])
            request = HeadRequest(
                temperature=0.7, logits=True, gumbel=noise, gumbel_scale=0.5, top_k=3,
                soft=model["causal_prefix"],
            )
            got = session.denoise(np.array(canvas), request, soft)
            out |= {f"{name}.{k}": getattr(got, k) for k in ("logits", "sample", "entropy", "log_z", "soft")}
            if soft is None:
                del out[f"{name}.soft"]
            else:
                out[f"{name}.first"] = soft
    np.savez(folder.with_suffix(".npz"), **out)
"""


def passes(vocab: int) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    return {
        name: ([rng.integers(0, vocab, n).tolist() for n in prompt], rng.integers(0, vocab, canvas).tolist())
        for name, (prompt, canvas) in PASSES.items()
    }


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random models of all shapes, each in a folder of its own with the passes to run."""
    found = {}
    for name, (family, overrides) in SHAPES.items():
        folder = tmp_path_factory.mktemp("shapes") / name
        config = write_checkpoint(folder / "checkpoint", family, **overrides)
        vocab = config.get("text_config", config)["vocab_size"]
        (folder / "passes.json").write_text(json.dumps(passes(vocab)))
        found[name] = folder
    return found


@pytest.mark.parametrize(
    ("engine", "preset", "precision", "decibels_left"),
    [
        ("mlx", "mixed4", "float32", 80),
        ("onnx", "bf16", None, 80),
        ("native", "mixed4", None, 20),
        ("coreml", "mixed4", "float32", 80),
    ],
)
def test_no_shape_that_export_accepts_ends_an_engine(
    checkpoints: dict[str, Path], engine: str, preset: str, precision: str | None, decibels_left: float
) -> None:
    """The native engine rounds activations to 8 bits, where the reference here does not. ONNX Runtime runs
    matrices in 8 bits on some processors only.
    """
    pytest.importorskip(
        {"mlx": "mlx.core", "coreml": "coremltools", "onnx": "onnxruntime"}.get(engine, "numpy")
    )
    scheme = Scheme(preset, 32)
    folders = {n: folder for n, folder in checkpoints.items() if engine != "onnx" or n in FEW}
    for folder in folders.values():
        packaging = Packaging((8, 16)) if engine == "coreml" else None
        options = ExportOptions(
            engine, scheme=scheme, tile_bytes=8192, precision=precision, packaging=packaging
        )
        export(folder / "checkpoint", folder / engine, options)
    command = [sys.executable, "-c", RUN, *(str(folder / engine) for folder in folders.values())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, f"{engine} ended with {ended.returncode}: {ended.stderr[-2000:]}"
    for name, folder in folders.items():
        model = quantized_reference(folder / "checkpoint", scheme, engine)
        with np.load(folder / f"{engine}.npz") as found:
            for label, (prompt, canvas) in json.loads((folder / "passes.json").read_text()).items():
                got = {k.removeprefix(label + "."): found[k] for k in found if k.startswith(label + ".")}
                check(f"{engine}, {name}, {label}", got, model, prompt, canvas, decibels_left)


@torch.no_grad()
def check(
    where: str,
    got: dict[str, np.ndarray],
    model: Any,
    prompt: list[list[int]],
    canvas: list[int],
    least: float,
) -> None:
    """What an engine made of a pass against the reference, which is given the engine's own first answer."""
    kv = soft = None
    ids = torch.tensor([canvas])
    if "first" in got:
        kv = model.encode(torch.tensor([sum(prompt, [])]))
        first = model.denoise(ids, kv)[0]
        assert decibels(got["first"], (torch.softmax(first, -1) @ model.embedding).numpy()) > least, where
        soft = torch.from_numpy(got["first"])[None]
    logits = model.denoise(ids, kv, soft)[0] / 0.7
    assert decibels(got["logits"], logits.numpy()) > least, where
    # What follows from the logits, of the engine's own.
    own = torch.from_numpy(got["logits"])
    log_z = torch.logsumexp(own, -1)
    p = torch.softmax(own, -1)
    np.testing.assert_allclose(got["log_z"], log_z.numpy(), rtol=1e-4, atol=1e-4, err_msg=where)
    entropy = torch.distributions.Categorical(p).entropy().numpy()
    np.testing.assert_allclose(got["entropy"], entropy, rtol=1e-3, atol=1e-3, err_msg=where)
    noise = PhiloxNoise(1).gumbel(len(canvas), own.shape[1])(0, own.shape[1])
    np.testing.assert_array_equal(
        got["sample"], (got["logits"] + np.float32(0.5) * noise).argmax(-1), err_msg=where
    )
    if "soft" in got:
        assert decibels(got["soft"], (p @ model.embedding).numpy()) > min(least, 60), where
