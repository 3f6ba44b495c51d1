"""The folder for Macs in mlx-vlm: it loads, computes what the reference computes, and generates.

mlx-vlm is not among the packages of the tests, since it asks for many that text does not need. It is
installed into a folder of its own below `build` (40 MB, a few seconds), once for each list of requirements.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from support.bundles import make_bundle, quantized_reference
from support.foreign_packages import installed
from support.signal_to_noise import decibels

from edgekit.export.checkpoint.hub import resolve
from edgekit.export.quantize import Override, Scheme
from edgekit.tools.cli import main

pytest.importorskip("mlx.core", reason="mlx is not installed")
fcntl = pytest.importorskip("fcntl")

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("mlx_vlm_requirements.txt")


@pytest.fixture(scope="module")
def mlx_vlm() -> Path:
    """The folder of mlx-vlm, which Python is given besides its own."""
    return installed(REQUIREMENTS)


LOAD = """
import json, sys
import mlx.core as mx
import numpy as np
from mlx_vlm import generate, load

bundle, passes, prompt = sys.argv[1:]
model, processor = load(bundle)
given = np.load(passes)
out = model(input_ids=mx.array(given["prompt"][None]), canvas_ids=mx.array(given["canvas"][None]))
np.save(passes.replace("passes.npz", "logits.npy"), np.array(out.logits.astype(mx.float32))[0])
if processor.tokenizer.chat_template:
    # mlx-vlm's own way gives templates a list of parts, which not every template for text takes.
    message = {"role": "user", "content": prompt}
    prompt = processor.tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
answer = generate(model, processor, prompt, max_tokens=int(given["tokens"]), verbose=False)
print(json.dumps({"text": answer.text, "tokens": answer.generation_tokens}))
"""


def run(mlx_vlm: Path, bundle: Path, folder: Path, prompt: str, vocab: int, tokens: int) -> dict[str, Any]:
    """What mlx-vlm makes of the bundle: its logits of a pass and its answer to a prompt."""
    rng = np.random.default_rng(3)
    ids = {"prompt": rng.integers(0, vocab, 7), "canvas": rng.integers(0, vocab, 16)}
    np.savez(folder / "passes.npz", **ids, tokens=tokens)
    command = [sys.executable, "-c", LOAD, str(bundle), str(folder / "passes.npz"), prompt]
    environment = dict(os.environ, PYTHONPATH=str(mlx_vlm), TRANSFORMERS_VERBOSITY="error")
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer | ids | {"logits": np.load(folder / "logits.npy")}


def test_mlx_vlm_computes_what_the_reference_computes(mlx_vlm: Path, tmp_path: Path) -> None:
    """Experts, both kinds of attention, self-conditioning, matrices in 4, 8 and 16 bits, several tiles."""
    scheme = Scheme(
        "mixed4", 32, (Override("layers.0.self_attn.q_proj", 16), Override("layers.1.experts.*", 8))
    )
    bundle = make_bundle(
        tmp_path, "diffusion_gemma", scheme, program_format="mlx", precision="float32", vocab_size=391,
        intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=3,
    )  # fmt: skip
    model = quantized_reference(tmp_path / "checkpoint", scheme, "mlx")
    got = run(mlx_vlm, bundle, tmp_path, "a", 391, 16)
    with torch.no_grad():
        kv = model.encode(torch.from_numpy(got["prompt"])[None])
        expected = model.denoise(torch.from_numpy(got["canvas"])[None], kv)[0]
    assert decibels(got["logits"], expected.numpy()) > 80
    assert 0 < got["tokens"] <= 16, "random weights may end an answer, which is drawn, at any token"


def test_mlx_vlm_answers_with_the_shipped_model(mlx_vlm: Path, tmp_path: Path) -> None:
    """What `--target mac` writes, as a Mac's user gets it."""
    out = tmp_path / "bundle"
    words = ["export", str(resolve("tiny-gemma")), "--target", "mac", "-o", str(out)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    got = run(mlx_vlm, out, tmp_path, "12 + 34 =", 512, 32)
    assert got["text"].strip()
    with safe_open(out / "model.safetensors", "np") as file:
        assert file.metadata()["format"] == "mlx"
        names = set(file.keys())
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert names == set(index["weight_map"]) and not any("pad" in name for name in names)
    # As its README says it, with a question that the model knows.
    readme = (out / "README.md").read_text()
    (line,) = (line.strip() for line in readme.splitlines() if "mlx_vlm generate" in line)
    words = shlex.split(line.replace("Why is the sky blue?", "Copy this: Ada 7 cat"))[1:]
    environment = dict(os.environ, PYTHONPATH=str(mlx_vlm), TRANSFORMERS_VERBOSITY="error")
    ended = subprocess.run(
        [sys.executable, *words], env=environment, cwd=out, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.strip() == "Ada 7 cat"
