"""Generations whose tokens are kept in golden_tokens.json: every family, engine and way to hold weights.

    PYTHONPATH=tests python -m support.golden_tokens

writes the file anew, for changes that are meant to alter tokens.

The native engine's bits do not depend on the processor, so its cases are random models. Those of the others
do: they run the trained models, whose decisions are clear.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.export.quantize import Scheme
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.generation import Generator, Prompt, Settings
from edgekit.runtime.sampling import Committed
from support.bundles import shipped_model
from support.native_bundles import native_bundle

KEPT = Path(__file__).with_name("golden_tokens.json")
#: Of the weights: all in memory, and all streamed.
RESIDENT: dict[str, int | None] = {"resident": None, "streamed": 0}

_FAMILIES: dict[str, list[dict[str, Any]]] = {
    "diffusion_gemma": [
        {"steps": 5},
        {"seed": 5, "max_new_tokens": 33, "steps": 4, "options": {"entropy_bound": 2.0, "pad_token_id": 0}},
        {"seed": 2**64 - 1, "options": {"canvas_length": 5, "max_length": 30, "confidence_threshold": None}},
    ],
    "llada": [
        {"max_new_tokens": 40},
        {"seed": 3, "max_new_tokens": 21, "steps": 5, "options": {"block_length": 8, "temperature": 0.9}},
        {"max_new_tokens": 16, "options": {"threshold": 0.2, "cfg_scale": 1.5, "stop_at_eos": False}},
        {"seed": 2, "max_new_tokens": 16, "options": {"remasking": "random", "steps": 8}},
    ],
    "llada_moe": [{"max_new_tokens": 24, "steps": 12}, {"seed": 1, "options": {"temperature": 0.7}}],
    "dream": [
        {"max_new_tokens": 12},
        {"seed": 9, "max_new_tokens": 24, "steps": 6, "options": {"temperature": 0.8, "top_p": 0.9}},
        {"seed": 4, "max_new_tokens": 9, "steps": 30, "options": {"alg": "origin"}},
        {"max_new_tokens": 16, "steps": 8, "options": {"alg": "topk_margin", "top_k": 4}},
    ],
    "fast_dllm": [
        {"max_new_tokens": 19, "options": {"threshold": 0.02}},
        {"max_new_tokens": 12, "options": {"threshold": 0.02, "small_block_length": 4}},
    ],
    "nemotron_labs_diffusion": [
        {"max_new_tokens": 19, "options": {"threshold": 0.02}},
        {"max_new_tokens": 12, "options": {"mode": "speculative"}},
    ],
}  # fmt: skip
TRAINED: dict[str, dict[str, Any]] = {
    "tiny-llada": {"max_new_tokens": 16, "steps": 8, "seed": 3},
    "tiny-gemma": {"max_new_tokens": 32, "steps": 6, "seed": 3},
    "tiny-block": {"max_new_tokens": 16, "seed": 3},
}
PROMPT = [5, 17, 33, 2, 60, 81]
#: Formats with the models that are run in them: packages take long here.
ENGINES = {
    "native": list(TRAINED),
    "onnx": list(TRAINED),
    "mlx": list(TRAINED),
    "coreml": ["tiny-llada"],
    "coreai": ["tiny-llada"],
}


@dataclass(frozen=True)
class Case:
    """A generation: its bundle by family or model and format, what it asks for, and how weights are held."""

    name: str
    model: str
    format: str
    settings: dict[str, Any]
    resident_bytes: int | None

    def tokens(self, bundle: Path) -> list[int]:
        """The tokens that the bundle answers with."""
        executor = MilExecutor() if self.format == "coreml" else None
        with Generator(bundle, resident_bytes=self.resident_bytes, executor=executor) as generator:
            prompt = Prompt("Copy this: Ada 7 cat") if self.model in TRAINED else PROMPT
            events = generator.generate(prompt, Settings(**self.settings))
            return [int(token) for e in events if isinstance(e, Committed) for token in e.ids]


def cases() -> Iterator[Case]:
    for family, all_of in _FAMILIES.items():
        for number, settings in enumerate(all_of):
            for held, bound in RESIDENT.items():
                yield Case(f"{family}-{number}-{held}", family, "native", settings, bound)
    for written, models in ENGINES.items():
        for model in models:
            for held, bound in RESIDENT.items():
                yield Case(f"{model}-{written}-{held}", model, written, TRAINED[model], bound)


def family_bundle(folder: Path, family: str) -> Path:
    """A random model of a family for the native engine."""
    return native_bundle(folder, family, Scheme("mixed4", 16))


def _record() -> None:
    made: dict[tuple[str, str], Path] = {}
    with tempfile.TemporaryDirectory() as scratch:
        found = {}
        for case in cases():
            key = case.model, case.format
            if key not in made:
                folder = Path(scratch) / "-".join(key)
                folder.mkdir()
                trained = case.model in TRAINED
                make: Callable[..., Path] = shipped_model if trained else family_bundle
                made[key] = make(folder, *(key if trained else key[:1]))
            found[case.name] = case.tokens(made[key])
            print(case.name, len(found[case.name]))
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(tokens)}" for name, tokens in found.items())
    KEPT.write_text("{\n" + rows + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    _record()
