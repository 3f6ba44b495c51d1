"""The trained tiny models in the native engine, beside the torch reference with the same codes and float
activations: what rounding activations to 8 bits changes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.bundles import quantized_reference

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session
from edgekit.tools.tiny import tokenizer
from edgekit.tools.tiny.corpus import Encoder
from edgekit.tools.tiny.models import CANVAS
from edgekit.tools.tiny.tasks import examples

CHECKPOINTS = Path(tokenizer.__file__).parent
TASKS = ("copying", "json", "addition-2", "question")
PER_TASK, NOISE_LEVEL = 2, 0.5

#: The most that the logits of the median position may differ, relative to their length. A step of 8 bits is
#: 0.8 % of the largest activation of a row; tiny-gemma's logits differ by 1.0 %, tiny-llada's by 2.8 %.
MOST = {"gemma": 0.02, "llada": 0.05}


def canvases(family: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Prompts and half-corrupted answers of held-out examples."""
    encoder, rng = Encoder(family), np.random.default_rng(0)
    out = []
    for task in TASKS:
        chosen = examples(task, PER_TASK)
        prompts = encoder.prompts([encoder.family.prompt([], e.prompt) for e in chosen])
        for prompt, answer in zip(prompts, encoder.answers([e.answer for e in chosen]), strict=True):
            canvas = np.full(CANVAS, encoder.family.fill_id, np.int64)
            canvas[: len(answer)] = answer
            random = rng.integers(0, tokenizer.VOCAB_SIZE, CANVAS)
            corrupt = tokenizer.MDM_MASK if family == "llada" else random
            out.append(
                (np.array(prompt, np.int64), np.where(rng.random(CANVAS) < NOISE_LEVEL, corrupt, canvas))
            )
    return out


def reference_logits(model: ReferenceModel, prompt: np.ndarray, canvas: np.ndarray) -> np.ndarray:
    """Of the canvas [T, V]."""
    with torch.no_grad():
        if model.architecture.causal_prefix:
            kv = model.encode(torch.from_numpy(prompt)[None])
            return model.denoise(torch.from_numpy(canvas)[None], kv)[0].numpy()
        ids = torch.from_numpy(np.concatenate([prompt, canvas]))[None]
        return model.denoise(ids)[0, len(prompt) :].numpy()


def native_logits(session: Session, prompt: np.ndarray, canvas: np.ndarray) -> np.ndarray:
    session.reset()
    if session.model.causal_prefix:
        session.prefill(prompt)
        out = session.denoise(canvas, HeadRequest(logits=True))
    else:
        ids = np.concatenate([prompt, canvas])
        out = session.denoise(ids, HeadRequest(logits=True, rows=np.arange(len(prompt), len(ids))))
    assert out.logits is not None
    return out.logits


@pytest.mark.parametrize("family", MOST)
@pytest.mark.parametrize("preset", ["mixed4", "int4"])
def test_tokens_are_those_of_float_activations(tmp_path: Path, family: str, preset: str) -> None:
    checkpoint, scheme = CHECKPOINTS / f"tiny-{family}", Scheme(preset)
    export(checkpoint, tmp_path / "bundle", ExportOptions("native", scheme=scheme))
    model = quantized_reference(checkpoint, scheme, "native")
    same, errors = [], []
    with Session(tmp_path / "bundle") as session:
        for prompt, canvas in canvases(family):
            found, expected = native_logits(session, prompt, canvas), reference_logits(model, prompt, canvas)
            same.append(found.argmax(-1) == expected.argmax(-1))
            errors.append(np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1))
    assert np.concatenate(same).mean() >= 0.99
    assert np.median(np.concatenate(errors)) < MOST[family]
